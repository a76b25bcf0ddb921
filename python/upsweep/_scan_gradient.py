"""Gradients of scans: the states are kept, or computed again in segments, and the adjoint runs the other way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from upsweep._arrays import Array
from upsweep._expr.adjoint_recurrence import adjoint
from upsweep._expr.recurrence import Recurrence, state
from upsweep._expr.trace import Structure
from upsweep._scan_problem import (
    Problem,
    arranged,
    as_real,
    broadcast,
    check_checkpoint,
    flatten,
    label,
    rounded,
    run_recurrence,
)

__all__ = ["Gradients", "backward", "gradient", "keeping_states", "run_segments"]


class Gradients(NamedTuple):
    """Gradients as `scan.gradient` returns them, arranged as init and xs were given."""

    init: Any
    xs: Any


def keeping_states(recurrence: Recurrence) -> Recurrence:
    """The recurrence with the states before each step as its only outputs."""
    return replace(recurrence, outputs=tuple(state(p) for p in range(recurrence.n_states)))


def _segments(length: int, size: int | None) -> Iterator[slice]:
    size = size or max(length, 1)
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


def run_segments(
    recurrence: Recurrence, dtype: np.dtype[Any], inputs: list[Array], states: list[Array], length: int,
    columns: tuple[int, ...], size: int | None,
) -> list[list[Array]]:  # fmt: skip
    """The states before each segment."""
    silent, starts = replace(recurrence, outputs=()), [states]
    for here in list(_segments(length, size))[:-1]:
        pieces = [x[here] for x in inputs]
        _, after = run_recurrence(silent, dtype, pieces, starts[-1], here.stop - here.start, columns, 0)
        starts.append(after)
    return starts


def backward(
    recurrence: Recurrence, dtype: np.dtype[Any], inputs: list[Array], starts: list[list[Array]],
    cotangents: list[Array], last: list[Array], length: int, columns: tuple[int, ...], size: int | None,
) -> tuple[list[Array], list[Array]]:  # fmt: skip
    """The gradients of the inputs, of shape (time, *columns) each, and of the states before the first step.

    `starts` are the states before each segment of `size` steps; `cotangents` those of the outputs, `last` of
    the last states.
    """
    back, keeps = adjoint(recurrence), keeping_states(recurrence)
    gradients = [np.empty((length, *columns), dtype) for _ in inputs]
    for number, here in reversed(list(enumerate(_segments(length, size)))):
        steps = here.stop - here.start
        pieces = [x[here] for x in inputs]
        kept, _ = run_recurrence(keeps, dtype, pieces, starts[number], steps, columns, 0)
        against = [a[::-1] for a in (*pieces, *kept, *(part[here] for part in cotangents))]
        found, last = run_recurrence(back, dtype, against, last, steps, columns, 0)
        for target, part in zip(gradients, found):
            target[here] = part[::-1]
    return gradients, last


def gradient(problem: Problem, cotangent: Any, final_cotangent: Any, checkpoint: Any) -> Gradients:
    """The gradients of a checked call."""
    traced, columns, length = problem.traced, problem.columns, problem.length
    recurrence, dtype = traced.recurrence, traced.dtype
    size = check_checkpoint(checkpoint)
    whole = columns[: problem.axis] + (length,) + columns[problem.axis :]
    order = slice(None, None, -1 if problem.reverse else None)
    given = _cotangents(cotangent, "cotangent", len(recurrence.outputs), traced.output_structure, whole)
    cotangents = [np.moveaxis(part, problem.axis, 0)[order] for part in given]
    last = _cotangents(final_cotangent, "final_cotangent", recurrence.n_states, problem.state_structure, columns)
    starts = run_segments(recurrence, dtype, problem.inputs, problem.states, length, columns, size)
    found, first = backward(recurrence, dtype, problem.inputs, starts, cotangents, last, length, columns, size)
    ordered = (np.moveaxis(g[order], 0, problem.axis) for g in found)
    xs = [_summed(g, x, x.dtype) for g, x in zip(ordered, problem.given)]
    init = [_summed(g, s, dt) for g, s, dt in zip(first, problem.initial, traced.state_dtypes)]
    return Gradients(arranged(init, problem.state_structure), arranged(xs, problem.input_structure))


def _cotangents(value: Any, name: str, n: int, structure: Structure, shape: tuple[int, ...]) -> list[Array]:
    """Arrays of the shape, arranged as the result is; None are zeros."""
    if value is None:
        return [np.broadcast_to(np.float32(0), shape) for _ in range(n)]
    items, own = flatten(value, name)
    if own != structure:
        expected = {None: "None", -1: "a single array"}.get(structure, f"a tuple of {structure}")
        raise TypeError(f"{name}: expected {expected}, as the result is arranged")
    return [
        broadcast(as_real(item, label(name, own, k)), shape, label(name, own, k)) for k, item in enumerate(items)
    ]


def _summed(gradient: Array, given: Array, dtype: np.dtype[Any]) -> Array:
    """The gradient of an array that was broadcast: the sum over its repetitions, in a floating dtype."""
    extra = gradient.ndim - given.ndim
    repeated = tuple(
        d for d in range(gradient.ndim) if d < extra or (given.shape[d - extra] == 1 and gradient.shape[d] != 1)
    )
    total = gradient.sum(axis=repeated, dtype=np.float64, keepdims=True) if repeated else gradient
    wanted = dtype.newbyteorder("=") if dtype.kind == "f" else np.dtype(np.float64)
    return rounded(np.asarray(total).reshape(given.shape), wanted)
