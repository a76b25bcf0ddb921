"""User-defined scans as one registered torch operation, for torch.compile, torch.export, modes and tensor
subclasses.

An operation cannot take a Python function. It takes the recurrence that the function was traced to, as text, which
other processes can read; different updates are different programs. Inputs have time first, and all tensors have
the dtype of the computation. The derivative is the same operation, of the adjoint recurrence.

The first traced call imports this module, through `handlers("torch.user_scan_ops")`: torch's compiler takes
seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep._compiler.recurrences.recurrence import parsed, written
from upsweep._compiler.recurrences.trace import Structure, arranged
from upsweep._core.user_scan import ScanSpec
from upsweep._torch import compiler_disabled, user_scan_autograd, user_scan_tensors
from upsweep._torch.operations import register
from upsweep._torch.user_scan_guards import graph_break_of, read_captured
from upsweep._user_scan.problem import EXACT_SINGLE, check, flatten, to_extent


def _spec(update: str, state: Tensor, length: int, axis: int, reverse: bool) -> ScanSpec:
    """Return the scan that the arguments of the operation describe."""
    dtype = np.dtype(user_scan_tensors.numpy_name(state.dtype))
    return ScanSpec(parsed(update), dtype, length, tuple(state.shape), axis, reverse)


def _empty(shape: tuple[int, ...], axis: int, like: Tensor) -> Tensor:
    """A result with time first, of the strides of an array in C order with time on the user's axis."""
    return like.new_empty((*shape[1 : axis + 1], shape[0], *shape[axis + 1 :])).movedim(axis, 0)


def _run(update: str, n_saved: int, inputs: list[Tensor], states: list[Tensor], *extent: Any) -> list[Tensor]:
    spec = _spec(update, states[0], *extent)
    outputs, finals = user_scan_tensors.execute(spec, (*inputs, *states))
    results = []
    for y in outputs:
        target = _empty(tuple(y.shape), spec.axis, y)
        results.append(y if y.stride() == target.stride() else target.copy_(y))
    n = len(results) - n_saved
    return [*results[:n], *(state.clone() for state in finals), *results[n:]]


def _fake(
    update: str, n_saved: int, inputs: list[Tensor], states: list[Tensor], length: int, axis: int, reverse: bool
) -> list[Tensor]:
    results = [_empty((length, *states[0].shape), axis, states[0]) for _ in parsed(update).outputs]
    n = len(results) - n_saved
    return [*results[:n], *(each.new_empty(each.shape) for each in states), *results[n:]]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    update, n_saved, arrays, states, *extent = inputs
    spec = _spec(update, states[0], *extent)
    user_scan_autograd.save(ctx, (spec, n_saved, *arrays, *states), tuple(output))


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    n, gradients = ctx.spec.recurrence.n_inputs, user_scan_autograd.backward(ctx, *grads)[2:]
    return None, None, list(gradients[:n]), list(gradients[n:]), None, None, None


def _vmap(
    info: Any, in_dims: tuple[Any, ...], update: str, n_saved: int, inputs: list[Tensor], states: list[Tensor],
    *extent: Any,
) -> Any:  # fmt: skip
    arguments = zip(in_dims[2:4], (inputs, states))
    dims = [dim for of, tensors in arguments for dim in (of or [None] * len(tensors))]
    spec = _spec(update, states[0], *extent)
    batched, operands = user_scan_tensors.batch(spec, info.batch_size, dims, [*inputs, *states])
    return _call(batched, update, n_saved, operands), user_scan_autograd.batch_axes(spec, n_saved)


def _call(spec: ScanSpec, update: str, n_saved: int, operands: Sequence[Tensor]) -> Any:
    """Run the operation on inputs, then states; `update` is the text of the recurrence."""
    n = spec.recurrence.n_inputs
    return recurrence(update, n_saved, operands[:n], operands[n:], spec.length, spec.axis, spec.reverse)


recurrence = register(
    "recurrence(str update, int n_kept, Tensor[] inputs, Tensor[] states, SymInt length, int axis, bool reverse) "
    "-> Tensor[]",
    _run, _fake, _save, _backward, _vmap,
)  # fmt: skip


