"""Linear filters and exponentially weighted windows, each of which is an update for `upsweep.scan`.

The functions check and convert their arguments, choose an update and call `scan`. Updates are created by cached
functions of their constants, so that later calls find the compiled scan of an earlier one.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from upsweep import _arrays
from upsweep._arrays import Array
from upsweep._arrays.dispatch import handlers
from upsweep._core.checks import shape_error
from upsweep._user_scan.problem import as_real, check_real, to_axis
from upsweep.user_scan import scan

__all__ = ["ewm_mean", "ewm_sum", "lfilter"]

Update = Callable[[Any, Any], Any]

_MAX_ORDER = 16  # a compiled step holds about as many states in registers


def lfilter(b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: int = -1, zi: ArrayLike | None = None) -> Any:
    """Filter along an axis by a rational transfer function, as ``scipy.signal.lfilter``.

    a[0] y[t] = b[0] x[t] + b[1] x[t-1] + ... - a[1] y[t-1] - a[2] y[t-2] - ...

    Parameters
    ----------
    b, a : array_like
        The coefficients of the numerator and the denominator, real and 1-D; a[0] is not 0.
    x : array_like, tensor or array of a CUDA device
        Real numbers; at least one axis. A tensor has gradients.
    axis : int
        The axis that the filter runs along.
    zi : array_like, optional
        The state before the first step, in transposed direct form II, of the shape of `x` with
        ``max(len(a), len(b)) - 1`` along `axis`, or an array that broadcasts to it.

    Returns
    -------
    y : array
        Of the shape of `x`; float32 if all arguments are float32 or float16, else float64. Lists of Python's
        floats count as float64. Tensors and arrays on a device keep the dtype of `x`.
    zf : array
        Only with `zi`: the state after the last step.

    Raises
    ------
    TypeError
        An argument is no array of real numbers.
    ValueError
        Coefficients are not 1-D or empty, or a[0] is 0; the order is above 16; `zi` or `axis` does not fit.

    Notes
    -----
    Up to order 4, few long lines are filtered parallel in time, and blocks of a dask array at the same time;
    above, the blocks are filtered in sequence.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.lfilter([0.5], [1.0, -0.5], [1.0, 1.0, 1.0])
    array([0.5  , 0.75 , 0.875])
    >>> y, state = upsweep.lfilter([1.0, 1.0], [1.0], [1.0, 2.0, 3.0], zi=[10.0])
    >>> y, state
    (array([11.,  3.,  5.]), array([3.]))
    """
    top, bottom = _coefficients(b, "b"), _coefficients(a, "a")
    data = _operand(x, "x")
    if not data.ndim:
        raise ValueError("x: expected at least one axis, along which the filter runs, got a number")
    place = to_axis(axis, data.ndim)
    if bottom[0] == 0:
        raise ValueError("a: a[0] is 0")
    order = max(len(top), len(bottom)) - 1
    if order > _MAX_ORDER:
        raise ValueError(f"b, a: order {order} is above {_MAX_ORDER}")
    shape = tuple(data.shape[:place]) + (order,) + tuple(data.shape[place + 1 :])
    start = None if zi is None else _broadcast(_operand(zi, "zi"), shape, place)
    numerator, denominator = (np.zeros(order + 1) for _ in range(2))
    numerator[: len(top)] = np.float64(top) / np.float64(bottom[0])
    denominator[: len(bottom)] = np.float64(bottom) / np.float64(bottom[0])
    coefficients = tuple(numerator.tolist()), tuple(denominator.tolist())
    if _is_opaque(data):
        states = (0.0,) * max(order, 1) if not order or start is None else _parts(start, order, place)
        step = _filter_step(*coefficients) if order else _scale_step(float(numerator[0]))
        y, after = scan(step, states, data, axis=place, return_final=True)
        return y if start is None else (y, _arrays.stacked(after, place) if order else zi)
    operands = [top, bottom, data] if start is None else [top, bottom, data, start]
    wide = np.result_type(*(np.float64 if o.dtype.kind in "biu" else o.dtype for o in operands))
    dtype = np.result_type(wide, np.float32)
    if order == 0:
        y = np.multiply(data, numerator[0], dtype=dtype)
        return y if start is None else (y, start.astype(dtype))
    zeros = (dtype.type(0),) * order
    before = zeros if start is None else tuple(part.astype(dtype) for part in _parts(start, order, place))
    y, after = scan(_filter_step(*coefficients, dtype.name), before, data, axis=place, return_final=True)
    return y if start is None else (y, np.stack(after, axis=place))


def _parts(start: Any, n: int, axis: int) -> tuple[Any, ...]:
    """The slices along an axis, without that axis, of an array of any library."""
    return tuple(start[(slice(None),) * axis + (k,)] for k in range(n))


@functools.lru_cache(256)
def _scale_step(factor: float) -> Update:
    return lambda state, x: (state, factor * x)


@functools.lru_cache(256)
def _filter_step(b: tuple[float, ...], a: tuple[float, ...], dtype: str | None = None) -> Update:
    """One step of the transposed direct form II, in a dtype to which the kernel casts x; None for that of x."""
    order = len(b) - 1

    def step(state: Any, x: Any) -> Any:
        x = x if dtype is None else x.astype(dtype)
        y = b[0] * x + state[0]
        new = []
        for k in range(1, order + 1):
            after = _plus(_scaled(b[k], x), _scaled(-a[k], y))
            new.append(after if k == order else _plus(state[k], after))
        return tuple(0 * x if value is None else value for value in new), y

    return step


def _scaled(factor: float, value: Any) -> Any:
    return None if factor == 0 else factor * value


def _plus(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return a if b is None else b
    return a + b


def _operand(value: Any, name: str) -> Any:
    """An argument as a numpy array or the view of an array on a device; tensors and dask arrays stay."""
    if _arrays.any_torch(value):
        return check_real(not value.is_complex(), name, value)
    if _arrays.any_on_device(value):
        return as_real(value, name)
    if _arrays.any_dask(value):  # with known sizes; it has the attributes that are used in this module
        array = handlers("dask").as_operands({name: value})[name]
    else:
        array = _arrays.as_array(value, name)
    return check_real(array.dtype.kind in "biuf", name, array)


def _is_opaque(data: Any) -> bool:
    """Whether this is a tensor or an array on a device, whose values are not read and whose dtype is kept."""
    return _arrays.any_torch(data) or _arrays.any_on_device(data)


def _coefficients(value: Any, name: str) -> Array:
    array = _arrays.as_array(value, name)
    array = np.atleast_1d(check_real(array.dtype.kind in "biuf", name, array))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name}: expected coefficients of shape (n,), got {array.shape}")
    return array


def _broadcast(start: Any, shape: tuple[int, ...], place: int) -> Any:
    try:
        if start.ndim != len(shape) or start.shape[place] != shape[place]:
            raise ValueError("another shape")
        return start.broadcast_to(shape) if _arrays.any_torch(start) else np.broadcast_to(start, shape)
    except (ValueError, RuntimeError):  # torch's
        raise shape_error("zi", shape, start) from None


def ewm_mean(
    x: ArrayLike, *, alpha: float | None = None, com: float | None = None, span: float | None = None,
    halflife: Any = None, times: ArrayLike | None = None, adjust: bool = True, ignore_na: bool = False,
    axis: int = -1,
) -> Array:  # fmt: skip
    """Exponentially weighted mean along an axis, as pandas' ``ewm(...).mean()``.

    Parameters
    ----------
    x : array_like, tensor or array of a CUDA device
        Real numbers; NaN is a missing value.
    alpha, com, span, halflife : float
        Exactly one of them: the weight of the latest value, 0 < alpha <= 1; or ``alpha = 1 / (1 + com)``,
        ``2 / (span + 1)`` or ``1 - 0.5 ** (1 / halflife)``.
    times : array_like, optional
        The times of the steps along `axis`, sorted: numbers or datetime64, in the host's memory. Weights halve in
        `halflife`, which is in the same unit; with datetime64 a timedelta64, a datetime.timedelta, or text such as
        "36h" or "10 min".
    adjust : bool
        Divide by the sum of the weights: the weighted mean of the values so far. If False, the recurrence
        ``y = (1 - alpha) * y + alpha * x``; with `times`, 1 - alpha is the decay since the last value.
    ignore_na : bool
        Weights decay only at values, not at missing values.
    axis : int
        The axis of the steps.

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

    Examples
    --------
    >>> import numpy as np
    >>> import upsweep
    >>> upsweep.ewm_mean([1.0, 2.0, 4.0], alpha=0.5)
    array([1.        , 1.66666667, 3.        ])
    >>> upsweep.ewm_mean([1.0, np.nan, 4.0], alpha=0.5, adjust=False)
    array([1., 1., 3.])
    """
    data, xs, place, constant = _window(x, alpha, com, span, halflife, times, axis)
    is_opaque = _is_opaque(data)
    may_miss_values = is_opaque or _arrays.any_dask(data)  # it is not known whether values are missing
    if not is_opaque and not data.size:
        return data.copy()
    if adjust:
        zero, nothing = (0.0, np.nan) if is_opaque else (data.dtype.type(0), data.dtype.type(np.nan))
        y: Array = scan(_sums_step(constant, bool(ignore_na), True), (zero, zero), xs, axis=place)
        if may_miss_values or np.isnan(data).any():
            # Both sums may underflow before the next value; their quotient does not change.
            y = scan(_fill_forward, nothing, y, axis=place)
        return y
    step, state = _missing_step(constant, bool(ignore_na)), cast(Any, (np.nan, 1.0))
    if not may_miss_values:
        first = np.take(data, 0, axis=place)
        if np.isnan(data).any():
            state = np.full(first.shape, np.nan, data.dtype), np.ones(first.shape, data.dtype)
        else:
            step, state = _plain_step(constant), first
    result: Array = scan(step, state, xs, axis=place)
    return result


def ewm_sum(
    x: ArrayLike, *, alpha: float | None = None, com: float | None = None, span: float | None = None,
    halflife: Any = None, times: ArrayLike | None = None, ignore_na: bool = False, axis: int = -1,
) -> Array:  # fmt: skip
    """Exponentially weighted sum along an axis, as pandas' ``ewm(...).sum()``; the latest value has weight 1.

    Parameters
    ----------
    x, alpha, com, span, halflife, times, ignore_na, axis
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
    data, xs, place, constant = _window(x, alpha, com, span, halflife, times, axis)
    is_opaque = _is_opaque(data)
    if not is_opaque and not data.size:
        return data.copy()
    zero = 0.0 if is_opaque else data.dtype.type(0)
    y: Array = scan(_sums_step(constant, bool(ignore_na), False), (zero, zero), xs, axis=place)
    return y


