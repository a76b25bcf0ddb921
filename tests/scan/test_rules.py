"""The rules where two readers might differ: each is one test, under the name of the rule."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, SCANS, check, operands, random, same_bits, sequential, wide
from upsweep.testing import assert_scan_close


def test_rounding_promise_is_half_a_unit_plus_a_share_of_the_sum_of_sizes():
    for dtype in ("float16", BFLOAT16, "float32"):
        x = random(3000, dtype)
        y = upsweep.discounted_cumsum(x, 0.99)
        gamma = np.full(3000, 0.99)
        assert_scan_close(y, sequential(gamma, wide(x)), sequential(gamma, np.abs(wide(x))))


def test_a_store_that_overflows_does_not_poison_the_state():
    y = upsweep.cumulative_sum(np.array([60000, 60000, -60000, 1], np.float16))
    np.testing.assert_array_equal(y, np.array([60000, np.inf, 60000, 60000], np.float16))


def test_with_initial_none_y_at_the_first_step_is_x_and_the_first_gate_is_not_read():
    for first in (np.nan, np.inf, 0.0):
        y = upsweep.linear_recurrence([first, 2.0], [np.inf if first == 0 else 3.0, 1.0])
        assert y[0] == (np.inf if first == 0 else 3.0)
    assert np.signbit(upsweep.linear_recurrence([0.0], [-0.0])[0])
    assert upsweep.discounted_cumsum([5.0], np.nan)[0] == 5


def test_reset_drops_the_state_entering_a_step_in_scan_order():
    reset = np.array([False, False, True, False])
    np.testing.assert_array_equal(upsweep.cumulative_sum([1.0, 2, 4, 8], reset=reset), [1, 3, 4, 12])
    np.testing.assert_array_equal(upsweep.cumulative_sum([1.0, 2, 4, 8], reset=reset, reverse=True), [7, 6, 4, 8])


def test_reset_at_the_first_step_drops_initial_too():
    y = upsweep.cumulative_sum([1.0, 2.0], initial=100.0, reset=[True, False])
    np.testing.assert_array_equal(y, [1, 3])


def test_reset_is_a_select_never_a_multiplication_by_zero():
    y = upsweep.discounted_cumsum([np.nan, np.inf, 1.0, 1.0], 0.5, reset=[False, False, True, False])
    np.testing.assert_array_equal(y[2:], [1, 1.5])
    y = upsweep.linear_recurrence([1.0, np.nan], [np.nan, 2.0], reset=[False, True])
    assert y[1] == 2


def test_blocks_that_are_not_finite_are_scanned_again_from_their_true_carry():
    length = 200_000
    for gate in (2.0, 0.5, 1e-200, 1e200):
        gates, tokens = np.full(length, gate), np.zeros(length)
        tokens[[10, 100_000]] = 1e-3, -1e-3
        expected = sequential(gates, tokens)
        expected[np.abs(expected) < np.finfo(float).smallest_normal] = 0
        np.testing.assert_array_equal(upsweep.linear_recurrence(gates, tokens), expected)


def test_gamma_broadcasts_against_x_as_numpy_does():
    x = random((3, 3))
    row, channel = np.array([[0.1], [0.5], [0.9]]), np.array([0.1, 0.5, 0.9])
    check("discounted_cumsum", x, row)
    check("discounted_cumsum", x, channel)
    assert not np.allclose(upsweep.discounted_cumsum(x, row), upsweep.discounted_cumsum(x, channel))
    assert upsweep.discounted_cumsum(np.ones(5), row).shape == (3, 5)


@pytest.mark.parametrize("name", ["discounted_cumsum_left", "discounted_cumsum_right"])
def test_a_one_dimensional_gamma_of_rows_length_is_per_row_in_left_and_right(name):
    x, gamma = random((3, 3)), np.array([0.1, 0.5, 0.9])
    y = getattr(upsweep, name)(x, gamma)
    for row in range(3):
        np.testing.assert_allclose(y[row], getattr(upsweep, name)(x[row], gamma[row]), rtol=1e-14)


def test_the_result_dtype_is_xs_and_gamma_and_initial_never_widen_it():
    x = np.ones((2, 5), np.float32)
    assert upsweep.discounted_cumsum(x, np.full((2, 1), 0.5)).dtype == np.float32
    assert upsweep.discounted_cumsum(x, 0.5, initial=np.ones(2)).dtype == np.float32
    assert upsweep.linear_recurrence(x, np.ones(5)).dtype == np.float64


def test_complex_gamma_on_real_x_gives_complex():
    y = upsweep.discounted_cumsum(np.ones(3, np.float32), 1j)
    assert y.dtype == np.complex64
    np.testing.assert_array_equal(y, [1, 1 + 1j, 1j])


def test_integers_give_float64():
    assert upsweep.discounted_cumsum(np.arange(3, dtype=np.int8), np.float32(0.5)).dtype == np.float64
    assert upsweep.linear_recurrence(np.ones(3, bool), np.ones(3, np.uint8)).dtype == np.float64


def test_axis_is_normalised_after_all_arrays_are_broadcast_together():
    y = upsweep.linear_recurrence(np.ones(4), np.ones((2, 3, 4)), axis=0)
    np.testing.assert_array_equal(y[:, 0, 0], [1, 2])
    y = upsweep.discounted_cumsum(np.ones(3), np.full((2, 1), 1.0), axis=1)
    np.testing.assert_array_equal(y, [[1, 2, 3]] * 2)
    y = upsweep.cumulative_sum(np.ones(3), reset=np.array([[False], [True]]), axis=1)
    np.testing.assert_array_equal(y, [[1, 2, 3], [1, 1, 1]])


def test_the_state_has_the_results_shape_without_axis():
    _, final = upsweep.discounted_cumsum(np.ones((2, 3, 4)), 0.5, axis=1, return_final=True)
    assert final.shape == (2, 4)
    with pytest.raises(ValueError, match="initial"):
        upsweep.discounted_cumsum(np.ones((2, 3, 4)), 0.5, axis=1, initial=np.ones((2, 1, 4)))


def test_the_state_of_half_precision_is_float32():
    for dtype in ("float16", BFLOAT16):
        assert upsweep.cumulative_sum(np.ones(3, dtype), return_final=True)[1].dtype == np.float32


def test_return_final_in_reverse_is_at_the_start_and_at_length_zero_is_initial():
    y, final = upsweep.cumulative_sum([1.0, 2.0], reverse=True, return_final=True)
    assert final == y[0] == 3
    assert upsweep.cumulative_sum(np.ones(0), initial=7.0, return_final=True)[1] == 7
    assert upsweep.cumulative_sum(np.ones(0), return_final=True)[1] == 0


def test_window_is_counted_in_scan_order_and_stops_at_resets():
    x = np.array([1.0, 2, 4, 8])
    np.testing.assert_array_equal(upsweep.discounted_cumsum(x, 1.0, window=2), [1, 3, 6, 12])
    np.testing.assert_array_equal(upsweep.discounted_cumsum(x, 1.0, window=2, reverse=True), [3, 6, 12, 8])
    reset = np.array([False, False, True, False])
    np.testing.assert_array_equal(upsweep.discounted_cumsum(x, 1.0, window=2, reset=reset), [1, 3, 4, 12])


def test_a_nan_leaves_the_window():
    y = upsweep.discounted_cumsum([np.nan, 1.0, 1.0, 1.0], 1.0, window=2)
    np.testing.assert_array_equal(y, [np.nan, np.nan, 2, 2])


def test_window_excludes_initial_return_final_and_a_gamma_that_varies():
    for keywords in ({"initial": 1.0}, {"return_final": True}):
        with pytest.raises(ValueError, match="window"):
            upsweep.discounted_cumsum(np.ones(3), 0.5, window=2, **keywords)
    with pytest.raises(ValueError, match="gamma"):
        upsweep.discounted_cumsum(np.ones(3), [0.1, 0.2, 0.3], window=2)


@pytest.mark.parametrize("name", SCANS)
def test_out_is_overwritten_and_an_error_leaves_it_untouched(name):
    arrays, out = operands(name, 9), np.full(9, np.nan)
    with pytest.raises(ValueError, match="initial"):
        getattr(upsweep, name)(*arrays, out=out, initial=np.ones(2))
    assert np.isnan(out).all()
    getattr(upsweep, name)(*arrays, out=out)
    assert not np.isnan(out).any()


def test_flush_to_zero_holds_inside_discounted_and_gated_scans_only():
    x = np.full(9, 5e-324)
    assert same_bits(upsweep.cumulative_sum(x), np.cumsum(x))
    assert same_bits(upsweep.bincount(np.zeros(9, int), x), np.bincount(np.zeros(9, int), x))
    assert not upsweep.discounted_cumsum(x, 1.0).any()
    assert not upsweep.linear_recurrence(np.ones(9), x).any()


def test_the_same_bits_over_threads_and_runs():
    x = random((1, 300_000), np.float32)
    first = upsweep.discounted_cumsum(x, 0.999, n_threads=1)
    assert all(same_bits(upsweep.discounted_cumsum(x, 0.999, n_threads=n), first) for n in (1, 2, 3, 2, 1))


def test_bincount_of_numpy_arrays_gives_intp_counts_and_float64_sums():
    assert upsweep.bincount(np.array([1, 2], np.uint8)).dtype == np.intp
    for dtype in ("float16", "float32", "float64", "int8", "bool"):
        assert upsweep.bincount(np.array([1, 2]), np.ones(2, dtype)).dtype == np.float64


def test_bincount_of_nothing_gives_int64():
    for x in ([], np.empty(0, np.uint8)):
        y = upsweep.bincount(x)
        assert y.dtype == np.int64 and y.shape == (0,)


def test_bincount_length_below_minlength_raises():
    with pytest.raises(ValueError, match="length"):
        upsweep.bincount(np.array([1]), minlength=5, length=4)


def test_bincount_float_weights_are_numpys_bits_below_2_to_17_keys_or_where_sums_are_exact():
    generator = np.random.default_rng(0)
    keys, weights = generator.integers(0, 50, 2**17 - 1), generator.random(2**17 - 1)
    assert same_bits(upsweep.bincount(keys, weights), np.bincount(keys, weights))
    keys, weights = generator.integers(0, 50, 400_000), generator.integers(0, 9, 400_000).astype(float)
    assert same_bits(upsweep.bincount(keys, weights), np.bincount(keys, weights))
