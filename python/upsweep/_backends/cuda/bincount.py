"""CUDA executor of counts and histograms.

The functions take device arrays, or numpy arrays together with a device (see `staging`). With a fixed number of
bins and invalid keys dropped, nothing waits for the device; else a call waits once, to read the range of the keys
or the position of an invalid one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import DeviceView, Operand, name_of, user_array
from upsweep._backends.cuda import bincount_launch, scan_launch
from upsweep._backends.cuda.context import ExecutionContext
from upsweep._backends.cuda.cupy_calls import register_short_path
from upsweep._backends.cuda.descriptor import ArrayDescriptor, describe
from upsweep._backends.cuda.staging import open_context
from upsweep._core import bincount
from upsweep._core.bin_thresholds import UniformBins
from upsweep._core.bincount import Count
from upsweep._core.histogram import Histogram


def run_count(count: Count, device: int | None = None) -> tuple[Any, Any]:
    """Run a count; return the result and, if it is asked for, the number of dropped keys.

    The dtype of a count of numpy arrays is its accumulator, and it has no `out`: the caller converts the result.
    """
    with open_context({"x": count.keys, "weights": count.weights, "out": count.out}, device) as context:
        result, n_dropped = count_in(context, count, bins_innermost=device is not None)
        counts = user_array(result)
        register_short_path(counts)
        return counts, None if n_dropped is None else user_array(n_dropped)


def count_in(context: ExecutionContext, count: Count, bins_innermost: bool = False) -> tuple[Any, Any]:
    """Run a count of arrays that the context describes, and return the results of `run_count` as such arrays."""
    keys = context.input(count.keys)
    n_bins = _find_n_bins(count, keys, context)
    check = not count.drop and count.n_bins is not None
    kernel_dtype = np.dtype(bincount.device_result_dtype(name_of(count.accumulator), name_of(count.dtype)))
    direct = count.dtype == kernel_dtype
    # The numpy results of all backends have the bins innermost in memory.
    shape = (*count.rows, n_bins, *count.sums) if bins_innermost else count.result_shape(n_bins)
    # A count that fails the check has already been written, and `out` must not be. A temporary costs the bytes
    # of the bins; a look at the keys before the count would cost theirs.
    if count.out is not None and direct and not check:
        counted = count.out
    else:
        counted = (context.empty if count.out is None else context.temporary)(shape, kernel_dtype)
        counted = count.bins_in_place(counted) if bins_innermost else counted
    n_dropped = context.empty((), np.dtype(np.int64)) if count.return_invalid else None
    _count_into(count, keys, counted, n_dropped, context, check)
    result = counted
    if counted is not count.out and not (count.out is None and direct):
        result = context.empty(shape, count.dtype) if count.out is None else count.out
        _write(context, counted, result, count.accumulate)
    return result, n_dropped


def _find_n_bins(count: Count, keys: ArrayDescriptor, context: ExecutionContext) -> int:
    """Return the number of bins: as the caller asks for it, or as the largest key needs it."""
    n_bins, is_largest_key = count.n_bins, False
    if n_bins is None:
        largest, negative = bincount_launch.find_range(keys, axis=len(keys.shape) - 1, **context.resources)
        if negative >= 0 and not count.drop:
            raise _invalid_key_error(count, negative, 0, context)
        n_bins = max(largest + 1, count.least)
        is_largest_key = n_bins > count.least
    bincount.check_memory(count, n_bins, lambda: context.memory_limit, largest_key=is_largest_key)
    return n_bins


def _invalid_key_error(count: Count, position: int, n_bins: int, context: ExecutionContext) -> ValueError:
    return bincount.outside_error(count, position, n_bins, lambda index: context.element(count.keys, index))


def _count_into(
    count: Count, keys: ArrayDescriptor, counted: Operand, n_dropped: Operand | None, context: ExecutionContext,
    check: bool,
) -> None:  # fmt: skip
    """Count into an array of the result's shape; with `check` wait, and raise for the first invalid key."""
    weights, table = count.weights, count.bins_last(counted)
    axis = len(keys.shape) - 1
    n_bins = table.shape[axis]
    if count.n_sums is not None and 0 in table.shape:
        # There are no sums, but keys may be invalid all the same.
        weights, table = None, context.temporary((*count.rows, n_bins), np.dtype(np.int64))
    target, summands = context.output(table), context.optional_input(weights)
    if target.dtype == "uint64":
        target = target._replace(dtype="int64")
    if summands is not None and 0 in keys.shape and count.accumulator == np.int64:
        summands = summands._replace(dtype="int64")  # sums of nothing are integers
    dropped = None if n_dropped is None else context.output(n_dropped).pointer
    first_outside, keep_alive = None, None
    if check:
        dropped, keep_alive = context.allocate(2 * bincount_launch.WORD)
        first_outside = dropped + bincount_launch.WORD
    bincount_launch.count(
        keys, target, weights=summands, axis=axis, accumulate=count.accumulate and counted is count.out,
        deterministic=count.deterministic, dropped=dropped, first_outside=first_outside, **context.resources,
    )  # fmt: skip
    if check and dropped is not None:
        n_outside, first = bincount_launch.read_words(dropped, 2, **context.on_stream)
        if n_outside:
            raise _invalid_key_error(count, first, n_bins, context)
    del keep_alive


