"""te's functions on a CUDA device, against what their definitions mean; the tutorial there."""

import contextlib

import numpy as np
import pytest
import te_tutorial
from hypothesis import given, settings
from hypothesis import strategies as some
from te_cells import diagonals, diagonals_by_hand, gru, lstm, lstm_by_hand, rnn
from te_programs import Program
from upsweep import te
from upsweep.te import compat as tvm

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module", autouse=True)
def compiler():
    from upsweep._compiler.cuda import nvrtc

    with contextlib.suppress(RuntimeError):
        return nvrtc.load()
    pytest.skip("no NVRTC")


def random(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def cumulative_sum():
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
    return X, init, update, te.scan(init, update, state, inputs=[X])


@pytest.mark.parametrize("bound", [False, True])
def test_columns(bound):
    X, init, update, scan = cumulative_sum()
    s = te.create_schedule(scan.op)
    for stage in (init, update) if bound else ():
        outer, inner = s[stage].split(stage.op.axis[1], factor=256)
        s[stage].bind(outer, te.thread_axis("blockIdx.x"))
        s[stage].bind(inner, te.thread_axis("threadIdx.x"))
    run = te.build(s, [X, scan], "cuda")
    for shape in [(1, 1), (31, 1000), (32, 64), (65, 65), (2000, 300), (100, 100_000), (5, 0)]:
        x = random(*shape)
        np.testing.assert_allclose(run(x), np.cumsum(x, axis=0, dtype="f8"), rtol=1e-4, atol=1e-3)
    x = random(300, 700)
    np.testing.assert_allclose(run(x[::-2, ::3]), np.cumsum(x[::-2, ::3], axis=0), rtol=1e-4, atol=1e-3)


UPDATES = {  # of a state and an element
    "max": (lambda s, x: te.max(s, x), np.maximum),
    "average": (lambda s, x: 0.75 * s + 0.25 * x, lambda s, x: 0.75 * s + 0.25 * x),
    "gated": (lambda s, x: s * x + x, lambda s, x: s * x + x),
    "reset": (lambda s, x: te.select(x > 2.0, 0.0, s) + x, lambda s, x: np.where(x > 2, 0, s) + x),
}


@pytest.mark.parametrize("name", UPDATES)
def test_associative_updates(name):
    """Time in parallel, from first steps that the update gives, and from others."""
    update, meaning = UPDATES[name]
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    new = te.compute((m, n), lambda t, i: update(state[t - 1, i], X[m - 1 - t, i]))
    for constant in (False, True):
        init = te.compute((1, n), (lambda _, i: 0.25) if constant else (lambda _, i: X[m - 1, i]))
        scan = te.scan(init, new, state, inputs=[X])
        run = te.build(te.create_schedule(scan.op), [X, scan], "cuda")
        assert "scan(update)" in run.text
        for shape in [(1, 3), (70, 40), (1024, 1024), (1025, 9), (20_000, 3)]:
            x = np.clip(random(*shape), -0.9, None)
            x[x > 0.9] *= 1 if name == "reset" else 0.5
            expected = x[::-1].astype("f8")
            expected[0] = 0.25 if constant else expected[0]
            for t in range(1, len(x)):
                expected[t] = meaning(expected[t - 1], expected[t])
            np.testing.assert_allclose(run(x), expected, rtol=1e-4, atol=1e-3)


@te_tutorial.needed
def test_the_tutorials_own_text(capsys):
    te_tutorial.run_tutorial()
    te_tutorial.check_text(capsys.readouterr().out)


def test_arrays_of_compat():
    device = tvm.gpu(0)
    assert device.exist
    x = random(7, 5)
    a, b = tvm.nd.array(x, device), tvm.nd.empty((7, 5), "float32", device)
    np.testing.assert_array_equal(a.asnumpy(), x)
    X, _, _, scan = cumulative_sum()
    run = tvm.build(te.create_schedule(scan.op), [X, scan], "cuda")
    run(a, b)
    device.sync()
    np.testing.assert_allclose(b.numpy(), np.cumsum(x, axis=0), rtol=1e-5, atol=1e-5)
    a.copyfrom(2 * x)
    np.testing.assert_array_equal(a.numpy(), 2 * x)


@pytest.mark.parametrize("hidden, batch, steps", [(1, 1, 9), (20, 3, 9), (128, 64, 50), (500, 5, 6), (1500, 2, 4)])
def test_rnn(hidden, batch, steps):
    X, W, _, scan = rnn(hidden)
    run = te.build(te.create_schedule(scan.op), [X, W, scan], "cuda")
    x, w = random(steps, batch, hidden), random(hidden, hidden, seed=1) / np.float32(np.sqrt(hidden))
    expected = x.astype("f8")
    for t in range(1, steps):
        expected[t] = np.tanh(expected[t - 1] @ w + x[t])
    np.testing.assert_allclose(run(x, w), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("hidden, batch, steps", [(20, 3, 7), (128, 64, 40)])
def test_lstm(hidden, batch, steps, known):
    *_, X, Wx, Wh, cells, outputs = lstm(hidden if known else None)
    run = te.build(te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs], "cuda")
    x, wx = random(steps, batch, 6), random(4, 6, hidden, seed=1)
    wh = random(4, hidden, hidden, seed=2) / np.float32(np.sqrt(hidden))
    got_c, got_h = run(x, wx, wh)
    state_c, state_h = lstm_by_hand(x, wx, wh)
    np.testing.assert_allclose(got_c, state_c, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got_h, state_h, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(run(x, wx, wh)[1], got_h)  # no thread is ahead of another


def test_lstm_of_many_rows():
    """Eight rows a block, the last one's beyond the batch; the weights in registers and shared memory."""
    *_, X, Wx, Wh, cells, outputs = lstm(128, 1030)
    run = te.build(te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs], "cuda")
    assert run.text.count("Wh.resident") == 6
    x, wx = random(20, 1030, 33), random(4, 33, 128, seed=1) / 6
    wh = random(4, 128, 128, seed=2) / np.float32(np.sqrt(128))
    for got, want in zip(run(x, wx, wh), lstm_by_hand(x, wx, wh)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("float64", 1e-12)])
