"""A scan of what is sharded over ranks: three ways, and how one of them is chosen.

    forget       Where the state before a shard is forgotten soon, each rank scans its shard from nothing, tells
                 the state after it, and scans the steps before that again, from what it hears. One pass and a
                 little, one number a row to all.
    relay        Rows in groups. A rank scans a group from the state that it takes over, and hands the next state
                 on while it scans the next group. One pass, and the time of a group for each rank before it; one
                 number a row to the next rank.
    look twice   Each finds what its shard does to a state, tells that, and scans from the state that follows: rows
                 in two groups, so that one is told while the other is looked at or scanned. For few rows or many
                 ranks. Two passes, two numbers a row to all: one for a sum, one more with resets.

All ranks take the same way, chosen from what all know. In each, a step is scanned from the true state before the
shard, in the precision that scans compute in, or from nothing where nothing of that state is left. Of real numbers
the first derivative is such a scan too (`sharded_gradients`); where something else follows a rank's tensors, all
look twice, in operations that it follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from upsweep import _cpu
from upsweep._torch import backends, carries, scans
from upsweep._torch.exchange import Gathering, Ranks, joined
from upsweep._torch.shards import Rows, Shard

__all__ = ["check_same", "scan"]

Facts = list[dict[str, Any]]

# What looking twice takes, in passes: 12 bytes an element where the scan has 8, for gates 20 where it has 12. On a
# device the product of gates takes a pass of its own over them.
_TWICE = {("sum", "cpu"): 1.5, ("sum", "cuda"): 1.5, ("gates", "cpu"): 1.7, ("gates", "cuda"): 2.3}
_EARLY = 4  # one in so many groups is filled on a device before anything is known
_MESSAGES = 0.1  # of the time that two passes would take: what groups cost more than passes


def scan(
    name: str, prepare: Callable[[Any], Any], *, reverse: bool, initial: Any, exclusive: bool, return_final: bool,
    n_threads: int | None, flush: bool, group: Any,
) -> Any:  # fmt: skip
    """The scan that `prepare` checks, given the state before it, of this rank's shard and all others'."""
    ranks = Ranks(group)
    reverse = bool(reverse)
    state = initial if ranks.rank == _in_order(ranks, reverse)[0] else None
    facts, error, carry, shard, early = None, None, None, None, None
    try:
        checked = prepare(state)
        threads = 0 if n_threads is None else _cpu.check_threads(n_threads)
        tensors = (checked.x, checked.gates, checked.gamma, checked.reset, checked.initial)
        scans._refuse_trace()
        scans._refuse_tangents(tensors)
        facts = _facts(name, checked, ranks, reverse, return_final)
        facts["plain"] = not exclusive and _is_plain(checked, tensors)
        if scans._needs_operation(tensors):
            facts["tracked"] = scans._differentiated(tensors)
            carry = None if facts["plain"] else _carry_of(checked, reverse, flush, threads)
        else:
            shard = Shard(checked, reverse, bool(exclusive), flush, threads)
            early = _Early(shard, facts, ranks)
    except Exception as raised:  # to be raised when the others know of it
        error = raised
    asked = ranks.ask(facts, error)
    if early is not None:
        early.go_on()
    heard = asked.wait()
    check_same(heard, ("scan", "reverse", "state", "dtype", "factors", "exchanged on"))
    if not all(its["untracked"] for its in heard):
        if any(its["tracked"] for its in heard) and all(its["plain"] for its in heard):
            return _differentiated(name, ranks, checked, heard, reverse, return_final, flush, n_threads)
        carry = carry or _carry_of(checked, reverse, flush, threads)
        return _followed(ranks, checked, carry, heard, reverse, bool(exclusive), return_final, flush, threads)
    assert shard is not None and early is not None
    chain = [rank for rank in _in_order(ranks, reverse) if not heard[rank]["empty"]]
    way = _Ways(shard, ranks, heard, chain, early, any(its["final"] for its in heard))
    final = way.run()
    if not return_final:
        return shard.out
    dtype = backends.state_dtype(checked.dtype)
    return shard.out, torch.zeros_like(shard.state(shard.rows), dtype=dtype) if final is None else final.to(dtype)


def _facts(name: str, checked: Any, ranks: Ranks, reverse: bool, return_final: bool) -> dict[str, Any]:
    """What the others have to know of this rank's call, before anything is computed."""
    wide = carries.wide_dtype(checked.dtype)
    return {
        "scan": name, "reverse": reverse, "state": list(checked.state_shape), "dtype": str(wide),
        "factors": str(carries.factor_dtype(checked, wide)), "reset": checked.reset is not None,
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


def _in_order(ranks: Ranks, reverse: bool) -> range:
    return range(ranks.size)[:: -1 if reverse else 1]


# ---- the choice ------------------------------------------------------------------------------------------------


def _forgets(its: dict[str, Any]) -> bool:
    return its["steps"] is not None


def _choose(heard: Facts) -> str:
    """The way for these ranks, in the order of the scan."""
    if all(map(_forgets, heard[1:])):
        return "forget"
    n_groups = max(its["groups"] for its in heard)
    relay, twice = (n_groups + len(heard) - 1) / n_groups, max(its["twice"] for its in heard)
    return "relay" if relay + _MESSAGES * twice < twice else "look twice"


class _Early:
    """What a rank does before it knows of the others: what is needed if they are as it is itself.

    It fills some rows before anything is waited for, so that a device is not idle meanwhile.
    """

    def __init__(self, shard: Shard, facts: dict[str, Any], ranks: Ranks):
        self.shard = shard
        self.rows: Rows | None = None  # that are filled, or reduced
        self.value: Tensor | None = None  # the state after them
        self.carry: carries.Parts | None = None
        n_groups = shard.most_groups()
        look = shard.start_look()
        if shard.out.is_cuda and n_groups > 1:
            self._fill(Rows(0, shard.groups(n_groups)[max(1, n_groups // _EARLY) - 1].end))
        facts.update(steps=look.wait(), groups=n_groups, untracked=True)
        facts["twice"] = _TWICE["sum" if shard.scan.gates is None else "gates", shard.out.device.type]
        self._way = None if facts["empty"] else _choose([facts] * ranks.size)
        order = _in_order(ranks, shard.reverse)
        self._begins, self._ends = ranks.rank == order[0], ranks.rank == order[-1]

    def _fill(self, rows: Rows) -> None:
        self.rows, self.value = rows, self.shard.fill(rows, self.shard.initial(rows))

    def go_on(self) -> None:
        """What can be done while the others are asked."""
        shard = self.shard
        if self._way == "look twice":
            self.rows, self.value = shard.groups(min(2, shard.most_groups()))[0], None
            if not self._ends:  # which has nobody to tell, unless one wants the last state of all
                self.carry = _told(shard, self.rows, self._begins)
        elif self._way == "forget" and self.value is None:
            self._fill(shard.rows)
        elif self._way == "forget" and self.rows is not None:
            rest = Rows(self.rows.end, shard.n_rows)
            value = shard.fill(rest, shard.initial(rest))
            self.rows, self.value = shard.rows, shard.joined([self.value, value])
        elif self._way == "relay" and self._begins and self.value is None:
            self._fill(shard.groups(shard.most_groups())[0])

    def filled(self, rows: Rows) -> Tensor | None:
        """The state after these rows, if they are filled, from nothing or from the state that the caller gave."""
        if self.rows is None or self.value is None or rows.end > self.rows.end:
            return None
        return self.shard.of_state(self.value, rows)


# ---- the ways --------------------------------------------------------------------------------------------------


class _Ways:
    """A scan of which this rank holds a shard; `chain`: the ranks in its order, but those without steps."""

    def __init__(
        self, shard: Shard, ranks: Ranks, heard: Facts, chain: list[int], early: _Early, wants_final: bool
    ):  # fmt: skip
        self.shard, self.ranks, self.heard, self.chain, self.early = shard, ranks, heard, chain, early
        self.wants_final = wants_final
        self.place = chain.index(ranks.rank) if ranks.rank in chain else None

    def run(self) -> Tensor | None:
        """Fill the result; returns the state after the last step of all, if a rank wants it."""
        if not self.chain:
            return None
        way = _choose([self.heard[rank] for rank in self.chain])
        return {"forget": self.forget, "relay": self.relay, "look twice": self.look_twice}[way]()

    def forget(self) -> Tensor | None:
        shard, place = self.shard, self.place
        if place is None:
            value = shard.state(shard.rows).zero_()
        else:
            filled = self.early.filled(shard.rows)
            value = shard.fill(shard.rows, shard.initial(shard.rows)) if filled is None else filled
        if len(self.chain) == 1 and not self.wants_final:
            return None
        values = self.ranks.gather(value)
        if place:
            steps: int = self.heard[self.ranks.rank]["steps"]
            shard.fill(shard.rows, values[self.chain[place - 1]], steps)
        # What is not finite is never forgotten, but goes from rank to rank as it goes from step to step.
        finite = torch.isfinite(values).reshape(len(values), value.numel()).all(1).tolist()
        if not all(finite[rank] for rank in self.chain[:-1]):
            return self.relay()
        return values[self.chain[-1]]

    def relay(self) -> Tensor | None:
        shard, ranks, place = self.shard, self.ranks, self.place
        groups = shard.groups(max(self.heard[rank]["groups"] for rank in self.chain))
        left: list[Tensor] = []
        if place is not None:
            before = self.chain[place - 1] if place else None
            coming = [None if before is None else ranks.take_over(shard.state(rows), before) for rows in groups]
            going = []
            for rows, message in zip(groups, coming):
                filled = self.early.filled(rows) if message is None else None
                if filled is None:
                    filled = shard.fill(rows, shard.initial(rows) if message is None else message.wait())
                if place + 1 < len(self.chain):
                    going.append(ranks.hand_on(filled, self.chain[place + 1]))
                left.append(filled)
            for message in going:
                message.wait()
        if not self.wants_final:
            return None
        return ranks.gather(shard.joined(left) if left else shard.state(shard.rows).zero_())[self.chain[-1]]

    def look_twice(self) -> Tensor | None:
        shard, place, chain = self.shard, self.place, self.chain
        its = [self.heard[rank] for rank in chain]
        groups = shard.groups(min(2, max(one["groups"] for one in its)))
        packing = _Packing(shard, its[0]["scan"] == "cumulative_sum", any(one["reset"] for one in its))
        told: list[Gathering] = []
        for rows in groups:
            if place is None or (place == len(chain) - 1 and not self.wants_final):
                parts = _nothing(shard, rows)
            elif rows == self.early.rows and self.early.carry is not None:
                parts = self.early.carry
            else:
                parts = _told(shard, rows, place == 0)
            told.append(self.ranks.start_gather(packing.pack(parts)))
        finals = []
        for rows, gathering in zip(groups, told):
            told_by = gathering.wait()
            states = packing.states(torch.stack([told_by[rank] for rank in chain]), rows)
            finals.append(states[-1])
            if place is not None:
                shard.fill(rows, states[place - 1] if place else shard.initial(rows))
        return shard.joined(finals)


def _told(shard: Shard, rows: Rows, begins: bool) -> carries.Parts:
    """What the others have to know of these rows of a shard; of the first shard, the state after them."""
    if not begins:
        return shard.reduce(rows)
    factors, _, dropped = _nothing(shard, rows)
    return factors, shard.leave(rows, shard.initial(rows)), dropped


def _nothing(shard: Shard, rows: Rows) -> carries.Parts:
    value = shard.state(rows).zero_()
    factors = torch.ones_like(value, dtype=carries.factor_dtype(shard.scan, shard.wide))
    return factors, value, torch.zeros_like(value, dtype=torch.bool)


class _Packing:
    """Carries as what is sent: the values; the multipliers, if not all are 1; what was reset, if anything was."""

    def __init__(self, shard: Shard, adds: bool, with_reset: bool):
        self.shard, self.with_reset = shard, with_reset
        self.factors = None if adds else carries.factor_dtype(shard.scan, shard.wide)

    def pack(self, carry: carries.Parts) -> Tensor:
        multiplier, value, dropped = carry
        parts = [value] if self.factors is None else [value, multiplier]
        parts = [torch.view_as_real(part) if part.is_complex() else part for part in parts]
        if self.with_reset:
            parts.append(dropped.to(parts[0].dtype))
        return torch.cat([part.reshape(-1) for part in parts])

    def states(self, packed: Tensor, rows: Rows) -> Tensor:
        """The states after each of the ranks."""
        like = self.shard.state(rows)
        dtypes = [like.dtype] if self.factors is None else [like.dtype, self.factors]
        sizes = [like.numel() * (2 if dtype.is_complex else 1) for dtype in dtypes]
        pieces = packed.split([*sizes, *([like.numel()] if self.with_reset else [])], dim=1)
        found = []
        for piece, dtype in zip(pieces, dtypes):
            if dtype.is_complex:
                found.append(torch.view_as_complex(piece.reshape(len(packed), *like.shape, 2).contiguous()))
            else:
                found.append(piece.reshape(len(packed), *like.shape))
        flags = pieces[-1].reshape(len(packed), *like.shape) != 0 if self.with_reset else None
        states = torch.empty_like(found[0])
        with torch.no_grad():
            backends.run(
                found[0], found[1] if len(found) > 1 else None, 1.0, None, flags, states, None, axis=0,
                reverse=False, exclusive=False, flush=False,
            )  # fmt: skip
        return states


# ---- differentiated --------------------------------------------------------------------------------------------


def _is_plain(checked: Any, tensors: tuple[Tensor | None, ...]) -> bool:
    """Whether this is a scan of floating numbers, with a step at least, that nothing but autograd follows."""
    return (
        checked.dtype.is_floating_point and checked.real_factor and checked.shape[checked.axis] > 0
        and all(t is None or t is checked.reset or t.is_floating_point() for t in tensors)
        and not scans._watched() and all(map(scans._is_exact, tensors))
    )  # fmt: skip


def _differentiated(
    name: str, ranks: Ranks, checked: Any, heard: Facts, reverse: bool, return_final: bool, flush: bool,
    n_threads: int | None,
) -> Any:  # fmt: skip
    """What autograd follows as one operation, with scans over ranks forward and backward."""
    from upsweep._torch import sharded_gradients  # which scans over ranks again

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
    call = sharded_gradients.Call(
        name, checked, ranks, _in_order(ranks, reverse), reverse, any(its["reset"] for its in heard), with_final,
        run, follow,
    )  # fmt: skip
    results = sharded_gradients.differentiable(call)
    return tuple(results) if return_final else results[0]


# ---- followed --------------------------------------------------------------------------------------------------


def _carry_of(checked: Any, reverse: bool, flush: bool, threads: int) -> carries.Parts:
    multiplier, value, dropped = carries.reduce(checked, reverse, flush, threads or None)
    if checked.initial is not None:  # what follows is told of it by this rank's value
        value = carries.apply(multiplier, value, dropped, checked.initial)
    return multiplier, value, dropped


def _followed(
    ranks: Ranks, checked: Any, carry: carries.Parts, heard: Facts, reverse: bool, exclusive: bool,
    return_final: bool, flush: bool, threads: int, anchor: Tensor | None = None,
) -> Any:  # fmt: skip
    """Looks twice, in operations that autograd, the compiler and modes follow."""
    track = any(its["tracked"] for its in heard)
    inputs = (checked.x, checked.gates, checked.gamma, checked.initial, anchor)
    parts, gathered = ranks.exchange(carry, any(its["reset"] for its in heard), track, inputs)
    final = None
    for rank in _in_order(ranks, reverse):
        if rank == ranks.rank and checked.initial is None and final is not None:
            checked.initial = final
        if not heard[rank]["empty"]:
            final = parts[rank][1] if final is None else carries.apply(*parts[rank], final)
    results = checked.run(None, reverse, exclusive, flush, 0, return_final, threads or None)
    results = list(results) if return_final else [results]
    if return_final:
        results[1] = torch.zeros_like(results[1]) if final is None else final.to(results[1].dtype)
    if track:
        results = joined(results, gathered)
    return tuple(results) if return_final else results[0]
