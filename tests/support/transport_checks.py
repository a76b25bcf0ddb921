"""Checks of each process for scans over peer-to-peer transport, run by `ranks.py`.

Without devices `mapped_memory` stands in for their memory.
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
from upsweep._utils.lru_cache import LRUCache
from upsweep.distributed import communicator, p2p_transport, shard_cache, strategies, streams
from upsweep.distributed import shard as shard_module
from upsweep.distributed.p2p_transport import SymmetricMemoryTransport


@contextlib.contextmanager
def peer_to_peer(world, group=None, **keywords):
    """Devices, pretended where there are none; yields how many channels and all-gathers were peer-to-peer."""
    counts = {"channels": 0, "gathers": 0}

    def counting(name, call):
        def counted(*arguments):
            counts[name] += 1
            return call(*arguments)

        return counted

    patches = contextlib.ExitStack()
    with patches:
        if world.device.type == "cpu":
            patches.enter_context(on_devices(world, sys.argv[4], **keywords))
            patches.callback(communicator.Communicator(group).state.p2p_transports.clear)
        for name, method in (("channels", "open_recv"), ("gathers", "start_all_gather")):
            call = counting(name, getattr(SymmetricMemoryTransport, method))
            patches.enter_context(mock.patch.object(SymmetricMemoryTransport, method, call))
        yield counts


def scans(world, length, dtype=torch.float64):
    x, part = world.random(6, length, dtype=dtype), world.cut(length)
    gates = decaying(world, 6, length, dtype=dtype)
    yield "cumulative_sum", (x,), (x[:, part],)
    yield "linear_recurrence", (gates, x), (gates[:, part], x[:, part])


@check
def every_strategy_goes_peer_to_peer(world):
    length = 3000
    part = world.cut(length)
    with peer_to_peer(world) as counts:
        for strategy in FORCED:
            for dtype, tolerance in ((torch.float64, 1e-12), (torch.complex64, 1e-5), (torch.float32, 1e-5)):
                for name, whole, shards in scans(world, length, dtype):
                    if strategy == "local_with_fixup" and name == "cumulative_sum":
                        continue
                    for keywords in ({}, {"return_final": True}, {"reverse": True, "return_final": True}):
                        before = dict(counts)
                        with forced(strategy):
                            result = getattr(sharded, name)(*shards, **keywords)
                        expected = getattr(upsweep, name)(*whole, **keywords)
                        result, expected = (r if isinstance(r, tuple) else (r,) for r in (result, expected))
                        close(result[0], expected[0][:, part], tolerance)
                        assert len(result) == 1 or torch.allclose(result[1], expected[1], rtol=tolerance)
                        sends = strategy == "pipelined" or (strategy == "local_with_fixup" and world.size == 2)
                        assert (counts["gathers"] > before["gathers"]) == (not sends or len(result) > 1)
                        assert counts["channels"] == before["channels"] or sends
        assert counts["channels"] or part.start == part.stop or not world.rank


@check
def devices_with_messages_only(world):
    length = 3000
    part = world.cut(length)
    messages_only = mock.patch.object(communicator.Communicator, "transport_epoch", lambda *_: -1)
    with peer_to_peer(world) as counts, messages_only:
        for strategy in FORCED:
            for name, whole, shards in scans(world, length):
                if strategy == "local_with_fixup" and name == "cumulative_sum":
                    continue
                for keywords in ({}, {"reverse": True}):
                    with forced(strategy):
                        result, final = getattr(sharded, name)(*shards, return_final=True, **keywords)
                    expected, last = getattr(upsweep, name)(*whole, return_final=True, **keywords)
                    close(result, expected[:, part])
                    close(final, last)
        assert counts == {"channels": 0, "gathers": 0}


@check
def many_calls_of_other_sizes(world):
    """Early and late ranks, any number of rows, both directions; in two calls too many rows for the transport."""
    lags = np.random.default_rng(world.rank).uniform(0, 2e-3, 24)
    with peer_to_peer(world) as counts:
        for call, lag in enumerate(lags):
            rows, length = (1, 3, 300, 40)[call % 4], 60 + call
            x = world.random(length, rows, seed=call)
            if call in (5, 17):  # one number per row does not fit
                x = x.repeat(1, p2p_transport.CAPACITY // 8 // rows + 1)
            part, before = world.cut(length), dict(counts)
            time.sleep(lag)
            with forced("pipelined" if call % 3 else "two_pass", group=100):
                y, final = sharded.cumulative_sum(x[part], axis=0, reverse=call % 2 == 0, return_final=True)
            whole, last = upsweep.cumulative_sum(x, axis=0, reverse=call % 2 == 0, return_final=True)
            close(y, whole[part], 1e-9)
            close(final, last, 1e-9)
            assert (counts == before) == (call in (5, 17))


@check
def results_do_not_change_when_others_are_computed(world):
    x, gates, part = world.random(6, 3000), decaying(world, 6, 3000), world.cut(3000)
    with peer_to_peer(world):
        for strategy in FORCED:
            with forced(strategy):
                results = [
                    sharded.linear_recurrence(gates[:, part], n * x[:, part], return_final=True)
                    for n in range(1, 6)
                ]
            for n, (y, final) in enumerate(results, 1):
                whole, last = upsweep.linear_recurrence(gates, n * x, return_final=True)
                close(y, whole[:, part])
                close(final, last)


@check
def what_is_not_finite_is_sent_peer_to_peer(world):
    length = 3000
    part = world.cut(length)
    gates, tokens = decaying(world, 5, length).abs(), world.random(5, length)
    tokens[2, 1] = np.inf  # of the first rank
    expected = upsweep.linear_recurrence(gates, tokens)[:, part]
    with peer_to_peer(world) as counts:
        for _ in range(3):
            with forced("local_with_fixup", then=["pipelined"]):
                result = sharded.linear_recurrence(gates[:, part], tokens[:, part])
            close(*(torch.nan_to_num(y, nan=7.0, posinf=8.0) for y in (result, expected)))
        receives = bool(world.rank) and part.stop > part.start
        is_pair = world.size == 2  # uses a message instead of an all-gather
        assert counts == {"gathers": 0 if is_pair else 3, "channels": (6 if is_pair else 3) * receives}, counts


@check
def gradients_go_peer_to_peer(world):
    part = slice(100 * world.rank, 100 * world.rank + 100)
    for reverse in (False, True):
        gates, x = (world.random(3, 100 * world.size, seed=seed) for seed in (1, 2))
        whole = [t.clone().requires_grad_() for t in (gates, x)]
        upsweep.linear_recurrence(*whole, reverse=reverse).square().sum().backward()
        shards = [t[:, part].clone().requires_grad_() for t in (gates, x)]
        with peer_to_peer(world) as counts:
            with forced("pipelined", group=100):
                sharded.linear_recurrence(*shards, reverse=reverse).square().sum().backward()
            # A scan in each direction.
            is_inner = 0 < world.rank < world.size - 1
            assert counts["channels"] == 1 + is_inner
        for shard, tensor in zip(shards, whole):
            close(shard.grad, tensor.grad[:, part], 1e-10)


@check
def devices_that_cannot_reach_each_other(world):
    if world.device.type == "cuda":
        return
    x, part = world.random(4, 300), world.cut(300)
    comm = communicator.Communicator(None)
    n_before = comm.state.epoch
    with peer_to_peer(world, reachable=world.rank != world.size - 1) as counts:
        for _ in range(2):
            with forced("pipelined", group=100):
                close(sharded.cumulative_sum(x[:, part]), upsweep.cumulative_sum(x)[:, part])
        transport = comm.describe_transport(world.device)
        expected = f"torch.distributed, as the device of rank {world.size - 1} cannot reach"
        assert transport.startswith(expected), transport
        assert comm.state.epoch == n_before + 1 and counts == {"channels": 0, "gathers": 0}  # tried only once
        comm.state.why_no_p2p = None


@check
def two_groups_at_once(world):
    """Each group has a thread; the ranks do not start with the same group."""
    if world.device.type == "cuda" and "gloo" not in str(dist.get_backend_config()):
        return  # NCCL's kernels of one group may wait for those of another
    groups = [dist.new_group(list(range(world.size))) for _ in range(2)]
    results, part = [[], []], world.cut(300)
    data = [world.random(4, 300, seed=n) for n in range(2)]

    def work(n):
        if world.device.type == "cuda":
            torch.cuda.set_device(world.device)
        for call in range(10):
            time.sleep(1e-3 * ((call + n + world.rank) % 3))
            results[n].append(sharded.cumulative_sum(data[n][:, part], group=groups[n]))

    with peer_to_peer(world) as counts, forced("pipelined", group=100):
        if world.device.type == "cuda":  # else one group would use NCCL, while the other one is set up
            for group in groups:
                sharded.cumulative_sum(data[0][:, part], group=group)
        in_threads(work, 0, 1)
    for x, shards in zip(data, results):
        assert len(shards) == 10
        for y in shards:
            close(y, upsweep.cumulative_sum(x)[:, part])
    assert counts["channels"] or not world.rank or part.start == part.stop


@check
def the_transport_ends_with_its_group(world):
    group = dist.new_group(list(range(world.size)))
    with peer_to_peer(world):
        sharded.cumulative_sum(world.random(3, 50)[:, world.cut(50)], group=group)
        state = communicator.Communicator(group).state
        (transport,) = (weakref.ref(transport) for _, transport in state.p2p_transports.values())
        assert transport().size == world.size
        dist.barrier()
        dist.destroy_process_group(group)
        del group, state
        gc.collect()
        assert transport() is None


@check
def a_rank_that_fails_while_it_sends(world):
    """The others raise after the group's time-out, and the next call ignores the messages of the failed one."""
    if world.device.type == "cuda" or world.size > 2:
        return  # a stream that waits in vain ends the process
    x, gates = world.random(4, 3000), decaying(world, 4, 3000)
    part = world.cut(3000)
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))

    def fails(*_, **__):
        raise MemoryError("no more")

    with peer_to_peer(world):
        for strategy in FORCED:
            with forced(strategy, group=100):
                expected = upsweep.linear_recurrence(gates, x)[:, part]
                close(sharded.linear_recurrence(gates[:, part], x[:, part], group=group), expected)
                n_before = communicator.Communicator(group).state.epoch
                failure = mock.patch.object(SymmetricMemoryTransport, "start_all_gather", fails)
                if strategy in ("pipelined", "local_with_fixup"):
                    failure = mock.patch.object(p2p_transport._P2PChannel, "send", fails)
                with failure if world.rank == 0 else contextlib.nullcontext():
                    try:
                        sharded.linear_recurrence(gates[:, part], x[:, part], group=group)
                    except MemoryError:
                        assert world.rank == 0
                        time.sleep(0.7)  # else the time-outs of the two ranks would race
                    except RuntimeError as error:
                        assert world.rank and "timed out" in str(error), str(error)
                    else:
                        raise AssertionError(f"{strategy}: nothing was raised")
                close(sharded.linear_recurrence(gates[:, part], x[:, part], group=group), expected)
                assert communicator.Communicator(group).state.epoch == n_before + 1


