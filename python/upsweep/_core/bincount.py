"""Arguments of a count, normalised: keys and weights with the counted axis last, and what the result is to be.

Every check that can be made without reading keys happens here, before any work, and names the argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from upsweep import _arrays
from upsweep._arrays import Array, Placement
from upsweep._core import checks
from upsweep._core.scan import check_out

__all__ = [
    "Count", "check_memory", "key_error", "made_on_device", "memory_error", "moved", "normalise_count",
    "outside_error", "too_many_bins",
]  # fmt: skip


@dataclass
class Count:
    """A checked count. A backend makes (or is given as `out`) an array of `result_shape(n_bins)`.

    keys : (..., n), of any integer dtype or bool, in any layout.
    weights : (..., n), or (..., n, k) where `n_sums` is k, or None.
    n_bins : as the arguments fix it; None: of the largest key of all, and at least `least`.
    axis : of the keys as they were given, which the bins replace in the result.
    accumulator : what is summed in: int64, float64, complex128, uint64.
    dtype : of the result.
    """

    keys: Array
    weights: Array | None
    n_sums: int | None
    n_bins: int | None
    least: int
    axis: int
    drop: bool
    accumulator: np.dtype[Any]
    dtype: np.dtype[Any]
    out: Array | None = None
    accumulate: bool = False
    deterministic: bool = False
    return_invalid: bool = False
    placement: Placement | None = None  # of arrays that are on a device

    @property
    def rows(self) -> tuple[int, ...]:
        """The result's shape without bins and sums."""
        return self.keys.shape[:-1]

    @property
    def sums(self) -> tuple[int, ...]:
        return () if self.n_sums is None else (self.n_sums,)

    def result_shape(self, n_bins: int) -> tuple[int, ...]:
        return (*self.rows[: self.axis], n_bins, *self.rows[self.axis :], *self.sums)

    def bins_last(self, result: Array) -> Array:
        """A view of a result as kernels see it: (..., bins), or (..., bins, k)."""
        return moved(result, self.axis, len(self.rows))

    def bins_in_place(self, result: Array) -> Array:
        """The inverse of `bins_last`."""
        return moved(result, len(self.rows), self.axis)

    def asker(self, n_bins: int, largest_key: bool) -> str:
        """Whose wish a number of bins is."""
        if self.out is not None:
            return "out"
        return "x" if largest_key else "minlength" if self.n_bins is None else "length"


def moved(array: Array, source: int, destination: int) -> Array:
    """np.moveaxis, which those who may not be read do not take part in."""
    order = list(range(array.ndim))
    order.insert(destination, order.pop(source))
    return array.transpose(order)


def normalise_count(
    x: ArrayLike,
    weights: ArrayLike | None,
    minlength: object,
    *,
    length: object,
    axis: object,
    out: Array | None,
    accumulate: bool,
    dtype: DTypeLike | None,
    invalid: object,
    deterministic: bool,
    return_invalid: bool,
) -> Count:
    """Check all arguments that describe the count."""
    drop = checks.check_count_keywords(invalid, return_invalid, accumulate, out)
    nothing = isinstance(x, (list, tuple)) and len(x) == 0
    keys = np.asarray(x, dtype=np.intp) if nothing else _arrays.as_operand(x, "x")
    at = checks.check_keys(keys, keys.dtype.kind in "biu", axis)
    summands = None if weights is None else _arrays.as_operand(weights, "weights")
    n_sums = checks.check_weights(summands, keys)
    least, n_bins = checks.check_bins(minlength, length)
    accumulator, wanted = _dtypes(keys, summands, dtype)
    placement = _arrays.common_placement({"x": keys, "weights": summands})
    count = Count(
        moved(keys, at, keys.ndim - 1), None, n_sums, n_bins, least, at, drop, accumulator, wanted,
        None, bool(accumulate), bool(deterministic), bool(return_invalid), placement,
    )  # fmt: skip
    if summands is not None:
        count.weights = moved(summands, at, keys.ndim - 1)
    if out is not None:
        array = out if placement is None else _arrays.as_operand(out, "out")
        count.n_bins = checks.bins_of_out(array, n_bins, count.result_shape(0), at, least)
        expected = count.result_shape(count.n_bins)
        count.out = check_out(out, expected, wanted, {"x": keys, "weights": summands}, placement=placement)
    return count


