"""lfilter against scipy's; exponentially weighted windows against weights that are written out."""

import datetime
import tracemalloc
import weakref

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits
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
        (([1.0], [1.0, 1.0], x, 2), "axis: axis 2 is out of bounds"),
        (([1.0], [1.0, 1.0], x, -1, np.ones(1)), r"zi: expected shape \(3, 1\)"),
        (([1.0], [1.0, 1.0], x, -1, np.ones((3, 2))), r"zi: expected shape \(3, 1\)"),
    ):
        with pytest.raises(ValueError, match=match):
            upsweep.lfilter(*arguments)
    for arguments, name in (
        (([1.0], [1.0], [1.0, None]), "x"),
        (([1.0], [1.0, None], x), "a"),
        ((["1"], [1.0], x), "b"),
        (([1.0], [1.0, 0.5], x, -1, np.full((3, 1), None)), "zi"),
    ):
        with pytest.raises(TypeError, match=f"{name}: expected real or complex numbers, got dtype"):
            upsweep.lfilter(*arguments)


def test_a_state_without_the_axes_of_x_names_the_remedy():
    for axis, index in ((0, "[:, None]"), (1, "[None, :]")):
        zi, x = np.ones(2), np.ones((9, 7))
        with pytest.raises(ValueError, match="for the same state in all lines, pass zi") as error:
            upsweep.lfilter([1.0, 0.5], [1.0, 0.2, 0.1], x, axis, zi=zi)
        remedy = str(error.value).partition("pass zi")[2]
        assert remedy == index
        upsweep.lfilter([1.0, 0.5], [1.0, 0.2, 0.1], x, axis, zi=eval(f"zi{remedy}"))
    with pytest.raises(ValueError, match=r"got \(3,\)$"):
        upsweep.lfilter([1.0, 0.5], [1.0, 0.2, 0.1], x, zi=np.ones(3))


# ---- numpy arrays that no update suits ---------------------------------------------------------------------

LAYOUTS = [((300,), 0), ((5000,), -1), ((4, 70), 1), ((70, 11), 0), ((2, 90, 3), 1), ((40_000,), 0)]


def coefficients(n_forward, n_feedback, is_complex=False):
    """Those of a stable filter whose poles are apart."""
    generator = np.random.default_rng(n_forward + n_feedback)
    half = generator.uniform(0, 0.8, n_feedback // 2) * np.exp(1j * generator.uniform(0, np.pi, n_feedback // 2))
    a = np.atleast_1d(np.poly(np.concatenate([half, half.conj(), [0.5] * (n_feedback % 2)])))
    b = generator.normal(size=n_forward)
    return (b + 1j * b[::-1], a * (1 + 1j)) if is_complex else (b, 2 * np.real(a))


def check_against_longdouble(b, a, x, axis, zi):
    """Errors are at most a few times those of scipy in the same dtype."""
    wide = [None if v is None else np.asarray(v).astype(np.clongdouble) for v in (b, a, x, zi)]
    exact = signal.lfilter(*wide[:3], axis=axis, zi=wide[3])
    results = (module.lfilter(b, a, x, axis, zi=zi) for module in (upsweep, signal))
    for got, expected, want in zip(*([v] if zi is None else v for v in (*results, exact))):
        assert got.dtype == expected.dtype and got.shape == expected.shape and got.flags.c_contiguous
        most, error, other = (np.abs(v).max(initial=0) for v in (want, got - want, expected - want))
        assert error <= 6 * other + 4 * np.finfo(got.dtype).eps * most


@pytest.mark.parametrize(("shape", "axis"), LAYOUTS)
@pytest.mark.parametrize(
    ("n_forward", "n_feedback"), [(2, 0), (8, 0), (300, 0), (1, 17), (18, 17), (5, 33), (70, 20)]
)
def test_lfilter_of_any_order(n_forward, n_feedback, shape, axis):
    b, a = coefficients(n_forward, n_feedback)
    x = random(shape)
    states = list(shape)
    states[axis] = max(n_forward - 1, n_feedback)
    for zi in (None, random(states, seed=1)):
        check_against_longdouble(b, a, x, axis, zi)
    # Every layout of x, and inputs of other dtypes than the result, are read in place.
    for view in (x[::-1], np.asfortranarray(x), (9 * x).astype(np.int16), x.astype(">f8")):
        expected = upsweep.lfilter(b, a, np.array(view, np.float64, order="C"), axis)
        np.testing.assert_array_equal(upsweep.lfilter(b, a, view, axis), expected)
    single = upsweep.lfilter(np.float32(b), np.float32(a), np.float32(x), axis)
    expected = upsweep.lfilter(np.float32(b), np.float32(a), np.float32(x).astype(np.float64), axis)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, expected.astype(np.float32))  # rounded once


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, np.longdouble, np.clongdouble])
@pytest.mark.parametrize(("n_forward", "n_feedback"), [(1, 0), (8, 0), (1, 1), (3, 2), (40, 20)])
def test_lfilter_of_complex_numbers_and_longdouble(n_forward, n_feedback, dtype):
    for shape, axis in LAYOUTS[:-1]:
        states = list(shape)
        states[axis] = max(n_forward - 1, n_feedback)
        x, start = random(shape, dtype), random(states, dtype, seed=1)
        for is_complex in (False, True):
            b, a = coefficients(n_forward, n_feedback, is_complex)
            for zi in (None, start, start.real):
                check_against_longdouble(b, a, x, axis, zi)
                check_against_longdouble(b, a, x.real.copy(), axis, zi)
            if dtype == np.complex64:  # with coefficients of its precision
                kinds = [np.result_type(c, np.float32).char.replace("d", "f").replace("D", "F") for c in (b, a)]
                narrow = upsweep.lfilter(b.astype(kinds[0]), a.astype(kinds[1]), x, axis, zi=start)
                wide = upsweep.lfilter(b.astype(kinds[0]), a.astype(kinds[1]), x.astype(complex), axis, zi=start)
                for got, expected in zip(narrow, wide):
                    np.testing.assert_array_equal(got, expected.astype(np.complex64), strict=True)


