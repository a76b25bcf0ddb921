"""From the edges of bins to thresholds: the least number, in x's own type, that reaches each bin.

Every rule by which a function puts a number into a bin is such that a greater number is never in a lower bin,
so that the bin is the number of thresholds that are reached (src/histogram.hpp). The thresholds are found here
with the arithmetic of the library that is followed, its roundings and promotions included: directly where a bound
shows that the rule agrees with comparing to the edges, else by bisection over all numbers of the type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep._backends import cpu

__all__ = ["Histogram", "given_thresholds", "key_dtype", "linear_thresholds", "uniform_thresholds"]

Array = NDArray[Any]
DType = np.dtype[Any]

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_EXACT = {_FLOAT32: 2.0**24, _FLOAT64: 2.0**53}  # integers up to these are keys
_EPS = {2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}  # by size; of two bytes bfloat16's, the coarser


@dataclass(frozen=True)
class Histogram:
    """A checked histogram. `weights` has x's shape; `thresholds` are as :func:`given_thresholds` returns them."""

    x: Array
    weights: Array | None
    thresholds: Array
    n_bins: int


def key_dtype(dtype: DType) -> DType:
    """The dtype in which elements of this one are compared, which holds them all."""
    if dtype.kind in "iu" and dtype.itemsize == 8:
        return np.dtype(np.int64 if dtype.kind == "i" else np.uint64)
    return _FLOAT64 if dtype.itemsize > 2 and dtype != _FLOAT32 else _FLOAT32


def given_thresholds(edges: Array, dtype: DType, common: DType) -> Array:
    """Thresholds of bins between edges, the last closed, for elements of `dtype` compared in `common`.

    One an edge; those that no element can reach, greater than all others, are left out.
    """
    key = key_dtype(dtype)
    values = edges.astype(common)
    if common.kind in "iu":
        return _of_integers(values, key)
    if key.kind in "iu":
        return _of_integer_keys(values, dtype)
    with np.errstate(all="ignore"):
        values[-1:] = np.nextafter(values[-1:], common.type(np.inf))
        if common == key or np.can_cast(common, key):
            thresholds = values.astype(key, copy=False)
        else:
            thresholds = _rounded_up(values, key)
    # A closed bin up to infinity has nothing above it.
    return thresholds[:-1] if edges[-1] == np.inf else thresholds


def _rounded_up(values: Array, key: DType) -> Array:
    near = values.astype(key)
    return np.where(near.astype(values.dtype) < values, np.nextafter(near, key.type(np.inf)), near)


def _of_integers(values: Array, key: DType) -> Array:
    """Integer edges, compared as integers: the first above the last edge is the next one."""
    if key.kind in "iu":
        if values[-1] == np.iinfo(key).max:
            return values[:-1].astype(key)
        return np.concatenate((values[:-1], values[-1:] + 1)).astype(key)
    # The keys hold all elements exactly, and none lies outside of this.
    low, high = (max(-_EXACT[key], np.iinfo(values.dtype).min), min(_EXACT[key] - 1, np.iinfo(values.dtype).max))
    clipped = np.clip(values, int(low), int(high)).astype(key)
    clipped[-1] += 1
    return clipped


def _of_integer_keys(values: Array, dtype: DType) -> Array:
    """Edges that are no integers, for integers of 64 bits: rounded up, where float64 holds these exactly."""
    key = key_dtype(dtype)
    least = np.ceil(values)
    least[-1] = np.floor(values[-1]) + 1
    if np.abs(least).max() <= _EXACT[_FLOAT64]:
        if key.kind == "u":
            least = np.maximum(least, 0)
        return least.astype(key)
    last = values.size - 1

    def reaches(x: Array, at: Array) -> Array:
        compared = x.astype(values.dtype)
        reached: Array = np.where(at == last, compared > values[at], compared >= values[at])
        return reached

    return _bisect(reaches, values.size, dtype)


# ---- uniform bins: numpy's rule --------------------------------------------------------------------------------


def uniform_thresholds(edges: Array, first: Any, last: Any, dtype: DType) -> Array:
    """Thresholds of ``np.histogram`` for uniform bins of these edges, from `first` to `last`, which are numbers as
    numpy gets them: the promotion of Python's differs from that of its own."""
    if _lie_between_edges(edges, first, last, dtype):
        return given_thresholds(edges, dtype, edges.dtype)

    def reaches(x: Array, at: Array) -> Array:
        reached: Array = _numpy_slots(x, edges, first, last) > at
        return reached

    return _bisect(reaches, edges.size, dtype)


def _lie_between_edges(edges: Array, first: Any, last: Any, dtype: DType) -> bool:
    """Whether numpy surely puts every element into the bin between whose edges it lies."""
    if edges.dtype.itemsize > 8:  # long double, to which the bound below does not reach
        return False
    low, high = float(first), float(last)
    common = np.result_type(first, last)
    coarsest = min(edges.dtype.itemsize, 8 if common.kind in "iu" else common.itemsize)
    places = (edges.size - 1) * _EPS[coarsest] * (max(abs(low), abs(high)) / (high - low) + 2)
    # Then the place that numpy calculates for edge k is less than one from k, and the step by which it is
    # corrected leads to the bin between whose edges the number lies. The roundings need a quarter of the bound.
    return places < 0.25 and all(
        _compares_in(edges.dtype, end, dtype) and edges.dtype.type(end) == edge
        for end, edge in ((first, edges[0]), (last, edges[-1]))
    )


