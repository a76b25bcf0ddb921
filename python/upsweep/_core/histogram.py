"""The problem class of histograms, and the checks of their arguments.

Checks turn `bins` and `range` into edges and thresholds (`bin_thresholds`). Error messages use the words of
``np.histogram`` and ``torch.histc``. The range of the data needs a backend; callers pass the function that finds
it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from upsweep import _arrays
from upsweep._arrays import DeviceView, Operand
from upsweep._arrays.dates import as_dates, in_utc
from upsweep._core import bin_thresholds
from upsweep._core.bin_thresholds import UniformBins
from upsweep._utils.integers import as_integer

MAX_BINS = 1 << 30  # kernels compute bins in 32 bits


@dataclass(frozen=True)
class Histogram:
    """A checked histogram. `weights` has x's shape.

    `thresholds` come from `bin_thresholds`; for elements on a device `UniformBins` leave them to it.
    """

    x: Operand
    weights: Operand | None
    thresholds: Any
    n_bins: int


class Extremes(NamedTuple):
    """The least and the largest element, and the first element that is not finite."""

    low: Any  # NaN if there is a NaN, or the extreme of all other elements
    high: Any
    position: tuple[int, ...] | None = None  # None: all elements are finite
    value: Any = None


FindExtremes = Callable[[Operand], Extremes]  # of an array with at least one element


def as_numbers(x: object) -> Operand:
    """Return the elements: real numbers, bool as bytes, with np.histogram's warning."""
    numbers = _arrays.as_operand(x, "x")
    if numbers.dtype.kind == "c":
        raise TypeError(f"x: expected real numbers, got dtype {numbers.dtype}")
    if numbers.dtype != np.bool_:
        return numbers
    text = f"Converting input from {numbers.dtype} to {np.uint8} for compatibility."
    warnings.warn(text, RuntimeWarning, stacklevel=3)
    return numbers.view(np.uint8)


def dates_and_edges(x: Any, bins: Any, ends: Any) -> tuple[Operand, Operand, Operand]:
    """Return dates and edges as int64 in a common unit, and the edges as dates. NaT is below all edges.

    Edges of bins of equal width, of which numpy has none for dates, are rounded down to the unit.
    """
    x, bins, ends = in_utc(x=x, bins=bins, range=ends).values()
    dates = as_dates(x, "x")
    if dates.dtype.kind not in "mM":
        raise TypeError("x: expected dates or durations alone, got some beside other objects")
    if isinstance(bins, str):
        raise TypeError(f"bins: the rule {bins!r} goes with numbers, x has {dates.dtype}; give a number, or edges")
    if np.ndim(bins):
        edges, name = as_dates(bins, "bins"), "bins"
    elif ends is None and not dates.size:
        raise ValueError("range: needed for a number of bins, as x has no dates")
    else:
        limits = (dates.min(), dates.max()) if ends is None else ends
        edges, name = as_dates([*limits] if np.ndim(limits) else limits, "range"), "range"
    if edges.dtype.kind != dates.dtype.kind:
        kind = "datetime64" if dates.dtype.kind == "M" else "timedelta64"
        raise TypeError(f"{name}: expected {kind}, as x has {dates.dtype}, got dtype {edges.dtype}")
    if name == "range" and edges.shape != (2,):
        raise ValueError(f"range: expected two dates, got {ends!r}")
    if name == "range" and np.isnat(edges).any():
        which = "autodetected" if ends is None else "supplied"
        remedy = "; leave NaT out, x[~np.isnat(x)] or x.dropna(), or pass range" if ends is None else ""
        raise ValueError(f"x: {which} range of [{edges[0]}, {edges[-1]}] is not finite{remedy}")
    try:
        common = np.result_type(dates.dtype, edges.dtype)
    except (TypeError, OverflowError):
        raise TypeError(f"{name}: {edges.dtype} and {dates.dtype} of x have no unit in common") from None
    numbers = _in_unit(dates, common, "x")
    if name == "range":
        edges = _equal_widths(_in_unit(edges, common, name), as_count(bins), common)
    elif np.isnat(edges).any():
        raise ValueError("bins: `bins` must increase monotonically, when an array: one is NaT")
    return numbers, _in_unit(edges, common, name), edges


def _in_unit(dates: Any, dtype: np.dtype[Any], name: str) -> Any:
    converted = dates.astype(dtype, copy=False)
    if converted.dtype != dates.dtype and ((converted.astype(dates.dtype) != dates) & ~np.isnat(dates)).any():
        raise OverflowError(f"{name}: {dtype} cannot hold all of its dates")
    return converted.view(np.int64)


