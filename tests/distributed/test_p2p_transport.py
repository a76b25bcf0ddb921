"""Hazard: devices that write each other's memory, several calls after their hosts."""

import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from mapped_memory import N_WORDS, Handle, Stream
from tensors import torch
from upsweep.distributed import p2p_transport
from upsweep.distributed.p2p_transport import SymmetricMemoryTransport

TIMEOUT_MS = 5000


class Device:
    """A thread that does what a host queues later, in order; slowly where the test says so."""

    def __init__(self, seed, laziness):
        self._queue, self._random, self._laziness = queue.Queue(), np.random.default_rng(seed), laziness
        self.error = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def start(self, work):
        self._queue.put(work)

    def read(self, view, results):
        """Append the value that the view has when the device reaches this read."""
        tensor = view.as_subclass(torch.Tensor)
        self.start(lambda: results.append(tensor.clone()))

    def _work(self):
        try:
            while (work := self._queue.get()) is not None:
                if self._random.random() < self._laziness:
                    time.sleep(self._random.uniform(0, 3e-3))
                work()
        except Exception as error:  # raised by `finish`
            self.error = error

    def finish(self):
        self._queue.put(None)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class DeferredTensor(torch.Tensor):
    """Memory that is written when the device reaches the write."""

    def copy_(self, source):
        tensor = self.as_subclass(torch.Tensor)
        self.owner.start(lambda: tensor.copy_(source))
        return self

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        result = super().__torch_function__(function, types, arguments, keywords)
        if isinstance(result, DeferredTensor):
            result.owner = arguments[0].owner
        return result


class QueuedHandle(Handle):
    def __init__(self, rank, memories, device):
        super().__init__(rank, memories)
        self.device = device

    def get_buffer(self, rank, sizes, dtype, storage_offset=0):
        buffer = super().get_buffer(rank, sizes, dtype, storage_offset).as_subclass(DeferredTensor)
        buffer.owner = self.device
        return buffer

    def _change(self, *arguments):
        self.device.start(lambda: super(QueuedHandle, self)._change(*arguments))


@pytest.fixture
def world(monkeypatch):
    """A function that makes the transports of some ranks, and their devices."""
    all_devices = []

    def make(size, laziness):
        n_bytes = SymmetricMemoryTransport.buffer_bytes(size)
        memories = [
            SimpleNamespace(bytes=torch.zeros(n_bytes, dtype=torch.uint8), words=np.zeros(N_WORDS, np.uint32))
            for _ in range(size)
        ]
        devices = [Device(rank, lazy) for rank, lazy in enumerate(laziness)]
        all_devices.extend(devices)
        handles = [QueuedHandle(rank, memories, device) for rank, device in enumerate(devices)]
        return [SymmetricMemoryTransport(memories[h.rank].bytes, h, TIMEOUT_MS) for h in handles], devices

    monkeypatch.setattr(p2p_transport, "_raw_stream", lambda device: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream([]))
    yield make
    for device in all_devices:
        device._queue.put(None)


def message(call, n, shape, dtype=torch.float64):
    return torch.full(shape, 1000 * call + n, dtype=dtype)


def finish(devices):
    for device in devices:
        device.finish()


SHAPES = [[(3,), (5, 2)], [(400,)] * 8, [(7, 1)], [(0,), (2,)], [(1,)] * 3]


@pytest.mark.parametrize("laziness", [(0, 1), (1, 0), (0.3, 0.3)])
def test_messages_are_read_before_they_are_overwritten(world, laziness):
    (sender, receiver), devices = world(2, laziness)
    expected, received = [], []
    for call in range(60):
        shapes = SHAPES[call % len(SHAPES)]
        dtype = (torch.float64, torch.complex128, torch.int64)[call % 3]
        channel = sender.open_send(1)
        for n, shape in enumerate(shapes):
            sent = message(call, n, shape, dtype)
            channel.send(sent.mT.contiguous().mT if sent.ndim > 1 else sent)  # columns first
            expected.append(sent)
        channel.close()
        channel = receiver.open_recv(0, shapes, dtype, None)
        for view in [channel.recv() for _ in shapes]:  # all are read at the end, later than a scan reads them
            devices[1].read(view, received)
        channel.close()
    finish(devices)
    assert len(received) == len(expected)
    assert all(map(torch.equal, received, expected))


