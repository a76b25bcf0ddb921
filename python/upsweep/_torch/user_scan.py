"""`upsweep.scan` where one of its arguments is a torch tensor.

A call takes one of these paths:

    as_arrays         float32, float64, or few elements, on the CPU, no derivative: `upsweep.scan` of numpy views
    TensorScan        CUDA, with a first derivative: a compiled scan, cached as for other arrays
    run               everything else: operands of one dtype, differentiable to any order (`user_scan_autograd`)
    compiled_scan     under torch.compile: a registered operation (`user_scan_ops`)

`user_scan_tensors` converts arguments and results. `_torch/__init__.py` registers the loader of `user_scan_ops`,
whose import takes two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep._arrays.dispatch import handlers
from upsweep._compiler.recurrences.guards import Entry
from upsweep._compiler.recurrences.trace import arranged, structure_of
from upsweep._torch import operations, user_scan_autograd, user_scan_tensors
from upsweep._torch import scan as torch_scan
from upsweep._torch.graph_breaks import graph_break
from upsweep._torch.user_scan_plans import TensorScan, layout_key
from upsweep._user_scan.cached_calls import compiled_scans, layout_keys
from upsweep._user_scan.problem import Problem, check, check_checkpoint, flatten

_NOTHING = bytes(8)
# Elements of other dtypes than kernels compute in. Numpy's path saves 0.2 ms a call, but torch converts large
# tensors in half the time (float32 and bool, two cores of Zen 4, 2026-11: 10**6 elements in 2.2, not 4.0 ms).
_MOST_CONVERTED = 1 << 16


@graph_break(
    "update: is a method, whose object can change; make it a @staticmethod, and pass what it reads of self in xs, "
    "where it broadcasts",
    "scan_by_method",
)
@graph_break(
    "update: captures a tensor, or a number of the compiled function that has changed, which is no constant from "
    "then on; pass it in xs, where it broadcasts, or compile for each number by torch.compile(dynamic=False)",
    "scan_by_changing",
)
@graph_break(
    "scan runs in Python with checkpoint=: leave checkpoint= out to compile it; and where update captures what "
    "can change, as a tensor, array or list: pass it in xs, where it broadcasts, or make it a tuple of numbers"
)
def scan(
    update: Callable[[Any, Any], Any], init: Any, xs: Any, *, axis: int, reverse: bool, return_final: bool,
    length: int | None, checkpoint: int | None,
) -> Any:  # fmt: skip
    """`upsweep.scan` where one of the arrays is a tensor."""
    size = check_checkpoint(checkpoint)
    if torch.compiler.is_compiling():
        return handlers("torch.user_scan_ops").compiled_scan(
            update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
            checkpoint=checkpoint,
        )  # fmt: skip
    entry, key = None, None
    if size is None:
        entry, key = _lookup(update, init, xs, axis, reverse, return_final, length)
    compiled = None if entry is None else entry.get(key)
    if compiled is not None:
        return compiled.run(flatten(init, "init")[0], flatten(xs, "xs")[0])
    problem, states, inputs = prepare(update, init, xs, axis, reverse, length)
    spec, traced = problem.spec, problem.traced
    tensors = tuple(v for v in (*states, *inputs) if isinstance(v, Tensor))
    torch_scan.reject_forward_ad(tensors, "scans by an update")
    half = user_scan_tensors.half_dtype([*states, *inputs])
    if size is None and problem.placement is not None and _are_on_cuda(tensors):
        compiled = TensorScan(problem, states, inputs, half, return_final)
        if entry is not None:
            entry[key] = compiled
        return compiled.run(states, inputs)
    ordinal = None if problem.placement is None else problem.placement.ordinal
    states, inputs = user_scan_tensors.on_one_device(states, inputs, ordinal)
    operands = user_scan_tensors.as_operands(
        states, inputs, getattr(torch, spec.dtype.name), spec.shape, spec.axis, user_scan_tensors.integers_of(spec)
    )
    if size is None:
        results = user_scan_autograd.run(spec, operands)
    else:
        results = user_scan_autograd.run_in_segments(spec, size, operands)
    outputs = [dtype.name for dtype in traced.output_dtypes], traced.output_structure
    finals = [dtype.name for dtype in traced.state_dtypes], problem.state_structure
    return user_scan_tensors.as_result(results, spec.axis, half, outputs, finals, return_final)


@graph_break("lfilter reads its coefficients in Python; write its recurrence as an update of scan to compile it")
def lfilter(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `upsweep.lfilter`, not traced by torch's compiler."""
    if torch.compiler.is_dynamo_compiling():
        from upsweep._torch import compiler_disabled

        return compiler_disabled.lfilter(function, *arguments)
    return function(*arguments)