def _compares_in(common: DType, end: Any, dtype: DType) -> bool:
    """Whether elements are compared to this end of the range in `common`, or with the same outcome."""
    if dtype.kind in "iu" and common == _FLOAT64:
        return abs(float(end)) <= _EXACT[_FLOAT64]
    return bool(np.result_type(dtype, end) == common)


def _numpy_slots(x: Array, edges: Array, first: Any, last: Any) -> Array:
    """numpy's own steps: the place on a line, corrected by one bin. 0 below the range, one more than bins above.

    Where it would look behind its edges, and raise IndexError, the place is taken to be in the last bin.
    """
    n_bins = edges.size - 1
    common = np.result_type(first, last)
    if common.kind == "i":
        unsigned = common.str.replace("i", "u")
        width = np.asarray(last, common).astype(unsigned) - np.asarray(first, common).astype(unsigned)
    else:
        width = np.subtract(last, first, dtype=common)
    with np.errstate(all="ignore"):
        numbers = x.astype(edges.dtype)
        distance = np.subtract(numbers, first, dtype=np.result_type(numbers, first))
        places = distance / width * n_bins
        bins = np.where(places < n_bins, np.maximum(places, 0), n_bins - 1).astype(np.intp)
        bins -= numbers < edges[bins]
        bins += (numbers >= edges[bins + 1]) & (bins != n_bins - 1)
        slots = np.where(x <= last, bins + 1, n_bins + 1)
        return np.where(x >= first, slots, 0)


# ---- a line: torch's rule --------------------------------------------------------------------------------------


def linear_thresholds(low: Any, high: Any, n_bins: int, dtype: DType) -> Array:
    """Thresholds of ``torch.histc``: bin ``(x - low) * bins / (high - low)``, cut to an integer, in x's dtype.

    For integers it is calculated exactly.
    """
    key = key_dtype(dtype)
    if dtype.kind in "iu":
        return _of_rationals(low, high, n_bins, dtype)
    if dtype.itemsize > 2:
        ends = np.array([low, high], key)
        thresholds = np.empty(n_bins + 1, key)
        cpu.histograms.find_linear_thresholds(ends, thresholds)
        return thresholds

    def reaches(x: Array, at: Array) -> Array:
        with np.errstate(all="ignore"):
            begin, end, bins = (dtype.type(value) for value in (low, high, n_bins))
            places = (x - begin) * bins / (end - begin)
            wide = places.astype(np.float64)  # in which n_bins is not rounded
            slots = np.where(wide < n_bins, np.maximum(wide, 0), n_bins - 1).astype(np.intp) + 1
            reached: Array = np.where(x <= end, np.where(x >= begin, slots, 0), n_bins + 1) > at
        return reached

    return _bisect(reaches, n_bins + 1, dtype)


def _of_rationals(low: float, high: float, n_bins: int, dtype: DType) -> Array:
    """Ends that are Python's numbers, as numerators over one denominator."""
    (begin, under), (end, over) = low.as_integer_ratio(), high.as_integer_ratio()
    denominator = math.lcm(under, over) * n_bins
    begin, end = begin * (denominator // under), end * (denominator // over)
    step = (end - begin) // n_bins
    least = [-(-(begin + step * k) // denominator) for k in range(n_bins)] + [math.floor(high) + 1]
    limits = np.iinfo(dtype)
    kept = [max(value, int(limits.min)) for value in least if value <= int(limits.max)]
    return np.array(kept, key_dtype(dtype))


# ---- bisection -------------------------------------------------------------------------------------------------


def _bisect(reaches: Callable[[Array, Array], Array], count: int, dtype: DType) -> Array:
    """For each of `count` slots the least number of the dtype that reaches it; none where no number does.

    ``reaches(x, slot)`` compares arrays of one length.
    """
    slots = np.arange(count)
    top = _ordinal(np.array([np.iinfo(dtype).max if dtype.kind in "iu" else np.inf], dtype))
    bottom = _ordinal(np.array([np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf], dtype))
    low, high = np.repeat(bottom, count), np.repeat(top, count)
    reachable = reaches(_number(high, dtype), slots)
    while (low < high).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # the sum of the two may overflow
        reached = reaches(_number(middle, dtype), slots)
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    return _number(high[reachable], dtype).astype(key_dtype(dtype))


def _ordinal(x: Array) -> Array:
    """Integers in the order of the numbers."""
    if x.dtype.kind in "iu":
        return (x ^ (1 << 63)).view(np.int64) if x.dtype == np.uint64 else x.astype(np.int64)
    sign_bit = 1 << (8 * x.itemsize - 1)
    bits = x.view(f"i{x.itemsize}").astype(np.int64)
    return np.where(bits < 0, -sign_bit - bits, bits)


def _number(ordinal: Array, dtype: DType) -> Array:
    if dtype.kind in "iu":
        return ordinal.view(np.uint64) ^ np.uint64(1 << 63) if dtype == np.uint64 else ordinal.astype(dtype)
    sign_bit = 1 << (8 * dtype.itemsize - 1)
    bits = np.where(ordinal < 0, -sign_bit - ordinal, ordinal)
    return bits.astype(f"i{dtype.itemsize}").view(dtype)
