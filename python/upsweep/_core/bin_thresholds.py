"""Thresholds of bins: for each bin the least number, in the dtype of x, that numpy or torch puts into it.

All binning rules are monotonic: a greater number never falls into a lower bin. The bin of a number is therefore
the number of thresholds that it reaches, and the kernels (src/histogram/kernels.cpp) only compare. Thresholds
follow the roundings and promotions of the library whose function is reproduced. Where a bound proves that its rule
agrees with comparing to the edges, the edges are the thresholds; otherwise they are found by bisection over all
numbers of the dtype. `_core/histogram.py` calls this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_EXACT = {_FLOAT32: 2.0**24, _FLOAT64: 2.0**53}  # the dtype holds all integers up to these exactly
_EPS = {2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}  # by itemsize; for 2 bytes that of bfloat16, the coarser one


def key_dtype(dtype: DType) -> DType:
    """Return the dtype in which elements of `dtype` are compared; it represents all of them exactly."""
    if dtype.kind in "iu" and dtype.itemsize == 8:
        return np.dtype(np.int64 if dtype.kind == "i" else np.uint64)
    return _FLOAT64 if dtype.itemsize > 2 and dtype != _FLOAT32 else _FLOAT32


def edge_thresholds(edges: Array, dtype: DType, common: DType) -> Array:
    """Return one threshold per edge, for elements of `dtype` that are compared in the dtype `common`.

    The last bin includes its upper edge. Thresholds that no element can reach are omitted; they are the last ones.
    """
    key = key_dtype(dtype)
    values = edges.astype(common)
    if common.kind in "iu":
        return _of_integers(values, key)
    if key.kind in "iu":
        return _of_integer_keys(values, dtype)
    with np.errstate(all="ignore"):
        values[-1:] = np.nextafter(values[-1:], common.type(np.inf))
        thresholds = values.astype(key, copy=False)
        if common != key and not np.can_cast(common, key):  # rounded up
            is_less = thresholds.astype(common) < values
            thresholds = np.where(is_less, np.nextafter(thresholds, key.type(np.inf)), thresholds)
    # No element lies above a last bin that includes infinity.
    return thresholds[:-1] if edges[-1] == np.inf else thresholds


def _of_integers(values: Array, key: DType) -> Array:
    """Thresholds of integer edges that are compared as integers; the last bin ends one above the last edge."""
    if key.kind in "iu":
        if values[-1] == np.iinfo(key).max:
            return values[:-1].astype(key)
        return np.concatenate((values[:-1], values[-1:] + 1)).astype(key)
    # The keys represent all elements exactly, so that none lies outside this range.
    limits = np.iinfo(values.dtype)
    low, high = max(-_EXACT[key], limits.min), min(_EXACT[key] - 1, limits.max)
    clipped = np.clip(values, int(low), int(high)).astype(key)
    clipped[-1] += 1
    return clipped


def _of_integer_keys(values: Array, dtype: DType) -> Array:
    """Thresholds of floating edges for 64-bit integers: rounded up where float64 is exact, else by bisection."""
    key = key_dtype(dtype)
    least = np.ceil(values)
    least[-1] = np.floor(values[-1]) + 1
    if np.abs(least).max() <= _EXACT[_FLOAT64]:
        return (np.maximum(least, 0) if key.kind == "u" else least).astype(key)
    last = values.size - 1

    def reaches(x: Array, at: Array) -> Any:
        compared = x.astype(values.dtype)
        return np.where(at == last, compared > values[at], compared >= values[at])

    return _bisect(reaches, values.size, dtype)


def uniform_thresholds(edges: Array, first: Any, last: Any, dtype: DType) -> Array:
    """Return the thresholds of ``np.histogram`` for uniform bins from `first` to `last` with these edges.

    `first` and `last` keep the types that numpy would receive, because Python scalars promote differently.
    """
    if _agrees_with_edges(edges, first, last, dtype):
        return edge_thresholds(edges, dtype, edges.dtype)

    return _bisect(lambda x, slots: _numpy_slots(x, edges, first, last) > slots, edges.size, dtype)


def _agrees_with_edges(edges: Array, first: Any, last: Any, dtype: DType) -> bool:
    """Whether numpy provably puts every element into the bin between whose edges it lies."""
    if edges.dtype.itemsize > 8:  # the bound below does not hold for long double
        return False
    low, high = float(first), float(last)
    common = np.result_type(first, last)
    coarsest = min(edges.dtype.itemsize, 8 if common.kind in "iu" else common.itemsize)
    error = (edges.size - 1) * _EPS[coarsest] * (max(abs(low), abs(high)) / (high - low) + 2)
    # The position that numpy computes for edge k then differs from k by less than one, so that its correction by
    # one bin gives the bin between whose edges the number lies. Rounding needs a quarter of the bound.
    return error < 0.25 and all(
        _compares_in(edges.dtype, end, dtype) and edges.dtype.type(end) == edge
        for end, edge in ((first, edges[0]), (last, edges[-1]))
    )


def _compares_in(common: DType, end: Any, dtype: DType) -> bool:
    """Whether elements are compared to this end of the range in `common`, or with the same result."""
    if dtype.kind in "iu" and common == _FLOAT64:
        return abs(float(end)) <= _EXACT[_FLOAT64]
    return bool(np.result_type(dtype, end) == common)


def _numpy_slots(x: Array, edges: Array, first: Any, last: Any) -> Array:
    """Slots by numpy's own steps: a linear position, corrected by one bin. 0: below the range; n_bins + 1: above.

    A position beyond the last edge, where numpy raises IndexError, is put into the last bin.
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
        positions = distance / width * n_bins
        bins = np.where(positions < n_bins, np.maximum(positions, 0), n_bins - 1).astype(np.intp)
        bins -= numbers < edges[bins]
        bins += (numbers >= edges[bins + 1]) & (bins != n_bins - 1)
        slots = np.where(x <= last, bins + 1, n_bins + 1)
        return np.where(x >= first, slots, 0)


