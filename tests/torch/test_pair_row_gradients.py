"""Gradients of row variables that are computed with the sum that they belong to."""

import pytest
from tensors import torch
from upsweep import BlockRanges, LazyTensor, Vi, Vj
from upsweep._compiler.cuda.pairs.render import render
from upsweep._compiler.cuda.pairs.sizes import Request
from upsweep._compiler.lowering.lower import lower
from upsweep._torch import pairs

M, N, D = 5, 7, 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
RANGES = BlockRanges(([[0, 2], [3, 5]], [2, 3], [[0, 2], [1, 4], [2, 7]]), (M, N))


def randn(*shape, seed=0, device="cpu", grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device).requires_grad_(grad)


def count_reductions(monkeypatch):
    """The dims of the formulas that are reduced from now on."""
    dims, run = [], pairs._run
    monkeypatch.setattr(pairs, "_run", lambda *args: dims.append(args[0].reduction.formula.dim) or run(*args))
    return dims


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ranges", [None, RANGES])
def test_gradients_of_rows_come_with_a_sum(monkeypatch, device, axis, ranges):
    """Equal to those of reductions of their own, for any cotangent; with a graph they are derived anew."""
    x, y = randn(M, D, device=device, grad=True), randn(N, D, seed=1, device=device, grad=True)
    b = randn(N if axis else M, 1, seed=2, device=device)
    cotangent = randn(M if axis else N, 1, seed=5, device=device)
    rows, columns = (x, y) if axis else (y, x)
    weight = Vj(b) if axis else Vi(b)
    dims = count_reductions(monkeypatch)
    total = ((-Vi(x).sqdist(Vj(y))).exp() * weight).sum(axis=axis, ranges=ranges)
    assert dims == [1 + D]
    with_graph = torch.autograd.grad(total, (rows, columns), cotangent, create_graph=True)
    dims.clear()
    for _ in range(2):
        of_rows, of_columns = torch.autograd.grad(total, (rows, columns), cotangent, retain_graph=True)
        torch.testing.assert_close(of_rows, with_graph[0])
        torch.testing.assert_close(of_columns, with_graph[1])
    assert dims == [D, D]  # those of columns alone
    with torch.no_grad():
        plain = ((-Vi(x).sqdist(Vj(y))).exp() * weight).sum(axis=axis, ranges=ranges)
    torch.testing.assert_close(total, plain)


@pytest.mark.parametrize("name", ["columns alone", "vectors", "many features", "logsumexp"])
def test_other_gradients_are_reductions_of_their_own(monkeypatch, name):
    dim = pairs.MAX_SAVED_FEATURES + 1 if name == "many features" else D
    x, y = randn(M, dim, grad=name != "columns alone"), randn(N, dim, seed=1, grad=True)
    exponent = -Vi(x).sqdist(Vj(y))
    dims = count_reductions(monkeypatch)
    if name == "logsumexp":
        exponent.logsumexp(axis=1)
    else:
        (exponent.exp() * Vj(y) if name == "vectors" else exponent.exp()).sum(axis=1)
    assert dims == [dim if name == "vectors" else 1]


def test_gradients_of_a_repeated_batch_come_with_a_sum():
    x, y = randn(M, D, grad=True), randn(2, N, D, seed=1)

    def total(x):
        squares = ((LazyTensor(x[None, :, None, :]) - LazyTensor(y[:, None])) ** 2).sum(-1)
        return (-squares).exp().sum(axis=2)

    assert torch.autograd.gradcheck(total, (x,))


@pytest.mark.parametrize("precision", ["ieee", "split", "tf32", "f16"])
@pytest.mark.parametrize("dim", [1, 2])
def test_the_sum_has_the_kernel_of_its_precision(monkeypatch, precision, dim):
    """Those of long vectors that are rounded to float16 have few results: the gradients do not come with a sum."""
    x, y, w = randn(M, 40).float(), randn(N, 40, seed=1).float(), randn(M, dim, seed=2).float()
    reductions, run = [], pairs._run
    monkeypatch.setattr(pairs, "_run", lambda *args: reductions.append(args[0].reduction) or run(*args))
    ((-Vi(x).sqdist(Vj(y)) / 40).exp() * (1 + Vi(w.requires_grad_()).sum())).sum(axis=1, precision=precision)
    (reduction,) = reductions
    rounds = precision in ("tf32", "f16")
    assert reduction.formula.dim == (1 if rounds and dim > 1 else 1 + dim)
    request = Request("sum", 0, "i", "float32", "float64", 3, 0, False, 227 * 1024, precision, True)
    kernels = render(lower(reduction, **({"long": 15} if rounds else {})), request)
    assert bool(kernels.product and kernels.product.prepared_bytes(1, 1)) == rounds


def test_a_sum_may_be_changed_in_place():
    for weight in (Vj(randn(N, 1)), Vj(randn(N, 2))):  # with the gradients of rows, and without
        x, y = randn(M, D, grad=True), randn(N, D, seed=1)
        expected = torch.autograd.grad(2 * ((-Vi(x).sqdist(Vj(y))).exp() * weight).sum(axis=1).sum(), x)
        total = ((-Vi(x).sqdist(Vj(y))).exp() * weight).sum(axis=1)
        torch.testing.assert_close(torch.autograd.grad(total.mul_(2).sum(), x), expected)


def test_gradients_that_wrt_leaves_out_are_not_computed(monkeypatch):
    x, y = Vi(randn(M, D)), Vj(randn(N, D, seed=1))
    dims = count_reductions(monkeypatch)
    (-x.sqdist(y)).exp().sum(axis=1, call=False).value_and_grad(wrt=[y])
    assert dims == [1, D]
