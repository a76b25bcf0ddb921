"""What nests become on CUDA: their kernels' text and statements, random programs, and what is refused."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from te_cells import lstm, lstm_by_hand, rnn
from te_cuda import program_of, run_kernels
from te_programs import Program
from te_reference import Reference
from upsweep import te
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.loops.barriers import fused
from upsweep._compiler.cuda.loops.keep_states import scan_loops
from upsweep._compiler.cuda.loops.memory_scopes import Scope
from upsweep._compiler.loops.expressions import Axis, const, key, load
from upsweep._compiler.loops.statements import Barrier, Block, Buffer, For, Store, all_statements, nest_text
from upsweep.te import compat as tvm


def cumulative_sum(reach=1):
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i], name="init")
    before = lambda t, i: state[t - 1, i] if reach == 1 else te.if_then_else(i > 0, state[t - 1, i - 1], 0.0)  # noqa: E731
    update = te.compute((m, n), lambda t, i: before(t, i) + X[t, i], name="update")
    return X, init, update, te.scan(init, update, state, inputs=[X])


def fibonacci():
    m = te.var("m")
    state = te.placeholder((m,), dtype="int64")
    update = te.compute((m,), lambda t: state[t - 1] + state[t - 2])
    return te.scan(te.compute((2,), lambda t: te.cast("int64", t)), update, state)


def bind(s, stage, factor, block="blockIdx.x", thread="threadIdx.x"):
    outer, inner = s[stage].split(stage.op.axis[1], factor=factor)
    s[stage].bind(outer, te.thread_axis(block))
    s[stage].bind(inner, te.thread_axis(thread))


@settings(max_examples=30, deadline=None)
@given(some.data())
def test_random_programs(data):
    program = Program(data.draw)
    s = program.schedule(data.draw)
    args = program.args()
    x, expected = program.case(data.draw)
    kernels = program_of(s, args)
    walked = [np.full(x.shape, np.nan) for _ in args[1:]]
    run_kernels(kernels, [x, *walked], program.sizes)
    for want, got in zip(expected, walked):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    assert kernels.render(kernels.blocks_buffers(227 * 1024), frozenset())


def test_lower_shows_what_each_thread_runs():
    X, init, update, scan = cumulative_sum()
    s = te.create_schedule(scan.op)
    bind(s, init, 256)
    bind(s, update, 256)
    text = str(tvm.lower(s, [X, scan], simple_mode=True, target="cuda"))
    assert text.startswith("// kernel_0: blockIdx.x < floordiv(n + 255, 256), threadIdx.x < 256\n")
    assert "allocate scan.1[float32 * n]  // registers: 1 of each thread" in text
    assert "allocate X.ahead[float32 * 32 * floordiv(n + 255, 256) * 256]  // registers: 32 of each thread" in text
    assert "wait" not in text and "// bind blockIdx.x" in text
    assert str(te.lower(s, [X, scan])).count("parallel (blockIdx.x") == 2  # the nest of every target


def test_what_no_loop_is_bound_of_runs_in_one_thread():
    scan = fibonacci()
    s = te.create_schedule(scan.op)
    s[scan.op.init[0]].unroll(scan.op.init[0].op.axis[0])
    kernels = program_of(s, [scan])
    assert kernels.text.startswith("// kernel_0: one thread\n")
    (size,) = kernels.sizes
    out = np.zeros(12, "int64")
    run_kernels(kernels, [out], {size: 12})
    assert out[-3:].tolist() == [34, 55, 89]


def scopes_of(kernels):
    return {b.name: scope for k in kernels.kernels for b, scope in k.scopes.items()}


def test_where_values_lie():
    X, W, _, scan = rnn(128)
    scopes = scopes_of(program_of(te.create_schedule(scan.op), [X, W, scan]))
    assert {name: scope.level for name, scope in scopes.items()} == {
        "scan.1": "block", "scan.new": "thread", "product": "thread", "X.ahead": "thread",
    }  # fmt: skip
    assert all(isinstance(scope, Scope) and scope.count() in (1, 128) for scope in scopes.values())


def barriers_of(statement):
    return sum(isinstance(each, Barrier) for each in all_statements(statement))


def test_a_step_of_an_lstm_waits_twice():
    *_, X, Wx, Wh, cells, outputs = lstm(64)
    kernels = program_of(te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs])
    whole = kernels.kernels[1].statement
    (step,) = scan_loops(whole)
    assert barriers_of(step) == 2 and barriers_of(whole) == 3
    scopes = scopes_of(kernels)
    assert scopes["scan.v0.1"].level == "thread" and scopes["scan.v1.1"].level == "block"
    assert scopes["gates"].level == "block" and scopes["of_h"].level == "thread"


def test_blocks_take_several_rows_that_share_weights():
    *_, X, Wx, Wh, cells, outputs = lstm(2, batch=257)
    args = [X, Wx, Wh, cells, outputs]
    kernels = program_of(te.create_schedule(outputs.op), args)
    text = kernels.text
    assert "// kernel_0: blockIdx.x < floordiv(T + 3, 4), blockIdx.y < 257" in text  # of all steps' inputs
    assert "// kernel_1: blockIdx.x < 129, threadIdx.x < 2" in text and "if (((blockIdx.x*2) + row) < 257)" in text
    scopes = scopes_of(kernels)
    assert scopes["of_h.sum"].level == "thread" and scopes["of_h.sum"].count() == 2
    assert scopes["scan.v1.1"].level == "block" and scopes["scan.v1.1"].count() == 4
    (T,), D = X.shape[:1], X.shape[2]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype("f4") for shape in ((3, 257, 1), (4, 1, 2), (4, 2, 2))]
    results = [np.full((3, 257, 2), np.nan, "f4") for _ in range(2)]
    run_kernels(kernels, [*arrays, *results], {T: 3, D: 1})
    for got, want in zip(results, lstm_by_hand(*arrays)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    # Where the schedule says who takes what, it stays so.
    s = te.create_schedule(outputs.op)
    of_h = next(stage.op for stage in s.stages if stage.op.name == "of_h")
    s[of_h].bind(of_h.axis[1], te.thread_axis("blockIdx.x"))
    assert "blockIdx.x < 257" in program_of(s, args).kernels[1].title()


def test_one_block_waits_and_several_are_launched_step_by_step():
    X, init, update, scan = cumulative_sum(reach=2)
    one = program_of(te.create_schedule(scan.op), [X, scan])
    assert len(one.kernels) == 1 and barriers_of(one.kernels[0].statement) >= 2
    s = te.create_schedule(scan.op)
    bind(s, init, 16)
    bind(s, update, 16)
    several = program_of(s, [X, scan])
    assert [len(kernel.loops) for kernel in several.kernels] == [0, 1]
    text = several.text
    assert "// kernel_1: blockIdx.x < floordiv(n + 15, 16), threadIdx.x < 16, for scan.idx < m - 1" in text
    wide = program_of(te.create_schedule(scan.op), [X, scan], wide=True)
    assert [len(kernel.loops) for kernel in wide.kernels] == [0, 1] and not several.widths
    m, n = X.shape
    assert one.is_wide({names_of(one)[0]: 5, names_of(one)[1]: 4096}) and "for 4096 columns and more" in str(
        te.lower(te.create_schedule(scan.op), [X, scan], target="cuda")
    )
    x = np.random.default_rng(0).normal(size=(5, 70)).astype("f4")
    expected = Reference({m: 5, n: 70}, {X: x})[scan]
    for kernels in (one, several, wide):
        out = np.full_like(x, np.nan)
        run_kernels(kernels, [x, out], {m: 5, n: 70})
        np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_blocks_of_one_stage_that_need_each_other_are_refused():
    n = te.var("n")
    X, W = te.placeholder((n, n), name="X"), te.placeholder((n, n), name="W")
    first = te.compute((n, n), lambda i, j: X[i, j] * 2, name="first")
    second = te.compute((n, n), lambda i, j: first[j, i] + W[i, j], name="second")
    s = te.create_schedule(second.op)
    assert len(program_of(s, [X, W, second]).kernels) == 2
    bind(s, second, 8)
    s[first].compute_at(s[second], s[second].leaves[0])
    with pytest.raises(ValueError, match=r"first is written by one block and read by another \(blockIdx.x\)"):
        program_of(s, [X, W, second])


def test_threads_of_a_loop_around_wait_for_each_other():
    n = te.var("n")
    X = te.placeholder((n, 64), name="X")
    first = te.compute((n, 64), lambda i, j: X[i, j] * 2, name="first")
    second = te.compute((n, 64), lambda i, j: first[i, 63 - j] + X[i, j], name="second")
    s = te.create_schedule(second.op)
    s[second].bind(second.op.axis[1], te.thread_axis("threadIdx.x"))
    s[first].compute_at(s[second], second.op.axis[0])
    s[first].bind(first.op.axis[1], te.thread_axis("threadIdx.x"))
    assert "wait for the block's threads" in str(te.lower(s, [X, second], target="cuda"))


def test_threads_that_cannot_wait_are_refused():
    n = te.var("n")
    X = te.placeholder((n, 64), name="X")
    first = te.compute((n, 64), lambda i, j: X[i, j] * 2, name="first")
    second = te.compute((n, 64), lambda i, j: first[i, 63 - j] + X[i, j], name="second")

    def at_a_bound_loop(size):
        s = te.create_schedule(second.op)
        _, inner = s[second].split(second.op.axis[0], factor=size)
        s[second].bind(inner, te.thread_axis("threadIdx.y"))
        s[second].bind(second.op.axis[1], te.thread_axis("threadIdx.x"))
        s[first].compute_at(s[second], inner)
        s[first].bind(first.op.axis[1], te.thread_axis("threadIdx.x"))
        return str(te.lower(s, [X, second], target="cuda"))

    assert "wait for the block's threads" in at_a_bound_loop(1)
    with pytest.raises(ValueError, match=r"first\[.*\] is of several threads inside of one bound loop"):
        at_a_bound_loop(8)  # not all steps of 8 are rows: some threads would not come to the barrier


def test_thread_axes_are_bound_once():
    _, _, update, scan = cumulative_sum()
    s = te.create_schedule(scan.op)
    outer, inner = s[update].split(update.op.axis[1], factor=32)
    s[update].bind(outer, te.thread_axis("threadIdx.x"))
    with pytest.raises(ValueError, match=r"update: bind: threadIdx.x is taken"):
        s[update].bind(inner, te.thread_axis("threadIdx.x"))
    n = te.var("n")
    A = te.placeholder((n, n), name="A")
    first = te.compute((n, n), lambda i, j: A[i, j] * 2, name="first")
    second = te.compute((n, n), lambda i, j: first[i, j] + 1, name="second")
    s = te.create_schedule(second.op)
    s[second].bind(second.op.axis[0], te.thread_axis("blockIdx.x"))
    s[first].compute_at(s[second], second.op.axis[0])
    s[first].bind(first.op.axis[1], te.thread_axis("blockIdx.x"))
    # What a block computes in its loop is its own; it takes all steps of a loop that is bound to its axis again.
    kernels = program_of(s, [A, second])
    assert "for (blockIdx.x.step, 0, n)" in kernels.text
    a, out = np.arange(9.0, dtype="f4").reshape(3, 3), np.empty((3, 3), "f4")
    run_kernels(kernels, [a, out], {n: 3})
    np.testing.assert_array_equal(out, a * 2 + 1)


def test_limits_of_a_launch():
    X, init, update, scan = cumulative_sum()
    s = te.create_schedule(scan.op)
    bind(s, init, 64)
    bind(s, update, 2048)
    with pytest.raises(ValueError, match=r"1024 threads at most, got 2048: threadIdx.x of 2048"):
        te.lower(s, [X, scan], target="cuda")
    s = te.create_schedule(scan.op)
    for stage in (init, update):
        s[stage].bind(stage.op.axis[1], te.thread_axis("threadIdx.x"))
    kernels = program_of(s, [X, scan])
    sizes = dict(zip(names_of(kernels), (5, 1025)))
    with pytest.raises(ValueError, match=r"1024 threads at most, got 1025: threadIdx.x of n"):
        kernels.plan(sizes, list(sizes), 1 << 17)
    s = te.create_schedule(scan.op)
    bind(s, init, 1)
    bind(s, update, 1)
    kernels = program_of(s, [X, scan])
    sizes = dict(zip(names_of(kernels), (5, 2**31)))
    with pytest.raises(ValueError, match=r"2147483647 blocks at most, got 2147483648: blockIdx.x = 2147483648"):
        kernels.plan(sizes, list(sizes), 1 << 17)


def names_of(kernels):
    return [key(size) for size in kernels.sizes]


def two_stages(batch=None, width=None):
    """A recurrence over (batch, width) whose second stage reads its neighbour's first one."""
    m = te.var("m")
    shape = (m, batch or te.var("B"), width or te.var("W"))
    X, state = te.placeholder(shape, name="X"), te.placeholder(shape)
    init = te.compute((1, *shape[1:]), lambda _, b, j: X[0, b, j], name="init")
    first = te.compute(shape, lambda t, b, j: te.tanh(state[t - 1, b, j]), name="first")
    second = te.compute(
        shape, lambda t, b, j: te.if_then_else(j > 0, first[t, b, j - 1], 0.0) + X[t, b, j], name="second"
    )
    return X, first, second, te.scan(init, second, state, inputs=[X])


