"""Derivatives of scans of tensors, of any order.

A scan that also outputs the states before each step is one differentiable function: its derivative is such a scan
again, of the adjoint recurrence, in the other direction. When torch's compiler or a mode traces the tensors, `run`
calls the registered operation of `user_scan_ops` instead, which has the same derivative. With `checkpoint`, states
are computed again in segments, and derivatives are of first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from upsweep._arrays.dispatch import handlers
from upsweep._compiler.recurrences.recurrence import adjoint, keeping_states
from upsweep._core.user_scan import ScanSpec
from upsweep._torch import operations, user_scan_tensors
from upsweep._user_scan import gradient


def is_traced(tensors: Sequence[Tensor]) -> bool:
    """Whether the compiler, a mode or a tensor subclass sees the calls: they understand registered operations."""
    if torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling():
        return True
    return any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in tensors)


def keeping(spec: ScanSpec) -> ScanSpec:
    """The scan with the states before each step as its last outputs."""
    return replace(spec, recurrence=keeping_states(spec.recurrence))


def run(spec: ScanSpec, tensors: list[Tensor]) -> Any:
    """The outputs and the final states, differentiable, of the operands of `as_operands`."""
    if is_traced(tensors):
        return handlers("torch.user_scan_ops").run(spec, tensors)
    n_states = spec.recurrence.n_states
    if any(map(operations.is_batched, tensors)):
        return _run_batched(spec, tensors)
    if operations.is_transformed():  # the tensors do not tell whether they require gradients
        return _run_transformed(keeping(spec), n_states, *tensors)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _run_eager(keeping(spec), n_states, *tensors)
    return _forward(spec, 0, *tensors)


def _has_level(tensor: Tensor, level: int) -> bool:
    """Whether the vmap of this depth batches a tensor; its depth is known only in the thread that called it."""
    sizes = {len(torch._remove_batch_dim(tensor, level, size, 0)) for size in (1, 2)}  # where it does not: these
    return len(sizes) == 1


def _run_batched(spec: ScanSpec, tensors: list[Tensor]) -> list[Tensor]:
    """`run` inside the vmap of torch.autograd (`is_grads_batched`), which has no rules for user's operations."""
    level = next(level for level in range(1, 65) if any(_has_level(tensor, level) for tensor in tensors))
    plain = [torch._remove_batch_dim(tensor, level, 1, 0) for tensor in tensors]  # 1 where there is no batch axis
    size = max(len(tensor) for tensor in plain)
    dims = [0 if len(tensor) == size else None for tensor in plain]
    plain = [tensor if len(tensor) == size else tensor[0] for tensor in plain]
    batched, operands = user_scan_tensors.batch(spec, size, dims, plain)
    results = run(batched, operands)
    return [torch._add_batch_dim(y, dim, level) for y, dim in zip(results, batch_axes(spec, 0))]


def refuse_segments() -> NoReturn:
    raise NotImplementedError(
        "checkpoint: not for tensors that torch.func, torch.export or a mode follows; leave it out"
    )


def run_in_segments(spec: ScanSpec, size: int, tensors: list[Tensor]) -> Any:
    """`run`, which stores the states only before every `size` steps."""
    if operations.is_transformed() or is_traced(tensors):
        refuse_segments()
    return _Checkpointed.apply(spec, size, *tensors)


def _zeros_if_none(parts: Sequence[Tensor | None], shape: tuple[int, ...], like: Tensor) -> list[Tensor]:
    return [like.new_zeros(()).expand(shape) if part is None else part for part in parts]


