"""Counts of integer keys (src/_counts.pyx); one build per instruction set, in the folders beside this."""

from typing import Any

from numpy.typing import NDArray

def find_range(keys: NDArray[Any], n_threads: int) -> tuple[int, int, int]:
    """(smallest, largest not negative, position of the first negative key or -1); at least one key."""

def count(keys: NDArray[Any], weights: NDArray[Any] | None, out: NDArray[Any], n_threads: int) -> int:
    """Add the keys, or their float64 weights, to the contiguous ``out`` (int64 or float64). Returns how many
    keys were outside it and left out."""
