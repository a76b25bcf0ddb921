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

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from upsweep import _cpu
from upsweep._torch import backends, carries, scans
from upsweep._torch.exchange import Gathering, Message, Ranks, are_finite, as_real, joined, mark, runs_behind
from upsweep._torch.shards import Rows, Shard

__all__ = ["check_same", "scan"]

Facts = list[dict[str, Any]]

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
        if scans._needs_operation(tensors):
            facts = _facts(name, checked, ranks, reverse, return_final)
            facts["tracked"] = scans._differentiated(tensors)
            facts["plain"] = not exclusive and _is_plain(checked, tensors)
            carry = None if facts["plain"] else _carry_of(checked, reverse, flush, threads)
        else:  # first of all work for the device
            shard = Shard(checked, reverse, bool(exclusive), flush, threads)
            early = _Early(shard, ranks)
            facts = _facts(name, checked, ranks, reverse, return_final)
            facts.update(early.facts, untracked=True, plain=not exclusive and _is_plain(checked, tensors))
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
    relay, twice = (n_groups + len(heard) - 1) / n_groups, max(its["twice"][len(heard) > 2] for its in heard)
    return "relay" if relay + _MESSAGES * twice < twice else "look twice"


@dataclass(frozen=True)
class _Filled:
    """Rows of the result that are filled, or are going to be, and the state after them."""

    rows: Rows
    state: Tensor
    done: Any  # a `mark` behind it


def _twice(has_gates: bool, on_device: bool) -> list[float]:
    """What looking twice takes of two ranks and of more, in passes.

    12 bytes an element where the scan has 8, for gates 20 where it has 12. On a device the product of gates takes
    a pass of its own over them, which of two ranks none has to know.
    """
    if not has_gates:
        return [1.5, 1.5]
    return [1.7, 2.3 if on_device else 1.7]


class _Early:
    """What a rank does before it knows of the others: what is needed if they are as it is itself.

    A device is given work before anything is waited for: some rows where it has to be looked at the factors or
    where this rank is the first, all of them where a state is forgotten.
    """

    def __init__(self, shard: Shard, ranks: Ranks):
        self.shard = shard
        self.rows: Rows | None = None  # that are told of
        self.told: carries.Parts | Tensor | None = None
        self._filled: list[_Filled] = []  # one after the other, from the first row on
        order = _in_order(ranks, shard.reverse)
        self._begins, self._ends = ranks.rank == order[0], ranks.rank == order[-1]
        self.on_device, n_groups = runs_behind(shard.out.device), shard.most_groups()
        self._groups = shard.groups(n_groups)
        given = mark(shard.out.device) if shard.has_to_look else None
        if self.on_device and n_groups > 1 and shard.has_to_look:
            self._fill(self._groups[0])
        look = shard.start_look(given)
        twice = _twice(shard.scan.gates is not None, shard.out.is_cuda)
        self.facts = {"steps": look.wait(), "groups": n_groups, "twice": twice}
        empty = not shard.length and shard.scan.initial is None
        self._way = None if empty else _choose([self.facts] * ranks.size)
        if self.on_device:
            self._start()

    def _fill(self, rows: Rows) -> None:
        self._filled.append(_fill(self.shard, rows, self.shard.initial(rows)))

    def _start(self) -> None:
        shard, n_filled = self.shard, self._filled[-1].rows.end if self._filled else 0
        if self._way == "look twice":
            self.rows = shard.groups(min(2, len(self._groups)))[0]
            if not self._ends:  # which has nobody to tell, unless one wants the last state of all
                self.told = _told(shard, self.rows, self if self._begins else None)
        elif self._way == "forget" and n_filled < max(1, shard.n_rows):
            self._fill(Rows(n_filled, shard.n_rows))
        elif self._way == "relay" and self._begins and not n_filled:
            self._fill(self._groups[0])

    def go_on(self) -> None:
        """What can be done while the others are asked."""
        if not self.on_device:
            self._start()

    def filled(self, rows: Rows) -> _Filled | None:
        """These rows, if they are filled, from nothing or from the state that the caller gave."""
        if not self._filled or rows.end > self._filled[-1].rows.end:
            return None
        for one in self._filled:
            if one.rows == rows:
                return one
        state = self.shard.of_state(self.shard.joined([one.state for one in self._filled]), rows)
        return _Filled(rows, state, mark(state.device))