def _window(
    x: Any, alpha: Any, com: Any, span: Any, halflife: Any, times: Any, axis: Any
) -> tuple[Array, Any, int, float | None]:
    """The values, the inputs of the scan and its axis, and the decay of a weight from step to step.

    With `times` the decay is an array, which is one of the inputs, and no number.
    """
    data = _operand(x, "x")
    if not data.ndim:
        raise ValueError("x: expected at least one axis, along which the window runs, got a number")
    place = to_axis(axis, data.ndim)
    if not _is_opaque(data):
        dtype = np.float64 if data.dtype.kind in "biu" else np.result_type(data.dtype, np.float32)
        data = data.astype(dtype, copy=False)
    decays = {"alpha": alpha, "com": com, "span": span, "halflife": halflife}
    named = [name for name, value in decays.items() if value is not None]
    if len(named) != 1:
        raise ValueError(f"alpha, com, span, halflife: expected one of them, got {', '.join(named) or 'none'}")
    if times is not None:
        if halflife is None:
            raise ValueError("times: needs halflife")
        return data, (data, _factors(times, halflife, data, place)), place, None
    (name,) = named
    try:
        value = float(decays[name])
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a number, got {decays[name]!r}") from None
    ranges: dict[str, tuple[bool, str, Callable[[float], float]]] = {
        "alpha": (0 < value <= 1, "above 0 and at most 1", lambda v: 1 - v),
        "com": (value >= 0, "at least 0", lambda v: v / (1 + v)),
        "span": (value >= 1, "at least 1", lambda v: (v - 1) / (v + 1)),
        "halflife": (value > 0, "above 0", lambda v: 0.5 ** (1 / v)),
    }
    fits, expected, factor = ranges[name]
    if not fits:
        raise ValueError(f"{name}: expected {expected}, got {value}")
    return data, data, place, factor(value)


