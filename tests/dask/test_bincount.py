"""Counts and histograms of dask arrays, against numpy's of the whole."""

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits

da = pytest.importorskip("dask.array")

KEYS = np.random.default_rng(0).integers(0, 50, 3000)
CHUNKS = [3000, 1000, (1, 0, 1999, 1000), 17]


def compute(array):
    return array.compute(scheduler="sync")


@pytest.mark.parametrize("chunks", CHUNKS)
def test_bincount_is_numpys(chunks):
    x = da.from_array(KEYS, chunks=(chunks,))
    counts = upsweep.bincount(x)
    assert isinstance(counts, da.Array) and np.isnan(counts.shape[0])
    assert same_bits(compute(counts), np.bincount(KEYS))
    assert same_bits(compute(upsweep.bincount(x, minlength=99)), np.bincount(KEYS, minlength=99))
    known = upsweep.bincount(x, length=60)
    assert known.shape == (60,) and known.dtype == np.intp
    assert same_bits(compute(known), np.bincount(KEYS, minlength=60))


@pytest.mark.parametrize("chunks", CHUNKS)
def test_sums_of_weights(chunks):
    x = da.from_array(KEYS, chunks=(chunks,))
    for weights in (random(3000, np.float32), random(3000, complex), np.arange(3000)):
        result = upsweep.bincount(x, da.from_array(weights, chunks=500), length=50)
        expected = upsweep.bincount(KEYS, weights, length=50)
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(compute(result), expected, rtol=1e-12, atol=1e-12)
    weights = random((3000, 4))
    for lazy in (weights, da.from_array(weights, chunks=(700, 3))):
        result = upsweep.bincount(x, lazy, dtype="float32")
        assert result.ndim == 2 and result.shape[1] == 4 and result.dtype == np.float32
        np.testing.assert_allclose(compute(result), upsweep.bincount(KEYS, weights), rtol=1e-6, atol=1e-6)
    assert upsweep.bincount(x, np.arange(3000), dtype="uint8", length=50).dtype == np.uint8


