"""User-defined scans of tensors: the arrays' results, and gradients of any order."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import upsweep
from helpers import flat, random
from tensors import torch
from upsweep._torch import user_scan

F = torch.nn.functional


def tensor(shape, seed=0, **keywords):
    return torch.tensor(random(shape, seed=seed), requires_grad=True, **keywords)


def cell(s, x):
    return np.tanh(0.5 * s * x[1] + x[0])


def coupled(s, x):
    return (s[0] * 0.9 + x * s[1], np.where(x > 0, s[1], s[0])), s[0] * s[1]


@pytest.mark.parametrize("keywords", [{}, {"reverse": True}, {"axis": 1}, {"axis": -1, "reverse": True}])
def test_results_are_those_of_arrays(keywords):
    for dtype in (np.float32, np.float64):
        x, start = random((40, 40), dtype), random(40, dtype)
        result = upsweep.scan(
            cell, torch.from_numpy(start), (torch.from_numpy(x), 0.5), return_final=True, **keywords
        )
        reference_result = upsweep.scan(cell, start, (x, np.asarray(0.5, dtype)), return_final=True, **keywords)
        for got, expected in zip(result, reference_result):
            assert isinstance(got, torch.Tensor)
            np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("checkpoint", [None, 4])
@pytest.mark.parametrize("keywords", [{}, {"reverse": True}, {"axis": 1}])
def test_gradients(keywords, checkpoint):
    start = tensor(6 if keywords.get("axis") else 3, 2)

    def run(x, w, start):
        return upsweep.scan(cell, start, (x, w), return_final=True, checkpoint=checkpoint, **keywords)

    arguments = (tensor((6, 3)), tensor((1, 3), 1), start)
    assert torch.autograd.gradcheck(run, arguments)
    if checkpoint is None:
        assert torch.autograd.gradgradcheck(run, arguments)


@pytest.mark.parametrize("keywords", [{}, {"axis": 1}, {"reverse": True}, {"checkpoint": 2}])
def test_results_can_be_changed_in_place(keywords):
    x = tensor((6, 3))

    def run():
        return upsweep.scan(lambda s, x: (np.tanh(s + x), (s, s * x)), 0.5, x, **keywords)

    first, second = run()
    expected = torch.autograd.grad(first.sum() + (second * second).sum(), x)
    first, second = run()
    first += 1
    assert torch.equal(torch.autograd.grad(first.sum() + second.square_().sum(), x)[0], expected[0])


def test_gradients_of_several_states():
    def run(x, a, b):
        return upsweep.scan(coupled, (a, b), x, axis=1)

    arguments = (tensor((4, 7)), tensor(4, 1), tensor(4, 2))
    assert torch.autograd.gradcheck(run, arguments, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(run, arguments, check_batched_grad=True)
    with pytest.raises(NotImplementedError, match="checkpoint: not with is_grads_batched"):
        torch.autograd.functional.jacobian(
            lambda x: upsweep.scan(lambda s, x: s * x, 1.0, x, checkpoint=2), arguments[1], vectorize=True
        )


def test_batched_gradients_in_another_thread():
    """As autograd computes those of a device: how deep its vmap is, only the calling thread knows."""
    x = tensor((4, 7))
    y = upsweep.scan(coupled, (0.5, 1.0), x, axis=1)
    vectors = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradient(vector):
        return torch.autograd.grad(y, x, vector, retain_graph=True)[0]

    with ThreadPoolExecutor(1) as pool:
        batched = torch._vmap_internals._vmap(lambda vector: pool.submit(gradient, vector).result())(vectors)
    assert torch.equal(batched, torch.stack([*map(gradient, vectors)]))


def test_a_branch_that_is_not_taken_contributes_nothing():
    """To first and second derivatives, where the square root has none."""
    x = torch.tensor([-1.0, 4.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    y = upsweep.scan(lambda s, x: 0.5 * s + np.where(x > 0, np.sqrt(x), x * x * x), 0.0, x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    weight = 2 - 0.5 ** torch.arange(3, -1, -1, dtype=torch.float64)  # 1 + 1/2 + 1/4 + ...
    np.testing.assert_allclose(first.detach(), weight * torch.tensor([3, 0.25, 0, 0.5]))
    (second,) = torch.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(second, weight * torch.tensor([-6, -1 / 32, 0, -0.25]))


def test_gradients_are_those_of_arrays():
    x, start = tensor((30, 5)), tensor(5, 1)
    y = upsweep.scan(lambda s, x: s * x + np.exp(-x), start, x)
    y.sum().backward()
    results = upsweep.scan.gradient(
        lambda s, x: s * x + np.exp(-x), start.detach().numpy(), x.detach().numpy(), np.ones((30, 5))
    )
    np.testing.assert_allclose(x.grad, results.xs)
    np.testing.assert_allclose(start.grad, results.init)


def test_parallel_in_time():
    x = tensor(20_000)
    y = upsweep.scan(lambda s, x: 0.9 * s + x, 0.0, x)
    y.sum().backward()
    expected = upsweep.discounted_cumsum(np.ones(20_000), 0.9, reverse=True)
    np.testing.assert_allclose(x.grad, expected)


def test_dtypes():
    assert upsweep.scan(lambda s, x: 0.5 * s + x, 0, torch.arange(4)).dtype == torch.get_default_dtype()
    assert upsweep.scan(lambda s, x: s + x, 0.0, torch.ones(4, dtype=torch.float16)).dtype == torch.float16
    assert upsweep.scan(lambda s, x: s | x, False, torch.tensor([False, True])).tolist() == [False, True]
    for dtype in (torch.complex64, torch.float8_e5m2):
        with pytest.raises(TypeError, match="xs: expected float16, bfloat16, float32, float64, integers or bool"):
            upsweep.scan(lambda s, x: s + x, 0.0, torch.ones(4, dtype=dtype))
    with pytest.raises(TypeError, match="xs: is on meta"):
        upsweep.scan(lambda s, x: s + x, 0.0, torch.ones(4, device="meta"))


def test_gradients_only_where_they_are_wanted():
    x = torch.randn(9, 3)
    assert not upsweep.scan(lambda s, x: s + x, 0.0, x).requires_grad
    with torch.no_grad():
        assert not upsweep.scan(lambda s, x: s + x, 0.0, x.requires_grad_()).requires_grad


def test_out_is_for_arrays():
    with pytest.raises(TypeError, match="out: goes with numpy arrays only"):
        upsweep.scan(lambda s, x: s + x, 0.0, torch.ones(4), out=torch.ones(4))


@pytest.mark.filterwarnings("ignore")  # of torch about its own prototypes
def test_tensors_that_are_not_dense():
    decay = lambda s, x: 0.5 * s + x  # noqa: E731
    x = torch.ones(3, 2)
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(TypeError, match=r"xs: expected a dense tensor, got one of layout torch\.sparse"):
            upsweep.scan(decay, 0.0, sparse)
        with pytest.raises(TypeError, match=r"init\[1\]: expected a dense tensor, got one of layout"):
            upsweep.scan(lambda s, x: (s[0] + x, s[1]), (0.0, sparse), torch.ones(4, 3, 2))
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        with pytest.raises(TypeError, match="xs: expected a dense tensor, got"):
            upsweep.scan(decay, 0.0, nested)


RATES = [0.5]  # a list may change without a sign: such an update is traced at each call


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("view", ["whole", "turned", "strided", "broadcast", "empty"])
def test_what_needs_no_derivative_goes_numpys_way(view, axis, reverse):
    x = torch.from_numpy(random((6, 8, 10), np.float32))
    x = {
        "whole": x,
        "turned": x.permute(2, 0, 1),
        "strided": x[::2, :, 1::3],
        "broadcast": x[:, :1].expand(6, 9, 10),
        "empty": x[:, :0],
    }[view]
    for update in (lambda s, x: RATES[0] * s + x, lambda s, x: (np.tanh(s + x), x > s)):
        keywords = {"axis": axis, "reverse": reverse, "return_final": True}
        result = upsweep.scan(update, 0.0, x, **keywords)
        reference_result = upsweep.scan(update, 0.0, x.clone().requires_grad_(), **keywords)
        for one, other in zip(result, reference_result, strict=True):
            assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, False)
            np.testing.assert_allclose(one, other.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32])
def test_all_dtypes_of_numpy_go_its_way(dtype, monkeypatch):
    """With `checkpoint` torch's own path runs, which is ten times as slow for small arrays."""

    def update(state, inputs):
        total, count = state
        x, flag = inputs
        return (0.5 * total + flag * x, count + flag), (total * flag, flag / 4, x > 0)

    x, flag = torch.from_numpy(random((40, 3))).float(), torch.from_numpy(random(40) * 3).to(dtype)[:, None]
    init, keywords = (0.0, torch.tensor(2, dtype=dtype)), {"reset": flag > 1, "return_final": True}
    expected = upsweep.scan(update, init, (x, flag), checkpoint=50, **keywords)
    monkeypatch.setattr(user_scan, "scan", None)
    for got, other in zip(flat(upsweep.scan(update, init, (x, flag), **keywords)), flat(expected), strict=True):
        assert got.dtype is other.dtype
        np.testing.assert_array_equal(got, other)


