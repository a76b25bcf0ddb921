"""Reductions over pairs of tensors: values against numpy's, first and second derivatives, devices and dtypes."""

import warnings

import numpy as np
import pytest
from tensors import torch
from upsweep import BlockRanges, Genred, KernelSolve, LazyTensor, Pm, Vi, Vj
from upsweep._compiler.formulas import adjoint

M, N, D = 5, 7, 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def randn(*shape, seed=0, dtype=torch.float64, device="cpu", grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).to(device).requires_grad_(grad)


def operands(device="cpu", grad=True):
    return (
        randn(M, D, device=device, grad=grad), randn(N, D, seed=1, device=device, grad=grad),
        randn(N, 2, seed=2, device=device, grad=grad), randn(1, seed=3, device=device, grad=grad),
    )  # fmt: skip


def formula(x, y, b, p):
    return -(Vi(x).sqdist(Vj(y)) * Pm(p).square() + Vj(b)[0] * Vi(x)[1])


OF_ALL = {
    "sum": lambda F, b, axis, **more: (F.exp() * b).sum(axis=axis, **more),
    "logsumexp": lambda F, b, axis, **more: F.logsumexp(axis=axis, **more),
    "logsumexp, weighted": lambda F, b, axis, **more: F.logsumexp(axis=axis, weight=b.square(), **more),
    "logsumexp, one weight": lambda F, b, axis, **more: F.logsumexp(axis=axis, weight=b.sqnorm2(), **more),
    "softmax": lambda F, b, axis, **more: F.sumsoftmaxweight(b, axis=axis, **more),
    "min": lambda F, b, axis, **more: (F * b).min(axis=axis, **more),
    "max_argmax": lambda F, b, axis, **more: (F * b).max_argmax(axis=axis, **more)[0],
    "Kmin": lambda F, b, axis, **more: (F * b).Kmin(3, axis=axis, **more),
    "Kmin_argKmin": lambda F, b, axis, **more: F.Kmin_argKmin(2, axis=axis, **more)[0],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", OF_ALL)
def test_first_and_second_derivatives(name, axis, device):
    def function(x, y, b, p):
        return OF_ALL[name](formula(x, y, b, p), Vj(b), axis)

    tensors = operands(device)
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)


RANGES = BlockRanges(([[0, 2], [3, 5]], [2, 3], [[0, 2], [1, 4], [2, 7]]), (M, N))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["sum", "logsumexp", "logsumexp, weighted", "softmax", "min", "Kmin"])
def test_derivatives_respect_ranges(name, axis):
    """Row 2 is in no block, and no column has it: values are infinite there, and nothing depends on them."""
    finite = torch.isfinite(OF_ALL[name](formula(*operands()), Vj(operands()[2]), axis, ranges=RANGES))

    def function(x, y, b, p):
        result = OF_ALL[name](formula(x, y, b, p), Vj(b), axis, ranges=RANGES)
        return torch.where(finite, result, torch.zeros_like(result))

    assert axis == 0 or not finite.all() or name in ("sum", "softmax")
    assert torch.autograd.gradcheck(function, operands())
    assert torch.autograd.gradgradcheck(function, operands(), fast_mode=True)


@pytest.mark.parametrize("name", ["sum", "logsumexp", "softmax", "Kmin"])
def test_derivatives_are_summed_over_what_was_broadcast(name):
    def function(x, y, b, p):
        weights = LazyTensor(b[:, :, None])
        F = -(
            LazyTensor(x[..., None, :]).sqdist(LazyTensor(y[:, None])) * LazyTensor(p[:, :, None, None]).square()
        )
        return OF_ALL[name](F + weights[0], weights, 3)

    tensors = (
        randn(2, 1, 3, D, grad=True), randn(3, 4, D, seed=1, grad=True), randn(1, 1, 4, 2, seed=2, grad=True),
        randn(2, 1, 1, seed=3, grad=True),
    )  # fmt: skip
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", OF_ALL)
@pytest.mark.parametrize("axis", [0, 1])
def test_values_are_numpys(name, axis):
    tensors = operands()
    arrays = [tensor.detach().numpy() for tensor in tensors]
    expected = OF_ALL[name](formula(*arrays), Vj(arrays[2]), axis)
    tracked = OF_ALL[name](formula(*tensors), Vj(tensors[2]), axis)
    assert tracked.requires_grad and tracked.dtype == torch.float64
    np.testing.assert_array_equal(tracked.detach(), expected)
    with torch.no_grad():
        np.testing.assert_array_equal(OF_ALL[name](formula(*tensors), Vj(tensors[2]), axis), expected)