def _factors(times: Any, halflife: Any, data: Any, place: int) -> Any:
    if _arrays.any_dask(times):
        raise TypeError("times: expected an array in memory, got a dask array; compute it first")
    if _is_opaque(times):
        raise TypeError("times: has to be in the host's memory, as numpy's, since its order is checked")
    when = np.asarray(times)
    length = data.shape[place]
    if when.shape != (length,):
        raise ValueError(f"times: expected shape ({length},), got {when.shape}")
    if when.dtype.kind not in "biufM":
        raise TypeError(f"times: expected numbers or datetime64, got dtype {when.dtype}")
    if when.dtype.kind == "M":
        if np.isnat(when).any():
            raise ValueError("times: has a missing one (NaT)")
        unit: Any = _duration(halflife)
    else:
        try:
            unit = float(halflife)
        except (TypeError, ValueError):
            raise TypeError(f"halflife: expected a number, in the unit of times, got {halflife!r}") from None
        when = np.asarray(when, np.float64)
    if not unit > type(unit)(0):
        raise ValueError(f"halflife: expected above 0, got {halflife!r}")
    elapsed = np.diff(when) / unit
    if not (elapsed >= 0).all():
        raise ValueError("times: expected to be in order")
    dtype = np.dtype(str(data.dtype).removeprefix("torch."))
    factors = np.ones(length, dtype if dtype.kind == "f" else np.float64)
    factors[1:] = 0.5**elapsed
    factors = factors.reshape([-1 if d == place else 1 for d in range(data.ndim)])
    if _arrays.any_dask(data):
        return handlers("dask").blocks_like(data, factors, place)
    return _arrays.copy_to_device_of(data, factors) if _is_opaque(data) else factors