# Functions of torch that an update takes, also as methods, and those of torch.nn.functional.
OF_ONE = """
abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf exp exp2 expm1 fix floor isfinite isinf isnan log
log10 log1p log2 neg positive rad2deg reciprocal relu round rsqrt sigmoid sign signbit sin sinh sqrt square tan
tanh trunc
"""
OF_NETWORKS = (F.elu, F.gelu, F.leaky_relu, F.logsigmoid, F.relu, F.sigmoid, F.silu, F.softplus, F.tanh)
TWO, TABLE = torch.tensor(2.0, dtype=torch.float64), torch.tensor([0.5, -1.5], dtype=torch.float64)
OTHERS = (
    lambda x: torch.clamp(x, -0.5, 1.0) + torch.clamp(x, min=0.0) + x.clamp(max=0.5) + x.clip(-1, 1),
    lambda x: torch.where(x > 0, x, -x) + torch.where(x < 1, 0.5, x) + x.where(x > 0, x * x),
    lambda x: torch.minimum(x, x * x) + torch.max(x, 1 - x) + torch.fmax(x, -x),
    lambda x: torch.hypot(x, 1 + x) + torch.fmod(x, 0.7) + torch.remainder(x, 0.3) + torch.lerp(x, x * x, 0.5),
    lambda x: torch.add(x, 1) - x.mul(2).sub(x) + torch.pow(x, 2) + x.div(3) + torch.logaddexp(x, -x),
    lambda x: (x > 0).float() * x + (x < 1).to(torch.float64) + x.long() + torch.logical_not(x > 0).double(),
    lambda x: torch.round(x, decimals=1) + F.gelu(x, approximate="tanh") + F.softplus(x, beta=2.0),
    lambda x: F.softplus(x, 2.0, 0.5) + F.softplus(x, threshold=-1.0),
    lambda x: F.relu(input=x, inplace=False) + torch.nan_to_num(x, nan=0.5) + torch.copysign(TWO, x),
    lambda x: torch.nn.SiLU()(x) + torch.nn.Tanh()(x) + torch.nn.LeakyReLU(0.2)(x),
    lambda x: TWO * x + x * TWO + (TWO - x) / (TWO + x * x) + (x < TWO) + TWO**x + TABLE[(x > 0).long()],
)


