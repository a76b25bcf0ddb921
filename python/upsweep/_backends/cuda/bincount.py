"""Counts and histograms of arrays that are on a device. Imported by the first call that needs it."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import DeviceView, name_of
from upsweep._arrays import Operand as Array
from upsweep._backends.cuda import aggregate_launch, bincount_sync
from upsweep._backends.cuda.context import Call, described, user_array
from upsweep._backends.cuda.scan_launch import DeviceArray
from upsweep._core import bincount
from upsweep._core.bincount import Count, key_error
from upsweep._core.histogram import Histogram

__all__ = ["fetch", "find_extremes", "guess", "run_count", "run_histogram", "sent"]


def run_count(count: Count) -> tuple[Any, Any]:
    """Count on a device. Nothing waits where the bins are given and other keys are dropped, else once."""
    with contextlib.closing(Call({"x": count.keys, "weights": count.weights, "out": count.out})) as call:
        keys = described(count.keys)
        n_bins = _bins_at_home(count, keys, call) if count.n_bins is None else count.n_bins
        check = not count.drop and count.n_bins is not None
        shape = count.result_shape(n_bins)
        made = np.dtype(bincount.made_on_device(name_of(count.accumulator), name_of(count.dtype)))
        direct = count.dtype == made
        # With the check in it, a count that fails has been written; `out` must not be then. To count into memory
        # of its own costs the bytes of the bins, to look at the keys first would cost theirs.
        if count.out is not None and direct and not check:
            counted = count.out
        else:
            counted = call.empty(shape, made) if count.out is None else call.temporary(shape, made)
        dropped = call.empty((), np.dtype(np.int64)) if count.return_invalid else None
        _count_into(count, keys, counted, dropped, call, check)
        result = counted
        if counted is not count.out and not (count.out is None and direct):
            result = call.empty(shape, count.dtype) if count.out is None else count.out
            _move(call, counted, result, count.accumulate)
        return user_array(result), None if dropped is None else user_array(dropped)


def _memory(count: Count) -> int | None:
    return None if count.placement is None else count.placement.library.memory(count.placement.ordinal)


def _bins_at_home(count: Count, keys: DeviceArray, call: Call) -> int:
    """The number of bins that the keys ask for."""
    largest: int
    largest, negative = bincount_sync.find_range(keys, call.allocate, axis=len(keys.shape) - 1, **call.on_stream)
    if negative >= 0 and not count.drop:
        raise _outside_at_home(count, keys, negative, 0, call)
    n_bins = max(largest + 1, count.least)
    bincount.check_memory(count, n_bins, lambda: _memory(count), largest_key=n_bins > count.least)
    return n_bins


def _outside_at_home(count: Count, keys: DeviceArray, position: int, n_bins: int, call: Call) -> ValueError:
    index = tuple(map(int, np.unravel_index(position, keys.shape)))
    return key_error(index, count.axis, int(_element(call, count.keys, index)), n_bins)


def _element(call: Call, array: Array, index: tuple[int, ...]) -> Any:
    item = bincount_sync.read_element(described(array), index, array.itemsize, **call.on_stream)
    return np.frombuffer(item, array.dtype)[0]


def _count_into(
    count: Count, keys: DeviceArray, counted: Array, dropped: Array | None, call: Call, check: bool
) -> None:
    """Count into an array of the result's shape."""
    weights, table = count.weights, count.bins_last(counted)
    n_bins = table.shape[len(count.rows)]
    if count.n_sums == 0:
        # There are no sums, but keys may be outside all the same.
        weights, table = None, call.temporary((*count.rows, n_bins), np.dtype(np.int64))
    target, summands = described(table), call.array(weights)
    if summands is not None and count.keys.size == 0:
        summands = summands._replace(dtype="int64")  # nothing is summed, in integers
    first = bincount_sync.count(
        keys, target._replace(dtype=target.dtype.replace("uint64", "int64")), call.allocate,
        summands, axis=len(keys.shape) - 1, check=check,
        accumulate=count.accumulate and counted is count.out,
        deterministic=count.deterministic, dropped=None if dropped is None else described(dropped).pointer,
        **call.on_stream,
    )  # fmt: skip
    if first >= 0:
        raise _outside_at_home(count, keys, first, n_bins, call)


