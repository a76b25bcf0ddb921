"""Functions built for CUDA, their kernels compiled by the C++ compiler and run on the host."""

import copy
import pickle

import host_device
import host_loops
import numpy as np
import pytest
import te_tutorial
from devices import Interface
from te_cells import gru, lstm, lstm_by_hand, rnn, sigmoid
from te_reference import Reference
from upsweep import te
from upsweep._backends.cuda import library
from upsweep.te import compat as tvm

pytestmark = host_device.needs_compiler


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nests")


@pytest.fixture
def device(monkeypatch, folder, fake_cuda):
    return host_loops.install(monkeypatch, folder, fake_cuda)


def random(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def cumulative_sum(dtype="float32"):
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), dtype, name="X")
    state = te.placeholder((m, n), dtype)
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i], name="update")
    return X, init, update, te.scan(init, update, state, inputs=[X])


def test_columns_without_a_schedule(device, monkeypatch):
    monkeypatch.setattr(library, "find", lambda: None)  # no kernels of `linear_recurrence`
    X, _, _, scan = cumulative_sum()
    run = te.build(te.create_schedule(scan.op), [X, scan], "cuda")
    for shape in [(1, 3), (2, 64), (31, 65), (33, 1), (64, 130), (65, 7), (200, 3)]:
        x = random(*shape)
        np.testing.assert_allclose(run(x), np.cumsum(x, axis=0), rtol=1e-5, atol=1e-4)
    assert device.launches[-1] == ("kernel_0", 1, 64, 0, 0)
    assert device.launches[4][:3] == ("kernel_0", 3, 64)
    assert len(device.texts) == 1  # one text for all sizes
    x = random(40, 90)
    for strided in (np.asfortranarray(x), x[::-2, 5:-3:4], np.broadcast_to(x[3], (9, 90))):
        np.testing.assert_allclose(run(strided), np.cumsum(strided, axis=0), rtol=1e-5, atol=1e-4)
    assert run(np.empty((5, 0), "f4")).shape == (5, 0)


def column_scan(update, first=None, dtype="float32"):
    """A scan of the columns of X, and its first steps: X's by default."""
    shape = te.var("m"), te.var("n")
    X, state = te.placeholder(shape, dtype, name="X"), te.placeholder(shape, dtype)
    init = te.compute((1, *shape[1:]), first or (lambda _, *i: X[0, *i]), name="init")
    new = te.compute(shape, lambda t, *i: update(state[t - 1, *i], X[t, *i], t), name="new")
    scan = te.scan(init, new, state, inputs=[X])
    return X, scan


def stepwise(x, update, first=None):
    """The same in float64, step by step."""
    y = x.astype("f8")
    y[0] = x[0] if first is None else first
    for t in range(1, len(x)):
        y[t] = update(y[t - 1], x[t])
    return y


