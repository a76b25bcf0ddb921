"""What each process checks of the order in which a device is given work: `ranks.py` runs it.

Without a device: tensors of the CPU count as lying on one, and its streams write down what they are told.
"""

import contextlib
from unittest import mock

import torch
import torch.distributed as dist
import upsweep
import upsweep.distributed as sharded
from rank_world import check, close
from upsweep._torch import exchange, shards
from upsweep._torch import sharded as ways

ROWS, STEPS = 8, 3000  # of a rank


class Stream:
    def __init__(self, name, diary):
        self.name, self.diary = name, diary

    def record_event(self):
        event = Event(self.name, self.diary)
        self.diary.append(("record", event))
        return event

    def wait_event(self, event):
        self.diary.append((self.name, "waits for", event))


class Event:
    """A place in a stream: what has been written down of it by now."""

    def __init__(self, name, diary):
        self.diary = diary
        self.behind = [entry for entry in diary if entry[0] == name]

    def synchronize(self):
        self.diary.append(("host", "waits for", self))


@contextlib.contextmanager
def diary():
    """Pretend, and yield the list that fills, messages and waits are written to: a stream and what it does."""
    entries = []
    current = [Stream("main", entries)]
    named = {}

    @contextlib.contextmanager
    def stream(other):
        current.append(other)
        yield
        current.pop()

    def writing(call, describe):
        def written(*arguments, **keywords):
            entries.append((current[-1].name, *describe(*arguments)))
            return call(*arguments, **keywords)

        return written

    def patch(module, name, value):
        patches.enter_context(mock.patch.object(module, name, value))

    with contextlib.ExitStack() as patches:
        for module in (exchange, ways):
            patch(module, "runs_behind", lambda device: True)
        patch(exchange, "_stream_beside", lambda device, what: named.setdefault(what, Stream(what, entries)))
        patch(torch.cuda, "current_stream", lambda device=None: current[-1])
        patch(torch.cuda, "stream", stream)
        patch(torch.Tensor, "record_stream", lambda tensor, other: None)
        patch(shards, "_GROUP", {"cpu": 2 * STEPS})  # of two rows
        patch(shards, "_LEAST_ELEMENTS", 1)
        of_rows = writing(shards.Shard.fill, lambda shard, rows, *_: ("fill", rows.begin))
        patch(shards.Shard, "fill", of_rows)
        leaves = shards.Shard._left_of_a_large_state  # which a device finds without writing what it passes
        patch(shards.Shard, "_left_of_a_large_state",
              lambda shard, steps, out: leaves(shard, steps, torch.empty_like(shard.out)))  # fmt: skip
        for name in ("isend", "irecv", "all_gather"):
            patch(dist, name, writing(getattr(dist, name), lambda *_, name=name: (name,)))
        patch(exchange._Sent, "wait", writing(exchange.Message.wait, lambda message: ("sent",)))
        patch(exchange.Answers, "wait", writing(exchange.Answers.wait, lambda answers: ("hears",)))
        yield entries


def part_of(world):
    return slice(world.rank * STEPS, (world.rank + 1) * STEPS)


@check
def messages_wait_for_their_own_rows(world):
    if world.device.type == "cuda":
        return
    part = part_of(world)
    gates, x = world.random(ROWS, world.size * STEPS).mul(1e-3).add(1), world.random(ROWS, world.size * STEPS)
    for name, arguments in (("cumulative_sum", (x,)), ("linear_recurrence", (gates, x))):
        twice = mock.patch.object(ways, "_twice", lambda *_: [9.0, 9.0])
        with twice, diary() as entries:
            mine = getattr(sharded, name)(*(a[:, part] for a in arguments))
        close(mine, getattr(upsweep, name)(*arguments)[:, part], 1e-9)
        fills = [entry for entry in entries if "fill" in entry]
        sends = [place for place, entry in enumerate(entries) if entry == ("send", "isend")]
        receives = [place for place, entry in enumerate(entries) if entry == ("receive", "irecv")]
        assert len(sends) == (4 if world.rank + 1 < world.size else 0)
        assert len(receives) == (4 if world.rank else 0)
        assert all(entry[0] == "main" for entry in fills)
        last = fills[-4:]
        assert [entry[2] for entry in last] == [0, 2, 4, 6]
        for place, of_rows in zip(sends, last):
            stream, _, event = entries[place - 1]
            assert stream == "send" and event.behind[-1] is of_rows, (event.behind, of_rows)
        assert not [entry for entry in entries if entry[:2] == ("receive", "waits for")]
        for place, of_rows in zip(receives, last):
            assert entries.index(of_rows, place) == place + 1
        # A message gets its turn on a device before the rows that follow.
        assert [place for place, entry in enumerate(entries) if entry[-1] == "sent"] == [p + 1 for p in sends]
        if not world.rank:  # which needs nothing of the others to begin
            assert len(fills) == 4 and entries.index(fills[0]) < entries.index(("main", "hears"))


@check
def a_device_goes_on_while_the_host_learns(world):
    if world.device.type == "cuda":
        return
    part = part_of(world)
    gates, x = world.random(ROWS, world.size * STEPS).mul(0.002), world.random(ROWS, world.size * STEPS)
    for name, arguments, first in (
        ("discounted_cumsum", (x, 0.1), [0]), ("linear_recurrence", (gates, x), [0, 2]),
    ):  # fmt: skip
        given = [a[:, part] if isinstance(a, torch.Tensor) else a for a in arguments]
        with mock.patch.object(shards, "_LOOKS", (8, 2)), diary() as entries:
            mine = getattr(sharded, name)(*(given))
        close(mine, getattr(upsweep, name)(*arguments)[:, part])
        asks, gathers = (place for place, entry in enumerate(entries) if "all_gather" in entry)
        fills = [place for place, entry in enumerate(entries) if "fill" in entry]
        assert [entries[place][2] for place in fills if place < asks] == first
        again = [entries[place] for place in fills if place > asks]
        assert len(again) == (1 if world.rank else 0)
        # What is gathered is on its way to the host before the first steps are scanned again.
        reads = max(place for place, entry in enumerate(entries) if entry[:2] == ("fetch", "waits for"))
        assert entries[reads][2].behind[-1] is entries[gathers]
        assert entries[-1][:2] == ("host", "waits for")
        assert all(gathers < reads < place for place in fills if place > asks)
        if len(first) > 1:  # the look waits for the gates, the host for nothing that is filled meanwhile
            looks = next(entry[2] for entry in entries if entry[0] == "host")
            assert not [entry for entry in looks.behind if "fill" in entry]
