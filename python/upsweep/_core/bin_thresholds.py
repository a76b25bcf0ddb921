"""Thresholds of bins: for each bin the least number, in the dtype of x, that numpy or torch puts into it.

All binning rules are monotonic: a greater number never falls into a lower bin. The bin of a number is therefore
the number of thresholds that it reaches, and the kernels (src/histogram/kernels.cpp) only compare. Thresholds
follow the roundings and promotions of the library whose function is reproduced. Where a bound, or the rule itself
evaluated at an edge, proves that numpy's rule agrees with comparing to the edge, the edge is the threshold; the
others are found by bisection of the numbers around it. `_core/histogram.py` calls this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_EXACT = {_FLOAT32: 2.0**24, _FLOAT64: 2.0**53}  # the dtype holds all integers up to these exactly
_BLOCK = 1 << 13  # edges that are evaluated together, in the cache
_REACH = 2
# Narrower bins may have equal edges below the least normal number, wider ranges overflow; by itemsize.
_LIMITS = {4: (2.0**-120, 2.0**126), 8: (2.0**-1000, 2.0**1022)}
_EPS = {2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}  # by itemsize; for 2 bytes that of bfloat16, the coarser one


class UniformBins(NamedTuple):
    """Bins of one width. A device computes their thresholds, and edges, to the last bit as this module does.

    Without `edge_dtype` they are the bins of ``torch.histc``. `step` and `step_dtype` are ``np.linspace``'s.
    """

    first: float
    last: float
    n_bins: int
    step: float = 0.0
    step_dtype: DType = _FLOAT64
    edge_dtype: DType | None = None


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
    with np.errstate(all="ignore"):
        values[-1:] = np.nextafter(values[-1:], common.type(np.inf))
        if key.kind in "iu":
            thresholds, reachable = _least_integers(values, key)
            return thresholds[reachable]
        thresholds = _least_floats(values, key)
    # No element lies above a last bin that includes infinity.
    return thresholds[:-1] if edges[-1] == np.inf else thresholds


def _least_floats(values: Array, key: DType) -> Array:
    """Return the least keys that are at least these values in their dtype: the values, or rounded up."""
    thresholds = values.astype(key, copy=False)
    if values.dtype != key and not np.can_cast(values.dtype, key):
        is_less = thresholds.astype(values.dtype) < values
        thresholds = np.where(is_less, np.nextafter(thresholds, key.type(np.inf)), thresholds)
    return thresholds


def _least_integers(values: Array, key: DType) -> tuple[Array, Array]:
    """Return the least 64-bit integers that are at least these sorted values in their dtype, and which there are.

    Beyond 2**53 float64 values are further apart than integers. An integer in the middle of two values becomes
    the one whose last bit is 0.
    """
    values = values if values.dtype.itemsize > 8 else values.astype(_FLOAT64, copy=False)
    beyond = [2.0**power for power in range(53, 63 + (key.kind == "u"))] if values.dtype == _FLOAT64 else []
    below = [0.0] if key.kind == "u" else [-(2.0**63), *(-bound for bound in beyond[::-1])]
    bounds = [*below, *beyond, values.dtype.type(np.iinfo(key).max)]  # as float64 the number after it
    ends = np.searchsorted(values, np.array(bounds, values.dtype), side="right")
    thresholds = np.full(values.shape, np.iinfo(key).min, key)
    for lower, upper, start, end in zip(bounds, bounds[1:], ends, ends[1:], strict=False):
        part = values[start:end]
        if lower * upper <= 0:  # here the values are as close as integers, or closer
            thresholds[start:end] = np.ceil(part)
        elif part.size:  # in place: an array that is new to the process costs more than the arithmetic
            gap = np.spacing(min(abs(lower), abs(upper)))
            thresholds[start:end] = part - gap
            thresholds[start:end] += key.type(gap / 2)
            thresholds[start:end] += (part.view(np.int64) & 1).view(key)
    return thresholds, np.arange(values.size) < ends[-1]


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


def uniform_thresholds(edges: Array, first: Any, last: Any, dtype: DType) -> Array:
    """Return the thresholds of ``np.histogram`` for uniform bins from `first` to `last` with these edges.

    `first` and `last` keep the types that numpy would receive, because Python scalars promote differently.
    """
    ends = (first, last)

    def reaches(x: Array, slots: Array) -> Any:
        return _numpy_slots(x, edges, first, last) > slots

    # The bounds and arguments below do not hold for long double.
    if edges.dtype.itemsize > 8 or [edges.dtype.type(end) for end in ends] != [edges[0], edges[-1]]:
        thresholds, reachable = _search(reaches, np.arange(edges.size), edges, dtype)
        return thresholds[reachable]
    numbers_type = np.result_type(first, last)
    coarsest = min(edges.dtype.itemsize, 8 if numbers_type.kind in "iu" else numbers_type.itemsize)
    is_proved = _is_within_a_bin(edges.size - 1, coarsest, float(first), float(last))
    if is_proved and all(_compares_in(edges.dtype, end, dtype) for end in ends):
        return edge_thresholds(edges, dtype, edges.dtype)

    def passes_end(x: Array, slots: Array) -> Any:
        return np.where(slots == 0, x >= first, ~(x <= last))

    # An element outside of the range lies in no bin, whatever it is rounded to.
    (low, high), (any_inside, any_above) = _search(passes_end, np.arange(2), ends, dtype)
    key = key_dtype(dtype)
    with np.errstate(all="ignore"):
        if key.kind in "iu":
            thresholds, reachable = _least_integers(edges, key)
        else:
            thresholds, reachable = _least_floats(edges.copy(), key), np.ones(edges.size, np.bool_)
    slots = np.arange(0) if is_proved else _disagreeing_edges(edges, first, last)
    if slots.size:
        thresholds[slots], reachable[slots] = _search(reaches, slots, edges[slots], dtype)
    reachable &= any_inside
    np.maximum(thresholds, low, out=thresholds)
    if any_above:  # what lies above the range reaches every bin
        np.minimum(thresholds, high, out=thresholds)
        thresholds[~reachable] = high
        reachable[:] = True
    thresholds[-1], reachable[-1] = high, any_above
    return thresholds if reachable.all() else thresholds[reachable]


def uniform_bins(first: Any, last: Any, n_bins: int, common: DType, dtype: DType) -> UniformBins | None:
    """Return the bins of ``np.histogram``, with edges of the dtype `common`, if a device can compute them.

    None where it is not proved that the edges increase and are the thresholds, and for dtypes that devices lack.
    """
    types = {type(first), type(last)}
    step_dtype = _FLOAT32 if types == {np.float32} else _FLOAT64
    coarsest = min(step_dtype.itemsize, common.itemsize)
    if not (step_dtype == _FLOAT32 or types <= {int, float, np.float64}) or coarsest < 4:
        return None
    if common.itemsize > 8 or key_dtype(dtype).kind in "iu":
        return None
    low, high = float(first), float(last)
    narrowest, widest = _LIMITS[coarsest]
    is_exact = int not in types or max(abs(low), abs(high)) <= _EXACT[_FLOAT64]
    if not (is_exact and n_bins * narrowest < high - low < widest):
        return None
    if not _is_within_a_bin(n_bins, coarsest, low, high):
        return None
    promotes = common != dtype or not types <= {int, float}  # Python's numbers become numbers of x's dtype
    if promotes and not all(_compares_in(common, end, dtype) for end in (first, last)):
        return None
    step = float((last - first) / step_dtype.type(n_bins)) if step_dtype == _FLOAT32 else (high - low) / n_bins
    return UniformBins(low, high, n_bins, step, step_dtype, common)


def _is_within_a_bin(n_bins: int, coarsest: int, low: float, high: float) -> bool:
    """Whether the position that numpy computes for edge k provably differs from k by less than one.

    The error is less than twice the number that is compared: up to four roundings of the edge, then of the
    distance, the width, the quotient and the product. numpy's correction by one bin then gives the bin between
    whose edges an element lies. Neighbouring edges are more than two of their roundings apart, so they increase.
    `coarsest` is the size of the edges' dtype, or of that of the range if it is shorter.
    """
    return n_bins * _EPS[coarsest] * (max(abs(low), abs(high)) / (high - low) + 2) < 0.5


def _disagreeing_edges(edges: Array, first: Any, last: Any) -> NDArray[np.intp]:
    """Return the edges, by number, where numpy's correction by one bin may not lead to the bin above or below."""
    n_bins = edges.size - 1
    blocks = [np.arange(0)]
    for start in range(1, n_bins, _BLOCK):
        between = np.arange(start, min(start + _BLOCK, n_bins))
        bins = _bins_by_position(edges[between], first, last, n_bins)
        # In these two cases it leads above for the edge, and below for any lesser number.
        blocks.append(between[(bins != between) & (bins != between - 1)])
    return np.concatenate(blocks)


