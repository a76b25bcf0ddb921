"""The functions of `graph_breaks` in the form that torch's compiler does not trace into.

A traced call imports this module: disabling a function imports the compiler itself, which takes seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from upsweep._torch.graph_breaks import MARKED


def _disabled(name: str) -> Callable[..., Any]:
    function, reason = MARKED[name]
    takes_reason = "reason" in inspect.signature(torch.compiler.disable).parameters  # not in older versions
    result: Callable[..., Any] = torch.compiler.disable(function, **({"reason": reason} if takes_reason else {}))
    return result


bincount, call_via_numpy, lfilter, reduce = map(_disabled, ("bincount", "call_via_numpy", "lfilter", "reduce"))
scan, scan_by_method, scan_by_changing = map(_disabled, ("scan", "scan_by_method", "scan_by_changing"))
