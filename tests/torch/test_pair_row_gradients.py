"""Gradients of row variables that are computed with the sum that they belong to."""

import pytest
from tensors import torch
from upsweep import BlockRanges, LazyTensor, Vi, Vj
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
    dim = pairs.MOST_KNOWN + 1 if name == "many features" else D
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
