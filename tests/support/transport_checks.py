"""What each process checks of scans whose devices write each other's memory: `ranks.py` runs it.

Without devices a stand-in is written (`mapped_memory`).
"""

import contextlib
import datetime
import gc
import sys
import time
import weakref
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import upsweep
import upsweep.distributed as sharded
from helpers import in_threads
from mapped_memory import on_devices
from rank_world import check, close, raises
from strategy_checks import FORCED, decaying, forced
from upsweep.distributed import communicator, p2p_transport, shard_cache, strategies
from upsweep.distributed import shard as shard_module


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
            known = communicator.Ranks(group)._known
            patches.callback(known.wires.clear)
        for name, method in (("lines", "come_from"), ("gathered", "gather")):
            call = counting(name, getattr(p2p_transport.Wires, method))
            patches.enter_context(mock.patch.object(p2p_transport.Wires, method, call))
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
                        one_tells = way == "relay" or (way == "forget" and world.size == 2)
                        assert (counts["gathered"] > before["gathered"]) == (not one_tells or len(ours) > 1)
                        assert counts["lines"] == before["lines"] or one_tells
        assert counts["lines"] or part.start == part.stop or not world.rank


@check
def devices_without_wires(world):
    length = 3000
    part = world.cut(length)
    with wired(world) as counts, mock.patch.object(communicator.Ranks, "wired", lambda *_: -1):
        for way in FORCED:
            for name, whole, mine in scans(world, length):
                if way == "forget" and name == "cumulative_sum":
                    continue
                for keywords in ({}, {"reverse": True}):
                    with forced(way):
                        ours, final = getattr(sharded, name)(*mine, return_final=True, **keywords)
                    theirs, last = getattr(upsweep, name)(*whole, return_final=True, **keywords)
                    close(ours, theirs[:, part])
                    close(final, last)
        assert counts == {"lines": 0, "gathered": 0}