def test_indices_are_int64_and_track_nothing():
    tensors = operands()
    for result in (formula(*tensors).argmin(axis=1), formula(*tensors).argKmin(2, axis=0)):
        assert result.dtype == torch.int64 and not result.requires_grad
    values, places = formula(*tensors).min_argmin(axis=1)
    assert values.requires_grad and not places.requires_grad


def test_tensors_of_the_cpu_are_not_copied():
    x = randn(M, D)
    seen = []
    from upsweep import _backends

    original = _backends.run_pairs
    try:
        _backends.run_pairs = lambda reduction, arrays, *rest, **more: (
            seen.extend(arrays) or original(reduction, arrays, *rest, **more)
        )
        Vi(x).sum(axis=1)
    finally:
        _backends.run_pairs = original
    assert seen[0].ctypes.data == x.data_ptr()


def test_strides_views_and_conjugates():
    x = randn(2 * M, 2 * D)[::2, ::2]
    y = randn(D).expand(N, D)
    imaginary = torch.view_as_complex(randn(M, D, 2)).conj().imag
    for rows in (x, imaginary):
        result = Vi(rows).sqdist(Vj(y)).sum(axis=1)
        torch.testing.assert_close(result[:, 0], ((rows[:, None] - y) ** 2).sum((1, 2)))


def test_float32():
    x, y = randn(M, D, dtype=torch.float32, grad=True), randn(N, D, dtype=torch.float32)
    result = (-Vi(x).sqdist(Vj(y)) * 0.5).exp().sum(axis=1)
    assert result.dtype == torch.float32
    result.sum().backward()
    wide = x.detach().double().requires_grad_()
    torch.exp(-0.5 * ((wide[:, None] - y.double()) ** 2).sum(-1)).sum().backward()
    torch.testing.assert_close(x.grad, wide.grad.float())


