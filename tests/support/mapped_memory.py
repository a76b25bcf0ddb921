"""A stand-in for symmetric memory and its signals: one file per process, which all processes map.

What a device does in the order of a stream happens at once here, in the calling thread; a wait for a signal is a
loop. Tensors on the CPU count as being on a device, a different one for each process.
"""

import contextlib
import itertools
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
from tensors import torch
from upsweep.distributed import p2p_transport, streams
from upsweep.distributed import shard as shard_module

N_WORDS = 2304  # of signals


class Memory:
    """The file of one process: the bytes of its buffer, then the words of its signals."""

    def __init__(self, path, n_bytes):
        with open(path, "ab") as file:
            file.truncate(n_bytes + 4 * N_WORDS)
        mapped = np.memmap(path, np.uint8, "r+")
        self.bytes, self.words = torch.from_numpy(mapped[:n_bytes]), mapped[n_bytes:].view(np.uint32)


class Handle:
    """The result of `rendezvous`: the memory of all ranks."""

    def __init__(self, rank, memories):
        self.rank, self.world_size, self.memories = rank, len(memories), memories

    def get_buffer(self, rank, sizes, dtype, storage_offset=0):
        assert (dtype, storage_offset) == (torch.uint8, 0)
        return self.memories[rank].bytes.view(sizes)

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
        """Set a signal that is clear, or clear one that is set; for each of the two there is one process."""
        words, end = self.memories[owner].words, time.monotonic() + timeout_ms / 1000
        while words[word] == value:
            if time.monotonic() > end:
                raise RuntimeError(f"timed out: word {word} of rank {owner} is {value}")
            time.sleep(0)
        words[word] = value


class Stream:
    """A stream whose work is done as soon as it is queued; records which stream waits for which."""

    def __init__(self, waits):
        self.waits = waits

    def record_event(self):
        return SimpleNamespace(synchronize=lambda: None)

    def wait_stream(self, other):
        self.waits.append((self, other))


@contextlib.contextmanager
def on_devices(world, path, number=itertools.count(), reachable=True):  # noqa: B008  # counts all calls
    """Let tensors on the CPU count as being on devices; yields the stream and the handles."""
    folder = f"{path}-memory-{next(number)}"
    state = SimpleNamespace(stream=Stream([]), handles=[])

    def allocate(size, stride, dtype, device):
        assert dtype == torch.uint8 and stride == (1,)
        state.memory = Memory(f"{folder}-{p2p_transport._n_set_up}-{world.rank}", *size)
        return state.memory.bytes

    def rendezvous(memory, group):
        torch.distributed.barrier(group=group)
        members = torch.distributed.get_process_group_ranks(group)
        paths = [f"{folder}-{p2p_transport._n_set_up}-{rank}" for rank in members]
        state.handles.append(Handle(members.index(world.rank), [Memory(path, memory.numel()) for path in paths]))
        return state.handles[-1]

    symmetric = SimpleNamespace(
        get_signal_pad_size=lambda: 4 * N_WORDS, get_backend=lambda device: "CUDA", rendezvous=rendezvous,
        _SymmetricMemory=SimpleNamespace(empty_strided_p2p=allocate),
    )  # fmt: skip
    describe_endpoint = p2p_transport.describe_endpoint
    probe_state = shard_module.Shard._probe_state  # on a device it does not write the result
    replaced = [
        (streams, "is_async", lambda device: True),
        (streams, "on_side_stream", lambda device, name, after=None: contextlib.nullcontext()),
        (p2p_transport, "_symmetric_memory", lambda: symmetric),
        (p2p_transport, "_raw_stream", lambda device: id(state.stream)),
        (p2p_transport, "describe_endpoint",
         lambda device, size: {**describe_endpoint(device, size), "device": world.rank}),
        (torch.cuda, "current_stream", lambda device=None: state.stream),
        (shard_module.Shard, "_probe_state",
         lambda shard, steps, out: probe_state(shard, steps, torch.empty_like(shard.out))),
        (torch.cuda, "device_count", lambda: world.size),
        (torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="one")),
        (torch.cuda, "can_device_access_peer", lambda device, peer: reachable),
    ]  # fmt: skip
    with contextlib.ExitStack() as patches:
        for module, name, value in replaced:
            patches.enter_context(mock.patch.object(module, name, value))
        yield state
