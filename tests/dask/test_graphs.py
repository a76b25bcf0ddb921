"""Hazard: graphs that dask itself finds wrong, which other parts of a program then cut or fuse wrongly."""

import numpy as np
import pytest
import upsweep

da = pytest.importorskip("dask.array")
from dask.array.utils import assert_eq  # noqa: E402  # as the line above

X = da.from_array(np.arange(20.0).reshape(4, 5) + 1, chunks=(2, 2))
HALVES = da.full((4, 5), 0.5, chunks=(2, 3))
KEYS = da.from_array(np.arange(20) % 7, chunks=6)
DATES = da.from_array(np.arange(20).astype("datetime64[h]"), chunks=7)
POINTS = da.from_array(np.random.default_rng(0).random((9, 3)), chunks=(4, 3))
METHODS = ["sequential", "tree"]


def both(state, x):
    return state + x, (state, np.exp(x))


def squared_distances():
    return ((upsweep.Vi(POINTS) - upsweep.Vj(POINTS)) ** 2).sum(-1)


SCANS = {
    "cumulative_sum": lambda **k: upsweep.cumulative_sum(X + 1, return_final=True, **k),
    "include_initial": lambda **k: upsweep.cumulative_sum(X + 1, axis=0, include_initial=True, **k),
    "discounted_cumsum": lambda **k: upsweep.discounted_cumsum(X, HALVES, initial=X[:, 0], return_final=True, **k),
    "linear_recurrence": lambda **k: upsweep.linear_recurrence(HALVES, X, reset=X > 7, return_final=True, **k),
    "scan": lambda **k: upsweep.scan(lambda s, x: 0.5 * s + x, 0.0, X + 1, return_final=True, **k),
    "scan in order": lambda **k: upsweep.scan(lambda s, x: np.tanh(s + x), 0.0, X, return_final=True, **k),
    "scan of two": lambda **k: upsweep.scan(both, 0.0, X, return_final=True, **k),
}
OTHERS = {
    "bincount": lambda: upsweep.bincount(KEYS),
    "bincount, invalid": lambda: upsweep.bincount(KEYS, length=5, invalid="drop", return_invalid=True),
    "bincount, weights": lambda: upsweep.bincount(KEYS, da.ones(20, chunks=4), length=9),
    "bincount, axis": lambda: upsweep.bincount(KEYS.reshape(4, 5), axis=0, length=9),
    "histogram": lambda: upsweep.histogram(X + 1),
    "histogram, weights": lambda: upsweep.histogram(X, [0, 1, 5], weights=HALVES, density=True),
    "histogram, dates": lambda: upsweep.histogram(DATES, 4),
    "ewm_mean": lambda: upsweep.ewm_mean(X, alpha=0.5),
    "ewm_mean, in order": lambda: upsweep.ewm_mean(X, alpha=0.5, adjust=False),
    "ewm_sum": lambda: upsweep.ewm_sum(X, halflife=1, times=np.arange(5.0)),
    "lfilter": lambda: upsweep.lfilter([0.5], [1, -0.5], X, zi=np.ones((4, 1))),
    "sum": lambda: squared_distances().sum(axis=1),
    "logsumexp": lambda: squared_distances().logsumexp(axis=0),
    "min_argmin": lambda: squared_distances().min_argmin(axis=1),
    "Kmin_argKmin": lambda: squared_distances().Kmin_argKmin(2, axis=1),
}


def check(results):
    for result in results if isinstance(results, tuple) else (results,):
        if isinstance(result, tuple):
            check(result)
            continue
        assert isinstance(result, da.Array)
        result.dask.validate()
        assert_eq(result, result.compute(scheduler="sync"))  # names, chunks, dtypes and meta as computed


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, method):
    check(SCANS[name](method=method))


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name):
    check(OTHERS[name]())
