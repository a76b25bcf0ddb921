"""Threaded copies that benchmarks compare with (src/bindings/_baseline.pyx); one build per instruction set."""

from typing import Any, Literal

from numpy.typing import NDArray

def copy(src: NDArray[Any], dst: NDArray[Any], n_threads: int, kind: Literal["memcpy", "plain", "stream"]) -> None:
    """Copy the bytes of ``src`` to ``dst``, arrays of one size that do not overlap. ``kind`` is "memcpy",
    "plain" (vectors through the cache) or "stream" (past it)."""

def add(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], n_threads: int, kind: Literal["plain", "stream"]
) -> None:
    """``c[...] = a + b`` for float32 or float64; ``kind`` is "plain" or "stream"."""
