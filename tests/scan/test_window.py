"""Hazard: windowed sums, computed from at most `window` elements and never as a difference."""

import time

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, check, dtype_name, random, same_bits, sequential


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_against_the_twin(dtype, reverse):
    for window in (1, 2, 3, 8, 17, 64, 99, 100, 101, 10**12):
        check("discounted_cumsum", random((2, 100), dtype), 0.9, window=window, reverse=reverse)
    for window in (1, 5, 16, 40):
        check("discounted_cumsum", random((40, 5), dtype), 0.9, axis=0, window=window, reverse=reverse)
        check("discounted_cumsum", random((2, 30, 3), dtype), -1.1, axis=1, window=window, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_blocks_of_vectors_and_their_rests(dtype, reverse):
    for length in (255, 256, 331):
        x = random((2, length), dtype, seed=length)
        for window in (*range(22, 35), 63, 64, 71, 128, 130, 255, 330):
            check("discounted_cumsum", x, -0.99, window=window, reverse=reverse)
            in_place = x.copy()
            upsweep.discounted_cumsum(in_place, -0.99, window=window, reverse=reverse, out=in_place)
            assert same_bits(in_place, upsweep.discounted_cumsum(x, -0.99, window=window, reverse=reverse))


@pytest.mark.parametrize("window", [30, 100, 1001, 40_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_bit_depends_on_the_number_of_threads_or_on_where_it_is_written(dtype, window):
    x = random(600_000, dtype)
    x[[1000, 1020, 250_000]] = np.inf, np.nan, -np.inf
    if dtype == "float64":
        x[400_000:400_010] = 1e307
    y = upsweep.discounted_cumsum(x, 0.999, window=window, n_threads=1)
    for n_threads in (2, 3):
        assert same_bits(upsweep.discounted_cumsum(x, 0.999, window=window, n_threads=n_threads), y)
    in_place = x.copy()
    upsweep.discounted_cumsum(in_place, 0.999, window=window, out=in_place)
    assert same_bits(in_place, y)


@pytest.mark.parametrize("window", [1, 4, 7, 30])
def test_resets_cut_windows(window):
    for shape, axis in [((90,), 0), ((3, 90), 1), ((90, 3), 0)]:
        reset = np.random.default_rng(2).random(shape) < 0.1
        for reverse in (False, True):
            check(
                "discounted_cumsum",
                random(shape),
                0.8,
                axis=axis,
                window=window,
                reset=reset,
                reverse=reverse,
            )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("window", [1, 2, 7, 64, 90, 200])
def test_resets_cut_windows_of_columns(window, dtype, reverse):
    rng = np.random.default_rng(window)
    x = random((180, 71), dtype, seed=window)
    for reset in (rng.random(x.shape) < 0.03, rng.random((180, 1)) < 0.03, np.zeros(x.shape, bool)):
        check("discounted_cumsum", x, -0.9, axis=0, window=window, reset=reset, reverse=reverse)
    reset = rng.random(x.shape) < 0.03
    y = upsweep.discounted_cumsum(x, 0.9, axis=0, window=window, reset=reset, reverse=reverse)
    in_place = x.copy()
    upsweep.discounted_cumsum(in_place, 0.9, axis=0, window=window, reset=reset, reverse=reverse, out=in_place)
    np.testing.assert_allclose(in_place, y, rtol=1e-3 if dtype == "float16" else 1e-6)
    # A number that is not finite is in the windows that reach it, and in none beyond a reset or of another column.
    x[90:93, 40] = np.inf, np.nan, -np.inf
    check("discounted_cumsum", x, 0.9, axis=0, window=window, reset=reset, reverse=reverse)


def test_gamma_per_row_and_per_channel():
    x = random((4, 60, 3))
    check("discounted_cumsum", x, random((4, 1, 1), seed=3), axis=1, window=9)
    check("discounted_cumsum", x, random(3, seed=3), axis=1, window=9)
    check("discounted_cumsum", x, random((4, 60, 1), seed=3), axis=2, window=2)
    check("discounted_cumsum", x, np.array([0.5 + 0.5j]), axis=1, window=9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_leaves_after_window_steps(bad):
    for window, gamma in ((1, 0.99), (5, 0.99), (100, 0.99), (1000, 0.99), (1003, 0.99), (3001, 0.5)):
        x = random(20_000)
        x[7777] = bad
        y = upsweep.discounted_cumsum(x, gamma, window=window)
        np.testing.assert_array_equal(np.flatnonzero(~np.isfinite(y)), np.arange(7777, 7777 + window))


def test_a_large_value_leaves_without_a_trace():
    # As a difference of two sums, 1e-6 would drown in the rounding of 1e10.
    x = np.full(5000, 1e-6)
    x[100] = 1e10
    y = upsweep.discounted_cumsum(x, 1.0, window=50)
    np.testing.assert_allclose(y[150:], 50e-6, rtol=1e-13)


def test_powers_of_gamma_that_overflow_do_not_matter_over_zeros():
    y = upsweep.discounted_cumsum(np.zeros(5000), 2.0, window=3000)
    np.testing.assert_array_equal(y, np.zeros(5000))
    x = np.zeros(5000)
    x[4000] = 1
    y = upsweep.discounted_cumsum(x, 1e200, window=1000)
    np.testing.assert_array_equal(y[3999:4003], [0, 1, 1e200, np.inf])
    assert not y[:4000].any()


def windows_in_order(x, gamma, window, reset=None):
    """Every window by the plain loop, with one rounding a step as a fused multiply-add has."""
    n, oldest, factor = len(x), min(window, len(x)) - 1, np.longdouble(gamma)
    first = np.zeros(n, bool) if reset is None else reset
    y = np.zeros(n)
    with np.errstate(all="ignore"):
        for lag in range(oldest, -1, -1):
            tokens, dropped = x[: n - lag], first[: n - lag] | (lag == oldest)
            dropped[:1] = True
            y[lag:] = np.where(dropped, tokens, (factor * y[lag:] + tokens).astype(float))
    return y


def check_in_order(x, gamma, window, reset=None):
    expected = windows_in_order(x, gamma, window, reset)
    with np.errstate(all="ignore"):
        sizes = windows_in_order(np.abs(x), abs(gamma), window, reset)
        tolerance = np.where(np.isfinite(sizes), sizes, np.finfo(float).max) * 1e-13 + 1e-305
    flipped, column = (None, None) if reset is None else (reset[::-1], reset[:, np.newaxis])
    in_place = x.copy()
    results = [
        upsweep.discounted_cumsum(x, gamma, window=window, reset=reset),
        upsweep.discounted_cumsum(x[::-1], gamma, window=window, reset=flipped, reverse=True)[::-1],
        upsweep.discounted_cumsum(np.stack([x] * 2, 1), gamma, window=window, axis=0, reset=column)[:, 1],
        upsweep.discounted_cumsum(in_place, gamma, window=window, reset=reset, out=in_place),
    ]
    finite = np.isfinite(expected)
    for y in results:
        np.testing.assert_array_equal(y[~finite], expected[~finite])
        assert (np.abs(y[finite] - expected[finite]) <= tolerance[finite]).all()


def sparse(length, *largest):
    """Mostly zeros, and numbers among them that cancel one another within a window."""
    rng = np.random.default_rng(5)
    x = np.where(rng.random(length) < 0.9, 0.0, rng.standard_normal(length))
    for at in rng.integers(0, length - 100, 8 * len(largest)):
        size = rng.choice(largest)
        x[at : at + 2], x[at + 40 : at + 42] = size, -size
    return x


@pytest.mark.parametrize("window", [5, 64, 65, 100, 1000, 2500])
@pytest.mark.parametrize("gamma", [1.0, -1.0, 0.999, 1.001])
def test_a_sum_that_overflows_on_the_way_stays_infinite(gamma, window):
    check_in_order(sparse(4000, 1.7e308, 1e308), gamma, window)
    check_in_order(sparse(4000, 1.7e308), gamma, window, np.random.default_rng(6).random(4000) < 0.005)


@pytest.mark.parametrize("window", [40, 300, 2500])
@pytest.mark.parametrize("gamma", [1.5, -3.0, 1e30, 1e200, -1e200, np.inf, -np.inf, np.nan])
def test_powers_of_gamma_that_overflow(gamma, window):
    x = sparse(4000, 1e-300, 1.0)
    check_in_order(x, gamma, window)
    check_in_order(x, gamma, window, np.random.default_rng(6).random(4000) < 0.02)
    x[[500, 1700, 1711, 3000]] = np.inf, np.inf, -np.inf, np.nan
    check_in_order(x, gamma, window)


@pytest.mark.parametrize("window", [65, 2000, 5000, 9000])
@pytest.mark.parametrize("gamma", [0.5, -0.5, 0.9, 0.01, 1e-100])
def test_powers_of_gamma_that_vanish_where_the_terms_do_not(gamma, window):
    for shift in (0, 1, window // 2):  # at the beginning, the end and in the middle of a block
        x = np.zeros(3 * window)
        x[[shift, window + shift]] = 1.5e308, -1e300
        y = upsweep.discounted_cumsum(x, gamma, window=window)
        for at, size in ((shift, 1.5e308), (window + shift, -1e300)):
            steps = np.arange(window)
            terms = size * np.power(np.longdouble(gamma), steps)
            seen = np.abs(terms) > 1e-307
            np.testing.assert_allclose(y[at : at + window][seen], terms[seen].astype(float), rtol=1e-12)
        assert not y[window + shift + window :].any()
        z = upsweep.discounted_cumsum(x * (1 + 1j), gamma, window=window)
        np.testing.assert_allclose(z.real, y, rtol=1e-12, atol=1e-306)


@pytest.mark.parametrize("gamma", [1.1, -1e200, np.inf])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_the_cost_is_bounded_where_powers_overflow(dtype, gamma):
    x = random(40_000, dtype)

    def seconds(factor):
        start = time.thread_time()  # not what other processes take
        upsweep.discounted_cumsum(x, factor, window=20_000, n_threads=1)
        return time.thread_time() - start

    plain, slow = (min(seconds(factor) for _ in range(3)) for factor in (1.0, gamma))
    assert slow < 300 * plain  # element by element: 5000 times


@pytest.mark.parametrize("window", [1000, 4096, 99_999])
@pytest.mark.parametrize("gamma", [0.999, 1.0])
def test_long_lines(gamma, window):
    x = random(100_000)
    y = upsweep.discounted_cumsum(x, gamma, window=window)
    for t in (0, 1, window - 2, window - 1, min(window, 99_999), 65_536, 99_999):
        part = x[max(0, t - window + 1) : t + 1]
        np.testing.assert_allclose(y[t], sequential(np.full(len(part), gamma), part)[-1], rtol=1e-10, atol=1e-11)


def test_window_as_a_numpy_integer():
    np.testing.assert_array_equal(upsweep.discounted_cumsum(np.ones(4), 1.0, window=np.int32(2)), [1, 2, 2, 2])


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_below_one(window):
    with pytest.raises(ValueError, match="window"):
        upsweep.discounted_cumsum(np.ones(3), 0.5, window=window)


@pytest.mark.parametrize("window", [2.0, True, "3", [2]])
def test_a_window_that_is_no_int(window):
    with pytest.raises((TypeError, ValueError), match="window"):
        upsweep.discounted_cumsum(np.ones(3), 0.5, window=window)


@pytest.mark.parametrize("keyword", [{"initial": 0.0}, {"return_final": True}, {"exclusive": True}])
def test_keywords_that_a_window_excludes(keyword):
    with pytest.raises(ValueError, match="window"):
        upsweep.discounted_cumsum(np.ones(3), 0.5, window=2, **keyword)


def test_gamma_that_varies_along_the_axis():
    with pytest.raises(ValueError, match="gamma"):
        upsweep.discounted_cumsum(np.ones((2, 3)), np.array([0.1, 0.2, 0.3]), window=2)


def test_in_place():
    x = random((3, 500))
    expected = upsweep.discounted_cumsum(x, 0.9, window=20)
    assert upsweep.discounted_cumsum(x, 0.9, window=20, out=x) is x
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_across_columns(dtype, reverse):
    for n_columns in (13, 32, 70):
        x = random((103, n_columns), dtype, seed=n_columns)
        for window, gamma in ((2, 0.9), (3, -0.99), (50, 1.01), (102, -1.0), (64, 0.0)):
            y = check("discounted_cumsum", x, gamma, axis=0, window=window, reverse=reverse)
            for n_threads in (1, 3):
                again = upsweep.discounted_cumsum(
                    x, gamma, axis=0, window=window, reverse=reverse, n_threads=n_threads
                )
                assert same_bits(again, y)
            in_place = x.copy()
            upsweep.discounted_cumsum(in_place, gamma, axis=0, window=window, reverse=reverse, out=in_place)
            np.testing.assert_allclose(in_place.astype(complex), y.astype(complex), rtol=1e-2, atol=1e-2)


def test_few_columns_are_cut_in_time():
    x = random((12_000, 9), np.float32)
    for window in (5, 700):
        y = check("discounted_cumsum", x, 0.95, axis=0, window=window)
        assert same_bits(upsweep.discounted_cumsum(x, 0.95, axis=0, window=window, n_threads=3), y)


@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "swapped"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_not_finite_leaves_after_window_steps_in_any_layout(dtype, layout):
    for window, gamma in ((7, 0.9), (40, -0.9), (90, 1.0), (1500, 0.5)):
        x = random((2000, 33), dtype)
        bad = {(3, 0): np.nan, (500, 5): np.inf, (520, 5): -np.inf, (1999, 32): -np.inf, (700, 20): np.inf}
        for (t, column), value in bad.items():
            x[t, column] = value
        moved = {
            "rows": np.asfortranarray(x), "columns": x, "strided": np.repeat(x, 2, axis=1)[:, ::2],
            "swapped": x.astype(x.dtype.newbyteorder()),
        }[layout]  # fmt: skip
        y = upsweep.discounted_cumsum(moved, gamma, axis=0, window=window)
        lost = np.zeros(x.shape, bool)
        for t, column in bad:
            lost[t : t + window, column] = True
        np.testing.assert_array_equal(~np.isfinite(y), lost)
        together = slice(520, min(500 + window, 2000))  # both infinities; of equal sign under a negative gamma
        assert gamma < 0 or np.isnan(y[together, 5]).all()
        sign = np.sign(gamma) ** np.arange(min(window, 1300))
        np.testing.assert_array_equal(y[700 : 700 + window, 20], sign * np.inf)


def test_columns_that_overflow_on_the_way_are_as_in_the_loop():
    x = random((400, 20))
    x[100:110, 3] = 1e308
    x[250:260, 3] = -1e308
    x[50, 7] = np.inf
    y = upsweep.discounted_cumsum(x, 1.0, axis=0, window=30)
    for column in range(20):
        expected = windows_in_order(x[:, column], 1.0, 30)
        np.testing.assert_allclose(y[:, column], expected, rtol=1e-12, atol=1e-12)
