"""The communicator of a process group: consensus about a call, and the choice of the transport.

A collective must be entered by all ranks of a group or by none. So every call begins with a consensus: an
all-gather of the metadata of the call, or of the error that a rank met, after which either all ranks go on or all
raise. It is asynchronous; the rank works while it is under way. With gloo it travels over the host. Without a
backend for the host it has a CUDA stream of its own, so that it waits for no earlier work on the device.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from upsweep.distributed import p2p_transport, streams
from upsweep.distributed.p2p_transport import SymmetricMemoryTransport
from upsweep.distributed.transport import ProcessGroupTransport

# What a rank tells the others about its call: hashable values that JSON knows; tuples arrive as lists.
Meta = dict[str, Any]

_PAYLOAD_BYTES = 4096  # of a rank's metadata or error
_CONSENSUS_TAG = 1814

# Up to so many ranks, a consensus uses gloo's send and receive in the calling thread; gloo runs an all-gather in
# another thread. Two ranks on one host: 33 us instead of 80.
_MAX_PAIRWISE_RANKS = 4


class _GroupState:
    """What is known of a group as long as it lives. It holds no reference to the group."""

    def __init__(self, group: Any):
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("group: this process is not in it")
        self.size = dist.get_world_size(group)
        # Such as "cpu:gloo,cuda:nccl". Other backends than NCCL copy tensors of a device to the host themselves.
        pairs = [pair.partition(":")[::2] for pair in str(dist.get_backend_config(group)).split(",")]
        self.device_types = {kind for kind, backend in pairs if kind == "cpu" or backend == "nccl"}
        self.is_pairwise = ("cpu", "gloo") in pairs and self.size <= _MAX_PAIRWISE_RANKS
        self.global_ranks = (
            range(self.size) if group is None else [int(dist.get_global_rank(group, r)) for r in range(self.size)]
        )
        self.p2p_transports: dict[torch.device, tuple[int, SymmetricMemoryTransport]] = {}  # and their epochs
        self.epoch = 0
        self.why_no_p2p: str | None = None


_states: weakref.WeakKeyDictionary[Any, _GroupState] = weakref.WeakKeyDictionary()
_states_lock = threading.Lock()


class Communicator:
    """The ranks of a process group: this `rank`, their number `size`, and `messages`, which always work."""

    def __init__(self, group: Any):
        world = dist.GroupMember.WORLD if dist.is_available() else None
        key = world if group is None else group
        is_cached = world is not None and isinstance(key, dist.ProcessGroup)
        state = _states.get(key) if is_cached else None
        if state is None:
            if not (dist.is_available() and dist.is_initialized()):
                raise RuntimeError("group: torch.distributed is not initialised; call init_process_group() first")
            state = _GroupState(group)
            if is_cached:
                with _states_lock:
                    state = _states.setdefault(key, state)
        self.state, self.rank, self.size = state, state.rank, state.size
        self.messages = ProcessGroupTransport(group, state.global_ranks, state.device_types)

    def order(self, reverse: bool) -> range:
        """Return the ranks in the order of a scan."""
        return range(self.size)[:: -1 if reverse else 1]

    def consensus(self, meta: Meta) -> list[Meta]:
        """Return the metadata of all ranks, as `PendingConsensus.wait` does."""
        return PendingConsensus(self, meta).wait()

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, stacked."""
        return self.messages.start_all_gather(tensor)()

    def transport_epoch(self, device: torch.device) -> int:
        """Return which set-up this rank's peer-to-peer transport is from: 0 for none yet, -1 if there is none."""
        if self.size == 1 or not streams.is_async(device) or self.state.why_no_p2p is not None:
            return -1
        return self.state.p2p_transports.get(device, (0, None))[0]

    def p2p_transport(self, device: torch.device, epochs: Sequence[int]) -> SymmetricMemoryTransport | None:
        """Return the peer-to-peer transport, or None; `epochs` are the epochs of all ranks.

        All ranks set it up again if their epochs differ, because one of them has reset it.
        """
        if min(epochs) < 0:
            return None
        if not epochs[0] or any(epoch != epochs[0] for epoch in epochs):
            self._set_up_p2p(device)
        return self.state.p2p_transports.get(device, (0, None))[1]

    def reset_transport(self, device: torch.device) -> None:
        """Drop the peer-to-peer transport after an error: nobody knows which messages were received."""
        self.state.p2p_transports.pop(device, None)

    def describe_transport(self, device: torch.device) -> str:
        """Describe what carries states between devices like this one."""
        if not streams.is_async(device) or self.size == 1:
            return "torch.distributed"
        if self.state.why_no_p2p is not None:
            return f"torch.distributed, as {self.state.why_no_p2p}"
        return "memory of each other's devices" if device in self.state.p2p_transports else "not known yet"

    def _set_up_p2p(self, device: torch.device) -> None:
        """Set up the peer-to-peer transport on all ranks or on none.

        A process sets up one group at a time. If a rank is doing so in another thread, this call uses messages.
        """
        state = self.state
        self.reset_transport(device)
        state.epoch += 1
        has_lock = p2p_transport.setup_lock.acquire(blocking=False)
        try:
            all_meta = self.consensus({"has lock": has_lock, "epoch": state.epoch})
            # A rank that was interrupted in an earlier set-up takes over the epoch of the others.
            state.epoch = max(meta["epoch"] for meta in all_meta)
            if not all(meta["has lock"] for meta in all_meta):
                return
            endpoints = self.consensus(p2p_transport.describe_endpoint(device, self.size))
            transport, reason = None, p2p_transport.why_unreachable(endpoints, self.rank)
            reasons = self._reasons(reason)
            if not any(reasons):
                try:
                    transport = p2p_transport.connect(self.messages.group or dist.group.WORLD, device, self.size)
                except Exception as error:  # not an error of the call: all ranks use messages instead
                    reason = f"rank {self.rank}: {type(error).__name__}: {error}"[:500]
                reasons = self._reasons(reason)
            if any(reasons):
                state.why_no_p2p = next(filter(None, reasons))
            elif transport is not None:
                state.p2p_transports[device] = state.epoch, transport
        finally:
            if has_lock:
                p2p_transport.setup_lock.release()

    def _reasons(self, reason: str | None) -> list[str | None]:
        """Return each rank's reason why it has no peer-to-peer transport, None where it has one."""
        return [meta["reason"] for meta in self.consensus({"reason": reason})]