def test_lfilter_sums_each_output_alone():
    """What an FFT, or sums that are shared between outputs, would spread."""
    b = np.array([1.0, -2.0, 0.0, 0.5, *random(60)])
    x = np.zeros((2, 40_000))
    x[0, 20_000], x[1, 10_000:] = 1e300, random(30_000)
    y = upsweep.lfilter(b, [1.0], x)
    assert (y[0, :20_000] == 0).all() and (y[0, 20_000:20_064] == b * 1e300).all() and (y[0, 20_064:] == 0).all()
    x[0, 100], x[1, 200] = np.nan, np.inf
    special = upsweep.lfilter(b, [1.0], x)
    is_special = np.zeros(x.shape, bool)
    is_special[0, 100:164], is_special[1, 200:264] = True, True
    is_special[:, [102, 202]] = False  # a coefficient of 0 reads nothing
    np.testing.assert_array_equal(~np.isfinite(special), is_special)
    np.testing.assert_array_equal(special[~is_special], y[~is_special])
    # Real coefficients do not mix the two parts.
    split = upsweep.lfilter(b, [1.0], x.T.copy().view(complex)[:, 0])
    np.testing.assert_array_equal(split.real, special[0])
    np.testing.assert_array_equal(split.imag, special[1])
    # In pieces, each from the states after the one before, all sums are the same ones.
    whole, last = upsweep.lfilter(b, [1.0], x, zi=np.ones((2, 63)))
    state, pieces = np.ones((2, 63)), []
    for piece in np.split(x, [1, 30, 64, 17_000], axis=1):
        piece, state = upsweep.lfilter(b, [1.0], piece, zi=state)
        pieces.append(piece)
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole)
    np.testing.assert_array_equal(state, last)


def test_lfilter_of_no_samples_and_of_threads():
    for b, a in (coefficients(40, 0), coefficients(3, 20)):
        n_states = max(len(b), len(a)) - 1
        for shape in ((0,), (3, 0), (0, 3)):
            states = (*shape[:-1], n_states)
            y, zf = upsweep.lfilter(b, a, np.zeros(shape, np.complex64), zi=np.ones(states))
            assert y.shape == shape and y.dtype == np.complex128 and zf.dtype == y.dtype
            np.testing.assert_array_equal(zf, np.ones(states))
        x = random((3, 50_000))
        results = []
        for n_threads in (1, 2):
            upsweep.set_num_threads(n_threads)
            results.append(upsweep.lfilter(b, a, x))
        upsweep.set_num_threads(None)
        np.testing.assert_array_equal(*results)


