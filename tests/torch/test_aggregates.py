"""Carries of tensors: those of arrays, on the CPU and on CUDA, and with derivatives."""

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, operands, random
from tensors import DEVICES, to_array, to_tensor, torch
from upsweep._torch import executors

on_each_device = pytest.mark.parametrize("device", DEVICES)


def same(result, expected, device, close=1e-11):
    for a, b in zip(result, expected):
        assert isinstance(a, torch.Tensor) and a.device.type == device
        a = to_array(a)
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=close, atol=close)


def both(name, arrays, device, grad=False, **keywords):
    """The carry of tensors and that of arrays."""
    function = getattr(upsweep, f"{name}_carry")
    tensors = [to_tensor(a, device) for a in arrays]
    if grad:
        tensors = [t.clone().requires_grad_() if isinstance(t, torch.Tensor) else t for t in tensors]
    operand = {key: to_tensor(value, device) for key, value in keywords.items()}
    return function(*tensors, **operand), function(*arrays, **keywords)


@on_each_device
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_like_those_of_arrays(name, dtype, grad, device):
    for shape, axis in [((3, 40), 1), ((40, 9), 0), ((7,), 0), ((2, 5, 3), 1), ((3, 0), 1), ((3, 3000), 1)]:
        for reset in (None, random(shape, seed=4) > 0.95):
            for reverse in (False, True):
                arrays = operands(name, shape, dtype, gamma=-0.9)
                # A lane takes 16 elements of the short dtypes in float32 there.
                short = device == "cuda" and np.dtype(dtype).itemsize == 2
                result, expected = both(name, arrays, device, grad, axis=axis, reverse=reverse, reset=reset)
                same(result, expected, device, 1e-5 if short else 1e-11)


@on_each_device
@pytest.mark.parametrize("grad", [False, True])
def test_factors_of_every_kind(grad, device):
    x = random((3, 40))
    numbers = (0.0, 1.0, -1.5, 2, np.nan, np.inf, 0.3 - 0.4j)
    for gamma in (*numbers, random((3, 1)), random((40,)), random((3, 40), seed=1), random((3, 1), complex)):
        same(*both("discounted_cumsum", (x, gamma), device, grad), device)
    same(*both("linear_recurrence", (random((3, 40), seed=1), x + 1j), device, grad), device)
    same(*both("linear_recurrence", (0.5, x), device, grad), device)


@on_each_device
def test_integers(device):
    x = np.random.default_rng(0).integers(-99, 99, (3, 40))
    for dtype in ("int8", "int32", "int64", "bool"):
        same(*both("cumulative_sum", (x.astype(dtype),), device), device)
    result = upsweep.cumulative_sum_carry(to_tensor(abs(x).astype("uint8"), device))
    assert result.value.dtype == torch.int64 and (to_array(result.value) == abs(x).sum(1)).all()


@on_each_device
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_blocks_after_blocks(dtype, grad, device):
    gates, x = operands("linear_recurrence", (3, 40), dtype)
    reset = random((3, 40), seed=3) > 0.95
    x[1, 30], gates[2, 5] = np.inf, np.nan
    parts = [both("linear_recurrence", (gates[:, p], x[:, p]), device, grad, reset=reset[:, p])
             for p in (slice(0, 13), slice(13, 40))]  # fmt: skip
    (first, one), (second, two) = parts
    same(upsweep.combine(first, second), upsweep.combine(one, two), device)
    for state in (2.0, random((3,), np.float32), random((5, 3))):
        same([second.apply(to_tensor(state, device))], [two.apply(state)], device)
    assert second.apply(None) is second.value


@on_each_device
def test_after_a_reset_no_state_passes_not_even_nan(device):
    reset = torch.tensor([False, True, False], device=device)
    gates = torch.tensor([np.nan, np.inf, 2.0], device=device)
    result = upsweep.linear_recurrence_carry(gates, torch.ones(3, device=device), reset=reset)
    assert result.reset and result.multiplier == 0 and result.value == 3
    for state in (np.nan, np.inf, 1e300):
        assert result.apply(state) == 3


