"""Windowed sums along lines (cuda/scan/window_lines.cuh), compiled for the host: held to the CPU's in float64."""

import numpy as np
import pytest
import upsweep
import window_scans
from helpers import BFLOAT16, random, same_bits
from host_scans import fixtures

DTYPES = [np.dtype(t) for t in ("float16", "float32", "float64")] + [BFLOAT16]
# Direct sums; tails without and with whole runs; whole blocks; and, of tiles of 512 to 2,048 steps, far ones from
# 768, 1,280 and 2,304 on (float64, float32, 16 bits).
WINDOWS = [
    *(1, 2, 7, 8, 9, 15, 16, 17, 31, 71, 72, 73, 100, 135, 136, 255, 256, 257, 700, 767, 768, 1000),
    *(1279, 1280, 1281, 2303, 2304, 2999, 4998, 4999),
]


compiled, on_host = fixtures(window_scans.compile_library)


def check(x, gamma, window, out=None, **options):
    wide, factor = x.astype(np.float64), gamma
    if isinstance(gamma, np.ndarray):
        factor = gamma[..., np.newaxis]
    exact = upsweep.discounted_cumsum(wide, factor, window=window, **options)
    size = upsweep.discounted_cumsum(np.abs(wide), np.abs(factor), window=window, **options)
    y = window_scans.scan(x, gamma, window, out=out, **options)
    with np.errstate(over="ignore"):
        rounded = exact.astype(x.dtype).astype(np.float64)
    eps = 2.0**-7 if x.dtype == BFLOAT16 else float(np.finfo(x.dtype).eps)
    result, finite = y.astype(np.float64), np.isfinite(rounded)
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    tolerance = (1e-6 if x.itemsize == 2 else 1e-12) * size + eps * np.abs(rounded) + 1e-300
    assert (np.abs(result[finite] - rounded[finite]) <= tolerance[finite]).all()
    return y


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_windows_of_every_size(dtype, window):
    x = random((2, 5000), dtype)
    check(x, 0.99, window)
    check(x, -1.0, window, reverse=True)


@pytest.mark.parametrize("window", [3, 40, 300, 1500])
def test_lines_that_begin_and_end_anywhere(window):
    for length in (*(max(48, n) for n in (window + 1, window + 2, 2 * window + 3)), 2048, 2049):
        wide = random((3, length + 7), np.float32)
        for first in range(4):
            x = wide[:, first : first + length]
            for reverse in (False, True):
                y = check(x, 0.9, window, reverse=reverse)
                out = np.full_like(wide, 5)
                check(x, 0.9, window, out[:, 2 : 2 + length], reverse=reverse)
                assert same_bits(out[:, 2 : 2 + length], y)
                assert (out[:, :2] == 5).all() and (out[:, 2 + length :] == 5).all()
        check(wide[:, ::-1], 0.9, window)
        check(wide, 0.9, window, np.empty_like(wide)[:, ::-1])
        aligned = wide.ravel()[: 2 * length].reshape(2, length)
        check(aligned, 0.9, window)
        check(aligned, 0.9, window, reverse=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("window", [2, 33, 3000])
def test_results_in_the_place_of_x(dtype, window):
    for reverse in (False, True):
        x = random((2, 2, 6000), dtype)
        in_place = x.copy()
        assert same_bits(window_scans.scan(in_place, 0.97, window, out=in_place, reverse=reverse),
                         window_scans.scan(x, 0.97, window, reverse=reverse))  # fmt: skip


@pytest.mark.parametrize("length", [1023, 2047])
def test_padded_lines_in_the_place_of_x(length):
    wide = random((3, length + 1), np.float32)
    x = wide[:, :length]
    expected = check(x, 0.9, 100)
    assert same_bits(window_scans.scan(x, 0.9, 100, out=x), expected)


def test_a_gamma_for_each_line():
    x = random((2, 3, 3000), np.float32)
    gamma = random((2, 3), np.float64, 1, -1.0, 1.0)
    for window in (5, 99, 1400):
        check(x, gamma, window)
        check(x, gamma, window, reverse=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_leaves_after_window_steps(bad):
    for window, gamma in ((1, 0.99), (5, 0.99), (100, 0.99), (1000, 0.5), (1500, 1e-3), (2700, -0.9)):
        x = random(8000, np.float32)
        x[4001] = bad
        y = check(x, gamma, window)
        np.testing.assert_array_equal(np.flatnonzero(~np.isfinite(y)), np.arange(4001, 4001 + window))


@pytest.mark.parametrize("window", [5, 300, 1500])
def test_windows_of_several_states_that_are_not_finite(window):
    x = random((2, 6000), np.float32)
    x[:, [10, 11, 700, 2400, 5999]] = np.nan
    x[:, [400, 2403]], x[:, [405, 3000]] = np.inf, -np.inf
    for gamma in (0.99, -0.99, 1.01, 0.0):
        check(x, gamma, window)
    check(x[:, 1:], 0.99, window, np.empty_like(x)[:, 1:], reverse=True)


@pytest.mark.parametrize("window", [6, 50, 700, 1600])
def test_sums_and_powers_beyond_the_range(window):
    x = random(4000, np.float64)
    x[100:110], x[1000:1010], x[2000], x[2020] = 1e308, -1e308, np.inf, -np.inf
    check(x, 1.0, window)
    x = np.zeros(4000)
    x[100] = 1e-300
    for gamma in (2.0, -3.0, 1e200):
        check(x, gamma, window)
    for gamma in (np.inf, np.nan):
        check(random(600, np.float64), gamma, min(window, 500))


def test_weights_below_the_range_of_float32():
    x = np.zeros(700, BFLOAT16)
    x[8:16] = 1e38
    check(x, 0.5, 160)
    check(x, 0.5, 163)
    x[71] = 1e30
    check(x, 1e-4, 15)
    check(x, 1e-7, 8)


def test_a_large_value_leaves_without_a_trace():
    x = np.full(5000, 1e-6)
    x[100] = 1e10
    for window in (50, 700, 2000):
        y = check(x, 1.0, window)
        np.testing.assert_allclose(y[100 + window :], window * 1e-6, rtol=1e-13)
