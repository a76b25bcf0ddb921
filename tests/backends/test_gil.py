"""Hazard: a kernel that keeps the GIL stops every other Python thread."""

import numpy as np
import pytest
import upsweep
from helpers import ticks_inside


def long_calls():
    x = np.ones((1, 4_000_000), np.float32)
    keys = np.zeros(4_000_000, np.int64)
    weights = np.ones(4_000_000)
    return {
        "cumulative_sum": lambda: upsweep.cumulative_sum(x, n_threads=1),
        "discounted_cumsum": lambda: upsweep.discounted_cumsum(x, 0.5, n_threads=1),
        "window": lambda: upsweep.discounted_cumsum(x, 0.5, window=100, n_threads=1),
        "linear_recurrence": lambda: upsweep.linear_recurrence(x, x, n_threads=1),
        "carry": lambda: upsweep.linear_recurrence_carry(x, x, n_threads=1),
        "bincount": lambda: upsweep.bincount(keys, n_threads=1),
        "bincount with weights": lambda: upsweep.bincount(keys, weights, n_threads=1),
    }


@pytest.mark.parametrize("label", long_calls())
def test_other_threads_go_on_during_a_call(label):
    assert ticks_inside(long_calls()[label], 10) >= 10