def run(spec: ScanSpec, tensors: list[Tensor]) -> Any:
    """`user_scan_autograd.run`, by the operation."""
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    whole = user_scan_autograd.keeping(spec) if keeps else spec
    return _call(whole, written(whole.recurrence), spec.recurrence.n_states if keeps else 0, tensors)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch is not typed here
def _traced(
    update: Callable[[Any, Any], Any], states: tuple[str, ...], state_structure: Structure,
    inputs: tuple[str, ...], input_structure: Structure,
) -> tuple[Any, ...]:  # fmt: skip
    """Trace the update for arguments of these dtypes, by name; the result consists of Python's own types.

    These are the recurrence as text; the same with the states before each step as outputs; the dtype of the
    computation; which inputs and states are integers; names of dtypes and structure of the outputs, then of the
    states.
    """

    def example(name: str, shape: tuple[int, ...]) -> Any:
        if name.lstrip("-").isdigit():
            return int(name)
        return {"int": 1, "float": 1.0}.get(name, np.zeros(shape, name))

    problem = check(
        update, arranged([example(name, ()) for name in states], state_structure),
        arranged([example(name, (1,)) for name in inputs], input_structure), 0, False, None if inputs else 1,
        user_scan_tensors.default_dtype(),
    )  # fmt: skip
    spec, traced = problem.spec, problem.traced
    return (
        written(spec.recurrence), written(user_scan_autograd.keeping(spec).recurrence), spec.dtype.name,
        user_scan_tensors.integers_of(spec),
        (tuple(dtype.name for dtype in traced.output_dtypes), traced.output_structure),
        (tuple(dtype.name for dtype in traced.state_dtypes), state_structure),
    )  # fmt: skip


def _dtype_name(value: Any) -> str:
    if isinstance(value, Tensor):
        return user_scan_tensors.numpy_name(value.dtype)
    if isinstance(value, int) and not -EXACT_SINGLE < value < EXACT_SINGLE:
        return str(value)
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"


def compiled_scan(
    update: Callable[[Any, Any], Any], init: Any, xs: Any, *, axis: int, reverse: bool, return_final: bool,
    length: int | None, checkpoint: int | None,
) -> Any:  # fmt: skip
    """`user_scan.scan` as torch's compiler traces it: sizes may be symbolic, and there are no numpy arrays."""
    is_traced = torch.compiler.is_dynamo_compiling()  # torch.export runs this code, and takes values as constants
    if checkpoint is not None and not is_traced:
        user_scan_autograd.refuse_segments()
    if is_traced:
        read_captured(update)
    graph_break = "scan" if checkpoint is not None else graph_break_of() if is_traced else None
    if graph_break is not None:
        return getattr(compiler_disabled, graph_break)(
            update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
            checkpoint=checkpoint,
        )  # fmt: skip
    raw_states, state_structure = flatten(init, "init")
    raw_inputs, input_structure = flatten(xs, "xs")
    states = user_scan_tensors.check_tensors(raw_states, "init", state_structure)
    inputs = user_scan_tensors.check_tensors(raw_inputs, "xs", input_structure)
    half = user_scan_tensors.half_dtype([*states, *inputs])
    text, keeping, dtype, integers, outputs, finals = _traced(
        update, tuple(_dtype_name(each) for each in states), state_structure,
        tuple(_dtype_name(each) for each in inputs), input_structure,
    )  # fmt: skip
    shapes = [each.shape if isinstance(each, Tensor) else () for each in (inputs or states)]
    shape = torch.broadcast_shapes(*shapes)
    axis, n_steps, columns = to_extent(shape if inputs else None, () if inputs else shape, axis, length)
    states, inputs = user_scan_tensors.on_one_device(states, inputs, None)
    whole, n = columns[:axis] + (n_steps,) + columns[axis:], len(inputs)
    operands = user_scan_tensors.as_operands(states, inputs, getattr(torch, dtype), whole, axis, integers)
    keeps = torch.is_grad_enabled() and any(each.requires_grad for each in operands)
    results = recurrence(
        keeping if keeps else text, len(states) if keeps else 0, operands[:n], operands[n:], n_steps, axis,
        bool(reverse),
    )  # fmt: skip
    return user_scan_tensors.as_result(results, axis, half, outputs, finals, return_final)
