"""Small tensors from rank to rank of one host, written into each other's memory by the devices themselves.

Each rank has memory that the devices of all others can write, and words beside it that they set and clear
(torch.distributed._symmetric_memory). A message is a copy into the other's memory and a signal behind it; who
needs it waits for the signal. All of that is work of the caller's stream, started as a kernel is, with no host
waiting.

Memory is written again only when it has been read. Of messages of one rank to another, those of a call (a *line*)
have memory and signals that take turns with those of the next call. The receiver acknowledges a line behind its
last reading of it, and the sender's stream waits for that before it writes the line after the next. Gatherings,
of which two may be started before the first is read, take turns by three, and each ends in a barrier of all ranks'
streams: who writes in a gathering has passed the barrier of the one before, which a stream enters behind its
readings of the third before this one.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["CAPACITY", "Gathered", "LineFrom", "LineTo", "Wires", "connect", "connecting", "place_of", "why_apart"]

CAPACITY = 1 << 18  # bytes that a line, or a rank in a gathering, may hold: 32,768 rows
_MOST_MESSAGES = 8  # of a line
_ALIGNMENT = 256  # of a message, in bytes

# A signal is told apart by the two ranks and a channel.
_ACKNOWLEDGED = 2 * _MOST_MESSAGES  # two channels, behind those of messages
_GATHERED = _ACKNOWLEDGED + 2
_N_CHANNELS = _GATHERED + 1

_MOST_VIEWS = 1024


class Wires:
    """The memory of this rank that the others write, and theirs, on one device each."""

    def __init__(self, memory: Tensor, handle: Any, timeout_ms: int):
        self.handle, self.timeout_ms = handle, timeout_ms
        self.rank, self.size = int(handle.rank), int(handle.world_size)
        self._memory = memory  # which ends with this object
        self._stream: Any = None
        self._raw_stream: int | None = None
        # Of the ranks: lines that were sent there, and taken from there.
        self.n_sent, self.n_taken = [0] * self.size, [0] * self.size
        self._n_gathered = 0
        self._views: dict[tuple[Any, ...], Tensor] = {}
        self._bytes = [handle.get_buffer(rank, (memory.numel(),), torch.uint8) for rank in range(self.size)]

    @staticmethod
    def n_bytes(size: int) -> int:
        """The memory of each of so many ranks: two lines of each other, three gatherings of all."""
        return 5 * size * CAPACITY

    @staticmethod
    def hold(n_bytes: int) -> bool:
        """Whether so many bytes can be sent in one line, or told by each in a gathering."""
        return n_bytes + _MOST_MESSAGES * _ALIGNMENT <= CAPACITY

    def to(self, rank: int) -> LineTo:
        """A line of messages to a rank, which calls `come_from` for it."""
        return LineTo(self, rank)

    def come_from(
        self, rank: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> LineFrom:
        """The line of messages from a rank, of these shapes."""
        return LineFrom(self, rank, shapes, dtype)

    def start_gather(self, tensor: Tensor) -> Gathered:
        """The tensors of all ranks, as work of the current stream."""
        return Gathered(self.gather(tensor))

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, stacked: to be read before the gathering after the next is started."""
        self.follow_stream()
        begin = (2 + self._n_gathered % 3) * self.size * CAPACITY
        self._n_gathered += 1
        at = begin + self.rank * tensor.numel() * tensor.element_size()
        for rank in range(self.size):
            self.view(rank, at, tensor.shape, tensor.dtype).copy_(tensor)
        self.handle.barrier(_GATHERED, self.timeout_ms)
        return self.view(self.rank, begin, (self.size, *tensor.shape), tensor.dtype)

    def line_at(self, source: int, parity: int) -> int:
        """Where the lines of a rank are in the memory of another."""
        return (2 * source + parity) * CAPACITY

    def view(self, owner: int, at: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of a rank, from a byte on, as a tensor of this device."""
        key = (owner, at, tuple(shape), dtype)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            with torch.inference_mode(False):  # where it would count as written by that mode alone
                n_bytes = math.prod(shape) * dtype.itemsize
                view = self._bytes[owner][at : at + n_bytes].view(dtype).view(shape)
            self._views[key] = view
        return view

    def follow_stream(self) -> None:
        """Keep one order where the caller's stream is another than before."""
        raw = _raw_stream(self._memory.device)
        if raw != self._raw_stream:
            stream = torch.cuda.current_stream(self._memory.device)
            if self._stream is not None:
                stream.wait_stream(self._stream)
            self._stream, self._raw_stream = stream, raw


class LineTo:
    """Messages of one call to a rank."""

    def __init__(self, wires: Wires, rank: int):
        self._wires, self._rank = wires, rank
        self._n_messages = 0
        n_before = wires.n_sent[rank]
        wires.n_sent[rank] += 1
        self._parity, self._waits = n_before & 1, n_before >= 2
        self._at = wires.line_at(wires.rank, self._parity)

    def put(self, tensor: Tensor) -> None:
        """Send a tensor behind what has been started on the current stream."""
        wires = self._wires
        if not self._n_messages:
            wires.follow_stream()
            if self._waits:
                wires.handle.wait_signal(self._rank, _ACKNOWLEDGED + self._parity, wires.timeout_ms)
        wires.view(self._rank, self._at, tensor.shape, tensor.dtype).copy_(tensor)
        wires.handle.put_signal(self._rank, _channel(self._parity, self._n_messages), wires.timeout_ms)
        self._at += _room(tensor.numel() * tensor.element_size())
        self._n_messages += 1

    def end(self) -> None:
        """Nothing is left to be done."""


class LineFrom:
    """Messages of one call from a rank."""

    def __init__(self, wires: Wires, rank: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype):
        self._wires, self._rank, self._shapes, self._dtype = wires, rank, shapes, dtype
        self._n_messages = 0
        self._parity = wires.n_taken[rank] & 1
        wires.n_taken[rank] += 1
        self._at = wires.line_at(rank, self._parity)

    def take(self) -> Tensor:
        """The next message, for work that follows on the current stream before the end of the line."""
        wires, shape, dtype = self._wires, self._shapes[self._n_messages], self._dtype
        wires.follow_stream()
        wires.handle.wait_signal(self._rank, _channel(self._parity, self._n_messages), wires.timeout_ms)
        view = wires.view(wires.rank, self._at, shape, dtype)
        self._at += _room(math.prod(shape) * dtype.itemsize)
        self._n_messages += 1
        return view

    def end(self) -> None:
        """Let the memory be written again behind what has been started."""
        self._wires.handle.put_signal(self._rank, _ACKNOWLEDGED + self._parity, self._wires.timeout_ms)


class Gathered:
    """What all ranks told, for work that follows on the current stream."""

    def __init__(self, stack: Tensor):
        self._stack = stack

    def wait(self) -> Tensor:
        """The stack, to be read before the gathering after the next."""
        return self._stack


def _channel(parity: int, n: int) -> int:
    if n >= _MOST_MESSAGES:
        raise AssertionError(f"message {n} of a line")
    return parity * _MOST_MESSAGES + n


def _room(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def _raw_stream(device: torch.device) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device.index))


