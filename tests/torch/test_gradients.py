"""Derivatives of the scans, of first and second order, against finite differences."""

import ctypes
import functools
import itertools

import pytest
import upsweep
from tensors import DEVICES, torch
from upsweep._backends.cuda import abi, library
from upsweep._torch import executors

pytestmark = pytest.mark.parametrize("device", DEVICES)

SHAPE = (3, 5)


def leaf(*shape, device, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator).to(device).requires_grad_()


def check(function, *inputs):
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_batched_gradients(device):
    gates, x = leaf(*SHAPE, device=device), leaf(*SHAPE, device=device, seed=1)
    functions = {
        upsweep.linear_recurrence: (gates, x),
        upsweep.cumulative_sum: (x,),
        lambda gamma, x: upsweep.discounted_cumsum(x, gamma): (leaf(device=device), x),
    }
    for function, inputs in functions.items():
        assert torch.autograd.gradcheck(function, inputs, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, inputs, check_batched_grad=True)


def keywords_of(axis, reverse, exclusive, with_initial, with_reset, device):
    n_state = SHAPE[1 - axis]
    initial = leaf(n_state, device=device, seed=7) if with_initial else None
    reset = (
        (torch.rand(SHAPE, generator=torch.Generator().manual_seed(3)) < 0.3).to(device) if with_reset else None
    )
    return initial, {
        "axis": axis,
        "reverse": reverse,
        "exclusive": exclusive,
        "reset": reset,
        "return_final": True,
    }


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("reverse", "exclusive", "with_initial", "with_reset"), list(itertools.product([False, True], repeat=4))
)
def test_every_argument(axis, reverse, exclusive, with_initial, with_reset, device):
    initial, keywords = keywords_of(axis, reverse, exclusive, with_initial, with_reset, device)
    x, gates = leaf(*SHAPE, device=device), leaf(*SHAPE, device=device, seed=1)
    check(lambda g, x, i: upsweep.linear_recurrence(g, x, initial=i, **keywords), gates, x, initial)
    gamma = leaf(3, 1, device=device, seed=2) if axis == 1 else leaf(device=device, seed=2)
    check(lambda g, x, i: upsweep.discounted_cumsum(x, g, initial=i, **keywords), gamma, x, initial)
    check(lambda x, i: upsweep.cumulative_sum(x, initial=i, **keywords), x, initial)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (5,), (3, 5)])
def test_gamma_of_every_shape(shape, device):
    gamma, x = leaf(*shape, device=device, seed=2), leaf(*SHAPE, device=device)
    check(lambda g, x: upsweep.discounted_cumsum(x, g), gamma, x)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_lengths(length, device):
    gates, x = leaf(2, length, device=device), leaf(2, length, device=device, seed=1)
    initial = leaf(2, device=device, seed=2)
    for exclusive in (False, True):
        scan = functools.partial(upsweep.linear_recurrence, exclusive=exclusive, return_final=True)
        check(lambda g, x, i, scan=scan: scan(g, x, initial=i), gates, x, initial)


def test_broadcast_operands(device):
    gates, x = leaf(4, device=device), leaf(2, 3, 1, device=device, seed=1)
    check(lambda g, x: upsweep.linear_recurrence(g, x), gates, x)
    initial = leaf(1, device=device)
    check(lambda x, i: upsweep.discounted_cumsum(x, 0.5, initial=i), leaf(*SHAPE, device=device), initial)


@pytest.mark.parametrize("reverse", [False, True])
def test_an_expanded_factor_has_a_gradient_for_each_step(reverse, device):
    x, one = leaf(*SHAPE, device=device), leaf(3, 1, device=device, seed=1)
    for scan in (upsweep.linear_recurrence, lambda g, x, **keywords: upsweep.discounted_cumsum(x, g, **keywords)):
        grads = []
        for gates in (one.expand(SHAPE), one.expand(SHAPE).clone()):
            y = scan(gates, x, reverse=reverse)
            grads.append(torch.autograd.grad(y.sin().sum(), gates)[0])
        torch.testing.assert_close(*grads)


