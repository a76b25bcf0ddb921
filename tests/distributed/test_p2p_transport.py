"""Hazard: devices that write each other's memory, and are behind their hosts by several calls."""

import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from mapped_memory import N_WORDS, Handle, Stream
from tensors import torch
from upsweep.distributed import p2p_transport

TIMEOUT_MS = 5000


class Device:
    """What a host queues, done later by another thread, in order; slowly where the test says so."""

    def __init__(self, seed, laziness):
        self._queue, self._random, self._laziness = queue.Queue(), np.random.default_rng(seed), laziness
        self.error = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def start(self, work):
        self._queue.put(work)

    def read(self, view, to):
        """What is there when the device comes to it."""
        there = view.as_subclass(torch.Tensor)
        self.start(lambda: to.append(there.clone()))

    def _work(self):
        try:
            while (work := self._queue.get()) is not None:
                if self._random.random() < self._laziness:
                    time.sleep(self._random.uniform(0, 3e-3))
                work()
        except Exception as error:  # told by `finish`
            self.error = error

    def finish(self):
        self._queue.put(None)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class Behind(torch.Tensor):
    """Memory that is only written when the device comes to it."""

    def copy_(self, source):
        there = self.as_subclass(torch.Tensor)
        self.owner.start(lambda: there.copy_(source))
        return self

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        result = super().__torch_function__(function, types, arguments, keywords)
        if isinstance(result, Behind):
            result.owner = arguments[0].owner
        return result


class QueuedHandle(Handle):
    def __init__(self, rank, parts, device):
        super().__init__(rank, parts)
        self.device = device

    def get_buffer(self, rank, sizes, dtype, storage_offset=0):
        buffer = super().get_buffer(rank, sizes, dtype, storage_offset).as_subclass(Behind)
        buffer.owner = self.device
        return buffer

    def _change(self, *arguments):
        self.device.start(lambda: super(QueuedHandle, self)._change(*arguments))


@pytest.fixture
def world(monkeypatch):
    """Makes the wires of so many ranks, and their devices."""
    made = []

    def make(size, laziness):
        n_bytes = p2p_transport.Wires.n_bytes(size)
        parts = [
            SimpleNamespace(bytes=torch.zeros(n_bytes, dtype=torch.uint8), words=np.zeros(N_WORDS, np.uint32))
            for _ in range(size)
        ]
        devices = [Device(rank, lazy) for rank, lazy in enumerate(laziness)]
        made.extend(devices)
        handles = [QueuedHandle(rank, parts, device) for rank, device in enumerate(devices)]
        return [p2p_transport.Wires(parts[h.rank].bytes, h, TIMEOUT_MS) for h in handles], devices

    monkeypatch.setattr(p2p_transport, "_raw_stream", lambda device: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream([]))
    yield make
    for device in made:
        device._queue.put(None)


def message(call, n, shape, dtype=torch.float64):
    return torch.full(shape, 1000 * call + n, dtype=dtype)


SHAPES = [[(3,), (5, 2)], [(400,)] * 8, [(7, 1)], [(0,), (2,)], [(1,)] * 3]


@pytest.mark.parametrize("laziness", [(0, 1), (1, 0), (0.3, 0.3)])
def test_lines_are_read_before_they_are_written_again(world, laziness):
    (sender, receiver), devices = world(2, laziness)
    expected, found = [], []
    for call in range(60):
        shapes = SHAPES[call % len(SHAPES)]
        dtype = (torch.float64, torch.complex128, torch.int64)[call % 3]
        line = sender.to(1)
        for n, shape in enumerate(shapes):
            sent = message(call, n, shape, dtype)
            line.put(sent.mT.contiguous().mT if sent.ndim > 1 else sent)  # columns first
            expected.append(sent)
        line.end()
        line = receiver.come_from(0, shapes, dtype, None)
        taken = [line.take() for _ in shapes]
        for view in taken:  # all of them at the end, which a scan of the first group would not do
            devices[1].read(view, found)
        line.end()
    for device in devices:
        device.finish()
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("laziness", [(0, 1, 0), (0.5, 0.5, 0.5)])
def test_gatherings_are_read_before_they_are_written_again(world, laziness):
    ranks, devices = world(3, laziness)
    found = [[] for _ in ranks]
    sizes = [3, 1000, 1, 16]
    for call in range(40):
        for rank, wire in enumerate(ranks):
            stack = wire.start_gather(message(call, rank, (sizes[call % 4], 2))).wait()
            devices[rank].read(stack, found[rank])
    for device in devices:
        device.finish()
    for told in found:
        for call, stack in enumerate(told):
            assert torch.equal(stack, torch.stack([message(call, r, (sizes[call % 4], 2)) for r in range(3)]))