@contextlib.contextmanager
def host_calls():
    """The list of the scans, messages and waits of the host, in order."""
    calls = []

    def record(owner, name, describe):
        call = getattr(owner, name)

        def recorded(*arguments, **keywords):
            calls.append(describe(*arguments))
            return call(*arguments, **keywords)

        return mock.patch.object(owner, name, recorded)

    start_copy = streams.start_copy_to_host

    def start_recorded_copy(tensor):
        calls.append("copy")
        wait = start_copy(tensor)
        return lambda: calls.append("wait") or wait()

    with contextlib.ExitStack() as patches:
        for patch in (
            record(shard_module.Shard, "scan_rows", lambda shard, rows, *_: ("scan", rows.begin)),
            record(p2p_transport._P2PChannel, "send", lambda *_: "send"),
            record(p2p_transport._P2PChannel, "recv", lambda *_: "recv"),
            record(SymmetricMemoryTransport, "start_all_gather", lambda *_: "gather"),
            record(communicator.PendingConsensus, "wait", lambda *_: "consensus"),
            mock.patch.object(streams, "start_copy_to_host", start_recorded_copy),
        ):
            patches.enter_context(patch)
        yield calls


@contextlib.contextmanager
def unless_decayed(strategy, max_serial_rows):
    """Peer-to-peer scans of 8 x 3,000 steps by this strategy unless their gates decay, without a history."""
    with contextlib.ExitStack() as patches:
        for module, name, value in (
            (strategies, "_MAX_SERIAL_ROWS", max_serial_rows),
            (strategies, "_two_pass_cost", lambda *_: FORCED[strategy][0]),
            (strategies, "_decay_history", LRUCache(64)),
            (shard_module, "_MIN_PROBED_ELEMENTS", 1), (shard_module, "_PROBE_SHARES", (8, 2)),
            (shard_module, "_GROUP_ELEMENTS", dict.fromkeys(shard_module._GROUP_ELEMENTS, 6000)),
            (shard_cache, "_shards", LRUCache(64)),
        ):  # fmt: skip
            patches.enter_context(mock.patch.object(module, name, value))
        yield