# Consecutive calls send the same metadata.
@lru_cache(maxsize=64)
def _encode(items: tuple[tuple[str, Any], ...]) -> bytes:
    payload = json.dumps(dict(items)).encode().ljust(_PAYLOAD_BYTES)
    if len(payload) > _PAYLOAD_BYTES:
        raise AssertionError(f"{len(payload)} bytes of metadata")
    return payload


@lru_cache(maxsize=64)
def _decode(payload: bytes) -> Meta:
    meta: Meta = json.loads(payload)
    return meta


class PendingConsensus:
    """The all-gather of the metadata of a call, or of this rank's error, while it is under way."""

    def __init__(self, comm: Communicator, meta: Meta | None, error: Exception | None = None):
        meta = meta or {}
        if error is not None:
            meta = {"error": f"{type(error).__name__}: {error}"[:500]}
        self._error, messages = error, comm.messages
        self._device = messages.comm_device(torch.device("cpu"))
        self._finish_gather: Callable[[], Tensor] | None = None
        payload = torch.frombuffer(bytearray(_encode(tuple(meta.items()))), dtype=torch.uint8)
        if self._device.type == "cpu" and comm.state.is_pairwise:
            self._rows = torch.empty((comm.size, _PAYLOAD_BYTES), dtype=torch.uint8, device="cpu")
            self._rows[comm.rank] = payload
            # Not `isend` and `irecv`: their checks take 10 us of 30.
            group, rows = messages.group or dist.group.WORLD, self._rows.unbind()
            others = [rank for rank in range(comm.size) if rank != comm.rank]
            self._works = [group.send([rows[comm.rank]], rank, _CONSENSUS_TAG) for rank in others]
            self._works += [group.recv([rows[rank]], rank, _CONSENSUS_TAG) for rank in others]
            return
        with streams.on_side_stream(self._device, "consensus"):
            self._finish_gather = messages.start_all_gather(payload.to(self._device))

    def wait(self, same: tuple[str, ...] = ()) -> list[Meta]:
        """Return the metadata of all ranks, which callers must not modify.

        Raises on all ranks if one of them failed: its own error on that rank, RuntimeError on the others. Raises
        ValueError on all ranks if the metadata called `same` differ.
        """
        if self._finish_gather is None:
            for work in self._works:
                work.wait()
            rows = self._rows
        else:
            with streams.on_side_stream(self._device, "consensus"):
                rows = self._finish_gather().cpu()
        all_meta = [_decode(row.tobytes()) for row in rows.numpy()]
        if self._error is not None:
            raise self._error
        for rank, meta in enumerate(all_meta):
            if "error" in meta:
                raise RuntimeError(f"rank {rank} of the group raised {meta['error']}")
        for name in same:
            values = [meta[name] for meta in all_meta]
            if any(value != values[0] for value in values):
                differ = ", ".join(f"rank {rank} {value}" for rank, value in enumerate(values))
                raise ValueError(f"shards: the ranks' {name} differ: {differ}")
        return all_meta