def as_arrays(states: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], list[Any], np.dtype[Any]] | None:
    """The arguments as numpy arrays that share their memory, and the dtype of integers as floats.

    None unless numpy's path computes the same.
    """
    if torch_scan.is_traced() or not all(map(_is_on_host, inputs)) or not all(map(_is_on_host, states)):
        return None
    views = [[v.detach().numpy() if isinstance(v, Tensor) else v for v in values] for values in (states, inputs)]
    return views[0], views[1], user_scan_tensors.default_dtype()


def _is_on_host(value: Any) -> bool:
    """Whether this is a number of Python, or a tensor that a numpy array can share its memory with."""
    if type(value) in (float, int, bool):
        return True
    return (
        layout_key(value) is not None
        and value.is_cpu
        and (
            value.dtype in (torch.float32, torch.float64)
            or (value.dtype is not torch.bfloat16 and value.numel() <= _MOST_CONVERTED)
        )
        and not (value.requires_grad and torch.is_grad_enabled())
        and not user_scan_tensors.is_cuda(value)
    )


def from_arrays(result: Any) -> Any:
    """The result of a scan of numpy arrays as tensors, arranged alike."""
    if isinstance(result, tuple):
        return arranged([*map(from_arrays, result)], structure_of(result))
    return None if result is None else user_scan_tensors.from_array(np.asarray(result))


def _lookup(
    update: Any, init: Any, xs: Any, axis: Any, reverse: Any, return_final: Any, length: Any
) -> tuple[Entry[Any] | None, Hashable]:
    """The cache entry of the update and the signature of the call; None if the call has to be checked."""
    if not callable(update) or torch_scan.is_traced():
        return None, None
    (states, state_structure), (inputs, input_structure) = flatten(init, "init"), flatten(xs, "xs")
    if not _are_on_cuda([*states, *inputs]):
        return None, None
    keys = layout_keys(states, layout_key), layout_keys(inputs, layout_key, are_constants=True)
    if None in keys or type(axis) is not int or not (length is None or type(length) is int):
        return None, None
    flags = bool(reverse), bool(return_final), torch.is_grad_enabled(), torch.get_default_dtype()
    return compiled_scans.entry(update), (axis, length, flags, state_structure, input_structure, keys)


def _are_on_cuda(values: Sequence[Any]) -> bool:
    """Whether kernels can read all tensors in place; one on the CPU is sent, a negated view is resolved first."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return all(user_scan_tensors.is_cuda(tensor) and not tensor.is_neg() for tensor in tensors)


def prepare(
    update: Callable[[Any, Any], Any], init: Any, xs: Any, axis: int, reverse: bool, length: int | None
) -> tuple[Problem, list[Any], list[Any]]:
    """The checked call; and the states and inputs as tensors or numbers."""
    states, state_structure = flatten(init, "init")
    inputs, input_structure = flatten(xs, "xs")
    states = user_scan_tensors.check_tensors(states, "init", state_structure)
    inputs = user_scan_tensors.check_tensors(inputs, "xs", input_structure)
    tensors = [value for value in (*states, *inputs) if isinstance(value, Tensor)]
    has_memory = not operations.is_transformed() and not user_scan_autograd.is_traced(tensors)
    problem = check(
        update, arranged([_stand_in(value, has_memory) for value in states], state_structure),
        arranged([_stand_in(value, has_memory) for value in inputs], input_structure), axis, reverse, length,
        user_scan_tensors.default_dtype(),
    )  # fmt: skip
    return problem, states, inputs


def _stand_in(value: Any, has_memory: bool) -> Any:
    """An array for `check` of the shape, dtype and device of a tensor, whose memory may not be accessible."""
    if not isinstance(value, Tensor):
        return value
    if has_memory and user_scan_tensors.is_cuda(value):
        # Both 16-bit dtypes are traced as float16.
        return user_scan_tensors.device_view(value.view(torch.float16) if value.dtype is torch.bfloat16 else value)
    # As np.broadcast_to would, in a third of its time.
    return np.ndarray(
        tuple(value.shape), user_scan_tensors.numpy_name(value.dtype), _NOTHING, 0, (0,) * value.ndim
    )