def test_gradients_of_every_layout(device):
    gates, x = leaf(*SHAPE, device=device), leaf(*SHAPE, device=device, seed=1)
    base = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(device)
    for reverse in (False, True):
        y = upsweep.linear_recurrence(gates, x, reverse=reverse)
        for strides in [(5, 1), (1, 3), (12, 2), (0, 1), (1, 0), (0, 0), (1, 1), (2, 1)]:
            g = base.as_strided(SHAPE, strides)
            fast = torch.autograd.grad(y, (gates, x), g, retain_graph=True)
            whole = torch.autograd.grad(y, (gates, x), g.clone(), create_graph=True)
            for result, other in zip(fast, whole):
                torch.testing.assert_close(result, other.detach())
        # torch hands over a gradient that it has yet to negate.
        pair = torch.complex(x.detach(), y).conj() * torch.complex(base[:15].view(SHAPE), x.detach())
        lazy = torch.autograd.grad(pair.imag.sum(), x, retain_graph=True)[0]
        plain = torch.autograd.grad(-(y * base[:15].view(SHAPE)).sum(), x)[0]
        torch.testing.assert_close(lazy, plain)


def test_dtypes_of_gradients_are_those_of_the_arguments(device):
    short = [leaf(*SHAPE, device=device, dtype=torch.float32, seed=seed) for seed in (0, 1)]
    wide = [leaf(*SHAPE, device=device, seed=seed) for seed in (0, 1)]
    state, per_row = leaf(3, device=device, seed=2), leaf(3, 1, device=device, seed=3)
    integers = torch.tensor([[1, 0, 2, -1, 1]] * 3, device=device)
    calls = [
        (lambda: upsweep.linear_recurrence(short[0], wide[1]), (short[0], wide[1])),
        (lambda: upsweep.linear_recurrence(wide[0], short[1], initial=state), (wide[0], short[1], state)),
        (lambda: upsweep.linear_recurrence(short[0], short[1], initial=state), (short[0], short[1], state)),
        (lambda: upsweep.discounted_cumsum(short[0], per_row), (short[0], per_row)),
        (lambda: upsweep.discounted_cumsum(short[0], wide[1]), (short[0], wide[1])),
        (lambda: upsweep.linear_recurrence(integers, wide[0]), (wide[0],)),
        (lambda: upsweep.linear_recurrence(wide[0], integers), (wide[0],)),
        (lambda: upsweep.discounted_cumsum(integers, per_row), (per_row,)),
        (lambda: upsweep.cumulative_sum(short[0], dtype=torch.float64), (short[0],)),
        (lambda: upsweep.cumulative_sum(short[0], dtype=torch.complex128).abs(), (short[0],)),
        (lambda: upsweep.linear_recurrence(integers, integers, initial=state), (state,)),
    ]
    for call, leaves in calls:
        for gradient, argument in zip(torch.autograd.grad(call().sum(), leaves), leaves):
            assert gradient.dtype == argument.dtype and gradient.shape == argument.shape and gradient.any()
    check(lambda x: upsweep.linear_recurrence(integers, x), wide[0])
    check(lambda g: upsweep.linear_recurrence(g, integers), wide[0])


def test_only_the_initial_state(device):
    generator = torch.Generator().manual_seed(4)
    gates, x = (torch.randn(SHAPE, dtype=torch.float64, generator=generator).to(device) for _ in range(2))
    reset = torch.tensor([[True, False, False, False, True], [False] * 5, [False] * 5], device=device)
    for reverse in (False, True):
        scan = functools.partial(
            upsweep.linear_recurrence, gates, x, reset=reset, reverse=reverse, return_final=True
        )
        initial = leaf(3, device=device, seed=5)
        check(lambda i, scan=scan: scan(initial=i), initial)
        assert torch.autograd.grad(sum(t.sum() for t in scan(initial=initial)), initial)[0][0] == 0


def test_a_number_on_the_cpu_has_its_gradient_there(device):
    x, gamma = leaf(*SHAPE, device=device), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    upsweep.discounted_cumsum(x, gamma).sum().backward()
    assert gamma.grad.device.type == "cpu"
    weights = torch.full((1,), 0.5, dtype=torch.float64, device=device, requires_grad=True)
    upsweep.discounted_cumsum(x, weights).sum().backward()
    torch.testing.assert_close(gamma.grad, weights.grad.cpu()[0])


