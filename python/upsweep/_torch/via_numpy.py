"""Calls of functions of numpy arrays with torch tensors, by numpy's rules: histograms.

Each tensor is passed as an array that shares its memory, on the CPU or on the device, and the results come back as
tensors of the same device. Nothing tracks gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep import _arrays
from upsweep._torch import executors, scan
from upsweep._torch.graph_breaks import graph_break

_VALUES = (type(None), bool, int, float, complex, str, np.generic)


@graph_break("histogram and histc are not compiled")
def call_via_numpy(function: Callable[..., Any], arrays: dict[str, Any], **keywords: Any) -> Any:
    """Call the function with arrays that share the memory of the tensors, and return tensors."""
    if torch.compiler.is_dynamo_compiling():
        from upsweep._torch import compiler_disabled

        return compiler_disabled.call_via_numpy(function, arrays, **keywords)
    scan.reject_jit_trace("histograms")
    tensors = {name: value for name, value in arrays.items() if isinstance(value, Tensor)}
    first = next(iter(tensors.values()))
    views = {name: _as_array(name, value, first) for name, value in arrays.items()}
    if not scan.are_in_memory(*tensors.values()) and any(map(_is_wrapped, tensors.values())):
        raise NotImplementedError(
            "x: histograms look at values, which torch does not tell while it transforms them"
        )
    weights = tensors.get("weights")
    if scan.requires_autograd((weights,)):
        raise NotImplementedError("weights: histograms have no derivative; use bincount, or detach() them")
    out = tensors.get("out")
    scan.reject_gradients({"out": out})
    with torch.no_grad():
        result = function(**views, **keywords)
    if out is not None:
        torch.autograd.graph.increment_version(out)  # a backward that saved it raises then
        return out
    owners = {id(views[name]): tensor for name, tensor in tensors.items()}
    if isinstance(result, tuple):
        return tuple(_as_result(part, owners) for part in result)
    return _as_result(result, owners)


def _is_wrapped(tensor: Tensor) -> bool:
    return not scan.is_plain_tensor(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _as_array(name: str, value: Any, first: Tensor) -> Any:
    is_bins = name == "bins" and isinstance(value, (list, tuple))
    if is_bins or isinstance(value, _VALUES):
        return value
    tensor = scan.as_tensor(value, name, None)
    if tensor.device != first.device:
        raise scan.device_error(name, tensor, first)
    executors.check_device(tensor, name)
    if not scan.are_in_memory(tensor) and _is_wrapped(tensor):
        return value  # the caller refuses it
    return view(executors.resolve(tensor).detach())


def view(tensor: Tensor) -> Any:
    """Return a numpy array, or a view of device memory, that shares the tensor's memory."""
    return _arrays.view_tensor(tensor, "x") if tensor.is_cuda else executors.as_numpy(tensor)


def _as_result(part: Any, owners: dict[int, Tensor]) -> Tensor:
    """Return a result as a tensor: an argument that the function returns is the user's own tensor."""
    if isinstance(part, Tensor):
        return part  # of a device, allocated by torch
    if id(part) in owners:
        return owners[id(part)]
    if part.dtype.name == "bfloat16":
        return torch.from_numpy(part.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(part)
