"""Sums of matrices: along rows, which are read as vectors and transposed, and along columns, in strips."""

import time

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from upsweep import te


def row_reduction(term, reduce=te.sum, dtype="float32"):
    """A function of X (m, n), v (n,) and the result (m,)."""
    m, n = te.var("m"), te.var("n")
    X, v = te.placeholder((m, n), name="X", dtype=dtype), te.placeholder((n,), name="v", dtype=dtype)
    k = te.reduce_axis((0, n), name="k")
    Y = te.compute((m,), lambda i: reduce(term(X, v, i, k), axis=k), name="Y")
    return te.build(te.create_schedule(Y.op), [X, v, Y])


SHAPES = [(1, 1), (3, 5), (16, 16), (17, 33), (40, 15), (100, 64), (9, 1024), (130, 257)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_row_is_summed_in_order(dtype):
    """To the bit: the order of the additions is that of the columns, whole vectors or not."""
    run = row_reduction(lambda X, v, i, k: X[i, k] - v[k], dtype=dtype)
    for m, n in SHAPES:
        rng = np.random.default_rng(m * n)
        for wide in (
            rng.standard_normal((m, n + 3)).astype(dtype),
            rng.standard_normal((2 * m, n + 3)).astype(dtype),
        ):
            x = wide[:: len(wide) // m, 1 : n + 1]  # not aligned; the second with other rows between
            v, result = rng.standard_normal(n).astype(dtype), np.full(m, np.nan, dtype)
            run(x, v, result)
            expected = np.zeros(m, dtype)
            for k in range(n):
                expected += x[:, k] - v[k]
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_columns_are_summed_in_order_in_strips_of_any_width(dtype):
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X", dtype=dtype)
    k = te.reduce_axis((0, m), name="k")
    Y = te.compute((n,), lambda i: te.sum(X[k, i], axis=k), name="Y")
    run = te.build(te.create_schedule(Y.op), [X, Y])
    for width in (1, 7, 16, 31, 64, 127, 128, 129, 200, 391):
        x = np.random.default_rng(width).standard_normal((11, width)).astype(dtype)
        result, expected = np.full(width, np.nan, dtype), np.zeros(width, dtype)
        run(x, result)
        for row in x:
            expected += row
        np.testing.assert_array_equal(result, expected)


def test_a_load_that_a_condition_guards_reads_nothing_beyond():
    """Rows of three columns, of which a sum over more reads those that are there."""
    m = te.var("m")
    X = te.placeholder((m, 3), name="X")
    k = te.reduce_axis((0, 40), name="k")
    Y = te.compute((m,), lambda i: te.sum(te.if_then_else(k < 3, X[i, k], 1.0), axis=k), name="Y")
    run = te.build(te.create_schedule(Y.op), [X, Y])
    x, result = np.arange(99, dtype="f4").reshape(33, 3), np.zeros(33, "f4")
    run(x, result)
    np.testing.assert_array_equal(result, x.sum(1) + 37)


@pytest.mark.parametrize("reduce", [te.max, te.min])
def test_other_reductions_of_rows(reduce):
    run = row_reduction(lambda X, v, i, k: X[i, k] * v[k], reduce)
    x, v = (np.random.default_rng(0).standard_normal(shape).astype("f4") for shape in ((50, 70), 70))
    result = np.zeros(50, "f4")
    run(x, v, result)
    np.testing.assert_array_equal(result, getattr(np, reduce.__name__)(x * v, axis=1))


def test_rows_of_a_power_of_two_cost_as_much_as_their_neighbours():
    """Gathered numbers of rows 4 KiB apart share a cache set: that took 7 times as long."""
    run = row_reduction(lambda X, v, i, k: X[i, k] + v[k])
    times = dict.fromkeys((1000, 1024), np.inf)
    inputs = {n: (np.ones((992, n), "f4"), np.ones(n, "f4"), np.zeros(992, "f4")) for n in times}
    for _ in range(20):
        for n, arrays in inputs.items():
            begin = time.thread_time()  # not what other processes take
            run(*arrays, n_threads=1)
            times[n] = min(times[n], time.thread_time() - begin)
    assert times[1024] < 3 * times[1000]
