"""User-defined scans of torch tensors, with gradients of any order.

A scan with the states before each step among its results is one differentiable function; its derivative is such
a scan again, of the adjoint recurrence, the other way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep._arrays import Array
from upsweep._expr.adjoint_recurrence import adjoint
from upsweep._expr.recurrence import Recurrence, state
from upsweep._scan_gradient import backward, run_segments
from upsweep._scan_problem import (
    Problem,
    arranged,
    check,
    check_checkpoint,
    flatten,
    label,
    run_recurrence,
)
from upsweep._torch import user_scan_there as there

__all__ = ["prepare", "scan"]

_FLOATS = (torch.float16, torch.float32, torch.float64)


def scan(
    update: Callable[[Any, Any], Any], init: Any, xs: Any, *, axis: int, reverse: bool, return_final: bool,
    length: int | None, checkpoint: int | None,
) -> Any:  # fmt: skip
    """`upsweep.scan` where one of the arrays is a tensor."""
    size = check_checkpoint(checkpoint)
    problem, states, inputs = prepare(update, init, xs, axis, reverse, length)
    state_structure = problem.state_structure
    traced, columns, n_steps = problem.traced, problem.columns, problem.length
    calculated = getattr(torch, traced.dtype.name)
    whole = columns[: problem.axis] + (n_steps,) + columns[problem.axis :]
    if problem.home is not None:
        states, inputs = (there.send_numbers(part, problem.home.ordinal) for part in (states, inputs))
    tensors = [_tensor(value).to(calculated).expand(whole).movedim(problem.axis, 0) for value in inputs]
    tensors += [_tensor(value).to(calculated).expand(columns) for value in states]
    spec = _Spec(traced.recurrence, traced.dtype, problem.reverse, n_steps, columns, problem.axis)
    if size is None:
        results = _Run.apply(spec, *tensors)
    else:
        results = _Checkpointed.apply(spec, size, *tensors)
    n_outputs = len(traced.output_dtypes)
    ys = [
        y.movedim(0, problem.axis).to(getattr(torch, dtype.name))
        for y, dtype in zip(results[:n_outputs], traced.output_dtypes)
    ]
    result = arranged(ys, traced.output_structure)
    if not return_final:
        return result
    last = results[n_outputs : n_outputs + len(states)]
    final = [value.to(getattr(torch, dtype.name)) for value, dtype in zip(last, traced.state_dtypes)]
    return result, arranged(final, state_structure)


def prepare(
    update: Callable[[Any, Any], Any], init: Any, xs: Any, axis: int, reverse: bool, length: int | None
) -> tuple[Problem, list[Any], list[Any]]:
    """The checked call, on views of the tensors; states and inputs as tensors or numbers."""
    states, state_structure = flatten(init, "init")
    inputs, input_structure = flatten(xs, "xs")
    states = [_checked(value, label("init", state_structure, n)) for n, value in enumerate(states)]
    inputs = [_checked(value, label("xs", input_structure, n)) for n, value in enumerate(inputs)]
    problem = check(
        update,
        arranged([_viewed(value) for value in states], state_structure),
        arranged([_viewed(value) for value in inputs], input_structure),
        axis,
        reverse,
        length,
    )
    return problem, states, inputs


def _checked(value: Any, name: str) -> Any:
    """An argument as a tensor on the CPU, or a number as it is; integers become torch's default dtype."""
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
        value = torch.from_numpy(np.array(array))
    if value.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name}: is on {value.device}; scans by an update run on the CPU and on CUDA")
    if (
        value.dtype is torch.bool
        or value.dtype in _FLOATS
        or (there.is_there(value) and value.dtype is torch.bfloat16)
    ):
        return value
    if value.is_complex() or value.is_floating_point():
        raise TypeError(f"{name}: expected float16, float32, float64, integers or bool, got {value.dtype}")
    return value.to(torch.get_default_dtype())


def _viewed(value: Any) -> Any:
    """A tensor as numpy sees it, where it is."""
    if not isinstance(value, Tensor):
        return value
    return there.viewed(value) if there.is_there(value) else value.detach().resolve_neg().numpy()


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


