"""Peer-to-peer transport: the GPUs of one host write small tensors into each other's memory.

Each rank has a symmetric-memory buffer (torch.distributed._symmetric_memory) that the devices of all other ranks
can write, and signals that they set and clear. A message is a copy into the receiver's buffer followed by a
signal; the receiver's stream waits for the signal. All of it is work of the callers' streams, and no host waits.

Memory is overwritten only after it has been read:

- Channels are double-buffered: the messages of a call from one rank to another use the memory and the signals that
  the call before did not use. Closing the receiving channel acknowledges it, after the last read on the stream,
  and the sender's stream waits for the acknowledgement before it writes the same memory two calls later.
- All-gathers are triple-buffered, because two of them may be started before the first is read. Each ends with a
  barrier of all streams. A rank that writes the buffer of gather n has passed the barrier of gather n - 1, and
  each stream enters that one after it has read gather n - 3.
"""

from __future__ import annotations

import datetime
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from upsweep._utils.lru_cache import LRUCache
from upsweep.distributed.mailbox import host_identity
from upsweep.distributed.transport import Channel, Transport

CAPACITY = 1 << 18  # bytes that one channel, or one rank in an all-gather, may hold: 32,768 rows
_MAX_MESSAGES = 8  # of a channel
_ALIGNMENT = 256  # of a message, in bytes

# Signals are numbered within a pair of ranks: the messages of the two buffers, their acknowledgements, the
# barrier.
_ACKNOWLEDGE_SIGNAL = 2 * _MAX_MESSAGES
_BARRIER_SIGNAL = _ACKNOWLEDGE_SIGNAL + 2
_N_SIGNALS = _BARRIER_SIGNAL + 1


