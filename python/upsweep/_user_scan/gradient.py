"""Gradients of scans by the adjoint recurrence, which runs backwards in time and reads the states of the scan.

The states are computed again in segments of `checkpoint` steps, from the state before each segment: memory for
``length / checkpoint + checkpoint`` states instead of `length`. `scan.gradient` and scans of tensors with
``checkpoint=`` use this; other scans of tensors have their derivatives in `_torch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from upsweep._arrays import Array, DeviceView, user_array
from upsweep._compiler.formulas.nodes import make
from upsweep._compiler.recurrences.recurrence import Recurrence, adjoint, input_, keeping_states, state
from upsweep._compiler.recurrences.trace import Structure, arranged, as_length
from upsweep._core.checks import Shape
from upsweep._core.layout import moveaxis
from upsweep._core.user_scan import ScanSpec
from upsweep._user_scan import problem as arguments
from upsweep._user_scan.problem import Problem, label, rounded
from upsweep._user_scan.run import scans_on


class Gradients(NamedTuple):
    """The result of `scan.gradient`; each part is arranged as the argument of that name."""

    init: Any
    xs: Any


def _segments(spec: ScanSpec, size: int | None) -> list[slice]:
    size = size or max(spec.length, 1)
    return [slice(first, min(first + size, spec.length)) for first in range(0, spec.length, size)]


def _segment(spec: ScanSpec, steps: slice, recurrence: Recurrence) -> ScanSpec:
    """A recurrence over a segment; its arrays have time first."""
    return ScanSpec(recurrence, spec.dtype, steps.stop - steps.start, spec.columns)


def run_segments(
    scans: Any, spec: ScanSpec, inputs: Sequence[Array], states: Sequence[Array], size: int | None
) -> list[Sequence[Array]]:
    """The states before each segment of `size` steps, of inputs in scan order; `scans` is from `scans_on`."""
    silent, starts = replace(spec.recurrence, outputs=()), [states]
    for steps in _segments(spec, size)[:-1]:
        _, after = scans.run(_segment(spec, steps, silent), [x[steps] for x in inputs], starts[-1])
        starts.append(after)
    return starts


def backward(
    scans: Any, spec: ScanSpec, inputs: Sequence[Array], starts: Sequence[Sequence[Array]],
    cotangents: Sequence[Array], final_cotangents: Sequence[Array], size: int | None,
) -> tuple[list[Array], Sequence[Array]]:  # fmt: skip
    """The gradients by the inputs, in scan order, and by the states before the first step.

    `starts` has the states before each segment of `size` steps, from `run_segments`; `cotangents` are those of the
    outputs, in scan order, and `final_cotangents` those of the final states.
    """
    back, keeps = adjoint(spec.recurrence), keeping_states(replace(spec.recurrence, outputs=()))
    # In the layout of the inputs: kernels are slower if they read lines and write columns.
    gradients = [scans.empty((spec.length, *spec.columns), spec.dtype, x) for x in inputs]
    for steps, start in reversed(list(zip(_segments(spec, size), starts))):
        pieces = [x[steps] for x in inputs]
        states, _ = scans.run(_segment(spec, steps, keeps), pieces, start)
        reads = [a[::-1] for a in (*pieces, *states, *(part[steps] for part in cotangents))]
        writes = [g[steps][::-1] for g in gradients]
        _, final_cotangents = scans.run(_segment(spec, steps, back), reads, final_cotangents, writes)
    return gradients, final_cotangents


def gradient(problem: Problem, cotangent: Any, final_cotangent: Any, checkpoint: Any) -> Gradients:
    """The gradients of a checked call."""
    traced, spec = problem.traced, problem.spec
    if all(dtype.kind in "iu" for dtype in (*traced.output_dtypes, *traced.state_dtypes)):
        raise TypeError("update: all of its results are integers, which have no gradient; give init as float64")
    size = arguments.check_checkpoint(checkpoint)
    n_outputs, n_states = len(traced.output_dtypes), len(traced.state_dtypes)
    of_ys = _cotangents(cotangent, "cotangent", n_outputs, traced.output_structure, spec.shape)
    of_final = _cotangents(final_cotangent, "final_cotangent", n_states, problem.state_structure, spec.columns)
    named = problem.named()
    for name, arrays in (("cotangent", of_ys), ("final_cotangent", of_final)):
        named.update({f"{name}[{n}]" if n else name: array for n, array in enumerate(arrays)})
    with scans_on(named) as scans:
        starts = run_segments(scans, spec, problem.inputs, problem.states, size)
        in_order = [spec.in_scan_order(part) for part in of_ys]
        by_inputs, by_states = backward(scans, spec, problem.inputs, starts, in_order, of_final, size)
        in_user_order = map(spec.in_user_order, by_inputs)
        xs = [_summed(scans, g, x, x.dtype) for g, x in zip(in_user_order, problem.user_inputs)]
        init = [
            _summed(scans, g, s, dtype) for g, s, dtype in zip(by_states, problem.user_states, traced.state_dtypes)
        ]
    return Gradients(arranged(init, problem.state_structure), arranged(xs, problem.input_structure))


def _cotangents(value: Any, name: str, n: int, structure: Structure, shape: Shape) -> list[Array]:
    """Arrays of the shape, arranged as the result is; None stands for zeros."""
    if value is None:
        return [np.broadcast_to(np.float32(0), shape) for _ in range(n)]
    items, own = arguments.flatten(value, name)
    if (length := as_length(structure)) != as_length(own):
        expected = {None: "None", -1: "a single array"}.get(length, f"a tuple of {length}")
        raise TypeError(f"{name}: expected {expected}, as the result is arranged")
    labels = [label(name, own, n) for n in range(len(items))]
    return [arguments.broadcast(arguments.as_real(item, at), shape, at) for item, at in zip(items, labels)]


def _summed(scans: Any, gradient: Array, array: Array, dtype: np.dtype[Any]) -> Any:
    """The gradient of an array that was broadcast: the sum over its repetitions, in a floating dtype."""
    extra = gradient.ndim - array.ndim
    axes = tuple(
        d for d in range(gradient.ndim) if d < extra or (array.shape[d - extra] == 1 and gradient.shape[d] != 1)
    )
    result = np.dtype(np.float64) if dtype.kind in "biu" else dtype.newbyteorder("=")
    if isinstance(gradient, DeviceView):
        return _summed_on_device(scans, gradient, axes, result, array.shape)
    total = gradient.sum(axis=axes, dtype=np.float64, keepdims=True) if axes else gradient
    return rounded(np.asarray(total).reshape(array.shape), result)


_TOTAL = Recurrence((make("add", state(0), input_(0)),), (), 1)
_SAME = Recurrence((state(0),), (), 0)


def _summed_on_device(scans: Any, gradient: Array, axes: Shape, dtype: np.dtype[Any], shape: Shape) -> Any:
    """The sum as the final state of scans in float64, rounded when written; without axes, of a scan of 0 steps."""
    wide = np.dtype(np.float64)
    for axis in reversed(axes):
        part = moveaxis(gradient, axis, 0)
        columns, is_last = part.shape[1:], axis == axes[0]
        gradient = scans.empty(shape if is_last else columns, dtype if is_last else wide)
        zero = [np.broadcast_to(np.float64(0), columns)]
        scans.run(ScanSpec(_TOTAL, wide, len(part), columns), [part], zero, [], [gradient])
    if not axes:
        result = scans.empty(shape, dtype)
        spec = ScanSpec(_SAME, np.result_type(np.float32, gradient.dtype), 0, shape)
        scans.run(spec, [], [gradient], [], [result])
        gradient = result
    return user_array(gradient)
