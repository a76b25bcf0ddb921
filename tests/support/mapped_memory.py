"""A stand-in for memory that the devices of several processes write, and for its signals: a file of each of them.

What a device does in the order of a stream is done at once here, by the caller: to wait for a signal is to look at
it again and again. Tensors of the CPU count as lying on a device, each process's on another.
"""

import contextlib
import itertools
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
from tensors import torch
from upsweep.distributed import communicator, p2p_transport, strategies
from upsweep.distributed import shard as shard_module

N_WORDS = 2304  # of signals


class Memory:
    """One process's part, as all can map it: bytes, and behind them words."""

    def __init__(self, path, n_bytes):
        with open(path, "ab") as file:
            file.truncate(n_bytes + 4 * N_WORDS)
        mapped = np.memmap(path, np.uint8, "r+")
        self.bytes, self.words = torch.from_numpy(mapped[:n_bytes]), mapped[n_bytes:].view(np.uint32)


class Handle:
    """What `rendezvous` gives."""

    def __init__(self, rank, parts):
        self.rank, self.world_size, self.parts = rank, len(parts), parts

    def get_buffer(self, rank, sizes, dtype, storage_offset=0):
        assert (dtype, storage_offset) == (torch.uint8, 0)
        return self.parts[rank].bytes.view(sizes)

    def put_signal(self, dst_rank, channel=0, timeout_ms=0):
        self._change(dst_rank, channel * self.world_size + self.rank, 1, timeout_ms)

    def wait_signal(self, src_rank, channel=0, timeout_ms=0):
        self._change(self.rank, channel * self.world_size + src_rank, 0, timeout_ms)

    def barrier(self, channel=0, timeout_ms=0):
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        for rank in others:
            self.put_signal(rank, channel, timeout_ms)
        for rank in others:
            self.wait_signal(rank, channel, timeout_ms)

    def _change(self, owner, word, value, timeout_ms):
        """Set what is clear, or clear what is set: each of them is for one process to do."""
        words, end = self.parts[owner].words, time.monotonic() + timeout_ms / 1000
        while words[word] == value:
            if time.monotonic() > end:
                raise RuntimeError(f"timed out: word {word} of rank {owner} is {value}")
            time.sleep(0)
        words[word] = value


class Stream:
    """Work that is done at once, so that all of it is over."""

    def __init__(self, waits):
        self.waits = waits

    def record_event(self):
        return SimpleNamespace(synchronize=lambda: None)

    def wait_stream(self, other):
        self.waits.append((self, other))


@contextlib.contextmanager
def on_devices(world, path, number=itertools.count(), reachable=True):  # noqa: B008  # counts all
    """Pretend; yields what may be changed meanwhile, and is written to."""
    folder = f"{path}-memory-{next(number)}"
    told = SimpleNamespace(stream=Stream([]), made=[])

    def allocate(size, stride, dtype, device):
        assert dtype == torch.uint8 and stride == (1,)
        told.memory = Memory(f"{folder}-{p2p_transport._n_connected}-{world.rank}", *size)
        return told.memory.bytes

    def rendezvous(memory, group):
        torch.distributed.barrier(group=group)
        members = torch.distributed.get_process_group_ranks(group)
        parts = [Memory(f"{folder}-{p2p_transport._n_connected}-{rank}", memory.numel()) for rank in members]
        told.made.append(Handle(members.index(world.rank), parts))
        return told.made[-1]

    symmetric = SimpleNamespace(
        get_signal_pad_size=lambda: 4 * N_WORDS, get_backend=lambda device: "CUDA", rendezvous=rendezvous,
        _SymmetricMemory=SimpleNamespace(empty_strided_p2p=allocate),
    )  # fmt: skip
    place_of = p2p_transport.place_of
    left = shard_module.Shard._left_of_a_large_state  # which a device finds without writing what it passes
    replaced = [
        (communicator, "runs_behind", lambda device: True),
        (strategies, "runs_behind", lambda device: True),
        (strategies, "beside", lambda device, after: contextlib.nullcontext()),
        (p2p_transport, "_symmetric_memory", lambda: symmetric),
        (p2p_transport, "_raw_stream", lambda device: id(told.stream)),
        (p2p_transport, "place_of", lambda device, size: {**place_of(device, size), "device": world.rank}),
        (torch.cuda, "current_stream", lambda device=None: told.stream),
        (shard_module.Shard, "_left_of_a_large_state",
         lambda shard, steps, out: left(shard, steps, torch.empty_like(shard.out))),
        (torch.cuda, "device_count", lambda: world.size),
        (torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="one")),
        (torch.cuda, "can_device_access_peer", lambda device, peer: reachable),
    ]  # fmt: skip
    with contextlib.ExitStack() as patches:
        for module, name, value in replaced:
            patches.enter_context(mock.patch.object(module, name, value))
        yield told