def _fill(shard: Shard, rows: Rows, initial: Tensor | None) -> _Filled:
    state = shard.fill(rows, initial)
    return _Filled(rows, state, mark(state.device))


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

    def _first(self, rows: Rows) -> _Filled:
        """These rows from the state that the caller gave, or from nothing."""
        return self.early.filled(rows) or _fill(self.shard, rows, self.shard.initial(rows))

    def forget(self) -> Tensor | None:
        shard, place = self.shard, self.place
        value = shard.state(shard.rows).zero_() if place is None else self._first(shard.rows).state
        if len(self.chain) == 1 and not self.wants_final:
            return None
        values = self.ranks.gather(value)
        finite = are_finite(values)  # which is found out while a device goes on
        if place:
            steps: int = self.heard[self.ranks.rank]["steps"]
            shard.fill(shard.rows, values[self.chain[place - 1]], steps)
        # What is not finite is never forgotten, but goes from rank to rank as it goes from step to step.
        each = finite()
        if not all(each[rank] for rank in self.chain[:-1]):
            return self.relay()
        return values[self.chain[-1]]

    def relay(self) -> Tensor | None:
        shard, ranks, place = self.shard, self.ranks, self.place
        groups = shard.groups(max(self.heard[rank]["groups"] for rank in self.chain))
        left: list[Tensor] = []
        if place is not None:
            coming = self._coming(groups, self.chain[place - 1]) if place else repeat(None)
            going = []
            for rows, message in zip(groups, coming):
                filled = self._first(rows) if message is None else _fill(shard, rows, message.wait())
                if place + 1 < len(self.chain):
                    going.append(ranks.hand_on(filled.state, self.chain[place + 1], filled.done))
                    if self.early.on_device:
                        # What sends runs on the device too, and there it would begin when the next rows are
                        # through: they wait for it, for some microseconds.
                        going.pop().wait()
                left.append(filled.state)
            for sent in going:
                sent.wait()
        if not self.wants_final:
            return None
        return ranks.gather(shard.joined(left) if left else shard.state(shard.rows).zero_())[self.chain[-1]]

    def _coming(self, groups: list[Rows], before: int) -> Iterable[Message]:
        """The states that the rank before hands on: all at once, where the host has nothing better to do."""
        shard = self.shard
        messages = (
            self.ranks.take_over(shard.state_shape(rows), shard.wide, shard.out.device, before) for rows in groups
        )
        return messages if self.early.on_device else list(messages)

    def look_twice(self) -> Tensor | None:
        shard, place, chain = self.shard, self.place, self.chain
        its = [self.heard[rank] for rank in chain]
        groups = shard.groups(min(2, max(one["groups"] for one in its)))
        packing = _Packing(shard, its[0]["scan"] == "cumulative_sum", any(one["reset"] for one in its))
        # A rank needs the states after those before it; all need the last one, if any wants it.
        n_states = len(chain) if self.wants_final else place or 0
        told: list[Gathering] = []
        for rows in groups:
            parts: carries.Parts | Tensor | None = None
            if place is not None and (place < len(chain) - 1 or self.wants_final):
                is_known = rows == self.early.rows and self.early.told is not None
                parts = self.early.told if is_known else _told(shard, rows, None if place else self.early)
            told.append(self.ranks.start_gather(packing.pack(parts, rows)))
        finals = []
        for rows, gathering in zip(groups, told):
            told_by = gathering.wait()
            states = packing.states([told_by[rank] for rank in chain[:n_states]], rows)
            finals += states[-1:]
            if place:
                shard.fill(rows, states[place - 1])
            elif place == 0:
                self._first(rows)
        return shard.joined(finals) if self.wants_final else None


def _told(shard: Shard, rows: Rows, early: _Early | None) -> carries.Parts | Tensor:
    """What the others have to know of these rows of a shard; of the first shard, the state after them.

    `early`: what the first rank has filled.
    """
    if early is None:
        return shard.reduce(rows)
    filled = early.filled(rows)
    return shard.leave(rows, shard.initial(rows)) if filled is None else filled.state


class _Packing:
    """Carries as what is sent: the values; the multipliers, if not all are 1; what was reset, if anything was."""

    def __init__(self, shard: Shard, adds: bool, with_reset: bool):
        self.shard, self.with_reset = shard, with_reset
        self.dtypes = [shard.wide] if adds else [shard.wide, carries.factor_dtype(shard.scan, shard.wide)]

    def _sizes(self, rows: Rows) -> list[int]:
        """How many numbers each part is."""
        n_states = math.prod(self.shard.state_shape(rows))
        return [n_states * (2 if dtype.is_complex else 1) for dtype in self.dtypes] + [n_states] * self.with_reset

    def pack(self, told: carries.Parts | Tensor | None, rows: Rows) -> Tensor:
        """What a rank tells: its carry; the first one its state alone; None: what nobody reads."""
        if isinstance(told, tuple):
            multiplier, value, dropped = told
            parts = [_flat(part) for part in (value, multiplier)[: len(self.dtypes)]]
            return torch.cat([*parts, *[dropped.reshape(-1).to(parts[0].dtype)] * self.with_reset])
        n_numbers = sum(self._sizes(rows))
        if told is None:
            dtype = torch.float64 if self.shard.wide.is_complex else self.shard.wide
            return torch.zeros(n_numbers, dtype=dtype, device=self.shard.out.device)
        state = _flat(told)
        rest = n_numbers - state.numel()
        return torch.cat((state, state.new_zeros(rest))) if rest else state

    def states(self, told: list[Tensor], rows: Rows) -> list[Tensor]:
        """The states after each of the ranks that told this, the first of all among them."""
        shape, sizes = self.shard.state_shape(rows), self._sizes(rows)
        if len(told) <= 1:  # whose state it is
            return [_unflat(one[: sizes[0]], shape, self.shard.wide) for one in told]
        pieces = torch.stack(told).split(sizes, dim=1)
        found = [_unflat(piece, [len(told), *shape], dtype) for piece, dtype in zip(pieces, self.dtypes)]
        flags = pieces[-1].reshape(len(told), *shape) != 0 if self.with_reset else None
        states = torch.empty_like(found[0])
        with torch.no_grad():
            backends.run(
                found[0], found[1] if len(found) > 1 else None, 1.0, None, flags, states, None, axis=0,
                reverse=False, exclusive=False, flush=False,
            )  # fmt: skip
        return list(states)


def _flat(tensor: Tensor) -> Tensor:
    return as_real(tensor).reshape(-1)


def _unflat(numbers: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    if dtype.is_complex:  # whose pairs have to begin at an even place
        return torch.view_as_complex(numbers.reshape(*shape, 2).clone(memory_format=torch.contiguous_format))
    return numbers.reshape(shape)


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
