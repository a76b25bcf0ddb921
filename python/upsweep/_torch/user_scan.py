"""User-defined scans of torch tensors, with gradients of any order.

A scan with the states before each step among its results is one differentiable function; its derivative is such
a scan again, of the adjoint recurrence, the other way. Who follows the tensors (the compiler, modes) sees one
operation instead, of `user_scan_ops`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep._arrays import Array
from upsweep._compiler.recurrences.adjoint import adjoint
from upsweep._compiler.recurrences.guards import Here
from upsweep._compiler.recurrences.recurrence import Recurrence, state
from upsweep._compiler.recurrences.trace import Structure
from upsweep._torch import scan as torch_scan
from upsweep._torch import user_scan_cuda as there
from upsweep._torch.graph_breaks import graph_break
from upsweep._torch.scan import refuse_not_dense
from upsweep._torch.user_scan_plans import TensorPlan, kind
from upsweep._user_scan.cached_calls import kinds, known_plans
from upsweep._user_scan.gradient import backward, run_segments
from upsweep._user_scan.problem import Problem, arranged, check, check_checkpoint, flatten, label, run_recurrence

__all__ = [
    "Spec",
    "as_arrays",
    "as_tensor",
    "batch",
    "check_tensor",
    "delivered",
    "followed",
    "from_arrays",
    "gradients",
    "half_of",
    "on_one_device",
    "own_dtype",
    "prepare",
    "run",
    "scan",
    "traced_name",
]

_NOTHING = bytes(8)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@graph_break("scan with checkpoint= runs in segments: leave checkpoint= out to compile it")
def scan(
    update: Callable[[Any, Any], Any], init: Any, xs: Any, *, axis: int, reverse: bool, return_final: bool,
    length: int | None, checkpoint: int | None,
) -> Any:  # fmt: skip
    """`upsweep.scan` where one of the arrays is a tensor."""
    size = check_checkpoint(checkpoint)
    if torch.compiler.is_compiling():
        from upsweep._torch import user_scan_ops

        return user_scan_ops.compiled_scan(
            update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
            checkpoint=checkpoint,
        )  # fmt: skip
    known, key = None, None
    if size is None:
        known, key = _known(update, init, xs, axis, reverse, return_final, length)
    plan = None if known is None else known.get(key)
    if plan is not None:
        return plan.run(flatten(init, "init")[0], flatten(xs, "xs")[0])
    problem, states, inputs = prepare(update, init, xs, axis, reverse, length)
    torch_scan.reject_forward_ad(
        tuple(v for v in (*states, *inputs) if isinstance(v, Tensor)), "scans by an update"
    )
    half, traced, state_structure = half_of([*states, *inputs]), problem.traced, problem.state_structure
    spec = Spec(
        traced.recurrence, traced.dtype, problem.reverse, problem.length, problem.columns, problem.axis
    )  # fmt: skip
    if size is None and problem.placement is not None and _are_there([*states, *inputs]):
        made = TensorPlan(
            problem, states, inputs, half, return_final, torch.is_grad_enabled(),
            functools.partial(gradients_of_any_order, spec),
        )  # fmt: skip
        if known is not None:
            known.keep(key, made)
        return made.run(states, inputs)
    states, inputs = on_one_device(states, inputs, problem)
    tensors = spec.operands(states, inputs)
    results = run(spec, tensors) if size is None else _run_in_segments(spec, size, tensors)
    outputs, after = ([dtype.name for dtype in part] for part in (traced.output_dtypes, traced.state_dtypes))
    return delivered(
        results, outputs, traced.output_structure, after, state_structure, problem.axis, half, return_final
    )


def as_arrays(states: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """Tensors as the arrays of numpy that they are to a scan without derivatives; None where they are more."""
    if torch_scan.is_traced() or not all(map(_is_array, inputs)):
        return None
    if not all(type(value) is float or _is_array(value) for value in states):
        return None
    found = [[v if type(v) is float else v.detach().numpy() for v in values] for values in (states, inputs)]
    return found[0], found[1]


def _is_array(value: Any) -> bool:
    # A number of a tensor would make the others wider in numpy.
    return (
        kind(value) is not None
        and value.dtype in (torch.float32, torch.float64)
        and value.is_cpu
        and value.ndim > 0
        and not (value.requires_grad and torch.is_grad_enabled())
        and not there.is_cuda(value)
    )


def from_arrays(result: Any) -> Any:
    """The result of a scan of arrays as tensors, arranged alike."""
    if isinstance(result, tuple):
        return tuple(map(from_arrays, result))
    if result is None:
        return None
    array = np.asarray(result)
    return torch.from_numpy(array.copy() if any(stride < 0 for stride in array.strides) else array)


def delivered(
    results: Sequence[Tensor], output_dtypes: Sequence[str], output_structure: Structure,
    state_dtypes: Sequence[str], state_structure: Structure, axis: int, half: torch.dtype, return_final: bool,
) -> Any:  # fmt: skip
    """Outputs with time first, and last states behind them, as the user has them; dtypes by their traced names."""
    n = len(output_dtypes)
    ys = [y.movedim(0, axis).to(own_dtype(name, half)) for y, name in zip(results[:n], output_dtypes)]
    result = arranged(ys, output_structure)
    if not return_final:
        return result
    last = results[n : n + len(state_dtypes)]
    final = [value.to(own_dtype(name, half)) for value, name in zip(last, state_dtypes)]
    return result, arranged(final, state_structure)


def _known(
    update: Any, init: Any, xs: Any, axis: Any, reverse: Any, return_final: Any, length: Any
) -> tuple[Here[Any] | None, Hashable]:
    """What is known of such calls, and what this one is known by; None where it has to be looked at."""
    if not callable(update) or torch_scan.is_traced():
        return None, None
    (states, of_states), (inputs, of_inputs) = flatten(init, "init"), flatten(xs, "xs")
    if not _are_there([*states, *inputs]):  # of others no plan is kept
        return None, None
    kinds_of = kinds(states, kind), kinds(inputs, kind, are_constants=True)
    if None in kinds_of or type(axis) is not int or not (length is None or type(length) is int):
        return None, None
    flags = bool(reverse), bool(return_final), torch.is_grad_enabled()
    return known_plans.here(update), (axis, length, flags, of_states, of_inputs, kinds_of)


def _are_there(values: list[Any]) -> bool:
    """Whether kernels can read all of these where they are: a number of a tensor on the CPU has to be sent."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return all(there.is_cuda(tensor) and not tensor.is_neg() for tensor in tensors)