ASSOCIATIVE = {  # update, its meaning, the first step, kernels
    "max": (lambda s, x, t: te.max(s, x), np.maximum, None, 3),
    "average": (lambda s, x, t: 0.75 * s + 0.25 * x, lambda s, x: 0.75 * s + 0.25 * x, None, 4),
    "reset": (
        lambda s, x, t: te.select(x > 2.0, 0.0, s) + x, lambda s, x: np.where(x > 2, 0, s) + x, None, 4,
    ),
    "from one": (lambda s, x, t: te.max(s - 0.5, x), lambda s, x: np.maximum(s - 0.5, x), 1.0, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSOCIATIVE)
def test_few_columns_are_scanned_in_parallel_time(device, name):
    update, meaning, first, n_kernels = ASSOCIATIVE[name]
    X, scan = column_scan(update, first and (lambda *_: first))
    run = te.build(te.create_schedule(scan.op), [X, scan], "cuda")
    assert "by the kernels of scan(update)" in run.text
    for shape in ((1100, 3), (1024, 70)):
        device.launches.clear()
        x = random(*shape)
        np.testing.assert_allclose(run(x), stepwise(x, meaning, first), rtol=1e-5, atol=1e-5)
        assert len(device.launches) == n_kernels and device.launches[-2][0].startswith("join")
    device.launches.clear()
    x = random(1023, 2)
    np.testing.assert_allclose(run(x), stepwise(x, meaning, first), rtol=1e-5, atol=1e-5)
    assert [launch[0] for launch in device.launches] == ["kernel_0"]


def test_several_states_and_first_steps_of_an_argument(device):
    """A stage of the body, an input from the last step to the first, first steps from the caller."""
    m, n, k = te.var("m"), te.var("n"), te.var("k")
    shape = (m, n, k)
    X, gates = te.placeholder(shape, "float64", name="X"), te.placeholder((m,), "float64", name="gates")
    states = [te.placeholder(shape, "float64", f"s{p}") for p in range(2)]
    starts = [te.placeholder((1, n, k), "float64", f"start{p}") for p in range(2)]
    moved = te.compute(shape, lambda t, i, j: states[0][t - 1, i, j] * gates[m - 1 - t], name="moved")
    updates = [
        te.compute(shape, lambda t, i, j: moved[t, i, j] + X[t, i, j], name="u0"),
        te.compute(shape, lambda t, i, j: te.min(states[1][t - 1, i, j], X[t, i, j] + 0.5), name="u1"),
    ]
    results = te.scan(starts, updates, states, inputs=[X])
    run = te.build(te.create_schedule(results[0].op), [X, gates, *starts, *results], "cuda")
    assert "combined each by itself: affine, min" in run.text
    x, g, first = (
        random(1050, 2, 3, dtype="f8"),
        random(1050, seed=1, dtype="f8"),
        random(2, 1, 2, 3, seed=2, dtype="f8"),
    )
    got = run(x, g, *first)
    a, b = np.empty_like(x), np.empty_like(x)
    a[0], b[0] = first[:, 0]
    for t in range(1, len(x)):
        a[t], b[t] = a[t - 1] * g[len(x) - 1 - t] + x[t], np.minimum(b[t - 1], x[t] + 0.5)
    for result, expected in zip(got, (a, b)):
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)
    assert len(device.launches) == 5  # first steps, reduction, a join for each state, scan


@pytest.mark.parametrize(
    "update",
    [
        lambda s, x, t: te.tanh(s + x),
        lambda s, x, t: s + x * te.cast("float32", t),
        lambda s, x, t: s + te.cast("float32", te.cast("int32", x)),
    ],
)
def test_other_updates_run_in_order(device, update):
    X, scan = column_scan(update)
    assert "scan(update)" not in te.build(te.create_schedule(scan.op), [X, scan], "cuda").text


def test_a_schedule_of_the_user_is_kept(device):
    X, _, update, scan = cumulative_sum()
    s = te.create_schedule(scan.op)
    s[update].split(update.op.axis[1], factor=32)
    run = te.build(s, [X, scan], "cuda")
    assert "scan(update)" not in run.text
    x = random(1100, 3)
    np.testing.assert_allclose(run(x), np.cumsum(x, axis=0, dtype="f8"), rtol=1e-5, atol=1e-4)
    assert device.launches[-1][0] == "kernel_0"


def test_known_scans_are_those_of_the_library(device, fake_cuda):
    X, _, _, scan = cumulative_sum()
    run, requests = te.build(te.create_schedule(scan.op), [X, scan], "cuda"), fake_cuda.problems
    for n_steps in (65, 1024):
        x = random(n_steps, 5)
        np.testing.assert_allclose(run(x), np.cumsum(x, axis=0, dtype="f8"), rtol=1e-5, atol=1e-4)
        assert not device.launches and requests[-1].length == n_steps and not requests[-1].initial.data
    strided = random(2200, 9)[::-2, 1::3]
    np.testing.assert_allclose(run(strided), np.cumsum(strided, axis=0, dtype="f8"), rtol=1e-5, atol=1e-4)


