"""Scans by an update of tensors that are on a device: views of them, and results in torch's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from upsweep._arrays import Array, DeviceView, view_tensor
from upsweep._backends import user_array
from upsweep._user_scan.problem import device_scans, run_into

__all__ = ["is_cuda", "on_device", "owners", "run", "send_numbers", "viewed"]


def is_cuda(tensor: Tensor) -> bool:
    """Whether a tensor is on a device."""
    return bool(tensor.is_cuda)


def viewed(tensor: Tensor) -> DeviceView:
    """A tensor on a device as numpy sees it."""
    return view_tensor(tensor.detach().resolve_neg(), "a tensor")


def send_numbers(values: Sequence[Any], ordinal: int) -> list[Any]:
    """Tensors of one number on the CPU go along, with their gradients; Python's numbers stay what they are."""
    device = torch.device("cuda", ordinal)
    return [value.to(device) if isinstance(value, Tensor) else value for value in values]


@contextlib.contextmanager
def on_device(arrays: Sequence[Array]) -> Iterator[Any]:
    """The scans of a call on these arrays; None where they are in the host's memory."""
    there = {f"xs, init: array {n}": array for n, array in enumerate(arrays) if isinstance(array, DeviceView)}
    if not there:
        yield None
        return
    with contextlib.closing(device_scans(there)) as scans:
        yield scans


def run(scans: Any, spec: Any, inputs: list[Array], states: list[Array]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs, with time on their first axis and where it is in memory, and the last states."""
    axis, columns = spec.axis, spec.columns
    whole = columns[:axis] + (spec.length,) + columns[axis:]
    outputs = [user_array(scans.empty(whole, spec.dtype)).movedim(axis, 0) for _ in spec.recurrence.outputs]
    final = [scans.empty(columns, spec.dtype) for _ in states]
    targets: list[Array] = [spec.in_order(viewed(y)) for y in outputs]
    run_into(scans, spec.recurrence, spec.dtype, inputs, targets, states, final, spec.length, columns)
    return outputs, owners(final)


def owners(arrays: Sequence[Array], reverse: bool = False) -> list[Tensor]:
    """The tensors of results; turned round, which torch has no strides for."""
    return [user_array(array).flip(0) if reverse else user_array(array) for array in arrays]
