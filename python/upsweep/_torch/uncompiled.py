"""Calls that torch.compile leaves to Python: what they return depends on the values of their tensors.

Imported while something is compiled, so never before torch's compiler itself, which takes seconds to load.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from upsweep._torch import counts

__all__ = ["bincount"]


_WHY = "bincount looks at its keys, unless both the number of bins (length=) and invalid='drop' are given"
# Older versions of torch are not told why.
_told = {"reason": _WHY} if "reason" in inspect.signature(torch.compiler.disable).parameters else {}


@torch.compiler.disable(**_told)  # type: ignore[untyped-decorator]  # torch is not read by the type checker
def bincount(*arrays: Any, **keywords: Any) -> Any:
    """`counts.bincount`, which looks at the keys."""
    return counts.bincount(*arrays, **keywords)
