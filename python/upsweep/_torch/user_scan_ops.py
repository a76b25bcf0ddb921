"""User-defined scans as one registered torch operation: what the compiler, modes and exported programs see.

An operation takes no Python function. It takes the recurrence that the function was traced to, as text: nothing
that another process would have to know, and different updates are different programs. Inputs have time first,
and all tensors the dtype that is calculated in. Gradients are the same operation, of the adjoint recurrence.

Imported by the first who is followed, as torch's compiler is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep._compiler.recurrences.text import parsed, written
from upsweep._torch import user_scan
from upsweep._torch.user_scan import Spec
from upsweep._user_scan.problem import arranged, check, flatten, label, to_axis

__all__ = ["compiled_scan", "recurrence", "run"]

_library = torch.library.Library("upsweep", "FRAGMENT")
_library.define(
    "recurrence(str update, int n_kept, Tensor[] inputs, Tensor[] states, SymInt length, int axis, bool reverse) "
    "-> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _spec(
    update: str, dtype: torch.dtype, columns: tuple[int, ...], length: int, axis: int, reverse: bool
) -> Spec:  # fmt: skip
    return Spec(parsed(update), np.dtype(user_scan.traced_name(dtype)), reverse, length, columns, axis)


def _spec_of(update: str, states: list[Tensor], length: int, axis: int, reverse: bool) -> Spec:
    return _spec(update, states[0].dtype, tuple(states[0].shape), length, axis, reverse)


def _empty(shape: tuple[int, ...], axis: int, like: Tensor) -> Tensor:
    """A result with time first, which lies as an array in C order that has time where the user has it."""
    return like.new_empty((*shape[1 : axis + 1], shape[0], *shape[axis + 1 :])).movedim(axis, 0)


def _run(
    update: str, n_kept: int, inputs: list[Tensor], states: list[Tensor], length: int, axis: int, reverse: bool
) -> list[Tensor]:
    outputs, last = _spec_of(update, states, length, axis, reverse).run((*inputs, *states))
    results = []
    for y in outputs:
        place = _empty(tuple(y.shape), axis, y)
        results.append(y if y.stride() == place.stride() else place.copy_(y))
    n = len(results) - n_kept
    return [*results[:n], *(each.clone() for each in last), *results[n:]]


def _fake(
    update: str, n_kept: int, inputs: list[Tensor], states: list[Tensor], length: int, axis: int, reverse: bool
) -> list[Tensor]:
    shape = (length, *states[0].shape)
    results = [_empty(shape, axis, states[0]) for _ in parsed(update).outputs]
    n = len(results) - n_kept
    return [*results[:n], *(each.new_empty(each.shape) for each in states), *results[n:]]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.update, ctx.n_kept, arrays, states, ctx.length, ctx.axis, ctx.reverse = inputs
    ctx.columns = tuple(states[0].shape)
    ctx.dtype = states[0].dtype
    ctx.save_for_backward(*arrays, *output[len(output) - ctx.n_kept :])


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    k = ctx.n_kept
    spec = _spec(ctx.update, ctx.dtype, ctx.columns, ctx.length, ctx.axis, ctx.reverse)
    n = len(spec.recurrence.outputs) - k
    found = user_scan.gradients(spec, ctx.saved_tensors, [*grads[:n], *grads[n + k :]], list(grads[n : n + k]))
    n_inputs = spec.recurrence.n_inputs
    return None, None, list(found[:n_inputs]), list(found[n_inputs:]), None, None, None


def _vmap(
    info: Any, in_dims: tuple[Any, ...], update: str, n_kept: int, inputs: list[Tensor], states: list[Tensor],
    length: int, axis: int, reverse: bool,
) -> Any:  # fmt: skip
    n = len(inputs)

    def dims(place: int, count: int) -> list[int | None]:
        given = in_dims[place]
        return [None] * count if given is None else list(given)

    batched, moved = user_scan.batch(
        _spec_of(update, states, length, axis, reverse), info.batch_size, [*dims(2, n), *dims(3, len(states))],
        [*inputs, *states],
    )  # fmt: skip
    results = recurrence(update, n_kept, moved[:n], moved[n:], length, batched.axis, reverse)
    n_outputs = len(batched.recurrence.outputs) - n_kept
    return results, [*(1 for _ in range(n_outputs)), *(0 for _ in states), *(1 for _ in range(n_kept))]


_library.impl("recurrence", _run, "CPU")
_library.impl("recurrence", _run, "CUDA")
torch.library.register_fake("upsweep::recurrence", _fake, lib=_library)
torch.library.register_autograd("upsweep::recurrence", _backward, setup_context=_save, lib=_library)
torch.library.register_vmap("upsweep::recurrence", _vmap, lib=_library)
recurrence = torch.ops.upsweep.recurrence.default


def run(spec: Spec, tensors: list[Tensor]) -> Any:
    """As `user_scan.run`, by the operation."""
    n = spec.recurrence.n_inputs
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    whole = spec.keeping() if keeps else spec
    return recurrence(
        written(whole.recurrence), spec.recurrence.n_states if keeps else 0, tensors[:n], tensors[n:],
        spec.length, spec.axis, spec.reverse,
    )  # fmt: skip


# ---- under the compiler --------------------------------------------------------------------------------------


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch is not typed here
def _traced(
    update: Callable[[Any, Any], Any], states: tuple[str, ...], state_structure: int | None,
    inputs: tuple[str, ...], input_structure: int | None,
) -> tuple[Any, ...]:  # fmt: skip
    """What the update is traced to, in Python's own types; dtypes by name, of Python's numbers their type's."""

    def example(name: str, shape: tuple[int, ...]) -> Any:
        return {"int": 1, "float": 1.0}.get(name, np.zeros(shape, name))

    problem = check(
        update,
        arranged([example(name, ()) for name in states], state_structure),
        arranged([example(name, (1,)) for name in inputs], input_structure),
        0,
        False,
        1 if not inputs else None,
    )
    traced = problem.traced
    spec = Spec(traced.recurrence, traced.dtype, False, 1, (), 0)
    return (
        written(traced.recurrence), written(spec.keeping().recurrence), traced.dtype.name,
        tuple(dtype.name for dtype in traced.state_dtypes), tuple(dtype.name for dtype in traced.output_dtypes),
        traced.output_structure,
    )  # fmt: skip


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return user_scan.traced_name(value.dtype)
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"