@pytest.mark.parametrize("kind", ["functions", "methods", "others"])
def test_functions_of_torch(kind):
    """In an update they have torch's values and derivatives, of numpy arrays too."""

    def all_of(x):
        if kind == "others":
            return tuple(function(x) * 1.0 for function in (*OF_NETWORKS, *OTHERS))
        # Where each has a derivative.
        inside = {name: torch.sigmoid(x) + (name == "acosh") for name in OF_ONE.split()}
        if kind == "methods":
            return tuple(getattr(value, name)() * 1.0 for name, value in inside.items() if name != "positive")
        return tuple(getattr(torch, name)(value) * 1.0 for name, value in inside.items())

    x = 2 * torch.from_numpy(random((40, 3)))
    leaf, torch_leaf = x.clone().requires_grad_(), x.clone().requires_grad_()
    ys, expected = upsweep.scan(lambda s, x: (s, all_of(x)), 0.0, leaf), all_of(torch_leaf)
    for y, value in zip(ys, expected, strict=True):
        torch.testing.assert_close(y, value, rtol=1e-12, atol=1e-13, check_dtype=False)
        if value.requires_grad:
            gradient, expected_gradient = (
                torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
                for out, x in ((y, leaf), (value, torch_leaf))
            )
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)
    of_arrays = upsweep.scan(lambda s, x: (s, all_of(x)), 0.0, x.numpy())
    np.testing.assert_array_equal(of_arrays, torch.stack(ys).detach())