def _forward(spec: ScanSpec, n_saved: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Outputs except the last `n_saved`, the states before each step; final states; those states."""
    outputs, finals = user_scan_tensors.execute(spec, tensors)
    n = len(outputs) - n_saved
    return (*outputs[:n], *finals, *outputs[n:])


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.spec, ctx.n_saved, *tensors = inputs
    ctx.save_for_backward(*tensors[: ctx.spec.recurrence.n_inputs], *output[len(output) - ctx.n_saved :])
    ctx.set_materialize_grads(False)


def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    spec, k = ctx.spec, ctx.n_saved
    n = len(spec.recurrence.outputs) - k
    return (None, None, *gradients(spec, ctx.saved_tensors, [*grads[:n], *grads[n + k :]], grads[n : n + k]))


def _vmap(info: Any, in_dims: tuple[Any, ...], spec: ScanSpec, n_saved: int, *tensors: Tensor) -> Any:
    batched, operands = user_scan_tensors.batch(spec, info.batch_size, in_dims[2:], tensors)
    return _run_transformed(batched, n_saved, *operands), tuple(batch_axes(spec, n_saved))


def batch_axes(spec: ScanSpec, n_saved: int) -> list[int]:
    """The batch axes of results: time is the first axis of outputs and of saved states."""
    return [1] * (len(spec.recurrence.outputs) - n_saved) + [0] * spec.recurrence.n_states + [1] * n_saved


_run_eager = operations.eager(_forward, save, backward)
_run_transformed = operations.transformed(_forward, save, backward, _vmap)


def gradients(
    spec: ScanSpec, saved: Sequence[Tensor], of_outputs: Sequence[Tensor | None],
    of_finals: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients by inputs and states; `saved` are the inputs and the states before each step."""
    cotangents = _zeros_if_none(of_outputs, (spec.length, *spec.columns), saved[-1])
    of_finals = _zeros_if_none(of_finals, spec.columns, saved[-1])
    back = replace(spec, recurrence=adjoint(spec.recurrence), reverse=not spec.reverse)
    return tuple(run(back, [*saved, *cotangents, *of_finals])[: len(saved)])


def gradients_of_any_order(
    spec: ScanSpec, states: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Tensor | None]
) -> list[Tensor]:
    """The gradients by the user's states, then inputs, which can be differentiated again.

    `cotangents` are those of the outputs, then of the final states if these were returned. The states before each
    step are computed again, by differentiable operations. torch sums the gradients over axes that were broadcast,
    and rounds them.
    """
    n, k, axis = len(spec.recurrence.outputs), spec.recurrence.n_states, spec.axis
    dtype, whole = getattr(torch, spec.dtype.name), keeping(spec)
    integers = user_scan_tensors.integers_of(spec)
    tensors = user_scan_tensors.as_operands(states, inputs, dtype, spec.shape, axis, integers)
    saved_states = run(whole, tensors)[n : n + k]
    wide = [None if c is None else c.to(dtype) for c in cotangents]
    of_outputs = [None if c is None else c.movedim(axis, 0) for c in wide[:n]]
    saved = (*tensors[: len(inputs)], *saved_states)
    results = gradients(whole, saved, [*of_outputs, *[None] * k], wide[n:] or [None] * k)
    return [*results[len(inputs) :], *(g.movedim(0, axis) for g in results[: len(inputs)])]


class _Checkpointed(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Outputs and final states, with the states stored before every `size` steps; derivatives of first order."""

    @staticmethod
    def forward(ctx: Any, spec: ScanSpec, size: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, finals = user_scan_tensors.execute(spec, tensors)
        if any(ctx.needs_input_grad[2:]):
            inputs, states = user_scan_tensors.views(spec, tensors)
            ctx.spec, ctx.size = spec, size
            with user_scan_tensors.scans_on_tensors((*inputs, *states)) as scans:
                ctx.starts = gradient.run_segments(scans, spec, inputs, states, size)
            ctx.save_for_backward(*tensors)
            ctx.set_materialize_grads(False)
        return (*outputs, *finals)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is not typed here
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        spec, n, tensors = ctx.spec, len(ctx.spec.recurrence.outputs), ctx.saved_tensors
        if any(grad is not None and operations.is_batched(grad) for grad in grads):
            raise NotImplementedError("checkpoint: not with is_grads_batched or vectorize=True; leave it out")
        inputs, states = user_scan_tensors.views(spec, tensors)
        like = next(filter(user_scan_tensors.is_cuda, tensors), tensors[-1])
        cotangents = _zeros_if_none(grads[:n], (spec.length, *spec.columns), like)
        of_finals = _zeros_if_none(grads[n:], spec.columns, like)
        with user_scan_tensors.scans_on_tensors((*inputs, *states)) as scans:
            by_inputs, by_states = gradient.backward(
                scans, spec, inputs, ctx.starts,
                [spec.reversed(user_scan_tensors.numpy_view(c)) for c in cotangents],
                [user_scan_tensors.numpy_view(part) for part in of_finals], ctx.size,
            )  # fmt: skip
        in_user_order = [user_scan_tensors.from_array(g) for g in by_inputs]
        if spec.reverse:
            in_user_order = [g.flip(0) for g in in_user_order]
        return (None, None, *in_user_order, *(user_scan_tensors.from_array(g) for g in by_states))
