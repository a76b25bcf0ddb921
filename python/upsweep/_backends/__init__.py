"""From a checked scan to the backend that runs it; the only file that knows both backends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import Array
from upsweep._backends import cpu
from upsweep._backends.cuda import descriptor, scan_launch
from upsweep._backends.cuda import scan as cuda_scan
from upsweep._backends.cuda.context import user_array
from upsweep._backends.cuda.scan import advance_on_device, combine_on_device, new_result, write_state
from upsweep._core import bincount
from upsweep._core.bin_thresholds import Histogram
from upsweep._core.bincount import Count, outside_error
from upsweep._core.scan import Scan

__all__ = [
    "DeviceArray",
    "advance_on_device",
    "cuda_bincount",
    "check_threads",
    "combine_on_device",
    "copy_on_device",
    "cpu_user_scan",
    "cuda_bincount_sync",
    "cuda_loops",
    "cuda_problem",
    "cuda_reduce",
    "find_extremes",
    "new_result",
    "user_array",
    "prepare_cuda_scan",
    "reduce_scan",
    "run_count",
    "run_cuda_lines",
    "run_cuda_lines_backward",
    "run_cuda_pairs",
    "run_cuda_scan",
    "run_histogram",
    "run_pairs",
    "run_scan",
    "start_cuda_scan",
    "cuda_user_scan",
    "wait_for",
    "why_no_device",
    "write_state",
]

# For whoever brings arrays of a device, a stream and a way to allocate.
DeviceArray = descriptor.ArrayDescriptor
cuda_problem = scan_launch.problem
prepare_cuda_scan = scan_launch.prepare_scan
start_cuda_scan = scan_launch.start_scan
run_cuda_lines = scan_launch.run_lines
run_cuda_lines_backward = scan_launch.run_lines_backward
run_cuda_scan = scan_launch.run_scan


def cuda_reduce(*arrays: Any, **keywords: Any) -> None:
    """`scan_launch.carries.reduce`, imported by the first who needs it."""
    from upsweep._backends.cuda import aggregate_launch

    aggregate_launch.reduce(*arrays, **keywords)


def cuda_loops() -> Any:
    """The module that knows loop nests on a device, imported by the first who needs it."""
    from upsweep._backends.cuda import loops

    return loops


def why_no_device(device: int) -> str | None:
    """What keeps arrays from lying on a device; None if nothing does."""
    from upsweep._backends.cuda import device_copy

    return device_copy.why_no_device(device)


def wait_for(device: int) -> None:
    """Wait for what was started on the device's default stream."""
    from upsweep._backends.cuda import device_copy

    device_copy.wait_for(device)


def copy_on_device(array: Array, device: int) -> Any:
    """A copy of an array of numpy on a device, which belongs to no other library."""
    from upsweep._backends.cuda import device_copy

    return device_copy.DeviceCopy(array, device)


def cuda_bincount_sync() -> Any:
    """The module of counts that know arrays of a device by their pointers."""
    from upsweep._backends.cuda import bincount_sync

    return bincount_sync


def cuda_bincount() -> Any:
    """The module of counts and histograms of arrays that are on a device."""
    from upsweep._backends.cuda import bincount

    return bincount


def check_threads(n_threads: int | None) -> None:
    """Refuse what is no number of threads, wherever the work is done: a device takes none."""
    if n_threads is not None:
        cpu.check_threads(n_threads)


def cpu_user_scan() -> Any:
    """The CPU's engine of scans by an update, imported by the first who needs it, who needs a compiler then."""
    from upsweep._backends.cpu import user_scan

    return user_scan


def cuda_user_scan() -> Any:
    """The module of scans by an update of arrays that are on a device."""
    from upsweep._backends.cuda import user_scan

    return user_scan


_REAL, _COMPLEX, _INTEGER = 0, 1, 2
_ACCUMULATORS = {"f": _REAL, "c": _COMPLEX, "i": _INTEGER, "u": _INTEGER}


