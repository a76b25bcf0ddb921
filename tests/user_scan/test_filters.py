"""lfilter against scipy's; exponentially weighted windows against weights that are written out."""

import datetime
import tracemalloc

import numpy as np
import pytest
import upsweep
from helpers import random
from scipy import signal


@pytest.mark.parametrize(
    ("shape", "axis"), [((300,), -1), ((20_011,), 0), ((5, 200), 1), ((90, 40), 0), ((2, 9000), 1)]
)
@pytest.mark.parametrize("order", range(7))
def test_lfilter(order, shape, axis):
    b, a = signal.butter(order, 0.2) if order else (np.array([0.5]), np.array([2.0]))
    x = random(shape)
    np.testing.assert_allclose(upsweep.lfilter(b, a, x, axis), signal.lfilter(b, a, x, axis), rtol=1e-9, atol=1e-9)
    start = random([order if d == axis % len(shape) else n for d, n in enumerate(shape)], seed=1)
    result, reference_result = (module.lfilter(b, 3 * a, x, axis, zi=start) for module in (upsweep, signal))
    for got, expected in zip(result, reference_result):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("order", "cutoff"), [(2, 0.001), (3, 0.01), (4, 0.01), (4, 0.03)])
def test_lfilter_of_poles_that_are_nearly_equal(order, cutoff):
    """Powers of its matrix are up to 1e6 times its states: what they lose, the result would."""
    b, a = signal.butter(order, cutoff)
    wide = np.longdouble
    for x in (random(60_000), random(60_000)[::-1], np.ones(30_000)):
        exact = signal.lfilter(b.astype(wide), a.astype(wide), x.astype(wide))
        most = np.abs(exact).max()
        reference_result = np.abs(signal.lfilter(b, a, x) - exact).max() / most
        assert np.abs(upsweep.lfilter(b, a, x) - exact).max() / most < 30 * reference_result + 1e-14


def test_lfilter_of_unequal_lengths_dtypes_and_empty_arrays():
    for b, a in (
        ([1.0, 2.0, 3.0], [2.0]),
        ([1.0], [1.0, 0.0, -0.5]),
        ([0.0, 1.0], [1.0, -0.5, 0.25, 0.1]),
        (2.0, 1.0),
    ):
        x = random((4, 50))
        np.testing.assert_allclose(upsweep.lfilter(b, a, x), signal.lfilter(np.atleast_1d(b), np.atleast_1d(a), x))
    single = upsweep.lfilter(np.float32([0.5]), np.float32([1, -0.5]), random(60, np.float32))
    assert single.dtype == np.float32
    assert upsweep.lfilter([1.0], [1.0, 0.5], np.zeros((3, 0))).shape == (3, 0)
    assert upsweep.lfilter([0.5], [1.0, -0.5], [1, 1, 1]).tolist() == [0.5, 0.75, 0.875]


def test_lfilter_refuses():
    x = np.ones((3, 9))
    for arguments, match in (
        (([1.0], [0.0, 1.0], x), r"a\[0\] is 0"),
        (([[1.0]], [1.0], x), "b: expected coefficients of shape"),
        (([1.0], [], x), "a: expected coefficients"),
        (([1.0], [1.0], 3.0), "x: expected at least one axis"),
        (([1.0], [1.0, 1.0], x, 2), "axis: 2 is out of range"),
        (([1.0], [1.0, 1.0], x, -1, np.ones(1)), r"zi: expected shape \(3, 1\)"),
        (([1.0], [1.0, 1.0], x, -1, np.ones((3, 2))), r"zi: expected shape \(3, 1\)"),
        (([1.0], np.ones(20), x), "order 19 is above 16"),
    ):
        with pytest.raises(ValueError, match=match):
            upsweep.lfilter(*arguments)
    with pytest.raises(TypeError, match="x: expected real numbers"):
        upsweep.lfilter([1.0], [1.0], x * 1j)


def weighted(x, factors, ignore_na, total=False):
    """Each result from the weights of all numbers before it."""
    y, weights = np.full(len(x), np.nan), np.zeros(len(x))
    for t in range(len(x)):
        if x[t] == x[t] or not ignore_na:
            weights[:t] *= factors[t]
        weights[t] = x[t] == x[t]
        if weights.any():
            values = np.where(weights > 0, x, 0) @ weights
            y[t] = values if total else values / weights.sum()
    return y


