"""Derivatives of the scans, of first and second order, against finite differences."""

import functools
import itertools

import pytest
import upsweep
from tensors import DEVICES, torch

pytestmark = pytest.mark.parametrize("device", DEVICES)

SHAPE = (3, 5)


def leaf(*shape, device, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator).to(device).requires_grad_()


def check(function, *inputs):
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


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
            for mine, other in zip(fast, whole):
                torch.testing.assert_close(mine, other.detach())
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
        for mine, other in zip(fast, whole):
            torch.testing.assert_close(mine, other.detach(), rtol=tolerance, atol=tolerance)


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
    for mine, exact in zip(short, wide):
        assert mine.grad.dtype == dtype
        torch.testing.assert_close(mine.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


def test_a_window_has_a_gradient_for_x_and_none_for_gamma(device):
    x = leaf(*SHAPE, device=device)
    check(lambda x: upsweep.discounted_cumsum(x, 0.5, window=3), x)
    gamma = torch.tensor(0.5, device=device, dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotImplementedError, match="gamma: no derivative"):
        upsweep.discounted_cumsum(x, gamma, window=3).sum().backward()