def _new_like(x: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised result, laid out as x is where x has its shape."""
    if x.shape == shape and 0 not in x.strides:
        return np.empty_like(x, dtype=dtype, order="K", subok=False)
    return np.empty(shape, dtype)


def run_scan(
    scan: Scan,
    *,
    out: Array | None,
    reverse: bool,
    exclusive: bool,
    flush: bool,
    window: int = 0,
    return_final: bool,
    n_threads: int | None,
    device: int | None = None,
    final_dtype: np.dtype[Any] | None = None,
) -> tuple[Any, Any]:
    """Run the scan, where its arrays are, or those of numpy on a CUDA device or on the CPU (None).

    Returns the result and, if asked for, the state after the last step: arrays of the library that x is of. Of
    arrays of the host, that state may be had in the dtype that it is computed in, unrounded.
    """
    check_threads(n_threads)
    if scan.placement is not None or device is not None:
        return cuda_scan.run_scan(scan, out, reverse, exclusive, window, return_final, device)
    result = _new_like(scan.x, scan.shape, scan.dtype) if out is None else out
    final = np.empty(scan.state_shape, final_dtype or _arrays.state_dtype(scan.dtype)) if return_final else None
    if 0 not in scan.shape:
        _run(scan, result, final, None, reverse, exclusive, flush, window, n_threads)
    elif final is not None:
        final[...] = 0 if scan.initial is None else scan.initial
    return result, final


def reduce_scan(
    scan: Scan, *, reverse: bool, flush: bool, n_threads: int | None, device: int | None = None
) -> tuple[Any, Any, Any]:
    """What the whole block does to a state: the product of its gates, the state it leaves from nothing, and
    whether a reset drops the state before it."""
    check_threads(n_threads)
    if scan.placement is not None or device is not None:
        return cuda_scan.reduce_scan(scan, reverse, device)
    multiplier = np.ones(scan.state_shape, scan.factor_dtype)
    value = np.zeros(scan.state_shape, scan.accumulator)
    dropped = np.zeros(scan.state_shape, bool)
    if 0 not in scan.shape:
        _run(scan, None, value, multiplier, reverse, False, flush, 0, n_threads)
    if scan.reset is not None:
        np.any(scan.reset, axis=scan.axis, out=dropped)
    multiplier[dropped] = 0
    return multiplier, value, dropped


def _run(
    scan: Scan,
    out: Array | None,
    final: Array | None,
    multiplier: Array | None,
    reverse: bool,
    exclusive: bool,
    flush: bool,
    window: int,
    n_threads: int | None,
) -> None:
    cpu.scans.scan(
        scan.x,
        scan.gates,
        scan.gamma,
        scan.initial,
        scan.reset,
        out,
        final,
        multiplier,
        axis=scan.axis,
        reverse=reverse,
        exclusive=exclusive,
        flush=flush,
        window=window,
        n_threads=cpu.threads(n_threads),
        accumulator=_ACCUMULATORS[scan.accumulator.kind],
    )


def run_count(count: Count, *, n_threads: int | None, device: int | None = None) -> tuple[Any, Any]:
    """Count where the arrays are, or those of numpy on a CUDA device or on the CPU (None).

    Returns the result, or the user's `out`, and how many keys were dropped, if that is asked.
    """
    check_threads(n_threads)
    placement, least = count.placement, count.least if count.n_bins is None else count.n_bins
    if placement is not None:
        bincount.check_memory(count, least, lambda: placement.library.memory(placement.ordinal), largest_key=False)
        return cuda_bincount().run_count(count)
    bincount.check_memory(count, least, cpu.memory_limit, largest_key=False)
    if device is None:
        return _run_counter(count, _counter(count, cpu.bincounts.Counter, n_threads=cpu.threads(n_threads)))
    on_device = replace(count, dtype=count.accumulator, out=None, accumulate=False)
    result, n_dropped = cuda_bincount().run_count(on_device, device)
    if count.out is None:
        result = result.astype(count.dtype, copy=False)
    else:
        _deliver(result, count.out, count.accumulate)
        result = count.out
    return result, None if n_dropped is None else np.int64(n_dropped)


def _counter(count: Count, make: Any, **keywords: Any) -> Any:
    """The count on a backend, which offers `look`, `write`, `first_outside` and `count_outside`."""
    return make(
        count.keys,
        # Without keys or sums there is nothing to read, and only the number of bins to be found.
        None if count.keys.size == 0 or count.n_sums == 0 else count.weights,
        with_sums=count.n_sums is not None,
        integers=count.accumulator.kind in "iu",
        n_bins=-1 if count.n_bins is None else count.n_bins,
        least=count.least,
        drop=count.drop,
        **keywords,
    )


def _run_counter(count: Count, counter: Any) -> tuple[Array, np.int64 | None]:
    n_bins, outside = counter.look()
    if outside:
        # Without a fixed number of bins only negative keys are outside.
        first = counter.first_outside(np.iinfo(np.int64).max if count.n_bins is None else n_bins)
        raise outside_error(count, first, n_bins)
    bincount.check_memory(count, n_bins, cpu.memory_limit, largest_key=n_bins > count.least)
    out = count.out
    if out is None:
        result = _counted(count, counter, n_bins).astype(count.dtype, copy=False)
    elif out.dtype == count.accumulator and count.bins_last(out).flags.carray:  # aligned, too
        result = out
        if out.size:
            counter.write(count.bins_last(out), not count.accumulate)
    else:
        result = out
        _deliver(_counted(count, counter, n_bins), out, count.accumulate)
    return result, np.int64(counter.count_outside(n_bins)) if count.return_invalid else None


def _counted(count: Count, counter: Any, n_bins: int) -> Array:
    """The result in an array of its own, of the dtype that is summed in."""
    result = np.zeros((*count.rows, n_bins, *count.sums), count.accumulator)
    if result.size:
        counter.write(result, False)
    return count.bins_in_place(result)


def _deliver(counted: Array, out: Array, accumulate: bool) -> None:
    """Write what was counted to `out`, or add it; rounded once."""
    if out.dtype.kind in "iu":  # to which numpy adds no floats; those of other dtypes wrap around alike
        counted = counted.astype(out.dtype, copy=False)
    np.add(out, counted, out=out, casting="unsafe") if accumulate else np.copyto(out, counted, casting="unsafe")


# ---- histograms ------------------------------------------------------------------------------------------------


def find_extremes(x: Array, n_threads: int | None) -> tuple[Any, Any, bool]:
    """The least and the largest of at least one element, and whether there is a NaN, which counts for neither."""
    return cpu.histograms.find_extremes(x, cpu.threads(n_threads))


def run_histogram(problem: Histogram, n_threads: int | None, device: int | None = None) -> Array:
    """The counts in the bins, int64, or the sums of weights: uint64 (modulo 2**64), float64 or complex128."""
    x, weights, thresholds = problem.x, problem.weights, problem.thresholds
    if device is not None:
        kind = "u" if weights is None or weights.dtype.kind in "biu" else weights.dtype.kind
        dtype = np.dtype({"u": np.int64, "f": np.float64, "c": np.complex128}[kind])
        counts: Array = cuda_bincount().run_histogram(problem, dtype, device=device)
        return counts if weights is None or kind != "u" else counts.view(np.uint64)
    count = cpu.threads(n_threads)
    if weights is not None and weights.dtype.kind == "c":
        sums = np.empty(problem.n_bins, np.complex128)
        sums.real = _run_histogram(x, weights.real, thresholds, problem.n_bins, count)
        sums.imag = _run_histogram(x, weights.imag, thresholds, problem.n_bins, count)
        return sums
    return _run_histogram(x, weights, thresholds, problem.n_bins, count)


def _run_histogram(x: Array, weights: Array | None, thresholds: Array, n_bins: int, n_threads: int) -> Array:
    kind = None if weights is None else weights.dtype.kind
    dtype = np.int64 if kind is None else np.uint64 if kind in "biu" else np.float64
    if x.size == 0 or thresholds.size == 0:
        return np.zeros(n_bins, dtype)
    # Below the first edge, the bins, and above the last.
    slots = np.zeros(n_bins + 2, dtype)
    cpu.histograms.count(x, weights, thresholds, slots[: thresholds.size + 1], n_threads)
    return slots[1:-1]


# ---- reductions over pairs -------------------------------------------------------------------------------------

_cpu_pairs: Any = None


def _engine() -> Any:
    """The CPU's engine of pairs, which brings llvmlite: imported by the first who needs it."""
    global _cpu_pairs
    if _cpu_pairs is None:
        from upsweep._backends.cpu import pairs

        _cpu_pairs = pairs
    return _cpu_pairs


def run_cuda_pairs(*arguments: Any, **keywords: Any) -> None:
    """`scan_launch.pairs.run`, for whoever brings arrays of a device, a stream and a way to allocate."""
    from upsweep._backends.cuda import pairs_launch

    pairs_launch.run(*arguments, **keywords)


def run_pairs(
    reduction: Any,
    arrays: Any,
    n_i: int,
    n_j: int,
    batch: tuple[int, ...],
    ranges: Any,
    *,
    n_threads: int | None = None,
    device: int | None = None,
) -> tuple[Any, ...]:
    """The results of a reduction over pairs, each of shape batch + (rows, dim), where its arrays are.

    `arrays` are in the order of the formula's variables, (..., n, dim) or (dim,) for parameters; `ranges` is a
    triple for all entries of the batch, a list of one for each, or None for all pairs.
    """
    if device is not None or _arrays.DeviceView in map(type, arrays):
        from upsweep._backends.cuda import pairs as cuda_pairs

        return cuda_pairs.run_pairs(reduction, arrays, n_i, n_j, batch, ranges, device)
    engine = _cpu_pairs or _engine()
    if ranges is not None:
        each = ranges if isinstance(ranges, list) else [ranges]
        planned = [_planned(engine, reduction, n_i, n_j, triple) for triple in each]
        ranges = planned if isinstance(ranges, list) else planned[0]
    results: tuple[Any, ...] = engine.run(reduction, arrays, n_i, n_j, batch, ranges, n_threads)
    return results


def _planned(engine: Any, reduction: Any, n_i: int, n_j: int, triple: Any) -> Any:
    """The tasks of a triple, which it keeps."""
    return triple.plan(("cpu", reduction, n_i, n_j), lambda given: engine.plan(reduction, n_i, n_j, given))
