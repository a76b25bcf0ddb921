"""Linear filters and exponentially weighted windows, most of which are an update for `upsweep.scan`.

The functions check and convert their arguments, choose an update and call `scan`. For numpy arrays, coefficients
are parameters of the update: calls with other coefficients use the compiled scan of an earlier one. Filters of
numpy arrays that no update suits, without feedback, of high order, complex or longdouble, go to an executor of
their own.
"""

from __future__ import annotations

import datetime
import functools
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Never, overload

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import Array, Axis, dates
from upsweep._arrays.dispatch import handlers
from upsweep._arrays.libraries import PLAIN
from upsweep._compiler.recurrences.recurrence import Parameter, parameters_of
from upsweep._core.checks import check_scan_axis, shape_error
from upsweep._user_scan.cached_calls import scan_arrays
from upsweep._user_scan.problem import as_real, check_real, flatten
from upsweep.user_scan import scan

if TYPE_CHECKING:
    from typing import Unpack

    from upsweep._arrays.static_types import A, ArrayLike, EwmKeywords, HostArray
else:
    from numpy.typing import ArrayLike

__all__ = ["ewm_mean", "ewm_sum", "lfilter"]

Update = Callable[[Any, Any], Any]
Numbers = tuple[float | Parameter, ...]

_MAX_ORDER = 16  # a compiled step holds about as many states in registers