def test_public_functions_of_tensors():
    x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    for name in ("sigmoid", "silu", "softplus"):
        y = getattr(upsweep, name)(x)
        assert torch.equal(y, getattr(F, name)(x)) and y.requires_grad
    assert torch.equal(upsweep.logaddexp(x, x), torch.logaddexp(x, x))


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_captured_tensors(scale):
    """Matrices are unrolled, and one that would lose its gradient is refused."""
    matrix = scale * torch.tensor([[0.5, -0.25], [0.25, 0.5]], dtype=torch.float64)
    x = torch.from_numpy(random((9, 3)))
    expected, state = [], torch.zeros(2, 3, dtype=torch.float64)
    for row in x:
        state = torch.tanh(matrix @ state + row)
        expected.append(state)
    for update in (
        lambda s, x: torch.tanh(matrix @ torch.stack(s) + x),
        lambda s, x: torch.tanh((matrix * torch.stack(s)).sum(1) + x),
        lambda s, x: torch.tanh(torch.matmul(matrix, torch.stack(s, dim=0)) + x),
    ):
        torch.testing.assert_close(torch.stack(upsweep.scan(update, (0.0, 0.0), x), 1), torch.stack(expected))
    weight = torch.tensor(0.5, requires_grad=True)
    message = r"captured tensor that requires a gradient in test_user_scan\.py.*\n.* in xs.*table\[ids\] in xs"
    with pytest.raises(TypeError, match=message):
        upsweep.scan(lambda s, x: weight * s + x, 0.0, x)
    with torch.no_grad():
        upsweep.scan(lambda s, x: weight * s + x, 0.0, x)
    with pytest.raises(TypeError, match=r"captured tensor that vmap maps in test_user_scan\.py.*\n.* in xs"):
        torch.func.vmap(lambda rate: upsweep.scan(lambda s, x: rate * s + x, 0.0, x))(x[0].detach())
    with pytest.raises(TypeError, match=r"torch\.cumsum is not known for symbolic values in test_user_scan\.py"):
        upsweep.scan(lambda s, x: torch.cumsum(x, 0), 0.0, x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint64])
def test_integers_are_those_of_arrays(dtype):
    def generator(s, x):
        return (s ^ (s << 5) ^ (s >> 3)) + (x << 70)

    kind = str(dtype).removeprefix("torch.")
    limits, draws = np.iinfo(kind), np.random.default_rng(0)
    init, x = (draws.integers(limits.min, limits.max, shape, kind, endpoint=True) for shape in (4, (30, 4)))
    result = upsweep.scan(generator, torch.from_numpy(init), torch.from_numpy(x), return_final=True)
    for got, expected in zip(result, upsweep.scan(generator, init, x, return_final=True)):
        assert got.dtype is dtype
        np.testing.assert_array_equal(got.numpy(), expected)


