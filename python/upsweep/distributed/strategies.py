"""Three ways to scan shards over ranks, and how one of them is chosen.

    forget       Where the state before a shard is forgotten soon, each rank scans its shard from nothing, tells
                 the state after it, and scans the steps before that again, from what it hears. One pass and a
                 little, one number a row to all.
    relay        Rows in groups. A rank scans a group from the state that it takes over, and hands the next state
                 on while it scans the next group. One pass, and the time of a group for each rank before it; one
                 number a row to the next rank.
    look twice   Each finds what its shard does to a state, tells that, and scans from the state that follows: rows
                 in two groups, so that one is told while the other is looked at or scanned. For few rows or many
                 ranks. Two passes, two numbers a row to all: one for a sum, one more with resets.

In each, a step is scanned from the true state before the shard, in the precision that scans compute in, or from
nothing where nothing of that state is left. On a device all of a way is queued on the caller's stream, messages
too; the host only waits to learn what to queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from upsweep._torch import aggregates, executors
from upsweep.distributed import communicator, p2p_transport
from upsweep.distributed.communicator import Ranks, are_finite, as_real, beside, runs_behind
from upsweep.distributed.shard import Rows, Shard

__all__ = ["Early", "Facts", "Ways", "in_order"]

Facts = list[dict[str, Any]]

_MESSAGES = 0.1  # of the time that two passes would take: what groups cost more than passes


def in_order(ranks: Ranks, reverse: bool) -> range:
    """The ranks in the order of the scan."""
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


def _twice(has_gates: bool) -> float:
    """What looking twice takes, in passes: 12 bytes an element instead of 8, with gates 20 instead of 12."""
    return 1.7 if has_gates else 1.5


@dataclass(frozen=True)
class _Filled:
    """Rows of the result that are filled, or are going to be, and the state after them."""

    rows: Rows
    state: Tensor


@dataclass(frozen=True)
class _Look:
    """After how many steps a shard forgot; whether that, or that it did not, had been so for the one before it."""

    steps: int | None
    again: bool


_last: dict[Any, _Look] = {}  # of each shape
_MOST_SHAPES = 64
_FEW_ROWS = 8  # whose scan may take the whole device, so that nothing runs beside it


class Early:
    """What a rank does before it knows of the others: what is needed if they are as it is itself.

    A device is given work before the others are asked: all rows where a state is forgotten; where rows are handed
    on, the first ones on the rank that begins. Where factors are data, some of them are looked at before. If the
    last two shards of this shape were alike in what they forget, this one is taken for such until that is known,
    and what was done in vain is done again.
    """

    def __init__(self, shard: Shard, ranks: Ranks):
        self.shard = shard
        self.rows: Rows | None = None  # that are told of
        self.told: aggregates.Parts | Tensor | None = None
        self._filled: list[_Filled] = []  # one after the other, from the first row on
        order = in_order(ranks, shard.reverse)
        self._begins, self._ends = ranks.rank == order[0], ranks.rank == order[-1]
        self.on_device = runs_behind(shard.out.device)
        twice = _twice(shard.scan.gates is not None)
        self.facts: dict[str, Any] = {"steps": None, "groups": shard.n_groups, "twice": twice}
        self._n_groups, self._n_ranks = shard.n_groups, ranks.size
        looks, alike, last, guess = self.on_device and shard.has_to_look, None, None, None
        if looks:
            alike = (shard.scan.shape, shard.scan.axis, shard.reverse, shard.scan.name, shard.out.device)
            last = _last.get(alike)
        if last is not None and last.again:
            guess = last
            self.facts["steps"] = guess.steps
        if guess is None:
            look = shard.start_look()
        elif shard.n_rows <= _FEW_ROWS:
            look = shard.start_look()
            self._start()
        else:
            given = torch.cuda.current_stream(shard.out.device).record_event()
            self._start()
            with beside(shard.out.device, given):  # which is waited for below, so that nothing outlives its memory
                look = shard.start_look()
        steps = self.facts["steps"] = look()
        if guess is not None and (guess.steps is None) != (steps is None):
            # Filled anew, in the pieces of its way: bits do not depend on what was called before.
            self._filled, self.rows, self.told = [], None, None
        if self.on_device:
            self._start()
        if looks:
            if len(_last) >= _MOST_SHAPES:
                _last.clear()
            _last[alike] = _Look(steps, last is not None and (last.steps is None) == (steps is None))

    def _start(self) -> None:
        """Begin what these facts ask for, if that is not done yet."""
        shard = self.shard
        key = (self._n_ranks, self.facts["steps"] is None)
        if key not in shard.ways:
            empty = not shard.length and shard.scan.initial is None
            shard.ways[key] = None if empty else _choose([self.facts] * self._n_ranks)
        way, n_filled = shard.ways[key], self._filled[-1].rows.end if self._filled else 0
        if way == "look twice":
            if self.rows is None:
                self.rows = shard.groups(min(2, self._n_groups))[0]
                if not self._ends:  # which has nobody to tell, unless one wants the last state of all
                    self.told = told(shard, self.rows, self if self._begins else None)
        elif way == "forget":
            if n_filled < max(1, shard.n_rows):
                self._fill(Rows(n_filled, shard.n_rows))
        elif way == "relay" and self._begins and not n_filled:
            self._fill(shard.groups(self._n_groups)[0])

    def _fill(self, rows: Rows) -> None:
        self._filled.append(_fill(self.shard, rows, self.shard.initial(rows)))

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
        return _Filled(rows, state)


def _fill(shard: Shard, rows: Rows, initial: Tensor | None) -> _Filled:
    return _Filled(rows, shard.fill(rows, initial))


# ---- the ways --------------------------------------------------------------------------------------------------


class Ways:
    """A scan of which this rank holds a shard."""

    def __init__(self, shard: Shard, ranks: Ranks, heard: Facts, early: Early):
        self.shard, self.ranks, self.heard, self.early = shard, ranks, heard, early
        # The ranks in the order of the scan, but those without steps.
        self.chain = [rank for rank in in_order(ranks, shard.reverse) if not heard[rank]["empty"]]
        self.place = self.chain.index(ranks.rank) if ranks.rank in self.chain else None
        self.wants_final = any(its["final"] for its in heard)
        self._wires: p2p_transport.Wires | None = None

    def run(self) -> Tensor | None:
        """Fill the result; returns the state after the last step of all, if a rank wants it.

        That may lie where a later call writes.
        """
        if not self.chain:
            return None
        way = _choose([self.heard[rank] for rank in self.chain])
        run = {"forget": self.forget, "relay": self.relay, "look twice": self.look_twice}[way]
        device = self.shard.out.device
        self._wires = self.ranks.wires(device, [its["wired"] for its in self.heard])
        try:
            return run()
        except BaseException:
            self.ranks.unwire(device)
            raise

    def _sends(self, n_bytes: int) -> Ranks | p2p_transport.Wires:
        """What carries so many bytes, as one message or several, of each rank, which all count alike."""
        return self._wires if self._wires is not None and p2p_transport.Wires.hold(n_bytes) else self.ranks

    def _first(self, rows: Rows) -> _Filled:
        """These rows from the state that the caller gave, or from nothing."""
        return self.early.filled(rows) or _fill(self.shard, rows, self.shard.initial(rows))

    def forget(self) -> Tensor | None:
        shard, place = self.shard, self.place
        value = shard.state(shard.rows).zero_() if place is None else self._first(shard.rows).state
        if len(self.chain) == 1 and not self.wants_final:
            return None
        if len(self.chain) == self.ranks.size == 2 and not self.wants_final:
            return self._forget_of_two(value)
        values = self._sends(value.nbytes).start_gather(value).wait()
        finite = are_finite(values)  # which is found out while a device goes on
        if place:
            steps: int = self.heard[self.ranks.rank]["steps"]
            shard.fill(shard.rows, values[self.chain[place - 1]], steps)
        # What is not finite is never forgotten, but goes from rank to rank as it goes from step to step.
        each = finite()
        if not all(each[rank] for rank in self.chain[:-1]):
            return self.relay()
        return values[self.chain[-1]] if self.wants_final else None

    def _forget_of_two(self, value: Tensor) -> Tensor | None:
        """The same where one tells the other, and both know then whether what it tells is finite."""
        shard, sends = self.shard, self._sends(value.nbytes)
        line: communicator.LineFrom | communicator.LineTo | p2p_transport.LineFrom | p2p_transport.LineTo
        if self.place:
            line = coming = sends.come_from(self.chain[0], [value.shape], shard.wide, shard.out.device)
            value = coming.take()
        else:
            line = going = sends.to(self.chain[1])
            going.put(value)
        finite = are_finite(value.unsqueeze(0))
        if self.place:
            shard.fill(shard.rows, value, self.heard[self.ranks.rank]["steps"])
        line.end()
        return None if finite()[0] else self.relay()

    def relay(self) -> Tensor | None:
        shard, place = self.shard, self.place
        groups = shard.groups(max(self.heard[rank]["groups"] for rank in self.chain))
        sends = self._sends(math.prod(shard.scan.state_shape) * shard.wide.itemsize)
        left: list[Tensor] = []
        if place is not None:
            coming = going = None
            if place:
                shapes = [shard.state_shape(rows) for rows in groups]
                coming = sends.come_from(self.chain[place - 1], shapes, shard.wide, shard.out.device)
            if place + 1 < len(self.chain):
                going = sends.to(self.chain[place + 1])
            for rows in groups:
                filled = self._first(rows) if coming is None else _fill(shard, rows, coming.take())
                if going is not None:
                    going.put(filled.state)
                left.append(filled.state)
            for line in (coming, going):
                if line is not None:
                    line.end()
        if not self.wants_final:
            return None
        final = shard.joined(left) if left else shard.state(shard.rows).zero_()
        return sends.start_gather(final).wait()[self.chain[-1]]

    def look_twice(self) -> Tensor | None:
        shard, place, chain = self.shard, self.place, self.chain
        its = [self.heard[rank] for rank in chain]
        groups = shard.groups(min(2, max(one["groups"] for one in its)))
        packing = _Packing(shard, its[0]["scan"] == "cumulative_sum", any(one["reset"] for one in its))
        # A rank needs the states after those before it; all need the last one, if any wants it.
        n_states = len(chain) if self.wants_final else place or 0
        gatherings: list[communicator.Gathering | p2p_transport.Gathered] = []
        for rows in groups:
            parts: aggregates.Parts | Tensor | None = None
            if place is not None and (place < len(chain) - 1 or self.wants_final):
                is_known = rows == self.early.rows and self.early.told is not None
                parts = self.early.told if is_known else told(shard, rows, None if place else self.early)
            packed = packing.pack(parts, rows)
            gatherings.append(self._sends(packed.nbytes).start_gather(packed))
        finals = []
        for rows, gathering in zip(groups, gatherings):
            told_by = gathering.wait()
            states = packing.states([told_by[rank] for rank in chain[:n_states]], rows)
            finals += states[-1:]
            if place:
                shard.fill(rows, states[place - 1])
            elif place == 0:
                self._first(rows)
        return shard.joined(finals) if self.wants_final else None


def told(shard: Shard, rows: Rows, early: Early | None) -> aggregates.Parts | Tensor:
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
        self.dtypes = [shard.wide] if adds else [shard.wide, aggregates.factor_dtype(shard.scan, shard.wide)]

    def _sizes(self, rows: Rows) -> list[int]:
        """How many numbers each part is."""
        n_states = math.prod(self.shard.state_shape(rows))
        return [n_states * (2 if dtype.is_complex else 1) for dtype in self.dtypes] + [n_states] * self.with_reset

    def pack(self, told: aggregates.Parts | Tensor | None, rows: Rows) -> Tensor:
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
            executors.run(
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