def compiled_scan(
    update: Callable[[Any, Any], Any], init: Any, xs: Any, *, axis: int, reverse: bool, return_final: bool,
    length: int | None, checkpoint: int | None,
) -> Any:  # fmt: skip
    """`user_scan.scan` in what the compiler reads: shapes that may be symbols, and no arrays of numpy."""
    if checkpoint is not None:
        from upsweep._torch import compiler_disabled

        return compiler_disabled.scan(
            update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
            checkpoint=checkpoint,
        )  # fmt: skip
    raw_states, state_structure = flatten(init, "init")
    raw_inputs, input_structure = flatten(xs, "xs")
    states = [user_scan.check_tensor(each, label("init", state_structure, n)) for n, each in enumerate(raw_states)]
    inputs = [user_scan.check_tensor(each, label("xs", input_structure, n)) for n, each in enumerate(raw_inputs)]
    half = user_scan.half_of([*states, *inputs])
    text, keeping, name, state_dtypes, output_dtypes, output_structure = _traced(
        update, tuple(_kind(each) for each in states), state_structure,
        tuple(_kind(each) for each in inputs), input_structure,
    )  # fmt: skip
    shapes = [each.shape if isinstance(each, Tensor) else () for each in (inputs or states)]
    whole = torch.broadcast_shapes(*shapes)
    if inputs:
        if not whole:
            raise ValueError("xs: expected at least one axis, along which the scan runs, got numbers")
        place = to_axis(axis, len(whole))
        columns, n_steps = whole[:place] + whole[place + 1 :], whole[place]
        if length is not None and length != n_steps:
            raise ValueError(f"length: {length} is not the length of xs along axis, {n_steps}")
    else:
        if length is None:
            raise ValueError("length: is needed where xs is None")
        place, columns, n_steps = to_axis(axis, len(whole) + 1), whole, length
        whole = columns[:place] + (n_steps,) + columns[place:]
    dtype = getattr(torch, name)
    states, inputs = user_scan.on_one_device(states, inputs, None)
    arrays = [user_scan.as_tensor(each).to(dtype).expand(whole).movedim(place, 0) for each in inputs]
    before = [user_scan.as_tensor(each).to(dtype).expand(columns) for each in states]
    keeps = torch.is_grad_enabled() and any(each.requires_grad for each in (*arrays, *before))
    results = recurrence(
        keeping if keeps else text, len(before) if keeps else 0, arrays, before, n_steps, place, bool(reverse)
    )
    return user_scan.delivered(
        results, output_dtypes, output_structure, state_dtypes, state_structure, place, half, return_final
    )
