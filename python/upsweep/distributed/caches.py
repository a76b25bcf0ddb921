"""Caches of checked shards and of described CUDA scans: calls with the layout of earlier ones.

To check a call takes the host as long as a tenth of what the device then does, and the device waits for it: a call
with the layout of an earlier one takes over its shard (`find_shard`, for `scan`). To describe a scan and to plan
it takes the host some 20 us, before the first launch of a call and between one group of rows and the next: a scan
with the layout of an earlier one only sets addresses and starts (`start_scan`, for `shard`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from upsweep import _backends
from upsweep._torch import executors, scan, scan_ops
from upsweep._utils.lru_cache import LRUCache
from upsweep.distributed import streams

Operands = tuple[Any, Any, Any]  # what is scanned, gates or None, a factor for all steps or None

_shards: LRUCache[Any, Any] = LRUCache(64)  # of shard.Shard without tensors
_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def cache_key(name: str, operands: Operands | None, axis: Any, reverse: bool, exclusive: bool) -> Any:
    """Return what determines the result of the checks, or None if the call has to be checked.

    Only calls on plain real tensors of a device, which neither autograd nor the compiler records, are cached.
    """
    if operands is None or type(axis) is not int:
        return None
    x, gates, number = operands
    if type(number) is not float and number is not None:
        return None
    tensors = (x,) if gates is None else (x, gates)
    for tensor in tensors:
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        if tensor.dtype not in _DTYPES or not streams.is_async(tensor.device) or tensor.is_neg():
            return None
    if scan.needs_dispatcher(tensors):
        return None
    layouts = [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors]
    return (name, axis, reverse, exclusive, repr(number), *layouts)


def find_shard(key: Any, operands: Operands | None) -> Any:
    """Return the `shard.Shard` of these tensors, if one of the same layout is cached, else None."""
    cached = None if key is None else _shards.get(key)
    if cached is None or operands is None:
        return None
    shard = copy(cached)
    shard.scan = copy(cached.scan)
    shard.scan.x, shard.scan.gates, _ = operands
    shard.out = scan_ops.allocate_out(shard.scan.x, shard.scan.dtype)
    return shard


def store_shard(key: Any, operands: Operands | None, shard: Any) -> None:
    """Cache a shard, if the call has a key and the checks left the caller's tensors as they are."""
    if key is None or operands is None or shard.scan.gamma is not None:
        return
    if shard.scan.x is not operands[0] or shard.scan.gates is not operands[1]:
        return
    cached = copy(shard)
    cached.scan = copy(shard.scan)
    cached.scan.x = cached.scan.gates = cached.out = None
    _shards[key] = cached


_OPERANDS = ("x", "gates", "gamma", "initial", "reset", "out", "final_state")  # in the order of executors.run


def start_scan(
    key: Any, tensors: Sequence[Tensor | None], narrow: Callable[[], Sequence[Any]], device: torch.device,
    **options: Any,
) -> None:  # fmt: skip
    """Start a scan of parts of these tensors, which come in the order of `_OPERANDS`.

    The key consists of the layout of the tensors, the part of each, and the options. `narrow` returns operands,
    the parts of the tensors or a number as gamma; it is called if the key is new.
    """
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    # The library's plan depends on the alignment of the addresses.
    alignments = tuple([None if address is None else address & 255 for address in addresses])
    launch = _launches.get_or_build((key, alignments), lambda: CachedLaunch(narrow(), addresses, **options))
    launch.start(addresses, device)


class CachedLaunch:
    """A planned scan, with the offsets of its operands from the beginnings of the whole tensors."""

    def __init__(self, operands: Sequence[Any], addresses: Sequence[int | None], **options: Any):
        described = map(executors.describe, operands)
        device = operands[-1].get_device()
        problem = _backends.cuda_scan_launch.problem(*described, **options, device=device, stream=0)
        self._problem = _backends.cuda_scan_launch.prepare_scan(problem)
        self._lock = threading.Lock()  # the description is changed by each start
        self._arrays = []
        for position, (name, address) in enumerate(zip(_OPERANDS, addresses)):
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
            _backends.cuda_scan_launch.start_scan(problem, lambda n_bytes: executors.workspace(n_bytes, device))


_launches: LRUCache[Any, CachedLaunch] = LRUCache(1024)
