"""What each process checks of the ways that a scan over ranks is done: `ranks.py` runs it."""

import contextlib
import datetime
import time
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import upsweep
import upsweep.distributed as sharded
from rank_world import TIMEOUT, check, close
from upsweep.distributed import communicator, shard, shard_cache, strategies
from upsweep.testing import assert_scan_close

# What makes arrays of some thousand elements go one way: how many passes it takes to look twice, from how many
# elements on a group of rows and a look at the gates are worth it.
FORCED = {"forget": (1.7, 1, 1), "relay": (1e3, 1, 1 << 40), "look_twice": (0.0, 1, 1 << 40)}


@contextlib.contextmanager
def forced(way, group=None, then=()):
    """Every scan goes this way, `then` others, or the test fails."""
    twice, group, look = FORCED[way] if group is None else (FORCED[way][0], group, FORCED[way][2])
    taken = []
    with contextlib.ExitStack() as patches:

        def patch(module, name, value):
            patches.enter_context(mock.patch.object(module, name, value))

        def record(name, run):
            patch(strategies.Ways, name, lambda self: taken.append(name) or run(self))

        patch(shard_cache, "_known", {})
        patch(strategies, "_twice", lambda *_: twice)
        patch(shard, "_GROUP", dict.fromkeys(shard._GROUP, group))
        patch(shard, "_LEAST_ELEMENTS", look)
        patch(shard, "_LOOKS", (8, 2))
        if way != "forget":
            patch(strategies, "_forgets", lambda its: False)
        for name in FORCED:
            record(name, getattr(strategies.Ways, name))
        yield
    assert set(taken) == {way, *then}, taken


def decaying(world, *shape, dtype=torch.float64):
    """Gates of which 300 leave nothing of any state."""
    return (0.002 * world.random(*shape, seed=1)).to(dtype)


def cases(world, length, dtype):
    """For each scan that every way can do: its name and arguments."""
    x = world.random(5, length, dtype=dtype)
    yield "discounted_cumsum", (x, decaying(world, 5, 1).abs())
    yield "discounted_cumsum", (x, -5e-5)
    yield "linear_recurrence", (decaying(world, 5, length, dtype=dtype), x)


def cut(argument, axis, part):
    is_array = isinstance(argument, torch.Tensor) and argument.shape[axis] > 1
    return argument.narrow(axis, part.start, part.stop - part.start) if is_array else argument


def promise(world, mine, name, arguments, part, axis=-1, **keywords):
    """The shard of the result is within the promise of the whole in float64, or complex128."""
    wide = [a.to(torch.promote_types(a.dtype, torch.float64)) if isinstance(a, torch.Tensor) else a
            for a in arguments]  # fmt: skip
    exact = getattr(upsweep, name)(*wide, axis=axis, **keywords)
    sizes = [abs(a) for a in wide]
    if keywords.get("initial") is not None:
        keywords["initial"] = abs(keywords["initial"])
    scale = getattr(upsweep, name)(*sizes, axis=axis, **keywords)
    exact, scale = (cut(t, axis, part).cpu().numpy() for t in (exact, scale))
    assert_scan_close(mine.cpu().numpy(), exact, scale)


@check
def every_way_keeps_the_promise(world):
    length = 3000
    part = world.cut(length)
    initial, reset = world.random(5, seed=3), world.random(5, length, seed=2) > 0.999
    for way in FORCED:
        for dtype in (torch.float32, torch.float64, torch.complex64, torch.float16):
            for name, arguments in cases(world, length, dtype):
                given = [cut(a, 1, part) for a in arguments]
                for keywords in ({}, {"reverse": True, "initial": initial}, {"exclusive": True}):
                    with forced(way):
                        mine = getattr(sharded, name)(*given, **keywords)
                    assert mine.dtype == dtype
                    promise(world, mine, name, arguments, part, **keywords)
        name, arguments = "linear_recurrence", (decaying(world, 5, length), world.random(5, length))
        with forced(way):
            mine = sharded.linear_recurrence(
                *(cut(a, 1, part) for a in arguments), reset=reset[:, part], initial=initial
            )
        promise(world, mine, name, arguments, part, reset=reset, initial=initial)


