"""Scans on numpy arrays (src/bindings/_scans.pyx); one build per instruction set, in `_isa/<level>/`."""

from typing import Any

from numpy.typing import NDArray

LEVEL: str

def scan(
    x: NDArray[Any],
    gates: NDArray[Any] | None,
    gamma: NDArray[Any] | None,
    initial: NDArray[Any] | None,
    reset: NDArray[Any] | None,
    out: NDArray[Any] | None,
    final_state: NDArray[Any] | None,
    multiplier: NDArray[Any] | None,
    *,
    axis: int,
    reverse: bool,
    exclusive: bool,
    flush: bool,
    window: int,
    n_threads: int,
    accumulator: int,
) -> None:
    """Run one scan. Arrays with the axis have x's shape; gamma, initial, final_state and multiplier lack
    the axis. The accumulator is 0: float64, 1: complex128, 2: 64-bit integers; multiplier is of its type, or
    float64 where the factors of complex states are real."""

def convert(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Write real numbers to an array of floats in native byte order, of the same shape."""

def plain_constant(
    x: object, gamma: object, axis: object, out: object, reverse: bool, n_threads: int
) -> NDArray[Any] | None:
    """A discounted sum, or None when the arguments are not of the plainest kind, or wrong."""

def plain_sum(x: object, axis: object, out: object, reverse: bool, n_threads: int) -> NDArray[Any] | None:
    """A cumulative sum of floating numbers, or None when the arguments are not of the plainest kind, or wrong."""

def plain_gated(
    gates: object, tokens: object, axis: object, out: object, reverse: bool, n_threads: int
) -> NDArray[Any] | None:
    """A gated recurrence, or None when the arguments are not of the plainest kind, or wrong."""
