"""Checks of each process for the strategies of a distributed scan, run by `ranks.py`."""

import contextlib
import datetime
import os
import time
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import upsweep
import upsweep.distributed as sharded
from rank_world import TIMEOUT, check, close, raises
from upsweep._utils.lru_cache import LRUCache
from upsweep.distributed import communicator, mailbox, shard, shard_cache, strategies
from upsweep.testing import assert_scan_close

# What makes arrays of some thousand elements use a strategy: the cost of two passes, the elements of a group of
# rows, and the least elements of a shard whose gates are probed.
FORCED = {"local_with_fixup": (1.7, 1, 1), "pipelined": (1e3, 1, 1 << 40), "two_pass": (0.0, 1, 1 << 40)}


@contextlib.contextmanager
def forced(strategy, group=None, then=()):
    """Every scan uses this strategy, and then others, or the test fails."""
    cost, default_group, probed = FORCED[strategy]
    used = []
    with contextlib.ExitStack() as patches:

        def patch(module, name, value):
            patches.enter_context(mock.patch.object(module, name, value))

        def record(name, run):
            patch(strategies.DistributedScan, name, lambda self: used.append(name) or run(self))

        patch(shard_cache, "_shards", LRUCache(64))
        patch(strategies, "_two_pass_cost", lambda *_: cost)
        patch(shard, "_GROUP_ELEMENTS", dict.fromkeys(shard._GROUP_ELEMENTS, group or default_group))
        patch(shard, "_MIN_PROBED_ELEMENTS", probed)
        patch(shard, "_PROBE_SHARES", (8, 2))
        if strategy != "local_with_fixup":
            patch(strategies, "_decays", lambda decay_steps: False)
        for name in FORCED:
            record(name, getattr(strategies.DistributedScan, name))
        yield
    assert set(used) == {strategy, *then}, used


def decaying(world, *shape, dtype=torch.float64):
    """Gates of which 300 in a row let any state decay to nothing."""
    return (0.002 * world.random(*shape, seed=1)).to(dtype)


def cases(world, length, dtype):
    """The name and arguments of each scan that every strategy can run."""
    x = world.random(5, length, dtype=dtype)
    yield "discounted_cumsum", (x, decaying(world, 5, 1).abs())
    yield "discounted_cumsum", (x, -5e-5)
    yield "linear_recurrence", (decaying(world, 5, length, dtype=dtype), x)


def cut(argument, axis, part):
    is_array = isinstance(argument, torch.Tensor) and argument.shape[axis] > 1
    return argument.narrow(axis, part.start, part.stop - part.start) if is_array else argument


def assert_promise(world, result, name, arguments, part, axis=-1, **keywords):
    """Check the shard of the result against the whole in float64 or complex128, within the rounding promise."""
    wide = [a.to(torch.promote_types(a.dtype, torch.float64)) if isinstance(a, torch.Tensor) else a
            for a in arguments]  # fmt: skip
    exact = getattr(upsweep, name)(*wide, axis=axis, **keywords)
    sizes = [abs(a) for a in wide]
    if keywords.get("initial") is not None:
        keywords["initial"] = abs(keywords["initial"])
    scale = getattr(upsweep, name)(*sizes, axis=axis, **keywords)
    exact, scale = (cut(t, axis, part).cpu().numpy() for t in (exact, scale))
    assert_scan_close(result.cpu().numpy(), exact, scale)


@check
def every_strategy_keeps_the_promise(world):
    length = 3000
    part = world.cut(length)
    initial, reset = world.random(5, seed=3), world.random(5, length, seed=2) > 0.999
    for strategy in FORCED:
        for dtype in (torch.float32, torch.float64, torch.complex64, torch.float16):
            for name, arguments in cases(world, length, dtype):
                shards = [cut(a, 1, part) for a in arguments]
                for keywords in ({}, {"reverse": True, "initial": initial}, {"exclusive": True}):
                    with forced(strategy):
                        result = getattr(sharded, name)(*shards, **keywords)
                    assert result.dtype == dtype
                    assert_promise(world, result, name, arguments, part, **keywords)
        name, arguments = "linear_recurrence", (decaying(world, 5, length), world.random(5, length))
        with forced(strategy):
            result = sharded.linear_recurrence(
                *(cut(a, 1, part) for a in arguments), reset=reset[:, part], initial=initial
            )
        assert_promise(world, result, name, arguments, part, reset=reset, initial=initial)


