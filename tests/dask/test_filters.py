"""Filters and windows of dask arrays, compared with those of the whole."""

import numpy as np
import pytest
import upsweep
from helpers import random

pytest.importorskip("llvmlite")
da = pytest.importorskip("dask.array")


def same(lazy, expected, tolerance=1e-9):
    assert isinstance(lazy, da.Array) and lazy.dtype == expected.dtype and lazy.shape == expected.shape
    result = lazy.compute(scheduler="sync")
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("order", [0, 1, 2, 4, 6])
def test_lfilter(order):
    signal = pytest.importorskip("scipy.signal")
    b, a = signal.butter(order, 0.2) if order else (np.array([0.5]), np.array([2.0]))
    for shape, axis, chunks in (((300,), 0, 77), ((3, 300), 1, (2, 77)), ((300, 3), 0, (90, 2))):
        x = random(shape)
        lazy = da.from_array(x, chunks=chunks)
        same(upsweep.lfilter(b, a, lazy, axis), signal.lfilter(b, a, x, axis))
        start = random([order if d == axis else n for d, n in enumerate(shape)], seed=1)
        with_state = signal.lfilter(b, a, x, axis, zi=start)
        for zi in (start, da.from_array(start, chunks=2)):
            for got, expected in zip(upsweep.lfilter(b, a, lazy, axis, zi=zi), with_state):
                same(got if isinstance(got, da.Array) else da.from_array(got), expected)
        if order:
            assert isinstance(upsweep.lfilter(b, a, x, axis, zi=da.from_array(start))[0], da.Array)
    single = upsweep.lfilter(np.float32(b), np.float32(a), da.ones(9, chunks=2, dtype=np.float32))
    assert single.dtype == np.float32


@pytest.mark.parametrize("missing", [False, True])
def test_windows(missing):
    x = random((3, 100))
    if missing:
        x[random(x.shape, seed=1) > 0.7] = np.nan
        x[0, :5] = np.nan
    lazy = da.from_array(x, chunks=(2, 17))
    times = np.cumsum(random(100, seed=2) + 1)
    for ignore_na in (False, True):
        for adjust in (False, True):
            keywords = {"alpha": 0.2, "adjust": adjust, "ignore_na": ignore_na}
            same(upsweep.ewm_mean(lazy, **keywords), upsweep.ewm_mean(x, **keywords))
        same(upsweep.ewm_sum(lazy, com=3, ignore_na=ignore_na), upsweep.ewm_sum(x, com=3, ignore_na=ignore_na))
    same(upsweep.ewm_mean(lazy, halflife=2, times=times), upsweep.ewm_mean(x, halflife=2, times=times))
    down = upsweep.ewm_mean(lazy.T, span=5, axis=0)
    same(down, upsweep.ewm_mean(x.T, span=5, axis=0))


def test_nothing_is_computed_before_it_is_asked_for():
    def never(block):
        raise AssertionError("computed")

    x = da.zeros(100, chunks=10).map_blocks(never, dtype=float, meta=np.empty(0))
    for y in (
        upsweep.lfilter([1.0, 0.5], [1.0, -0.5], x, zi=x[:1])[0],
        upsweep.ewm_mean(x, alpha=0.5, adjust=False),
        upsweep.ewm_sum(x, alpha=0.5),
    ):
        with pytest.raises(AssertionError, match="computed"):
            y.compute(scheduler="sync")


def test_what_is_refused():
    x = da.zeros(10, chunks=5)
    for call in (lambda x: upsweep.lfilter([1.0], [1.0, 0.5], x), lambda x: upsweep.ewm_sum(x, alpha=0.5)):
        with pytest.raises(ValueError, match=r"x: has chunks of unknown sizes.*x\.compute_chunk_sizes"):
            call(x[x == 0])
        with pytest.raises(TypeError, match="x: expected real numbers, got dtype complex128"):
            call(x * 1j)
    with pytest.raises(TypeError, match="b: expected a numpy array, got dask"):
        upsweep.lfilter(x, [1.0, 0.5], x)
    with pytest.raises(TypeError, match="times: expected an array in memory, got a dask array"):
        upsweep.ewm_mean(x, halflife=1, times=x)
