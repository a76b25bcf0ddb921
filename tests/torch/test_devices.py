"""Hazard: several CUDA devices. Work is done where the arrays are; the caller's own device stays current."""

import numpy as np
import pytest
import upsweep
from helpers import SCANS, in_threads, operands, random
from tensors import to_array, to_tensor, torch

pytestmark = pytest.mark.cuda

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
SECOND = "cuda:1"


@pytest.fixture(autouse=True)
def first_device_stays_current():
    """Each test begins on device 0, and what it calls must leave that so."""
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


def compare(name, arrays, **keywords):
    """Compare a call on the second device with the same on the CPU."""
    tensors = [to_tensor(a, SECOND) for a in arrays]
    operand = {key: to_tensor(value, SECOND) for key, value in keywords.items()}
    results, expected = (
        r if isinstance(r, tuple) else (r,)
        for r in (getattr(upsweep, name)(*tensors, **operand), getattr(upsweep, name)(*arrays, **keywords))
    )
    assert torch.cuda.current_device() == 0
    for result, other in zip(results, expected, strict=True):
        assert result.device == torch.device(SECOND)
        np.testing.assert_allclose(to_array(result), other, rtol=1e-5, atol=1e-6)


@needs_two
@pytest.mark.parametrize("name", SCANS)
def test_results_are_where_the_arrays_are(name):
    # Rows of a warp, of a block, of the kernels that look back; columns; states and resets.
    for shape in [(300, 20), (5, 3000), (2, 300_000), (3000, 40)]:
        arrays = operands(name, shape, np.float32)
        axis = 0 if shape == (3000, 40) else 1
        initial, reset = random(shape[1 - axis], np.float32, 5), random(shape, seed=6) > 0.9
        compare(name, arrays, axis=axis)
        compare(name, arrays, axis=axis, reverse=True)
        compare(name, arrays, axis=axis, initial=initial, reset=reset, return_final=True)
        compare(name, arrays, axis=axis, initial=initial, exclusive=True)


@needs_two
def test_outputs_numbers_and_lists_join_the_arrays():
    x = to_tensor(random((3, 50), np.float32), SECOND)
    out = torch.empty_like(x)
    assert upsweep.discounted_cumsum(x, torch.tensor(0.5), out=out) is out
    assert torch.equal(out, upsweep.discounted_cumsum(x, 0.5))
    assert upsweep.discounted_cumsum_left(x, [0.5, 0.25, 1.0]).device == x.device
    assert upsweep.linear_recurrence(0.5, x, initial=2.0).device == x.device
    assert upsweep.scan_forward(x, x, True, out) is out


@needs_two
@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients(create_graph):
    leaves = [torch.rand(4, 600, dtype=torch.float64), torch.rand(4, 600, dtype=torch.float64), torch.rand(4, 1)]
    gradients = []
    for device in (SECOND, "cpu"):
        gates, x, gamma = (t.to(device).requires_grad_() for t in leaves)
        y, final = upsweep.linear_recurrence(gates, x, initial=gamma[:, 0], return_final=True)
        loss = upsweep.discounted_cumsum(y, gamma, reverse=True).sin().sum() + final.sum()
        gradients.append(torch.autograd.grad(loss, (gates, x, gamma), create_graph=create_graph))
        if create_graph:
            total = sum(gradient.square().sum() for gradient in gradients[-1])
            gradients[-1] += torch.autograd.grad(total, (gates, x, gamma))
        assert torch.cuda.current_device() == 0
    for result, other in zip(*gradients, strict=True):
        assert result.device == torch.device(SECOND)
        torch.testing.assert_close(result.cpu(), other, rtol=1e-5, atol=1e-5)


