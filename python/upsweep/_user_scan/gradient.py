"""Gradients of scans: the states are kept, or computed again in segments, and the adjoint runs the other way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from upsweep import _backends
from upsweep._arrays import Array, DeviceView
from upsweep._compiler.formulas.nodes import make
from upsweep._compiler.recurrences.adjoint import adjoint
from upsweep._compiler.recurrences.recurrence import Recurrence, input_, state
from upsweep._compiler.recurrences.trace import Structure
from upsweep._user_scan.problem import (
    Problem,
    arranged,
    as_real,
    broadcast,
    check_checkpoint,
    device_scans,
    flatten,
    label,
    moved,
    rounded,
    run_into,
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
    columns: tuple[int, ...], size: int | None, on_device: Any = None,
) -> list[list[Array]]:  # fmt: skip
    """The states before each segment; `on_device` as for `run_recurrence`."""
    silent, starts = replace(recurrence, outputs=()), [states]
    for here in list(_segments(length, size))[:-1]:
        pieces = [x[here] for x in inputs]
        steps = here.stop - here.start
        _, after = run_recurrence(silent, dtype, pieces, starts[-1], steps, columns, 0, on_device=on_device)
        starts.append(after)
    return starts


def backward(
    recurrence: Recurrence, dtype: np.dtype[Any], inputs: list[Array], starts: list[list[Array]],
    cotangents: list[Array], last: list[Array], length: int, columns: tuple[int, ...], size: int | None,
    on_device: Any = None,
) -> tuple[list[Array], list[Array]]:  # fmt: skip
    """The gradients of the inputs, of shape (time, *columns) each, and of the states before the first step.

    `starts` are the states before each segment of `size` steps; `cotangents` those of the outputs, `last` of
    the last states.
    """
    back, keeps = adjoint(recurrence), keeping_states(recurrence)
    empty = np.empty if on_device is None else on_device.empty
    gradients = [empty((length, *columns), dtype) for _ in inputs]
    for number, here in reversed(list(enumerate(_segments(length, size)))):
        steps = here.stop - here.start
        pieces = [x[here] for x in inputs]
        kept, _ = run_recurrence(keeps, dtype, pieces, starts[number], steps, columns, 0, on_device=on_device)
        against = [a[::-1] for a in (*pieces, *kept, *(part[here] for part in cotangents))]
        if on_device is not None:
            into, after = [g[here][::-1] for g in gradients], [on_device.empty(columns, dtype) for _ in last]
            run_into(on_device, back, dtype, against, into, last, after, steps, columns)
            last = after
            continue
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
    cotangents = [moved(part, problem.axis, 0)[order] for part in given]
    last = _cotangents(final_cotangent, "final_cotangent", recurrence.n_states, problem.state_structure, columns)
    with contextlib.ExitStack() as stack:
        scans = None
        if problem.placement is not None or any(isinstance(a, DeviceView) for a in (*given, *last)):
            named = {**problem.named(), **_named("cotangent", given), **_named("final_cotangent", last)}
            scans = stack.enter_context(contextlib.closing(device_scans(named)))
        starts = run_segments(recurrence, dtype, problem.inputs, problem.states, length, columns, size, scans)
        found, first = backward(
            recurrence, dtype, problem.inputs, starts, cotangents, last, length, columns, size, scans
        )
        ordered = (moved(g[order], 0, problem.axis) for g in found)
        xs = [_summed(g, x, x.dtype, scans) for g, x in zip(ordered, problem.given)]
        init = [_summed(g, s, dt, scans) for g, s, dt in zip(first, problem.initial, traced.state_dtypes)]
    return Gradients(arranged(init, problem.state_structure), arranged(xs, problem.input_structure))


def _named(name: str, arrays: list[Array]) -> dict[str, Array]:
    """Those that a user gave: what stands for None has no placement."""
    return {f"{name}[{n}]" if n else name: array for n, array in enumerate(arrays) if any(array.strides)}


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


def _summed(gradient: Array, given: Array, dtype: np.dtype[Any], scans: Any) -> Any:
    """The gradient of an array that was broadcast: the sum over its repetitions, in a floating dtype."""
    extra = gradient.ndim - given.ndim
    repeated = tuple(
        d for d in range(gradient.ndim) if d < extra or (given.shape[d - extra] == 1 and gradient.shape[d] != 1)
    )
    wanted = np.dtype(np.float64) if dtype.kind in "biu" else dtype.newbyteorder("=")
    if scans is not None:
        return _summed_on_device(gradient, repeated, wanted, given.shape, scans)
    total = gradient.sum(axis=repeated, dtype=np.float64, keepdims=True) if repeated else gradient
    return rounded(np.asarray(total).reshape(given.shape), wanted)


_TOTAL = Recurrence((make("add", state(0), input_(0)),), (), 1)
_SAME = Recurrence((state(0),), (), 0)


def _summed_on_device(
    gradient: Array, axes: tuple[int, ...], dtype: np.dtype[Any], shape: tuple[int, ...], scans: Any
) -> Any:
    """A sum is the last state of a scan in double, rounded as it is written; so is a state without steps."""
    wide = np.dtype(np.float64)
    for axis in reversed(axes):
        part = moved(gradient, axis, 0)
        columns, is_last = part.shape[1:], axis == axes[0]
        gradient = scans.empty(shape if is_last else columns, dtype if is_last else wide)
        zero = [np.broadcast_to(np.float64(0), columns)]
        run_into(scans, _TOTAL, wide, [part], [], zero, [gradient], len(part), columns)
    if not axes:
        result = scans.empty(shape, dtype)
        calculated = np.result_type(np.float32, gradient.dtype)
        run_into(scans, _SAME, calculated, [], [], [gradient], [result], 0, shape)
        gradient = result
    return _backends.user_array(gradient)