def test_complex_numbers(device):
    gates = leaf(*SHAPE, device=device, dtype=torch.complex128)
    x = leaf(*SHAPE, device=device, dtype=torch.complex128, seed=1)
    check(upsweep.linear_recurrence, gates, x)
    real = leaf(*SHAPE, device=device)
    check(lambda g, x: upsweep.discounted_cumsum(x, g), leaf(device=device, dtype=torch.complex128), real)
    check(lambda x: upsweep.discounted_cumsum(x, 0.5 + 0.5j), real)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("reverse", "with_initial", "with_reset"), list(itertools.product([False, True], repeat=3))
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_alone_are_those_that_can_be_differentiated(
    dtype, axis, reverse, with_initial, with_reset, device
):
    for n in (1, 2, 70, 3000):
        shape = (n, 5) if axis == 0 else (5, n)
        gates, x = (leaf(*shape, device=device, dtype=dtype, seed=seed) for seed in (0, 1))
        initial = leaf(5, device=device, dtype=dtype, seed=2) if with_initial else None
        reset = (
            torch.rand(shape, generator=torch.Generator().manual_seed(3)).to(device) < 0.2 if with_reset else None
        )
        inputs = [t for t in (gates, x, initial) if t is not None]
        y, final = upsweep.linear_recurrence(
            gates.tanh(), x, axis=axis, reverse=reverse, initial=initial, reset=reset, return_final=True
        )
        loss = (y * x.detach()).sum() + final.sum()
        fast = torch.autograd.grad(loss, inputs, retain_graph=True)
        whole = torch.autograd.grad(loss, inputs, create_graph=True)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        for result, other in zip(fast, whole):
            torch.testing.assert_close(result, other.detach(), rtol=tolerance, atol=tolerance)


def test_only_the_final_state(device):
    gates, x = leaf(*SHAPE, device=device), leaf(*SHAPE, device=device, seed=1)
    check(lambda g, x: upsweep.linear_recurrence(g, x, return_final=True)[1], gates, x)


def test_include_initial(device):
    x, initial = leaf(*SHAPE, device=device), leaf(3, device=device, seed=1)
    for reverse in (False, True):
        scan = functools.partial(upsweep.cumulative_sum, include_initial=True, reverse=reverse)
        check(lambda x, i, scan=scan: scan(x, initial=i), x, initial)


def test_no_gradient_reaches_over_a_reset(device):
    gates = torch.full((4,), torch.inf, device=device, dtype=torch.float64, requires_grad=True)
    x = torch.ones(4, device=device, dtype=torch.float64, requires_grad=True)
    initial = torch.tensor(torch.inf, device=device, dtype=torch.float64, requires_grad=True)
    everywhere = torch.ones(4, device=device, dtype=torch.bool)
    y = upsweep.linear_recurrence(gates, x, initial=initial, reset=everywhere)
    y.sum().backward()
    assert (gates.grad == 0).all() and initial.grad == 0
    assert (x.grad == 1).all()


