"""Tensors as the arguments and results of user-defined scans.

Between the arguments of the user and the kernels, tensors have the dtype of the computation and time on the first
axis, in the order of the user. `user_scan` and `user_scan_ops` convert arguments and results by these functions,
and `user_scan_autograd` runs the scans. They are called as attributes of this module: tests replace `is_cuda`,
`view_tensor` and `send_numbers` to run the paths of a device on tensors in the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep._arrays import DeviceView, Operand, refuse_list_of_tensors, user_array, view_tensor
from upsweep._compiler.recurrences.trace import Structure, arranged
from upsweep._core.user_scan import ScanSpec
from upsweep._torch import operations
from upsweep._torch.executors import NAMES
from upsweep._torch.scan import refuse_not_dense
from upsweep._user_scan.problem import COMPLEX, check_real, label, refuse_record
from upsweep._user_scan.run import scans_on

_VMAP_TAKES_VIEWS = torch.__version__ >= (2, 13)  # of another dtype; 2.11 takes copies


def is_cuda(tensor: Tensor) -> bool:
    """Whether a tensor is on a CUDA device."""
    return bool(tensor.is_cuda)


def device_view(tensor: Tensor) -> DeviceView:
    """The device view of a CUDA tensor."""
    return view_tensor(tensor.detach().resolve_neg(), "a tensor")


def send_numbers(values: Sequence[Any], ordinal: int) -> list[Any]:
    """Copy tensors of one number from the CPU to a device, with their gradients; Python's numbers stay."""
    device = torch.device("cuda", ordinal)
    return [value.to(device) if isinstance(value, Tensor) else value for value in values]


def check_tensors(values: Sequence[Any], name: str, structure: Structure) -> list[Any]:
    """The items of an argument as tensors, or numbers."""
    return [_check_tensor(value, label(name, structure, n)) for n, value in enumerate(values)]


def _check_tensor(value: Any, name: str) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, Tensor):
        refuse_record(value, name)
        refuse_list_of_tensors(value, name)
        array = np.asarray(value)
        check_real(array.dtype.kind in "biuf", name, array)
        value = torch.from_numpy(np.array(array))
    refuse_not_dense(value, name)
    if value.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name}: is on {value.device}; scans by an update run on the CPU and on CUDA")
    if value.dtype not in NAMES or value.is_complex():
        raise TypeError(
            f"{name}: expected float16, bfloat16, float32, float64, integers or bool, got {value.dtype}"
            f"{COMPLEX if value.is_complex() else ''}"
        )
    return value


def half_dtype(values: list[Any]) -> torch.dtype:
    """The 16-bit float dtype among tensors: one of two, because both are traced as float16."""
    halves = {value.dtype for value in values if isinstance(value, Tensor)} & {torch.float16, torch.bfloat16}
    if len(halves) > 1:
        raise TypeError("xs, init: float16 and bfloat16 do not go together; convert one, or both to float32")
    return halves.pop() if halves else torch.float16


def numpy_name(dtype: torch.dtype) -> str:
    """The name of numpy's dtype; float16 for bfloat16, which numpy does not have."""
    return "float16" if dtype is torch.bfloat16 else NAMES[dtype]


def on_one_device(states: list[Any], inputs: list[Any], ordinal: int | None) -> tuple[list[Any], list[Any]]:
    """States and inputs, with numbers on the CPU copied to a device: `ordinal`, or that of a CUDA tensor."""
    if ordinal is None:
        tensors = (value for value in (*states, *inputs) if isinstance(value, Tensor))
        ordinal = next((tensor.device.index for tensor in tensors if tensor.is_cuda), None)
    if ordinal is None:
        return states, inputs
    return send_numbers(states, ordinal), send_numbers(inputs, ordinal)


def default_dtype() -> np.dtype[Any]:
    """The dtype of integers as floats."""
    return np.dtype(numpy_name(torch.get_default_dtype()))


def integers_of(spec: ScanSpec) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which inputs and which states of a scan are integers."""
    return spec.recurrence.integer_inputs, spec.recurrence.integer_states


def _with_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits in another dtype of 64 bits."""
    if _VMAP_TAKES_VIEWS or not operations.is_transformed():
        return tensor.view(dtype)
    result: Tensor = torch.ops.aten.view_copy.dtype(tensor, dtype)
    return result


