"""Hazard: sums of weights that depend on threads, lose digits or change their type; density."""

import warnings

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, same_bits


def numpys(*arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.histogram(*arguments, **keywords)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64"])
def test_sums_of_integers_are_exact(dtype):
    generator = np.random.default_rng(0)
    x = generator.random(5000)
    weights = generator.integers(0, 2 if dtype == "bool" else 9, 5000).astype(dtype)
    for n_bins in (3, 100):
        result, expected = upsweep.histogram(x, n_bins, weights=weights)[0], numpys(x, n_bins, weights=weights)[0]
        assert result.dtype == expected.dtype
        if dtype == "bool":
            np.testing.assert_array_equal(result, upsweep.histogram(x, n_bins, weights=weights.astype(int))[0] > 0)
        elif dtype != "int8":
            np.testing.assert_array_equal(result, expected)
    big = np.array([2**62, 1, -(2**61), 3])
    assert upsweep.histogram(np.zeros(4), 1, weights=big)[0].tolist() == [2**62 - 2**61 + 4]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8", "complex64", "complex128"])
@pytest.mark.parametrize("n", [0, 1, 1000, 400_001])
def test_sums_of_floating_weights(dtype, n):
    generator = np.random.default_rng(n)
    x = generator.standard_normal(n).astype(np.float32)
    weights = generator.integers(-4, 5, n).astype(dtype)
    if weights.dtype.kind == "c":
        weights = weights + (1j * generator.integers(-4, 5, n)).astype(dtype)
    for bins, limits in ((50, (-3, 3)), (np.sort(generator.standard_normal(20)), None)):
        result, expected = (f(x, bins, limits, weights=weights)[0] for f in (upsweep.histogram, numpys))
        assert result.dtype == expected.dtype.newbyteorder("=")
        if dtype == "float16":  # numpy's own sum is rounded on the way
            expected = numpys(x, bins, limits, weights=weights.astype(float))[0].astype("f2")
        np.testing.assert_array_equal(result, expected)


def test_sums_that_are_rounded():
    generator = np.random.default_rng(5)
    x, weights = generator.random(300_000), generator.standard_normal(300_000)
    result = upsweep.histogram(x, 64, (0, 1), weights=weights)[0]
    np.testing.assert_allclose(result, np.histogram(x, 64, (0, 1), weights=weights)[0], rtol=0, atol=1e-10)
    singles = upsweep.histogram(x, 64, (0, 1), weights=weights.astype("f4"))[0]
    wide = np.histogram(x, 64, (0, 1), weights=weights.astype("f4").astype(float))[0]
    np.testing.assert_allclose(singles, wide, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("n_bins", [5, 3000, 100_000])
def test_bits_do_not_depend_on_threads(n_bins):
    generator = np.random.default_rng(6)
    x = generator.random(1_000_003, np.float32)
    for weights in (generator.standard_normal(x.size), generator.standard_normal(x.size).astype("c8"), None):
        once = upsweep.histogram(x, n_bins, weights=weights, n_threads=1)[0]
        for n_threads in (2, 3, 8):
            assert same_bits(upsweep.histogram(x, n_bins, weights=weights, n_threads=n_threads)[0], once)


def test_weights_go_with_their_elements_whatever_the_strides():
    generator = np.random.default_rng(7)
    x, weights = generator.random((40, 30, 20)), generator.integers(0, 100, (40, 30, 20)).astype(float)
    for part in (..., (slice(None, None, -1), slice(None, None, 2)), np.s_[:, :, ::-3], 5, np.s_[1, 2, 3:4]):
        a, b = x[part], weights[part]
        for one, other in (
            (a, b), (a.T, b.T), (np.asfortranarray(a), b), (a, b[..., ::-1]), (np.ascontiguousarray(a), b),
            (a, np.broadcast_to(3.0, a.shape)), (a[:1], b[:1]),
        ):  # fmt: skip
            expected = np.histogram(np.array(one), 9, (0.1, 0.9), weights=np.array(other))[0]
            np.testing.assert_array_equal(upsweep.histogram(one, 9, (0.1, 0.9), weights=other)[0], expected)


def test_nan_weights_stay_in_their_bin():
    x, weights = np.array([0.1, 0.6, 0.7, 5.0, np.nan]), np.array([1.0, np.nan, 2.0, np.nan, np.nan])
    np.testing.assert_array_equal(upsweep.histogram(x, [0, 0.5, 0.65, 1], weights=weights)[0], [1.0, np.nan, 2.0])


@pytest.mark.parametrize("bins", [7, [0.0, 0.1, 0.5, 2.0], "auto"])
def test_density(bins):
    x = np.random.default_rng(8).random(500)
    result, expected = upsweep.histogram(x, bins, density=True)[0], np.histogram(x, bins, density=True)[0]
    assert same_bits(result, expected)
    if bins != "auto":
        weights = np.arange(500.0)
        result = upsweep.histogram(x, bins, weights=weights, density=True)[0]
        np.testing.assert_allclose(result, np.histogram(x, bins, weights=weights, density=True)[0], rtol=1e-14)


def test_weights_of_bfloat16():
    weights = np.array([1, 2, 3, 4]).astype(BFLOAT16)
    counts = upsweep.histogram([0.0, 1.0, 2.0, 3.0], 2, weights=weights)[0]
    assert counts.dtype == BFLOAT16 and counts.astype(float).tolist() == [3.0, 7.0]