def _dtypes(keys: Array, weights: Array | None, dtype: DTypeLike | None) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """What is summed in, and the result's dtype."""
    wanted = None if dtype is None else _arrays.as_dtype(dtype)
    if wanted is not None and wanted.kind not in "iufc":
        raise TypeError(f"dtype: expected integers, real or complex floating numbers, got {wanted}")
    accumulator: np.dtype[Any]
    if weights is None or keys.size == 0:
        # Without keys there is nothing to sum, and numpy answers with integers.
        accumulator = np.dtype(np.int64)
    elif weights.dtype.kind == "c":
        checks.check_imaginary(weights, wanted is None or wanted.kind == "c", wanted)
        accumulator = np.dtype(np.complex128)
    elif wanted is not None and wanted.kind in "iu" and weights.dtype.kind in "biu":
        accumulator = np.dtype(np.uint64 if wanted.kind == "u" else np.int64)  # the same bits: modulo 2**64
    else:
        accumulator = np.dtype(np.float64)
    default = np.dtype(np.intp) if accumulator == np.int64 else accumulator
    return accumulator, default if wanted is None else wanted


def made_on_device(accumulator: str, dtype: str) -> str:
    """What the kernels of a device write of a result of this dtype: they sum in 64 bits a part, and round only to
    the float32 and complex64 of such sums."""
    short = {"float64": "float32", "complex128": "complex64"}.get(accumulator)
    return dtype if dtype == short else accumulator


def outside_error(count: Count, first: int, n_bins: int) -> ValueError:
    """Return the error for the key at position `first`, in C order, of `keys`."""
    if first < 0:
        return ValueError("x: another thread or process changed keys while they were counted; pass a copy")
    index = np.unravel_index(first, count.keys.shape)
    return key_error(tuple(map(int, index)), count.axis, int(count.keys[index]), n_bins)


def key_error(index: tuple[int, ...], axis: int, value: int, n_bins: int) -> ValueError:
    """What is wrong with a key; `index` has the counted axis last, which is at `axis` in x."""
    place = list(index)
    place.insert(axis, place.pop())
    where = str(place[0]) if len(place) == 1 else str(tuple(place))
    if value < 0:
        return ValueError(
            f"x: 'x' argument must not be negative, must have no negative elements: element {where} is {value}"
        )
    return ValueError(f"x: element {where} is {value}, outside the {n_bins} bins")


_SURELY_HELD = 1 << 22  # numbers


def check_memory(count: Count, n_bins: int, limit: Callable[[], int | None], *, largest_key: bool) -> None:
    """Refuse a result that there is no memory for: it would be had, and end the process when written to."""
    if _numbers(count, n_bins) < _SURELY_HELD:
        return
    error = too_many_bins(count, n_bins, limit(), largest_key)
    if error is not None:
        raise error


def _numbers(count: Count, n_bins: int) -> int:
    """How many the result has. One without rows or sums has none, but that many bins no array has either."""
    return max(math.prod(count.rows), 1) * n_bins * max(math.prod(count.sums), 1)


def too_many_bins(count: Count, n_bins: int, limit: int | None, largest_key: bool) -> MemoryError | None:
    """The error, if the result cannot be in memory of `limit` bytes; None: not known."""
    n_bytes = _numbers(count, n_bins) * max(count.accumulator.itemsize, count.dtype.itemsize)
    if n_bytes <= (np.iinfo(np.intp).max if limit is None else limit):
        return None
    return memory_error(count.asker(n_bins, largest_key), n_bins, n_bytes, limit)


def memory_error(name: str, n_bins: int, n_bytes: int, limit: int | None) -> MemoryError:
    """The result would not fit; `name`: of the argument whose wish its size is."""
    what = "the largest key" if name == "x" else "it"
    if name == "x" and n_bins == np.iinfo(np.int64).max:
        return MemoryError("x: the largest key asks for 2**63 - 1 bins or more, which no array can have")
    held = "an array can have" if limit is None else f"the {limit:,} bytes of memory that there are"
    return MemoryError(f"{name}: {what} asks for {n_bins} bins, {n_bytes:,} bytes, more than {held}")