@on_each_device
def test_derivatives(device):
    gates, x, state = (to_tensor(random(shape, seed=seed), device).requires_grad_()
                       for seed, shape in enumerate([(2, 5), (2, 5), (2,)]))  # fmt: skip
    reset = torch.zeros(2, 10, dtype=torch.bool, device=device)
    reset[0, 6] = True
    gamma = to_tensor(random((2, 1), seed=7), device).requires_grad_()

    def gated(gates, x, state):
        parts = [upsweep.linear_recurrence_carry(g, t, reset=r) for g, t, r in
                 ((gates, x, reset[:, :5]), (x, gates, reset[:, 5:]))]  # fmt: skip
        whole = upsweep.combine(*parts)
        return whole.multiplier, whole.value, whole.apply(state)

    def discounted(x, gamma):
        carry = upsweep.discounted_cumsum_carry(x, gamma, reverse=True)
        return carry.multiplier, carry.value

    def mixed(gates, tokens):
        carry = upsweep.linear_recurrence_carry(gates, tokens)
        return carry.multiplier, carry.value

    tokens = to_tensor(random((2, 5), complex, 9), device).requires_grad_()
    cases = ((gated, (gates, x, state)), (discounted, (x, gamma)), (mixed, (gates, tokens)))
    for function, inputs in cases:
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


@on_each_device
def test_the_gradient_of_a_float32_block_is_that_of_its_scan(device):
    tensors = [to_tensor(random((3, 50), np.float32, seed), device).requires_grad_() for seed in (0, 1)]
    carry = upsweep.linear_recurrence_carry(*tensors)
    assert carry.value.dtype == torch.float64
    _, final = upsweep.linear_recurrence(*tensors, return_final=True)
    result, expected = (torch.autograd.grad(v.sum(), tensors) for v in (carry.value, final))
    for a, b in zip(result, expected):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@on_each_device
def test_what_is_refused(device):
    x = to_tensor(random((3, 40)), device)
    result, host = upsweep.cumulative_sum_carry(x), upsweep.cumulative_sum_carry(np.ones((3, 40)))
    whole = upsweep.cumulative_sum_carry(torch.ones(3, 40, dtype=torch.int32, device=device))
    cases = [
        (TypeError, "carry_b", lambda: upsweep.combine(result, host)),
        (TypeError, "carry_a", lambda: upsweep.combine(host, result)),
        (TypeError, "state", lambda: result.apply(np.ones(3))),
        (TypeError, "carry", lambda: host.apply(x[:, 0])),
        (TypeError, "state", lambda: result.apply(1j)),
        (TypeError, "state", lambda: whole.apply(0.5)),
        (ValueError, "state", lambda: result.apply(x)),
        (ValueError, "carry_b", lambda: upsweep.combine(result, upsweep.cumulative_sum_carry(x[:2]))),
        (ValueError, "device", lambda: upsweep.cumulative_sum_carry(x, device="cuda")),
        (TypeError, "dtype", lambda: upsweep.cumulative_sum_carry(x, dtype=np.float32)),
        (ValueError, "axis", lambda: upsweep.linear_recurrence_carry(x, x, axis=2)),
        (TypeError, "gates", lambda: upsweep.linear_recurrence_carry(np.ones((3, 40)), x)),
        (ValueError, "n_threads", lambda: upsweep.cumulative_sum_carry(x, n_threads=0)),
    ]
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()


@pytest.mark.cuda
def test_carries_on_two_devices():
    on_device = upsweep.cumulative_sum_carry(torch.ones(3, 4, device="cuda"))
    local = upsweep.cumulative_sum_carry(torch.ones(3, 4))
    for pair in ((on_device, local), (local, on_device)):
        with pytest.raises(ValueError, match="cuda"):
            upsweep.combine(*pair)
    with pytest.raises(ValueError, match="state"):
        on_device.apply(torch.ones(3))


@on_each_device
def test_the_compiler_takes_them_whole(device):
    def function(gates, x):
        parts = [upsweep.linear_recurrence_carry(gates[:, p], x[:, p]) for p in (slice(0, 3), slice(3, 7))]
        return upsweep.combine(*parts).value

    gates, x = (to_tensor(random((3, 7), np.float32, seed), device) for seed in (0, 1))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(gates, x), function(gates, x))


@on_each_device
def test_a_block_after_a_given_state(device):
    gates, x = (to_tensor(random((3, 5000), np.float32, seed, 0.99, 1.0), device) for seed in (0, 1))
    reset, state = to_tensor(random((3, 5000)) > 0.9995, device), to_tensor(random((3,)), device)
    for factors, dropping in (((gates, None), reset), ((None, 0.99), None), ((None, 1.0), reset)):
        multiplier, value, after = (torch.empty(3, dtype=torch.float64, device=device) for _ in range(3))
        dropped = torch.empty(3, dtype=torch.bool, device=device)
        keywords = {"axis": 1, "reverse": True, "flush": False, "n_threads": None}
        executors.reduce(x, *factors, dropping, multiplier, value, dropped, **keywords)
        executors.reduce(x, *factors, dropping, None, after, None, initial=state, **keywords)
        torch.testing.assert_close(after, torch.where(dropped, value, multiplier * state + value))
