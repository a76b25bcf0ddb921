"""Executor lookup: runs a checked problem on the CPU or on CUDA.

::

    scans, bincounts, histograms, pairs     public functions, `_torch`, `_user_scan`
              |  a problem of `_core` (pairs: a reduction of `_compiler`), n_threads, device
              v
    run_scan, reduce_scan, run_count, run_histogram, run_pairs           (this file)
              |                      |
              |  numpy               |  arrays on a device, or numpy with device="cuda"
              v                      v
    cpu/{scan,bincount,...}   cuda/{scan,bincount,...}

    _user_scan, te  -->  cpu_user_scan, cuda_user_scan, cuda_loops: modules of executors, on first use
    filters         -->  cpu_filter: likewise

`problem.placement` says where arrays on a device are; None means numpy. `device` is the ordinal of the CUDA
device to which numpy arrays are copied; None means the CPU. Only `_backends/cuda` uses the CUDA library.
What loads a compiler, or what most programs never use, is imported on first use: see `__getattr__`.
Start reading at `run_scan`.
"""

from __future__ import annotations

import importlib
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
from upsweep._core.layout import new_array
from upsweep._core.scan import Scan

if TYPE_CHECKING:
    from upsweep._backends.cpu import filter as cpu_filter
    from upsweep._backends.cpu import user_scan as cpu_user_scan
    from upsweep._backends.cuda import bincount as cuda_bincount
    from upsweep._backends.cuda import bincount_launch as cuda_bincount_launch
    from upsweep._backends.cuda import loops as cuda_loops
    from upsweep._backends.cuda import memory as cuda_memory
    from upsweep._backends.cuda import pairs_launch as cuda_pairs_launch
    from upsweep._backends.cuda import scan as cuda_scan
    from upsweep._backends.cuda import user_scan as cuda_user_scan