def test_a_factor_that_is_not_read_has_a_gradient_of_zero(device):
    # The gradient that comes to the first step is infinite there: 0 * inf must not enter a sum over the steps.
    x = torch.ones(3, device=device, dtype=torch.float64)
    weights = torch.tensor([torch.inf, 1, 1], device=device, dtype=torch.float64)
    gamma = torch.full((), 2.0, device=device, dtype=torch.float64, requires_grad=True)
    (upsweep.discounted_cumsum(x, gamma) * weights).sum().backward()
    assert gamma.grad == 6
    gates = torch.full((3,), 2.0, device=device, dtype=torch.float64, requires_grad=True)
    for create_graph in (False, True):
        y = upsweep.linear_recurrence(gates, x)
        (gradient,) = torch.autograd.grad((y * weights).sum(), gates, create_graph=create_graph)
        assert gradient.tolist() == [0, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_short_dtypes_against_float64(dtype, device):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.importorskip("ml_dtypes")
    wide = [leaf(4, 300, device=device, seed=seed) for seed in (0, 1)]
    short = [t.detach().to(dtype).requires_grad_() for t in wide]
    wide = [t.detach().double().requires_grad_() for t in short]
    weights = torch.randn(4, 300, generator=torch.Generator().manual_seed(5)).to(device, dtype)
    for gates, x in (short, wide):
        (upsweep.linear_recurrence(gates.sigmoid(), x) * weights.to(x.dtype)).sum().backward()
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5}[dtype]
    for result, exact in zip(short, wide):
        assert result.grad.dtype == dtype
        torch.testing.assert_close(result.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_window(window, reverse, device):
    x = leaf(*SHAPE, device=device)
    check(lambda x: upsweep.discounted_cumsum(x, 0.5, window=window, reverse=reverse), x)
    reset = torch.rand(SHAPE, device=device) < 0.3
    for shape in ((), (SHAPE[0], 1)):
        gamma = leaf(*shape, device=device, seed=3)
        for flags in (None, reset):
            check(
                lambda x, gamma, flags=flags: upsweep.discounted_cumsum(
                    x, gamma, window=window, reverse=reverse, reset=flags
                ),
                x, gamma,
            )  # fmt: skip


@pytest.mark.parametrize("gamma", [0.0, 1.0, -1.0])
def test_the_gamma_of_a_window_that_is_no_number_between(gamma, device):
    x = leaf(*SHAPE, device=device)
    gamma = torch.tensor(gamma, device=device, dtype=torch.float64, requires_grad=True)
    check(lambda x, gamma: upsweep.discounted_cumsum(x, gamma, window=3), x, gamma)


def test_the_complex_gamma_of_a_window(device):
    x = leaf(5, 2, device=device)
    gamma = leaf(2, dtype=torch.complex128, device=device, seed=3)
    check(lambda x, gamma: upsweep.discounted_cumsum(x, gamma, window=3, axis=0), x, gamma)
    x = leaf(5, 2, dtype=torch.complex128, device=device)
    check(lambda x, gamma: upsweep.discounted_cumsum(x, gamma, window=3, axis=0, reverse=True), x, gamma)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_gamma_of_a_window_that_is_zero_is_complex(dtype, device):
    x = leaf(8, dtype=torch.complex128, device=device)
    gamma = torch.zeros((), dtype=dtype, device=device, requires_grad=True)
    check(lambda x, gamma: upsweep.discounted_cumsum(x, gamma, window=4), x, gamma)
    (gradient,) = torch.autograd.grad(upsweep.discounted_cumsum(x, gamma, window=4).real.sum(), gamma)
    torch.testing.assert_close(gradient.real, x[:-1].real.sum())


def test_the_gamma_of_a_window_of_an_infinity(device):
    for at in range(12):
        x = torch.ones(20, device=device)
        x[at] = torch.inf
        gamma = torch.tensor(0.9, device=device, requires_grad=True)
        y = upsweep.discounted_cumsum(x, gamma, window=5)
        assert torch.autograd.grad(y.sum(), gamma)[0] == torch.inf


def test_the_gamma_of_no_steps(device):
    x, gamma = leaf(3, 0, device=device), leaf(3, 1, device=device)
    for keywords in ({}, {"window": 2}):
        (gradient,) = torch.autograd.grad(upsweep.discounted_cumsum(x, gamma, axis=-1, **keywords).sum(), gamma)
        assert torch.equal(gradient, torch.zeros_like(gamma))


# ---- both gradients in one kernel, on CUDA; the same calls on the CPU ------------------------------------------

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LENGTHS = [2, 3, 7, 8, 33, 100, 128, 129]  # of 1 there is a gamma, and no gates


@pytest.fixture
def uses_kernel(monkeypatch):
    """What the kernel for both gradients answers, call by call: whether it was for these lines."""
    answers = []
    run = executors.run_lines_backward

    def counted(g, *args):
        gradients = run(g, *args)
        if g.is_cuda and g.numel():
            answers.append(gradients is not None)
        return gradients

    monkeypatch.setattr(executors, "run_lines_backward", counted)
    return answers


def operands(rows, length, dtype, device, seed=0):
    """gates below 1, tokens and the gradient that comes in."""
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.importorskip("ml_dtypes")
    generator = torch.Generator().manual_seed(seed)
    gates, below, x, g = (torch.rand(rows, length, generator=generator, dtype=torch.float64) for _ in range(4))
    return [t.to(device, dtype) for t in (1 - 0.3 * gates * below, 4 * x - 2, 4 * g - 2)]


def exact_gradients(g, gates, y, reverse):
    """gx and ga in float64, from y as it was rounded, and the same of what is summed, without signs."""
    if reverse:
        return [t.flip(1) for t in exact_gradients(*(t.flip(1) for t in (g, gates, y)), False)]
    g, gates, y = (t.double() for t in (g, gates, y))
    edge = torch.zeros_like(y[:, :1])
    ahead, before = torch.cat((gates[:, 1:], edge), 1), torch.cat((edge, y[:, :-1]), 1)
    gx, scale = (upsweep.linear_recurrence(a, b, reverse=True) for a, b in ((ahead, g), (ahead.abs(), g.abs())))
    ga, ga_scale = gx * before, scale * before.abs()
    ga[:, 0] = ga_scale[:, 0] = 0
    return gx, ga, scale, ga_scale


def assert_gradients(result, g, gates, y, reverse):
    gx, ga, *scales = exact_gradients(g, gates, y, reverse)
    for gradient, exact, scale in zip(result, (gx, ga), scales):
        dtype = gradient.dtype
        assert dtype == g.dtype
        info = torch.finfo(dtype)
        short = dtype in (torch.float16, torch.bfloat16)
        # The CPU rounds gx before it multiplies.
        bound = 1.01 * info.eps * exact.abs() + (2e-6 if short else 1e-13) * scale + info.tiny * info.eps
        finite = exact.isfinite()
        assert ((gradient.double() - exact).abs() <= bound)[finite].all()
        rest = exact[~finite], gradient.double()[~finite]
        torch.testing.assert_close(*rest, rtol=0, atol=0, equal_nan=True)


def is_for_these(rows, length, dtype):
    """Few lines of more than two tiles are scanned by several blocks each."""
    tile, vec = {2: (4096, 8), 4: (2048, 4), 8: (1024, 2)}[dtype.itemsize]
    return rows == 600 or length + vec - 1 <= 2 * tile


@pytest.mark.parametrize("rows", [3, 600])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [*LENGTHS, 255, 256, 257, 300, 512, 513, 1024, 2048, 3000, 5001, 10007])
def test_both_gradients_along_lines(length, reverse, dtype, rows, device, uses_kernel):
    if device == "cpu" and rows * length > 10**6:
        rows = 30
    gates, x, g = operands(rows, length, dtype, device, seed=length)
    gates.requires_grad_(), x.requires_grad_()
    y = upsweep.linear_recurrence(gates, x, reverse=reverse)
    g_gates, gx = torch.autograd.grad(y, (gates, x), g)
    assert_gradients((gx, g_gates), g, gates.detach(), y.detach(), reverse)
    if device == "cuda":
        assert uses_kernel == [is_for_these(rows, length, dtype)]
    else:
        assert not uses_kernel


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_both_gradients_of_what_is_not_finite(reverse, dtype, device, uses_kernel):
    for length in (50, 300, 2048, 3001):
        gates, x, g = operands(600 if device == "cuda" else 40, length, dtype, device, seed=length)
        gates[::7, 3 * length // 4] = torch.inf
        gates[1::7, length // 3 :: 250] = 0
        gates[2::7, 5] = torch.nan
        gates[3::7, -1 if reverse else 0] = torch.inf  # which is not read
        g[4::7, length // 2] = -torch.inf
        g[5::7, 0] = g[5::7, -1] = torch.nan
        # Products that leave the range of float64 where the states do not.
        gates[6::7] = 2.0**-14
        g[6::7, length // 2] = torch.inf
        x.requires_grad_(), gates.requires_grad_()
        y = upsweep.linear_recurrence(gates, x, reverse=reverse)
        g_gates, gx = torch.autograd.grad(y, (gates, x), g)
        assert_gradients((gx, g_gates), g, gates.detach(), y.detach(), reverse)
        first = -1 if reverse else 0
        assert (g_gates[:, first] == 0).all()
    assert uses_kernel == [True] * 4 * (device == "cuda")


@pytest.mark.parametrize("reverse", [False, True])
def test_both_gradients_of_gates_of_zero(reverse, device, uses_kernel):
    gates, x, g = operands(600, 1000, torch.float32, device)
    gates[::2] = 0
    gates[1::2, ::3] = 0
    x.requires_grad_(), gates.requires_grad_()
    y = upsweep.linear_recurrence(gates, x, reverse=reverse)
    g_gates, gx = torch.autograd.grad(y, (gates, x), g)
    assert_gradients((gx, g_gates), g, gates.detach(), y.detach(), reverse)
    torch.testing.assert_close(gx[::2], g[::2], rtol=0, atol=0)
    assert uses_kernel == [True] * (device == "cuda")


def test_what_takes_the_other_way(device, uses_kernel):
    """Gates that begin otherwise than what is allocated; one gradient of the two; an initial state; resets."""
    gates, x, g = operands(600, 300, torch.float32, device)
    shifted = torch.zeros(1 + gates.numel(), device=device)[1:].view(gates.shape).copy_(gates)
    assert shifted.is_contiguous()
    initial = torch.ones(600, device=device)
    reset = torch.zeros(gates.shape, dtype=torch.bool, device=device)
    for reverse in (False, True):
        for factor, keywords, wants, asked in (
            (shifted, {}, "both", [False]),
            (gates, {}, "gates", []),
            (gates, {}, "x", []),
            (gates, {"initial": initial}, "both", []),
            (gates, {"reset": reset}, "both", []),
            (gates, {"axis": 0}, "both", []),
        ):
            uses_kernel.clear()
            leaves = [
                t.detach().requires_grad_(wants in ("both", name)) for name, t in (("gates", factor), ("x", x))
            ]
            y = upsweep.linear_recurrence(*leaves, reverse=reverse, **keywords)
            gradients = torch.autograd.grad(y, [t for t in leaves if t.requires_grad], g)
            assert uses_kernel == (asked if device == "cuda" else [])
            if keywords.keys() & {"initial", "axis"}:
                continue
            exact = exact_gradients(g, gates, y.detach(), reverse)
            expected = {"both": [exact[1], exact[0]], "gates": [exact[1]], "x": [exact[0]]}[wants]
            for result, other in zip(gradients, expected, strict=True):
                torch.testing.assert_close(result.double(), other, rtol=1e-6, atol=1e-6)


def test_both_gradients_of_a_sum(device, uses_kernel):
    """The gradient that comes in repeats one element, and a final state's is added to it."""
    gates, x, _ = operands(600, 1000, torch.float32, device)
    x.requires_grad_(), gates.requires_grad_()
    y, final = upsweep.linear_recurrence(gates, x, return_final=True)
    ones = torch.ones_like(x)
    assert_gradients(
        torch.autograd.grad(y.sum(), (x, gates), retain_graph=True), ones, gates.detach(), y.detach(), False
    )
    ones[:, -1] = 3
    assert_gradients(
        torch.autograd.grad(y.sum() + 2 * final.sum(), (x, gates)), ones, gates.detach(), y.detach(), False
    )
    assert uses_kernel == [True, True] * (device == "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_gradients_of_lines_that_begin_anywhere(dtype, device):
    """Every array as many elements after a vector's boundary; nothing around the results is touched."""
    if device == "cpu":
        pytest.skip("pointers to a device's memory")
    for offset, length, reverse in itertools.product((1, 3, 7), (1, 5, 100, 257, 1024, 3000), (False, True)):
        n, rows = 600 * length, 600
        sources = operands(rows, length, dtype, device, seed=offset)
        buffers = [torch.full((n + 16,), torch.nan, dtype=dtype, device=device) for _ in range(5)]
        gates, y_in, g, gx, g_gates = (buffer[offset : offset + n].view(rows, length) for buffer in buffers)
        for target, source in zip((gates, y_in, g), sources):
            target.copy_(source)
        request = abi.LinesBackward(
            device=0, dtype=abi.DTYPES[executors.NAMES[dtype]], reverse=reverse, lines=rows, length=length,
            stream=torch.cuda.current_stream().cuda_stream, gates=gates.data_ptr(), y=y_in.data_ptr(),
            g=g.data_ptr(), gx=gx.data_ptr(), g_gates=g_gates.data_ptr(),
        )  # fmt: skip
        assert library.load().lines_backward(ctypes.byref(request)) == abi.OK
        assert_gradients((gx, g_gates), g, gates, y_in, reverse)
        for buffer in buffers[3:]:
            assert buffer[:offset].isnan().all() and buffer[offset + n :].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_gradients_have_the_same_bits_on_each_run(dtype, device, uses_kernel):
    gates, x, g = operands(600, 3001, dtype, device)
    x.requires_grad_(), gates.requires_grad_()
    y = upsweep.linear_recurrence(gates, x)
    first, *others = (torch.autograd.grad(y, (x, gates), g, retain_graph=True) for _ in range(3))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other))
    assert uses_kernel == [True] * 3 * (device == "cuda")