_UNITS: dict[str, Any] = {
    "w": "W", "d": "D", "day": "D", "days": "D", "h": "h", "hour": "h", "hours": "h", "m": "m", "min": "m",
    "minute": "m", "minutes": "m", "s": "s", "sec": "s", "second": "s", "seconds": "s", "ms": "ms", "us": "us",
    "ns": "ns",
}  # fmt: skip


def _duration(halflife: Any) -> np.timedelta64:
    """The half-life for times of datetime64: a timedelta64, a datetime.timedelta, or text as "36h"."""
    duration: np.timedelta64 = np.timedelta64("NaT")
    if isinstance(halflife, str):
        match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]+)\s*", halflife)
        if match and match[2].lower() in _UNITS:
            duration = np.timedelta64(int(match[1]), _UNITS[match[2].lower()])
    elif isinstance(halflife, (np.timedelta64, datetime.timedelta)):
        duration = np.timedelta64(halflife)
    if np.isnat(duration):
        expected = "a timedelta64, a datetime.timedelta or text as '36h', as times are datetime64"
        raise TypeError(f"halflife: expected {expected}, got {halflife!r}")
    return duration


@functools.lru_cache(256)
def _plain_step(factor: float | None) -> Update:
    if factor is None:
        return lambda y, x: x[1] * y + (1 - x[1]) * x[0]
    weight = 1 - factor
    return lambda y, x: factor * y + weight * x


@functools.lru_cache(256)
def _missing_step(constant: float | None, ignore_na: bool) -> Update:
    """The state is the mean, and its weight, decayed since the last value, relative to that of the next value."""

    def step(state: Any, inputs: Any) -> Any:
        mean, old = state
        x, factor = inputs if constant is None else (inputs, constant)
        known = x == x
        old = np.where(known, factor * old, old) if ignore_na else factor * old
        # With times, the two weights sum to 1; by steps, a gap does not change the weight of the next value.
        weight = 1 - old if constant is None else 1 - constant
        new = np.where(mean != mean, x, (old * mean + weight * x) / (old + weight))
        mean = np.where(known, new, mean)
        return (mean, np.where(known, 1.0, np.where(mean != mean, 1.0, old))), mean

    return step


@functools.lru_cache(256)
def _sums_step(factor: float | None, ignore_na: bool, is_mean: bool) -> Update:
    """The first state is the weighted sum; the second is the sum of the weights, or whether there was a value."""

    def step(state: Any, x: Any) -> Any:
        (total, weights), (value, decay) = state, x if factor is None else (x, factor)
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