# ---- how ranks are connected -----------------------------------------------------------------------------------


# torch numbers what processes tell each other to be connected, each process for itself: where the numbers differ,
# as where one of them is in a group more, they would wait for each other in vain. If others than these functions
# made them differ, that is found out in this time.
_n_connected = 0
connecting = threading.Lock()  # held by who connects a group
_PATIENCE = datetime.timedelta(seconds=60)


def _symmetric_memory() -> Any:
    from torch.distributed import _symmetric_memory  # some milliseconds, for whom it is the first time

    return _symmetric_memory


def place_of(device: torch.device, size: int) -> dict[str, Any]:
    """What the others have to know to tell whether this rank's memory can be theirs."""
    place: dict[str, Any] = {"torch": torch.__version__, "device": device.index, "why not": None}
    place["connections"] = _n_connected
    try:
        # Memory is handed over by files that processes find by their numbers.
        with open("/proc/sys/kernel/random/boot_id") as file:
            place["host"] = [file.read().strip()]
        place["host"] += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "mnt", "net")]
        place["uuid"] = str(torch.cuda.get_device_properties(device).uuid)
        memory = _symmetric_memory()
        words = memory.get_signal_pad_size() // 4 if hasattr(memory, "get_signal_pad_size") else 512
        backend = memory.get_backend(device)
        if backend != "CUDA":
            place["why not"] = f"symmetric memory is {backend}'s"
        elif size * _N_CHANNELS > words:
            place["why not"] = f"{size} ranks need more than {words} signals"
    except Exception as error:  # what is missing there is no error: the ranks have other ways
        place["why not"] = f"{type(error).__name__}: {error}"[:500]
    return place


def why_apart(places: Sequence[dict[str, Any]], rank: int) -> str | None:
    """What keeps the device of a rank from writing the memory of the others'; None if nothing does."""
    mine = places[rank]
    devices = [its["device"] for its in places]
    if len(set(devices)) < len(devices):
        return "two ranks are on one device"
    for other, its in enumerate(places):
        if its["why not"] is not None:
            return f"rank {other}: {its['why not']}"
        for name in ("host", "torch", "connections"):
            if its[name] != mine[name]:
                return f"ranks {rank} and {other} differ: {name}"
        if other != rank:
            if its["device"] >= torch.cuda.device_count():
                return f"the device of rank {other} is not seen by rank {rank}"
            if str(torch.cuda.get_device_properties(its["device"]).uuid) != its["uuid"]:
                return f"rank {other} numbers devices otherwise"
            if not torch.cuda.can_device_access_peer(mine["device"], its["device"]):
                return f"the device of rank {rank} cannot reach that of rank {other}"
    return None


def connect(group: Any, device: torch.device, size: int) -> Wires:
    """The wires of a group, of which every rank calls this at once."""
    global _n_connected
    symmetric = _symmetric_memory()
    _n_connected += 1
    store = dist.distributed_c10d._get_process_group_store(group)
    timeout = store.timeout
    store.set_timeout(min(timeout, _PATIENCE))
    try:
        with _without_multicast(), torch.inference_mode(False), torch.no_grad():
            # Not by `empty`, whose pool may hand out memory that has been connected before, signals and all.
            allocate = symmetric._SymmetricMemory.empty_strided_p2p
            memory = allocate((Wires.n_bytes(size),), (1,), torch.uint8, device)
            return Wires(memory, symmetric.rendezvous(memory, group), _timeout_ms(group, device))
    finally:
        store.set_timeout(timeout)


@contextlib.contextmanager
def _without_multicast() -> Iterator[None]:
    """Let no memory be set up that writes to all at once: messages go to one, and not every machine can."""
    name = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _timeout_ms(group: Any, device: torch.device) -> int:
    """How long the group waits for a rank."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None) or dist.default_pg_timeout
    return int(timeout.total_seconds() * 1000)