__all__ = [
    "check_threads", "cpu_filter", "cpu_user_scan", "cuda_bincount", "cuda_bincount_launch", "cuda_loops",
    "cuda_memory", "cuda_pairs_launch", "cuda_scan", "cuda_user_scan",
    "fill_linear_thresholds", "find_extremes", "reduce_scan", "run_count", "run_histogram", "run_pairs",
    "run_scan",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a module of a backend, ``cuda.pairs_launch`` for `cuda_pairs_launch`, on first use.

    Most programs use no device and no compiler, and the imports take some ms. Launch modules are for callers with
    pointers, strides, a stream and an allocator: `_torch`.
    """
    backend, _, module = name.partition("_")
    if backend not in ("cpu", "cuda") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = importlib.import_module(f"{__name__}.{backend}.{module}")
    return value


def check_threads(n_threads: int | None) -> None:
    """Check the argument `n_threads`, also of calls that run on a device and use no threads."""
    if n_threads is not None:
        cpu.check_threads(n_threads)


# ---- scans -----------------------------------------------------------------------------------------------------


def run_scan(
    scan: Scan, *, out: Array | None, reverse: bool, exclusive: bool, flush: bool, window: int = 0,
    return_final: bool, n_threads: int | None, device: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Run the scan, and return the result and, with `return_final`, the state after the last step.

    Both are arrays of x's library.
    """
    check_threads(n_threads)
    if scan.placement is not None or device is not None:
        from upsweep._backends.cuda import scan as cuda_scan

        return cuda_scan.run_scan(scan, out, reverse, exclusive, window, return_final, device)
    result = new_array(scan.shape, scan.dtype, scan.x) if out is None else out
    final = np.empty(scan.state_shape, _arrays.state_dtype(scan.dtype)) if return_final else None
    if 0 in scan.shape:
        if final is not None:
            final[...] = 0 if scan.initial is None else scan.initial
    else:
        cpu_scan.run(
            scan, result, final, reverse=reverse, exclusive=exclusive, flush=flush, window=window,
            n_threads=n_threads,
        )  # fmt: skip
    return result, final


def reduce_scan(
    scan: Scan, *, reverse: bool, flush: bool, n_threads: int | None, device: int | None = None
) -> tuple[Any, Any, Any]:
    """Return the aggregate of a block of steps.

    It consists of the product of the factors, the state that the block leaves if the initial state is 0, and
    whether a reset drops the state that enters the block.
    """
    check_threads(n_threads)
    if scan.placement is not None or device is not None:
        from upsweep._backends.cuda import scan as cuda_scan

        return cuda_scan.reduce_scan(scan, reverse, device)
    multiplier = np.ones(scan.state_shape, scan.factor_dtype)
    value = np.zeros(scan.state_shape, scan.accumulator)
    dropped = np.zeros(scan.state_shape, bool)
    cpu_scan.reduce(scan, multiplier, value, dropped, reverse=reverse, flush=flush, n_threads=n_threads)
    return multiplier, value, dropped


# ---- counts ----------------------------------------------------------------------------------------------------


def run_count(count: Count, *, n_threads: int | None, device: int | None = None) -> tuple[Any, Any]:
    """Count, and return the result, or the user's `out`, and the number of dropped keys if that is requested."""
    check_threads(n_threads)
    placement = count.placement
    if placement is None:
        n_bins = count.least if count.n_bins is None else count.n_bins
        check_memory(count, n_bins, cpu.memory_limit, largest_key=False)
        if device is None:
            return cpu_bincount.run(count, n_threads)
    from upsweep._backends.cuda import bincount as cuda_bincount

    if placement is not None:
        return cuda_bincount.run_count(count)
    request = replace(count, dtype=count.accumulator, out=None, accumulate=False)
    table, n_dropped = cuda_bincount.run_count(request, device)
    return cpu_bincount.store(table, count), None if n_dropped is None else np.int64(n_dropped)


# ---- histograms ------------------------------------------------------------------------------------------------

fill_linear_thresholds = cpu.histograms.find_linear_thresholds


def find_extremes(x: Array, n_threads: int | None) -> Extremes:
    """Find the extremes of at least one element. On a device this waits for the stream of x."""
    if isinstance(x, DeviceView):
        from upsweep._backends.cuda import bincount as cuda_bincount

        return Extremes(*cuda_bincount.find_extremes(x))
    return cpu_histogram.find_extremes(x, n_threads)


def run_histogram(problem: Histogram, n_threads: int | None, device: int | None = None) -> Array:
    """Return the counts (int64) of numpy arrays, or sums of weights: uint64 modulo 2**64, float64, complex128."""
    if device is None:
        return cpu_histogram.run(problem, n_threads)
    from upsweep._backends.cuda import bincount as cuda_bincount

    weights = problem.weights
    kind = "u" if weights is None or weights.dtype.kind in "biu" else weights.dtype.kind
    dtype = np.dtype({"u": np.int64, "f": np.float64, "c": np.complex128}[kind])
    counts, _ = cuda_bincount.run_histogram(problem, dtype, device=device)
    return counts if weights is None or kind != "u" else counts.view(np.uint64)


# ---- reductions over pairs -------------------------------------------------------------------------------------


def run_pairs(
    reduction: Any, arrays: Any, n_i: int, n_j: int, batch: tuple[int, ...], ranges: Any, *,
    n_threads: int | None = None, device: int | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the results of a reduction over pairs, each of shape batch + (rows, dim), in the arrays' library.

    `arrays` are in the order of the formula's variables, (..., n, dim) or (dim,) for parameters; `ranges` is a
    triple for all entries of the batch, a list of one for each, or None for all pairs.
    """
    if device is not None or DeviceView in map(type, arrays):
        from upsweep._backends.cuda import pairs as cuda_pairs

        return cuda_pairs.run_pairs(reduction, arrays, n_i, n_j, batch, ranges, device)
    from upsweep._backends.cpu import pairs as cpu_pairs

    return cpu_pairs.run(reduction, arrays, n_i, n_j, batch, ranges, n_threads)