@pytest.mark.parametrize("m, n", [(1, 1), (1, 5), (5, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("name", ["sum", "logsumexp", "softmax", "min", "Kmin"])
def test_few_or_no_rows_and_columns(name, m, n):
    tensors = (
        randn(m, D, grad=True),
        randn(n, D, seed=1, grad=True),
        randn(n, 2, seed=2, grad=True),
        randn(1, grad=True),
    )
    result = OF_ALL[name](formula(*tensors), Vj(tensors[2]), 1)
    assert result.shape[0] == m
    if n and m:
        torch.where(torch.isfinite(result), result, 0).sum().backward()
        assert all(torch.isfinite(tensor.grad).all() for tensor in tensors)


def test_a_branch_that_is_not_taken_contributes_nothing():
    """To first and second derivatives, where the square root has none."""
    x = torch.tensor([[-1.0], [0.0], [4.0]], dtype=torch.float64, requires_grad=True)
    f = LazyTensor(x[:, None]) * LazyTensor(torch.ones(1, 2, 1, dtype=torch.float64))
    y = (f - 1).ifelse(f.sqrt(), f * f * f).sum(axis=1)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    np.testing.assert_allclose(first.detach(), [[6], [0], [0.5]])
    (second,) = torch.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(second, [[-12], [0], [-1 / 16]])


def test_explicit_gradients():
    x, y = randn(M, D), randn(N, D, seed=1)
    reduce = Genred("Exp(-SqDist(x, y))", ["x = Vi(3)", "y = Vj(3)"], axis=1)
    value, gradients = reduce.value_and_grad(x, y)
    expected = reduce.value_and_grad(x.numpy(), y.numpy())
    np.testing.assert_allclose(value, expected[0])
    for own, other in zip(gradients, expected[1]):
        np.testing.assert_allclose(own, other)
    assert not value.requires_grad


def test_linear_systems_have_first_and_second_derivatives():
    def by_solve(x, b, g):
        return (-Vi(x).sqdist(Vj(x)) * Pm(g).square()).exp().solve(b, alpha=0.5, eps=1e-13)

    def by_class(x, b, g):
        aliases = ["x = Vi(3)", "y = Vj(3)", "a = Vj(2)", "g = Pm(1)"]
        return KernelSolve("Exp(-Square(g) * SqDist(x, y)) * a", aliases, "a", axis=1)(
            x, x, b, g, alpha=0.5, eps=1e-13
        )

    tensors = randn(4, D, grad=True), randn(4, 2, seed=1, grad=True), randn(1, seed=2, grad=True)
    for function in (by_solve, by_class):
        assert torch.autograd.gradcheck(function, tensors)
        assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)
    x, b, g = (tensor.detach() for tensor in tensors)
    matrix = torch.exp(-(g**2) * ((x[:, None] - x) ** 2).sum(-1)) + 0.5 * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(by_solve(x, b, g), torch.linalg.solve(matrix, b))


def test_systems_that_are_solved_densely_have_derivatives():
    def by_solve(x, b):
        return (-Vi(x).sqdist(Vj(x))).exp().solve(b, alpha=1e-5, eps=1e-8)

    def by_matrix(x, b):
        unit = torch.eye(len(x), dtype=x.dtype)
        return torch.linalg.solve(torch.exp(-((x[:, None] - x) ** 2).sum(-1)) + 1e-5 * unit, b)

    x, b, weights = (0.5 * randn(150, 2)).requires_grad_(), randn(150, 1, seed=1, grad=True), randn(150, 1, seed=2)
    kernel = (-Vi(x.detach()).sqdist(Vj(x.detach()))).exp()
    assert kernel.solve(b.detach(), alpha=1e-5, eps=1e-8, return_info=True)[1].method == "dense"
    tracked = (-Vi(x).sqdist(Vj(x))).exp().solve(b, alpha=1e-5, eps=1e-8, return_info=True)[1]
    assert tracked.method == "dense" and 1e-12 < tracked.residual < 1e-8  # not of the steps for derivatives
    torch.testing.assert_close(by_solve(x, b), by_matrix(x, b), rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad((by_matrix(x, b) * weights).sum(), (x, b))
    for own, other in zip(torch.autograd.grad((by_solve(x, b) * weights).sum(), (x, b)), expected):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


def test_small_gradients_of_linear_systems_are_not_0():
    x, b = randn(20, 2), randn(20, 1, seed=1, grad=True)
    solution = (-Vi(x).sqdist(Vj(x))).exp().solve(b, alpha=0.5)
    (expected,) = torch.autograd.grad(solution.sum(), b, retain_graph=True)
    (gradient,) = torch.autograd.grad((1e-9 * solution).sum(), b)
    torch.testing.assert_close(1e9 * gradient, expected)


def test_functions_of_torch_on_features():
    x, y = randn(M, D), randn(N, D, seed=1)
    lazy, dense = Vi(x) - Vj(y), x[:, None] - y
    for norm in (torch.norm, torch.linalg.norm, torch.linalg.vector_norm):
        torch.testing.assert_close(norm(lazy, dim=-1).sum(1)[:, 0], dense.norm(dim=-1).sum(1))
    torch.testing.assert_close(torch.nn.functional.relu(lazy).sum(1), dense.relu().sum(1))
    squares, near = lazy.sqnorm2(), dense.square().sum(-1) < 2
    masks = torch.logical_or(squares > 5, torch.logical_not(squares >= 2)), (squares < 2) | (squares > 5)
    for mask in masks:
        expected = near | (dense.square().sum(-1) > 5)
        torch.testing.assert_close(mask.sum(1)[:, 0], expected.sum(1).to(x.dtype))
        torch.testing.assert_close(
            torch.where(mask, squares, 0).sum(1)[:, 0], (expected * dense.square().sum(-1)).sum(1)
        )
    smallest = torch.topk(squares, 2, dim=1, largest=False)[1]
    assert torch.equal(smallest, dense.square().sum(-1).topk(2, dim=1, largest=False)[1])


def test_functions_of_torch():
    x, y, p = randn(M, D), randn(N, D, seed=1), torch.tensor(2.0, dtype=torch.float64)
    squares, unit = torch.cdist(x, y) ** 2, torch.eye(N, dtype=x.dtype)
    for function in (
        torch.exp, torch.abs, lambda d: torch.clamp(d, 0.1, 0.5), lambda d: p - d, lambda d: p / d, lambda d: p**d,
        lambda d: p < d, lambda d: p % d, lambda d: torch.mul(d, p), lambda d: torch.pow(d, 2), torch.neg,
    ):  # fmt: skip
        torch.testing.assert_close(function(Vi(x).sqdist(Vj(y))) @ unit, function(squares).to(x.dtype))
    lazy = Vi(x).sqdist(Vj(y))
    torch.testing.assert_close(torch.sum(lazy, dim=1)[:, 0], squares.sum(1))
    torch.testing.assert_close(torch.logsumexp(lazy, dim=1)[:, 0], squares.logsumexp(1))
    torch.testing.assert_close(torch.topk(lazy, 2, dim=1)[0], squares.topk(2).values)
    with pytest.raises(TypeError, match=r"torch\.sinh: does not take a LazyTensor"):
        torch.sinh(lazy)
    with pytest.raises(TypeError, match=r"softmax: does not take a LazyTensor; write x\.sumsoftmaxweight"):
        torch.softmax(lazy, dim=1)
    with pytest.raises(TypeError, match=r"torch\.maximum: .* write \(x < y\)\.ifelse\(y, x\)"):
        torch.max(lazy, 2 * lazy)
    with pytest.raises(TypeError, match=r"write K\.T @ v"):
        torch.ones(M, dtype=x.dtype) @ lazy


def test_functions_of_torch_return_values_and_indices():
    """Hazard: the first row of one array in place of the values."""
    x, y = randn(M, D), randn(N, D, seed=1)
    lazy, dense = Vi(x).sqdist(Vj(y)), (x[:, None] - y).square().sum(-1)
    for function in (torch.min, torch.max):
        expected = function(dense, dim=1, keepdim=True)
        for result in (function(lazy, dim=1), function(lazy, 1), function(lazy, 1, True)):
            torch.testing.assert_close(result.values, expected.values)
            assert torch.equal(result.indices, expected.indices) and result[1] is result.indices
        of_features = function(Vi(x), dim=-1)
        torch.testing.assert_close(of_features.values.sum(1), function(x, dim=-1, keepdim=True).values)
    for largest in (True, False):
        expected = torch.topk(dense, 2, 1, largest)
        for result in (torch.topk(lazy, 2, 1, largest), lazy.topk(2, dim=1, largest=largest)):
            torch.testing.assert_close(result.values, expected.values)
            assert torch.equal(result.indices, expected.indices)


@pytest.mark.parametrize("name", ["sum", "mean", "min", "amax", "argmin", "logsumexp"])
def test_results_keep_the_axis(name):
    lazy, function = Vi(randn(M, D)).sqdist(Vj(randn(N, D, seed=1))), getattr(torch, name)
    result = function(lazy, dim=1, keepdim=True)
    assert (result if isinstance(result, torch.Tensor) else result.values).shape == (M, 1)
    for call in (lambda: function(lazy, dim=1, keepdim=False), lambda: function(lazy, 1, False)):
        with pytest.raises(ValueError, match=r"keepdim: results keep the last axis; .* write \[\.\.\., 0\]"):
            call()


def test_one_sided_limits_and_norms_are_torchs():
    x, y = randn(M, D), randn(N, D, seed=1)
    lazy, dense = Vi(x) - Vj(y), x[:, None] - y
    for limits in ({"min": 0.2}, {"max": 0.1}, {"min": -0.2, "max": 0.1}):
        torch.testing.assert_close(torch.clamp(lazy, **limits).sum(1), dense.clamp(**limits).sum(1))
    torch.testing.assert_close(torch.norm(lazy, p=1, dim=-1).sum(1)[:, 0], dense.norm(p=1, dim=-1).sum(1))


def test_tensors_without_axes_take_the_points_dtype():
    x, y = randn(M, D), randn(N, D, seed=1)
    scale, other = (torch.tensor(0.3, requires_grad=True) for _ in range(2))
    assert scale.dtype != x.dtype
    result = (-Vi(x).sqdist(Vj(y)) / scale).exp().sum(1)
    expected = (-(x[:, None] - y).square().sum(-1) / other).exp().sum(1, keepdim=True)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(scale.grad, other.grad)


def test_the_gradient_of_an_input_that_drops_out_is_0():
    x, y = randn(M, D, grad=True), randn(N, D, seed=1, grad=True)
    for reduction in ("Sum", "LogSumExp", "Min"):
        result = Genred("SqNorm2(x)", ["x = Vi(3)", "y = Vj(3)"], reduction, axis=1)(x, y)
        dx, dy = torch.autograd.grad(result.sum(), (x, y))
        assert dx.abs().sum() > 0 and dy.shape == y.shape and not dy.any()


def test_ranges_of_tensors():
    r = torch.tensor([[0, 2], [2, 5]], dtype=torch.int32)
    ranges = (r, torch.tensor([1, 2], dtype=torch.int32), r + 1, None, None, None)
    x, y = randn(M, D), randn(N, D, seed=1)
    mask = BlockRanges(ranges, (M, N)).to_mask()
    result = Vi(x).sqdist(Vj(y)).sum(axis=1, ranges=ranges)
    np.testing.assert_allclose(result[:, 0], (((x[:, None] - y) ** 2).sum(-1).numpy() * mask).sum(1))


def test_out():
    out = torch.full((M, 1), torch.nan, dtype=torch.float64)
    x, y = randn(M, D), randn(N, D, seed=1)
    assert Vi(x).sqdist(Vj(y)).sum(axis=1, out=out) is out
    torch.testing.assert_close(out, Vi(x).sqdist(Vj(y)).sum(axis=1))


def test_parameters_may_be_numbers_and_lists():
    x = randn(M, D)
    torch.testing.assert_close(
        (Vi(x) * Pm([1.0, 2.0, 3.0])).sum(axis=1), x * torch.tensor([1.0, 2.0, 3.0]).double()
    )


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: Vi(randn(M, D)) - Vj(np.zeros((N, D))),
            TypeError,
            "one has arrays of torch on cpu, the other of numpy",
        ),
        (
            lambda: Vi(randn(M, D)) - Vj(randn(N, D).float()),
            TypeError,
            "one is of dtype float64, the other of float32",
        ),
        (lambda: Vi(randn(M, D).half()).sum(axis=1), TypeError, "float16 is reduced on CUDA only"),
        (
            lambda: Vi(torch.zeros(M, D, dtype=torch.int64)),
            TypeError,
            "expected float32 or float64, got dtype int64",
        ),
        (
            lambda: Vi(randn(M, D)).sum(axis=1, backend="GPU"),
            ValueError,
            "backend: 'GPU' is not where the arrays are",
        ),
        (
            lambda: Genred("x - y", ["x = Vi(3)", "y = Vj(3)"])(randn(M, D), np.zeros((N, D))),
            TypeError,
            "y: expected a torch.Tensor",
        ),
        (lambda: Vi(randn(M, D, device="meta")).sum(axis=1), TypeError, "expected tensors on the CPU or on CUDA"),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_compiler_leaves_it_to_python():
    x, y = randn(M, D, grad=True), randn(N, D, seed=1)

    @torch.compile(backend="eager")
    def function(x, y):
        return (2 * Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], axis=1)(x * 1.0, y)).sum()

    function(x, y).backward()
    torch.testing.assert_close(x.grad, 4 * (N * x.detach() - y.sum(0)))


