"""A scan of what is sharded over ranks: what they tell each other first, and who does it then.

All ranks take the same way (`ways`), chosen from what all know. Of real numbers the first derivative is such a
scan too (`sharded_gradients`); where something else follows a rank's tensors, all look twice, in operations that
it follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from upsweep._backends import cpu
from upsweep._torch import aggregates, executors
from upsweep._torch import scan as torch_scan
from upsweep.distributed import shard_cache
from upsweep.distributed.autograd_collectives import exchange, joined
from upsweep.distributed.communicator import Ranks
from upsweep.distributed.shard import Shard
from upsweep.distributed.shard_cache import Plain
from upsweep.distributed.strategies import Early, Facts, Ways, in_order

__all__ = ["check_same", "scan"]


def scan(
    name: str, prepare: Callable[[Any], Any], *, reverse: bool, initial: Any, exclusive: bool, return_final: bool,
    n_threads: int | None, flush: bool, group: Any, axis: Any = None, plain: Plain | None = None,
) -> Any:  # fmt: skip
    """The scan that `prepare` checks, given the state before it, of this rank's shard and all others'.

    `plain`: the operands, where there are no others than these along `axis`.
    """
    ranks = Ranks(group)
    reverse = bool(reverse)
    facts, error, carry, shard, early = None, None, None, None, None
    try:
        key = shard_cache.key_of(name, plain, axis, reverse, bool(exclusive))
        if key is not None and plain is not None:
            shard = shard_cache.again(key, plain)
        if shard is not None:
            checked, threads, tensors = shard.scan, 0, (shard.scan.x, shard.scan.gates, None, None, None)
        else:
            checked = prepare(initial if ranks.rank == in_order(ranks, reverse)[0] else None)
            threads = 0 if n_threads is None else cpu.check_threads(n_threads)
            tensors = (checked.x, checked.gates, checked.gamma, checked.reset, checked.initial)
            torch_scan.reject_jit_trace()
            torch_scan.reject_forward_ad(tensors)
        if shard is None and torch_scan.needs_dispatcher(tensors):
            facts = _facts(name, checked, ranks, reverse, return_final)
            facts["tracked"] = torch_scan.requires_autograd(tensors)
            facts["plain"] = not exclusive and _is_plain(checked, tensors)
            carry = None if facts["plain"] else _carry_of(checked, reverse, flush, threads)
        else:  # first of all work for the device
            if shard is None:
                shard = Shard(checked, reverse, bool(exclusive), flush, threads)
                if key is not None and plain is not None:
                    shard_cache.keep(key, plain, shard)
            early = Early(shard, ranks)
            facts = _facts(name, checked, ranks, reverse, return_final)
            facts.update(early.facts, untracked=True, plain=not exclusive and _is_plain(checked, tensors))
            facts["wired"] = ranks.wired(shard.out.device)
    except Exception as raised:  # to be raised when the others know of it
        error = raised
    asked = ranks.ask(facts, error)
    if early is not None:
        try:
            early.go_on()
        except Exception:
            asked.wait()  # or what the others say would be taken for an answer to the next question
            raise
    heard = asked.wait()
    check_same(heard, ("scan", "reverse", "state", "dtype", "factors", "exchanged on"))
    if not all(its["untracked"] for its in heard):
        if any(its["tracked"] for its in heard) and all(its["plain"] for its in heard):
            return requires_autograd(name, ranks, checked, heard, reverse, return_final, flush, n_threads)
        carry = carry or _carry_of(checked, reverse, flush, threads)
        return _followed(ranks, checked, carry, heard, reverse, bool(exclusive), return_final, flush, threads)
    assert shard is not None and early is not None
    final = Ways(shard, ranks, heard, early).run()
    if not return_final:
        return shard.out
    dtype = executors.state_dtype(checked.dtype)
    if final is None:
        return shard.out, torch.zeros_like(shard.state(shard.rows), dtype=dtype)
    return shard.out, final.to(dtype, copy=True)  # of what the next calls write again, too


def _facts(name: str, checked: Any, ranks: Ranks, reverse: bool, return_final: bool) -> dict[str, Any]:
    """What the others have to know of this rank's call, before anything is computed."""
    wide = aggregates.wide_dtype(checked.dtype)
    return {
        "scan": name, "reverse": reverse, "state": list(checked.state_shape), "dtype": str(wide),
        "factors": str(aggregates.factor_dtype(checked, wide)), "reset": checked.reset is not None,
        "empty": checked.shape[checked.axis] == 0 and checked.initial is None, "final": bool(return_final),
        "tracked": False, "untracked": False, "exchanged on": ranks.way(checked.x.device).type,
    }  # fmt: skip