@check
def a_device_has_work_before_the_host_waits(world):
    part = slice(3000 * world.rank, 3000 * world.rank + 3000)
    gates, x = world.random(8, 3000 * world.size).mul(0.002), world.random(8, 3000 * world.size)

    def run_sum():
        return sharded.cumulative_sum(x[:, part])

    def run_gated():
        return sharded.linear_recurrence(gates[:, part], x[:, part])

    with peer_to_peer(world):
        run_sum()  # sets up the transport
        with forced("pipelined", group=6000), host_calls() as calls:
            run_sum()
        expected = []
        for row in (0, 2, 4, 6):
            expected += [*["recv"] * (world.rank > 0), ("scan", row), *["send"] * (world.rank + 1 < world.size)]
        # The first rank starts before the consensus; the others do not wait for a state on the host.
        expected.insert(0 if world.rank else 1, "consensus")
        assert calls == expected, calls
        scan, probe = [("scan", 0)], ["copy", "wait"]
        fixup = scan if world.rank else []
        for call, probes in ((lambda: sharded.discounted_cumsum(x[:, part], 0.1), []), (run_gated, probe)):
            with forced("local_with_fixup", group=6000), host_calls() as calls:
                call()
            # The host waits for the probe of the gates, and at the end for the check of infinities.
            message = "gather" if world.size > 2 else "recv" if world.rank else "send"
            assert calls == [*probes, *scan, "consensus", message, "copy", *fixup, "wait"], calls
        keeping = gates.mul(500).abs().add(0.5)
        # Gates that decayed twice are assumed to decay again, and the other way round. The host then waits for the
        # probe when the device has all its work; a wrong guess is scanned again. The probe runs next to the scan,
        # unless there are few rows; then it runs before the scan.
        fixed = [message, "copy", *fixup]
        passes = ["gather", "gather", "copy", ("scan", 0), "copy", ("scan", 4)]
        end = {"decays": fixed, "keeps": passes}
        kinds = {"decays": gates, "keeps": keeping}
        for max_serial_rows in (0, 8):
            with unless_decayed("two_pass", max_serial_rows):
                for assumed, kind in (
                    (None, "decays"), (None, "decays"), ("decays", "decays"), ("decays", "keeps"),
                    (None, "keeps"), ("keeps", "keeps"), ("keeps", "decays"),
                ):  # fmt: skip
                    with host_calls() as calls:
                        result = sharded.linear_recurrence(kinds[kind][:, part], x[:, part])
                    close(result, upsweep.linear_recurrence(kinds[kind], x)[:, part], 1e-9)
                    start = scan if (assumed or kind) == "decays" else []
                    if assumed is None:
                        expected = [*probe, *start, "consensus", *end[kind]]
                    elif max_serial_rows:
                        expected = ["copy", *start, "consensus", *end[assumed], "wait", "consensus"]
                    else:
                        expected = [*start, "copy", "consensus", *end[assumed], "wait", "consensus"]
                    if assumed not in (None, kind):
                        expected += [*(scan if kind == "decays" else []), *end[kind]]
                    n_waits = 1 if kind == "decays" else 2
                    assert calls == [*expected, *["wait"] * n_waits], (assumed, kind, calls, expected)
        with forced("two_pass"), host_calls() as calls:
            run_sum()
        assert calls == ["consensus", "gather", "gather", ("scan", 0), ("scan", 4)], calls