def recursive(x, alpha, ignore_na, factors=None):
    """pandas' definition without adjustment: the weight of the mean decays until the next number."""
    y, mean, old = [], np.nan, 1.0
    for t, value in enumerate(x):
        if mean == mean:
            if value == value or not ignore_na:
                old *= 1 - alpha if factors is None else factors[t]
            if value == value:
                new = alpha if factors is None else 1 - old
                mean, old = (old * mean + new * value) / (old + new), 1.0
        else:
            mean = value
        y.append(mean)
    return np.array(y)


def with_gaps(length, seed=0):
    x = random(length, seed=seed)
    x[np.random.default_rng(seed).random(length) < 0.3] = np.nan
    x[:2] = np.nan
    return x


PARAMETERS = [({"alpha": 0.3}, 0.3), ({"com": 4}, 0.2), ({"span": 9}, 0.2), ({"halflife": 2}, 1 - 0.5**0.5)]


@pytest.mark.parametrize("ignore_na", [False, True])
@pytest.mark.parametrize(("keywords", "alpha"), PARAMETERS)
def test_windows(keywords, alpha, ignore_na):
    for x in (random(80), with_gaps(80)):
        factors = np.full(80, 1 - alpha)
        mean = upsweep.ewm_mean(x, ignore_na=ignore_na, **keywords)
        np.testing.assert_allclose(mean, weighted(x, factors, ignore_na), rtol=1e-10)
        total = upsweep.ewm_sum(x, ignore_na=ignore_na, **keywords)
        np.testing.assert_allclose(total, weighted(x, factors, ignore_na, total=True), rtol=1e-10)
        plain = upsweep.ewm_mean(x, adjust=False, ignore_na=ignore_na, **keywords)
        np.testing.assert_allclose(plain, recursive(x, alpha, ignore_na), rtol=1e-10)


