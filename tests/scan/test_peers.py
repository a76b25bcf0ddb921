"""Hazard: what others fell into, and what they publish: tables, names and traps of the projects we follow."""

import numpy as np
import pytest
import upsweep
from helpers import random, sequential
from scipy.signal import lfilter


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-11)])
def test_lfilter(dtype, tolerance):
    for shape, axis in [((1000,), 0), ((7, 1000), 1), ((1000, 7), 0), ((3, 400, 5), 1)]:
        x = random(shape, dtype)
        for gamma in (0.5, 0.99, 1.0, -0.9):
            y = upsweep.discounted_cumsum(x, gamma, axis=axis)
            np.testing.assert_allclose(
                y, lfilter([1.0], [1.0, -gamma], x, axis=axis), rtol=tolerance, atol=tolerance * 20
            )


@pytest.mark.parametrize("dtype", ["float64", "int64", "int8", "bool", "complex128", "uint32"])
def test_np_cumsum_where_sums_are_exact(dtype):
    x = np.random.default_rng(0).integers(0, 2, (60, 70, 5)).astype(dtype)
    for axis in range(3):
        y, expected = upsweep.cumulative_sum(x, axis=axis), np.cumsum(x, axis=axis)
        assert y.dtype == expected.dtype and y.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_np_cumsum_of_negative_zeros():
    x = np.full((2, 40), -0.0)
    assert upsweep.cumulative_sum(x).tobytes() == np.cumsum(x, axis=1).tobytes()


def test_torch_discounted_cumsum_precision_table():
    # Its README: ones, N=10000, gamma=0.99, float32: sequential 2.8e-4, parallel 9.9e-5.
    y = upsweep.discounted_cumsum_right(np.ones((1, 10_000), np.float32), 0.99)
    exact = sequential(np.full(10_000, 0.99), np.ones(10_000))[::-1]
    assert np.abs(y[0] - exact).max() <= 4e-6


def test_torch_discounted_cumsum_directions_and_gamma_per_row():
    x = np.arange(1.0, 7.0).reshape(2, 3)
    gamma = np.array([0.5, 0.1])
    np.testing.assert_allclose(upsweep.discounted_cumsum_right(x, gamma), [[2.75, 3.5, 3], [4.56, 5.6, 6]])
    np.testing.assert_allclose(upsweep.discounted_cumsum_left(x, gamma), [[1, 2.5, 4.25], [4, 5.4, 6.54]])


def test_one_gamma_in_an_array_for_several_rows():
    # One element of gamma with several rows was read past its end.
    x = random((50, 9))
    for gamma in (np.array([0.5]), [0.5], 0.5):
        np.testing.assert_array_equal(
            upsweep.discounted_cumsum_right(x, gamma), upsweep.discounted_cumsum_right(x, 0.5)
        )


def test_more_rows_than_65535():
    x = np.ones((65_537, 2), np.float32)
    assert (upsweep.discounted_cumsum_right(x, 0.5) == [1.5, 1.0]).all()
    assert (upsweep.discounted_cumsum(x, np.full((65_537, 1), 0.5)) == [1.0, 1.5]).all()


def test_fpscan_names():
    gates, tokens = random((2, 3, 1000), np.float32, 1), random((2, 3, 1000), np.float32, 2)
    expected = upsweep.linear_recurrence(gates, tokens)
    assert upsweep.pscan(gates, tokens).tobytes() == expected.tobytes()
    assert upsweep.scan_forward(gates, tokens).tobytes() == expected.tobytes()
    out = np.full_like(tokens, np.nan)
    assert upsweep.scan_forward(gates, tokens, True, out) is out
    assert out.tobytes() == upsweep.linear_recurrence(gates, tokens, reverse=True).tobytes()


def test_lengths_that_are_no_power_of_two_and_above_65536():
    for length in (6, 1000, 65_535, 65_537, 100_003):
        gates, tokens = random((1, length), seed=1), random((1, length), seed=2)
        y = upsweep.pscan(gates, tokens)
        np.testing.assert_allclose(y[0], sequential(gates[0], tokens[0]), rtol=1e-9, atol=1e-12)


def test_gates_are_compared_with_tokens_and_out_with_both():
    with pytest.raises(ValueError, match="gates"):
        upsweep.pscan(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(ValueError, match="out"):
        upsweep.scan_forward(np.ones((2, 3)), np.ones((2, 3)), out=np.empty((2, 2)))


def test_reverse_does_not_commute():
    gates, tokens = np.array([2.0, 3.0, 5.0]), np.array([1.0, 10.0, 100.0])
    np.testing.assert_array_equal(upsweep.linear_recurrence(gates, tokens, reverse=True), [621, 310, 100])


def test_a_large_first_value_and_growing_gates():
    x = np.full(20_000, 1e-6, np.float32)
    x[0] = 1e10
    y = upsweep.discounted_cumsum(x, 0.999)
    np.testing.assert_allclose(y, lfilter([1.0], [1.0, -0.999], x.astype(float)), rtol=1e-7)
    assert not upsweep.linear_recurrence(np.full(1100, 2.0, np.float32), np.zeros(1100, np.float32)).any()


def test_bincount_keys_that_crashed_numpy():
    with pytest.raises((ValueError, MemoryError, OverflowError)):
        upsweep.bincount(np.array([2**63 - 1]))
    with pytest.raises((ValueError, MemoryError, OverflowError)):
        upsweep.bincount(np.array([2**64 - 1], np.uint64))
    np.testing.assert_array_equal(upsweep.bincount(np.array([2, 0], np.uint64)), [1, 0, 1])


def test_bincount_float32_weights_go_on_growing_at_16777216():
    weights = np.ones(2**24 + 10, np.float32)
    assert upsweep.bincount(np.zeros(2**24 + 10, np.uint8), weights)[0] == 2**24 + 10


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
)
def test_bincount_keys_of_every_dtype_read_only_and_strided(dtype):
    keys = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, 3000).astype(dtype)
    expected = np.bincount(keys[::3].astype(np.intp))
    keys.flags.writeable = False
    np.testing.assert_array_equal(upsweep.bincount(keys[::3]), expected)
    np.testing.assert_array_equal(
        upsweep.bincount(keys[::-1][2::3][::-1]), np.bincount(keys[::-1][2::3].astype(np.intp))
    )


@pytest.mark.parametrize("n_bins", [1, 255, 6142, 6143, 70_000])
def test_bincount_around_other_peoples_cliffs(n_bins):
    keys = np.random.default_rng(0).integers(0, n_bins, 50_000)
    np.testing.assert_array_equal(upsweep.bincount(keys, minlength=n_bins), np.bincount(keys, minlength=n_bins))
