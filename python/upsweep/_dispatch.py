"""From a checked scan to the backend that runs it; the only file that knows both backends."""

from __future__ import annotations

from typing import Any

import numpy as np

from upsweep import _arrays, _cpu, _cuda
from upsweep._arrays import Array
from upsweep._signature import Scan

__all__ = ["DeviceArray", "cuda_problem", "reduce_scan", "run_cuda_lines", "run_cuda_scan", "run_scan"]

# For whoever brings arrays of a device, a stream and a way to allocate.
DeviceArray = _cuda.DeviceArray
cuda_problem = _cuda.problem
run_cuda_lines = _cuda.run_lines
run_cuda_scan = _cuda.run_scan

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
) -> tuple[Array, Array | None]:
    """Run the scan, on a CUDA device or on the CPU (None).

    Returns the result and, if asked for, the state after the last step.
    """
    result = _new_like(scan.x, scan.shape, scan.dtype) if out is None else out
    final = np.empty(scan.state_shape, _arrays.state_dtype(scan.dtype)) if return_final else None
    if device is not None:
        _cuda.check_device(device)
    if 0 not in scan.shape and device is not None:
        from upsweep._cuda import host

        host.run_scan(
            scan.x, scan.gates, scan.gamma, scan.initial, scan.reset, result, final,
            axis=scan.axis, reverse=reverse, exclusive=exclusive, window=window, device=device,
        )  # fmt: skip
    elif 0 not in scan.shape:
        _run(scan, result, final, None, reverse, exclusive, flush, window, n_threads)
    elif final is not None:
        final[...] = 0 if scan.initial is None else scan.initial
    return result, final


def reduce_scan(scan: Scan, *, reverse: bool, flush: bool, n_threads: int | None) -> tuple[Array, Array, Array]:
    """What the whole block does to a state: the product of its gates, the state it leaves from nothing, and
    whether a reset drops the state before it."""
    multiplier = np.ones(scan.state_shape, scan.factor_dtype)
    value = np.zeros(scan.state_shape, scan.accumulator)
    if 0 not in scan.shape:
        _run(scan, None, value, multiplier, reverse, False, flush, 0, n_threads)
    dropped = np.zeros(scan.state_shape, bool)
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
    _cpu.scans.scan(
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
        n_threads=_cpu.threads(n_threads),
        accumulator=_ACCUMULATORS[scan.accumulator.kind],
    )