def prepare(
    update: Callable[[Any, Any], Any], init: Any, xs: Any, axis: int, reverse: bool, length: int | None
) -> tuple[Problem, list[Any], list[Any]]:
    """The checked call; states and inputs as tensors or numbers."""
    states, state_structure = flatten(init, "init")
    inputs, input_structure = flatten(xs, "xs")
    states = [check_tensor(value, label("init", state_structure, n)) for n, value in enumerate(states)]
    inputs = [check_tensor(value, label("xs", input_structure, n)) for n, value in enumerate(inputs)]
    is_seen = not _is_transformed() and not followed([v for v in (*states, *inputs) if isinstance(v, Tensor)])
    problem = check(
        update,
        arranged([_shaped(value, is_seen) for value in states], state_structure),
        arranged([_shaped(value, is_seen) for value in inputs], input_structure),
        axis,
        reverse,
        length,
    )
    return problem, states, inputs


def run(spec: Spec, tensors: list[Tensor]) -> Any:
    """Outputs and last states, of inputs in the scan's axes and states: differentiable."""
    if followed(tensors):
        from upsweep._torch import user_scan_ops

        return user_scan_ops.run(spec, tensors)
    n_states = spec.recurrence.n_states
    if _is_transformed():  # whose tensors hide what is differentiated
        return _TransformedRun.apply(spec.keeping(), n_states, *tensors)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _EagerRun.apply(spec.keeping(), n_states, *tensors)
    return _forward(spec, 0, *tensors)


def _run_in_segments(spec: Spec, size: int, tensors: list[Tensor]) -> Any:
    if _is_transformed() or followed(tensors):
        raise NotImplementedError("checkpoint: not for tensors that torch.func or a mode follows; leave it out")
    return _Checkpointed.apply(spec, size, *tensors)


def _is_transformed() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def followed(tensors: list[Tensor]) -> bool:
    """Whether somebody looks on who understands operations only: a mode, or a tensor of another kind."""
    if torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling():
        return True
    return any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in tensors)


