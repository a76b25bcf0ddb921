"""Counts of integer keys (src/_counts.pyx); one build per instruction set, in the folders beside this."""

from typing import Any

from numpy.typing import NDArray

def find_range(keys: NDArray[Any], n_threads: int) -> tuple[int, int]:
    """(largest key, or -1 where all are negative; position of the first negative key, or -1)."""

def count(
    keys: NDArray[Any], weights: NDArray[Any] | None, out: NDArray[Any], overwrite: bool, n_threads: int
) -> None:
    """Count the keys, or sum their weights, into the contiguous ``out`` (int64, or float64 for sums): added to
    what it holds, or instead. Keys outside it are left out. Without memory for its tables it raises MemoryError,
    and ``out`` is as it was."""