def _equal_widths(ends: Any, n_bins: int, dtype: np.dtype[Any]) -> Any:
    """Return edges between two integers as dates, with integers in place of a float's roundings."""
    first, last = map(int, ends)
    if first > last:
        raise ValueError("range: max must be larger than min in range parameter")
    width, rest = divmod(last - first, n_bins)
    if not width:
        raise ValueError(
            f"bins: Too many bins for data range. Cannot create {n_bins} bins from {ends.view(dtype)[0]} to "
            f"{ends.view(dtype)[1]} in whole {dtype}; convert x to a finer unit, or pass range"
        )
    n = np.arange(n_bins + 1, dtype=np.uint64)  # their sums wrap around to int64's
    return (ends[:1].view(np.uint64) + n * np.uint64(width) + n * np.uint64(rest) // np.uint64(n_bins)).view(dtype)


def as_weights(weights: object, x: Operand) -> Operand | None:
    """Return the weights, which must have x's shape."""
    array = None if weights is None else _arrays.as_operand(weights, "weights")
    if array is not None:
        check_weights(array, x)
    return array


def check_weights(weights: Any, x: Any) -> None:
    """Raise unless weights have x's shape."""
    if weights.shape != x.shape:
        raise ValueError(
            f"weights: expected x's shape {x.shape}, got {weights.shape}; weights have the same shape as x"
        )


def as_count(bins: object) -> int:
    """Return the number of bins."""
    n_bins = as_integer(bins, "bins", "`bins` must be an integer, a string, or an array")
    if n_bins < 1:
        raise ValueError(f"bins: `bins` must be positive, when an integer, got {n_bins}")
    return _check_max_bins(n_bins)


def _check_max_bins(n_bins: int) -> int:
    if n_bins > MAX_BINS:
        raise ValueError(f"bins: expected at most 2**30, got {n_bins}")
    return n_bins


def explicit_edges(bins: ArrayLike | str, dtype: np.dtype[Any]) -> tuple[Operand, Operand]:
    """Return the edges that the user passed, and their thresholds for elements of `dtype`."""
    edges = _arrays.as_array(bins, "bins")
    if edges.ndim != 1:
        raise ValueError(f"bins: `bins` must be 1d, when an array, got {edges.ndim}-D")
    if edges.dtype.kind == "c":
        raise TypeError(f"bins: expected real numbers, got dtype {edges.dtype}")
    _check_max_bins(edges.size - 1)
    if not (edges[:-1] <= edges[1:]).all():  # NaN fails this check, too
        first = int(np.argmin(edges[:-1] <= edges[1:]))
        raise ValueError(
            "bins: `bins` must increase monotonically, when an array: "
            f"element {first + 1} is {edges[first + 1]}, after {edges[first]}; for bins of several coordinates "
            "count combined keys by bincount"
        )
    if edges.size < 2:
        return edges, edges[:0]
    try:
        common = np.result_type(dtype, edges.dtype)
    except TypeError:  # bfloat16 does not promote with integers
        common = np.dtype(np.float64)
    return edges, bin_thresholds.edge_thresholds(edges, dtype, common)


def uniform_edges(
    x: Operand, bins: Any, ends: tuple[Any, Any] | None, weights: Operand | None, find_extremes: FindExtremes,
    on_host: bool,
) -> tuple[Operand | None, Operand | UniformBins]:  # fmt: skip
    """Return the edges of bins of equal width, and their thresholds. `ends` is the argument `range`.

    Unless `on_host`, the device of x computes both where it can; the edges are None then.
    """
    bins = bins if isinstance(bins, str) else as_count(bins)
    first, last = _data_range(x, find_extremes) if ends is None else _as_range(ends)
    bins = _bins_of_rule(x, bins, ends, weights) if isinstance(bins, str) else bins
    if first == last:
        first, last = first - 0.5, last + 0.5
    try:
        dtype = np.result_type(first, last, x.dtype)
    except TypeError as error:
        raise TypeError(f"range: its ends do not compare with x of dtype {x.dtype}: {error}") from None
    if dtype.kind in "iu":
        dtype = np.dtype(np.float64)
    numbers_dtype = x.dtype.newbyteorder("=")
    uniform = None if on_host else bin_thresholds.uniform_bins(first, last, bins, dtype, numbers_dtype)
    if uniform is not None:
        return None, uniform
    with np.errstate(all="ignore"):
        edges = np.linspace(first, last, bins + 1, dtype=dtype)
        # numpy does not check the width, and indexes out of bounds where it overflows float16.
        width = edges[-1] - edges[0] if ends is not None else np.subtract(last, first)
    if not (width < np.inf and (edges[:-1] < edges[1:]).all()):
        raise ValueError(
            f"bins: Too many bins for data range. Cannot create {bins} finite-sized bins from {first} to {last}"
        )
    return edges, bin_thresholds.uniform_thresholds(edges, first, last, numbers_dtype)


def _bins_of_rule(x: Operand, rule: str, ends: tuple[Any, Any] | None, weights: Operand | None) -> int:
    if isinstance(x, DeviceView):
        raise TypeError(f"bins: the rule {rule!r} needs elements in the host's memory; give a number, or edges")
    if weights is not None:
        what = "Automated estimation of the number of bins"
        raise TypeError(f"bins: {what} is not supported for weighted data: {rule!r}")
    x = x.astype(np.float64) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x  # numpy's sums overflow
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            n_bins = int(np.histogram_bin_edges(x, rule, ends).size) - 1
    except ValueError as error:
        raise ValueError(f"bins: {error}") from None
    if n_bins < 1:  # of numbers whose squares overflow
        raise ValueError(f"bins: the rule {rule!r} overflows {x.dtype}; scale x, or give a number")
    return n_bins


def _as_range(ends: Any) -> tuple[Any, Any]:
    try:
        first, last = (_as_end(value) for value in ends)
    except (TypeError, ValueError) as error:
        raise type(error)(f"range: expected two real numbers, got {ends!r}") from None
    if first > last:
        raise ValueError(f"range: max must be larger than min in range parameter, got {ends!r}")
    if not (np.isfinite(first) and np.isfinite(last)):
        raise ValueError(f"range: supplied range of [{first}, {last}] is not finite")
    if isinstance(last, int) and last >= 2**63:  # numpy treats Python integers as int64
        wide = np.uint64 if isinstance(first, int) and first >= 0 else np.float64
        return wide(first), wide(last)
    return first, last


def refuse_long_double(ends: Any) -> None:
    """Raise TypeError if the edges of this range would be long double, which only numpy has."""
    numbers = ends if isinstance(ends, (tuple, list, np.ndarray)) else ()
    if any(isinstance(number, np.longdouble) and number.itemsize > 8 for number in numbers):
        raise TypeError(f"range: long doubles go with numpy arrays only, got {ends!r}")


def _as_end(value: Any) -> Any:
    """Return the number as Python's or numpy's, whichever was passed, because they promote differently."""
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, int):
        if -(2**63) <= value < 2**64:
            return value
        return float(value) if abs(value) < 2**1023 else math.inf if value > 0 else -math.inf
    number = value if isinstance(value, float) else np.asarray(value)[()]
    if np.ndim(number) != 0 or np.asarray(number).dtype.kind not in "iuf":
        raise TypeError
    return number