def linear_thresholds(
    low: Any, high: Any, n_bins: int, dtype: DType, fill_thresholds: Callable[[Array, Array], None]
) -> Array:
    """Return the thresholds of ``torch.histc``: bin ``(x - low) * bins / (high - low)``, truncated, in x's dtype.

    For integers the rule is evaluated exactly. ``fill_thresholds(ends, thresholds)`` is the native function that
    fills those of float32 and float64.
    """
    key = key_dtype(dtype)
    if dtype.kind in "iu":
        return _of_rationals(low, high, n_bins, dtype)
    if dtype.itemsize > 2:
        ends = np.array([low, high], key)
        thresholds = np.empty(n_bins + 1, key)
        fill_thresholds(ends, thresholds)
        return thresholds

    def reaches(x: Array, at: Array) -> Any:
        with np.errstate(all="ignore"):
            begin, end, bins = (dtype.type(value) for value in (low, high, n_bins))
            positions = (x - begin) * bins / (end - begin)
            wide = positions.astype(np.float64)  # float64 represents n_bins exactly
            slots = np.where(wide < n_bins, np.maximum(wide, 0), n_bins - 1).astype(np.intp) + 1
            return np.where(x <= end, np.where(x >= begin, slots, 0), n_bins + 1) > at

    return _bisect(reaches, n_bins + 1, dtype)


def _of_rationals(low: float, high: float, n_bins: int, dtype: DType) -> Array:
    """Thresholds between ends that are Python numbers, in exact arithmetic over one denominator."""
    (begin, under), (end, over) = low.as_integer_ratio(), high.as_integer_ratio()
    denominator = math.lcm(under, over) * n_bins
    begin, end = begin * (denominator // under), end * (denominator // over)
    step = (end - begin) // n_bins
    least = [-(-(begin + step * k) // denominator) for k in range(n_bins)] + [math.floor(high) + 1]
    limits = np.iinfo(dtype)
    reachable = [max(value, int(limits.min)) for value in least if value <= int(limits.max)]
    return np.array(reachable, key_dtype(dtype))


def _bisect(reaches: Callable[[Array, Array], Any], count: int, dtype: DType) -> Array:
    """Return for each of `count` slots the least number of the dtype that reaches it; omit unreachable slots.

    ``reaches(x, slot)`` compares arrays of equal length elementwise.
    """
    slots = np.arange(count)
    ends = [np.iinfo(dtype).min, np.iinfo(dtype).max] if dtype.kind in "iu" else [-np.inf, np.inf]
    low, high = (np.repeat(end, count) for end in _ordinal(np.array(ends, dtype)))
    reachable = reaches(_number(high, dtype), slots)
    while (low < high).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # the sum of the two may overflow
        reached = reaches(_number(middle, dtype), slots)
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    return _number(high[reachable], dtype).astype(key_dtype(dtype))


def _ordinal(x: Array) -> Array:
    """Map numbers to int64 such that the order is preserved."""
    if x.dtype.kind in "iu":
        return (x ^ (1 << 63)).view(np.int64) if x.dtype == np.uint64 else x.astype(np.int64)
    sign_bit = 1 << (8 * x.itemsize - 1)
    bits = x.view(f"i{x.itemsize}").astype(np.int64)
    return np.where(bits < 0, -sign_bit - bits, bits)


def _number(ordinal: Array, dtype: DType) -> Array:
    """Invert `_ordinal`."""
    if dtype.kind in "iu":
        return ordinal.view(np.uint64) ^ np.uint64(1 << 63) if dtype == np.uint64 else ordinal.astype(dtype)
    sign_bit = 1 << (8 * dtype.itemsize - 1)
    bits = np.where(ordinal < 0, -sign_bit - ordinal, ordinal)
    return bits.astype(f"i{dtype.itemsize}").view(dtype)
