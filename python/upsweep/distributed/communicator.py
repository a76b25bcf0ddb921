"""The communicator of a process group: consensus about a call, and the choice of the transport.

A collective must be entered by all ranks of a group or by none. So every call begins with a consensus: an
all-gather of the metadata of the call, or of the error that a rank met, after which either all ranks go on or all
raise. It is asynchronous; the rank works while it is under way. Between processes of one host it goes through
memory that they share, else by the group's all-gather: with gloo over the host, without a backend for the host on
a CUDA stream of its own, so that it waits for no earlier work on the device.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from upsweep.distributed import p2p_transport, streams
from upsweep.distributed.mailbox import MESSAGE_BYTES, Mailbox, host_identity
from upsweep.distributed.p2p_transport import SymmetricMemoryTransport
from upsweep.distributed.transport import ProcessGroupTransport

# What a rank tells the others about its call: hashable values that JSON knows; tuples arrive as lists.
Meta = dict[str, Any]


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
        self.global_ranks = (
            range(self.size) if group is None else [int(dist.get_global_rank(group, r)) for r in range(self.size)]
        )
        self.p2p_transports: dict[torch.device, tuple[int, SymmetricMemoryTransport]] = {}  # and their epochs
        self.epoch = 0
        self.why_no_p2p: str | None = None
        self.mailbox: Mailbox | None = None  # if all ranks are processes of one host
        self.has_sought_mailbox = self.is_broken = False


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
            state.has_sought_mailbox = state.size == 1 or not is_cached
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

    def mailbox(self) -> Mailbox | None:
        """Return what carries metadata between processes of one host; set it up in the first call of the group."""
        state = self.state
        if state.is_broken:  # the other ranks may have one
            raise RuntimeError("group: its first call was interrupted; create the group again")
        if not state.has_sought_mailbox:
            state.has_sought_mailbox = True
            try:
                state.mailbox = self._connect_mailbox()
            except BaseException:
                state.is_broken = True
                raise
        return state.mailbox

    def _connect_mailbox(self) -> Mailbox | None:
        """Map one file on all ranks, or return None on all."""
        token, file, mailbox, are_open = os.urandom(16), None, None, [False]
        meta: Meta = {"host": None, "pid": os.getpid(), "file": None, "token": token.hex()}
        try:
            if self.rank == 0:
                file = meta["file"] = Mailbox.create(token, self.size)
            meta["host"] = host_identity()
        except (AttributeError, OSError):  # not Linux: the ranks send messages instead
            pass
        try:
            all_meta = self.consensus(meta)
            first = all_meta[0]
            hosts, processes = ({each[name] for each in all_meta} for name in ("host", "pid"))
            if None not in hosts and len(hosts) == 1 and len(processes) == self.size:
                try:
                    if file is None:
                        file = os.open(f"/proc/{first['pid']}/fd/{first['file']}", os.O_RDWR)
                    mailbox = Mailbox(file, bytes.fromhex(first["token"]), self.rank, self.size, self._timeout())
                except Exception:  # not an error of the call: no access to the other process, say
                    mailbox = None
            are_open = [each["is_open"] for each in self.consensus({"is_open": mailbox is not None})]
        finally:  # also after an interruption
            if mailbox is None and file is not None:
                os.close(file)
            elif mailbox is not None and not all(are_open):
                mailbox.close()
        return mailbox if all(are_open) else None

    def _timeout(self) -> float:
        """Return how many seconds a rank waits for the metadata of another one."""
        group, device = self.messages.group or dist.group.WORLD, self.messages.comm_device(torch.device("cpu"))
        return p2p_transport.timeout_ms(group, device) / 1000

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
    payload = json.dumps(dict(items)).encode()
    if len(payload) > MESSAGE_BYTES:
        raise AssertionError(f"{len(payload)} bytes of metadata")
    return payload


@lru_cache(maxsize=64)
def _decode(payload: bytes) -> Meta:
    meta: Meta = json.loads(payload)
    return meta


def _start_all_gather(messages: ProcessGroupTransport, payload: bytes) -> Callable[[], list[bytes]]:
    """Start to gather the payloads of all ranks; return a function that waits for them."""
    device = messages.comm_device(torch.device("cpu"))
    padded = torch.frombuffer(bytearray(payload.ljust(MESSAGE_BYTES)), dtype=torch.uint8)
    with streams.on_side_stream(device, "consensus"):
        finish = messages.start_all_gather(padded.to(device))

    def collect() -> list[bytes]:
        with streams.on_side_stream(device, "consensus"):
            rows = finish().cpu()
        return [row.tobytes() for row in rows.numpy()]

    return collect


class PendingConsensus:
    """The all-gather of the metadata of a call, or of this rank's error, while it is under way."""

    def __init__(self, comm: Communicator, meta: Meta | None, error: Exception | None = None):
        meta = meta or {}
        if error is not None:
            meta = {"error": f"{type(error).__name__}: {error}"[:500]}
        self._error = error
        payload, mailbox = _encode(tuple(meta.items())), comm.mailbox()
        self._collect: Callable[[], list[bytes]]
        if mailbox is not None:
            self._collect = partial(mailbox.collect, mailbox.post(payload))
        else:
            self._collect = _start_all_gather(comm.messages, payload)

    def wait(self, same: tuple[str, ...] = ()) -> list[Meta]:
        """Return the metadata of all ranks, which callers must not modify.

        Raises on all ranks if one of them failed: its own error on that rank, RuntimeError on the others. Raises
        ValueError on all ranks if the metadata called `same` differ.
        """
        all_meta = list(map(_decode, self._collect()))
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
