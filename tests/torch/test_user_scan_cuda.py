"""User-defined scans of tensors on a device: results and gradients of every order.

Without a GPU, tensors on the CPU are taken for some on a device, and kernels compiled by the C++ compiler run.
"""

import numpy as np
import pytest
import upsweep
from helpers import random
from tensors import torch


def tensor(shape, device, seed=0, dtype=None, **keywords):
    array = random(shape, dtype or np.float64, seed)
    return torch.tensor(array, device=device, requires_grad=True, **keywords)


def cell(s, x):
    return np.tanh(0.5 * s * x[1] + x[0])


def coupled(s, x):
    return (s[0] * 0.9 + x * s[1], np.where(x > 0, s[1], s[0])), s[0] * s[1]


@pytest.mark.parametrize("keywords", [{}, {"axis": -1, "reverse": True}])
def test_results_are_those_of_arrays(device, keywords):
    for dtype in (np.float32, np.float64) if device == "cuda" else (np.float32,):
        x, start = random((40, 40), dtype), random(40, dtype)
        on = [torch.from_numpy(array).to(device) for array in (start, x)]
        result = upsweep.scan(cell, on[0], (on[1], 0.5), return_final=True, **keywords)
        reference_result = upsweep.scan(cell, start, (x, np.asarray(0.5, dtype)), return_final=True, **keywords)
        for got, expected in zip(result, reference_result):
            assert isinstance(got, torch.Tensor) and got.device.type == device
            np.testing.assert_allclose(got.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("checkpoint", [None, 4])
@pytest.mark.parametrize("keywords", [{}, {"axis": 1, "reverse": True}])
def test_gradients(device, keywords, checkpoint):
    start = tensor(6 if keywords.get("axis") else 3, device, 2)

    def run(x, w, start):
        return upsweep.scan(cell, start, (x, w), return_final=True, checkpoint=checkpoint, **keywords)

    arguments = (tensor((6, 3), device), tensor((1, 3), device, 1), start)
    assert torch.autograd.gradcheck(run, arguments)
    if checkpoint is None and not keywords:
        assert torch.autograd.gradgradcheck(run, arguments)


def test_gradients_of_several_states_beside_numbers(device):
    x = tensor((4, 7), device)
    assert torch.autograd.gradcheck(
        lambda x: upsweep.scan(coupled, (0.5, 1.0), x, axis=1), (x,), check_batched_grad=True
    )


def test_time_in_parallel(device):
    x = tensor(3000, device)
    y = upsweep.scan(lambda s, x: 0.9 * s + 0.1 * x, 0.0, x)
    y.sum().backward()
    expected = 0.1 * upsweep.discounted_cumsum(np.ones(3000), 0.9, reverse=True)
    np.testing.assert_allclose(x.grad.cpu(), expected)


def test_filters(device):
    x, zi = tensor((3, 50), device), tensor((3, 2), device, 1)
    b, a = [0.5, 0.2, 0.1], [2.0, -0.5, 0.3]
    result = upsweep.lfilter(b, a, x, zi=zi)
    arrays = x.detach().cpu().numpy(), zi.detach().cpu().numpy()
    for got, expected in zip(result, upsweep.lfilter(b, a, arrays[0], zi=arrays[1])):
        np.testing.assert_allclose(got.detach().cpu(), expected)
    result[0].sum().backward()
    assert x.grad.shape == x.shape and zi.grad.shape == zi.shape
    results = upsweep.ewm_mean(x.detach(), halflife=2.0, times=np.arange(50.0))
    np.testing.assert_allclose(results.cpu(), upsweep.ewm_mean(arrays[0], halflife=2.0, times=np.arange(50.0)))


def test_half_precision(device):
    x = tensor((20, 30), device, dtype=np.float16)
    y = upsweep.scan(lambda s, x: np.tanh(s + x), 0.0, x)
    assert y.dtype == torch.float16
    y.sum().backward()
    assert x.grad.dtype == torch.float16 and bool(torch.isfinite(x.grad).all())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("keywords", [{}, {"axis": 1, "reverse": True}])
def test_what_is_not_differentiated_has_the_same_bits(device, dtype, keywords):
    """Kernels read it where it is, in its own type."""
    x = tensor((40, 40), device, dtype=dtype)
    for update, init in ((coupled, (0.5, 1.0)), (lambda s, x: np.tanh(s + x), 0.0)):
        long = upsweep.scan(update, init, x, return_final=True, **keywords)
        short = upsweep.scan(update, init, x.detach(), return_final=True, **keywords)
        flat = [
            [each for part in results for each in (part if isinstance(part, tuple) else (part,))]
            for results in (short, long)
        ]
        for result, reference_result in zip(*flat, strict=True):
            assert not result.requires_grad and reference_result.requires_grad
            assert result.dtype == reference_result.dtype and torch.equal(result, reference_result.detach())


@pytest.mark.cuda
def test_a_graph_replays_it():
    """Nothing waits for the device or allocates outside of the graph's memory; new inputs give new results."""
    for update, shape in ((cell, (40, 100)), (lambda s, x: 0.9 * s + 0.1 * x[0] * x[1], (50_000, 2))):
        x = torch.randn(shape, device="cuda")
        upsweep.scan(update, 0.0, (x, x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = upsweep.scan(update, 0.0, (x, x))
        x.copy_(torch.randn(shape, device="cuda"))
        graph.replay()
        assert torch.equal(y, upsweep.scan(update, 0.0, (x, x)))


@pytest.mark.cuda
def test_on_another_stream_and_bfloat16():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(1000, 64, device="cuda", dtype=torch.bfloat16)
        y = upsweep.scan(lambda s, x: np.tanh(s + x), np.float32(0), x)
    stream.synchronize()
    assert y.dtype == torch.float32 and abs(float(y[-1, 0]) - float(y[-2, 0])) < 1e-6


@pytest.mark.cuda
def test_tensors_of_two_places_are_refused():
    x = torch.ones(5, 3, device="cuda")
    with pytest.raises(TypeError, match="init: is an array in the host's memory"):
        upsweep.scan(lambda s, x: s + x, torch.ones(3), x)