def test_rounded_once():
    x = da.zeros(1000, chunks=1, dtype=int)
    weights = da.full(1000, 0.1, chunks=1, dtype=np.float32)
    result = compute(upsweep.bincount(x, weights, dtype="float32", length=1))
    assert result[0] == np.float32(1000 * np.float64(np.float32(0.1)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_batches_of_counts(axis):
    x = KEYS.reshape(30, 100)
    result = upsweep.bincount(da.from_array(x, chunks=(7, 33)), axis=axis, length=50)
    expected = upsweep.bincount(x, axis=axis, length=50)
    assert result.shape == expected.shape
    assert same_bits(compute(result), expected)


def test_keys_outside():
    x = da.from_array(KEYS, chunks=17)
    counts, dropped = upsweep.bincount(x, length=40, invalid="drop", return_invalid=True)
    assert same_bits(compute(counts), np.bincount(KEYS)[:40])
    assert compute(dropped) == (KEYS >= 40).sum() and dropped.dtype == np.int64
    weights = da.ones((3000, 4), chunks=(100, 2))
    assert compute(upsweep.bincount(x, weights, length=40, invalid="drop", return_invalid=True)[1]) == compute(
        dropped
    )
    with pytest.raises(ValueError, match="outside the 40 bins") as error:
        compute(upsweep.bincount(x, length=40))
    assert any("block" in note for note in error.value.__notes__)


def test_one_task_a_block_and_few_more():
    x = da.zeros(512, chunks=1, dtype=int)
    counts = upsweep.bincount(x, length=1)
    assert len(dict(counts.dask)) - len(dict(x.dask)) <= 1.2 * 512
    assert counts.name == upsweep.bincount(da.zeros(512, chunks=1, dtype=int), length=1).name
    assert counts.name != upsweep.bincount(x, length=2).name


def test_bad_counts():
    x = da.from_array(KEYS, chunks=1000)
    with pytest.raises(TypeError, match="x: Cannot cast keys of dtype float64"):
        upsweep.bincount(x * 1.0)
    with pytest.raises(ValueError, match="length: needed with axis and dask arrays"):
        upsweep.bincount(x.reshape(3, 1000), axis=1)
    with pytest.raises(ValueError, match="out: does not go"):
        upsweep.bincount(x, out=np.zeros(50, int))
    with pytest.raises(ValueError, match="weights: "):
        upsweep.bincount(x, da.zeros(30))
    with pytest.raises(ValueError, match="unknown sizes"):
        upsweep.bincount(x[x > 3])


@pytest.mark.parametrize("chunks", [3000, 17])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_histogram_is_numpys(dtype, chunks):
    x = (random(3000, low=0) * 200).astype(dtype)
    lazy = da.from_array(x, chunks=chunks)
    for bins, limits in ((20, None), (20, (10, 90)), ([0, 1, 50, 120], None), (np.linspace(0, 99, 7), None)):
        for density in (False, True):
            result = upsweep.histogram(lazy, bins, limits, density=density)
            expected = np.histogram(x, bins, limits, density=density)
            for a, b in zip(result, expected):
                assert a.dtype == b.dtype and a.shape == b.shape
                assert same_bits(compute(a), b)


def test_histograms_with_weights_and_axes():
    x, weights = random((30, 100)), random((30, 100), np.float32, seed=1)
    result, _ = upsweep.histogram(da.from_array(x, chunks=(7, 50)), 10, weights=da.from_array(weights, chunks=9))
    assert result.dtype == np.float32
    np.testing.assert_allclose(compute(result), np.histogram(x, 10, weights=weights)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32", "complex64"])
def test_densities_have_the_dtype_that_they_say(dtype):
    x, weights = random(100), np.ones(100, dtype)
    expected, _ = np.histogram(x, 10, weights=weights, density=True)
    result, _ = upsweep.histogram(da.from_array(x, chunks=9), 10, weights=weights, density=True)
    assert result.dtype == result._meta.dtype == compute(result).dtype == expected.dtype


def test_histograms_are_rounded_once():
    x = da.full(1000, 0.5, chunks=1)
    result, _ = upsweep.histogram(x, 1, (0, 1), weights=da.full(1000, 0.1, chunks=1, dtype=np.float32))
    assert result.dtype == np.float32 and compute(result)[0] == np.float32(1000 * np.float64(np.float32(0.1)))


def test_ranges_that_are_none():
    for numbers, bins in ((np.full(100, 3.0), 4), (np.zeros(0), 4)):
        result = upsweep.histogram(da.from_array(numbers, chunks=9), bins)
        for a, b in zip(result, np.histogram(numbers, bins)):
            assert same_bits(compute(a), b)
    x = da.from_array(np.array([1.0, np.nan, 2.0, 3.0]), chunks=1)
    with pytest.raises(ValueError, match="x: autodetected range"):
        compute(upsweep.histogram(x)[0])


def test_bad_histograms():
    x = da.zeros(100, chunks=10)
    with pytest.raises(TypeError, match=r"x: expected real or complex numbers.*datetime64"):
        upsweep.histogram(da.from_array(np.zeros(3, "M8[D]"), chunks=2))
    with pytest.raises(TypeError, match="bins: expected a number or edges in memory"):
        upsweep.histogram(x, "auto")
    for keywords in ({"range": (x.min(), 3)}, {"bins": [0, x.max()]}):
        with pytest.raises(TypeError, match=f"{min(keywords)}: expected numbers in memory for dask arrays"):
            upsweep.histogram(x, **keywords)
    with pytest.raises(ValueError, match="weights: expected x's shape"):
        upsweep.histogram(x, weights=da.zeros(99))
    with pytest.raises(ValueError, match="bins"):
        upsweep.histogram(x, 0)
    with pytest.raises(ValueError, match="device: does not go"):
        upsweep.histogram(x, device="cuda")
