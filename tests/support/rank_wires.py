"""What each process checks of scans whose devices write each other's memory: `ranks.py` runs it.

Without devices a stand-in is written (`mapped_memory`).
"""

import contextlib
import sys
from unittest import mock

import torch
import upsweep
import upsweep.distributed as sharded
from mapped_memory import on_devices
from rank_ways import FORCED, decaying, forced
from rank_world import check, close
from upsweep._torch import exchange, wires


@contextlib.contextmanager
def wired(world, group=None, **keywords):
    """Devices, pretended where there are none; yields how many lines and gatherings were by wire so far."""
    counts = {"lines": 0, "gathered": 0}

    def counting(name, call):
        def counted(*arguments):
            counts[name] += 1
            return call(*arguments)

        return counted

    patches = contextlib.ExitStack()
    with patches:
        if world.device.type == "cpu":
            patches.enter_context(on_devices(world, sys.argv[4], **keywords))
            known = exchange.Ranks(group)._known
            patches.callback(known.wires.clear)
        for name, method in (("lines", "come_from"), ("gathered", "gather")):
            call = counting(name, getattr(wires.Wires, method))
            patches.enter_context(mock.patch.object(wires.Wires, method, call))
        yield counts


def scans(world, length, dtype=torch.float64):
    x, part = world.random(6, length, dtype=dtype), world.cut(length)
    gates = decaying(world, 6, length, dtype=dtype)
    yield "cumulative_sum", (x,), (x[:, part],)
    yield "linear_recurrence", (gates, x), (gates[:, part], x[:, part])


@check
def every_way_goes_by_wire(world):
    length = 3000
    part = world.cut(length)
    with wired(world) as counts:
        for way in FORCED:
            for dtype, tolerance in ((torch.float64, 1e-12), (torch.complex64, 1e-5), (torch.float32, 1e-5)):
                for name, whole, mine in scans(world, length, dtype):
                    if way == "forget" and name == "cumulative_sum":
                        continue
                    for keywords in ({}, {"return_final": True}, {"reverse": True, "return_final": True}):
                        before = dict(counts)
                        with forced(way):
                            ours = getattr(sharded, name)(*mine, **keywords)
                        theirs = getattr(upsweep, name)(*whole, **keywords)
                        ours, theirs = (r if isinstance(r, tuple) else (r,) for r in (ours, theirs))
                        close(ours[0], theirs[0][:, part], tolerance)
                        assert len(ours) == 1 or torch.allclose(ours[1], theirs[1], rtol=tolerance)
                        gathers = way != "relay" or len(ours) > 1
                        assert (counts["gathered"] > before["gathered"]) == gathers
                        assert counts["lines"] == before["lines"] or way == "relay"
        assert counts["lines"] or part.start == part.stop or not world.rank