@pytest.mark.parametrize("laziness", [(0, 1, 0), (0.5, 0.5, 0.5)])
def test_gathers_are_read_before_they_are_overwritten(world, laziness):
    transports, devices = world(3, laziness)
    received = [[] for _ in transports]
    sizes = [3, 1000, 1, 16]
    for call in range(40):
        for rank, transport in enumerate(transports):
            stack = transport.start_all_gather(message(call, rank, (sizes[call % 4], 2)))()
            devices[rank].read(stack, received[rank])
    finish(devices)
    for stacks in received:
        for call, stack in enumerate(stacks):
            assert torch.equal(stack, torch.stack([message(call, r, (sizes[call % 4], 2)) for r in range(3)]))


@pytest.mark.parametrize("laziness", [(0, 1), (0.5, 0.5)])
def test_two_gathers_may_be_started_before_the_first_is_read(world, laziness):
    transports, devices = world(2, laziness)
    received = [[] for _ in transports]
    for call in range(0, 60, 2):
        for rank, transport in enumerate(transports):
            waits = [transport.start_all_gather(message(call + n, rank, (3,))) for n in range(2)]
            for wait in waits:
                devices[rank].read(wait(), received[rank])
    finish(devices)
    for stacks in received:
        assert len(stacks) == 60
        for call, stack in enumerate(stacks):
            assert torch.equal(stack, torch.stack([message(call, rank, (3,)) for rank in range(2)])), call


def test_both_directions_and_gathers_in_turns(world):
    """As calls forward and in reverse, with final states."""
    transports, devices = world(2, (0.5, 0.5))
    received = []
    for call in range(40):
        first, last = (0, 1) if call % 3 else (1, 0)
        transports[first].open_send(last).send(message(call, 0, (5,)))
        channel = transports[last].open_recv(first, [(5,)], torch.float64, None)
        devices[last].read(channel.recv(), received)
        channel.close()
        for transport in transports:
            stack = transport.start_all_gather(message(call, transport.rank, ()))()
        devices[1].read(stack, received)
    finish(devices)
    sums = sorted(float(one.sum()) for one in received)
    assert sums == sorted([5000.0 * call for call in range(40)] + [2000.0 * call + 1 for call in range(40)])


def test_a_stream_waits_for_another_rank_until_the_time_out(world):
    (sender, receiver), devices = world(2, (0, 0))
    for transport in (sender, receiver):
        transport.timeout_ms = 50
    receiver.open_recv(0, [(3,)], torch.float64, None).recv()
    with pytest.raises(RuntimeError, match="timed out"):
        devices[1].finish()
    for _ in range(3):  # there are two buffers
        sender.open_send(1).send(message(0, 0, (3,)))
    with pytest.raises(RuntimeError, match="timed out"):
        devices[0].finish()


def test_another_stream_waits_for_the_one_before(world, monkeypatch):
    transports, devices = world(2, (0, 0))
    waits = []
    streams = [Stream(waits), Stream(waits)]
    for n in (0, 0, 1, 1, 0):
        monkeypatch.setattr(p2p_transport, "_raw_stream", lambda device, n=n: n)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None, n=n: streams[n])
        for transport in transports:
            transport.start_all_gather(message(0, 0, (3,)))
    assert waits[::2] == [(streams[1], streams[0]), (streams[0], streams[1])]  # those of the first rank
    finish(devices)


def test_what_fits():
    fits, capacity = SymmetricMemoryTransport.fits, p2p_transport.CAPACITY
    assert fits(capacity // 2) and not fits(capacity)
    # Each of eight messages is aligned.
    assert fits(capacity - 8 * 256) and not fits(capacity - 8 * 256 + 1)


def endpoint(**changes):
    return {"torch": "2.11", "device": 0, "connections": 0, "reason": None, "host": ["a"], "uuid": "x", **changes}


@pytest.mark.parametrize(
    "changes, why",
    [
        ({}, None), ({"device": 0}, "two ranks are on one device"), ({"reason": "no"}, "rank 1: no"),
        ({"host": ["b"]}, "ranks 0 and 1 differ: host"), ({"torch": "2.12"}, "ranks 0 and 1 differ: torch"),
        ({"connections": 1}, "ranks 0 and 1 differ: connections"), ({"device": 2}, "is not seen by rank 0"),
        ({"uuid": "y"}, "rank 1 numbers devices otherwise"),
    ],
)  # fmt: skip
def test_which_endpoints_are_reachable(monkeypatch, changes, why):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="x"))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: True)
    endpoints = [endpoint(), endpoint(**{"device": 1, **changes})]
    reason = p2p_transport.why_unreachable(endpoints, 0)
    assert reason == why or (why and why in reason)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: False)
    if why is None:
        assert p2p_transport.why_unreachable(endpoints, 1) == "the device of rank 1 cannot reach that of rank 0"