def test_what_scipy_builds_on_lfilter(monkeypatch):
    x = random((3, 400), np.complex128)
    b, a = signal.butter(9, 0.3)
    long = signal.firwin(101, 0.2)

    def calls():
        yield signal.filtfilt(b, a, x)
        yield signal.filtfilt(long, 1.0, x, padtype="even")
        yield signal.filtfilt(b, a, x.real, method="gust")
        yield signal.decimate(x.real, 8)
        yield signal.decimate(x, 5, ftype="fir", zero_phase=False)
        yield signal.symiirorder1(x[0], 0.5, 0.25)
        yield signal.deconvolve(np.convolve(long, [1.0, 2.0]), long)[0]

    expected = list(calls())
    monkeypatch.setattr("scipy.signal._signaltools.lfilter", upsweep.lfilter)
    monkeypatch.setattr("scipy.signal._spline_filters.lfilter", upsweep.lfilter)
    for got, want in zip(calls(), expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


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


@pytest.mark.parametrize(
    ("keyword", "match"),
    [
        ("min_periods", r"min_periods: .*y\.where\(x\.notna\(\)\.cumsum\(\) >= min_periods\)"),
        ("half_life", "half_life: .* it is called halflife here"),
        ("window", "window: is no argument of exponentially weighted windows here$"),
    ],
)
def test_windows_refuse_other_keywords(keyword, match):
    for function in (upsweep.ewm_mean, upsweep.ewm_sum):
        with pytest.raises(TypeError, match=match):
            function([1.0, 2.0], alpha=0.5, **{keyword: 2})
        with pytest.raises(TypeError, match=r"dim: .* it is called axis here"):
            function([1.0], alpha=0.5, dim="time")
    for name in ("initial", "return_final"):
        with pytest.raises(TypeError, match=f"{name}: is no argument .*; of x without NaN") as error:
            upsweep.ewm_mean([1.0], alpha=0.5, **{name: True})
        remedy = str(error.value).rpartition(" is ")[2].partition("; scan_blocks")[0]
        y, _ = eval(remedy, {"scan": upsweep.scan, "d": 0.5, "x": random(9)})
        np.testing.assert_allclose(y, upsweep.ewm_mean(random(9), alpha=0.5))
    with pytest.raises(TypeError, match=r"out: .*out\[\.\.\.\] = ewm_mean"):
        upsweep.ewm_mean([1.0], alpha=0.5, out=np.zeros(1))
    with pytest.raises(TypeError, match=r"adjust: .* a sum has none"):
        upsweep.ewm_sum([1.0], alpha=0.5, adjust=True)
    with pytest.raises(TypeError, match="halflife: expected a number, got '1h'; a duration needs times"):
        upsweep.ewm_mean([1.0], halflife="1h")


@pytest.mark.parametrize("function", [upsweep.ewm_mean, upsweep.ewm_sum])
def test_windows_name_the_sums_that_have_resets(function):
    x, reset = random(9), np.arange(9) == 4
    names = {
        "discounted_cumsum": upsweep.discounted_cumsum,
        "np": np,
        "x": x,
        "d": 0.75,
        "alpha": 0.25,
        "reset": reset,
        "reverse": True,
    }
    for name, expected in (
        ("reset", np.concatenate([function(part, alpha=0.25) for part in (x[:4], x[4:])])),
        ("reverse", function(x[::-1], alpha=0.25)[::-1]),
    ):
        with pytest.raises(TypeError, match=f"{name}: is no argument .*of x without NaN") as error:
            function(x, alpha=0.25, **{name: names[name]})
        np.testing.assert_allclose(eval(str(error.value).rpartition(" is ")[2], names), expected)


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
        ({"halflife": "1M", "times": dates}, "halflife: M may be months or minutes, got '1M'; write '30min' or"),
        ({"alpha": 0.5, "axis": 1}, "axis: axis 1 is out of bounds"),
    ):
        is_of_type = "expected a number" in match or "expected a timedelta" in match
        with pytest.raises(TypeError if is_of_type else ValueError, match=match):
            upsweep.ewm_mean(x, **keywords)
    with pytest.raises(TypeError, match="alpha: expected a number"):
        upsweep.ewm_sum(x, alpha="much")


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "7m"])
def test_times_in_every_unit(unit):
    x, steps = random(6), np.array([0, 1, 4, 4, 5, 9])
    times = np.datetime64(0, unit) + steps.astype(f"m8[{unit}]")
    finest = times.astype("M8[D]") if unit in "YM" else times
    expected = upsweep.ewm_mean(x, halflife=3.0, times=(finest - finest[0]).astype(np.int64))
    halflife = np.timedelta64(3, np.datetime_data(finest.dtype))
    np.testing.assert_array_equal(upsweep.ewm_mean(x, halflife=halflife, times=times), expected)
    np.testing.assert_array_equal(upsweep.ewm_mean(x, halflife=np.timedelta64(3), times=times), expected)