@check
def every_way_leaves_the_state_and_the_same_bits(world):
    length = 3000
    part = world.cut(length)
    gates, tokens = decaying(world, 5, length), world.random(5, length)
    for way in FORCED:
        for reverse in (False, True):
            _, final = upsweep.linear_recurrence(gates, tokens, reverse=reverse, return_final=True)
            with forced(way):
                first, second = (
                    sharded.linear_recurrence(gates[:, part], tokens[:, part], reverse=reverse, return_final=True)
                    for _ in range(2)
                )
            close(first[1], final)
            assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


@check
def sums_columns_and_single_lines(world):
    numbers = (world.random(300, 70) * 100).long()
    columns = world.random(300, 2, 70, dtype=torch.float32)
    reset = world.random(300, 70, seed=2) > 0.99
    part = world.cut(300)
    for way in ("relay", "look_twice"):
        with forced(way):
            mine = sharded.cumulative_sum(numbers[part], axis=0, reset=reset[part])
            close(mine, upsweep.cumulative_sum(numbers, axis=0, reset=reset)[part])
            mine = sharded.cumulative_sum(columns[part], axis=0, reverse=True)
        promise(world, mine, "cumulative_sum", (columns,), part, axis=0, reverse=True)
        line = world.random(300)
        with forced(way):
            close(sharded.cumulative_sum(line[part]), upsweep.cumulative_sum(line)[part])
    gates, tokens, part = decaying(world, 3000), world.random(3000), world.cut(3000)
    nothing = world.random(3000, 0)
    for way in FORCED:
        with forced(way):
            mine = sharded.linear_recurrence(gates[part], tokens[part])
        close(mine, upsweep.linear_recurrence(gates, tokens)[part])
    assert sharded.linear_recurrence(nothing[part], nothing[part], axis=0).shape == nothing[part].shape
    always = world.random(3000, 7, seed=2) > 0.9  # some reset is soon in each column
    numbers = (world.random(3000, 7) * 100).int()
    with forced("forget"):
        mine = sharded.cumulative_sum(numbers[part], axis=0, reset=always[part], dtype=torch.int32)
    close(mine, upsweep.cumulative_sum(numbers, axis=0, reset=always, dtype=torch.int32)[part])


@check
def what_is_not_finite_is_not_forgotten(world):
    length = 3000
    part = world.cut(length)
    for bad in (np.inf, np.nan):
        gates, tokens = decaying(world, 5, length).abs(), world.random(5, length)
        tokens[2, 1] = bad  # of the first rank
        theirs, last = upsweep.linear_recurrence(gates, tokens, return_final=True)
        with forced("forget", then=["relay"]):
            mine, final = sharded.linear_recurrence(gates[:, part], tokens[:, part], return_final=True)
        close(*(torch.nan_to_num(y, nan=7.0, posinf=8.0) for y in (mine, theirs[:, part])))
        close(*(torch.nan_to_num(y, nan=7.0, posinf=8.0) for y in (final, last)))
        tokens = world.random(5, length)
        tokens[2, -1] = bad  # of the last rank, behind which there is none
        with forced("forget"):
            mine = sharded.linear_recurrence(gates[:, part], tokens[:, part])
        close(*(torch.nan_to_num(y, nan=7.0, posinf=8.0)
                for y in (mine, upsweep.linear_recurrence(gates, tokens)[:, part])))  # fmt: skip


