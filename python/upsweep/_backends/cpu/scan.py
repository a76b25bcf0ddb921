"""Executor of scans on the CPU. `_backends` calls it for numpy arrays."""

from __future__ import annotations

import numpy as np

from upsweep._arrays import Array
from upsweep._backends import cpu
from upsweep._core.scan import Scan

REAL, _COMPLEX, _INTEGER = 0, 1, 2  # codes of accumulators in src/bindings/_scans.pyx
_ACCUMULATORS = {"f": REAL, "c": _COMPLEX, "i": _INTEGER, "u": _INTEGER}


def run(
    scan: Scan, out: Array | None, final: Array | None, multiplier: Array | None = None, *, reverse: bool,
    flush: bool, n_threads: int | None, exclusive: bool = False, window: int = 0,
) -> None:  # fmt: skip
    """Fill the result, the state after the last step, and the product of the factors."""
    cpu.scans.scan(
        scan.x, scan.gates, scan.gamma, scan.initial, scan.reset, out, final, multiplier, axis=scan.axis,
        reverse=reverse, exclusive=exclusive, flush=flush, window=window, n_threads=cpu.threads(n_threads),
        accumulator=_ACCUMULATORS[scan.accumulator.kind],
    )  # fmt: skip


def reduce(
    scan: Scan, multiplier: Array, value: Array, dropped: Array, *, reverse: bool, flush: bool,
    n_threads: int | None,
) -> None:  # fmt: skip
    """Fill the aggregate of a block of steps."""
    if 0 not in scan.shape:
        run(scan, None, value, multiplier, reverse=reverse, flush=flush, n_threads=n_threads)
    if scan.reset is not None:
        np.any(scan.reset, axis=scan.axis, out=dropped)
    multiplier[dropped] = 0