def test_products_of_matrices(dtype, tolerance):
    m, n, k = (te.var(name) for name in "mnk")
    X, Y = te.placeholder((3, m, k), dtype, "X"), te.placeholder((3, k, n), dtype, "Y")
    t = te.reduce_axis((0, k), "t")
    Z = te.compute((3, m, n), lambda b, i, j: te.sum(X[b, i, t] * Y[b, t, j], axis=t))
    run = te.build(te.create_schedule(Z.op), [X, Y, Z], "cuda")
    assert "tiles of" in run.text
    for sizes in ((1, 1, 1), (130, 70, 9), (300, 129, 500), (5, 5, 0), (1000, 1000, 64)):
        x, y = random(3, sizes[0], sizes[2], dtype=dtype), random(3, sizes[2], sizes[1], seed=1, dtype=dtype)
        expected = x.astype("f8") @ y.astype("f8")
        np.testing.assert_allclose(run(x, y), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("hidden", [70, 96, 128])  # of 96 and 128, threads keep the weights
def test_gru(hidden):
    X, W, scan = gru(hidden)
    run = te.build(te.create_schedule(scan.op), [X, W, scan], "cuda")
    x, w = random(9, 4, 3, hidden, dtype="float64"), random(3, hidden, hidden, seed=1, dtype="float64") / 9
    cpu = te.build(te.create_schedule(scan.op), [X, W, scan])
    np.testing.assert_allclose(run(x, w), cpu(x, w), rtol=1e-10, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(some.data())
def test_random_programs(data):
    program = Program(data.draw)
    s = program.schedule(data.draw)
    x, expected = program.case(data.draw)
    outputs = [np.full(x.shape, np.nan) for _ in expected]
    te.build(s, program.args(), "cuda")(x, *outputs)
    for want, got in zip(expected, outputs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_states_that_need_other_blocks_step_by_step():
    x = random(40, 9000, dtype="float32")
    results = te.build(*diagonals(), "cuda")(x)
    np.testing.assert_allclose(results, diagonals_by_hand(x), rtol=1e-4, atol=1e-4)


def test_tensors_in_a_graph():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    X, _, _, scan = cumulative_sum()
    run = te.build(te.create_schedule(scan.op), [X, scan], "cuda")
    x, out = torch.rand(50, 900, device="cuda"), torch.empty(50, 900, device="cuda")
    torch.testing.assert_close(run(x), torch.cumsum(x, 0))
    run(x, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x, out)
    x.add_(1)
    graph.replay()
    torch.testing.assert_close(out, torch.cumsum(x, 0))
    with pytest.raises(TypeError, match="built for a CUDA device, got a tensor on cpu"):
        run(x.cpu())