@check
def a_large_state_is_not_forgotten_early(world):
    """Of 1 nothing is left after 32 such gates, but of the state before them."""
    steps = 512
    tokens = torch.zeros(2, world.size * steps, dtype=torch.float64, device=world.device)
    tokens[:, steps - 1] = 2.0**990
    gates = torch.full_like(tokens, 2.0**-40)
    part = slice(world.rank * steps, (world.rank + 1) * steps)

    def same(mine):
        # A device multiplies gates first: beyond these steps their product has left the range of numbers.
        n = 25 if world.device.type == "cuda" else steps
        return torch.equal(mine[:, :n], theirs[:, part][:, :n])

    with forced("forget"):
        shard._LOOKS = (steps // 32, 2)
        mine = sharded.linear_recurrence(gates[:, part], tokens[:, part])
    theirs = upsweep.linear_recurrence(gates, tokens)
    assert theirs[0, steps + 24] > 0
    assert same(mine)
    with forced("forget"):
        mine = sharded.discounted_cumsum(tokens[:, part], 2.0**-40)
    assert same(mine)


@check
def what_is_sent(world):
    """A gathering is heard by all ranks, a message by the next one."""
    rows, length = 4, 3000
    sent = []
    send, gloo = dist.isend, "cpu:gloo" in str(dist.get_backend_config())

    def gathering(gather):
        def gathers(rows, tensor, **keywords):
            sent.append(("all", tensor.numel() * tensor.element_size()))
            return gather(rows, tensor, **keywords)

        return gathers

    def sending(tensor, *arguments, **keywords):
        kind = "ask" if keywords["tag"] == communicator._ASK_TAG else "next"
        sent.append((kind, tensor.numel() * tensor.element_size()))
        return send(tensor, *arguments, **keywords)

    def bytes_of(way, call, group=1 << 40):
        sent.clear()
        with contextlib.ExitStack() as patches:
            for name in ("all_gather", "all_gather_into_tensor"):
                patches.enter_context(mock.patch.object(dist, name, gathering(getattr(dist, name))))
            patches.enter_context(mock.patch.object(communicator.Ranks, "wired", lambda *_: -1))
            patches.enter_context(mock.patch.object(dist, "isend", sending))
            patches.enter_context(forced(way, group))
            call()
        # What the ranks agree on.
        n_asked = world.size - 1 if gloo else 1
        assert sent[:n_asked] == [("ask" if gloo else "all", 4096)] * n_asked
        return sent[n_asked:]

    x, gates = world.random(rows, length), decaying(world, rows, length)
    reset = world.random(rows, length) > 2
    gated, summed = (lambda: sharded.linear_recurrence(gates, x)), (lambda: sharded.cumulative_sum(x))
    assert bytes_of("look_twice", gated) == [("all", 16 * rows)]
    assert bytes_of("look_twice", lambda: sharded.linear_recurrence(gates, x, reset=reset)) == [("all", 24 * rows)]
    assert bytes_of("look_twice", summed) == [("all", 8 * rows)]
    assert bytes_of("look_twice", gated, group=1) == [("all", 8 * rows)] * 2
    told = [("all", 8 * rows)] if world.size > 2 else [("next", 8 * rows)] * (world.rank == 0)
    assert bytes_of("forget", gated) == told
    assert bytes_of("relay", gated, group=1) == ([("next", 8)] * rows if world.rank + 1 < world.size else [])


@check
def many_ranks_ask_by_a_gather(world):
    known = communicator.Ranks(None)._known
    x, part = world.random(3, 300), world.cut(300)
    gathers = mock.patch.object(known, "asks_each", False)
    with gathers, mock.patch.object(dist, "isend", None), forced("look_twice"):
        close(sharded.cumulative_sum(x[:, part]), upsweep.cumulative_sum(x)[:, part])


@check
def a_rank_that_fails_in_between(world):
    """The others wait for it as long as the group says, and raise."""
    if world.device.type == "cuda" or world.size > 2:
        return  # NCCL ends the process; and to wait takes seconds
    for way, method in (("relay", "fill"), ("forget", "fill"), ("look_twice", "reduce")):
        group = dist.new_group(list(range(world.size)), timeout=datetime.timedelta(seconds=1))
        begin = time.monotonic()

        def fails(*_, **__):
            raise MemoryError("no more")

        patch = mock.patch.object(shard.Shard, method, fails) if world.rank == 0 else contextlib.nullcontext()
        x, gates = world.random(4, 3000), decaying(world, 4, 3000)
        try:
            with forced(way, group=1 if way == "relay" else 1 << 40), patch:
                sharded.linear_recurrence(gates, x, group=group)
        except MemoryError:
            assert world.rank == 0
        except RuntimeError as error:
            assert world.rank and ("imed out" in str(error) or "closed" in str(error)), str(error)
        else:
            raise AssertionError(f"{way}: nothing was raised")
        assert time.monotonic() - begin < TIMEOUT
        dist.barrier()
