"""Programs written for TVM: what the scan tutorial does, and its own text where it is at hand."""

import unittest

import numpy as np
import pytest
import te_tutorial
from upsweep import te
from upsweep.te import compat as tvm

pytest.importorskip("llvmlite")


@te_tutorial.needed
def test_the_tutorials_own_text(capsys):
    te_tutorial.run_tutorial("llvm")
    te_tutorial.check_text(capsys.readouterr().out)


def cumulative_sum():
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
    return X, init, update, tvm.te.scan(init, update, state, inputs=[X])


def test_bound_threads_run_as_parallel_and_vector_loops():
    X, init, update, scan = cumulative_sum()
    s = te.create_schedule(scan.op)
    for stage in (init, update):
        outer, inner = s[stage].split(stage.op.axis[1], factor=256)
        s[stage].bind(outer, te.thread_axis("blockIdx.x"))
        s[stage].bind(inner, te.thread_axis("threadIdx.x"))
    text = str(tvm.lower(s, [X, scan], simple_mode=True))
    assert text.count("parallel (blockIdx.x, 0, floordiv(n + 255, 256))") == 2
    assert text.count("vectorized (threadIdx.x, 0, 256)") == 2
    assert text.count("if (((blockIdx.x*256) + threadIdx.x) < n)") == 2
    assert "for (scan.idx, 0, m - 1)" in text
    run = tvm.build(s, [X, scan], "llvm", name="myscan")
    for n in (1, 255, 256, 257, 1024):
        values = np.random.default_rng(n).uniform(size=(10, n)).astype(scan.dtype)
        a = tvm.nd.array(values, tvm.cpu(0))
        b = tvm.nd.array(np.zeros((10, n), dtype=scan.dtype), tvm.cpu(0))
        run(a, b)
        tvm.testing.assert_allclose(b.asnumpy(), np.cumsum(values, axis=0), rtol=1e-6)


def test_a_stage_of_the_body_at_a_loop_of_another():
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    first = te.compute((m, n), lambda t, i: state[t - 1, i] * 2, name="first")
    second = te.compute((m, n), lambda t, i: first[t, i] + X[t, i], name="second")
    scan = te.scan(init, second, state, inputs=[X])
    x = np.random.default_rng(0).uniform(size=(6, 70)).astype("float32")
    expected = x.copy()
    for t in range(1, 6):
        expected[t] = expected[t - 1] * 2 + x[t]
    plain = te.create_schedule(scan.op)
    assert "allocate first[float32 * n]" in str(te.lower(plain, [X, scan]))
    np.testing.assert_allclose(te.build(plain, [X, scan])(x), expected, rtol=1e-6)
    s = te.create_schedule(scan.op)
    outer, _ = s[second].split(second.op.axis[1], factor=32)
    s[first].compute_at(s[second], outer)
    lowered = te.lower(s, [X, scan], simple_mode=True)
    text = str(lowered)
    assert lowered.text == repr(lowered) == text and type(lowered.text) is str
    assert "allocate first[float32 * 32]" in text
    assert text.index("for (i.outer") < text.index("produce first") < text.index("for (i.inner")
    np.testing.assert_allclose(te.build(s, [X, scan])(x), expected, rtol=1e-6)
    s = te.create_schedule(scan.op)
    s[first].compute_inline()
    assert "first" not in str(te.lower(s, [X, scan]))
    np.testing.assert_allclose(te.build(s, [X, scan])(x), expected, rtol=1e-6)


def test_two_states_of_two_widths():
    m, n, width = te.var("m"), te.var("n"), te.var("l")
    X = te.placeholder((m, n), name="X")
    one, two = te.placeholder((m, n)), te.placeholder((m, width))
    inits = [te.compute((1, n), lambda _, i: X[0, i]), te.compute((1, width), lambda _, i: 0.0)]
    updates = [
        te.compute((m, n), lambda t, i: one[t - 1, i] + X[t, i]),
        te.compute((m, width), lambda t, i: two[t - 1, i] + one[t - 1, 0]),
    ]
    first, second = tvm.te.scan(inits, updates, [one, two], inputs=[X])
    s = te.create_schedule(first.op)
    text = str(tvm.lower(s, [X, first, second], simple_mode=True))
    assert "scan.v1[scan.idx + 1, i] = scan.v1[scan.idx, i] + scan.v0[scan.idx, 0]" in text
    run = te.build(s, [X, first, second])
    x = np.random.default_rng(0).uniform(size=(9, 20)).astype("float32")
    a, b = np.empty_like(x), np.empty((9, 3), "float32")
    run(x, a, b)
    np.testing.assert_allclose(a, np.cumsum(x, axis=0), rtol=1e-6)
    np.testing.assert_allclose(b, np.tile(np.cumsum(a[:, :1], axis=0) - a[:, :1], 3), rtol=1e-6)


