"""Compiled loop nests over torch tensors, as arrays of numpy on the same memory, or views of a device's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from upsweep import _arrays

__all__ = ["with_tensors"]


def _kind_of(tensor: Tensor) -> str:
    return str(tensor.device.type)


def _as_array(place: int, value: Any, function: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if _kind_of(value) != ("cuda" if function.is_on_device else "cpu"):
        wanted = "a CUDA device" if function.is_on_device else "the CPU"
        raise TypeError(f"argument {place}: built for {wanted}, got a tensor on {value.device}")
    if value.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"argument {place}: te's functions have no derivative; detach() the tensor")
    plain = value.detach().resolve_conj().resolve_neg()
    return _arrays.view_tensor(plain, f"argument {place}") if function.is_on_device else plain.numpy()


def with_tensors(function: Any, values: Sequence[Any], n_threads: int | None) -> Any:
    """Run on tensors; new results are tensors too, and tensors that were filled count as changed."""
    result = function.run([_as_array(place, value, function) for place, value in enumerate(values)], n_threads)
    if result is None:
        for value in function.filled(values):
            if isinstance(value, Tensor):
                torch.autograd.graph.increment_version(value)
        return None
    if function.is_on_device:
        return result
    return tuple(map(torch.from_numpy, result)) if isinstance(result, tuple) else torch.from_numpy(result)