@check
def every_strategy_returns_the_state_and_the_same_bits(world):
    length = 3000
    part = world.cut(length)
    gates, tokens = decaying(world, 5, length), world.random(5, length)
    for strategy in FORCED:
        for reverse in (False, True):
            _, final = upsweep.linear_recurrence(gates, tokens, reverse=reverse, return_final=True)
            with forced(strategy):
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
    for strategy in ("pipelined", "two_pass"):
        with forced(strategy):
            result = sharded.cumulative_sum(numbers[part], axis=0, reset=reset[part])
            close(result, upsweep.cumulative_sum(numbers, axis=0, reset=reset)[part])
            result = sharded.cumulative_sum(columns[part], axis=0, reverse=True)
        assert_promise(world, result, "cumulative_sum", (columns,), part, axis=0, reverse=True)
        line = world.random(300)
        with forced(strategy):
            close(sharded.cumulative_sum(line[part]), upsweep.cumulative_sum(line)[part])
    gates, tokens, part = decaying(world, 3000), world.random(3000), world.cut(3000)
    nothing = world.random(3000, 0)
    for strategy in FORCED:
        with forced(strategy):
            result = sharded.linear_recurrence(gates[part], tokens[part])
        close(result, upsweep.linear_recurrence(gates, tokens)[part])
    assert sharded.linear_recurrence(nothing[part], nothing[part], axis=0).shape == nothing[part].shape
    always = world.random(3000, 7, seed=2) > 0.9  # each column has a reset early
    numbers = (world.random(3000, 7) * 100).int()
    with forced("local_with_fixup"):
        result = sharded.cumulative_sum(numbers[part], axis=0, reset=always[part], dtype=torch.int32)
    close(result, upsweep.cumulative_sum(numbers, axis=0, reset=always, dtype=torch.int32)[part])


@check
def what_is_not_finite_does_not_decay(world):
    length = 3000
    part = world.cut(length)
    for bad in (np.inf, np.nan):
        gates, tokens = decaying(world, 5, length).abs(), world.random(5, length)
        tokens[2, 1] = bad  # of the first rank
        expected, last = upsweep.linear_recurrence(gates, tokens, return_final=True)
        with forced("local_with_fixup", then=["pipelined"]):
            result, final = sharded.linear_recurrence(gates[:, part], tokens[:, part], return_final=True)
        close(*(torch.nan_to_num(y, nan=7.0, posinf=8.0) for y in (result, expected[:, part])))
        close(*(torch.nan_to_num(y, nan=7.0, posinf=8.0) for y in (final, last)))
        tokens = world.random(5, length)
        tokens[2, -1] = bad  # of the last rank
        with forced("local_with_fixup"):
            result = sharded.linear_recurrence(gates[:, part], tokens[:, part])
        close(*(torch.nan_to_num(y, nan=7.0, posinf=8.0)
                for y in (result, upsweep.linear_recurrence(gates, tokens)[:, part])))  # fmt: skip


@check
def an_infinite_state_passes_products_that_vanish(world):
    """The product of a shard's gates is 0 in float64, and none of them is."""
    length = 3000
    part = world.cut(length)
    gates, tokens = decaying(world, 5, length).abs(), world.random(5, length)
    tokens[2, 1] = -np.inf
    expected, last = upsweep.linear_recurrence(gates, tokens, return_final=True)
    assert bool((expected[2, 1:] == -np.inf).all())
    with forced("two_pass", then=["pipelined"]):
        result, final = sharded.linear_recurrence(gates[:, part], tokens[:, part], return_final=True)
    close(*(torch.nan_to_num(y, nan=7.0, neginf=8.0) for y in (result, expected[:, part])))
    close(*(torch.nan_to_num(y, nan=7.0, neginf=8.0) for y in (final, last)))