def _data_range(x: Operand, find_extremes: FindExtremes) -> tuple[Any, Any]:
    """Return the least and the largest element as numbers of x's dtype; 0 and 1 if there are no elements."""
    if x.size == 0:
        return 0, 1
    low, high, position, value = find_extremes(x)
    if position is not None:
        ends = (np.nan, np.nan) if np.isnan(low) or np.isnan(value) else (low, high)
        where = position[0] if x.ndim == 1 else position
        raise ValueError(
            f"x: autodetected range of [{ends[0]}, {ends[1]}] is not finite: element {where} is {value}; give a "
            "range, which leaves it out"
        )
    dtype = x.dtype.newbyteorder("=")
    return dtype.type(low), dtype.type(high)


def histc_range(x: Operand, low: Any, high: Any, find_extremes: FindExtremes) -> tuple[Any, Any]:
    """Return the range in x's dtype; for integers as Python numbers, which may be fractions."""
    low, high = _as_finite(low, "min"), _as_finite(high, "max")
    if low > high:
        raise ValueError(f"max: max must be larger than min, got [{low}, {high}]")
    dtype = x.dtype.newbyteorder("=")
    if dtype.kind in "iu":
        if low == high and x.size:
            low, high = _data_range(x, find_extremes)
        low, high = (end.item() if isinstance(end, np.generic) else end for end in (low, high))
        return (low - 1, high + 1) if low == high else (low, high)
    with np.errstate(all="ignore"):
        begin, end = dtype.type(low), dtype.type(high)
        if begin == end and x.size:
            begin, end = _data_range(x, find_extremes)
        if begin == end:
            begin, end = _widened(begin, -1, dtype), _widened(end, 1, dtype)
        if not (np.isfinite(end - begin) and begin < end):
            raise ValueError(f"min: range of [{begin}, {end}] is too wide or too far from zero for {dtype}")
    return begin, end


def _widened(end: Any, by: int, dtype: np.dtype[Any]) -> Any:
    """Return the end moved by 1 or, as torch does from 2.13 on, to the next number of float32 or float64."""
    moved = end + dtype.type(by)
    is_rounded = moved == end and dtype.itemsize > 2
    return np.nextafter(end, dtype.type(by * np.inf)) if is_rounded else moved


def _as_finite(value: Any, name: str) -> Any:
    try:
        number = _as_end(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a real number, got {value!r}") from None
    is_python = type(number) is float or type(number) is int  # numpy's function takes ten times as long
    if not (math.isfinite(number) if is_python else np.isfinite(number)):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return number
