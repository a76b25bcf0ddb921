"""A cache of checked shards and their metadata, for calls on tensors of the same layout.

To check a call takes the host as long as a tenth of what the device then does, and the device waits for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upsweep._torch import executors
from upsweep._utils.lru_cache import LRUCache
from upsweep.distributed import streams
from upsweep.distributed.communicator import Meta

Operands = tuple[Any, Any, Any]  # what is scanned, gates or None, a factor for all steps or None

# `shard.Shard` without tensors, and its metadata.
_shards: LRUCache[Any, tuple[Any, Meta]] = LRUCache(64)


def cache_key(name: str, operands: Operands | None, axis: Any, reverse: bool, exclusive: bool) -> Any:
    """Return what determines the result of the checks, or None if the call has to be checked.

    Only calls on plain real tensors of a device, which neither autograd nor the compiler records, are cached.
    """
    if operands is None or type(axis) is not int:
        return None
    x, gates, number = operands
    if type(number) is not float and number is not None:
        return None
    if type(x) is not Tensor or not streams.is_async(x.device) or torch.compiler.is_compiling():
        return None
    layout = executors.calls.signature(x, gates)
    return None if layout is None else (name, axis, reverse, exclusive, repr(number), layout)


def find(key: Any, operands: Operands | None) -> tuple[Any, Meta] | None:
    """Return the `shard.Shard` of these tensors and its metadata, if one of the same layout is cached."""
    cached = None if key is None else _shards.get(key)
    if cached is None or operands is None:
        return None
    return cached[0].with_tensors(*operands[:2]), cached[1]


def store(key: Any, operands: Operands | None, shard: Any, meta: Meta) -> None:
    """Cache a shard, if the call has a key and the checks left the caller's tensors as they are."""
    if key is None or operands is None or shard.scan.gamma is not None:
        return
    if shard.scan.x is operands[0] and shard.scan.gates is operands[1]:
        _shards[key] = shard.without_tensors(), meta
