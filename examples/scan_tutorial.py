"""TVM's tutorial of `te.scan` with one import changed.

    python examples/scan_tutorial.py

needs llvmlite (pip install "upsweep[expr]"). Thread axes run as parallel and vector loops on the CPU.
"""

import numpy as np
from upsweep import te
from upsweep.te import compat as tvm


def a_scan():
    """The sum over the rows before: an init for the first row, an update that reads the row before."""
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    s_state = te.placeholder((m, n))
    s_init = te.compute((1, n), lambda _, i: X[0, i])
    s_update = te.compute((m, n), lambda t, i: s_state[t - 1, i] + X[t, i])
    s_scan = tvm.te.scan(s_init, s_update, s_state, inputs=[X])

    # The scan axis runs in its order; all others may be split and shared.
    s = te.create_schedule(s_scan.op)
    block_x, thread_x = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
    for stage, tensor in ((s[s_init], s_init), (s[s_update], s_update)):
        outer, inner = stage.split(tensor.op.axis[1], factor=256)
        stage.bind(outer, block_x)
        stage.bind(inner, thread_x)
    print(tvm.lower(s, [X, s_scan], simple_mode=True))

    run = tvm.build(s, [X, s_scan], "llvm", name="a_scan")
    dev = tvm.cpu(0)
    a_np = np.random.default_rng(0).uniform(size=(10, 1024)).astype(s_scan.dtype)
    a = tvm.nd.array(a_np, dev)
    b = tvm.nd.array(np.zeros((10, 1024), dtype=s_scan.dtype), dev)
    run(a, b)
    tvm.testing.assert_allclose(b.numpy(), np.cumsum(a_np, axis=0), rtol=1e-5)


def a_cell_of_two_stages():
    """The update reads another stage, which is computed where the update has split its columns."""
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    s_state = te.placeholder((m, n))
    s_init = te.compute((1, n), lambda _, i: X[0, i])
    s1 = te.compute((m, n), lambda t, i: s_state[t - 1, i] * 2, name="s1")
    s2 = te.compute((m, n), lambda t, i: s1[t, i] + X[t, i], name="s2")
    s_scan = tvm.te.scan(s_init, s2, s_state, inputs=[X])
    s = te.create_schedule(s_scan.op)
    xo, _ = s[s2].split(s2.op.axis[1], factor=32)
    s[s1].compute_at(s[s2], xo)
    print(tvm.lower(s, [X, s_scan], simple_mode=True))

    x = np.random.default_rng(0).uniform(size=(8, 100)).astype("float32")
    expected = x.copy()
    for t in range(1, len(x)):
        expected[t] = 2 * expected[t - 1] + x[t]
    tvm.testing.assert_allclose(tvm.build(s, [X, s_scan])(x), expected, rtol=1e-5)


def two_states():
    """States of different widths, of which one reads the other's first column of the step before."""
    m, n, width = te.var("m"), te.var("n"), te.var("width")
    X = te.placeholder((m, n), name="X")
    first, second = te.placeholder((m, n)), te.placeholder((m, width))
    first_init = te.compute((1, n), lambda _, i: X[0, i])
    second_init = te.compute((1, width), lambda _, i: 0.0)
    first_new = te.compute((m, n), lambda t, i: first[t - 1, i] + X[t, i])
    second_new = te.compute((m, width), lambda t, i: second[t - 1, i] + first[t - 1, 0])
    scan0, scan1 = tvm.te.scan(
        [first_init, second_init], [first_new, second_new], [first, second], inputs=[X], name="scan"
    )
    s = te.create_schedule(scan0.op)
    print(tvm.lower(s, [X, scan0, scan1], simple_mode=True))

    x = np.random.default_rng(0).uniform(size=(8, 100)).astype("float32")
    sums, others = np.empty_like(x), np.empty((8, 30), np.float32)
    tvm.build(s, [X, scan0, scan1])(x, sums, others)
    tvm.testing.assert_allclose(sums, np.cumsum(x, axis=0), rtol=1e-5)
    before = np.cumsum(sums[:-1, 0])
    tvm.testing.assert_allclose(others[1:], np.repeat(before[:, None], 30, axis=1), rtol=1e-5)


def main():
    a_scan()
    a_cell_of_two_stages()
    two_states()


if __name__ == "__main__":
    main()