@check
def many_calls_of_other_sizes(world):
    """With ranks that come early or late, rows of all numbers, both directions; twice with too many rows."""
    lags = np.random.default_rng(world.rank).uniform(0, 2e-3, 24)
    with wired(world) as counts:
        for call, lag in enumerate(lags):
            rows, length = (1, 3, 300, 40)[call % 4], 60 + call
            x = world.random(length, rows, seed=call)
            if call in (5, 17):  # a number a row is more than may be sent
                x = x.repeat(1, p2p_transport.CAPACITY // 8 // rows + 1)
            part, before = world.cut(length), dict(counts)
            time.sleep(lag)
            with forced("relay" if call % 3 else "look_twice", group=100):
                y, final = sharded.cumulative_sum(x[part], axis=0, reverse=call % 2 == 0, return_final=True)
            whole, last = upsweep.cumulative_sum(x, axis=0, reverse=call % 2 == 0, return_final=True)
            close(y, whole[part], 1e-9)
            close(final, last, 1e-9)
            assert (counts == before) == (call in (5, 17))


@check
def results_do_not_change_when_others_are_computed(world):
    x, gates, part = world.random(6, 3000), decaying(world, 6, 3000), world.cut(3000)
    with wired(world):
        for way in FORCED:
            with forced(way):
                kept = [
                    sharded.linear_recurrence(gates[:, part], n * x[:, part], return_final=True)
                    for n in range(1, 6)
                ]
            for n, (y, final) in enumerate(kept, 1):
                whole, last = upsweep.linear_recurrence(gates, n * x, return_final=True)
                close(y, whole[:, part])
                close(final, last)


@check
def what_is_not_finite_goes_on_by_wire(world):
    length = 3000
    part = world.cut(length)
    gates, tokens = decaying(world, 5, length).abs(), world.random(5, length)
    tokens[2, 1] = np.inf  # of the first rank
    theirs = upsweep.linear_recurrence(gates, tokens)[:, part]
    with wired(world) as counts:
        for _ in range(3):
            with forced("forget", then=["relay"]):
                mine = sharded.linear_recurrence(gates[:, part], tokens[:, part])
            close(*(torch.nan_to_num(y, nan=7.0, posinf=8.0) for y in (mine, theirs)))
        takes = bool(world.rank) and part.stop > part.start
        of_two = world.size == 2  # one tells the other
        assert counts == {"gathered": 0 if of_two else 3, "lines": (6 if of_two else 3) * takes}, counts


@check
def gradients_by_wire(world):
    part = slice(100 * world.rank, 100 * world.rank + 100)
    for reverse in (False, True):
        gates, x = (world.random(3, 100 * world.size, seed=seed) for seed in (1, 2))
        whole = [t.clone().requires_grad_() for t in (gates, x)]
        upsweep.linear_recurrence(*whole, reverse=reverse).square().sum().backward()
        mine = [t[:, part].clone().requires_grad_() for t in (gates, x)]
        with wired(world) as counts:
            with forced("relay", group=100):
                sharded.linear_recurrence(*mine, reverse=reverse).square().sum().backward()
            # One way and back.
            ends = 0 < world.rank < world.size - 1
            assert counts["lines"] == 1 + ends
        for ours, theirs in zip(mine, whole):
            close(ours.grad, theirs.grad[:, part], 1e-10)


@check
def devices_that_cannot_reach_each_other(world):
    if world.device.type == "cuda":
        return
    x, part = world.random(4, 300), world.cut(300)
    known = communicator.Ranks(None)._known
    with wired(world, reachable=world.rank != world.size - 1) as counts:
        for _ in range(2):
            with forced("relay", group=100):
                close(sharded.cumulative_sum(x[:, part]), upsweep.cumulative_sum(x)[:, part])
        how = communicator.Ranks(None).how(world.device)
        assert how.startswith(f"torch.distributed, as the device of rank {world.size - 1} cannot reach"), how
        # They did not ask each other again.
        assert known.n_connected and counts == {"lines": 0, "gathered": 0}
        known.why_no_wires = None


@check
def two_groups_at_once(world):
    """Each of a thread; their ranks do not begin with the same one."""
    if world.device.type == "cuda" and "gloo" not in str(dist.get_backend_config()):
        return  # NCCL's kernels of one group may wait for those of another
    groups = [dist.new_group(list(range(world.size))) for _ in range(2)]
    found, part = [[], []], world.cut(300)
    data = [world.random(4, 300, seed=n) for n in range(2)]

    def work(n):
        if world.device.type == "cuda":
            torch.cuda.set_device(world.device)
        for call in range(10):
            time.sleep(1e-3 * ((call + n + world.rank) % 3))
            found[n].append(sharded.cumulative_sum(data[n][:, part], group=groups[n]))

    with wired(world) as counts, forced("relay", group=100):
        if world.device.type == "cuda":  # else one of them does without, by NCCL
            for group in groups:
                sharded.cumulative_sum(data[0][:, part], group=group)
        in_threads(work, 0, 1)
    for x, results in zip(data, found):
        assert len(results) == 10
        for y in results:
            close(y, upsweep.cumulative_sum(x)[:, part])
    assert counts["lines"] or not world.rank or part.start == part.stop


@check
def wires_end_with_their_group(world):
    group = dist.new_group(list(range(world.size)))
    with wired(world):
        sharded.cumulative_sum(world.random(3, 50)[:, world.cut(50)], group=group)
        known = communicator.Ranks(group)._known
        (there,) = (weakref.ref(its) for _, its in known.wires.values())
        assert there().size == world.size
        dist.barrier()
        dist.destroy_process_group(group)
        del group, known
        gc.collect()
        assert there() is None


@check
def a_rank_that_fails_on_its_way(world):
    """The others wait for it as long as the group says; the next call does not take what was left."""
    if world.device.type == "cuda" or world.size > 2:
        return  # a device that waits in vain ends its process
    x, gates = world.random(4, 3000), decaying(world, 4, 3000)
    part = world.cut(3000)
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))

    def fails(*_, **__):
        raise MemoryError("no more")

    with wired(world):
        for way in FORCED:
            with forced(way, group=100):
                theirs = upsweep.linear_recurrence(gates, x)[:, part]
                close(sharded.linear_recurrence(gates[:, part], x[:, part], group=group), theirs)
                n_before = communicator.Ranks(group)._known.n_connected
                first = mock.patch.object(p2p_transport.Wires, "start_gather", fails)
                if way in ("relay", "forget"):
                    first = mock.patch.object(p2p_transport.LineTo, "put", fails)
                with first if world.rank == 0 else contextlib.nullcontext():
                    try:
                        sharded.linear_recurrence(gates[:, part], x[:, part], group=group)
                    except MemoryError:
                        assert world.rank == 0
                        time.sleep(0.7)  # or it would wait for the other as long as that waits for it
                    except RuntimeError as error:
                        assert world.rank and "timed out" in str(error), str(error)
                    else:
                        raise AssertionError(f"{way}: nothing was raised")
                close(sharded.linear_recurrence(gates[:, part], x[:, part], group=group), theirs)
                assert communicator.Ranks(group)._known.n_connected == n_before + 1