def gates_of_kinds(world, kinds):
    """Factors of 8 rows, 3,000 steps a rank; those of a rank whose kind is "k" keep the state."""
    gates = world.random(8, 3000 * world.size).mul(0.002)
    for rank, kind in enumerate(kinds[: world.size]):
        if kind == "k":
            shard = gates[:, 3000 * rank : 3000 * rank + 3000]
            shard.mul_(500).abs_().add_(0.5)
    return gates


@check
def a_wrong_guess_of_some_ranks_changes_no_bit(world):
    x, part = world.random(8, 3000 * world.size), slice(3000 * world.rank, 3000 * world.rank + 3000)
    with peer_to_peer(world):
        for order in ("two_pass", "pipelined"):
            for serial_rows in (0, 8):
                alone, history = {}, {}
                for kinds in ("ddd", "kdd", "dkd", "ddk", "kkk"):
                    with unless_decayed(order, serial_rows):
                        alone[kinds] = sharded.linear_recurrence(gates_of_kinds(world, kinds)[:, part], x[:, part])
                        (history[kinds],) = strategies._decay_history._entries.values()
                    expected = upsweep.linear_recurrence(gates_of_kinds(world, kinds), x)[:, part]
                    close(alone[kinds], expected, 1e-9)
                    assert len(history[kinds]) == 1  # one measurement a call
                with unless_decayed(order, serial_rows):
                    for kinds in (
                        "ddd", "ddd", "kdd", "ddd", "ddd", "dkd", "kkk", "kkk", "ddk", "kkk", "kkk", "ddd",
                    ):  # fmt: skip
                        result = sharded.linear_recurrence(gates_of_kinds(world, kinds)[:, part], x[:, part])
                        assert torch.equal(result, alone[kinds]), (order, serial_rows, kinds)
                        (entries,) = strategies._decay_history._entries.values()
                        assert entries[-1] == history[kinds][0]