def dense(x, y, p):
    return -(((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1) * p[..., None] ** 2)


LAZY_AND_DENSE = {
    "sum": (lambda F: F.exp().sum(axis=1)[:, 0], lambda F: F.exp().sum(1)),
    "logsumexp": (lambda F: F.logsumexp(axis=0)[:, 0], lambda F: F.logsumexp(0)),
    "softmax": (lambda F: F.sumsoftmaxweight(F, axis=1)[:, 0], lambda F: (F.softmax(1) * F).sum(1)),
    "min": (lambda F: F.min(axis=1)[:, 0], lambda F: F.min(1).values),
    "Kmin": (lambda F: F.Kmin(2, axis=1), lambda F: F.topk(2, dim=1, largest=False).values),
}


@pytest.mark.parametrize("name", LAZY_AND_DENSE)
def test_transforms_of_functions(name):
    by_lazy, by_dense = LAZY_AND_DENSE[name]

    def lazy(x, y, p):
        return by_lazy(-Vi(x).sqdist(Vj(y)) * Pm(p).square())

    def plain(x, y, p):
        return by_dense(dense(x, y, p))

    x, y, p = randn(3, 2), randn(4, 2, seed=1), randn(1, seed=2)
    moved = randn(3, 2, seed=3), randn(4, 2, seed=4), randn(1, seed=5)
    func = torch.func
    close = torch.testing.assert_close
    close(func.jvp(lazy, (x, y, p), moved), func.jvp(plain, (x, y, p), moved))
    close(func.vjp(lazy, x, y, p)[1](lazy(x, y, p)), func.vjp(plain, x, y, p)[1](plain(x, y, p)))
    close(func.jacrev(lazy, (0, 1, 2))(x, y, p), func.jacrev(plain, (0, 1, 2))(x, y, p))
    close(func.jacfwd(lazy, (0, 1, 2))(x, y, p), func.jacfwd(plain, (0, 1, 2))(x, y, p))
    second = [func.hessian(lambda *inputs, f=f: f(*inputs).sum(), (0, 1, 2))(x, y, p) for f in (lazy, plain)]
    close(*second)
    xs, ps = randn(3, 5, 2), randn(5, 1)
    mapped = [func.vmap(f, in_dims=(1, None, 0))(xs, y, ps) for f in (lazy, plain)]
    close(*mapped)
    gradients = [
        func.vmap(func.grad(lambda *inputs, f=f: f(*inputs).sum()), (1, None, 0))(xs, y, ps) for f in (lazy, plain)
    ]
    close(*gradients)


def test_vmap_of_places_and_of_batches():
    x, y = randn(6, 2, M, D), randn(N, D, seed=1)
    reduce = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], "ArgMin", axis=1)
    expected = ((x[..., None, :] - y) ** 2).sum(-1).argmin(-1)
    torch.testing.assert_close(torch.func.vmap(reduce, in_dims=(0, None))(x, y)[..., 0], expected)