# fmt: off
@overload
def lfilter(b: ArrayLike, a: ArrayLike, x: HostArray, axis: Axis = None, zi: None = None) -> Array: ...
@overload
def lfilter(
    b: ArrayLike, a: ArrayLike, x: HostArray, axis: Axis = None, *, zi: ArrayLike
) -> tuple[Array, Array]: ...
@overload
def lfilter(b: ArrayLike, a: ArrayLike, x: A, axis: Axis = None, zi: None = None) -> A: ...
@overload
def lfilter(b: ArrayLike, a: ArrayLike, x: A, axis: Axis = None, *, zi: ArrayLike) -> tuple[A, A]: ...
@overload
def lfilter(b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: Axis = None, zi: ArrayLike | None = None) -> Any: ...
# fmt: on
def lfilter(b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: Axis = None, zi: ArrayLike | None = None) -> Any:
    """Filter along `axis`, by default the last, by a rational transfer function, as ``scipy.signal.lfilter``.

    a[0] y[t] = b[0] x[t] + b[1] x[t-1] + ... - a[1] y[t-1] - a[2] y[t-2] - ...

    Parameters
    ----------
    b, a : array_like
        The coefficients of the numerator and the denominator, 1-D; a[0] is not 0.
    x : array_like, tensor or array of a CUDA device
        Numbers; at least one axis. A tensor has gradients.
    axis : int or str, optional
        The axis that the filter runs along. Default: the last; of a DataFrame 0, down its rows. Of a DataArray the
        name of a dimension, needed if there are several.
    zi : array_like, optional
        The state before the first step, in transposed direct form II, of the shape of `x` with
        ``max(len(a), len(b)) - 1`` along `axis`, or an array that broadcasts to it.

    Returns
    -------
    y : array
        Of the shape of `x`; float32 if all arguments are float32 or float16, else float64, and complex or
        longdouble if an argument is. Lists of Python's floats count as float64. Tensors and arrays on a device
        keep the dtype of `x`.
    zf : array
        Only with `zi`: the state after the last step.

    Raises
    ------
    TypeError
        An argument is no array of numbers; or a tensor, a dask array, an array on a device or one of their
        coefficients is complex or longdouble.
    ValueError
        Coefficients are not 1-D or empty, or a[0] is 0; `zi` or `axis` does not fit; the order is above 16, and
        `x` is no numpy array.

    Notes
    -----
    Up to order 4, few long lines are filtered parallel in time, and blocks of a dask array at the same time;
    above, the blocks are filtered in sequence.

    Numpy arrays have filters of any order. Those without feedback, of an order above 16, or complex, are computed
    in float64 and rounded once, as are their states; longdouble is computed in longdouble. All products are
    summed, without an FFT, whose error would be relative to the largest number around. So an output is exactly 0
    before the first input that is not, and NaN stays within the `b` that it meets. Real coefficients filter the
    two parts of complex numbers, and terms with a coefficient of 0 are left out. As in every direct form, rounding
    is amplified where poles are nearly equal: design filters of high order as ``scipy.signal.sosfilt`` takes them.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.lfilter([0.5], [1.0, -0.5], [1.0, 1.0, 1.0])
    array([0.5  , 0.75 , 0.875])
    >>> y, state = upsweep.lfilter([1.0, 1.0], [1.0], [1.0, 2.0, 3.0], zi=[10.0])
    >>> y, state
    (array([11.,  3.,  5.]), array([3.]))
    """
    if type(x) not in PLAIN and _arrays.any_labelled(x):
        _arrays.refuse_labels(zi=zi)
        labels = handlers("labelled").without_labels({"x": x}, {}, axis, lead=("x",))
        result = lfilter(b, a, labels.arrays["x"], labels.axis, zi)
        return labels.steps(result) if zi is None else (labels.steps(result[0]), result[1])
    if _is_compiled(x):
        return handlers("torch").user_scan.lfilter(lfilter, b, a, x, axis, zi)
    top, bottom = _coefficients(b, "b"), _coefficients(a, "a")
    data = _samples(x, "x")
    place = check_scan_axis(axis, data.shape, "x")
    if bottom[0] == 0:
        raise ValueError("a: a[0] is 0")
    order = max(len(top), len(bottom)) - 1
    shape = tuple(data.shape[:place]) + (order,) + tuple(data.shape[place + 1 :])
    start = None if zi is None else _broadcast(_samples(zi, "zi"), shape, place)
    is_opaque, is_lazy = _is_opaque(data), _arrays.any_dask(data, start)
    if is_opaque or is_lazy:
        _check_update(top, bottom, order)
    elif start is not None and _is_opaque(start):
        raise TypeError(f"zi: expected a numpy array, as x is, got {_arrays.type_name(zi)}")
    operands = [top, bottom] if is_opaque else [top, bottom, data] if start is None else [top, bottom, data, start]
    wide = np.result_type(*(np.float64 if o.dtype.kind in "biu" else o.dtype for o in operands))
    dtype = np.result_type(wide, np.float32)
    numerator, denominator = _normalised(top, bottom, order, dtype.char in "gG")
    if is_opaque:
        states = (0.0,) * max(order, 1) if not order or start is None else _parts(start, order, place)
        step = functools.partial(_filter_step, None) if order else _scale_step
        y, after = _scan(step, _numbers(numerator, denominator), states, data, place, return_final=True)
        return y if start is None else (y, _arrays.stacked(after, place) if order else zi)
    if order == 0:
        y = np.multiply(data, numerator[0], dtype=dtype)
        return y if start is None else (y, start.astype(dtype))
    if not is_lazy and (dtype.char not in "fd" or order > _MAX_ORDER or not any(denominator[1:].tolist())):
        y, after = _backends.cpu_filter.lfilter(numerator, denominator, data, place, dtype, start)
        return y if start is None else (y, after)
    zeros = (dtype.type(0),) * order
    before = zeros if start is None else tuple(part.astype(dtype) for part in _parts(start, order, place))
    step = functools.partial(_filter_step, dtype.name)
    y, after = _scan(
        step, _numbers(numerator, denominator), before, data, place, return_final=True, are_parameters=not is_lazy
    )
    return y if start is None else (y, np.stack(after, axis=place))


