"""Reducers for more components than there are registers, which a program produces in loops.

Such a reducer carries few values through the loop over columns. The sums of a block are an array on the stack,
indexed by component; a value of a column is added there at once, or stored until the column's remaining values
are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from upsweep._compiler.llvm.pairs.reducers import Best, Carried, Exponentials, Reducer, Smallest, Sum, plus
from upsweep._compiler.llvm.vectors import Vectors

__all__ = ["InMemory", "LoopedEach", "LoopedExponentials", "LoopedSum", "handed_out", "looped_reducer"]

Value = str


def components(v: Vectors, count: int, visit: Callable[[Value], None]) -> None:
    """A loop over the components, in the code that is written."""
    body = v.body
    before, loop, done = body.block, body.label("component"), body.label("all")
    body.do(f"br label %{loop}")
    body.place(loop)
    at, after = body.name("n"), body.name("n")
    place = len(body.lines)
    visit(at)
    body.do(f"{after} = add i64 {at}, 1")
    body.lines.insert(place, f"  {at} = phi i64 [0, %{before}], [{after}, %{body.block}]")
    body.branch(body.emit(f"icmp ult i64 {after}, {count}"), loop, done)
    body.place(done)


class InMemory:
    """Vectors in memory, one for each component."""

    def __init__(self, v: Vectors, count: int) -> None:
        self.v, self.count, self.align = v, count, v.target.vector_bytes
        self.memory = v.room(count)

    def cell(self, at: Value) -> Value:
        return self.v.body.emit(f"getelementptr {self.v.kind}, ptr {self.memory}, i64 {at}")

    def load(self, at: Value) -> Value:
        return self.v.load(self.cell(at), self.align)

    def store(self, at: Value, value: Value) -> None:
        self.v.store(value, self.cell(at), self.align)

    def clear(self) -> None:
        components(self.v, self.count, lambda at: self.store(at, self.v.const(0.0)))

    def add(
        self, at: Value, terms: Sequence[Value], factors: Sequence[Sequence[Value] | None], valid: Value | None
    ) -> None:
        """Add columns' terms to a component; `factors` are those of terms that are products."""
        total = self.load(at)
        for term, of_term in zip(terms, factors):
            total = plus(self.v, total, term, of_term, valid)
        self.store(at, total)

    def flush_to(self, reducer: Reducer, first_slot: int, factor: Value | None = None) -> None:
        """Add the sums to the state, from a slot on."""

        def one(at: Value) -> None:
            slot = self.v.body.emit(f"add i64 {at}, {first_slot}")
            reducer.accumulate(slot, self.load(at), factor)

        components(self.v, self.count, one)


class LoopedSum(Sum):
    """Sums of components that come one by one."""

    def __init__(self, v: Vectors, state: Value, dim: int, accumulator_bits: int) -> None:
        super().__init__(v, state, dim, accumulator_bits)
        self.sums = InMemory(v, dim)

    @property
    def carried(self) -> list[str]:
        return []

    def enter(self) -> Carried:
        self.sums.clear()
        return []

    def leave(self, carried: Carried) -> None:
        self.sums.flush_to(self, 0)


class LoopedExponentials(Exponentials):
    """The sum of exp is carried; those of its products with the weights are in memory."""

    def __init__(
        self, v: Vectors, state: Value, n_weights: int, accumulator_bits: int, *, plain_too: bool
    ) -> None:
        super().__init__(v, state, 0, accumulator_bits, plain_too=True)
        self.first_slot = 1 + plain_too
        self.keeps_plain = plain_too
        self.products = InMemory(v, n_weights)

    def enter(self) -> Carried:
        self.products.clear()
        return super().enter()

    def moved(self, factor: Value) -> None:
        """m has moved: memory follows. What the block has so far goes to the state first."""
        self.products.flush_to(self, self.first_slot)
        self.products.clear()

        def one(at: Value) -> None:
            slot = self.v.body.emit(f"add i64 {at}, {self.first_slot}")
            self.accumulate(slot, self.v.const(0.0), factor)

        components(self.v, self.products.count, one)
        if self.keeps_plain:
            self.accumulate(1, self.v.const(0.0), factor)

    def add_products(self, weights: Sequence[InMemory], valid: Value | None) -> None:
        """After `update`: its terms times what was handed out of the columns' weights."""
        v = self.v

        def one(at: Value) -> None:
            total = self.products.load(at)
            for memory, term in zip(weights, self.terms):
                weight = memory.load(at)
                if valid is not None:
                    weight = v.select(valid, weight, v.const(0.0))
                total = v.fma(term, weight, total)
            self.products.store(at, total)

        components(v, self.products.count, one)

    def leave(self, carried: Carried) -> None:
        if self.keeps_plain:
            self.accumulate(1, carried[1])
        self.products.flush_to(self, self.first_slot)


class LoopedEach(Reducer):
    """min, max, kmin: component after component, each with its own part of the state."""

    blocked = False

    def __init__(self, v: Vectors, state: Value, dim: int, k: int, *, largest: bool, indexed: bool) -> None:
        super().__init__(v, state, dim, v.bits)
        self.k = max(1, k)
        self.one: Best | Smallest = (
            Smallest(v, state, 1, k) if k else Best(v, state, 1, largest=largest, indexed=indexed)
        )
        self.one.slot = self._slot  # type: ignore[method-assign]  # its slots lie where this component's do
        self._at = ""

    @property
    def carried(self) -> list[str]:
        return []

    def enter(self) -> Carried:
        return []

    def leave(self, carried: Carried) -> None:
        """All is in memory."""

    def _slot(self, n: int | Value) -> Value:
        """Slot n of one component: its k numbers, then, dim times k slots on, its k indices."""
        body = self.v.body
        base = body.emit(f"mul i64 {self._at}, {self.k}")
        far = self.k * (self.dim - 1)
        if isinstance(n, int):
            place = body.emit(f"add i64 {base}, {n if n < self.k else n + far}")
        else:
            beyond = body.emit(f"icmp uge i64 {n}, {self.k}")
            jump = body.emit(f"select i1 {beyond}, i64 {far}, i64 0")
            place = body.emit(f"add i64 {base}, {body.emit(f'add i64 {n}, {jump}')}")
        return Reducer.slot(self, place)

    def past(self, values: Sequence[InMemory], places: Sequence[Value], valid: Value | None) -> None:
        """All components past some columns, whose values are in memory."""

        def component(at: Value) -> None:
            self._at = at
            carried = self.one.update(self.one.enter(), [[m.load(at)] for m in values], [[]], places, valid)
            self.one.leave(carried)

        components(self.v, self.dim, component)


def handed_out(v: Vectors, count: int, n_columns: int) -> list[InMemory]:
    """Memory for what the columns' programs hand out."""
    return [InMemory(v, count) for _ in range(n_columns)]


def looped_reducer(
    v: Vectors, state: Value, reduction: str, dim: int, n_weights: int, k: int, accumulator_bits: int
) -> Reducer:
    """As `reducers.reducer`, where the formula's components, or those of the weight, are handed out in loops."""
    if reduction == "sum":
        return LoopedSum(v, state, dim, accumulator_bits)
    if reduction in ("logsumexp", "sumsoftmaxweight"):
        plain_too = reduction == "sumsoftmaxweight"
        return LoopedExponentials(v, state, n_weights, accumulator_bits, plain_too=plain_too)
    return LoopedEach(v, state, dim, k, largest="max" in reduction, indexed="arg" in reduction)