def test_vmap_of_ranges_that_run_through_a_batch():
    x, y = randn(4, 2, M, D), randn(N, D, seed=1)
    ranges = ([[0, M], [M, 2 * M]], [1, 2], [[0, 3], [N + 2, N + 5]])
    reduce = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], axis=1)
    squares = ((x[..., None, :] - y) ** 2).sum(-1)
    expected = torch.stack([squares[:, 0, :, :3].sum(-1), squares[:, 1, :, 2:5].sum(-1)], 1)
    result = torch.func.vmap(lambda x: reduce(x, y, ranges=ranges))(x)
    torch.testing.assert_close(result[..., 0], expected)


@pytest.mark.cuda
@pytest.mark.parametrize("name", OF_ALL)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ranges", [None, RANGES])
def test_values_on_a_device(name, axis, ranges):
    local, remote = operands(grad=False), operands("cuda", grad=False)
    expected = OF_ALL[name](formula(*local), Vj(local[2]), axis, ranges=ranges)
    actual = OF_ALL[name](formula(*remote), Vj(remote[2]), axis, ranges=ranges)
    assert actual.is_cuda
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_on_a_device(dtype):
    x, y = randn(200, D, dtype=dtype, device="cuda"), randn(300, D, seed=1, dtype=dtype, device="cuda")
    result = (-Vi(x).sqdist(Vj(y))).exp().sum(axis=1)
    assert result.dtype == dtype
    expected = torch.exp(-((x.double()[:, None] - y.double()) ** 2).sum(-1)).sum(1)
    torch.testing.assert_close(result[:, 0].double(), expected, rtol=0.02, atol=0.1)