@check
def a_large_state_does_not_decay_early(world):
    """A state of 1 decays within 32 such gates; the state before them does not."""
    steps = 512
    tokens = torch.zeros(2, world.size * steps, dtype=torch.float64, device=world.device)
    tokens[:, steps - 1] = 2.0**990
    gates = torch.full_like(tokens, 2.0**-40)
    part = slice(world.rank * steps, (world.rank + 1) * steps)

    def same(result):
        # A device multiplies gates first; after these steps their product underflows.
        n = 25 if world.device.type == "cuda" else steps
        return torch.equal(result[:, :n], expected[:, part][:, :n])

    with forced("local_with_fixup"):
        shard._PROBE_SHARES = (steps // 32, 2)
        result = sharded.linear_recurrence(gates[:, part], tokens[:, part])
    expected = upsweep.linear_recurrence(gates, tokens)
    assert expected[0, steps + 24] > 0
    assert same(result)
    with forced("local_with_fixup"):
        result = sharded.discounted_cumsum(tokens[:, part], 2.0**-40)
    assert same(result)


@check
def what_is_sent(world):
    """All-gathers go to all ranks, messages to the next one; the processes of a host share memory for metadata."""
    rows, length = 4, 3000
    sent = []
    send, state = dist.isend, communicator.Communicator(None).state

    def recording(gather):
        def recorded(rows, tensor, **keywords):
            sent.append(("all", tensor.numel() * tensor.element_size()))
            return gather(rows, tensor, **keywords)

        return recorded

    def sending(tensor, rank, **keywords):
        sent.append(("next", tensor.numel() * tensor.element_size()))
        return send(tensor, rank, **keywords)

    def bytes_of(strategy, call, group=1 << 40):
        sent.clear()
        with contextlib.ExitStack() as patches:
            for name in ("all_gather", "all_gather_into_tensor"):
                patches.enter_context(mock.patch.object(dist, name, recording(getattr(dist, name))))
            patches.enter_context(mock.patch.object(communicator.Communicator, "transport_epoch", lambda *_: -1))
            patches.enter_context(mock.patch.object(dist, "isend", sending))
            patches.enter_context(forced(strategy, group))
            call()
        return list(sent)

    x, gates = world.random(rows, length), decaying(world, rows, length)
    reset = world.random(rows, length) > 2
    gated, summed = (lambda: sharded.linear_recurrence(gates, x)), (lambda: sharded.cumulative_sum(x))
    assert bytes_of("two_pass", gated) == [("all", 16 * rows)]
    assert bytes_of("two_pass", lambda: sharded.linear_recurrence(gates, x, reset=reset)) == [("all", 24 * rows)]
    assert bytes_of("two_pass", summed) == [("all", 8 * rows)]
    assert bytes_of("two_pass", gated, group=1) == [("all", 8 * rows)] * 2
    message = [("all", 8 * rows)] if world.size > 2 else [("next", 8 * rows)] * (world.rank == 0)
    assert bytes_of("local_with_fixup", gated) == message
    assert bytes_of("pipelined", gated, group=1) == ([("next", 8)] * rows if world.rank + 1 < world.size else [])
    with mock.patch.object(state, "mailbox", None):
        assert bytes_of("two_pass", gated) == [("all", 4096), ("all", 16 * rows)]


@check
def ranks_that_share_no_memory(world):
    x, part = world.random(3, 300), world.cut(300)

    def fails(*_):
        raise PermissionError("no access")

    def on_last_rank(*patch):
        return mock.patch.object(*patch) if world.rank == world.size - 1 else contextlib.nullcontext()

    def run(axis=-1):
        return sharded.cumulative_sum(x[:, part], axis=axis, group=group)

    for patch in (
        mock.patch.object(communicator, "host_identity", lambda: f"host {world.rank}"),
        on_last_rank(communicator, "host_identity", fails),
        on_last_rank(mailbox.Mailbox, "__init__", fails),
        on_last_rank(os, "pread", lambda *_: b"another file"),
    ):  # fmt: skip
        group = dist.new_group(list(range(world.size)))
        with patch, forced("two_pass"):
            close(run(), upsweep.cumulative_sum(x)[:, part])
        state = communicator.Communicator(group).state
        assert state.has_sought_mailbox and state.mailbox is None
        kind, words = (
            (RuntimeError, "rank 0 of the group raised") if world.rank else (np.exceptions.AxisError, "axis 7")
        )
        raises(kind, words, lambda: run(axis=-1 if world.rank else 7))
    assert communicator.Communicator(None).state.mailbox is not None


@check
def a_first_call_that_is_interrupted(world):
    """The rank raises in later calls; the others learn that it has left."""
    group, x = dist.new_group(list(range(world.size))), world.random(8)
    comm, consensus, n_calls = communicator.Communicator, communicator.Communicator.consensus, []

    def interrupted(self, meta):
        all_meta = consensus(self, meta)
        n_calls.append(meta)
        if len(n_calls) == 2:  # the others have a mailbox now
            raise KeyboardInterrupt
        return all_meta

    is_last = world.rank == world.size - 1
    try:
        with mock.patch.object(comm, "consensus", interrupted) if is_last else contextlib.nullcontext():
            sharded.cumulative_sum(x, group=group)
    except KeyboardInterrupt:
        assert is_last
    except RuntimeError as error:
        assert not is_last and "has left the group" in str(error), str(error)
    else:
        raise AssertionError("nothing was raised")
    if is_last:
        raises(RuntimeError, "create the group again", lambda: sharded.cumulative_sum(x, group=group))


@check
def a_rank_that_fails_in_between(world):
    """The others raise after the time-out of the group."""
    if world.device.type == "cuda" or world.size > 2:
        return  # NCCL ends the process, and the wait takes seconds
    for strategy, method in (
        ("pipelined", "scan_rows"),
        ("local_with_fixup", "scan_rows"),
        ("two_pass", "reduce_rows"),
    ):
        group = dist.new_group(list(range(world.size)), timeout=datetime.timedelta(seconds=1))
        begin = time.monotonic()

        def fails(*_, **__):
            raise MemoryError("no more")

        patch = mock.patch.object(shard.Shard, method, fails) if world.rank == 0 else contextlib.nullcontext()
        x, gates = world.random(4, 3000), decaying(world, 4, 3000)
        try:
            with forced(strategy, group=1 if strategy == "pipelined" else 1 << 40), patch:
                sharded.linear_recurrence(gates, x, group=group)
        except MemoryError:
            assert world.rank == 0
        except RuntimeError as error:
            assert world.rank and ("imed out" in str(error) or "closed" in str(error)), str(error)
        else:
            raise AssertionError(f"{strategy}: nothing was raised")
        assert time.monotonic() - begin < TIMEOUT
        dist.barrier()
