"""Functions of arrays for torch tensors: each tensor as an array of numpy, or of its device, with numpy's rules.

What they return is torch's again, on the same device. Nothing tracks gradients.
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

__all__ = ["lend"]

_VALUES = (type(None), bool, int, float, complex, str, np.generic)


@graph_break("histogram and histc are not compiled")
def lend(function: Callable[..., Any], arrays: dict[str, Any], **keywords: Any) -> Any:
    """Call the function with arrays in the place of tensors, and give back tensors.

    Raises
    ------
    TypeError
        An array of another library; `x` that is no tensor.
    ValueError
        Tensors of two devices.
    NotImplementedError
        Tensors whose values torch does not tell now; weights that are to be differentiated.
    """
    if torch.compiler.is_compiling():
        from upsweep._torch import compiler_disabled

        return compiler_disabled.lend(function, arrays, **keywords)
    scan.reject_jit_trace("histograms")
    tensors = {name: value for name, value in arrays.items() if isinstance(value, Tensor)}
    first = next(iter(tensors.values()))
    lent = {name: _lent(name, value, first) for name, value in arrays.items()}
    if not scan._are_in_memory(*tensors.values()) and any(map(_is_wrapped, tensors.values())):
        raise NotImplementedError(
            "x: histograms look at values, which torch does not tell while it transforms them"
        )
    weights = tensors.get("weights")
    if weights is not None and weights.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError("weights: histograms have no derivative; use bincount, or detach() them")
    out = tensors.get("out")
    if out is not None and out.requires_grad and torch.is_grad_enabled():
        raise ValueError("out: cannot be given while out requires grad; use torch.no_grad() or leave it out")
    with torch.no_grad():
        result = function(**lent, **keywords)
    if out is not None:
        torch.autograd.graph.increment_version(out)  # so that a backward which saved it notices
        return out
    kept = {id(lent[name]): tensor for name, tensor in tensors.items()}
    if isinstance(result, tuple):
        return tuple(_returned(part, kept) for part in result)
    return _returned(result, kept)


def _is_wrapped(tensor: Tensor) -> bool:
    return not scan.is_plain_tensor(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _lent(name: str, value: Any, first: Tensor) -> Any:
    if not isinstance(value, Tensor):
        if isinstance(value, _VALUES) or (name == "bins" and isinstance(value, (list, tuple))):
            return value
        kind = _arrays.type_name(value)
        raise TypeError(f"{name}: expected a torch.Tensor, as another argument is one, got {kind}")
    tensor = scan._tensor(value, name, None)
    if tensor.device != first.device:
        raise ValueError(f"{name}: is on {tensor.device}, another argument on {first.device}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name}: expected a tensor on the CPU or on CUDA, got one on {tensor.device}")
    if not scan._are_in_memory(tensor) and _is_wrapped(tensor):
        return value  # refused before it is looked at
    return view(executors._resolved(tensor).detach())


def view(tensor: Tensor) -> Any:
    """The tensor as an array of numpy or of its device."""
    return _arrays.view_tensor(tensor, "x") if tensor.is_cuda else executors._as_numpy(tensor)


def _returned(part: Any, kept: dict[int, Tensor]) -> Tensor:
    if isinstance(part, Tensor):
        return part  # of a device; already the user's, or made there
    if id(part) in kept:
        return kept[id(part)]
    if part.dtype.name == "bfloat16":
        return torch.from_numpy(part.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(part)