@pytest.mark.cuda
def test_a_graph_takes_a_call_that_has_been_made_once():
    x, y = randn(500, D, device="cuda"), randn(700, D, seed=1, device="cuda")
    ranges = BlockRanges.causal(500, 700, block=50)

    def reduce():
        return (Vi(x).sqdist(Vj(y)) * -0.5 * Pm([2.0, 1.5, 1.0])).exp().sum(axis=1, ranges=ranges)

    reduce()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = reduce()
    x.mul_(0.5)
    graph.replay()
    torch.testing.assert_close(result, reduce())


@pytest.mark.cuda
def test_numpys_arrays_go_to_a_device_and_back():
    x, y = randn(M, D).numpy(), randn(N, D, seed=1).numpy()
    reduce = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], "Min_ArgMin", axis=1)
    for actual, expected in zip(reduce(x, y, backend="GPU"), reduce(x, y)):
        np.testing.assert_allclose(actual, expected)


@pytest.mark.parametrize("name", ["logsumexp, weighted", "softmax"])
def test_weights_that_are_all_0(name):
    x, y, b, p = operands()
    zeros = torch.zeros_like(b)
    result = OF_ALL[name](formula(x, y, b, p), Vj(zeros), 1)
    assert (result == (-torch.inf if "log" in name else 0)).all()
    (result.detach().isfinite() * result).nan_to_num(neginf=0.0).sum().backward()
    assert all(tensor.grad is None or torch.isfinite(tensor.grad).all() for tensor in (x, y, b, p))