@needs_two
@pytest.mark.parametrize("shape", [(300, 20), (5, 3000), (2, 300_000)])
def test_work_goes_to_the_current_stream_of_that_device(shape):
    x, gates = torch.zeros(shape, device=SECOND), torch.ones(shape, device=SECOND)
    upsweep.linear_recurrence(gates, x), upsweep.discounted_cumsum(x, 1.0, axis=0)  # kernels load when first used
    stream, done = torch.cuda.Stream(SECOND), torch.cuda.Event()
    torch.cuda.synchronize(1)
    with torch.cuda.stream(stream), torch.cuda.device(0):
        with torch.cuda.device(1):
            torch.cuda._sleep(200_000_000)
        x.fill_(1)  # another stream would read the zeros that are there until now
        y = upsweep.linear_recurrence(gates, x)
        z = upsweep.discounted_cumsum(x, 1.0, axis=0)
        done.record(stream)
        assert not done.query()
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    assert torch.equal(y, torch.arange(1.0, shape[1] + 1, device=SECOND).expand(shape))
    assert torch.equal(z, torch.arange(1.0, shape[0] + 1, device=SECOND)[:, None].expand(shape))


@needs_two
def test_graphs():
    with torch.cuda.device(1):
        gates, x = (torch.rand(2, 200_000, device=SECOND) for _ in range(2))
        out = torch.empty_like(x)
        upsweep.linear_recurrence(gates, x, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # torch's own may be another device's
            upsweep.linear_recurrence(gates, x, out=out)
        x.copy_(torch.rand_like(x))
        graph.replay()
        assert torch.equal(out, upsweep.linear_recurrence(gates, x))


@needs_two
@pytest.mark.parametrize("name", SCANS)
def test_numpy_arrays(name):
    arrays = operands(name, (5, 3000), np.float32)
    keywords = {"initial": random(5, np.float32, 5), "return_final": True}
    on_second = getattr(upsweep, name)(*arrays, device=SECOND, **keywords)
    on_first = getattr(upsweep, name)(*arrays, device="cuda:0", **keywords)
    assert torch.cuda.current_device() == 0
    for result, other in zip(on_second, on_first):
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, other)


@needs_two
def test_arrays_on_two_devices_are_refused_before_any_work():
    first, second = (torch.ones(3, 50, device=device) for device in ("cuda:0", SECOND))
    gamma, state, flags = first[:, :1], first[:, 0], first > 2
    out = torch.full_like(first, torch.nan)
    other_out = torch.full_like(second, torch.nan)
    calls = [
        ("gates|tokens", lambda: upsweep.linear_recurrence(first, second, out=other_out)),
        ("gates|tokens", lambda: upsweep.pscan(second, first)),
        ("gates|tokens", lambda: upsweep.scan_forward(second, first, out=out)),
        ("gamma|x", lambda: upsweep.discounted_cumsum(second, gamma, out=other_out)),
        ("gamma|x", lambda: upsweep.discounted_cumsum_left(second, gamma[:, 0])),
        ("initial", lambda: upsweep.discounted_cumsum(second, 0.5, initial=state, out=other_out)),
        ("reset", lambda: upsweep.cumulative_sum(second, reset=flags, out=other_out)),
        ("out", lambda: upsweep.cumulative_sum(second, out=out)),
        ("out", lambda: upsweep.linear_recurrence(second, second, out=out)),
        ("out", lambda: upsweep.cumulative_sum(second, include_initial=True, out=out.new_empty(3, 51))),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=rf"^({name}): is on cuda:\d, .* on cuda:\d"):
            call()
    assert out.isnan().all() and other_out.isnan().all()


@needs_two
def test_a_thread_for_each_device():
    arrays = operands("linear_recurrence", (4, 50_000), np.float32)
    expected = upsweep.linear_recurrence(*(to_tensor(a, "cuda:0") for a in arrays)).cpu()
    results = {}

    def work(device):
        gates, tokens = (to_tensor(a, f"cuda:{device}") for a in arrays)
        results[device] = [upsweep.linear_recurrence(gates, tokens) for _ in range(50)]

    in_threads(work, 0, 1)
    for device in (0, 1):
        assert all(torch.equal(y.cpu(), expected) for y in results[device])


def test_a_device_that_is_not_there():
    x = np.ones(3)
    for ordinal in {torch.cuda.device_count(), 9, 99}:
        if ordinal >= torch.cuda.device_count():
            with pytest.raises(RuntimeError, match="cudaErrorInvalidDevice"):
                upsweep.cumulative_sum(x, device=f"cuda:{ordinal}")
    # Nothing of the error is left for those who ask next.
    assert (torch.ones(3, device="cuda") + 1).tolist() == [2, 2, 2]
    assert upsweep.cumulative_sum(x, device="cuda").tolist() == [1, 2, 3]
