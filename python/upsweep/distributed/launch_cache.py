"""Cache of described CUDA scans: a scan with the layout of an earlier one only sets addresses and starts.

To describe a scan and to plan it takes the host some 20 us. That happens before the first launch of a call and
between one group of rows and the next, where the device would wait. `shard` calls `start_scan`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from upsweep import _backends
from upsweep._torch import executors
from upsweep._utils.lru_cache import LRUCache

__all__ = ["start_scan"]

_NAMES = (
    "x",
    "gates",
    "gamma",
    "initial",
    "reset",
    "out",
    "final_state",
)  # operands in the order of executors.run


def start_scan(
    key: Any, tensors: Sequence[Tensor | None], narrow: Callable[[], Sequence[Any]], device: torch.device,
    **options: Any,
) -> None:  # fmt: skip
    """Start a scan of parts of these tensors.

    Parameters
    ----------
    key : hashable
        The layout of the tensors, the part of each, and the options.
    tensors : sequence of Tensor or None
        The whole tensors, in the order of `_NAMES`.
    narrow : callable
        Returns the operands: the parts of the tensors, or a number as gamma. Called if the key is new.
    device : torch.device
    **options
        Of `_backends.cuda_problem`.
    """
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    # The library's plan depends on the alignment of the addresses.
    alignments = tuple([None if address is None else address & 255 for address in addresses])
    launch = _launches.get_or_build((key, alignments), lambda: CachedLaunch(narrow(), addresses, **options))
    launch.start(addresses, device)


class CachedLaunch:
    """A planned scan, with the offsets of its operands from the beginnings of the whole tensors."""

    def __init__(self, operands: Sequence[Any], addresses: Sequence[int | None], **options: Any):
        described = [executors.describe(one) if isinstance(one, Tensor) else one for one in operands]
        device = operands[-1].get_device()
        problem = _backends.cuda_problem(*described, **options, device=device, stream=0)
        self._problem = _backends.prepare_cuda_scan(problem)
        self._lock = threading.Lock()  # the description is changed by each start
        self._arrays = []
        for position, (name, address) in enumerate(zip(_NAMES, addresses)):
            if address is not None:
                array = getattr(self._problem, name)
                self._arrays.append((position, array, (array.data or 0) - address))

    def start(self, addresses: Sequence[Any], device: torch.device) -> None:
        """Start the scan on the current stream with whole tensors at these addresses."""
        problem = self._problem
        with self._lock:
            problem.stream = torch._C._cuda_getCurrentRawStream(device.index)
            for position, array, offset in self._arrays:
                array.data = addresses[position] + offset
            _backends.start_cuda_scan(problem, lambda n_bytes: executors.workspace(n_bytes, device))


_launches: LRUCache[Any, CachedLaunch] = LRUCache(1024)
