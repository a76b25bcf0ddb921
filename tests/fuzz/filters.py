"""lfilter against scipy's, exponentially weighted windows against loops over their definition."""

import numpy as np
import upsweep
from scipy import signal

from .driver import Case
from .operands import chance, described, laid_out, pick


def draw(rng):
    """One call of lfilter, ewm_mean or ewm_sum."""
    size = pick(rng, (1,), (7,), (300,), (5000,), (3, 40), (40, 3), (2, 3, 33), (1, 700))
    axis = int(rng.integers(-len(size), len(size)))
    dtype = pick(rng, np.float64, np.float64, np.float32, np.int32)
    x = (rng.normal(size=size) * (10 if dtype == np.int32 else 1)).astype(dtype)
    if chance(rng, 0.5):
        return _filter(rng, laid_out(rng, x), axis)
    return _window(rng, x, axis)


def _filter(rng, x, axis):
    order = pick(rng, *range(6), 20)
    reach = 0.97 if order < 6 else 0.6
    poles = rng.uniform(-reach, reach, order).astype(complex)
    if chance(rng, 0.2):
        x = x + 1j * rng.normal(size=x.shape)
    for n in range(0, order - 1, 2):
        if chance(rng, 0.5):
            poles[n] = rng.uniform(0.1, reach) * np.exp(1j * rng.uniform(0, np.pi))
            poles[n + 1] = poles[n].conj()
    a = np.real(np.poly(poles)) * pick(rng, 1.0, 2.0, -0.5)
    a = np.atleast_1d(a)
    b = rng.normal(size=pick(rng, *range(1, 7), 60, 2000))
    if chance(rng, 0.2):
        b = b * (1 + 1j)
    zi = None
    n_states = max(len(a), len(b)) - 1
    if n_states and chance(rng, 0.4):
        states = list(x.shape)
        states[axis] = n_states
        zi = rng.normal(size=states)

    def test():
        results = upsweep.lfilter(b, a, x, axis, zi=zi), signal.lfilter(b, a, x, axis, zi=zi)
        for got, want in zip(*(result if zi is not None else (result,) for result in results)):
            assert got.shape == want.shape and got.dtype == want.dtype, (got.dtype, want.dtype)
            # The direct form amplifies rounding by the gain of its poles.
            gain = 1 / np.prod(np.abs(1 - np.abs(poles))) if order else 1.0
            size = 1 + np.abs(want).max(initial=0) + np.abs(x).max(initial=0)
            assert (np.abs(got - want) <= 1e-12 * gain * size).all(), (np.abs(got - want).max(), gain)

    return Case(f"upsweep.lfilter({described(b, a, x, axis, zi=zi)})", test)


def _window(rng, x, axis):
    name = pick(rng, "ewm_mean", "ewm_sum")
    if x.dtype.kind == "f" and chance(rng, 0.5):
        x[rng.random(x.shape) < pick(rng, 0.05, 0.5)] = np.nan
    keywords = {"ignore_na": chance(rng, 0.4)}
    if name == "ewm_mean":
        keywords["adjust"] = chance(rng, 0.5)
    kind = pick(rng, "alpha", "com", "span", "halflife")
    value = {"alpha": rng.uniform(0.01, 1), "com": rng.uniform(0, 20), "span": rng.uniform(1, 20)}
    keywords[kind] = float(value.get(kind, rng.uniform(0.2, 20)))
    if kind == "halflife" and chance(rng, 0.5):
        keywords["times"] = np.cumsum(rng.uniform(0, 2, x.shape[axis]))
    x = laid_out(rng, x)

    def test():
        got = getattr(upsweep, name)(x, axis=axis, **keywords)
        lines = np.moveaxis(x, axis, -1)
        want = np.empty(lines.shape)
        for place in np.ndindex(lines.shape[:-1]):
            want[place] = _expected(lines[place].astype(float), name, **keywords)
        want = np.moveaxis(want, -1, axis)
        assert got.shape == x.shape and got.dtype == (np.float32 if x.dtype.str[1:] == "f4" else np.float64)
        tolerance = 1e-9 if got.dtype == np.float64 else 2e-5
        size = 1 + np.nanmax(np.abs(want), initial=0)
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * size)

    return Case(f"upsweep.{name}({described(x, axis=axis, **keywords)})", test)


def _expected(line, name, ignore_na, adjust=True, times=None, alpha=None, com=None, span=None, halflife=None):
    """One line: the definition with weights, a number after the other."""
    if alpha is None:
        alpha = (
            1 / (1 + com) if com is not None else 2 / (span + 1) if span is not None else 1 - 0.5 ** (1 / halflife)
        )
    result, total, weight, faded = [], 0.0, 0.0, 1.0
    for t, number in enumerate(line):
        step = 1 - alpha if times is None or t == 0 else 0.5 ** ((times[t] - times[t - 1]) / halflife)
        missing = np.isnan(number)
        if not (missing and ignore_na):
            faded *= step
        if not missing:
            if weight == 0:
                total, weight = number, 1.0
            elif name == "ewm_mean" and not adjust:
                share = alpha if times is None else 1 - faded
                total = (faded * total + share * number) / (faded + share)
            else:
                total, weight = faded * total + number, faded * weight + 1
            faded = 1.0
        if name == "ewm_sum":
            result.append(faded * total if weight else np.nan)
        else:
            result.append(total / weight if weight else np.nan)
    return np.array(result)