def test_bound_as_in_the_tutorial(device):
    X, init, update, scan = cumulative_sum()
    s = te.create_schedule(scan.op)
    for stage in (init, update):
        outer, inner = s[stage].split(stage.op.axis[1], factor=256)
        s[stage].bind(outer, te.thread_axis("blockIdx.x"))
        s[stage].bind(inner, te.thread_axis("threadIdx.x"))
    run = tvm.build(s, [X, scan], "cuda", name="myscan")
    for n in (1, 255, 256, 257, 1024):
        values = random(10, n, seed=n)
        a = tvm.nd.array(values, tvm.gpu(0))
        b = tvm.nd.array(np.zeros((10, n), dtype=scan.dtype), tvm.cuda(0))
        run(a, b)
        tvm.testing.assert_allclose(b.asnumpy(), np.cumsum(values, axis=0), rtol=1e-4, atol=1e-4)
        assert device.launches[-1] == ("kernel_0", -(-n // 256), 256, 0, 0)
    assert tvm.gpu(0).exist and b.shape == (10, 1024) and b.dtype == "float32"


@te_tutorial.needed
def test_the_tutorials_own_text(device, capsys):
    te_tutorial.run_tutorial()
    te_tutorial.check_text(capsys.readouterr().out)
    assert device.launches == [("kernel_0", 4, 256, 0, 0)]


def test_a_stage_at_a_bound_loop_of_another(device):
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    first = te.compute((m, n), lambda t, i: state[t - 1, i] * 2, name="first")
    second = te.compute(
        (m, n),
        lambda t, i: te.if_then_else(i > 0, first[t, i - 1], 0.0) + first[t, i] * 0.5 + X[t, i],
        name="second",
    )
    scan = te.scan(init, second, state, inputs=[X])
    s = te.create_schedule(scan.op)
    for stage in (init, second):
        outer, inner = s[stage].split(stage.op.axis[1], factor=32)
        s[stage].bind(outer, te.thread_axis("blockIdx.x"))
        s[stage].bind(inner, te.thread_axis("threadIdx.x"))
        if stage is second:
            s[first].compute_at(s[second], outer)
    run = te.build(s, [X, scan], "cuda")
    # The first stage is the block's, so that its threads wait; blocks need each other's last column each step.
    assert "allocate first[float32 * 33]  // shared: 33 of each block" in run.text
    assert "wait for the block's threads" in run.text and "for scan.idx < m - 1" in run.text
    x = random(4, 70)
    expected = x.copy()
    for t in range(1, 4):
        f = expected[t - 1] * 2
        expected[t] = np.concatenate([[0], f[:-1]]).astype("f4") + f * 0.5 + x[t]
    np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-5)
    assert [launch[0] for launch in device.launches] == ["kernel_0"] + ["kernel_1"] * 3


def test_rows_of_threads_share_what_is_computed_at_their_loop(device):
    X = te.placeholder((24, 64), name="X")
    first = te.compute((24, 64), lambda i, j: X[i, j] * 2, name="first")
    second = te.compute((24, 64), lambda i, j: first[i, 63 - j] + X[i, j], name="second")
    s = te.create_schedule(second.op)
    outer, inner = s[second].split(second.op.axis[0], factor=8)
    s[second].bind(outer, te.thread_axis("blockIdx.x"))
    s[second].bind(inner, te.thread_axis("threadIdx.y"))
    s[second].bind(second.op.axis[1], te.thread_axis("threadIdx.x"))
    s[first].compute_at(s[second], inner)
    s[first].bind(first.op.axis[1], te.thread_axis("threadIdx.x"))
    run = te.build(s, [X, second], "cuda")
    x = random(24, 64)
    np.testing.assert_allclose(run(x), 2 * x[:, ::-1] + x, rtol=1e-6)
    assert device.launches == [("kernel_0", 3, 512, 8 * 64 * 4, 0)] and "wait" in run.text
    device.shared_bytes = 0
    np.testing.assert_allclose(te.build(s, [X, second], "cuda")(x), 2 * x[:, ::-1] + x, rtol=1e-6)


def test_states_that_read_each_other(device):
    m, n, width = te.var("m"), te.var("n"), te.var("l")
    X = te.placeholder((m, n), "float64", name="X")
    one, two = te.placeholder((m, n), "float64"), te.placeholder((m, width), "float64")
    inits = [te.compute((2, n), lambda t, i: X[t, i]), te.compute((2, width), lambda _, i: 0.0)]
    updates = [
        te.compute((m, n), lambda t, i: one[t - 2, i] + X[t, i]),
        te.compute((m, width), lambda t, i: two[t - 1, i] + one[t - 2, 0] * 0.5),
    ]
    first, second = te.scan(inits, updates, [one, two], inputs=[X])
    run = te.build(te.create_schedule(first.op), [X, first, second], "cuda")
    x = random(7, 150, dtype="float64")
    a, b = np.empty_like(x), np.empty((7, 3))
    run(x, a, b)
    reference = Reference({m: 7, n: 150, width: 3}, {X: x})
    np.testing.assert_allclose(a, reference[first], rtol=1e-12)
    np.testing.assert_allclose(b, reference[second], rtol=1e-12)


def test_many_columns_that_need_each_other_are_launched_step_by_step(device):
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: te.if_then_else(i > 0, state[t - 1, i - 1], 0.0) + X[t, i])
    scan = te.scan(init, update, state)
    run = te.build(te.create_schedule(scan.op), [X, scan], "cuda")
    for n_columns, launches in [(300, [("kernel_0", 1)]), (4097, [("kernel_0", 65)] + [("kernel_1", 65)] * 3)]:
        device.launches.clear()
        x = random(4, n_columns)
        expected = x.copy()
        for t in range(1, 4):
            expected[t, 1:] += expected[t - 1, :-1]
        np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-5)
        assert [launch[:2] for launch in device.launches] == launches