def _compares_in(common: DType, end: Any, dtype: DType) -> bool:
    """Whether elements are compared to this end of the range in `common`, or with the same result."""
    if dtype.kind in "iu" and common == _FLOAT64:
        return abs(float(end)) < _EXACT[_FLOAT64]
    return bool(np.result_type(dtype, end) == common)


def _bins_by_position(numbers: Array, first: Any, last: Any, n_bins: int) -> Array:
    """Bins by the linear position alone, of numbers in the dtype of the edges."""
    common = np.result_type(first, last)
    if common.kind == "i":
        unsigned = common.str.replace("i", "u")
        width = np.asarray(last, common).astype(unsigned) - np.asarray(first, common).astype(unsigned)
    else:
        width = np.subtract(last, first, dtype=common)
    with np.errstate(all="ignore"):
        distance = np.subtract(numbers, first, dtype=np.result_type(numbers, first))
        positions = distance / width * n_bins
        return np.where(positions < n_bins, np.maximum(positions, 0), n_bins - 1).astype(np.intp)


def _numpy_slots(x: Array, edges: Array, first: Any, last: Any) -> Array:
    """Slots by numpy's own steps: a linear position, corrected by one bin. 0: below the range; n_bins + 1: above.

    A position beyond the last edge, where numpy raises IndexError, is put into the last bin.
    """
    n_bins = edges.size - 1
    with np.errstate(all="ignore"):
        numbers = x.astype(edges.dtype)
        bins = _bins_by_position(numbers, first, last, n_bins)
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

    near = np.linspace(float(low), float(high), n_bins + 1)
    thresholds, reachable = _search(reaches, np.arange(n_bins + 1), near, dtype)
    return thresholds[reachable]