@dataclass(frozen=True)
class _Spec:
    """What runs: the recurrence, and the shapes of its arrays."""

    recurrence: Recurrence
    dtype: np.dtype[Any]
    reverse: bool
    length: int
    columns: tuple[int, ...]
    axis: int

    def in_order(self, array: Array) -> Array:
        return array[::-1] if self.reverse else array

    def views(self, tensors: tuple[Tensor, ...]) -> tuple[list[Array], list[Array]]:
        """The inputs in the scan's order, and the states, as arrays."""
        arrays = [_viewed(tensor) for tensor in tensors]
        n = self.recurrence.n_inputs
        return [self.in_order(array) for array in arrays[:n]], arrays[n:]

    def run(self, tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        inputs, states = self.views(tensors)
        with there.on_device((*inputs, *states)) as scans:
            if scans is not None:
                return there.run(scans, self, inputs, states)
        outputs, final = run_recurrence(
            self.recurrence, self.dtype, inputs, states, self.length, self.columns, self.axis
        )
        return [_from_array(self.in_order(y)) for y in outputs], [_from_array(s) for s in final]


def _from_array(array: Array) -> Tensor:
    """torch has no negative strides."""
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _zeros_where_missing(parts: list[Tensor | None], shape: tuple[int, ...], like: Tensor) -> list[Tensor]:
    return [like.new_zeros(()).expand(shape) if part is None else part for part in parts]


class _Run(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Outputs, last states, and (where something is differentiated) the states before each step."""

    @staticmethod
    def forward(ctx: Any, spec: _Spec, *tensors: Tensor) -> tuple[Tensor, ...]:
        recurrence = spec.recurrence
        keeps = any(ctx.needs_input_grad[1:])
        if keeps:
            kept = tuple(state(p) for p in range(recurrence.n_states))
            spec = replace(spec, recurrence=replace(recurrence, outputs=recurrence.outputs + kept))
        outputs, final = spec.run(tensors)
        n = len(recurrence.outputs)
        if keeps:
            ctx.spec, ctx.n_outputs = spec, n
            ctx.save_for_backward(*tensors[: recurrence.n_inputs], *outputs[n:])
            ctx.set_materialize_grads(False)
        return (*outputs[:n], *final, *outputs[n:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        spec, n, k = ctx.spec, ctx.n_outputs, ctx.spec.recurrence.n_states
        saved = ctx.saved_tensors
        parts = [*grads[:n], *grads[n + k :]]
        cotangents = _zeros_where_missing(parts, (spec.length, *spec.columns), saved[-1])
        last = _zeros_where_missing(list(grads[n : n + k]), spec.columns, saved[-1])
        back = replace(spec, recurrence=adjoint(spec.recurrence), reverse=not spec.reverse)
        results = _Run.apply(back, *saved, *cotangents, *last)
        n_inputs = spec.recurrence.n_inputs
        return (None, *results[: n_inputs + k])


class _Checkpointed(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Outputs and last states, with the state kept before every `size` steps; gradients of the first order."""

    @staticmethod
    def forward(ctx: Any, spec: _Spec, size: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, final = spec.run(tensors)
        if any(ctx.needs_input_grad[2:]):
            inputs, states = spec.views(tensors)
            ctx.spec, ctx.size = spec, size
            with there.on_device((*inputs, *states)) as scans:
                ctx.starts = run_segments(
                    spec.recurrence, spec.dtype, inputs, states, spec.length, spec.columns, size, scans
                )
            ctx.save_for_backward(*tensors)
            ctx.set_materialize_grads(False)
        return (*outputs, *final)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is not typed here
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        spec, n = ctx.spec, len(ctx.spec.recurrence.outputs)
        tensors = ctx.saved_tensors
        inputs, states = spec.views(tensors)
        like = next(filter(there.is_there, tensors), tensors[-1])
        cotangents = _zeros_where_missing(list(grads[:n]), (spec.length, *spec.columns), like)
        last = _zeros_where_missing(list(grads[n:]), spec.columns, like)
        with there.on_device((*inputs, *states)) as scans:
            found, first = backward(
                spec.recurrence, spec.dtype, inputs, ctx.starts, [spec.in_order(_viewed(c)) for c in cotangents],
                [_viewed(part) for part in last], spec.length, spec.columns, ctx.size, scans,
            )  # fmt: skip
        if there.is_there(like):
            return (None, None, *there.owners(found, spec.reverse), *there.owners(first))
        return (
            None,
            None,
            *(_from_array(spec.in_order(g)) for g in found),
            *(_from_array(np.ascontiguousarray(g)) for g in first),
        )