def test_windows_by_times():
    times = np.cumsum(np.random.default_rng(0).random(60)) * 5
    factors = np.concatenate([[1.0], 0.5 ** (np.diff(times) / 3)])
    dates = np.datetime64("2024-01-01") + (times * 3600e9).astype("timedelta64[ns]")
    for x in (random(60), with_gaps(60)):
        for ignore_na in (False, True):
            mean = upsweep.ewm_mean(x, halflife=3, times=times, ignore_na=ignore_na)
            np.testing.assert_allclose(mean, weighted(x, factors, ignore_na), rtol=1e-10)
            total = upsweep.ewm_sum(x, halflife=3, times=times, ignore_na=ignore_na)
            np.testing.assert_allclose(total, weighted(x, factors, ignore_na, total=True), rtol=1e-10)
            plain = upsweep.ewm_mean(x, halflife=3, times=times, adjust=False, ignore_na=ignore_na)
            np.testing.assert_allclose(plain, recursive(x, None, ignore_na, factors), rtol=1e-10)
        for halflife in (np.timedelta64(3, "h"), datetime.timedelta(hours=3), "3h", "180 min", "10800 seconds"):
            by_date = upsweep.ewm_mean(x, halflife=halflife, times=dates)
            np.testing.assert_allclose(by_date, weighted(x, factors, False), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_a_mean_outlasts_a_gap_in_which_all_weights_fade(alpha, dtype):
    x = np.concatenate([random(5), np.full(9000, np.nan), random(3, seed=1)]).astype(dtype)
    x = np.stack([x, np.where(np.arange(x.size) < 7, np.nan, x)])
    for ignore_na in (False, True):
        mean = upsweep.ewm_mean(x, alpha=alpha, ignore_na=ignore_na)
        for got, row in zip(mean, x):
            first = upsweep.ewm_mean(row[:5], alpha=alpha) if row[0] == row[0] else [np.nan]
            np.testing.assert_array_equal(got[5:-3], np.full(got.size - 8, first[-1]))
        np.testing.assert_allclose(mean[1, -3:], upsweep.ewm_mean(x[1, -3:], alpha=alpha), rtol=1e-6)


def test_windows_along_axes_and_of_long_lines():
    x = np.stack([with_gaps(50, seed) for seed in range(12)])
    expected = np.stack([upsweep.ewm_mean(row, alpha=0.1) for row in x])
    np.testing.assert_allclose(upsweep.ewm_mean(x, alpha=0.1), expected)
    np.testing.assert_allclose(upsweep.ewm_mean(x.T, alpha=0.1, axis=0), expected.T)
    plain = upsweep.ewm_mean(x.T, alpha=0.1, axis=0, adjust=False)
    np.testing.assert_allclose(plain, np.stack([recursive(row, 0.1, False) for row in x]).T)
    long = with_gaps(20_000)
    for ignore_na in (False, True):
        mean = upsweep.ewm_mean(long, alpha=0.1, ignore_na=ignore_na)
        pieces = weighted(long[-400:], np.full(400, 0.9), ignore_na)
        np.testing.assert_allclose(mean[-20:], pieces[-20:], rtol=1e-9)
    assert upsweep.ewm_mean(random(9, np.float32), alpha=0.5).dtype == np.float32
    assert upsweep.ewm_sum([1, 2, 4], alpha=0.5).tolist() == [1, 2.5, 5.25]
    assert upsweep.ewm_mean(np.zeros((3, 0)), alpha=0.5).shape == (3, 0)


def test_windows_refuse():
    x = np.ones(5)
    dates = np.arange(5).astype("datetime64[D]")
    for keywords, match in (
        ({}, "expected one of them, got none"),
        ({"alpha": 0.5, "com": 1}, "expected one of them, got alpha, com"),
        ({"alpha": 0}, "alpha: expected above 0 and at most 1"),
        ({"com": -1}, "com: expected at least 0"),
        ({"span": 0.5}, "span: expected at least 1"),
        ({"halflife": 0}, "halflife: expected above 0"),
        ({"alpha": 0.5, "times": x}, "times: needs halflife"),
        ({"halflife": 1, "times": x[:3]}, r"times: expected shape \(5,\)"),
        ({"halflife": 1, "times": -np.arange(5)}, "times: expected to be in order"),
        ({"halflife": 0, "times": np.arange(5)}, "halflife: expected above 0, got 0"),
        ({"halflife": "1D", "times": np.arange(5)}, "halflife: expected a number, in the unit of times, got '1D'"),
        ({"halflife": 3.0, "times": dates}, r"halflife: expected a timedelta64, .* got 3\.0"),
        ({"halflife": "3 lightyears", "times": dates}, "halflife: expected a timedelta64, .* got '3 lightyears'"),
        ({"halflife": np.timedelta64("NaT"), "times": dates}, "halflife: expected a timedelta64"),
        ({"halflife": "0h", "times": dates}, "halflife: expected above 0, got '0h'"),
        ({"alpha": 0.5, "axis": 1}, "axis: 1 is out of range"),
    ):
        is_of_type = "expected a number" in match or "expected a timedelta" in match
        with pytest.raises(TypeError if is_of_type else ValueError, match=match):
            upsweep.ewm_mean(x, **keywords)
    with pytest.raises(TypeError, match="alpha: expected a number"):
        upsweep.ewm_sum(x, alpha="much")


@pytest.mark.parametrize("adjust", [False, True])
@pytest.mark.parametrize("ignore_na", [False, True])
def test_pandas(adjust, ignore_na):
    pandas = pytest.importorskip("pandas")
    x = random(500)
    x[[0, 3, 4, 77]] = np.nan
    expected = pandas.Series(x).ewm(alpha=0.1, adjust=adjust, ignore_na=ignore_na).mean().to_numpy()
    result = upsweep.ewm_mean(x, alpha=0.1, adjust=adjust, ignore_na=ignore_na)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("shape", "axis"), [((1 << 19,), 0), ((1 << 9, 1 << 10), 0), ((1 << 9, 1 << 10), 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int16, bool, ">f4"])
@pytest.mark.parametrize("b", [[0.5], [0.25, 0.0, 1.0]])
@pytest.mark.parametrize("a", [[2.0], [1.0, -0.5]])
def test_lfilter_copies_no_input(a, b, dtype, shape, axis):
    """Python's coefficients are float64, which the result is; x is widened by the kernel, not by a copy."""
    x = (random(shape) * 9).astype(dtype)
    expected = upsweep.lfilter(b, a, x.astype(np.float64), axis)
    upsweep.lfilter(b, a, x, axis)  # so that nothing is compiled below
    tracemalloc.start()
    y = upsweep.lfilter(b, a, x, axis)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
    copied = x.nbytes if dtype == ">f4" else 0  # to the byte order of the kernels
    assert peak < y.nbytes + copied + 400_000
