"""Compiled loop nests over torch tensors, as arrays of numpy on the same memory, or views of a device's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from upsweep import _arrays, _backends
from upsweep._torch import executors

__all__ = ["with_tensors"]

_MOST_PREPARED = 64


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


def _signature(function: Any, values: Sequence[Any]) -> tuple[Any, ...] | None:
    """What a call on a device that fills its results is prepared for; None for one that is to be looked at."""
    if not function.fills_with_arrays_alone(values):
        return None
    watched = torch.is_grad_enabled()
    for value in values:
        if type(value) is not Tensor or value.is_neg() or (watched and value.requires_grad):
            return None
    return tuple((value.shape, value.stride(), value.dtype, value.device) for value in values)


def _are_apart(function: Any, values: Sequence[Tensor]) -> bool:
    """Whether no result lies over another tensor."""
    spans = []
    for value in values:
        first, steps = value.data_ptr(), zip(value.shape, value.stride())
        n_elements = 1 + sum((n - 1) * step for n, step in steps) if value.numel() else 0
        spans.append((first, first + n_elements * value.element_size()))
    return not any(
        spans[n][0] < end and first < spans[n][1]
        for n in function.result_places
        for place, (first, end) in enumerate(spans)
        if place != n
    )


def _start(call: Any, values: Sequence[Tensor]) -> None:
    device = values[0].device
    _backends.cuda_loops().start(
        call, [value.data_ptr() for value in values], stream=_stream_of(device),
        allocate=lambda n_bytes: executors._workspace(n_bytes, device),
    )  # fmt: skip


def _stream_of(device: Any) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device.index))


def _prepare(function: Any, signature: tuple[Any, ...], values: Sequence[Tensor]) -> None:
    if len(function.prepared) >= _MOST_PREPARED:
        function.prepared.clear()
    views = [_as_array(place, value, function) for place, value in enumerate(values)]
    function.prepared[signature] = function.prepare(views, views[0].origin.ordinal)


def with_tensors(function: Any, values: Sequence[Any], n_threads: int | None) -> Any:
    """Run on tensors; new results are tensors too, and tensors that were filled count as changed."""
    signature = _signature(function, values) if function.is_on_device and n_threads is None else None
    call = None if signature is None else function.prepared.get(signature)
    if call is not None and _are_apart(function, values):
        _start(call, values)
        for value in function.filled(values):
            torch.autograd.graph.increment_version(value)
        return None
    result = function.run([_as_array(place, value, function) for place, value in enumerate(values)], n_threads)
    if result is None:
        for value in function.filled(values):
            if isinstance(value, Tensor):
                torch.autograd.graph.increment_version(value)
        if signature is not None:
            _prepare(function, signature, values)
        return None
    if function.is_on_device:
        return result
    return tuple(map(torch.from_numpy, result)) if isinstance(result, tuple) else torch.from_numpy(result)