def check_walked(kernels, X, scan):
    sizes = {size: n for size, n in zip(X.shape, (3, 5, 7)) if size.op == "var"}
    x = np.random.default_rng(0).normal(size=[sizes.get(n) or n.static[0] for n in X.shape]).astype("f4")
    out = np.full_like(x, np.nan)
    run_kernels(kernels, [x, out], sizes)
    np.testing.assert_allclose(out, Reference(sizes, {X: x})[scan], rtol=1e-5)


@pytest.mark.parametrize(
    ("batch", "width", "tags", "title"),
    [
        # Beside 16 rows of threads there is room for 64 along the other axis, and for all 128 beside 4.
        (16, 128, ("threadIdx.y", None), "threadIdx.y < 16, threadIdx.x < 64"),
        (4, None, ("threadIdx.y", None), "threadIdx.y < 4, threadIdx.x < 128"),
        (1024, 2, ("threadIdx.y", None), "threadIdx.y < 1024, threadIdx.x < 1"),
        # An axis whose length the call tells may leave no room; what is bound of both takes what its reader takes.
        (None, 128, ("threadIdx.y", None), "threadIdx.y < B"),
        (None, None, (None, "threadIdx.y"), "threadIdx.y < W"),
        (None, None, ("threadIdx.y", "threadIdx.x"), "threadIdx.y < B, threadIdx.x < W"),
        (8, 8, ("threadIdx.y", "threadIdx.x"), "threadIdx.y < 8, threadIdx.x < 8"),
        (None, None, ("blockIdx.x", "threadIdx.x"), "blockIdx.x < B, threadIdx.x < W"),
    ],
)
def test_stages_left_open_fit_what_is_bound(batch, width, tags, title):
    X, _, second, scan = two_stages(batch, width)
    s = te.create_schedule(scan.op)
    for axis, tag in zip(second.op.axis[1:], tags):
        if tag:
            s[second].bind(axis, te.thread_axis(tag))
    kernels = program_of(s, [X, scan])
    assert [kernel.title() for kernel in kernels.kernels] == [f"// kernel_0: {title}"]
    check_walked(kernels, X, scan)


