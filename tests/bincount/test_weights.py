"""Hazard: weights. Several, complex and integer ones; order, rounding and overflow."""

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits
from upsweep import reference

MANY_BINS = [40, 5000, 40_000, 70_000, 300_000, 5_000_000]  # on either side of each way's limits


def keys_of(n, n_bins, seed=0):
    return np.random.default_rng(seed).integers(0, n_bins, n)


@pytest.mark.parametrize("n_bins", MANY_BINS)
@pytest.mark.parametrize("dtype", ["float32", "float64", ">f8", "int8", "uint64", "float16"])
def test_sums_that_are_exact_are_numpys(n_bins, dtype):
    keys = keys_of(700_000, n_bins)
    keys[:200_000] = keys[0]
    weights = (keys_of(700_000, 9, 1)).astype(dtype)
    expected = np.bincount(keys, weights.astype(np.float64))
    for n_threads in (1, 2, 3):
        for step in (1, -1):
            result = upsweep.bincount(keys[::step], weights[::step], n_threads=n_threads)
            assert same_bits(result, expected)


@pytest.mark.parametrize("n", [1, 4096, 4097, 65_537, 2**17 - 1, 2**17])
def test_numpys_own_bits_below_a_chunk(n):
    for n_bins in (3, 1000, 80_000):
        keys, weights = keys_of(n, n_bins), np.random.default_rng(2).standard_normal(n)
        assert same_bits(upsweep.bincount(keys, weights), np.bincount(keys, weights))
        narrow = weights.astype(np.float32)
        assert same_bits(upsweep.bincount(keys, narrow), np.bincount(keys, narrow))


@pytest.mark.parametrize("pattern", ["uniform", "sorted", "one heavy bin"])
def test_numpys_own_bits_in_more_bins_than_the_cache(pattern):
    keys, weights = keys_of(900_000, 600_000), np.random.default_rng(2).standard_normal(900_000)
    if pattern == "sorted":
        keys.sort()
    elif pattern == "one heavy bin":
        keys[::2] = 555_555
    expected = np.bincount(keys, weights)
    for n_threads in (1, 2, 3):
        assert same_bits(upsweep.bincount(keys, weights, n_threads=n_threads), expected)


@pytest.mark.parametrize("n_bins", MANY_BINS)
def test_the_same_bits_for_any_number_of_threads(n_bins):
    keys, weights = keys_of(1_500_000, n_bins), np.random.default_rng(2).standard_normal(1_500_000)
    one = upsweep.bincount(keys, weights, n_threads=1)
    for n_threads in (2, 3, 7):
        assert same_bits(upsweep.bincount(keys, weights, n_threads=n_threads), one)


@pytest.mark.parametrize("n_bins", [7, 40_000, 300_000])
@pytest.mark.parametrize("n", [0, 1, 5000, 400_000])
def test_several_sums(n, n_bins):
    keys = keys_of(n, n_bins)
    weights = np.random.default_rng(1).integers(-9, 9, (n, 3)).astype(np.float32)
    layouts = [weights, np.asfortranarray(weights), weights[:, ::-1], weights.astype(">f8"), weights[:, :1]]
    for operand in layouts:
        result = upsweep.bincount(keys, operand, length=n_bins)
        assert result.shape == (n_bins, operand.shape[1])
        for k in range(operand.shape[1]):
            np.testing.assert_array_equal(result[:, k], np.bincount(keys, operand[:, k], n_bins))


@pytest.mark.parametrize("k", [0, 1, 2, 1500, 70_000])
def test_numbers_of_sums(k):
    keys, weights = keys_of(300, 4), np.random.default_rng(1).integers(-9, 9, (300, k))
    result = upsweep.bincount(keys, weights)
    expected = np.zeros((4, k))
    np.add.at(expected, keys, weights)
    assert result.shape == expected.shape and result.dtype == np.float64
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", ">c8", ">c16"])
@pytest.mark.parametrize("n_bins", [7, 40_000, 300_000])
def test_complex_weights(n_bins, dtype):
    keys = keys_of(400_000, n_bins)
    parts = np.random.default_rng(1).integers(-9, 9, (2, 400_000, 2)).astype(np.float64)
    weights = (parts[0] + 1j * parts[1]).astype(dtype)
    for operand in (weights[:, 0], weights, weights[:, ::-1], weights[::-1, 0][::-1]):
        result = upsweep.bincount(keys, operand, length=n_bins)
        assert result.dtype == np.complex128
        for k, column in enumerate(operand.reshape(400_000, -1).T):
            expected = np.bincount(keys, column.real, n_bins) + 1j * np.bincount(keys, column.imag, n_bins)
            np.testing.assert_array_equal(result.reshape(n_bins, -1)[:, k], expected)
    short = upsweep.bincount(keys[:9], weights[:9, 0], dtype=np.complex64)
    assert short.dtype == np.complex64
    with pytest.raises(TypeError, match=r"dtype: .*imaginary"):
        upsweep.bincount(keys, weights, dtype=np.float64)


