"""CUDA tensors of user-defined scans: device views for the kernels, and numbers that follow the other arguments.

A module of its own, so that tests can replace these functions and run on tensors in the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from upsweep._arrays import DeviceView, view_tensor

__all__ = ["device_view", "is_cuda", "send_numbers"]


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