def test_integers_promote_as_torch_does_and_have_no_gradient():
    x, w = torch.arange(5), torch.rand(5, requires_grad=True)
    (y, count), final = upsweep.scan(
        lambda s, x: ((s[0] * 0.5 + x[0] * x[1], s[1] + x[0]), s), (0.0, torch.tensor(2**53)), (x, w),
        return_final=True,
    )  # fmt: skip
    assert (y.dtype, count.dtype) == (torch.float32, torch.int64)
    assert final[1] == 2**53 + 10 and not count.requires_grad
    (y.sum() + final[0]).backward()
    assert w.grad.isfinite().all() and w.grad[1] > 0
    batched = torch.func.vmap(lambda x: upsweep.scan(lambda s, x: s * 3 - x, 1, x))(torch.stack([x, x + 2**60]))
    np.testing.assert_array_equal(batched[1], upsweep.scan(lambda s, x: s * 3 - x, 1, x.numpy() + 2**60))


def test_products_with_captured_matrices():
    matrix, x = torch.tensor([[0.9, 0.1], [-0.2, 0.8]], dtype=torch.float64), torch.tensor(random((20, 3)))
    result = upsweep.scan(lambda s, x: matrix @ s + x, (0.0, 1.0), x, reset=x[:, :1] > 1)
    expected = upsweep.scan(lambda s, x: matrix.numpy() @ s + x, (0.0, 1.0), x, reset=x[:, :1] > 1)
    assert all(map(torch.equal, result, expected))
    with pytest.raises(TypeError, match="a matrix product with a symbolic number"):
        upsweep.scan(lambda s, x: matrix @ s, 0.0, x)


def test_reset_is_that_of_arrays():
    x, drops = random((40, 3)), np.random.default_rng(1).random((40, 3)) < 0.2
    result = upsweep.scan(coupled, (1.0, 0.5), torch.from_numpy(x), reset=torch.from_numpy(drops))
    for got, expected in zip(flat(result), flat(upsweep.scan(coupled, (1.0, 0.5), x, reset=drops))):
        np.testing.assert_array_equal(got.numpy(), expected)


def test_updates_that_draw_are_refused():
    generator = torch.Generator()
    for update in (
        lambda s, x: s + torch.rand(1).item(),
        lambda s, x: s + torch.rand(1, generator=generator).item(),
    ):
        for _ in range(2):
            with pytest.raises(TypeError, match=r"changes .*\n.*drawn once for all steps"):
                upsweep.scan(update, 0.0, np.ones(3))


def test_filters_refuse_what_only_numpy_arrays_have():
    da = pytest.importorskip("dask.array")
    line = [1.0, 2.0]
    for x in (torch.tensor(line), da.from_array(np.array(line))):
        with pytest.raises(ValueError, match=r"b, a: order 17 is above 16, .* pass x as a numpy array"):
            upsweep.lfilter(np.ones(18), [1.0], x)
        for b, a, name in ((1j, 1.0, "b"), (1.0, np.longdouble([1, 2]), "a")):
            with pytest.raises(
                TypeError, match=rf"{name}: expected real numbers of up to 64 bits, got dtype .*numpy"
            ):
                upsweep.lfilter(b, a, x)
        with pytest.raises(TypeError, match=r"x: expected real numbers, got dtype .*complex"):
            upsweep.lfilter([1.0], [1.0, 0.5], x * (1 + 0j))
    with pytest.raises(TypeError, match=r"zi: expected a numpy array, as x is, got torch\.Tensor"):
        upsweep.lfilter([1.0], [1.0, 0.5], np.array(line), zi=torch.ones(1))
