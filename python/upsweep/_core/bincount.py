"""The problem class of counts, and the checks of their arguments.

`normalise_count` moves the counted axis of keys and weights to the end and finds the dtypes. All checks that
need no key happen here, before any work, and their errors name the argument. Errors about keys, which executors
find, are built here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from upsweep import _arrays
from upsweep._arrays import Operand, Placement
from upsweep._core import checks
from upsweep._core.layout import moveaxis
from upsweep._core.scan import check_out

DType = np.dtype[Any]


@dataclass
class Count:
    """A checked count. Its result, or `out`, has the shape `result_shape(n_bins)`.

    keys : (..., n), of any integer dtype or bool, in any layout.
    weights : (..., n), or (..., n, k) where `n_sums` is k, or None.
    n_bins : the number of bins; None: one more than the largest key, and at least `least`.
    axis : the axis of the user's keys that the bins replace in the result.
    accumulator : the dtype of sums: int64, float64, complex128 or uint64.
    dtype : the dtype of the result.
    """

    keys: Operand
    weights: Operand | None
    n_sums: int | None
    n_bins: int | None
    least: int
    axis: int
    drop: bool
    accumulator: DType
    dtype: DType
    out: Operand | None = None
    accumulate: bool = False
    deterministic: bool = False
    return_invalid: bool = False
    placement: Placement | None = None  # None: numpy arrays

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of the result without bins and sums."""
        return self.keys.shape[:-1]

    @property
    def sums(self) -> tuple[int, ...]:
        return () if self.n_sums is None else (self.n_sums,)

    def result_shape(self, n_bins: int) -> tuple[int, ...]:
        rows = self.rows
        return (*rows[: self.axis], n_bins, *rows[self.axis :], *self.sums)

    def bins_last(self, result: Operand) -> Operand:
        """Return a view of a result as the kernels expect it: (..., bins), or (..., bins, k)."""
        return moveaxis(result, self.axis, len(self.rows))

    def bins_in_place(self, result: Operand) -> Operand:
        """Invert `bins_last`."""
        return moveaxis(result, len(self.rows), self.axis)

    def size_argument(self, largest_key: bool) -> str:
        """Return the name of the argument that determines the number of bins."""
        if self.out is not None:
            return "out"
        return "x" if largest_key else "minlength" if self.n_bins is None else "length"


def normalise_count(
    x: ArrayLike, weights: ArrayLike | None, minlength: object, *, length: object, axis: object,
    out: Operand | None, accumulate: bool, dtype: DTypeLike | None, invalid: object, deterministic: bool,
    return_invalid: bool,
) -> Count:  # fmt: skip
    """Check all arguments that describe the count."""
    drop = checks.check_count_keywords(invalid, return_invalid, accumulate, out)
    nothing = isinstance(x, (list, tuple)) and len(x) == 0
    keys = np.asarray(x, dtype=np.intp) if nothing else _arrays.as_operand(x, "x")
    index = checks.check_keys(keys, keys.dtype.kind in "biu", axis)
    summands = None if weights is None else _arrays.as_operand(weights, "weights")
    n_sums = checks.check_weights(summands, keys)
    least, n_bins = checks.check_bins(minlength, length)
    accumulator, result_dtype = _dtypes(keys, summands, dtype)
    placement = _arrays.common_placement({"x": keys, "weights": summands})
    count = Count(
        moveaxis(keys, index, keys.ndim - 1), None, n_sums, n_bins, least, index, drop, accumulator, result_dtype,
        None, bool(accumulate), bool(deterministic), bool(return_invalid), placement,
    )  # fmt: skip
    if summands is not None:
        count.weights = moveaxis(summands, index, keys.ndim - 1)
    if out is not None:
        array = out if placement is None else _arrays.as_operand(out, "out")
        count.n_bins = checks.bins_of_out(array, n_bins, count.result_shape(0), index, least)
        expected = count.result_shape(count.n_bins)
        checks.check_count_out(array, result_dtype, dtype)
        count.out = check_out(out, expected, result_dtype, {"x": keys, "weights": summands}, placement=placement)
    return count