def test_times_and_halflives_that_are_far_apart():
    """numpy's quotient of two timedeltas wraps around, or raises, where 64 bits do not hold both in one unit."""
    ends = np.array([-(2**63) + 1, 2**63 - 1], "M8[ns]")  # 584 years
    expected = upsweep.ewm_mean([1.0, 2.0], halflife=300_000.0, times=[0.0, (2**64 - 2) / 86400e9])
    for halflife in (np.timedelta64(300_000, "D"), "300000d", datetime.timedelta(300_000)):
        np.testing.assert_allclose(
            upsweep.ewm_mean([1.0, 2.0], halflife=halflife, times=ends), expected, rtol=1e-15
        )
    short = upsweep.ewm_mean([1.0, 2.0], halflife="1h", times=np.array([0, 1], "M8[as]"))
    np.testing.assert_allclose(short, [1.0, 1.5])


def test_times_of_pythons_datetimes():
    hours = [datetime.datetime(2024, 3, 31, hour) for hour in range(5)]
    zone = datetime.timezone(datetime.timedelta(hours=2))
    x = random(5)
    expected = upsweep.ewm_mean(x, halflife=1.5, times=np.arange(5))
    for times in (hours, [hour.replace(tzinfo=zone) for hour in hours]):
        for halflife in ("1h30min", "1.5h", " 90 min ", "1 hour 30 minutes", "0.0625d", "5400s"):
            np.testing.assert_array_equal(upsweep.ewm_mean(x, halflife=halflife, times=times), expected)
    days = [datetime.date(2024, 3, day) for day in range(1, 6)]
    np.testing.assert_array_equal(
        upsweep.ewm_mean(x, halflife="36h", times=days), upsweep.ewm_mean(x, halflife=1.5, times=np.arange(5))
    )
    with pytest.raises(TypeError, match="times: some have a time zone and some have none"):
        upsweep.ewm_mean(x, halflife="1h", times=[*hours[:4], hours[4].replace(tzinfo=zone)])
    for halflife in ("1h30", "h", "", "1h 30 parsecs", "-1h", np.timedelta64(1, "M")):
        with pytest.raises(TypeError, match="halflife: expected a timedelta64, a"):
            upsweep.ewm_mean(x, halflife=halflife, times=hours)
    with pytest.raises(TypeError, match="times: expected numbers or datetime64, got dtype object"):
        upsweep.ewm_mean(x, halflife=1, times=[None] * 5)


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


@pytest.mark.parametrize("length", [100, 9000])  # sequential and parallel in time
def test_other_coefficients_need_no_other_trace_and_change_no_bit(monkeypatch, length):
    x, columns = random(length), random((length // 10, 10), np.float32)
    gaps = np.where(x > 1, np.nan, x)
    functions = [
        lambda c: upsweep.ewm_sum(x, alpha=1 - c),
        lambda c: upsweep.lfilter([1.0], [1.0, -c], x),
        lambda c: upsweep.ewm_mean(x, alpha=1 - c, adjust=False),
        lambda c: upsweep.ewm_mean(gaps, alpha=1 - c, adjust=False),
        lambda c: upsweep.ewm_mean(columns, alpha=1 - c, ignore_na=True, axis=0),
        lambda c: upsweep.lfilter([c, 0.3, c], [1.0, -c, 0.1], x),
        lambda c: upsweep.lfilter([0.3, c], [c, 0.2], columns.astype(">f4")),  # which the kernels do not read
    ]
    constants = [  # the first ones with the coefficient as a constant of an update
        lambda c: upsweep.scan(lambda s, x: c * s + np.where(x == x, x, 0.0), 0.0, x),
        lambda c: upsweep.scan(lambda s, x: (c * (x + s), x + s), 0.0, x),
        lambda c: upsweep.scan(lambda s, x: c * s + (1 - c) * x, x[0], x),
    ]
    first = [[function(c) for c in (0.375, 0.75)] for function in functions]
    with monkeypatch.context() as without:
        without.setattr("upsweep._compiler.recurrences.trace.trace", None)
        second = [[function(c) for c in (0.75, 0.375)] for function in functions]
    for (a, b), (c, d) in zip(first, second):
        assert same_bits(a, d) and same_bits(b, c) and not same_bits(a, b)
    for (a, b), function in zip(first, constants):
        assert same_bits(a, function(0.375)) and same_bits(b, function(0.75))


def test_a_compiled_scan_does_not_keep_the_memory_of_arrays():
    x = random(100)
    upsweep.lfilter([0.5], [1.0, -0.3], x)
    y = weakref.ref(x)
    del x
    assert y() is None