def _move(call: Call, counted: Array, result: Array, accumulate: bool) -> None:
    """Write what was counted to the result, or add it, in its dtype."""
    if result.size == 0:
        return
    if result.dtype.kind in "iu" and counted.dtype.kind == "f":
        counted = _arrays.cast(counted, result.dtype, "dtype")  # kernels take no floats for integers
    before = described(result)
    if not accumulate:
        zero = call.number(np.array(0, np.int8))
        before = zero._replace(shape=before.shape, strides=(0,) * len(before.shape))
    aggregate_launch.step(None, described(counted), None, before, described(result), **call.where)


# ---- histograms ------------------------------------------------------------------------------------------------


def find_extremes(x: DeviceView) -> tuple[Any, Any, tuple[int, ...] | None, Any]:
    """Those of an array of a device, once its stream is done; where the first is that is not finite, and what."""
    with contextlib.closing(Call({"x": x})) as call:
        low, high, first = bincount_sync.find_extremes(described(x), call.allocate, **call.on_stream)
        if first < 0:
            return low, high, None, None
        index = tuple(map(int, np.unravel_index(first, x.shape)))
        return low, high, index, _element(call, x, index)


def fetch(array: DeviceView) -> Array:
    """A copy in the host's memory, once the work on the array's stream is done."""
    with contextlib.closing(Call({"array": array})) as call:
        dense = array if array.flags.c_contiguous else _dense(call, array)
        found = np.empty(array.shape, array.dtype)
        if array.size:
            call.memory.fetch(described(dense), found)
        return found


def _dense(call: Call, array: DeviceView) -> DeviceView:
    """A copy in C order, on the device."""
    copy = call.temporary(array.shape, array.dtype)
    if array.dtype == np.bool_:  # moved as numbers
        _move(call, array.view(np.uint8), copy.view(np.uint8), False)
    else:
        _move(call, array, copy, False)
    return copy


def sent(x: DeviceView, array: Array) -> Any:
    """The array as one of x's library, where x is."""
    with contextlib.closing(Call({"x": x})) as call:
        there = x.origin.library.sent(array, call.device)
        if there is None:
            there = call.empty(array.shape, array.dtype)
            call.memory.put(array, described(there))
        return user_array(there)


def run_histogram(problem: Histogram, dtype: np.dtype[Any], out: Array | None = None) -> DeviceView:
    """The histogram of an array of a device, in this dtype, as a view."""
    x, weights = problem.x, problem.weights
    with contextlib.closing(Call({"x": x, "weights": weights, "out": out})) as call:
        made = _made_of_weights(weights, dtype)
        # The library's own cast is one launch instead of two; but to 16 bits it may round twice.
        cast = out is None and dtype != made and dtype.itemsize >= 4 and call.library.computes
        result = call.empty((problem.n_bins,), made if cast else dtype) if out is None else out
        counted = result if result.dtype == made else call.temporary(result.shape, made)
        if result.size:
            # Elements are taken in C order, and weights have to lie so that one stride leads to all of them.
            if isinstance(weights, DeviceView) and weights.ndim != 1 and not weights.flags.c_contiguous:
                weights = _dense(call, weights)
            thresholds = call.send(problem.thresholds)
            bincount_sync.histogram(
                described(x), thresholds, described(counted), call.allocate, call.array(weights),
                **guess(problem.thresholds), device=call.device, stream=call.stream,
            )  # fmt: skip
        if counted is not result:
            _move(call, counted, result, False)
        elif cast:
            result = _arrays.cast(result, dtype, "x")
        assert isinstance(result, DeviceView)
        return result


def _made_of_weights(weights: Array | None, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What the kernels make of counts or of such weights, when they are wanted in this dtype."""
    if weights is None or weights.dtype.kind in "biu":
        return np.dtype(np.int64)
    if weights.dtype.kind == "c":
        return dtype
    return dtype if dtype == np.float32 else np.dtype(np.float64)


def guess(thresholds: Array) -> dict[str, Any]:
    """A line through the first and the last threshold: the place of a number on it is a guess at its rank."""
    if thresholds.size < 2:
        return {}
    first, last = thresholds[0].item(), thresholds[-1].item()
    if not (math.isfinite(first) and math.isfinite(last)) or first == last:
        return {}
    return {"origin": float(first), "scale": (thresholds.size - 1) / (last - first)}