def test_stages_around_a_scan_and_given_first_steps(device):
    m, n = te.var("m"), te.var("n")
    X, start = te.placeholder((m, n), name="X"), te.placeholder((2, n), name="start")
    twice = te.compute((m, n), lambda t, i: X[t, i] * 2, name="twice")
    state = te.placeholder((m, n))
    update = te.compute((m, n), lambda t, i: state[t - 2, i] + twice[t, i])
    scan = te.scan(start, update, state, inputs=[twice, start])
    total = te.reduce_axis((0, m), "t")
    after = te.compute((n,), lambda i: te.max(scan[total, i], axis=total), name="after")
    run = te.build(te.create_schedule(after.op), [X, start, after], "cuda")
    x, initial_steps = random(9, 70), random(2, 70, seed=1)
    expected = np.concatenate([initial_steps, np.zeros((7, 70), "f4")])
    for t in range(2, 9):
        expected[t] = expected[t - 2] + 2 * x[t]
    np.testing.assert_allclose(run(x, initial_steps), expected.max(axis=0), rtol=1e-5)
    assert [launch[0] for launch in device.launches] == ["kernel_0", "kernel_1", "kernel_2"]


@pytest.mark.parametrize("hidden, batch", [(20, 3), (200, 2)])
def test_rnn(device, hidden, batch):
    X, W, _, scan = rnn(hidden)
    run = te.build(te.create_schedule(scan.op), [X, W, scan], "cuda")
    x, w = random(6, batch, hidden), random(hidden, hidden, seed=1) / np.float32(np.sqrt(hidden))
    expected = x.copy()
    for t in range(1, 6):
        expected[t] = np.tanh(expected[t - 1] @ w + x[t])
    np.testing.assert_allclose(run(x, w), expected, rtol=1e-4, atol=1e-5)
    assert len(device.launches) == 1 and device.launches[0][1] == batch  # a block a row, for all time