def _normalised(b: Array, a: Array, order: int, is_long: bool) -> tuple[Array, Array]:
    """The coefficients divided by a[0], as many of each, in the dtype that a filter is computed in."""
    is_complex = b.dtype.kind == "c" or a.dtype.kind == "c"
    dtype = np.dtype(("G" if is_complex else "g") if is_long else "D" if is_complex else "d")
    numerator, denominator = np.zeros(order + 1, dtype), np.zeros(order + 1, dtype)
    first = a[0].astype(dtype)
    numerator[: len(b)] = b.astype(dtype) / first
    denominator[: len(a)] = a.astype(dtype) / first
    if is_complex and not (numerator.imag.any() or denominator.imag.any()):
        return numerator.real.copy(), denominator.real.copy()
    return numerator, denominator


def _numbers(numerator: Array, denominator: Array) -> tuple[float, ...]:
    """The numbers of `_filter_step`, without negative zeros, since caches compare them."""
    return (*(0.0 + numerator).tolist(), *(0.0 - denominator[1:]).tolist())


def _check_update(b: Array, a: Array, order: int) -> None:
    """Raise for coefficients that no update of `scan` takes, which filters all arrays but those of numpy."""
    for name, array in {"b": b, "a": a}.items():
        if array.dtype.kind == "c" or array.dtype.char == "g":
            raise TypeError(
                f"{name}: expected real numbers of up to 64 bits, got dtype {array.dtype}; only numpy arrays are "
                "filtered with others"
            )
    if order > _MAX_ORDER:
        raise ValueError(
            f"b, a: order {order} is above {_MAX_ORDER}, up to which tensors, dask arrays and arrays on a device "
            "are filtered; pass x as a numpy array"
        )


def _parts(start: Any, n: int, axis: int) -> tuple[Any, ...]:
    """The slices along an axis, without that axis, of an array of any library."""
    return tuple(start[(slice(None),) * axis + (k,)] for k in range(n))


def _scan(
    update_of: Callable[[Numbers], Update], numbers: tuple[float, ...], states: Any, xs: Any, axis: int, *,
    return_final: bool = False, are_parameters: bool = False,
) -> Any:  # fmt: skip
    """Run `scan` with the update of some numbers, which may be parameters if the arrays are numpy's."""
    if not are_parameters:
        if isinstance(update_of, functools.partial) and _is_compiled(*xs if isinstance(xs, tuple) else (xs,)):
            # The compiler would trace the function below the cache, too, but warn of the cache.
            cached: Any = update_of.func
            update_of = functools.partial(cached.__wrapped__, *update_of.args)
        return scan(update_of(numbers), states, xs, axis=axis, return_final=return_final)
    pattern, parameters = parameters_of(numbers)
    (init, state_structure), (inputs, input_structure) = flatten(states, "init"), flatten(xs, "xs")
    return scan_arrays(
        update_of(pattern), init, inputs, (state_structure, input_structure), axis, False, return_final, None,
        None, parameters,
    )  # fmt: skip


def _is_compiled(*arrays: Any) -> bool:
    """Whether torch's compiler traces this call."""
    return _arrays.any_torch(*arrays) and bool(sys.modules["torch"].compiler.is_dynamo_compiling())


def _unpacked(numbers: Numbers, inputs: Any) -> tuple[Any, tuple[Any, ...]]:
    """The inputs of an update without its parameters, which are the last ones; and its numbers with them."""
    n = len({number for number in numbers if isinstance(number, Parameter)})
    if not n:
        return inputs, numbers
    xs = inputs[:-n]
    values = tuple(inputs[number.place - n] if isinstance(number, Parameter) else number for number in numbers)
    return xs[0] if len(xs) == 1 else xs, values


@functools.lru_cache(256)
def _scale_step(numbers: Numbers) -> Update:
    return lambda state, x: (state, numbers[0] * x)