def _of_rationals(low: float, high: float, n_bins: int, dtype: DType) -> Array:
    """Thresholds between ends that are Python numbers, in exact arithmetic over one denominator."""
    limits, key = np.iinfo(dtype), key_dtype(dtype)
    if isinstance(low, int) and isinstance(high, int) and limits.min <= low and high < limits.max:
        step, rest = divmod(high - low, n_bins)
        bins, count = np.arange(n_bins, dtype=np.uint64), np.uint64(n_bins)
        least = (bins * np.uint64(rest) + (count - 1)) // count + bins * np.uint64(step) + np.uint64(low % 2**64)
        bounds = np.append(least, np.uint64((high + 1) % 2**64))  # modulo 2**64
        return (bounds if key == np.uint64 else bounds.view(np.int64)).astype(key)
    (begin, under), (end, over) = low.as_integer_ratio(), high.as_integer_ratio()
    denominator = math.lcm(under, over) * n_bins
    begin, end = begin * (denominator // under), end * (denominator // over)
    step = (end - begin) // n_bins
    exact = [-(-(begin + step * k) // denominator) for k in range(n_bins)] + [math.floor(high) + 1]
    return np.array([max(value, int(limits.min)) for value in exact if value <= int(limits.max)], key)


def _search(reaches: Callable[[Array, Array], Any], slots: Array, near: Any, dtype: DType) -> tuple[Array, Array]:
    """Return for each slot the least number of the dtype that reaches it, as a key, and whether there is one.

    ``reaches(x, slots)`` compares arrays of equal length elementwise. Thresholds are expected within `_REACH`
    numbers of `near`, and else searched among all numbers.
    """
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        ends = np.array([limits.min, limits.max], dtype)
        near = np.array([min(max(int(number), limits.min), limits.max) for number in near], dtype)
    else:
        ends = np.array([-np.inf, np.inf], dtype)
        with np.errstate(over="ignore"):
            near = np.asarray(near).astype(dtype)
    least, most = _ordinal(ends)
    middle = _ordinal(near)
    below, above = np.maximum(middle, least + _REACH) - _REACH, np.minimum(middle, most - _REACH) + _REACH
    is_below, is_above = reaches(_number(below, dtype), slots), ~reaches(_number(above, dtype), slots)
    low = np.where(is_below, least, np.where(is_above, np.minimum(above, most - 1) + 1, below + 1))
    high = np.where(is_below, below, np.where(is_above, most, above))
    reachable = ~is_above
    if is_above.any():
        reachable |= reaches(_number(np.full_like(high, most), dtype), slots)
    while (low < high).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # the sum of the two may overflow
        reached = reaches(_number(middle, dtype), slots)
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    return _number(high, dtype).astype(key_dtype(dtype)), reachable


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