def test_lstm_of_many_rows(device):
    *_, X, Wx, Wh, cells, outputs = lstm(8, batch=257)
    run = te.build(te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs], "cuda")
    x, wx, wh = random(5, 257, 3), random(4, 3, 8, seed=1), random(4, 8, 8, seed=2) / 4
    for got, want in zip(run(x, wx, wh), lstm_by_hand(x, wx, wh)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert device.launches == [("kernel_0", 11, 256, 0, 0), ("kernel_1", 129, 32, 320, 0)]


@pytest.mark.parametrize("hidden", [20, None])
def test_lstm(device, hidden):
    *_, X, Wx, Wh, cells, outputs = lstm(hidden)
    run = te.build(te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs], "cuda")
    x, wx, wh = random(5, 3, 3), random(4, 3, 20, seed=1), random(4, 20, 20, seed=2) / 4
    got_c, got_h = run(x, wx, wh)
    state_c, state_h = lstm_by_hand(x, wx, wh)
    np.testing.assert_allclose(got_c, state_c, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got_h, state_h, rtol=1e-4, atol=1e-5)
    if hidden is not None:  # all that goes from step to step is in registers and shared memory
        assert run.text.count("wait for the block's threads") == 3
        assert device.launches[-1][:3] == ("kernel_1", 3, 80)
    device.shared_bytes = 0  # without room there, the buffers are in global memory
    again = te.build(te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs], "cuda")
    np.testing.assert_array_equal(again(x, wx, wh)[1], got_h)
    assert device.launches[-1][3] == 0


def test_gru(device):
    X, W, scan = gru(12)
    run = te.build(te.create_schedule(scan.op), [X, W, scan], "cuda")
    x, w = random(5, 4, 3, 12, dtype="float64"), random(3, 12, 12, seed=1, dtype="float64") / 3
    state, got = np.zeros((4, 12)), run(x, w)
    for t in range(1, 5):
        r, z = (sigmoid(state @ w[g] + x[t, :, g]) for g in range(2))
        state = z * state + (1 - z) * np.tanh((r * state) @ w[2] + x[t, :, 2])
        np.testing.assert_allclose(got[t], state, rtol=1e-9)


