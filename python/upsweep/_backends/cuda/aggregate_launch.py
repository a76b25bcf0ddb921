"""Aggregates of blocks of a linear recurrence on CUDA: what a block of steps does to the state before it.

`reduce` computes the aggregate in one pass over the block:

    value       the final state from zero, or from an initial state
    multiplier  the product of the factors; 0 if the block resets
    dropped     whether a reset in the block drops the state before it

`step` applies an aggregate to a state: `value` where dropped, else ``multiplier * state + value``. No other
function reads or writes the arrays, so every library that allocates memory can have them.
"""

from __future__ import annotations

from collections.abc import Callable

from upsweep._backends.cuda import abi, scan_launch
from upsweep._backends.cuda.descriptor import ArrayDescriptor

__all__ = ["reduce", "step"]

Allocate = Callable[[int], tuple[int, object]]


def _timed(array: ArrayDescriptor) -> ArrayDescriptor:
    """A state as a block of one step along a new last axis."""
    return array._replace(shape=(*array.shape, 1), strides=(*array.strides, 0))


def reduce(
    x: ArrayDescriptor,
    gates: ArrayDescriptor | None,
    gamma: ArrayDescriptor | complex | None,
    reset: ArrayDescriptor | None,
    multiplier: ArrayDescriptor | None,
    value: ArrayDescriptor,
    dropped: ArrayDescriptor | None,
    *,
    initial: ArrayDescriptor | None = None,
    axis: int,
    reverse: bool,
    device: int,
    stream: int,
    allocate: Allocate,
) -> None:
    """Write multiplier, value and dropped, of the shape of x without `axis`; the first and the last are optional.

    With `initial`, value is the state after the block from that state.
    """
    if 0 in value.shape:
        return
    r = scan_launch.reduction(
        x, gates, gamma, initial, reset, multiplier, value, dropped, axis=axis, reverse=reverse, device=device,
        stream=stream,
    )  # fmt: skip
    scan_launch.run_reduction(r, allocate)


def step(
    multiplier: ArrayDescriptor | None,
    value: ArrayDescriptor,
    dropped: ArrayDescriptor | None,
    state: ArrayDescriptor,
    result: ArrayDescriptor,
    *,
    device: int,
    stream: int,
    allocate: Allocate,
) -> None:
    """Write `value` where dropped, else ``multiplier * state + value``, to `result`; all are of one shape."""
    # One step whose output is the result: a final state would have to have 32 or 64 bits.
    if 0 in result.shape:
        return
    if scan_launch.accumulator_of(result.dtype) == abi.INTEGER:
        multiplier = None  # integers are only added: it is 1, or the state is dropped
    p = scan_launch.problem(
        _timed(value), None if multiplier is None else _timed(multiplier), None, state,
        None if dropped is None else _timed(dropped), _timed(result), None, axis=len(result.shape), reverse=False,
        exclusive=False, device=device, stream=stream,
    )  # fmt: skip
    scan_launch.run_scan(p, allocate)
