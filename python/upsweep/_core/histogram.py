"""The problem class of histograms, and the checks of their arguments.

Checks turn `bins` and `range` into edges and thresholds (`bin_thresholds`). Error messages use the words of
``np.histogram`` and ``torch.histc``. The range of the data needs a backend; callers pass the function that finds
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from upsweep import _arrays
from upsweep._arrays import DeviceView, Operand
from upsweep._core import bin_thresholds
from upsweep._utils.integers import as_integer

_MAX_BINS = 1 << 30  # kernels compute bins in 32 bits


@dataclass(frozen=True)
class Histogram:
    """A checked histogram. `weights` has x's shape; `thresholds` come from `bin_thresholds`."""

    x: Operand
    weights: Operand | None
    thresholds: Operand
    n_bins: int


class Extremes(NamedTuple):
    """The least and the largest element, and the first element that is not finite."""

    low: Any  # NaN if there is a NaN, or the extreme of all other elements
    high: Any
    position: tuple[int, ...] | None = None  # None: all elements are finite
    value: Any = None


FindExtremes = Callable[[Operand], Extremes]  # of an array with at least one element


def as_numbers(x: ArrayLike) -> Operand:
    """Return the elements: real numbers, bool as bytes."""
    numbers = _arrays.as_operand(x, "x")
    if numbers.dtype.kind == "c":
        raise TypeError(f"x: expected real numbers, got dtype {numbers.dtype}")
    return numbers.view(np.uint8) if numbers.dtype == np.bool_ else numbers


def as_weights(weights: ArrayLike | None, x: Operand) -> Operand | None:
    """Return the weights, which must have x's shape."""
    array = None if weights is None else _arrays.as_operand(weights, "weights")
    if array is not None and array.shape != x.shape:
        raise ValueError(f"weights: weights should have the same shape as x: {array.shape} and {x.shape}")
    return array


def as_count(bins: object) -> int:
    """Return the number of bins."""
    n_bins = as_integer(bins, "bins", "`bins` must be an integer, a string, or an array")
    if n_bins < 1:
        raise ValueError(f"bins: `bins` must be positive, when an integer, got {n_bins}")
    return _check_max_bins(n_bins)


def _check_max_bins(n_bins: int) -> int:
    if n_bins > _MAX_BINS:
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
            f"element {first + 1} is {edges[first + 1]}, after {edges[first]}"
        )
    if edges.size < 2:
        return edges, edges[:0]
    try:
        common = np.result_type(dtype, edges.dtype)
    except TypeError:  # bfloat16 does not promote with integers
        common = np.dtype(np.float64)
    return edges, bin_thresholds.edge_thresholds(edges, dtype, common)


def uniform_edges(
    x: Operand, bins: Any, ends: tuple[Any, Any] | None, weights: Operand | None, find_extremes: FindExtremes
) -> tuple[Operand, Operand]:
    """Return the edges of bins of equal width, and their thresholds. `ends` is the argument `range`."""
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
    with np.errstate(all="ignore"):
        edges = np.linspace(first, last, bins + 1, dtype=dtype)
        # numpy does not check the width, and indexes out of bounds where it overflows float16.
        width = edges[-1] - edges[0] if ends is not None else np.subtract(last, first)
    if not (width < np.inf and (edges[:-1] < edges[1:]).all()):
        raise ValueError(
            f"bins: Too many bins for data range. Cannot create {bins} finite-sized bins from {first} to {last}"
        )
    return edges, bin_thresholds.uniform_thresholds(edges, first, last, x.dtype.newbyteorder("="))


def _bins_of_rule(x: Operand, rule: str, ends: tuple[Any, Any] | None, weights: Operand | None) -> int:
    if isinstance(x, DeviceView):
        raise TypeError(f"bins: the rule {rule!r} needs elements in the host's memory; give a number, or edges")
    if weights is not None:
        what = "Automated estimation of the number of bins"
        raise TypeError(f"bins: {what} is not supported for weighted data: {rule!r}")
    try:
        return int(np.histogram_bin_edges(x, rule, ends).size) - 1
    except ValueError as error:
        raise ValueError(f"bins: {error}") from None


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
            f"x: autodetected range of [{ends[0]}, {ends[1]}] is not finite: element {where} is {value}"
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
            begin, end = begin - dtype.type(1), end + dtype.type(1)
        if not (np.isfinite(end - begin) and begin < end):
            raise ValueError(f"min: range of [{begin}, {end}] is too wide or too far from zero for {dtype}")
    return begin, end


def _as_finite(value: Any, name: str) -> Any:
    try:
        number = _as_end(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a real number, got {value!r}") from None
    is_python = type(number) is float or type(number) is int  # numpy's function takes ten times as long
    if not (math.isfinite(number) if is_python else np.isfinite(number)):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return number
