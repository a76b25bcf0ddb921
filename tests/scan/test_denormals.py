"""Hazard: subnormal numbers. Decaying scans count them as zero, sums keep them, the mode is restored."""

import threading

import numpy as np
import pytest
import upsweep
from helpers import random

TINY = {"float32": 1e-40, "float64": 1e-310, "complex64": 1e-40 + 1e-41j, "complex128": 1e-310 + 1e-311j}
SHAPES = [((1,), 0), ((50,), 0), ((3, 300), 1), ((300, 3), 0), ((1, 100_000), 1), ((100_000, 2), 0)]


@pytest.mark.parametrize("dtype", TINY)
def test_subnormal_input_counts_as_zero_in_decaying_scans(dtype):
    for shape, axis in SHAPES:
        x = np.full(shape, TINY[dtype], dtype)
        for gamma in (0.5, 1.0):
            assert not upsweep.discounted_cumsum(x, gamma, axis=axis).any()
        assert not upsweep.linear_recurrence(np.ones(shape, dtype), x, axis=axis).any()


@pytest.mark.parametrize("dtype", TINY)
def test_a_subnormal_gate_counts_as_zero(dtype):
    gates = np.full(100, TINY[dtype], dtype)
    tokens = np.full(100, 1e30 if dtype.endswith(("32", "64")) and dtype != "float64" else 1e300, dtype)
    np.testing.assert_array_equal(upsweep.linear_recurrence(gates, tokens), tokens)


@pytest.mark.parametrize("dtype", TINY)
def test_the_tail_of_an_impulse_ends_in_zeros(dtype):
    smallest = np.finfo(dtype).smallest_normal
    for length, axis in [(4000, 0), (150_000, 0)]:
        x = np.zeros(length, dtype)
        x[0] = 1
        for y in (
            upsweep.discounted_cumsum(x, 0.7),
            upsweep.linear_recurrence(np.full(length, 0.7, dtype), x),
        ):
            normal = 0.7 ** np.arange(float(length)) > 1.001 * smallest
            assert (np.abs(y[normal]) >= smallest).all()
            assert not y[3000:].any()
            assert not ((np.abs(y) > 0) & (np.abs(y) < smallest)).any()
        columns = np.repeat(x[:, np.newaxis], 3, axis)[:4000].reshape(-1, 1) * np.ones(3, dtype)
        y = upsweep.discounted_cumsum(columns, 0.7, axis=0)
        assert not ((np.abs(y) > 0) & (np.abs(y) < smallest)).any()


def test_float16_keeps_its_subnormals_which_cost_nothing():
    # They are normal numbers of the float32 that the kernels calculate in; zero would break the promise.
    x = np.full(8, 2.0**-24, np.float16)
    np.testing.assert_array_equal(upsweep.discounted_cumsum(x, 1.0), np.arange(1, 9) * 2.0**-24)
    np.testing.assert_array_equal(upsweep.linear_recurrence(np.ones(8, np.float16), x), np.arange(1, 9) * 2.0**-24)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_keep_subnormals(dtype):
    smallest = np.finfo(dtype).smallest_subnormal
    for shape, axis in SHAPES:
        y = upsweep.cumulative_sum(np.full(shape, smallest, dtype), axis=axis)
        steps = np.arange(1, shape[axis] + 1).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        np.testing.assert_array_equal(y, np.broadcast_to(steps * float(smallest), shape).astype(dtype))


def test_counts_keep_subnormals():
    weights = np.full(1000, 5e-324)
    np.testing.assert_array_equal(upsweep.bincount(np.zeros(1000, int), weights), [1000 * 5e-324])


def subnormals_work():
    return (np.full(100, 1e-310) * 0.5).all() and (np.full(100, 1e-40, np.float32) + np.float32(0)).all()


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_mode_of_the_caller_is_restored(n_threads):
    assert subnormals_work()
    for shape, axis in SHAPES:
        upsweep.discounted_cumsum(random(shape), 0.5, axis=axis, n_threads=n_threads)
        upsweep.linear_recurrence(random(shape), random(shape), axis=axis, n_threads=n_threads)
        assert subnormals_work()
    with pytest.raises(ValueError, match="window"):
        upsweep.discounted_cumsum(np.ones(3), 0.5, window=0)
    assert subnormals_work()


def test_the_mode_of_the_workers_is_restored_for_sums():
    x = np.full((1, 500_000), 5e-324)
    upsweep.discounted_cumsum(x, 0.5, n_threads=2)
    y = upsweep.cumulative_sum(x, n_threads=2)
    np.testing.assert_array_equal(y[0], np.arange(1, 500_001) * 5e-324)


def test_other_python_threads_keep_their_mode():
    seen = []

    def work():
        upsweep.discounted_cumsum(random(100_000), 0.5)
        seen.append(subnormals_work())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
