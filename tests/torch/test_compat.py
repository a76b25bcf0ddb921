"""What users of fpscan and torch-discounted-cumsum write goes on working, on the CPU and on CUDA."""

import inspect

import numpy as np
import pytest
import upsweep
from helpers import random, reference_of_long_lines, run_python, sequential
from tensors import DEVICES, to_array, to_tensor, torch
from upsweep.testing import assert_scan_close

on_each_device = pytest.mark.parametrize("device", DEVICES)
LEFT_RIGHT = [upsweep.discounted_cumsum_left, upsweep.discounted_cumsum_right]


def loop(gates, tokens, reverse=False):
    """The recurrence step by step, in torch's own operations, that autograd follows."""
    steps = range(tokens.shape[-1])
    state, y = torch.zeros_like(tokens[..., 0]), {}
    for t in reversed(steps) if reverse else steps:
        y[t] = state = gates[..., t] * state + tokens[..., t]
    return torch.stack([y[t] for t in steps], -1)


def leaves(*shapes, device, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    created = [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [t.to(device, dtype).requires_grad_() for t in created]


def doubled(*tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


# ---- fpscan ----------------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 30, 32, 1000, 4096, 65536, 100_003])
def test_batches_of_channels(length, dtype, device):
    gates, tokens = (to_tensor(random((2, 3, length), np.float32, seed), device).to(dtype) for seed in (1, 2))
    arrays = [to_array(t.float()) for t in (gates, tokens)]
    for reverse in (False, True):
        y = upsweep.scan_forward(gates, tokens, reverse=reverse)
        assert y.shape == tokens.shape and y.dtype == dtype and y.device == tokens.device
        [(expected, scale)] = reference_of_long_lines("linear_recurrence", *arrays, reverse=reverse)
        half = dtype != torch.float32
        assert_scan_close(to_array(y), expected, scale, rtol=1e-6 if half else None)
        if not reverse:
            assert torch.equal(upsweep.pscan(gates, tokens), y)
            assert torch.equal(upsweep.PScan.apply(gates, tokens), y)


@on_each_device
@pytest.mark.parametrize("shape", [(2, 3, 1), (2, 3, 33), (2, 3, 300), (5,), (4, 2, 3, 64)])
def test_gradients_of_pscan(shape, device):
    for function in (upsweep.pscan, upsweep.PScan.apply):
        gates, tokens = leaves(shape, shape, device=device, dtype=torch.float32)
        weights = torch.linspace(-1, 1, tokens.numel(), device=device).view(shape)
        wide = doubled(gates, tokens)
        (function(gates, tokens) * weights).sum().backward()
        (loop(*wide) * weights.double()).sum().backward()
        for result, exact in zip((gates, tokens), wide):
            torch.testing.assert_close(result.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)


@on_each_device
def test_the_class_is_differentiable_twice_and_compiles(device):
    gates, tokens = leaves((2, 3, 5), (2, 3, 5), device=device)
    assert torch.autograd.gradgradcheck(upsweep.PScan.apply, (gates, tokens))
    compiled = torch.compile(upsweep.PScan.apply, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(gates, tokens), upsweep.pscan(gates, tokens))


@on_each_device
def test_operands_in_any_layout(device):
    gates, tokens = (t.detach() for t in leaves((2, 64, 4), (2, 64, 4), device=device))
    y = upsweep.scan_forward(gates.mT, tokens.mT)
    torch.testing.assert_close(y, loop(gates.mT, tokens.mT))
    some = gates[:, ::3].mT, tokens[:, 1:23].mT
    torch.testing.assert_close(upsweep.pscan(*some), loop(*some))


@on_each_device
def test_scan_forward_never_tracks(device):
    gates, tokens = leaves((2, 3, 64), (2, 3, 64), device=device)
    out = torch.empty(2, 3, 64, dtype=torch.float64, device=device)
    assert not upsweep.scan_forward(gates, tokens).requires_grad
    for keywords in ({}, {"reverse": True}):
        y = upsweep.scan_forward(gates=gates, tokens=tokens, out=out, **keywords)
        assert y is out and not y.requires_grad
        torch.testing.assert_close(y, loop(gates, tokens, **keywords).detach())
    in_place = tokens.detach().clone()
    assert upsweep.scan_forward(gates, in_place, False, in_place) is in_place
    torch.testing.assert_close(in_place, loop(gates, tokens).detach())
    with torch.inference_mode():
        assert torch.equal(upsweep.pscan(gates, tokens), in_place)


def test_the_class_needs_no_torch():
    code = """
    import sys
    sys.modules["torch"] = None
    import upsweep
    from upsweep import PScan
    assert "PScan" in upsweep.__all__ and "PScan" in dir(upsweep)
    print(*PScan.apply([2.0, 2.0], [1.0, 1.0]))
    """
    assert run_python(code).split() == ["1.0", "3.0"]


# ---- torch-discounted-cumsum -----------------------------------------------------------------------------------


def per_row(gamma, x):
    return gamma.reshape(-1, 1).expand_as(x)


@on_each_device
@pytest.mark.parametrize("function", LEFT_RIGHT)
def test_gamma_in_every_form(function, device):
    x = to_tensor(random((3, 50), np.float32), device)
    reverse = function is upsweep.discounted_cumsum_right
    one, several = 0.9, [0.5, 0.9, 0.1]
    read_only = np.array(several)[::-1]
    read_only.flags.writeable = False
    forms = [
        *[(form, one) for form in (one, np.float64(one), torch.tensor(one, dtype=torch.float64), [one])],
        *[(torch.tensor(form, device=device, dtype=torch.float64), one) for form in (one, [one], [[one]])],
        *[(form, several) for form in (several, tuple(several), np.array(several), np.array(several, ">f8"))],
        *[(torch.tensor(form, device=device, dtype=torch.float64), several) for form in (several,)],
        (read_only, several[::-1]),
        *[(form, 1) for form in (1, True, np.int8(1), torch.tensor(1), [1])],
        *[(form, 0) for form in (0, 0.0, torch.zeros(3, device=device, dtype=torch.int64))],
    ]
    for form, numbers in forms:
        y = function(x, form)
        assert y.dtype == x.dtype and y.device == x.device
        gamma = torch.tensor(numbers, dtype=torch.float64, device=device)
        if not isinstance(form, torch.Tensor):
            gamma = gamma.to(x.dtype).double()  # as theirs
        expected = loop(per_row(gamma, x) if gamma.ndim else gamma.expand_as(x), x.double(), reverse)
        scale = loop(torch.full_like(x, float(gamma.max())), x.abs().double(), reverse)
        assert_scan_close(to_array(y), to_array(expected), to_array(scale))


@on_each_device
@pytest.mark.parametrize("function", LEFT_RIGHT)
def test_the_arguments_names(function, device):
    x, gamma = (t.detach() for t in leaves((3, 3), (3,), device=device))
    expected = function(x, gamma)
    assert torch.equal(function(input=x, gamma=gamma), expected)
    assert torch.equal(function(x=x, gamma=gamma), expected)
    assert torch.equal(expected, function(x, gamma[:, None]))  # per row, though it would broadcast along the axis
    with pytest.raises(TypeError, match="input"):
        function(x=x, input=x, gamma=gamma)
    with pytest.raises(TypeError, match="multiple values"):
        function(x, input=x, gamma=gamma)
    assert list(inspect.signature(function).parameters)[:2] == ["x", "gamma"]
    assert torch.equal(function(x[0], 0.5), function(x[:1], 0.5)[0])  # one axis will do


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", LEFT_RIGHT)
def test_gradients_of_gamma(function, dtype, device):
    reverse = function is upsweep.discounted_cumsum_right
    for rows in (1, 8):
        for length in (1, 2, 33, 500):
            for shape in [(rows,), (), (1,)]:
                x, gamma = leaves((rows, length), shape, device=device, dtype=dtype)
                wide_x, wide_gamma = doubled(x, gamma)
                function(x, gamma).sum().backward()
                loop(per_row(wide_gamma, x), wide_x, reverse).sum().backward()
                assert gamma.grad.shape == gamma.shape and gamma.grad.dtype == dtype
                torch.testing.assert_close(gamma.grad.double(), wide_gamma.grad, rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(x.grad.double(), wide_x.grad, rtol=1e-5, atol=1e-5)


@on_each_device
@pytest.mark.parametrize(
    "data", [np.ones(10_000, np.float32), random(10_000, np.float32)], ids=["ones", "uniform"]
)
def test_more_precise_than_the_loop_in_float32(data, device):
    # Their own test, whose loop has gamma in float32: what is to be met is the exact result for that number.
    exact = sequential(np.full(10_000, np.float64(np.float32(0.99))), data[::-1])
    state, steps = np.float32(0), []
    for token in data[::-1]:
        state = np.float32(token + np.float32(0.99) * state)
        steps.append(state)
    y = to_array(upsweep.discounted_cumsum_right(to_tensor(data[None], device), 0.99))[0, ::-1]
    error = np.abs(y - exact).max()
    assert 2 * error < np.abs(np.array(steps) - exact).max()


@on_each_device
def test_elements_up_to_k_by_a_difference(device):
    # The recipe of torch-discounted-cumsum's users for a window.
    x, gamma, k = torch.ones(1, 8, device=device), 0.99, 2
    y = upsweep.discounted_cumsum_right(x, gamma)
    windowed = y - gamma**k * torch.cat((y[:, k:], torch.zeros(1, k, device=device)), 1)
    torch.testing.assert_close(windowed, torch.tensor([[1.99] * 7 + [1.0]], device=device))
