"""Hazards of the short way of a call: arrays that are not such as those before it, and arrays that overlap."""

import numpy as np
import pytest
from helpers import in_threads
from upsweep import te

pytest.importorskip("llvmlite")


def sums(dtype="float64"):
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), dtype, "X"), te.placeholder((m, n), dtype)
    init = te.compute((1, n), lambda _, i: X[0, i])
    scan = te.scan(init, te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i]), state, name="sums")
    return te.build(te.create_schedule(scan.op), [X, scan])


def turned():
    n = te.var("n")
    X = te.placeholder((n,), name="X", dtype="float64")
    Y = te.compute((n,), lambda i: X[n - 1 - i] + 1, name="Y")
    return te.build(te.create_schedule(Y.op), [X, Y])


def whole(*shape):
    return np.random.default_rng(len(shape)).integers(0, 9, shape).astype(float)


def swapped(x):
    return x.astype(x.dtype.newbyteorder())


def unaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    memory[...] = x
    return memory


@pytest.mark.parametrize("fills", [True, False])
def test_every_kind_of_array_after_every_other(fills):
    run, x = sums(), whole(6, 21)
    kinds = [x, x.T.copy().T, x[:, ::2], x[::-1], x[:, :0], x[:1], swapped(x), unaligned(x), x[:, :20], x.copy()]
    for first in kinds:
        for second in kinds:
            for each in (first, second, first):
                if fills:
                    out = np.full(each.shape, np.nan)
                    assert run(each, out) is None
                else:
                    out = run(each)
                    assert out.dtype == np.float64 and out.flags.c_contiguous
                np.testing.assert_array_equal(out, np.cumsum(each, axis=0))


def test_what_was_allowed_before_is_checked_again():
    run, x = sums(), whole(4, 5)
    out = np.empty((4, 5))
    run(x, out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="sums: the array to fill is read-only"):
        run(x, out)
    with pytest.raises(TypeError, match="X: expected dtype float64, got float32"):
        run(x.astype("float32"), np.empty((4, 5)))
    with pytest.raises(TypeError, match="X: expected dtype float64, got int64"):
        run(x.astype("int64"), np.empty((4, 5)))
    with pytest.raises(ValueError, match=r"sums: expected shape .* got \(4, 6\)"):
        run(x, np.empty((4, 6)))
    with pytest.raises(TypeError, match="expected 2 arguments"):
        run(x, np.empty((4, 5)), x)
    with pytest.raises(ValueError, match="n_threads: expected at least 1, got 0"):
        run(x, np.empty((4, 5)), n_threads=0)


def test_results_over_their_inputs():
    run = turned()
    for make in (lambda a: (a[:6], a[:6]), lambda a: (a[:6], a[2:8]), lambda a: (a[2:8], a[:6]),
                 lambda a: (a[:6][::-1], a[:6])):  # fmt: skip
        for _ in range(2):  # the second finds what the first remembered
            x, out = make(np.arange(8.0))
            expected = x[::-1] + 1
            assert run(x, out) is None
            np.testing.assert_array_equal(out, expected)
        apart = np.arange(6.0)
        run(apart, target := np.empty(6))
        np.testing.assert_array_equal(target, apart[::-1] + 1)
    x = np.arange(5.0)
    run(x, x)
    assert x.tolist() == [5, 4, 3, 2, 1]


def test_results_over_each_other():
    n = te.var("n")
    X = te.placeholder((n,), name="X", dtype="float64")
    A = te.compute((n,), lambda i: X[i] + 1, name="A")
    B = te.compute((n,), lambda i: A[i] * 2, name="B")
    run = te.build(te.create_schedule(B.op), [X, A, B])
    memory = np.zeros(9)
    run(np.arange(6.0), memory[:6], memory[3:])
    assert memory.tolist() == [1, 2, 3, 2, 4, 6, 8, 10, 12]


def test_subclasses_are_arrays(tmp_path):
    run, x = sums(), whole(4, 5)
    out = np.memmap(tmp_path / "out", np.float64, "w+", shape=(4, 5))
    for _ in range(2):
        out[...] = 0
        run(x.view(np.recarray), out)
        np.testing.assert_array_equal(out, np.cumsum(x, axis=0))


def test_results_of_one_call_are_not_those_of_the_next():
    run, x = sums(), whole(4, 5)
    first, second = run(x), run(x + 1)
    np.testing.assert_array_equal(first, np.cumsum(x, axis=0))
    np.testing.assert_array_equal(second, np.cumsum(x + 1, axis=0))


def test_from_several_threads_at_once():
    run = sums()
    wrong = []

    def work(n):
        x = whole(30, n)
        for _ in range(200):
            if not np.array_equal(run(x), np.cumsum(x, axis=0)):
                wrong.append(n)

    in_threads(work, 3, 3, 40, 41)
    assert not wrong


def test_a_placeholder_that_nothing_reads_is_an_argument_too():
    n = te.var("n")
    X, unused = te.placeholder((n,), name="X"), te.placeholder((n, 2), name="unused")
    Y = te.compute((n,), lambda i: X[i] * 2, name="Y")
    run = te.build(te.create_schedule(Y.op), [X, unused, Y])
    x = np.arange(3, dtype="float32")
    assert run(x, np.zeros((3, 2), "float32")).tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match=r"unused: expected shape \(n, 2\), where n is 3, got \(4, 2\)"):
        run(x, np.zeros((4, 2), "float32"))
