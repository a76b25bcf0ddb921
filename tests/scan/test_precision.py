"""Hazard: rounding. Half a unit in the last place of the result, and next to nothing of what was added up."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, DTYPES, check, dtype_name, random, sequential, wide
from upsweep import reference
from upsweep.testing import assert_scan_close


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_the_promise_on_thousands_of_steps(dtype):
    x = random((4, 4000), dtype)
    gates = random((4, 4000), dtype, 1, 0.6, 0.7) if dtype.kind == "c" else random((4, 4000), dtype, 1, 0.95, 1.0)
    check("cumulative_sum", x)
    check("discounted_cumsum", x, 0.999)
    check("linear_recurrence", gates, x, reverse=True)


def test_ones_at_the_published_gammas():
    for gamma, bound in [(0.99, 4e-6), (0.9999, 3e-4)]:
        exact = sequential(np.full(10_000, gamma), np.ones(10_000))
        for x in (np.ones(10_000, np.float32), np.ones((2, 10_000), np.float32)):
            for y in (
                upsweep.discounted_cumsum_left(x, gamma),
                upsweep.discounted_cumsum_right(x, gamma)[..., ::-1],
            ):
                assert np.abs(y - exact).max() <= bound


@pytest.mark.parametrize("length", [5_000, 100_000])
def test_a_large_first_value_keeps_its_reach(length):
    x = np.full(length, 1e-6, np.float32)
    x[0] = 1e10
    exact = sequential(np.full(length, 0.999), x)
    for y in (
        upsweep.discounted_cumsum(x, 0.999),
        upsweep.discounted_cumsum(x[::-1], 0.999, reverse=True)[::-1],
    ):
        np.testing.assert_allclose(y, exact, rtol=1e-7)


def test_gamma_is_not_rounded_to_the_dtype_of_x():
    x = np.ones((2, 3000), np.float32)
    exact = sequential(np.full(3000, 0.9999), x[0])
    step = np.full((1, 3000), 0.9999)
    for gamma in (
        0.9999,
        np.float64(0.9999),
        np.array(0.9999),
        np.full((2, 1), 0.9999),
        step,
        np.full((2, 3000), 0.9999),
    ):
        for dtype in (np.float32, np.float16):
            y = upsweep.discounted_cumsum(x.astype(dtype), gamma)
            assert_scan_close(y, np.stack([exact, exact]), exact)


def test_initial_is_not_rounded_to_the_dtype_of_x():
    y, final = upsweep.discounted_cumsum(np.zeros(1, np.float32), 1.0, initial=0.1, return_final=True)
    assert y[0] == final == np.float32(0.1)
    # 1 + 2^-30 rounds to 1 in float32; what is left of it after 1 is taken away does not.
    y = upsweep.discounted_cumsum(np.array([-1.0], np.float32), 1.0, initial=1 + 2.0**-30)
    assert y[0] == np.float32(2.0**-30)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16], ids=dtype_name)
def test_half_precision_rounds_once(dtype):
    # Ones that are added in float16 stop growing at 2048 (bfloat16: at 256), as do thousands of small steps.
    y = wide(upsweep.cumulative_sum(np.ones(5000, dtype)))
    np.testing.assert_array_equal(y, wide(np.arange(1.0, 5001.0).astype(dtype)))
    x = np.full(3000, 0.1, dtype)
    y = upsweep.discounted_cumsum(x, 0.999)
    exact = sequential(np.full(3000, 0.999), wide(x))
    assert_scan_close(y, exact, exact)


def test_halfway_cases_round_to_even():
    x = np.array([[2048, 1], [2050, 1], [2048, 3]], np.float16)
    np.testing.assert_array_equal(upsweep.cumulative_sum(x)[:, 1], [2048, 2052, 2052])
    x = np.array([[2.0**24, 1], [2.0**24 + 2, 1]], np.float32)
    np.testing.assert_array_equal(upsweep.cumulative_sum(x)[:, 1], [2.0**24, 2.0**24 + 4])


def test_every_float16_and_bfloat16_passes_unchanged():
    for dtype in (np.dtype("float16"), BFLOAT16):
        x = np.arange(65536, dtype=np.uint16).view(dtype).reshape(65536, 1)
        number = ~np.isnan(wide(x))
        y = upsweep.cumulative_sum(x)
        np.testing.assert_array_equal(wide(y)[number], wide(x)[number])
        np.testing.assert_array_equal(np.isnan(wide(y)), ~number)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16], ids=dtype_name)
def test_every_store_is_rounded_to_nearest_even(dtype):
    # The state is exact here: float32 holds any sum of two of these numbers.
    x = np.stack([random(20_000, dtype, 1, 1.0, 2.0), random(20_000, dtype, 2, 0.0, 1.0)])
    y = upsweep.cumulative_sum(x, axis=0)[1]
    exact = wide(x).sum(axis=0).astype(np.float32).astype(dtype)
    np.testing.assert_array_equal(wide(y), wide(exact))


def test_cancellation_is_measured_against_the_sum_of_sizes():
    x = np.array([1e16, 1.0, -1e16, 1.0] * 200)
    exact = reference.cumulative_sum(x, precision="extended")
    assert_scan_close(upsweep.cumulative_sum(x), exact, np.cumsum(np.abs(x)))


def test_the_assertion_itself_can_fail():
    exact = np.array([1.0, 100.0])
    assert_scan_close(exact.astype(np.float32), exact, exact)
    for wrong in ([1.0, 100.00001], [np.nan, 100], [np.inf, 100], [1.0000002, 100]):
        with pytest.raises(AssertionError):
            assert_scan_close(np.array(wrong, np.float32), exact, exact)
    with pytest.raises(AssertionError):
        assert_scan_close(np.ones(2, np.float32), np.full(2, np.nan), exact)
    with pytest.raises(AssertionError):
        assert_scan_close(np.ones(3, np.float32), exact, exact)
    with pytest.raises(AssertionError):
        assert_scan_close(np.full(2, 1 + 2j, np.complex64), np.full(2, 1 + 2.000001j), 1.0)
    with pytest.raises(AssertionError):
        assert_scan_close(np.array([1, 2]), np.array([1, 3]), 1.0)
    assert_scan_close(np.array([np.inf, 65504], np.float16), np.array([65520.0, 65519.0]), 1.0)
    with pytest.raises(AssertionError):
        assert_scan_close(np.array([np.inf], np.float16), np.array([65500.0]), 1.0)
