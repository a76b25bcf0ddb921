"""Reducers for more components than there are registers, which a program produces in loops.

Such a reducer carries few values through the loop over columns. The sums of a block are an array on the stack,
indexed by component; a value of a column is added there at once, or stored until the column's remaining values
are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from upsweep._compiler.llvm.pairs.reducers import (
    MOST_INSERTED,
    Best,
    Candidates,
    Carried,
    Columns,
    Exponentials,
    Reducer,
    Smallest,
    Sum,
    plus,
)
from upsweep._compiler.llvm.vectors import Loop, Value, Vectors


class InMemory:
    """Vectors in memory, one for each component."""

    def __init__(self, v: Vectors, count: int) -> None:
        self.v, self.count, self.align = v, count, v.target.vector_bytes
        self.memory = v.room(count)

    def load(self, at: Value | int) -> Value:
        return self.v.load(self.v.body.at(self.v.kind, self.memory, at), self.align)

    def store(self, at: Value, value: Value) -> None:
        self.v.store(value, self.v.body.at(self.v.kind, self.memory, at), self.align)

    def each(self) -> AbstractContextManager[Loop]:
        """A loop over the components."""
        return self.v.body.loop("component", self.count)

    def clear(self) -> None:
        with self.each() as loop:
            self.store(loop.index, self.v.const(0.0))

    def add(
        self, at: Value, terms: Sequence[Value], factors: Sequence[Sequence[Value] | None], valid: Value | None
    ) -> None:
        """Add columns' terms to a component; `factors` are those of terms that are products."""
        total = self.load(at)
        for term, of_term in zip(terms, factors):
            total = plus(self.v, total, term, of_term, valid)
        self.store(at, total)

    def flush_to(self, reducer: Reducer, first_slot: int) -> None:
        """Add the sums to the state, from a slot on."""
        with self.each() as loop:
            slot = self.v.body.emit(f"add i64 {loop.index}, {first_slot}")
            reducer.accumulate(slot, self.load(loop.index))


class LoopedSum(Reducer):
    """Sums of components that come one by one."""

    def __init__(self, v: Vectors, dim: int, accumulator_bits: int) -> None:
        super().__init__(v, dim, accumulator_bits)
        self.sums = InMemory(v, dim)

    def enter(self) -> Carried:
        self.sums.clear()
        return []

    def leave(self, carried: Carried) -> None:
        self.sums.flush_to(self, 0)


class LoopedExponentials(Exponentials):
    """The sum of exp is carried; those of its products with the weights are in memory."""

    def __init__(self, v: Vectors, n_weights: int, accumulator_bits: int, *, plain_too: bool) -> None:
        super().__init__(v, 0, accumulator_bits, plain_too=True)
        self.first_slot = 1 + plain_too
        self.keeps_plain = plain_too
        self.products = InMemory(v, n_weights)

    def enter(self) -> Carried:
        self.products.clear()
        return super().enter()

    def moved(self, factor: Value) -> None:
        """m has moved: memory follows. What the block has so far goes to the state first."""
        zero = self.v.const(0.0)
        with self.products.each() as loop:
            slot = self.v.body.emit(f"add i64 {loop.index}, {self.first_slot}")
            self.accumulate(slot, self.products.load(loop.index))
            self.accumulate(slot, zero, factor)
            self.products.store(loop.index, zero)
        if self.keeps_plain:
            self.accumulate(1, zero, factor)

    def add_products(self, weights: Sequence[InMemory], valid: Value | None) -> None:
        """After `update`: its terms times what was handed out of the columns' weights."""
        v = self.v
        with self.products.each() as loop:
            total = self.products.load(loop.index)
            for memory, term in zip(weights, self.terms):
                weight = memory.load(loop.index)
                if valid is not None:
                    weight = v.select(valid, weight, v.const(0.0))
                total = v.fma(term, weight, total)
            self.products.store(loop.index, total)

    def leave(self, carried: Carried) -> None:
        if self.keeps_plain:
            self.accumulate(1, carried[1])
        self.products.flush_to(self, self.first_slot)


class LoopedEach(Reducer):
    """min, max, kmin: component after component, each with its own part of the state."""

    blocked = False

    def __init__(self, v: Vectors, dim: int, one: Best | Smallest | Candidates) -> None:
        super().__init__(v, dim, v.bits)
        self.k = one.k if isinstance(one, Smallest) else 1
        self.one = one  # the reducer of one component
        self.one.slot = self._slot  # type: ignore[method-assign]  # its slots lie where this component's do
        self._at = ""

    def _slot(self, n: int | Value) -> Value:
        """Slot n of one component: its k numbers, then, dim times k slots on, its k indices, and so on."""
        body = self.v.body
        base = body.emit(f"mul i64 {self._at}, {self.k}")
        far = self.k * (self.dim - 1)
        if isinstance(n, int):
            place = body.emit(f"add i64 {base}, {n + n // self.k * far}")
        else:
            beyond = body.emit(f"icmp uge i64 {n}, {self.k}")
            jump = body.emit(f"select i1 {beyond}, i64 {far}, i64 0")
            place = body.emit(f"add i64 {base}, {body.emit(f'add i64 {n}, {jump}')}")
        return Reducer.slot(self, place)

    def past(self, values: Sequence[InMemory], places: Sequence[Value], valid: Value | None) -> None:
        """All components past some columns, whose values are in memory."""
        with self.v.body.loop("component", self.dim) as loop:
            self._at = loop.index
            columns = Columns([[memory.load(loop.index)] for memory in values], [[]], places, valid)
            self.one.leave(self.one.update(self.one.enter(), columns))


def reducer(
    v: Vectors,
    reduction: str,
    dim: int,
    n_weights: int,
    k: int,
    accumulator_bits: int,
    *,
    looped: bool,
    one_row: bool,
) -> Reducer:
    """The reducer of a reduction, by its name; `looped` where components or weights are handed out in loops."""
    if reduction == "sum":
        return (LoopedSum if looped else Sum)(v, dim, accumulator_bits)
    if reduction in ("logsumexp", "sumsoftmaxweight"):
        kind = LoopedExponentials if looped else Exponentials
        return kind(v, n_weights, accumulator_bits, plain_too=reduction == "sumsoftmaxweight" or n_weights == 0)
    n = 1 if looped else dim
    one: Best | Smallest | Candidates
    if k == 0:
        one = Best(v, n, largest="max" in reduction, indexed="arg" in reduction)
    else:
        one = Candidates(v, n, one_list=one_row) if one_row or k > MOST_INSERTED else Smallest(v, n, k)
    return LoopedEach(v, dim, one) if looped else one
