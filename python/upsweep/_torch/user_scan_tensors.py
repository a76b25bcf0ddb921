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

from upsweep._arrays import DeviceView, Operand, user_array, view_tensor
from upsweep._compiler.recurrences.trace import Structure, arranged
from upsweep._core.user_scan import ScanSpec
from upsweep._torch.executors import NAMES
from upsweep._torch.operations import to_front
from upsweep._torch.scan import refuse_not_dense
from upsweep._user_scan.problem import check_real, label
from upsweep._user_scan.run import scans_on

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    """The items of an argument as tensors, or numbers; integers become torch's default dtype."""
    return [_check_tensor(value, label(name, structure, n)) for n, value in enumerate(values)]


def _check_tensor(value: Any, name: str) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        check_real(array.dtype.kind in "biuf", name, array)
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


def as_operands(
    states: Sequence[Any], inputs: Sequence[Any], dtype: torch.dtype, shape: tuple[int, ...], axis: int
) -> list[Tensor]:
    """The inputs, with time first, then the states, broadcast and in the dtype of the computation.

    `shape` is that of the outputs as the user sees them; its sizes may be symbolic.
    """

    def as_tensor(value: Any) -> Tensor:
        value = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        return value.to(dtype)

    columns = shape[:axis] + shape[axis + 1 :]
    tensors = [as_tensor(value).expand(shape).movedim(axis, 0) for value in inputs]
    return tensors + [as_tensor(value).expand(columns) for value in states]


def as_result(
    tensors: Sequence[Tensor], axis: int, half: torch.dtype, outputs: tuple[Sequence[str], Structure],
    states: tuple[Sequence[str], Structure], return_final: bool,
) -> Any:  # fmt: skip
    """The result of a call, of outputs with time first and final states.

    `outputs` and `states` are the names of the traced dtypes, and how the results are arranged.
    """

    def cast(tensor: Tensor, name: str) -> Tensor:
        return tensor.to(half if name == "float16" else getattr(torch, name))

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
    """The inputs of a scan in scan order, and the states, as arrays."""
    arrays, n = list(map(numpy_view, tensors)), spec.recurrence.n_inputs
    return list(map(spec.reversed, arrays[:n])), arrays[n:]


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
    return [from_array(y).movedim(spec.axis, 0) for y in outputs], list(map(from_array, finals))


def batch(spec: ScanSpec, size: int, dims: Any, tensors: Any) -> tuple[ScanSpec, list[Tensor]]:
    """The scan with a batch axis as the first of its columns, for vmap."""
    n = spec.recurrence.n_inputs
    batched = [to_front(tensor, dim, size) for tensor, dim in zip(tensors, dims)]
    batched[:n] = [tensor.movedim(0, 1) for tensor in batched[:n]]
    return replace(spec, columns=(size, *spec.columns), axis=spec.axis + 1), batched
