"""Executor of histograms on the CPU. `_backends` calls it for numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from upsweep._arrays import Array
from upsweep._backends import cpu
from upsweep._core.histogram import Extremes, Histogram


def run(problem: Histogram, n_threads: int | None) -> Array:
    """Return the counts (int64), or the sums of weights: uint64 modulo 2**64, float64 or complex128."""
    weights = problem.weights
    if weights is None or weights.dtype.kind != "c":
        return _count(problem, weights, n_threads)
    sums = np.empty(problem.n_bins, np.complex128)
    sums.real = _count(problem, weights.real, n_threads)
    sums.imag = _count(problem, weights.imag, n_threads)
    return sums


def _count(problem: Histogram, weights: Array | None, n_threads: int | None) -> Array:
    dtype = np.int64 if weights is None else np.uint64 if weights.dtype.kind in "biu" else np.float64
    # The first slot counts elements below the first edge, the last one those above the last edge.
    slots: Array = np.zeros(problem.n_bins + 2, dtype)
    thresholds = problem.thresholds
    if problem.x.size and thresholds.size:
        cpu.histograms.count(
            problem.x, weights, thresholds, slots[: thresholds.size + 1], cpu.threads(n_threads)
        )  # fmt: skip
    return slots[1:-1]


def find_extremes(x: Array, n_threads: int | None) -> Extremes:
    """Find the extremes of at least one element, and the first element that is not finite."""
    low, high, any_nan = cpu.histograms.find_extremes(x, cpu.threads(n_threads))
    if not any_nan and np.isfinite(low) and np.isfinite(high):
        return Extremes(low, high)
    position, value = _first_not_finite(x)
    return Extremes(np.nan if any_nan else low, high, position, value)


def _first_not_finite(x: Array) -> tuple[tuple[int, ...], Any]:
    """Return the position, in C order, and the value of the first element that is not finite."""
    start = 0
    blocks: Any = np.nditer(x, flags=("external_loop", "buffered"), order="C")
    for block in blocks:
        is_finite = np.isfinite(block)
        if not is_finite.all():
            offset = int(np.argmin(is_finite))
            return tuple(map(int, np.unravel_index(start + offset, x.shape))), block[offset]
        start += block.size
    raise AssertionError("all numbers are finite")