def half_of(values: list[Any]) -> torch.dtype:
    """The type of halves of 16 bits among tensors, which can be one only: numpy has one."""
    found = {value.dtype for value in values if isinstance(value, Tensor)} & {torch.float16, torch.bfloat16}
    if len(found) > 1:
        raise TypeError("xs, init: float16 and bfloat16 do not go together; convert one, or both to float32")
    return found.pop() if found else torch.float16


def own_dtype(name: str, half: torch.dtype) -> torch.dtype:
    """torch's dtype of a traced result's."""
    dtype: torch.dtype = half if name == "float16" else getattr(torch, name)
    return dtype


def check_tensor(value: Any, name: str) -> Any:
    """An argument as a tensor, or a number as it is; integers become torch's default dtype."""
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
        value = torch.from_numpy(np.array(array))
    refuse_not_dense(value, name)
    if value.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name}: is on {value.device}; scans by an update run on the CPU and on CUDA")
    if value.dtype is torch.bool or value.dtype in _FLOATS:
        return value
    if value.is_complex() or value.is_floating_point():
        raise TypeError(
            f"{name}: expected float16, bfloat16, float32, float64, integers or bool, got {value.dtype}"
        )
    return value.to(torch.get_default_dtype())


def on_one_device(states: list[Any], inputs: list[Any], problem: Problem | None) -> tuple[list[Any], list[Any]]:
    """States and inputs where one of them is on a device: tensors of one number on the CPU go there too."""
    if problem is not None and problem.placement is not None:
        ordinal = problem.placement.ordinal
    else:  # of tensors that are followed nothing else is known
        devices = [value.device for value in (*states, *inputs) if isinstance(value, Tensor) and value.is_cuda]
        if not devices:
            return states, inputs
        ordinal = devices[0].index
    return there.send_numbers(states, ordinal), there.send_numbers(inputs, ordinal)


def traced_name(dtype: torch.dtype) -> str:
    """numpy's name of a dtype; bfloat16, which it does not have, is traced and rounded as its halves are."""
    return "float16" if dtype is torch.bfloat16 else str(dtype).removeprefix("torch.")


def _shaped(value: Any, is_seen: bool) -> Any:
    """An array of a tensor's shape, dtype and device, for checks: its memory may not be there to be seen."""
    if not isinstance(value, Tensor):
        return value
    if is_seen and there.is_cuda(value):
        return there.viewed(value.view(torch.float16) if value.dtype is torch.bfloat16 else value)
    # As np.broadcast_to would, in a third of its time.
    return np.ndarray(tuple(value.shape), traced_name(value.dtype), _NOTHING, 0, (0,) * value.ndim)


def _viewed(tensor: Tensor) -> Array:
    """A tensor as numpy sees it, where it is."""
    if there.is_cuda(tensor):
        return there.viewed(tensor)
    array: Array = tensor.detach().resolve_neg().numpy()
    return array


def as_tensor(value: Any) -> Tensor:
    """A number as a tensor that broadcasts."""
    return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


@dataclass(frozen=True)
class Spec:
    """What runs: the recurrence, and the shapes of its arrays."""

    recurrence: Recurrence
    dtype: np.dtype[Any]
    reverse: bool
    length: int
    columns: tuple[int, ...]
    axis: int

    def keeping(self) -> Spec:
        """The same with the states before each step among the outputs, the last of them."""
        kept = tuple(state(p) for p in range(self.recurrence.n_states))
        return replace(self, recurrence=replace(self.recurrence, outputs=self.recurrence.outputs + kept))

    def in_order(self, array: Array) -> Array:
        return array[::-1] if self.reverse else array

    def operands(self, states: Sequence[Any], inputs: Sequence[Any]) -> list[Tensor]:
        """Inputs in the scan's axes and states, of what a user gave."""
        dtype, axis, columns = getattr(torch, self.dtype.name), self.axis, self.columns
        whole = columns[:axis] + (self.length,) + columns[axis:]
        tensors = [as_tensor(value).to(dtype).expand(whole).movedim(axis, 0) for value in inputs]
        return tensors + [as_tensor(value).to(dtype).expand(columns) for value in states]

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