def test_operations_and_dtypes(device):
    n = te.var("n")
    F, D = te.placeholder((n,), "float32", "F"), te.placeholder((n,), "float64", "D")
    N, L = te.placeholder((n,), "int32", "N"), te.placeholder((n,), "int64", "L")
    B = te.placeholder((n,), "bool", "B")
    ones = [te.exp, te.tanh, te.sigmoid, te.sin, te.cos, te.atan, te.floor, te.abs]

    def all_of(i):
        positive = te.abs(D[i]) + 0.5
        total = te.log(positive) + te.sqrt(positive) + te.rsqrt(positive) + te.power(positive, 1.5)
        for function in ones:
            total = total + function(D[i])
        return total + te.asin(D[i] / 9) * te.acos(D[i] / 9) - te.min(D[i], 0.5) * te.max(D[i], -0.5)

    results = [
        te.compute((n,), all_of, name="reals"),
        te.compute((n,), lambda i: te.tanh(F[i]) * te.sigmoid(F[i]) + te.exp(F[i]) / (te.abs(F[i]) + 1.0)),
        te.compute((n,), lambda i: N[i] * 65537 + N[i] // 3 - N[i] % 5 + te.abs(-N[i]), name="i"),
        te.compute((n,), lambda i: L[i] * 2**40 - L[i] // 7 + te.cast("int64", F[i]), name="l"),
        te.compute((n,), lambda i: te.any(te.all(B[i], F[i] > 0.0), te.logical_not(L[i] >= 1), N[i] == 2)),
        te.compute((n,), lambda i: te.select(B[i], te.cast("float32", N[i]), te.min(F[i], F[n - 1 - i]))),
    ]
    args = [F, D, N, L, B, *results]
    run = te.build(te.create_schedule([r.op for r in results]), args, "cuda")
    size = 70
    f, d = random(size), random(size, seed=1, dtype="float64")
    i, k = (random(size, seed=s, dtype="float64") * 9e4 for s in (2, 3))
    arrays = [f, d, i.astype("int32"), k.astype("int64"), f > 0.2]
    got = run(*arrays)
    with np.errstate(over="ignore"):
        reference = Reference({n: size}, dict(zip(args, arrays)))
        for result, values in zip(results, got):
            rtol, atol = (1e-5, 1e-6) if values.dtype == "f4" else (1e-13, 1e-13)
            np.testing.assert_allclose(values, reference[result], rtol=rtol, atol=atol)


def test_nan_travels(device):
    n = te.var("n")
    X, Y = te.placeholder((n,), name="X"), te.placeholder((n,), name="Y")
    Z = te.compute((n,), lambda i: te.min(X[i], Y[i]) + te.max(X[i], Y[i]), name="Z")
    run = te.build(te.create_schedule(Z.op), [X, Y, Z], "cuda")
    x = np.array([np.nan, 1, np.inf, -np.inf], "f4")
    np.testing.assert_array_equal(run(x, np.ones(4, "f4")), [np.nan, 2, np.inf, -np.inf])


def test_arrays_of_a_device(device, fake_cuda, fake_cupy):
    X, _, _, scan = cumulative_sum()
    run = te.build(te.create_schedule(scan.op), [X, scan], "cuda")
    x = random(5, 40)
    on_device = fake_cupy.asarray(x)
    result = run(on_device)
    assert type(result) is fake_cupy.ndarray
    np.testing.assert_allclose(result.host, np.cumsum(x, axis=0), rtol=1e-5, atol=1e-5)
    assert device.launches[-1][4] == fake_cupy.stream
    out = fake_cupy.asarray(np.empty_like(x))
    assert run(on_device, out) is None
    np.testing.assert_array_equal(out.host, result.host)
    with pytest.raises(TypeError, match=r"scan: is an array in the computer's memory, while X is on"):
        run(on_device, np.empty_like(x))
    with pytest.raises(ValueError, match="scan: overlaps X"):
        run(on_device, on_device)
    fake_cuda.place(x, 1)
    with pytest.raises(ValueError, match="CUDA device"):
        run(Interface(x), out)
    with pytest.raises(TypeError, match="X: expected dtype float32, got float64"):
        run(fake_cupy.asarray(x.astype("f8")))
    with pytest.raises(TypeError, match="out: has to be given"):
        run(Interface(x.copy()))
    with pytest.raises(ValueError, match="n_threads: is about the CPU"):
        run(on_device, n_threads=2)
    with pytest.raises(TypeError, match="scan: expected an array to fill, got list"):
        run(x, [1.0])


def test_a_pickled_function(device):
    """It asks for no device until it is called."""
    n = te.var("n")
    X = te.placeholder((n,), name="X", dtype="float32")
    Y = te.compute((n,), lambda i: X[i] * X[i], name="Y")
    schedule = te.create_schedule(Y.op)
    block, thread = schedule[Y].split(Y.op.axis[0], factor=32)
    schedule[Y].bind(block, te.thread_axis("blockIdx.x"))
    schedule[Y].bind(thread, te.thread_axis("threadIdx.x"))
    run, x = te.build(schedule, [X, Y], target="cuda:0"), random(70)
    for other in (pickle.loads(pickle.dumps(run)), copy.copy(run), copy.deepcopy(run)):
        assert type(other) is type(run) and other.text == run.text and other.device == 0
        np.testing.assert_array_equal(other(x), run(x))