def test_threads_of_a_length_that_the_call_tells_leave_room():
    X, first, second, scan = two_stages()
    s = te.create_schedule(scan.op)
    _, rows = s[second].split(second.op.axis[1], factor=16)
    s[second].bind(rows, te.thread_axis("threadIdx.y"))
    s[second].bind(second.op.axis[2], te.thread_axis("threadIdx.x"))
    s[first].split(first.op.axis[2], factor=4)
    s[first].vectorize(first.op.axis[1])
    kernels = program_of(s, [X, scan])
    (kernel,) = kernels.kernels
    widths = [extent.static[0] for extent in kernel.extents["threadIdx.x"] if extent.op == "const"]
    assert widths == [64] and max(e.static[0] for e in kernel.extents["threadIdx.y"]) == 16
    check_walked(kernels, X, scan)


def test_stages_of_several_shapes_fit_a_block_together():
    shape = (te.var("m"), te.var("B"), 512)
    X, state = te.placeholder(shape, name="X"), te.placeholder(shape)
    init = te.compute((1, *shape[1:]), lambda _, b, j: X[0, b, j])
    gates = te.compute((*shape[:2], 4, 128), lambda t, b, g, j: te.tanh(state[t - 1, b, j] + state[t - 1, b, g]))
    update = te.compute(shape, lambda t, b, j: gates[t, b, j // 128, j % 128] + X[t, b, j])
    scan = te.scan(init, update, state, inputs=[X])
    # Of 512 threads along x, and four times 128 of another stage, a block would have 2048.
    (kernel,) = program_of(te.create_schedule(scan.op), [X, scan]).kernels
    assert kernel.title() == "// kernel_0: blockIdx.x < B, threadIdx.x < 128, threadIdx.y < 4"


def test_a_stage_in_a_loop_of_another_one_stays_in_its_block():
    X, first, second, scan = two_stages(batch=1)
    s = te.create_schedule(scan.op)
    outer, inner = s[second].split(second.op.axis[2], factor=3)
    s[second].reorder(inner, outer)
    s[first].compute_at(s[second], inner)
    for wide in (False, True):  # also where many columns would be of several blocks
        kernels = program_of(s, [X, scan], wide)
        (step,) = [kernel for kernel in kernels.kernels if "produce first" in nest_text(kernel.statement)]
        assert "blockIdx" not in step.title()
        check_walked(kernels, X, scan)
    assert "for 4096 columns and more" in str(te.lower(s, [X, scan], target="cuda"))


def test_a_bound_split_is_that_of_stages_left_open():
    X, _, update, scan = cumulative_sum()
    s = te.create_schedule(scan.op)
    bind(s, update, 256)
    (kernel,) = program_of(s, [X, scan]).kernels  # the init's threads are the update's: it needs no other kernel
    assert kernel.title() == "// kernel_0: blockIdx.x < floordiv(n + 255, 256), threadIdx.x < 256"


@pytest.mark.parametrize(
    ("width", "split", "tags", "title"),
    [
        # What the axes before a fuse are, together, says who has an element.
        (6, lambda stage, b, j: stage.split(stage.fuse(b, j), 32), ("blockIdx.x", "threadIdx.x"),
         "blockIdx.x < floordiv((B*6) + 31, 32), threadIdx.x < 32"),
        (6, lambda stage, b, j: (stage.fuse(b, j),), ("threadIdx.x",), "threadIdx.x < B*6"),
        # Parts of a size that only the call tells are as long as it says.
        (None, lambda stage, b, j: stage.split(j, nparts=8)[:1], ("threadIdx.x",), "threadIdx.x < 8"),
        (None, lambda stage, b, j: stage.split(j, nparts=8)[1:], ("threadIdx.x",),
         "threadIdx.x < floordiv(W + 7, 8)"),
        (None, lambda stage, b, j: stage.split(j, nparts=8), ("blockIdx.x", "threadIdx.x"),
         "blockIdx.x < 8, threadIdx.x < floordiv(W + 7, 8)"),
    ],
)  # fmt: skip
def test_columns_of_fused_axes_and_of_parts_have_their_threads(width, split, tags, title):
    shape = (te.var("m"), te.var("B"), width or te.var("W"))
    X, state = te.placeholder(shape, name="X"), te.placeholder(shape)
    init = te.compute((1, *shape[1:]), lambda _, b, j: X[0, b, j])
    update = te.compute(shape, lambda t, b, j: state[t - 1, b, j] * 0.5 + X[t, b, j])
    scan = te.scan(init, update, state, inputs=[X])
    s = te.create_schedule(scan.op)
    for stage in (init, update):
        for axis, tag in zip(split(s[stage], *stage.op.axis[1:]), tags):
            s[stage].bind(axis, te.thread_axis(tag))
    (kernel,) = (kernels := program_of(s, [X, scan])).kernels
    assert kernel.title() == f"// kernel_0: {title}" and "wait" not in kernels.text
    check_walked(kernels, X, scan)


def test_fused_axes_of_which_a_reader_takes_others_are_apart():
    shape = (te.var("m"), te.var("B"), 6)
    X, state = te.placeholder(shape, name="X"), te.placeholder(shape)
    init = te.compute((1, *shape[1:]), lambda _, b, j: X[0, b, j])
    update = te.compute(shape, lambda t, b, j: te.if_then_else(j > 0, state[t - 1, b, j - 1], 0.0) + X[t, b, j])
    scan = te.scan(init, update, state, inputs=[X])
    s = te.create_schedule(scan.op)
    for stage in (init, update):
        s[stage].bind(s[stage].fuse(*stage.op.axis[1:]), te.thread_axis("threadIdx.x"))
    kernels = program_of(s, [X, scan])
    assert kernels.text.count("wait for the block's threads") >= 2
    check_walked(kernels, X, scan)


def test_barriers_of_deep_nests_are_found_soon():
    shape = (te.var("m"), te.var("B"), te.var("W"))
    X, states = te.placeholder(shape, name="X"), [te.placeholder(shape) for _ in range(2)]
    inits = [te.compute((1, *shape[1:]), lambda _, b, j: X[0, b, j]) for _ in states]
    updates = [te.compute(shape, lambda t, b, j, h=h: h[t - 1, b, j] * X[t, b, j]) for h in states]
    scans = te.scan(inits, updates, states, inputs=[X])
    s = te.create_schedule(scans[0].op)
    s[scans[0]].split(scans[0].op.scan_axis, factor=2)
    for _ in range(3):
        s[updates[1]].tile(*s[updates[1]].leaves[:2], 2, 3)
    before = time.process_time()
    assert "// kernel_0: threadIdx.x < 128" in program_of(s, [X, *scans]).text
    assert time.process_time() - before < 5  # 0.02 s on a quiet machine


def test_without_a_device_or_its_compiler_the_message_says_what_is_missing(monkeypatch):
    from upsweep._backends.cuda import loops

    X, _, _, scan = cumulative_sum()
    s = te.create_schedule(scan.op)

    def no_driver(ordinal):
        raise RuntimeError("NVIDIA's driver cannot be loaded: libcuda.so.1: not found")

    monkeypatch.setattr(loops.driver, "device", no_driver)
    with pytest.raises(RuntimeError, match=r'target "cuda" needs .*driver cannot be loaded'):
        te.build(s, [X, scan], "cuda")
    some_device = type("Device", (), {"capability": 90, "shared_bytes": 0, "load": None})
    monkeypatch.setattr(loops.driver, "device", lambda ordinal: some_device)
    monkeypatch.setattr(nvrtc, "_loaded", {})
    monkeypatch.setenv(nvrtc.VARIABLE, "")
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")
    with pytest.raises(RuntimeError, match=r"pip install nvidia-cuda-nvrtc"):
        te.build(s, [X, scan], "cuda")
    with pytest.raises(ValueError, match='target: expected "cpu", "llvm" or "cuda", got \'metal\''):
        te.lower(s, [X, scan], target="metal")


def test_text_compiles_with_nvidias_compiler():
    try:
        compiler = nvrtc.load()
    except RuntimeError as error:
        pytest.skip(str(error).partition(":")[0])
    *_, X, Wx, Wh, cells, outputs = lstm(None)
    Y, _, _, scan = cumulative_sum()
    for s, args in (
        (te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs]), (te.create_schedule(scan.op), [Y, scan]),
    ):  # fmt: skip
        kernels = program_of(s, args)
        plain = kernels.render(kernels.blocks_buffers(227 * 1024), frozenset(kernels.buffers))
        for text in (plain, kernels.render(frozenset(), frozenset())):
            assert compiler.compile(text, 90).data


def test_only_loops_of_one_thread_axis_are_taken_together():
    size = const(4, "int64")
    a, b = Buffer("a", (size,), "int64"), Buffer("b", (size,), "int64")
    axis = Axis("i", size)

    def both(tag):
        first = For(axis, size, Store(a, (axis,), axis + 1), tag=tag)
        last = For(axis, size, Store(b, (axis,), load(a, (3 - axis,))), tag=tag)
        return fused(Block([first, last]))

    assert isinstance(both(""), Block)  # the last element is needed first
    assert isinstance(both("threadIdx.x"), For)