def test_where_nothing_is_least_the_formula_may_be_anything():
    x, y = torch.tensor([[2.0], [4.0]], requires_grad=True), torch.tensor([[2.0], [3.0]], requires_grad=True)
    (Vi(x) - Vj(y)).log().min(axis=1, ranges=([[1, 2]], [1], [[0, 2]]))[1].sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[0.0], [1.0]]))
    torch.testing.assert_close(y.grad, torch.tensor([[0.0], [-1.0]]))


@pytest.mark.parametrize("device", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_numbers_are_cached_on_devices(device):
    from upsweep._torch import pairs

    built = [pairs.numbers((1.0, 0.5), torch.float32, torch.device(device)) for _ in range(2)]
    assert built[0].shape == (2,) and built[0].device.type == device
    assert (built[0] is built[1]) == (device != "cpu")
    if device != "meta":
        assert built[0].tolist() == [1.0, 0.5]


class _OnDevice(torch.Tensor):
    """A tensor that says that it is on a device, and counts how often it is brought to the host."""

    fetched = 0
    is_cuda = True

    def cpu(self):
        type(self).fetched += 1
        return self.as_subclass(torch.Tensor)


def test_ranges_of_a_device_are_fetched_once():
    from upsweep.pairs.ranges import as_ranges

    parts = ([[0, 2], [2, 5]], [1, 2], [[0, 3], [3, 6]])
    ranges = tuple(torch.tensor(part).as_subclass(_OnDevice) for part in parts)
    built = as_ranges(ranges, 5, 7)
    assert as_ranges(ranges, 5, 7) is built and _OnDevice.fetched == 3
    ranges[2].add_(1)  # another version
    assert as_ranges(ranges, 5, 7)[2].tolist() == [[1, 4], [4, 7]]


def test_backward_passes_are_derived_once(monkeypatch):
    derived = []
    original = adjoint.gradients
    monkeypatch.setattr(adjoint, "gradients", lambda *args: derived.append(args) or original(*args))

    def second_derivative():
        x, y = torch.rand(4, 2, requires_grad=True), torch.rand(3, 2)
        total = ((Vi(x) - Vj(y)) ** 2).sum(-1).atan().sum(1).sum()
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)

    second_derivative()
    n_derived = len(derived)
    assert n_derived == 3  # those that come with the sum, the gradient, and the gradient of that
    second_derivative()
    assert len(derived) == n_derived


def test_the_compiler_does_not_warn_of_caches():
    x, y = torch.rand(5, 3, requires_grad=True), torch.rand(4, 3)

    @torch.compile(backend="eager")
    def nearest(x, y):
        return Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], "Min", axis=1)(x, y)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nearest(x, y).sum().backward()
    assert x.grad.shape == x.shape
    assert not [str(each.message) for each in caught if "lru_cache" in str(each.message)]
