"""Calls that torch.compile leaves to Python: what they return depends on the values of their tensors.

Imported while something is compiled, so never before torch's compiler itself, which takes seconds to load.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from upsweep._torch import bincount as torch_bincount
from upsweep._torch import user_scan, via_numpy

__all__ = ["bincount", "lend", "scan"]


def _disabled(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    knows = "reason" in inspect.signature(torch.compiler.disable).parameters  # older versions are not told
    left: Callable[..., Any] = torch.compiler.disable(function, **({"reason": reason} if knows else {}))
    return left


bincount = _disabled(
    torch_bincount.bincount,
    "bincount looks at its keys, unless both the number of bins (length=) and invalid='drop' are given",
)
lend = _disabled(via_numpy.lend, "histogram and histc are not compiled")
scan = _disabled(user_scan.scan, "scan with checkpoint= runs in segments: leave checkpoint= out to compile it")