def _write(context: ExecutionContext, source: Operand, target: Operand, accumulate: bool) -> None:
    """Write a device array to another one, or add it, in the dtype of the target."""
    if target.size == 0:
        return
    if target.dtype.kind in "iu" and source.dtype.kind == "f":
        source = _arrays.cast(source, target.dtype, "dtype")  # kernels take no floats for integers
    before = describe(target)
    if not accumulate:
        zero = context.number(np.array(0, np.int8))
        before = zero._replace(shape=before.shape, strides=(0,) * len(before.shape))
    scan_launch.advance(None, describe(source), None, before, describe(target), **context.resources)


# ---- histograms ------------------------------------------------------------------------------------------------


def find_extremes(x: DeviceView) -> tuple[Any, Any, tuple[int, ...] | None, Any]:
    """Return the least and the largest element, and the index and value of the first one that is not finite."""
    with ExecutionContext({"x": x}) as context:
        low, high, first = bincount_launch.find_extremes(describe(x), **context.resources)
        if first < 0:
            return low, high, None, None
        index = tuple(map(int, np.unravel_index(first, x.shape)))
        return low, high, index, context.element(x, index)


def to_host(array: DeviceView) -> Operand:
    """Return a copy of a device array on the host, once the work on its stream is done."""
    with ExecutionContext({"array": array}) as context:
        result = np.empty(array.shape, array.dtype)
        if array.size:
            context.memory.to_host(describe(_contiguous(context, array)), result)
        return result


def _contiguous(context: ExecutionContext, array: Operand) -> Operand:
    """Return the array in C order, copied if it is not."""
    if array.flags.c_contiguous:
        return array
    if not isinstance(array, DeviceView):
        return np.ascontiguousarray(array)
    copy = context.temporary(array.shape, array.dtype)
    if array.dtype == np.bool_:  # copied as numbers
        _write(context, array.view(np.uint8), copy.view(np.uint8), False)
    else:
        _write(context, array, copy, False)
    return copy


def to_device(x: DeviceView, array: Operand) -> Any:
    """Return a host array as one of x's library, on its device."""
    with ExecutionContext({"x": x}) as context:
        copy: Any = x.origin.library.to_device(array, context.device)
        if copy is None:
            copy = context.empty(array.shape, array.dtype)
            context.memory.copy_in(array, describe(copy))
        return user_array(copy)


def run_histogram(
    problem: Histogram, dtype: np.dtype[Any], out: Operand | None = None, device: int | None = None
) -> tuple[Any, Any]:
    """Return the histogram in `dtype` and edges made on the device, if any, as views of device arrays.

    The histogram of numpy arrays is a numpy array of int64, float64 or complex128.
    """
    x, weights, thresholds = problem.x, problem.weights, problem.thresholds
    with open_context({"x": x, "weights": weights, "out": out}, device) as context:
        kernel_dtype = _kernel_dtype(weights, dtype)
        # A cast by the library is one launch instead of two; but to 16 bits it may round twice.
        cast = context.casts and out is None and dtype != kernel_dtype and dtype.itemsize >= 4
        result = context.empty((problem.n_bins,), kernel_dtype if cast else dtype) if out is None else out
        counted = result if result.dtype == kernel_dtype else context.temporary(result.shape, kernel_dtype)
        edges, hint = None, dict[str, Any]()
        if isinstance(thresholds, UniformBins):
            if thresholds.edge_dtype is not None:
                edges = context.empty((problem.n_bins + 1,), thresholds.edge_dtype)
                hint = {"edges": context.output(edges)}
        else:
            hint = linear_rank_hint(thresholds)
            thresholds = context.to_device(thresholds)
        if result.size:
            # Kernels read elements in C order, and all weights with one stride.
            if weights is not None and weights.ndim != 1:
                weights = _contiguous(context, weights)
            bincount_launch.histogram(
                context.input(x), thresholds, context.output(counted), weights=context.optional_input(weights),
                **hint, **context.resources,
            )  # fmt: skip
        if counted is not result:
            _write(context, counted, result, False)
        elif cast:
            result = _arrays.cast(result, dtype, "x")
        return result, edges


def _kernel_dtype(weights: Operand | None, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which kernels write counts, or sums of such weights, for a result of `dtype`."""
    if weights is None or weights.dtype.kind in "biu":
        return dtype if weights is None and dtype in (np.float32, np.float64) else np.dtype(np.int64)
    return dtype if weights.dtype.kind == "c" or dtype == np.float32 else np.dtype(np.float64)


def linear_rank_hint(thresholds: Operand) -> dict[str, Any]:
    """Return the line through the first and the last threshold, from which kernels estimate an element's rank."""
    if thresholds.size < 2:
        return {}
    first, last = thresholds[0].item(), thresholds[-1].item()
    if not (math.isfinite(first) and math.isfinite(last)) or first == last:
        return {}
    return {"origin": float(first), "scale": (thresholds.size - 1) / (last - first)}
