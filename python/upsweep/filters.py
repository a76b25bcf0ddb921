"""Linear filters, most of which are an update for `upsweep.scan`, and what runs updates with coefficients.

`lfilter` checks and converts its arguments, chooses an update and calls `scan`. For numpy arrays, coefficients
are parameters of the update: calls with other coefficients use the compiled scan of an earlier one. Filters of
numpy arrays that no update suits, without feedback, of high order, complex or longdouble, go to an executor of
their own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import Array, Axis
from upsweep._arrays.dispatch import handlers
from upsweep._arrays.libraries import PLAIN
from upsweep._compiler.recurrences.recurrence import Parameter, parameters_of
from upsweep._core.checks import check_scan_axis, shape_error
from upsweep._user_scan.cached_calls import scan_arrays
from upsweep._user_scan.problem import as_real, check_real, flatten
from upsweep.user_scan import scan

if TYPE_CHECKING:
    from upsweep._arrays.static_types import A, ArrayLike, HostArray
else:
    from numpy.typing import ArrayLike

__all__ = ["lfilter"]

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
    is_opaque, is_lazy = is_opaque_array(data), _arrays.any_dask(data, start)
    if is_opaque or is_lazy:
        _check_update(top, bottom, order)
    elif start is not None and is_opaque_array(start):
        raise TypeError(f"zi: expected a numpy array, as x is, got {_arrays.type_name(zi)}")
    operands = [top, bottom] if is_opaque else [top, bottom, data] if start is None else [top, bottom, data, start]
    wide = np.result_type(*(np.float64 if o.dtype.kind in "biu" else o.dtype for o in operands))
    dtype = np.result_type(wide, np.float32)
    numerator, denominator = _normalised(top, bottom, order, dtype.char in "gG")
    if is_opaque:
        states = (0.0,) * max(order, 1) if not order or start is None else _parts(start, order, place)
        step = functools.partial(_filter_step, None) if order else _scale_step
        y, after = run_update(step, _numbers(numerator, denominator), states, data, place, return_final=True)
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
    y, after = run_update(
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


def run_update(
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


def without_parameters(numbers: Numbers, inputs: Any) -> tuple[Any, tuple[Any, ...]]:
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
        x, values = without_parameters(numbers, inputs)
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


def as_operand(value: Any, name: str) -> Any:
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
    """As `as_operand`, but a numpy array may be complex or longdouble."""
    if type(value) is not np.ndarray and (is_opaque_array(value) or _arrays.any_dask(value)):
        return as_operand(value, name)
    return _check_number(_arrays.as_ndarray(value, name), name)


def _check_number(array: Array, name: str) -> Array:
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{name}: expected real or complex numbers, got dtype {array.dtype}")
    return array


def is_opaque_array(data: Any) -> bool:
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