class SymmetricMemoryTransport(Transport):
    """Channels and all-gathers through the symmetric memory of a group, on one device of each rank.

    `memory` is this rank's buffer, `handle` torch's _SymmetricMemory of the buffers of all ranks. A stream waits
    `timeout_ms` for a signal.
    """

    def __init__(self, memory: Tensor, handle: Any, timeout_ms: int):
        self.handle, self.timeout_ms = handle, timeout_ms
        self.rank, self.size = int(handle.rank), int(handle.world_size)
        self._memory = memory
        self._stream: Any = None
        self._raw_stream: int | None = None
        self.n_sends, self.n_recvs = [0] * self.size, [0] * self.size  # channels opened to and from each rank
        self._n_gathers = 0
        self._views: LRUCache[tuple[Any, ...], Tensor] = LRUCache(1024)
        self._buffers = [handle.get_buffer(rank, (memory.numel(),), torch.uint8) for rank in range(self.size)]

    @staticmethod
    def buffer_bytes(size: int) -> int:
        """Return the size of each rank's buffer: two channels from each rank, three all-gathers."""
        return 5 * size * CAPACITY

    @staticmethod
    def fits(n_bytes: int) -> bool:
        """Return whether so many bytes fit into one channel, or into each rank's part of an all-gather."""
        return n_bytes + _MAX_MESSAGES * _ALIGNMENT <= CAPACITY

    def open_send(self, rank: int) -> Channel:
        self.n_sends[rank] += 1
        return _P2PChannel(self, rank, self.rank, self.n_sends[rank])

    def open_recv(
        self, rank: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> Channel:
        self.n_recvs[rank] += 1
        return _P2PChannel(self, rank, rank, self.n_recvs[rank], shapes, dtype)

    def start_all_gather(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Gather the tensors of all ranks; the result has to be read before the second next all-gather."""
        self.follow_stream()
        begin = (2 + self._n_gathers % 3) * self.size * CAPACITY
        self._n_gathers += 1
        offset = begin + self.rank * tensor.numel() * tensor.element_size()
        for rank in range(self.size):
            self.view(rank, offset, tensor.shape, tensor.dtype).copy_(tensor)
        self.handle.barrier(_BARRIER_SIGNAL, self.timeout_ms)
        stacked = self.view(self.rank, begin, (self.size, *tensor.shape), tensor.dtype)
        return lambda: stacked

    def view(self, owner: int, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return part of a rank's buffer as a tensor on this device; `offset` is in bytes."""

        def build() -> Tensor:
            with torch.inference_mode(False):  # an inference tensor could not be written outside of that mode
                n_bytes = math.prod(shape) * dtype.itemsize
                return self._buffers[owner][offset : offset + n_bytes].view(dtype).view(shape)

        return self._views.get_or_build((owner, offset, tuple(shape), dtype), build)

    def follow_stream(self) -> None:
        """Let the caller's stream wait for the stream of the call before, if that was another one."""
        raw = _raw_stream(self._memory.device)
        if raw != self._raw_stream:
            stream = torch.cuda.current_stream(self._memory.device)
            if self._stream is not None:
                stream.wait_stream(self._stream)
            self._stream, self._raw_stream = stream, raw


class _P2PChannel(Channel):
    """The messages of one call from rank `source` to another; a receiver knows their shapes and dtype."""

    def __init__(
        self, transport: SymmetricMemoryTransport, peer: int, source: int, n_opened: int,
        shapes: Sequence[Sequence[int]] = (), dtype: torch.dtype | None = None,
    ):  # fmt: skip
        self._transport, self._peer, self._shapes, self._dtype = transport, peer, shapes, dtype
        self._n_opened, self._n_messages = n_opened, 0
        self._parity = n_opened & 1  # which of the two buffers
        self._offset = (2 * source + self._parity) * CAPACITY

    def _next_message(self, owner: int, shape: Sequence[int], dtype: Any) -> tuple[Tensor, int]:
        """Return the memory of the next message, which lies in the buffer of `owner`, and its signal."""
        if self._n_messages >= _MAX_MESSAGES:
            raise AssertionError(f"message {self._n_messages} of a channel")
        signal = self._parity * _MAX_MESSAGES + self._n_messages
        view = self._transport.view(owner, self._offset, shape, dtype)
        self._offset += -(-view.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._n_messages += 1
        return view, signal

    def send(self, tensor: Tensor) -> None:
        transport = self._transport
        handle, timeout_ms = transport.handle, transport.timeout_ms
        if not self._n_messages:
            transport.follow_stream()
            if self._n_opened > 2:
                handle.wait_signal(self._peer, _ACKNOWLEDGE_SIGNAL + self._parity, timeout_ms)
        view, signal = self._next_message(self._peer, tensor.shape, tensor.dtype)
        view.copy_(tensor)
        handle.put_signal(self._peer, signal, timeout_ms)

    def recv(self) -> Tensor:
        transport, shape = self._transport, self._shapes[self._n_messages]
        transport.follow_stream()
        view, signal = self._next_message(transport.rank, shape, self._dtype)
        transport.handle.wait_signal(self._peer, signal, transport.timeout_ms)
        return view

    def close(self) -> None:
        transport = self._transport
        if self._shapes:  # a sender has nothing to do: the stream keeps the order
            transport.handle.put_signal(self._peer, _ACKNOWLEDGE_SIGNAL + self._parity, transport.timeout_ms)


def _raw_stream(device: torch.device) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device.index))


# torch numbers the messages by which processes set up symmetric memory, each process for itself. Where the numbers
# differ, because one process is in more groups, they would wait for each other in vain. So this count is compared
# first; if code outside of this module set up symmetric memory, the set-up ends after the time-out.
_n_set_up = 0
setup_lock = threading.Lock()  # held while a group is set up
_SETUP_TIMEOUT = datetime.timedelta(seconds=60)
_DISABLE_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


def _symmetric_memory() -> Any:
    from torch.distributed import _symmetric_memory  # takes some milliseconds, which most users need not spend

    return _symmetric_memory


def describe_endpoint(device: torch.device, size: int) -> dict[str, Any]:
    """Describe this rank's device, process and libraries, for the other ranks to compare."""
    endpoint: dict[str, Any] = {"torch": torch.__version__, "device": device.index, "reason": None}
    endpoint["connections"] = _n_set_up
    try:
        # Processes pass memory to each other by file descriptors and process numbers.
        endpoint["host"] = host_identity()
        endpoint["uuid"] = str(torch.cuda.get_device_properties(device).uuid)
        memory = _symmetric_memory()
        words = memory.get_signal_pad_size() // 4 if hasattr(memory, "get_signal_pad_size") else 512
        backend = memory.get_backend(device)
        if backend != "CUDA":
            endpoint["reason"] = f"symmetric memory is {backend}'s"
        elif size * _N_SIGNALS > words:
            endpoint["reason"] = f"{size} ranks need more than {words} signals"
    except Exception as error:  # not an error of the call: the ranks use messages instead
        endpoint["reason"] = f"{type(error).__name__}: {error}"[:500]
    return endpoint


def why_unreachable(endpoints: Sequence[dict[str, Any]], rank: int) -> str | None:
    """Return why the device of a rank cannot write the memory of the others; None if it can."""
    own = endpoints[rank]
    devices = [endpoint["device"] for endpoint in endpoints]
    if len(set(devices)) < len(devices):
        return "two ranks are on one device"
    for other, endpoint in enumerate(endpoints):
        if endpoint["reason"] is not None:
            return f"rank {other}: {endpoint['reason']}"
        for name in ("host", "torch", "connections"):
            if endpoint[name] != own[name]:
                return f"ranks {rank} and {other} differ: {name}"
        if other != rank:
            if endpoint["device"] >= torch.cuda.device_count():
                return f"the device of rank {other} is not seen by rank {rank}"
            if str(torch.cuda.get_device_properties(endpoint["device"]).uuid) != endpoint["uuid"]:
                return f"rank {other} numbers devices otherwise"
            if not torch.cuda.can_device_access_peer(own["device"], endpoint["device"]):
                return f"the device of rank {rank} cannot reach that of rank {other}"
    return None


def connect(group: Any, device: torch.device, size: int) -> SymmetricMemoryTransport:
    """Set up the transport of a group; every rank has to call this at the same time."""
    global _n_set_up
    symmetric = _symmetric_memory()
    _n_set_up += 1
    store = dist.distributed_c10d._get_process_group_store(group)
    timeout = store.timeout
    store.set_timeout(min(timeout, _SETUP_TIMEOUT))
    multicast = os.environ.get(_DISABLE_MULTICAST)
    os.environ[_DISABLE_MULTICAST] = "1"  # a message goes to one rank, and not every machine supports multicast
    try:
        with torch.inference_mode(False), torch.no_grad():
            # Not `empty`: its pool may return memory that was connected before, with signals that are set.
            allocate = symmetric._SymmetricMemory.empty_strided_p2p
            memory = allocate((SymmetricMemoryTransport.buffer_bytes(size),), (1,), torch.uint8, device)
            handle = symmetric.rendezvous(memory, group)
            return SymmetricMemoryTransport(memory, handle, timeout_ms(group, device))
    finally:
        store.set_timeout(timeout)
        del os.environ[_DISABLE_MULTICAST]
        if multicast is not None:
            os.environ[_DISABLE_MULTICAST] = multicast


def timeout_ms(group: Any, device: torch.device) -> int:
    """Return how long the group waits for a rank."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None) or dist.default_pg_timeout
    return int(timeout.total_seconds() * 1000)