def _forward(spec: Spec, n_kept: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Outputs but the last `n_kept`, which are the states before each step; last states; those states."""
    outputs, final = spec.run(tensors)
    n = len(outputs) - n_kept
    return (*outputs[:n], *final, *outputs[n:])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    spec, n_kept, *tensors = inputs
    ctx.spec, ctx.n_kept = spec, n_kept
    ctx.save_for_backward(*tensors[: spec.recurrence.n_inputs], *output[len(output) - n_kept :])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    spec, k = ctx.spec, ctx.n_kept
    n = len(spec.recurrence.outputs) - k
    parts = [*grads[:n], *grads[n + k :]]
    return (None, None, *gradients(spec, ctx.saved_tensors, parts, list(grads[n : n + k])))


class _EagerRun(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """The scan of plain tensors; torch binds arguments anew for functions that transforms can take."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = _forward(*inputs)
        _save(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)


class _TransformedRun(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """The scan under torch.func's transforms."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_save)
    backward = staticmethod(_backward)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], spec: Spec, n_kept: int, *tensors: Tensor) -> Any:
        batched, moved = batch(spec, info.batch_size, in_dims[2:], tensors)
        results = _TransformedRun.apply(batched, n_kept, *moved)
        n = len(spec.recurrence.outputs) - n_kept
        return results, (*(1 for _ in range(n)), *(0 for _ in range(n_kept)), *(1 for _ in range(n_kept)))


def gradients(
    spec: Spec, saved: tuple[Tensor, ...], of_outputs: list[Tensor | None], of_last: list[Tensor | None]
) -> tuple[Tensor, ...]:
    """The gradients of inputs and states, of what was saved: the inputs and the states before each step."""
    cotangents = _zeros_where_missing(of_outputs, (spec.length, *spec.columns), saved[-1])
    last = _zeros_where_missing(of_last, spec.columns, saved[-1])
    back = replace(spec, recurrence=adjoint(spec.recurrence), reverse=not spec.reverse)
    results = run(back, [*saved, *cotangents, *last])
    n_outputs = len(saved)
    return tuple(results[:n_outputs])


def gradients_of_any_order(
    spec: Spec, states: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Tensor | None]
) -> list[Tensor]:
    """The gradients of what a user gave, states before inputs, which can be differentiated again.

    Torch sums them over what was broadcast, and rounds them.

    `cotangents` are those of outputs, then of last states if these were returned. The states before each step are
    computed once more, by operations that torch follows.
    """
    n, k, axis = len(spec.recurrence.outputs), spec.recurrence.n_states, spec.axis
    dtype = getattr(torch, spec.dtype.name)
    given = [None if c is None else c.to(dtype) for c in cotangents]
    tensors = spec.operands(states, inputs)
    keeping = spec.keeping()
    kept = run(keeping, tensors)[n : n + k]
    of_outputs = [None if c is None else c.movedim(axis, 0) for c in given[:n]]
    found = gradients(
        keeping, (*tensors[: len(inputs)], *kept), [*of_outputs, *[None] * k], given[n:] or [None] * k
    )  # fmt: skip
    return [*found[len(inputs) :], *(g.movedim(0, axis) for g in found[: len(inputs)])]


def batch(spec: Spec, size: int, dims: Any, tensors: Any) -> tuple[Spec, list[Tensor]]:
    """The scan with a batch as the first of its columns."""
    n = spec.recurrence.n_inputs
    moved = []
    for place, (tensor, dim) in enumerate(zip(tensors, dims)):
        front = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        moved.append(front.movedim(0, 1) if place < n else front)
    return replace(spec, columns=(size, *spec.columns), axis=spec.axis + 1), moved


class _Checkpointed(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Outputs and last states, with the state kept before every `size` steps; gradients of the first order."""

    @staticmethod
    def forward(ctx: Any, spec: Spec, size: int, *tensors: Tensor) -> tuple[Tensor, ...]:
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
        like = next(filter(there.is_cuda, tensors), tensors[-1])
        cotangents = _zeros_where_missing(list(grads[:n]), (spec.length, *spec.columns), like)
        last = _zeros_where_missing(list(grads[n:]), spec.columns, like)
        with there.on_device((*inputs, *states)) as scans:
            found, first = backward(
                spec.recurrence, spec.dtype, inputs, ctx.starts, [spec.in_order(_viewed(c)) for c in cotangents],
                [_viewed(part) for part in last], spec.length, spec.columns, ctx.size, scans,
            )  # fmt: skip
        if there.is_cuda(like):
            return (None, None, *there.owners(found, spec.reverse), *there.owners(first))
        return (
            None,
            None,
            *(_from_array(spec.in_order(g)) for g in found),
            *(_from_array(np.ascontiguousarray(g)) for g in first),
        )