def check_same(heard: Facts, names: tuple[str, ...]) -> None:
    """Refuse, on every rank, what is not the same on all."""
    for name in names:
        said = [its[name] for its in heard]
        if any(one != said[0] for one in said):
            differ = ", ".join(f"rank {rank} {one}" for rank, one in enumerate(said))
            raise ValueError(f"shards: the ranks' {name} differ: {differ}")


# ---- differentiated --------------------------------------------------------------------------------------------


def _is_plain(checked: Any, tensors: tuple[Tensor | None, ...]) -> bool:
    """Whether this is a scan of floating numbers, with a step at least, that nothing but autograd follows."""
    return (
        checked.dtype.is_floating_point and checked.real_factor and checked.shape[checked.axis] > 0
        and all(t is None or t is checked.reset or t.is_floating_point() for t in tensors)
        and not torch_scan.is_traced() and all(map(torch_scan.is_plain_tensor, tensors))
    )  # fmt: skip


def requires_autograd(
    name: str, ranks: Ranks, checked: Any, heard: Facts, reverse: bool, return_final: bool, flush: bool,
    n_threads: int | None,
) -> Any:  # fmt: skip
    """What autograd follows as one operation, with scans over ranks forward and backward."""
    from upsweep.distributed import autograd_scan  # which scans over ranks again

    def run(name: str, checked: Any, reverse: bool, with_final: bool) -> Any:
        results = scan(
            name, lambda state: checked, reverse=reverse, initial=None, exclusive=False, return_final=with_final,
            n_threads=n_threads, flush=flush, group=ranks.group,
        )  # fmt: skip
        return results if with_final else (results, None)

    def follow(checked: Any, anchor: Tensor) -> list[Tensor]:
        threads = n_threads or 0
        carry = _carry_of(checked, reverse, flush, threads)
        found = _followed(ranks, checked, carry, heard, reverse, False, with_final, flush, threads, anchor)
        return list(found) if with_final else [found]

    with_final = any(its["final"] for its in heard)
    call = autograd_scan.Call(
        name, checked, ranks, in_order(ranks, reverse), reverse, any(its["reset"] for its in heard), with_final,
        run, follow,
    )  # fmt: skip
    results = autograd_scan.differentiable(call)
    return tuple(results) if return_final else results[0]


# ---- followed --------------------------------------------------------------------------------------------------


def _carry_of(checked: Any, reverse: bool, flush: bool, threads: int) -> aggregates.Parts:
    multiplier, value, dropped = aggregates.reduce(checked, reverse, flush, threads or None)
    if checked.initial is not None:  # what follows is told of it by this rank's value
        value = aggregates.apply(multiplier, value, dropped, checked.initial)
    return multiplier, value, dropped


def _followed(
    ranks: Ranks, checked: Any, carry: aggregates.Parts, heard: Facts, reverse: bool, exclusive: bool,
    return_final: bool, flush: bool, threads: int, anchor: Tensor | None = None,
) -> Any:  # fmt: skip
    """Looks twice, in operations that autograd, the compiler and modes follow."""
    track = any(its["tracked"] for its in heard)
    inputs = (checked.x, checked.gates, checked.gamma, checked.initial, anchor)
    parts, gathered = exchange(ranks, carry, any(its["reset"] for its in heard), track, inputs)
    final = None
    for rank in in_order(ranks, reverse):
        if rank == ranks.rank and checked.initial is None and final is not None:
            checked.initial = final
        if not heard[rank]["empty"]:
            final = parts[rank][1] if final is None else aggregates.apply(*parts[rank], final)
    results = checked.run(None, reverse, exclusive, flush, 0, return_final, threads or None)
    results = list(results) if return_final else [results]
    if return_final:
        results[1] = torch.zeros_like(results[1]) if final is None else final.to(results[1].dtype)
    if track:
        results = joined(results, gathered)
    return tuple(results) if return_final else results[0]