@pytest.mark.parametrize("n_bins", MANY_BINS)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", ">i8", "bool"])
def test_integer_weights_are_summed_exactly(n_bins, dtype):
    keys = keys_of(400_000, n_bins)
    keys[::3] = 1  # sums beyond 2**53 there
    weights = (np.random.default_rng(1).integers(0, 2**30, 400_000) << (25 if "8" in dtype else 0)).astype(dtype)
    if "64" in dtype:
        weights = weights << 8  # and beyond 2**64: they wrap around
    expected = np.zeros(n_bins, np.int64)
    with np.errstate(over="ignore"):
        np.add.at(expected, keys, weights.astype(np.int64))
    for n_threads in (1, 3):
        result = upsweep.bincount(keys, weights, length=n_bins, dtype=np.int64, n_threads=n_threads)
        assert same_bits(result, expected)
    unsigned = upsweep.bincount(keys, weights, length=n_bins, dtype=np.uint64)
    assert same_bits(unsigned, expected.view(np.uint64))
    narrow = upsweep.bincount(keys, weights, length=n_bins, dtype=np.int16)
    assert same_bits(narrow, expected.astype(np.int16))


def test_without_dtype_integer_weights_are_summed_in_float64():
    result = upsweep.bincount([0, 0, 0], [2**53, 1, 1])
    assert same_bits(result, np.bincount([0, 0, 0], [2**53, 1, 1]))
    assert upsweep.bincount([0, 0, 0], [2**53, 1, 1], dtype=np.int64)[0] == 2**53 + 2


def test_float32_results_are_rounded_once():
    keys, weights = np.zeros(20_000_000, np.uint8), np.ones(20_000_000, np.float32)
    assert upsweep.bincount(keys, weights, dtype=np.float32)[0] == 20_000_000  # in float32 it would stay at 2**24


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_bin(value):
    for n, n_bins in ((100, 10), (300_000, 10), (600_000, 300_000)):
        keys, weights = keys_of(n, n_bins), np.ones(n)
        weights[n // 2] = value
        result, expected = upsweep.bincount(keys, weights), np.bincount(keys, weights)
        np.testing.assert_array_equal(result, expected)


def test_a_key_without_weight_still_has_a_bin():
    keys = np.zeros(400_000, np.int64)
    keys[123_456] = 900
    assert upsweep.bincount(keys, np.zeros(400_000)).size == 901
    assert upsweep.bincount(keys, np.zeros((400_000, 2))).shape == (901, 2)


def test_accumulated_sums():
    keys = keys_of(300_000, 20)
    weights = np.random.default_rng(1).integers(-9, 9, (300_000, 2))
    for operand in (weights[:, 0], weights, weights[:, 0] * 1j):
        once = upsweep.bincount(keys, operand)
        out = np.zeros_like(once)
        for part in np.array_split(np.arange(300_000), 7):
            upsweep.bincount(keys[part], operand[part], out=out, accumulate=True)
        np.testing.assert_array_equal(out, once)


@pytest.mark.parametrize("dtype, eps", [("float16", 2.0**-10), ("float32", 2.0**-23), ("complex64", 2.0**-23)])
def test_what_is_added_to_short_numbers_is_rounded_once(dtype, eps):
    out = np.ones((2, 2), dtype)[:, 0]
    upsweep.bincount([0, 0], [eps / 2, eps**2 / 4], out=out, dtype=dtype, accumulate=True)
    assert out.tolist() == [1 + eps, 1]  # the sum alone is rounded to half an eps, which is lost
    out[...] = 1
    n = int(2 / eps) + 1  # alone it is rounded to n - 1
    upsweep.bincount(np.broadcast_to(np.int8(0), n), out=out, dtype=dtype, accumulate=True)
    assert out.tolist() == [n + 1, 1]


def test_weights_of_another_shape_are_refused():
    for shape in ((2,), (4,), (1, 3), (3, 2, 2), ()):
        with pytest.raises(ValueError, match=r"^weights: expected x's shape \(3,\), or"):
            upsweep.bincount([1, 2, 3], np.ones(shape))
    with pytest.raises(ValueError, match=r"^weights: "):
        upsweep.bincount([[1, 2, 3]], np.ones(3), axis=1)


def test_the_twin_agrees_on_small_calls():
    keys = keys_of(50, 6)
    for weights in (np.arange(50), np.arange(100.0).reshape(50, 2), 1j * np.arange(50)):
        assert same_bits(upsweep.bincount(keys, weights), reference.bincount(keys, weights))
    exact = upsweep.bincount(keys, np.arange(50), dtype=np.int64)
    assert same_bits(exact, reference.bincount(keys, np.arange(50), dtype=np.int64))


@pytest.mark.parametrize("axis", [-2, -1, 0, 1])
def test_rows_of_weights_along_any_axis(axis):
    """The reference implementation counts the axis among those of x, and so do the kernels."""
    keys = np.random.default_rng(0).integers(0, 4, (5, 6))
    weights = random((5, 6, 3))
    expected = np.zeros((6, 4, 3) if axis % 2 == 0 else (5, 4, 3))
    for row, column in np.ndindex(keys.shape):
        expected[column if axis % 2 == 0 else row, keys[row, column]] += weights[row, column]
    expected = np.moveaxis(expected, 1, axis % 2)
    for function in (upsweep.bincount, reference.bincount):
        np.testing.assert_allclose(function(keys, weights, axis=axis), expected, rtol=1e-13)