def as_operands(
    states: Sequence[Any], inputs: Sequence[Any], dtype: torch.dtype, shape: tuple[int, ...], axis: int,
    integers: tuple[Sequence[bool], Sequence[bool]],
) -> list[Tensor]:  # fmt: skip
    """The inputs, with time first, then the states, broadcast and in the dtype of the computation.

    `shape` is that of the outputs as the user sees them; its sizes may be symbolic. `integers` says which inputs
    and states are integers: these become words, float64 tensors that have the bits of int64.
    """

    def as_tensor(value: Any, is_integer: bool) -> Tensor:
        if is_integer:
            if not isinstance(value, Tensor):
                value = torch.tensor(value - 2**64 if value >= 2**63 else value, dtype=torch.int64)
            whole: Tensor = value.to(torch.int64)
            return _with_dtype(whole, torch.float64)
        value = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        return value.to(dtype)

    columns = shape[:axis] + shape[axis + 1 :]
    tensors = [as_tensor(*each).expand(shape).movedim(axis, 0) for each in zip(inputs, integers[0])]
    return tensors + [as_tensor(*each).expand(columns) for each in zip(states, integers[1])]


def as_result(
    tensors: Sequence[Tensor], axis: int, half: torch.dtype, outputs: tuple[Sequence[str], Structure],
    states: tuple[Sequence[str], Structure], return_final: bool,
) -> Any:  # fmt: skip
    """The result of a call, of outputs with time first and final states.

    `outputs` and `states` are the names of the traced dtypes, and how the results are arranged.
    """

    def cast(tensor: Tensor, name: str) -> Tensor:
        dtype = half if name == "float16" else getattr(torch, name)
        if dtype.is_floating_point or dtype is torch.bool:
            return tensor.to(dtype)
        whole = _with_dtype(tensor.detach(), torch.int64)  # of words
        return _with_dtype(whole, dtype) if dtype is getattr(torch, "uint64", None) else whole.to(dtype)

    (output_dtypes, output_structure), (state_dtypes, state_structure) = outputs, states
    n = len(output_dtypes)
    ys = [cast(y.movedim(0, axis), name) for y, name in zip(tensors[:n], output_dtypes)]
    result = arranged(ys, output_structure)
    if not return_final:
        return result
    return result, arranged([cast(s, name) for s, name in zip(tensors[n:], state_dtypes)], state_structure)


def numpy_view(tensor: Tensor) -> Operand:
    """The memory of a tensor as an array, or as a device view."""
    if is_cuda(tensor):
        return device_view(tensor)
    array: Operand = tensor.detach().resolve_neg().numpy()
    return array


def views(spec: ScanSpec, tensors: Sequence[Tensor]) -> tuple[list[Operand], list[Operand]]:
    """The inputs of a scan in scan order, and the states, as arrays, of words as integers."""
    kinds, n = (*spec.recurrence.integer_inputs, *spec.recurrence.integer_states), spec.recurrence.n_inputs
    arrays = [numpy_view(tensor.view(torch.int64) if flag else tensor) for tensor, flag in zip(tensors, kinds)]
    return list(map(spec.reversed, arrays[:n])), arrays[n:]


def as_words(tensor: Tensor) -> Tensor:
    """A result of the executor in the dtype of the computation."""
    return tensor.view(torch.float64) if tensor.dtype is torch.int64 else tensor


def scans_on_tensors(arrays: Sequence[Operand]) -> Any:
    """The executor of the scans of these arrays, as of `scans_on`."""
    on_device: dict[str, Any] = {
        f"xs, init: array {n}": a for n, a in enumerate(arrays) if isinstance(a, DeviceView)
    }
    return scans_on(on_device)


def from_array(array: Operand) -> Tensor:
    """A result of the executor as a tensor; torch has no negative strides."""
    if isinstance(array, DeviceView):
        tensor: Tensor = user_array(array)
        return tensor
    return torch.from_numpy(array.copy() if any(stride < 0 for stride in array.strides) else array)


def execute(spec: ScanSpec, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs, with time first, and the final states; without derivatives."""
    inputs, states = views(spec, tensors)
    with scans_on_tensors((*inputs, *states)) as scans:
        outputs, finals = scans.run(spec, inputs, states)
    # `data`, as views that a function with several results returns cannot be changed in place.
    ys = [as_words(from_array(y)).movedim(spec.axis, 0).data for y in outputs]
    return ys, [as_words(from_array(state)) for state in finals]


def batch(spec: ScanSpec, size: int, dims: Any, tensors: Any) -> tuple[ScanSpec, list[Tensor]]:
    """The scan with a batch axis as the first of its columns, for vmap."""
    n = spec.recurrence.n_inputs
    batched = [operations.to_front(tensor, dim, size) for tensor, dim in zip(tensors, dims)]
    batched[:n] = [tensor.movedim(0, 1) for tensor in batched[:n]]
    return replace(spec, columns=(size, *spec.columns), axis=spec.axis + 1), batched
