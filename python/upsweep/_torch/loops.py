"""Compiled loop nests on torch tensors, as arrays of numpy on the same memory, or as views of a device's memory.

`te.function` calls `with_tensors`. A call on a CUDA device that fills its results is prepared once for each set of
shapes, strides and dtypes; calls like it only pass the addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from upsweep import _arrays
from upsweep._torch import executors


def _device_type(tensor: Tensor) -> str:
    return str(tensor.device.type)


def _current_stream(device: Any) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device.index))


def _as_array(position: int, value: Any, function: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if _device_type(value) != ("cuda" if function.is_on_device else "cpu"):
        expected = "a CUDA device" if function.is_on_device else "the CPU"
        raise TypeError(f"argument {position}: built for {expected}, got a tensor on {value.device}")
    if value.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"argument {position}: te's functions have no derivative; detach() the tensor")
    plain = value.detach().resolve_conj().resolve_neg()
    return _arrays.view_tensor(plain, f"argument {position}") if function.is_on_device else plain.numpy()


def _signature(function: Any, values: Sequence[Any]) -> tuple[Any, ...] | None:
    """The cache key of a call on a device that fills its results; None for a call that has to be checked."""
    if not function.has_all_arrays(values):
        return None
    has_grad = torch.is_grad_enabled()
    for value in values:
        if type(value) is not Tensor or value.is_neg() or (has_grad and value.requires_grad):
            return None
    return tuple((value.shape, value.stride(), value.dtype, value.device) for value in values)


def _are_disjoint(function: Any, values: Sequence[Tensor]) -> bool:
    """Whether no result overlaps another tensor."""
    spans = []
    for value in values:
        first, steps = value.data_ptr(), zip(value.shape, value.stride())
        n_elements = 1 + sum((n - 1) * step for n, step in steps) if value.numel() else 0
        spans.append((first, first + n_elements * value.element_size()))
    return not any(
        spans[n][0] < end and first < spans[n][1]
        for n in function.output_positions
        for position, (first, end) in enumerate(spans)
        if position != n
    )


def with_tensors(function: Any, values: Sequence[Any], n_threads: int | None) -> Any:
    """Run on tensors; new results are tensors too, and the version counters of filled tensors are incremented."""
    signature = _signature(function, values) if function.is_on_device and n_threads is None else None
    call = None if signature is None else function.prepared.get(signature)
    if call is not None and _are_disjoint(function, values):
        device, result = values[0].device, None
        call.start(
            [value.data_ptr() for value in values], _current_stream(device),
            lambda n_bytes: executors.workspace(n_bytes, device),
        )  # fmt: skip
    else:
        arrays = [_as_array(position, value, function) for position, value in enumerate(values)]
        result = function.run(arrays, n_threads)
        if result is None and signature is not None:
            function.prepared[signature] = function.prepare(arrays, arrays[0].origin.ordinal)
    if result is None:
        for position in function.output_positions:
            if isinstance(values[position], Tensor):
                torch.autograd.graph.increment_version(values[position])
        return None
    if function.is_on_device:
        return result
    return tuple(map(torch.from_numpy, result)) if isinstance(result, tuple) else torch.from_numpy(result)