def _dtypes(keys: Operand, weights: Operand | None, dtype: DTypeLike | None) -> tuple[DType, DType]:
    """Return the dtypes of the accumulator and of the result."""
    explicit = None if dtype is None else _arrays.as_dtype(dtype)
    if explicit is not None and explicit.kind not in "iufc":
        raise TypeError(f"dtype: expected integers, real or complex floating numbers, got {explicit}")
    accumulator: DType
    if weights is None or keys.size == 0:
        # numpy returns integers where there are no keys, whatever the dtype of the weights.
        accumulator = np.dtype(np.int64)
    elif weights.dtype.kind == "c":
        checks.check_imaginary(weights, explicit is None or explicit.kind == "c", explicit)
        accumulator = np.dtype(np.complex128)
    elif explicit is not None and explicit.kind in "iu" and weights.dtype.kind in "biu":
        # Equal bits: sums are modulo 2**64.
        accumulator = np.dtype(np.uint64 if explicit.kind == "u" else np.int64)
    else:
        accumulator = np.dtype(np.float64)
    default = np.dtype(np.intp) if accumulator == np.int64 else accumulator
    return accumulator, default if explicit is None else explicit


def device_result_dtype(accumulator: str, dtype: str) -> str:
    """Return the dtype that the CUDA kernels write for a result of this dtype.

    They add in 64 bits per part, and round sums of float64 and complex128 only to float32 and complex64.
    """
    short = {"float64": "float32", "complex128": "complex64"}.get(accumulator)
    return dtype if dtype == short else accumulator


def outside_error(
    count: Count, first: int, n_bins: int, element: Callable[[tuple[int, ...]], Any] | None = None
) -> ValueError:
    """Return the error for the key at position `first`, in C order, of `keys`; `element` reads it on a device."""
    if first < 0:
        return ValueError("x: another thread or process changed keys while they were counted; pass a copy")
    index = tuple(map(int, np.unravel_index(first, tuple(count.keys.shape))))
    value, position = int(count.keys[index] if element is None else element(index)), list(index)
    position.insert(count.axis, position.pop())
    return key_error(tuple(position), value, n_bins)


def key_error(position: tuple[int, ...], value: int, n_bins: int | None) -> ValueError:
    """Return the error for a key outside the bins, by its position in the user's array."""
    where = position[0] if len(position) == 1 else position
    expected = "keys must not be negative" if value < 0 else f"outside the {n_bins} bins"
    return ValueError(f"x: element {where} is {value}, {expected}; invalid='drop' leaves such keys out")


CHECK_ABOVE = 1 << 22  # numbers; all machines have memory for fewer


def check_memory(count: Count, n_bins: int, limit: Callable[[], int | None], *, largest_key: bool) -> None:
    """Refuse a result larger than memory: with overcommit, writing to it would end the process.

    `limit` returns the bytes of memory, or None where they are unknown.
    """
    # Zero rows or sums count as one, because bins are limited, too.
    n_numbers = max(math.prod(count.rows), 1) * n_bins * (count.n_sums or 1)
    if n_numbers >= CHECK_ABOVE:
        n_bytes, available = n_numbers * max(count.accumulator.itemsize, count.dtype.itemsize), limit()
        if n_bytes > (np.iinfo(np.intp).max if available is None else available):
            raise memory_error(count.size_argument(largest_key), n_bins, n_bytes, available)


def memory_error(name: str, n_bins: int, n_bytes: int, limit: int | None) -> MemoryError:
    """Return the error for a result that does not fit; the argument `name` determines its size."""
    what = "the largest key" if name == "x" else "it"
    if name == "x" and n_bins == np.iinfo(np.int64).max:
        return MemoryError("x: the largest key asks for 2**63 - 1 bins or more, which no array can have")
    available = "an array can have" if limit is None else f"the {limit:,} bytes of memory that there are"
    return MemoryError(f"{name}: {what} asks for {n_bins} bins, {n_bytes:,} bytes, more than {available}")
