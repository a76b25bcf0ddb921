"""Counts and histograms of dask arrays, against numpy's of the whole."""

import re

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


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("keywords", [{}, {"length": 50}])
def test_the_first_key_outside_is_named_as_numpys(keywords, scheduler):
    keys = KEYS.copy()
    keys[[1234, 1000, 2900]] = 70, -5, -9
    x = da.from_array(keys, chunks=100)
    with pytest.raises(ValueError, match=r"element 1000 is -5") as error:
        upsweep.bincount(x, **keywords).compute(scheduler=scheduler)
    with pytest.raises(ValueError, match=re.escape(str(error.value))):
        upsweep.bincount(keys, **keywords)
    rows = da.from_array(keys.reshape(2, 1500), chunks=(1, 700))
    with pytest.raises(ValueError, match=r"element \((0, 1000|1, 1400)\) is -[59]"):
        upsweep.bincount(rows, axis=1, length=50).compute(scheduler=scheduler)


def test_one_task_a_block_and_few_more():
    x = da.zeros(512, chunks=1, dtype=int)
    counts = upsweep.bincount(x, length=1)
    assert len(dict(counts.dask)) - len(dict(x.dask)) <= 1.2 * 512
    assert counts.name == upsweep.bincount(da.zeros(512, chunks=1, dtype=int), length=1).name
    assert counts.name != upsweep.bincount(x, length=2).name


def test_bad_counts():
    x = da.from_array(KEYS, chunks=1000)
    with pytest.raises(TypeError, match="x: expected keys of integers or bool, got dtype float64"):
        upsweep.bincount(x * 1.0)
    with pytest.raises(ValueError, match="length: needed with axis and dask arrays"):
        upsweep.bincount(x.reshape(3, 1000), axis=1)
    with pytest.raises(ValueError, match="out: does not go"):
        upsweep.bincount(x, out=np.zeros(50, int))
    with pytest.raises(ValueError, match="weights: "):
        upsweep.bincount(x, da.zeros(30))
    with pytest.raises(ValueError, match=r"x: .*unknown sizes.*da\.where\(mask, x, -1\), with invalid='drop'"):
        upsweep.bincount(x[x > 3])
    counts = upsweep.bincount(da.where(x > 3, x, -1), length=50, invalid="drop")
    assert same_bits(compute(counts), np.bincount(KEYS[KEYS > 3], minlength=50))


def test_what_errors_say_of_masked_blocks_leaves_masked_elements_out():
    keys = np.array([3, 1, 2, 1], np.uint8)
    x = da.ma.masked_array(da.from_array(keys, chunks=3), mask=[0, 1, 0, 0])
    for call, keywords, expected in (
        (upsweep.bincount, {"invalid": "drop"}, [0, 1, 1, 1]),
        (upsweep.histogram, {"bins": 4, "range": (0, 4)}, [0, 1, 1, 1]),
    ):
        with pytest.raises(TypeError, match="x: blocks with a mask") as error:
            call(x)
        (code,) = re.findall(r"da\.ma\.filled\(.*-1\)|da\.ma\.filled\(.*nan\)", str(error.value))
        counts = call(eval(code, {"da": da, "np": np, "x": x}), **keywords)
        assert compute(counts[0] if isinstance(counts, tuple) else counts).tolist() == expected
    with pytest.raises(TypeError, match=r"weights: blocks with a mask.*da\.ma\.filled\(weights, 0\)"):
        upsweep.bincount(keys, x)


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


@pytest.mark.parametrize("settings", [{}, {"range": (0, 1)}, {"bins": [0, 0.3, 1]}, {"density": True}])
def test_histograms_after_indexing_with_a_mask(settings):
    x, weights = random((30, 100), low=0), random((30, 100), seed=1, low=0)
    array, summands = (da.from_array(numbers, chunks=(7, 50)) for numbers in (x, weights))
    for mask in (x > 0.4, x[:, 0] > 0.4, x > 2):  # elements, rows, nothing
        lazy = da.from_array(mask, chunks=(7, 50)[: mask.ndim])
        for with_weights in (False, True):
            result = upsweep.histogram(array[lazy], weights=summands[lazy] if with_weights else None, **settings)
            with np.errstate(invalid="ignore"):
                expected = np.histogram(x[mask], weights=weights[mask] if with_weights else None, **settings)
                for one, other in zip(result, expected, strict=True):
                    np.testing.assert_allclose(compute(one), other, rtol=1e-12)


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
    with pytest.raises(TypeError, match=r"bins: expected datetime64"):
        upsweep.histogram(da.from_array(np.zeros(3, "M8[D]"), chunks=2), [0, 1])
    with pytest.raises(TypeError, match=r"bins: expected a number or edges.*a rule; pass a number.*range="):
        upsweep.histogram(x, "auto")
    with pytest.raises(TypeError, match=r"bins: expected a number or edges.*a dask array; compute it"):
        upsweep.histogram(x, da.zeros(3))
    with pytest.raises(TypeError, match=r"x: histc does not take dask arrays; histogram\(x, bins, range="):
        upsweep.histc(x)
    for keywords in ({"range": (x.min(), 3)}, {"bins": [0, x.max()]}):
        with pytest.raises(TypeError, match=f"{min(keywords)}: expected numbers in memory for dask arrays"):
            upsweep.histogram(x, **keywords)
    with pytest.raises(ValueError, match="weights: expected x's shape"):
        upsweep.histogram(x, weights=da.zeros(99))
    y, z = x[x < 1], x.rechunk(9)
    for weights in (np.zeros(100), x, z[z < 1]):
        with pytest.raises(ValueError, match=r"weights: expected the blocks of x.*index both with one mask"):
            upsweep.histogram(y, weights=weights)
    with pytest.raises(ValueError, match=r"weights: expected x's shape \(10,\), got \(6,\)"):
        upsweep.histogram(y, weights=x[da.arange(100, chunks=10) > 3])[0].compute(scheduler="sync")
    with pytest.raises(ValueError, match="bins"):
        upsweep.histogram(x, 0)
    with pytest.raises(ValueError, match="device: does not go"):
        upsweep.histogram(x, device="cuda")
