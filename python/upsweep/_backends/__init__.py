"""Executor lookup: runs a checked problem on the CPU or on CUDA.

::

    scans, bincounts, histograms, pairs     public functions, `_torch`, `_user_scan`
              |  a problem of `_core`, n_threads, device
              v
    run_scan, reduce_scan, run_count, run_histogram, run_pairs           (this file)
              |                      |
              |  numpy               |  arrays on a device, or numpy with device="cuda"
              v                      v
    cpu/{scan,bincount,...}   cuda/{scan,bincount,...}

`problem.placement` says where arrays on a device are; None means numpy. `device` is the ordinal of the CUDA
device to which numpy arrays are copied; None means the CPU. Only `_backends/cuda` uses the CUDA library.
Executors that load a compiler, or that most programs never use, are imported on first use: see `_on_first_use`
and `__getattr__`.
Start reading at `run_scan`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import Array, DeviceView
from upsweep._backends import cpu
from upsweep._backends.cpu import bincount as cpu_bincount
from upsweep._backends.cpu import histogram as cpu_histogram
from upsweep._backends.cpu import scan as cpu_scan
from upsweep._core.bincount import Count, check_memory
from upsweep._core.histogram import Extremes, Histogram
from upsweep._core.scan import Scan

if TYPE_CHECKING:
    from upsweep._backends.cuda.context import user_array
    from upsweep._backends.cuda.descriptor import ArrayDescriptor as ArrayDescriptor
    from upsweep._backends.cuda.scan import advance_on_device, combine_on_device, new_result, write_state
    from upsweep._backends.cuda.scan_launch import prepare_scan as prepare_cuda_scan
    from upsweep._backends.cuda.scan_launch import problem as cuda_problem
    from upsweep._backends.cuda.scan_launch import run_lines as run_cuda_lines
    from upsweep._backends.cuda.scan_launch import run_lines_backward as run_cuda_lines_backward
    from upsweep._backends.cuda.scan_launch import run_scan as run_cuda_scan
    from upsweep._backends.cuda.scan_launch import start_scan as start_cuda_scan

__all__ = [
    "ArrayDescriptor", "advance_on_device", "check_threads", "combine_on_device", "cpu_user_scan",
    "cuda_aggregate_launch", "cuda_bincount", "cuda_bincount_sync", "cuda_device_copy", "cuda_loops",
    "cuda_pairs_launch", "cuda_problem", "cuda_user_scan", "fill_linear_thresholds", "find_extremes",
    "new_result", "prepare_cuda_scan", "reduce_scan", "run_count", "run_cuda_lines",
    "run_cuda_lines_backward", "run_cuda_scan", "run_histogram", "run_pairs", "run_scan", "start_cuda_scan",
    "user_array", "write_state",
]  # fmt: skip

# Functions and types of `cuda`, by the name that they have here: the module, and the name in it. Those of
# `scan_launch` are for callers with pointers, strides, a stream and an allocator: `_torch` and `distributed`.
_CUDA = {
    "ArrayDescriptor": ("descriptor", "ArrayDescriptor"),
    "advance_on_device": ("scan", "advance_on_device"),
    "combine_on_device": ("scan", "combine_on_device"),
    "cuda_problem": ("scan_launch", "problem"),
    "new_result": ("scan", "new_result"),
    "prepare_cuda_scan": ("scan_launch", "prepare_scan"),
    "run_cuda_lines": ("scan_launch", "run_lines"),
    "run_cuda_lines_backward": ("scan_launch", "run_lines_backward"),
    "run_cuda_scan": ("scan_launch", "run_scan"),
    "start_cuda_scan": ("scan_launch", "start_scan"),
    "user_array": ("context", "user_array"),
    "write_state": ("scan", "write_state"),
}


def __getattr__(name: str) -> Any:
    """Import a function of `cuda` on first use: most programs use no device, and the import takes some ms."""
    if name not in _CUDA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _CUDA[name]
    value = getattr(importlib.import_module(f"{__name__}.cuda.{module}"), attribute)
    globals()[name] = value
    return value


def _on_first_use(module: str) -> Callable[[], Any]:
    """Return a function that imports a module of this package on its first call, and returns it."""
    return functools.cache(lambda: importlib.import_module(f"{__name__}.{module}"))


cpu_pairs = _on_first_use("cpu.pairs")
cpu_user_scan = _on_first_use("cpu.user_scan")
cuda_aggregate_launch = _on_first_use("cuda.aggregate_launch")
cuda_bincount = _on_first_use("cuda.bincount")
cuda_bincount_sync = _on_first_use("cuda.bincount_sync")
cuda_device_copy = _on_first_use("cuda.device_copy")
cuda_loops = _on_first_use("cuda.loops")
cuda_pairs = _on_first_use("cuda.pairs")
cuda_pairs_launch = _on_first_use("cuda.pairs_launch")
cuda_scan = _on_first_use("cuda.scan")
cuda_user_scan = _on_first_use("cuda.user_scan")


def check_threads(n_threads: int | None) -> None:
    """Check the argument `n_threads`, also of calls that run on a device and use no threads."""
    if n_threads is not None:
        cpu.check_threads(n_threads)


# ---- scans -----------------------------------------------------------------------------------------------------


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
    """Run the scan, and return the result and, with `return_final`, the state after the last step.

    Both are arrays of x's library. For numpy arrays, `final_dtype` may be the accumulator's, which leaves the
    state unrounded.
    """
    check_threads(n_threads)
    if scan.placement is not None or device is not None:
        on_device: tuple[Any, Any] = cuda_scan().run_scan(
            scan, out, reverse, exclusive, window, return_final, device
        )  # fmt: skip
        return on_device
    result = _new_like(scan.x, scan.shape, scan.dtype) if out is None else out
    final = np.empty(scan.state_shape, final_dtype or _arrays.state_dtype(scan.dtype)) if return_final else None
    if 0 in scan.shape:
        if final is not None:
            final[...] = 0 if scan.initial is None else scan.initial
    else:
        cpu_scan.run(
            scan, result, final, reverse=reverse, exclusive=exclusive, flush=flush, window=window,
            n_threads=n_threads,
        )  # fmt: skip
    return result, final


def _new_like(x: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised result; where x has its shape, with the axes of x's memory order."""
    if x.shape == shape and 0 not in x.strides:
        return np.empty_like(x, dtype=dtype, order="K", subok=False)
    return np.empty(shape, dtype)


