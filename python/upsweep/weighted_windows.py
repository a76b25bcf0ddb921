"""Exponentially weighted windows, as updates for `upsweep.scan`.

The functions check and convert their arguments, choose an update and run it, with the weights as parameters, as
`filters` does with coefficients.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Never, overload

import numpy as np

from upsweep import _arrays
from upsweep._arrays import Array, Axis, dates
from upsweep._arrays.dispatch import handlers
from upsweep._arrays.libraries import PLAIN
from upsweep._core.checks import check_scan_axis
from upsweep.filters import Numbers, Update, as_operand, is_opaque_array, run_update, without_parameters
from upsweep.user_scan import scan

if TYPE_CHECKING:
    from typing import Unpack

    from upsweep._arrays.static_types import A, ArrayLike, EwmKeywords, HostArray
else:
    from numpy.typing import ArrayLike

__all__ = ["ewm_mean", "ewm_sum"]


@overload
def ewm_mean(x: HostArray, *, adjust: bool = True, **keywords: Unpack[EwmKeywords]) -> Array: ...
@overload
def ewm_mean(x: A, *, adjust: bool = True, **keywords: Unpack[EwmKeywords]) -> A: ...
def ewm_mean(
    x: ArrayLike, *, alpha: float | None = None, com: float | None = None, span: float | None = None,
    halflife: Any = None, times: ArrayLike | None = None, adjust: bool = True, ignore_na: bool = False,
    axis: Axis = None, **unknown: Never,
) -> Any:  # fmt: skip
    """Exponentially weighted mean along `axis`, by default the last, as pandas' ``ewm(...).mean()``.

    Parameters
    ----------
    x : array_like, tensor or array of a CUDA device
        Real numbers; NaN is a missing value.
    alpha, com, span, halflife : float
        Exactly one of them: the weight of the latest value, 0 < alpha <= 1; or ``alpha = 1 / (1 + com)``,
        ``2 / (span + 1)`` or ``1 - 0.5 ** (1 / halflife)``.
    times : array_like, optional
        The times of the steps along `axis`, sorted: numbers, datetime64, Python's or pandas' datetimes (with a
        time zone: their UTC) or text such as "2024-03-30T12:00", in the host's memory. Labelled ones have the
        labels of the axis. Weights halve in `halflife`, which is in the same unit; of dates it is a timedelta64, a
        datetime.timedelta, or text such as "36h" or "1h30min".
    adjust : bool
        Divide by the sum of the weights: the weighted mean of the values so far. If False, the recurrence
        ``y = (1 - alpha) * y + alpha * x``; with `times`, 1 - alpha is the decay since the last value.
    ignore_na : bool
        Weights decay only at values, not at missing values.
    axis : int or str, optional
        The axis of the steps. Default: the last; of a DataFrame 0, down its rows. Of a DataArray the name of a
        dimension, needed if there are several.
    **unknown
        Other arguments of pandas' or polars' functions, and of scans: the TypeError says what to do instead.

    Returns
    -------
    array
        Of the shape of `x`, float32 or float64; tensors and arrays on a device keep their dtype. NaN before the
        first value. Infinity is a value, after which results are infinite or NaN; pandas treats it as missing.

    Raises
    ------
    TypeError, ValueError
        None or several of the four are passed, or one is out of range; `times` is passed without `halflife`, is
        not sorted, or has another length.

    Notes
    -----
    Blocks of a dask array are averaged at the same time; in sequence with ``adjust=False``, because the effect of
    a missing value depends on the values before it.

    With ``adjust=False``, NaN and an alpha of exactly 0.5 (``com=1``), pandas 3.1 weights the value after a gap
    otherwise than with any alpha nearby: 3.25 in the last example below, and 3.0000004 with ``alpha=0.5000001``.

    Examples
    --------
    >>> import numpy as np
    >>> import upsweep
    >>> upsweep.ewm_mean([1.0, 2.0, 4.0], alpha=0.5)
    array([1.        , 1.66666667, 3.        ])
    >>> upsweep.ewm_mean([1.0, np.nan, 4.0], alpha=0.5, adjust=False)
    array([1., 1., 3.])
    """
    if unknown:
        raise TypeError(_unknown_keyword(next(iter(unknown)), _MEAN_KEYWORDS))
    if type(x) not in PLAIN and _arrays.any_labelled(x):
        decays = {"alpha": alpha, "com": com, "span": span, "halflife": halflife}
        return _without_labels(ewm_mean, x, times, axis, **decays, adjust=adjust, ignore_na=ignore_na)
    data, xs, place, decay = _window(x, alpha, com, span, halflife, times, axis)
    is_opaque = is_opaque_array(data)
    may_miss_values = is_opaque or _arrays.any_dask(data)  # it is not known whether values are missing
    if not is_opaque and not data.size:
        return data.copy()
    if adjust:
        zero, nothing = (0.0, np.nan) if is_opaque else (data.dtype.type(0), data.dtype.type(np.nan))
        y: Array = run_update(
            functools.partial(_sums_step, bool(ignore_na), True), decay, (zero, zero), xs, place,
            are_parameters=not may_miss_values,
        )  # fmt: skip
        if may_miss_values or np.isnan(data).any():
            # Both sums may underflow before the next value; their quotient does not change.
            y = scan(_fill_forward, nothing, y, axis=place)
        return y
    step: Callable[[Numbers], Update] = functools.partial(_missing_step, bool(ignore_na))
    state: Any = np.nan, 1.0
    if not may_miss_values:
        first = np.take(data, 0, axis=place)
        if np.isnan(data).any():
            state = np.full(first.shape, np.nan, data.dtype), np.ones(first.shape, data.dtype)
        else:
            step, state = _plain_step, first
    weights = tuple(number for factor in decay for number in (factor, 1 - factor))
    result: Array = run_update(step, weights, state, xs, place, are_parameters=not may_miss_values)
    return result


@overload
def ewm_sum(x: HostArray, **keywords: Unpack[EwmKeywords]) -> Array: ...
@overload
def ewm_sum(x: A, **keywords: Unpack[EwmKeywords]) -> A: ...
def ewm_sum(
    x: ArrayLike, *, alpha: float | None = None, com: float | None = None, span: float | None = None,
    halflife: Any = None, times: ArrayLike | None = None, ignore_na: bool = False, axis: Axis = None,
    **unknown: Never,
) -> Any:  # fmt: skip
    """Exponentially weighted sum along `axis`, by default the last, as pandas' ``ewm(...).sum()``.

    The latest value has weight 1.

    Parameters
    ----------
    x, alpha, com, span, halflife, times, ignore_na, axis, **unknown
        As for `ewm_mean`.

    Returns
    -------
    array
        Of the shape of `x`, float32 or float64; NaN before the first value.

    Raises
    ------
    TypeError, ValueError
        As `ewm_mean`.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.ewm_sum([1.0, 2.0, 4.0], halflife=1)
    array([1.  , 2.5 , 5.25])
    >>> upsweep.ewm_sum([1.0, 2.0, 4.0], halflife=2, times=[0, 2, 6])
    array([1.   , 2.5  , 4.625])
    """
    if unknown:
        raise TypeError(_unknown_keyword(next(iter(unknown)), _SUM_KEYWORDS))
    if type(x) not in PLAIN and _arrays.any_labelled(x):
        decays = {"alpha": alpha, "com": com, "span": span, "halflife": halflife}
        return _without_labels(ewm_sum, x, times, axis, **decays, ignore_na=ignore_na)
    data, xs, place, decay = _window(x, alpha, com, span, halflife, times, axis)
    is_opaque = is_opaque_array(data)
    if not is_opaque and not data.size:
        return data.copy()
    zero = 0.0 if is_opaque else data.dtype.type(0)
    step = functools.partial(_sums_step, bool(ignore_na), False)
    is_host = not (is_opaque or _arrays.any_dask(data))
    y: Array = run_update(step, decay, (zero, zero), xs, place, are_parameters=is_host)
    return y


_MASK = "the result starts at the first value; mask it, y.where(x.notna().cumsum() >= {0}) of pandas"
_BY_SESSION = (
    "of x without NaN and d = 1 - alpha the mean is discounted_cumsum(x, d, {0}={0}) / "
    "discounted_cumsum(np.ones_like(x), d, {0}={0})"
)
_OF_SUM = "of x without NaN the sum is discounted_cumsum(x, 1 - alpha, {0}={0})"
_WITH_STATE = (
    "of x without NaN and d = 1 - alpha the mean is scan(lambda s, x: ((d * s[0] + x, d * s[1] + 1), "
    "(d * s[0] + x) / (d * s[1] + 1)), (0.0, 0.0), x, return_final=True); scan_blocks takes this scan, too"
)
# What to do in place of a keyword of pandas' or polars' windows, or of the scans here.
_KEYWORDS = {
    "min_periods": _MASK,
    "min_samples": _MASK,
    "half_life": "it is called halflife here",
    "numeric_only": "pass x.select_dtypes('number')",
    "adjust": "a sum has none, as in pandas",
    "bias": "the variance is a scan, see docs/looked_for.md",
    "dim": "it is called axis here",
}
_MEAN_KEYWORDS = _KEYWORDS | {
    "reset": _BY_SESSION, "reverse": _BY_SESSION, "initial": _WITH_STATE, "return_final": _WITH_STATE,
    "out": "the result is a new array; copy it, out[...] = ewm_mean(...)",
}  # fmt: skip
_SUM_KEYWORDS = _KEYWORDS | dict.fromkeys(("reset", "reverse", "initial", "return_final", "out"), _OF_SUM)


def _unknown_keyword(name: str, remedies: dict[str, str]) -> str:
    """Return the error for an argument of the windows of pandas or polars, of scans, or for any other."""
    hint = f"; {remedies[name].format(name)}" if name in remedies else ""
    return f"{name}: is no argument of exponentially weighted windows here{hint}"


def _without_labels(function: Callable[..., Any], x: Any, times: Any, axis: Axis, **keywords: Any) -> Any:
    """Call `ewm_mean` or `ewm_sum` on the data of a labelled x, and label the result; missing values are NaN."""
    labelled = handlers("labelled")
    labels = labelled.without_labels({"x": x}, {}, axis, lead=("x",), missing=True)
    labelled.check_times(x, times, labels.axis)
    return labels.steps(function(labels.arrays["x"], times=times, axis=labels.axis, **keywords))


def _window(
    x: Any, alpha: Any, com: Any, span: Any, halflife: Any, times: Any, axis: Any
) -> tuple[Array, Any, int, tuple[float, ...]]:
    """The values, the inputs of the scan and its axis, and the decay of a weight from step to step.

    With `times` the decay is an array, which is one of the inputs, and there is no number.
    """
    data = as_operand(x, "x")
    place = check_scan_axis(axis, data.shape, "x")
    if not is_opaque_array(data):
        dtype = np.float64 if data.dtype.kind in "biu" else np.result_type(data.dtype, np.float32)
        data = data.astype(dtype, copy=False)
    decays = {"alpha": alpha, "com": com, "span": span, "halflife": halflife}
    named = [name for name, value in decays.items() if value is not None]
    if len(named) != 1:
        raise ValueError(f"alpha, com, span, halflife: expected one of them, got {', '.join(named) or 'none'}")
    if times is not None:
        if halflife is None:
            raise ValueError("times: needs halflife")
        return data, (data, _factors(times, halflife, data, place)), place, ()
    (name,) = named
    try:
        value = float(decays[name])
    except (TypeError, ValueError):
        hint = "; a duration needs times, e.g. times=x.index" if name == "halflife" else ""
        raise TypeError(f"{name}: expected a number, got {decays[name]!r}{hint}") from None
    ranges: dict[str, tuple[bool, str, Callable[[float], float]]] = {
        "alpha": (0 < value <= 1, "above 0 and at most 1", lambda v: 1 - v),
        "com": (value >= 0, "at least 0", lambda v: v / (1 + v)),
        "span": (value >= 1, "at least 1", lambda v: (v - 1) / (v + 1)),
        "halflife": (value > 0, "above 0", lambda v: 0.5 ** (1 / v)),
    }
    fits, expected, factor = ranges[name]
    if not fits:
        raise ValueError(f"{name}: expected {expected}, got {value}")
    return data, data, place, (factor(value),)


def _factors(times: Any, halflife: Any, data: Any, place: int) -> Any:
    if _arrays.any_dask(times):
        raise TypeError("times: expected an array in memory, got a dask array; compute it first")
    if is_opaque_array(times):
        raise TypeError("times: has to be in the host's memory, as numpy's, since its order is checked")
    when = dates.as_dates(times, "times")
    length = data.shape[place]
    if when.shape != (length,):
        raise ValueError(f"times: expected shape ({length},), got {when.shape}")
    if when.dtype.kind not in "biufM":
        raise TypeError(f"times: expected numbers or datetime64, got dtype {when.dtype}")
    if when.dtype.kind == "M":
        if np.isnat(when).any():
            raise ValueError("times: has a missing one (NaT)")
        if np.datetime_data(when.dtype)[0] in "YM":  # years and months have no fixed length
            when = when.astype("M8[D]")
        step, n_steps = np.datetime_data(when.dtype)
        unit: Any = _duration(halflife, (step, n_steps)) / (n_steps * _ATTOSECONDS.get(step, 1))
        when = when.view(np.int64)
    else:
        try:
            unit = float(halflife)
        except (TypeError, ValueError):
            raise TypeError(f"halflife: expected a number, in the unit of times, got {halflife!r}") from None
        when = np.asarray(when, np.float64)
    if not unit > 0:
        raise ValueError(f"halflife: expected above 0, got {halflife!r}")
    if not (when[1:] >= when[:-1]).all():
        raise ValueError("times: expected to be in order")
    factors = np.empty(length)
    factors[:1] = 1
    elapsed = factors[1:]  # computed in place: new memory costs as much time as a pass over it
    if isinstance(unit, float):
        np.subtract(when[1:], when[:-1], out=elapsed)
        elapsed /= unit
    else:
        elapsed[...] = np.diff(when.view(np.uint64))  # of sorted int64, it may need all 64 bits, without a sign
        elapsed *= float(unit.denominator)
        elapsed /= float(unit.numerator)
    np.power(0.5, elapsed, out=elapsed)
    dtype = np.dtype(str(data.dtype).removeprefix("torch."))
    factors = factors.astype(dtype if dtype.kind == "f" else np.float64, copy=False)
    factors = factors.reshape([-1 if d == place else 1 for d in range(data.ndim)])
    if _arrays.any_dask(data):
        return handlers("dask").blocks_like(data, factors, place)
    return _arrays.copy_to_device_of(data, factors) if is_opaque_array(data) else factors


# Attoseconds, the finest unit of numpy's; weeks to attoseconds.
_ATTOSECONDS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18}
_ATTOSECONDS |= {unit: n * 10**18 for unit, n in (("m", 60), ("h", 3600), ("D", 86400), ("W", 7 * 86400))}
_UNITS = {
    "w": "W", "d": "D", "day": "D", "days": "D", "h": "h", "hr": "h", "hour": "h", "hours": "h", "m": "m",
    "min": "m", "minute": "m", "minutes": "m", "s": "s", "sec": "s", "second": "s", "seconds": "s", "ms": "ms",
    "us": "us", "ns": "ns",
}  # fmt: skip
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def _duration(halflife: Any, default_unit: tuple[str, int]) -> Fraction:
    """The attoseconds of a timedelta64, a datetime.timedelta, or text as "36h" and "1h30min"."""
    if isinstance(halflife, str):
        parts = _DURATION.findall(halflife)
        if any(unit in ("M", "MS") for _, unit in parts):
            raise ValueError(f"halflife: M may be months or minutes, got {halflife!r}; write '30min' or '30d'")
        if parts and not _DURATION.sub("", halflife).strip() and all(unit.lower() in _UNITS for _, unit in parts):
            return sum((Fraction(n) * _ATTOSECONDS[_UNITS[unit.lower()]] for n, unit in parts), Fraction())
    elif hasattr(halflife, "to_timedelta64"):  # pandas' Timedelta, to the nanosecond
        halflife = halflife.to_timedelta64()
    elif isinstance(halflife, datetime.timedelta):
        halflife = np.timedelta64(halflife)
    if isinstance(halflife, np.timedelta64) and not np.isnat(halflife):
        unit, count = np.datetime_data(halflife.dtype)
        if unit == "generic":
            unit, count = default_unit
        if unit in _ATTOSECONDS:
            return Fraction(int(halflife.view(np.int64)) * count * _ATTOSECONDS[unit])
    expected = "a timedelta64, a datetime.timedelta or text as '36h' and '1h30min', of weeks or finer units"
    raise TypeError(f"halflife: expected {expected}, as times are datetime64, got {halflife!r}")


# The numbers of the following are the decay of a weight from step to step, and 1 minus it where that is needed.
# There are none with times, where the decay is an input.


@functools.lru_cache(256)
def _plain_step(numbers: Numbers) -> Update:
    def step(y: Any, inputs: Any) -> Any:
        x, values = without_parameters(numbers, inputs)
        if values:
            factor, weight = values
            return factor * y + weight * x
        return x[1] * y + (1 - x[1]) * x[0]

    return step


@functools.lru_cache(256)
def _missing_step(ignore_na: bool, numbers: Numbers) -> Update:
    """The state is the mean, and its weight, decayed since the last value, relative to that of the next value."""

    def step(state: Any, inputs: Any) -> Any:
        (mean, old), (x, values) = state, without_parameters(numbers, inputs)
        x, factor = (x, values[0]) if values else x
        known = x == x
        old = np.where(known, factor * old, old) if ignore_na else factor * old
        # With times, the two weights sum to 1; by steps, a gap does not change the weight of the next value.
        weight = values[1] if values else 1 - old
        new = np.where(mean != mean, x, (old * mean + weight * x) / (old + weight))
        mean = np.where(known, new, mean)
        return (mean, np.where(known, 1.0, np.where(mean != mean, 1.0, old))), mean

    return step


@functools.lru_cache(256)
def _sums_step(ignore_na: bool, is_mean: bool, numbers: Numbers) -> Update:
    """The first state is the weighted sum; the second is the sum of the weights, or whether there was a value."""

    def step(state: Any, inputs: Any) -> Any:
        (total, weights), (x, values) = state, without_parameters(numbers, inputs)
        value, decay = (x, values[0]) if values else x
        known = value == value
        if ignore_na:
            total = np.where(known, decay * total + value, total)
            weights = np.where(known, decay * weights + 1.0, weights)
        else:
            total = decay * total + np.where(known, value, 0.0)
            weights = decay * weights + np.where(known, 1.0, 0.0)
        if is_mean:
            return (total, weights), np.where(known, total / weights, np.nan)
        seen = np.where(known, 1.0, state[1])
        return (total, seen), np.where(seen > 0, total, np.nan)

    return step


def _fill_forward(last: Any, x: Any) -> Any:
    return np.where(x == x, x, last)