@check
def a_rank_that_fails_after_an_assumption(world):
    """All ranks raise, and the next call is right."""
    x, part = world.random(8, 3000 * world.size), slice(3000 * world.rank, 3000 * world.rank + 3000)
    gates = gates_of_kinds(world, "ddd")

    def run():
        return sharded.linear_recurrence(gates[:, part], x[:, part])

    def fails(*_):
        raise MemoryError("no more")

    run_chosen = strategies.DistributedScan._run_chosen
    expected = upsweep.linear_recurrence(gates, x)[:, part]
    error = (
        (MemoryError, "no more") if world.rank == 0 else (RuntimeError, "rank 0 of the group raised MemoryError")
    )
    for owner, name, replacement in (
        (shard_module.Shard, "start_decay_probe", fails),
        (strategies.DistributedScan, "_run_chosen", lambda *arguments: fails(run_chosen(*arguments))),
    ):
        with peer_to_peer(world), unless_decayed("two_pass", 0):
            run(), run()
            is_patched = world.rank == 0
            with mock.patch.object(owner, name, replacement) if is_patched else contextlib.nullcontext():
                raises(*error, run)
            close(run(), expected, 1e-9)


@check
def a_default_device_changes_nothing(world):
    x, part = world.random(3, 300), world.cut(300)
    expected = upsweep.cumulative_sum(x)[:, part]
    with torch.device("meta"):
        close(sharded.cumulative_sum(x[:, part]), expected)


@check
def validated_shards_are_cached(world):
    """A call with the layout of an earlier one is not checked again; any other call is."""
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
        shards = [t[:, part].clone() if isinstance(t, torch.Tensor) else t for t in (x, *factors)]
        order = -1 if name == "linear_recurrence" else 1  # gates first
        expected = getattr(upsweep, name)(*[x, *factors][::order], **keywords)
        close(getattr(sharded, name)(*shards[::order], **keywords), expected[:, part], 1e-5)

    with peer_to_peer(world), mock.patch.object(shard_cache, "_shards", LRUCache(64)) as cached:
        for n in (1, 2, 3):
            for name, factors, keywords in calls:
                compare(name, n * x, factors, keywords)
        assert len(cached) == len(calls)
        compare("cumulative_sum", x.double(), (), {})
        compare("cumulative_sum", x, (), {"reset": None, "axis": 1})
        compare("linear_recurrence", x, (gates.double().float().mT.contiguous().mT,), {})
        assert len(cached) == len(calls) + 3
        # Not cached: an initial state, integers, gradients.
        compare("cumulative_sum", x, (), {"initial": torch.ones(4, device=world.device)})
        compare("cumulative_sum", (100 * x).long(), (), {})
        leaf = x[:, part].clone().requires_grad_()
        sharded.cumulative_sum(leaf).sum().backward()
        assert leaf.grad is not None and len(cached) == len(calls) + 3
        raises(ValueError, "shapes do not broadcast",
               lambda: sharded.linear_recurrence(gates[:, :7], x[:, part]))  # fmt: skip
        compare("cumulative_sum", x, (), {})