@contextlib.contextmanager
def diary():
    """The list that fills, messages and waits are written to, as the host comes to them."""
    entries = []

    def writing(owner, name, describe):
        call = getattr(owner, name)

        def written(*arguments, **keywords):
            entries.append(describe(*arguments))
            return call(*arguments, **keywords)

        return mock.patch.object(owner, name, written)

    fetch = communicator.fetch

    def fetching(tensor):
        entries.append("copies")
        wait = fetch(tensor)
        return lambda: entries.append("waits") or wait()

    with contextlib.ExitStack() as patches:
        for patch in (
            writing(shard_module.Shard, "fill", lambda shard, rows, *_: ("fill", rows.begin)),
            writing(p2p_transport.LineTo, "put", lambda *_: "put"),
            writing(p2p_transport.LineFrom, "take", lambda *_: "take"),
            writing(p2p_transport.Wires, "gather", lambda *_: "gather"),
            writing(communicator.Answers, "wait", lambda *_: "hears"),
            *(mock.patch.object(module, "fetch", fetching) for module in (communicator, shard_module)),
        ):  # fmt: skip
            patches.enter_context(patch)
        yield entries


@contextlib.contextmanager
def looking_twice_if_not_forgotten(few_rows):
    with contextlib.ExitStack() as patches:
        for module, name, value in (
            (strategies, "_FEW_ROWS", few_rows),
            (strategies, "_twice", lambda *_: 0.0),
            (shard_module, "_LEAST_ELEMENTS", 1), (shard_module, "_LOOKS", (8, 2)),
            (shard_module, "_GROUP", dict.fromkeys(shard_module._GROUP, 6000)), (shard_cache, "_known", {}),
        ):  # fmt: skip
            patches.enter_context(mock.patch.object(module, name, value))
        yield