def reduce_scan(
    scan: Scan, *, reverse: bool, flush: bool, n_threads: int | None, device: int | None = None
) -> tuple[Any, Any, Any]:
    """Return the aggregate of a block of steps.

    It consists of the product of the factors, the state that the block leaves if the initial state is 0, and
    whether a reset drops the state that enters the block.
    """
    check_threads(n_threads)
    if scan.placement is not None or device is not None:
        on_device: tuple[Any, Any, Any] = cuda_scan().reduce_scan(scan, reverse, device)
        return on_device
    multiplier = np.ones(scan.state_shape, scan.factor_dtype)
    value = np.zeros(scan.state_shape, scan.accumulator)
    dropped = np.zeros(scan.state_shape, bool)
    cpu_scan.reduce(scan, multiplier, value, dropped, reverse=reverse, flush=flush, n_threads=n_threads)
    return multiplier, value, dropped


# ---- counts ----------------------------------------------------------------------------------------------------


def run_count(count: Count, *, n_threads: int | None, device: int | None = None) -> tuple[Any, Any]:
    """Count, and return the result, or the user's `out`, and the number of dropped keys if that is requested."""
    check_threads(n_threads)
    placement, n_bins = count.placement, count.least if count.n_bins is None else count.n_bins
    if placement is not None:
        check_memory(count, n_bins, lambda: placement.library.memory(placement.ordinal), largest_key=False)
        return cuda_bincount().run_count(count)
    check_memory(count, n_bins, cpu.memory_limit, largest_key=False)
    if device is None:
        return cpu_bincount.run(count, n_threads)
    request = replace(count, dtype=count.accumulator, out=None, accumulate=False)
    table, n_dropped = cuda_bincount().run_count(request, device)
    return cpu_bincount.store(table, count), None if n_dropped is None else np.int64(n_dropped)


# ---- histograms ------------------------------------------------------------------------------------------------

fill_linear_thresholds = cpu.histograms.find_linear_thresholds


def find_extremes(x: Array, n_threads: int | None) -> Extremes:
    """Find the extremes of at least one element. On a device this waits for the stream of x."""
    if isinstance(x, DeviceView):
        return Extremes(*cuda_bincount().find_extremes(x))
    return cpu_histogram.find_extremes(x, n_threads)


def run_histogram(problem: Histogram, n_threads: int | None, device: int | None = None) -> Array:
    """Return the counts (int64) of numpy arrays, or sums of weights: uint64 modulo 2**64, float64, complex128."""
    if device is None:
        return cpu_histogram.run(problem, n_threads)
    weights = problem.weights
    kind = "u" if weights is None or weights.dtype.kind in "biu" else weights.dtype.kind
    dtype = np.dtype({"u": np.int64, "f": np.float64, "c": np.complex128}[kind])
    counts: Array = cuda_bincount().run_histogram(problem, dtype, device=device)
    return counts if weights is None or kind != "u" else counts.view(np.uint64)


# ---- reductions over pairs -------------------------------------------------------------------------------------


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
    """Return the results of a reduction over pairs, each of shape batch + (rows, dim), in the arrays' library.

    `arrays` are in the order of the formula's variables, (..., n, dim) or (dim,) for parameters; `ranges` is a
    triple for all entries of the batch, a list of one for each, or None for all pairs.
    """
    if device is not None or DeviceView in map(type, arrays):
        return cuda_pairs().run_pairs(reduction, arrays, n_i, n_j, batch, ranges, device)
    return cpu_pairs().run(reduction, arrays, n_i, n_j, batch, ranges, n_threads)