@pytest.mark.parametrize("laziness", [(0, 1), (0.5, 0.5)])
def test_two_gatherings_may_be_started_before_the_first_is_read(world, laziness):
    ranks, devices = world(2, laziness)
    found = [[] for _ in ranks]
    for call in range(0, 60, 2):
        for rank, wire in enumerate(ranks):
            stacks = [wire.start_gather(message(call + n, rank, (3,))).wait() for n in range(2)]
            for stack in stacks:
                devices[rank].read(stack, found[rank])
    for device in devices:
        device.finish()
    for told in found:
        assert len(told) == 60
        for call, stack in enumerate(told):
            assert torch.equal(stack, torch.stack([message(call, rank, (3,)) for rank in range(2)])), call


def test_both_ways_and_gatherings_in_turns(world):
    """As calls do that go forward and in reverse, with final states."""
    ranks, devices = world(2, (0.5, 0.5))
    found = []
    for call in range(40):
        first, last = (0, 1) if call % 3 else (1, 0)
        line = ranks[first].to(last)
        line.put(message(call, 0, (5,)))
        coming = ranks[last].come_from(first, [(5,)], torch.float64, None)
        devices[last].read(coming.take(), found)
        coming.end()
        for wire in ranks:
            stack = wire.gather(message(call, wire.rank, ()))
        devices[1].read(stack, found)
    for device in devices:
        device.finish()
    sums = sorted(float(one.sum()) for one in found)
    assert sums == sorted([5000.0 * call for call in range(40)] + [2000.0 * call + 1 for call in range(40)])


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_group_says(world, monkeypatch):
    (sender, receiver), devices = world(2, (0, 0))
    for wire in (sender, receiver):
        wire.timeout_ms = 50
    receiver.come_from(0, [(3,)], torch.float64, None).take()
    with pytest.raises(RuntimeError, match="timed out"):
        devices[1].finish()
    for _ in range(3):  # two lines have room
        sender.to(1).put(message(0, 0, (3,)))
    with pytest.raises(RuntimeError, match="timed out"):
        devices[0].finish()


def test_another_stream_waits_for_the_one_before(world, monkeypatch):
    (wire, other), devices = world(2, (0, 0))
    waits = []
    streams = [Stream(waits), Stream(waits)]
    for n in (0, 0, 1, 1, 0):
        monkeypatch.setattr(p2p_transport, "_raw_stream", lambda device, n=n: n)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None, n=n: streams[n])
        wire.gather(message(0, 0, (3,)))
        other.gather(message(0, 0, (3,)))
    mine = waits[::2]  # and the other's
    assert mine == [(streams[1], streams[0]), (streams[0], streams[1])]
    for device in devices:
        device.finish()


def test_what_does_not_fit_is_not_sent():
    assert p2p_transport.Wires.hold(p2p_transport.CAPACITY // 2) and not p2p_transport.Wires.hold(
        p2p_transport.CAPACITY
    )
    # Eight messages begin at places of their own.
    assert p2p_transport.Wires.hold(p2p_transport.CAPACITY - 8 * 256) and not p2p_transport.Wires.hold(
        p2p_transport.CAPACITY - 8 * 256 + 1
    )


def place(**changes):
    return {"torch": "2.11", "device": 0, "connections": 0, "why not": None, "host": ["a"], "uuid": "x", **changes}


@pytest.mark.parametrize(
    "changes, why",
    [
        ({}, None), ({"device": 0}, "two ranks are on one device"), ({"why not": "no"}, "rank 1: no"),
        ({"host": ["b"]}, "ranks 0 and 1 differ: host"), ({"torch": "2.12"}, "ranks 0 and 1 differ: torch"),
        ({"connections": 1}, "ranks 0 and 1 differ: connections"), ({"device": 2}, "is not seen by rank 0"),
        ({"uuid": "y"}, "rank 1 numbers devices otherwise"),
    ],
)  # fmt: skip
def test_who_can_be_connected(monkeypatch, changes, why):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="x"))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: True)
    places = [place(), place(**{"device": 1, **changes})]
    found = p2p_transport.why_apart(places, 0)
    assert found == why or (why and why in found)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: False)
    if why is None:
        assert p2p_transport.why_apart(places, 1) == "the device of rank 1 cannot reach that of rank 0"