def test_fibonacci_reaches_two_steps_back():
    m = te.var("m")
    state = te.placeholder((m,), dtype="int64")
    update = te.compute((m,), lambda t: state[t - 1] + state[t - 2])
    scan = te.scan(te.compute((2,), lambda t: te.cast("int64", t)), update, state)
    run = te.build(te.create_schedule(scan.op), [scan])
    out = np.empty(20, "int64")
    run(out)
    assert out[:8].tolist() == [0, 1, 1, 2, 3, 5, 8, 13]
    with pytest.raises(ValueError, match="do not tell the size m"):
        run()


def test_a_computed_input_and_work_after_the_scan():
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    twice = te.compute((m, n), lambda t, i: X[t, i] * 2, name="twice")
    state = te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: twice[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + twice[t, i])
    scan = te.scan(init, update, state, inputs=[twice])
    after = te.compute((m, n), lambda t, i: te.sqrt(scan[t, i]), name="after")
    x = np.random.default_rng(0).uniform(size=(5, 33)).astype("float32")
    for place in ("root", "inline"):
        s = te.create_schedule(after.op)
        if place == "inline":
            s[twice].compute_inline()
        text = str(te.lower(s, [X, after]))
        assert ("produce twice" in text) == (place != "inline")
        result = te.build(s, [X, after])(x)
        np.testing.assert_allclose(result, np.sqrt(2 * np.cumsum(x, axis=0)), rtol=1e-6)


def test_names_of_other_modules():
    assert repr(tvm.tir.const(1, "float32")) == "1f" and tvm.tir.const(2).dtype == "int32"
    assert te.const(True).dtype == "bool"
    with pytest.raises(TypeError, match=r"const: expected an integer for int32, got 1\.5"):
        te.const(1.5, "int32")
    with pytest.raises(TypeError, match="const: expected a number, got n"):
        te.const(te.size_var("n"))
    rows, columns = tvm.runtime.convert([3, te.size_var("n")])
    X = tvm.runtime.convert(te.placeholder((rows, columns), name="X"))
    assert bool(X.shape[0] == 3) and bool(X.shape[1] == columns)
    with pytest.raises(TypeError, match="n == 3 has no truth value"):
        assert columns == 3
    assert repr(te.thread_axis("threadIdx.y").equal(0)) == "threadIdx.y == 0"

    @tvm.register_func
    def tvm_callback_cuda_postproc(code):
        return code

    assert tvm_callback_cuda_postproc("code") == "code"
    with pytest.raises(NotImplementedError, match=r"mine: programs cannot call .* te\.compute"):
        tvm.register_func("mine", override=True)(abs)
    with tvm.transform.PassContext(opt_level=3, config={"tir.UnrollLoop": {"auto_max_step": 128}}):
        Y = te.compute(X.shape, lambda i, j: X[i, j] * te.const(2, "float32"), name="Y")
        assert te.build(te.create_schedule(Y.op), [X, Y])(np.ones((3, 1), "f4")).tolist() == [[2]] * 3


def test_devices_by_name():
    assert [tvm.device(kind).exist for kind in ("cpu", "llvm -mcpu=native", "vulkan")] == [True, True, False]
    assert repr(tvm.device("cuda", 1)) == "cuda(1)" and tvm.device("nvptx").kind == "cuda"
    assert tvm.testing.device_enabled("llvm") and not tvm.testing.device_enabled("metal")
    assert tvm.testing.device_enabled("cuda") == tvm.cuda().exist
    with pytest.raises(RuntimeError, match=r"device: metal\(0\): functions are built for cpu and cuda"):
        tvm.nd.array(np.zeros(3), tvm.device("metal"))
    ran = []
    test = tvm.testing.requires_gpu(lambda: ran.append(1))
    if tvm.cuda().exist:
        test()
    else:
        with pytest.raises(unittest.SkipTest):
            test()
    assert len(ran) == tvm.cuda().exist


def test_devices_that_are_not_there(monkeypatch):
    monkeypatch.setattr(
        tvm._backends.cuda_memory, "why_no_device", lambda ordinal: "this machine has no CUDA device"
    )
    assert not tvm.gpu(0).exist and tvm.cpu(0).exist
    with pytest.raises(RuntimeError, match=r"device: cuda\(0\): this machine has no CUDA device"):
        tvm.nd.array(np.zeros(3), tvm.gpu(0))
    X, _, _, scan = cumulative_sum()
    with pytest.raises(ValueError, match="target"):
        tvm.build(te.create_schedule(scan.op), [X, scan], "metal")