@check
def a_device_is_given_work_before_anything_is_waited_for(world):
    part = slice(3000 * world.rank, 3000 * world.rank + 3000)
    gates, x = world.random(8, 3000 * world.size).mul(0.002), world.random(8, 3000 * world.size)

    def summed():
        return sharded.cumulative_sum(x[:, part])

    def gated():
        return sharded.linear_recurrence(gates[:, part], x[:, part])

    with wired(world):
        summed()  # they are connected
        with forced("relay", group=6000), diary() as entries:
            summed()
        fills = [[("fill", row)] for row in (0, 2, 4, 6)]
        if world.rank:
            fills = [["take", *fill] for fill in fills]
        if world.rank + 1 < world.size:
            fills = [[*fill, "put"] for fill in fills]
        fills = [entry for fill in fills for entry in fill]
        # The first rank needs nothing of the others to begin; who takes over does not wait on the host.
        assert entries == (["hears", *fills] if world.rank else [fills[0], "hears", *fills[1:]]), entries
        again = [("fill", 0)] if world.rank else []
        for call, looks in ((lambda: sharded.discounted_cumsum(x[:, part], 0.1), 0), (gated, 1)):
            with forced("forget", group=6000), diary() as entries:
                call()
            # Only what the gates are tells how to go on, and nothing but the last answer is waited for at the end.
            asked = [*["copies", "waits"] * looks, ("fill", 0), "hears"]
            tells = "gather" if world.size > 2 else "take" if world.rank else "put"
            assert entries == [*asked, tells, "copies", *again, "waits"], entries
        keeps = gates.mul(500).abs().add(0.5)
        fill, look = [("fill", 0)], ["copies", "waits"]
        # The same of gates that were looked at twice before; what is done in vain is done again. Beside few rows
        # nothing runs, so that the look comes first there, and is waited for behind them.
        for few_rows, both in ((0, [*fill, *look]), (8, ["copies", *fill, "waits"])):
            for given, asked in (
                (gates, [*look, *fill]), (gates, both), (keeps, both), (keeps, look),
                (keeps, look), (gates, [*look, *fill]),
            ):  # fmt: skip
                with looking_twice_if_not_forgotten(few_rows), diary() as entries:
                    mine = sharded.linear_recurrence(given[:, part], x[:, part])
                close(mine, upsweep.linear_recurrence(given, x)[:, part], 1e-9)
                assert entries[: entries.index("hears")] == asked, entries
        with forced("look_twice"), diary() as entries:
            summed()
        assert entries == ["hears", "gather", "gather", ("fill", 0), ("fill", 4)], entries


@check
def calls_that_were_checked_before(world):
    """Tensors that lie as others did are scanned at once; what lies or is meant otherwise is checked first."""
    part = slice(300 * world.rank, 300 * world.rank + 300)
    x, gates = (world.random(4, 300 * world.size, seed=seed, dtype=torch.float32) for seed in (1, 2))
    calls = [
        (name, factors, keywords)
        for name, factors in (
            ("cumulative_sum", ()), ("discounted_cumsum", (0.5,)), ("discounted_cumsum", (-0.9,)),
            ("linear_recurrence", (gates,)),
        )
        for keywords in ({}, {"reverse": True}, {"exclusive": True})
    ]  # fmt: skip

    def compare(name, x, factors, keywords):
        mine = [t[:, part].clone() if isinstance(t, torch.Tensor) else t for t in (x, *factors)]
        turn = -1 if name == "linear_recurrence" else 1  # gates first
        theirs = getattr(upsweep, name)(*[x, *factors][::turn], **keywords)
        close(getattr(sharded, name)(*mine[::turn], **keywords), theirs[:, part], 1e-5)

    with wired(world), mock.patch.object(shard_cache, "_known", {}) as known:
        for n in (1, 2, 3):
            for name, factors, keywords in calls:
                compare(name, n * x, factors, keywords)
        assert len(known) == len(calls)
        compare("cumulative_sum", x.double(), (), {})
        compare("cumulative_sum", x, (), {"reset": None, "axis": 1})
        compare("linear_recurrence", x, (gates.double().float().mT.contiguous().mT,), {})
        assert len(known) == len(calls) + 3
        # What has a state, is followed or is not as it was given.
        compare("cumulative_sum", x, (), {"initial": torch.ones(4, device=world.device)})
        compare("cumulative_sum", (100 * x).long(), (), {})
        leaf = x[:, part].clone().requires_grad_()
        sharded.cumulative_sum(leaf).sum().backward()
        assert leaf.grad is not None and len(known) == len(calls) + 3
        raises(ValueError, "shapes do not broadcast",
               lambda: sharded.linear_recurrence(gates[:, :7], x[:, part]))  # fmt: skip
        compare("cumulative_sum", x, (), {})
