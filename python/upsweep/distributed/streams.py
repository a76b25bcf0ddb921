"""Work on asynchronous devices: a side stream, and copies to the host that the host waits for later.

On the CPU the same functions work at once, so that their callers need no second code path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_HOST_CHECK = 1 << 16  # elements; copying more of them to the host costs more than a reduction on the device


def is_async(device: torch.device) -> bool:
    """Return whether calls on the device return before their work is done."""
    return bool(device.type == "cuda")


def on_side_stream(device: torch.device, name: str, after: Any = None) -> Any:
    """A context whose work runs on the stream of this name, with high priority, and after an event."""
    if not is_async(device):
        return contextlib.nullcontext()
    stream = _side_stream(device, name)
    if after is not None:
        stream.wait_event(after)
    return torch.cuda.stream(stream)


@cache
def _side_stream(device: torch.device, name: str) -> Any:
    return torch.cuda.Stream(device, priority=-1)


def start_copy_to_host(tensor: Tensor) -> Callable[[], Any]:
    """Start to copy a tensor; return a function that waits for the copy, but for no later work on the stream."""
    if not is_async(tensor.device):
        return lambda: tensor.numpy()
    copy = tensor.to("cpu", non_blocking=True)
    done = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> Any:
        done.synchronize()
        return copy.numpy()

    return wait


def start_isfinite(stacked: Tensor) -> Callable[[], list[bool]]:
    """Start to check each of the stacked tensors for infinities and NaN; return a function that waits for it."""
    if stacked.numel() <= MAX_HOST_CHECK:
        wait_for_copy = start_copy_to_host(stacked)
        return lambda: list(np.isfinite(wait_for_copy()).reshape(len(stacked), -1).all(1).tolist())
    wait_for_flags = start_copy_to_host(torch.isfinite(stacked).reshape(len(stacked), -1).all(1))
    return lambda: list(map(bool, wait_for_flags()))
