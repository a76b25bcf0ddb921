"""Histograms of numpy arrays (src/bindings/_histograms.pyx); one build per instruction set, in `_isa/<level>/`."""

from typing import Any

from numpy.typing import NDArray

def find_extremes(x: NDArray[Any], n_threads: int) -> tuple[float, float, bool]:
    """(least, largest, whether there is a NaN) of at least one element; NaNs are left out. Integers of 64 bits
    come as such."""

def count(
    x: NDArray[Any], weights: NDArray[Any] | None, thresholds: NDArray[Any], slots: NDArray[Any], n_threads: int
) -> None:
    """Count the elements, or sum their weights, by how many of the thresholds they reach, into the contiguous
    ``slots``, one more than thresholds: int64, uint64 for integer weights, or float64. Added to what they hold."""

def find_linear_thresholds(ends: NDArray[Any], thresholds: NDArray[Any]) -> None:
    """The least numbers that ``(x - ends[0]) * bins / (ends[1] - ends[0])`` takes to 0, 1, ... bins - 1, then the
    next above ``ends[1]``, into the contiguous ``thresholds``, bins + 1 of ends' dtype: float32 or float64."""