@functools.lru_cache(256)
def _filter_step(dtype: str | None, numbers: Numbers) -> Update:
    """One step of the transposed direct form II, in a dtype to which the kernel casts x; None for that of x."""
    order = len(numbers) // 2

    def step(state: Any, inputs: Any) -> Any:
        x, values = _unpacked(numbers, inputs)
        b, minus_a = values[: order + 1], (None, *values[order + 1 :])
        x = x if dtype is None else x.astype(dtype)
        y = b[0] * x + state[0]
        new = []
        for k in range(1, order + 1):
            after = _plus(_scaled(b[k], x), _scaled(minus_a[k], y))
            new.append(after if k == order else _plus(state[k], after))
        return tuple(0 * x if value is None else value for value in new), y

    return step


def _scaled(factor: Any, value: Any) -> Any:
    return None if type(factor) is float and factor == 0 else factor * value


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


def _samples(value: Any, name: str) -> Any:
    """As `_operand`, but a numpy array may be complex or longdouble."""
    if type(value) is not np.ndarray and (_is_opaque(value) or _arrays.any_dask(value)):
        return _operand(value, name)
    return _check_number(_arrays.as_ndarray(value, name), name)


def _check_number(array: Array, name: str) -> Array:
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{name}: expected real or complex numbers, got dtype {array.dtype}")
    return array


def _is_opaque(data: Any) -> bool:
    """Whether this is a tensor or an array on a device, whose values are not read and whose dtype is kept."""
    return _arrays.any_torch(data) or _arrays.any_on_device(data)


def _coefficients(value: Any, name: str) -> Array:
    array = np.atleast_1d(_check_number(_arrays.as_ndarray(value, name), name))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name}: expected coefficients of shape (n,), got {array.shape}")
    return array


def _broadcast(start: Any, shape: tuple[int, ...], place: int) -> Any:
    try:
        if start.ndim != len(shape) or start.shape[place] != shape[place]:
            raise ValueError("another shape")
        return start.broadcast_to(shape) if _arrays.any_torch(start) else np.broadcast_to(start, shape)
    except (ValueError, RuntimeError):  # torch's
        error = shape_error("zi", shape, start)
        if tuple(start.shape) == (shape[place],):
            index = ", ".join(":" if d == place else "None" for d in range(len(shape)))
            raise ValueError(f"{error}; for the same state in all lines, pass zi[{index}]") from None
        raise error from None


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
    is_opaque = _is_opaque(data)
    may_miss_values = is_opaque or _arrays.any_dask(data)  # it is not known whether values are missing
    if not is_opaque and not data.size:
        return data.copy()
    if adjust:
        zero, nothing = (0.0, np.nan) if is_opaque else (data.dtype.type(0), data.dtype.type(np.nan))
        y: Array = _scan(
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
    result: Array = _scan(step, weights, state, xs, place, are_parameters=not may_miss_values)
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
    is_opaque = _is_opaque(data)
    if not is_opaque and not data.size:
        return data.copy()
    zero = 0.0 if is_opaque else data.dtype.type(0)
    step = functools.partial(_sums_step, bool(ignore_na), False)
    is_host = not (is_opaque or _arrays.any_dask(data))
    y: Array = _scan(step, decay, (zero, zero), xs, place, are_parameters=is_host)
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
    data = _operand(x, "x")
    place = check_scan_axis(axis, data.shape, "x")
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
    if _is_opaque(times):
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
    return _arrays.copy_to_device_of(data, factors) if _is_opaque(data) else factors


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
        x, values = _unpacked(numbers, inputs)
        if values:
            factor, weight = values
            return factor * y + weight * x
        return x[1] * y + (1 - x[1]) * x[0]

    return step


@functools.lru_cache(256)
def _missing_step(ignore_na: bool, numbers: Numbers) -> Update:
    """The state is the mean, and its weight, decayed since the last value, relative to that of the next value."""

    def step(state: Any, inputs: Any) -> Any:
        (mean, old), (x, values) = state, _unpacked(numbers, inputs)
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
        (total, weights), (x, values) = state, _unpacked(numbers, inputs)
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
