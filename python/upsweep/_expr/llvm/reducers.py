"""What a kernel does with the formula's values: the carried vectors of each kind of reduction, and their state in memory.

A reduction carries vectors through a loop over columns and has a state in memory between calls: slots of one vector
each, `SLOT_BYTES` a lane apart whatever their type. Slots hold, in this order

    sum                 the sums of the components, in the accumulator's type
    logsumexp           the reference m, then sums of weight * exp(value - m); without a weight one sum of exp
    sumsoftmaxweight    m, the sum of exp(value - m), then those times the weights
    min, max            the best values; of those with an index then the indices, integers of the type's width
    kmin                for each component k values in rising order, then for each component their indices

src/pairs_states.hpp has the same list: it begins, combines and ends states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .mathematics import exp
from .vectors import Vectors

__all__ = ["SLOT_BYTES", "Reducer", "reducer"]

Value = str
Carried = list[Value]

SLOT_BYTES = 8
# What exp(value - m) may reach before m is moved: far from overflow, even as a sum of many.
_HEADROOM = {32: 40.0, 64: 300.0}


class Reducer:
    """One kind of reduction, in one kernel.

    `carried` are the types of the vectors in the loop. `enter` makes their values at the begin of a block of columns,
    `update` takes them past some columns, `leave` brings them to memory at its end.
    """

    blocked = True  # whether blocks have to be short, since rounding errors grow with their length

    def __init__(self, v: Vectors, state: Value, dim: int, accumulator_bits: int) -> None:
        self.v, self.state, self.dim = v, state, dim
        self.wide = v.with_bits(accumulator_bits, v.lanes)

    @property
    def carried(self) -> list[str]:
        raise NotImplementedError

    def enter(self) -> Carried:
        raise NotImplementedError

    def update(
        self,
        carried: Carried,
        values: Sequence[Sequence[Value]],
        weights: Sequence[Sequence[Value]],
        places: Sequence[Value],
        valid: Value | None,
    ) -> Carried:
        """Past some columns: their values and weights, [column][component], and their indices.

        Lanes that are not `valid` have no column.
        """
        raise NotImplementedError

    def leave(self, carried: Carried) -> None:
        raise NotImplementedError

    # ---- slots ----

    def slot(self, n: int | Value) -> Value:
        """The address of a slot."""
        body, size = self.v.body, SLOT_BYTES * self.v.lanes
        if isinstance(n, int):
            return body.emit(f"getelementptr i8, ptr {self.state}, i64 {size * n}")
        return body.emit(f"getelementptr [{size} x i8], ptr {self.state}, i64 {n}")

    def load(self, n: int | Value, kind: str) -> Value:
        return self.v.body.emit(f"load {kind}, ptr {self.slot(n)}, align {self._align}")

    def store(self, n: int | Value, kind: str, value: Value) -> None:
        self.v.body.do(f"store {kind} {value}, ptr {self.slot(n)}, align {self._align}")

    @property
    def _align(self) -> int:
        return min(64, SLOT_BYTES * self.v.lanes)

    def accumulate(self, n: int, sums: Value, factor: Value | None = None) -> None:
        """slot n = slot n * factor + sums, in the accumulator's type."""
        v, wide = self.v, self.wide
        before = self.load(n, wide.kind)
        if wide.bits != v.bits:
            sums = v.widened(sums)
            factor = None if factor is None else v.widened(factor)
        if factor is not None:
            before = wide.plain("mul", before, factor)
        self.store(n, wide.kind, wide.plain("add", before, sums))


class Sum(Reducer):
    """Sums of the components."""

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * self.dim

    def enter(self) -> Carried:
        return [self.v.const(0.0)] * self.dim

    def add_column(self, carried: Carried, component: int, value: Value, valid: Value | None) -> None:
        """One component of one column, as soon as it is there: few values have to be kept then."""
        v = self.v
        if valid is not None:
            value = v.select(valid, value, v.const(0.0))
        carried[component] = v.add(carried[component], value)

    def leave(self, carried: Carried) -> None:
        for n, sums in enumerate(carried):
            self.accumulate(n, sums)


class Exponentials(Reducer):
    """Sums of exp(value - m) and of their products with weights.

    m is some value that has been met, or the least number; it moves when a value exceeds it by so much that exp might
    overflow, which happens rarely, and then the sums are scaled. That is exact to the same bits as the largest value
    would be: the largest term is at least 1.
    """

    def __init__(self, v: Vectors, state: Value, n_weights: int, accumulator_bits: int, *, plain_too: bool) -> None:
        super().__init__(v, state, n_weights, accumulator_bits)
        self.plain_too = plain_too  # whether the sum without weights is wanted
        self.n_sums = n_weights + plain_too

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * (1 + self.n_sums)

    def enter(self) -> Carried:
        return [self.load(0, self.v.kind)] + [self.v.const(0.0)] * self.n_sums

    def update(
        self,
        carried: Carried,
        values: Sequence[Sequence[Value]],
        weights: Sequence[Sequence[Value]],
        places: Sequence[Value],
        valid: Value | None,
    ) -> Carried:
        v, body = self.v, self.v.body
        reference, sums = carried[0], carried[1:]
        zero, lowest = v.const(0.0), v.const(-math.inf)
        exponents = [value[0] for value in values]
        if valid is not None:
            exponents = [v.select(valid, value, lowest) for value in exponents]
            weights = [[v.select(valid, weight, zero) for weight in column] for column in weights]
        largest = exponents[0]
        for value in exponents[1:]:
            largest = v.select(v.compare("ogt", value, largest), value, largest)
        limit = v.plain("add", reference, v.const(_HEADROOM[v.bits]))
        exceeds = v.any(v.compare("ogt", largest, limit))
        before, rare, go_on = body.block, body.label("move"), body.label("exp")
        body.branch(exceeds, rare, go_on, rarely=True)
        body.place(rare)
        # Finite, so that infinities subtract to no NaN.
        moved = v.at_most(v.select(v.compare("ogt", largest, reference), largest, reference), v.const(self._most))
        factor = exp(v, v.plain("sub", reference, moved), never_positive=True)
        scaled = [v.plain("mul", part, factor) for part in sums]
        # What memory holds refers to the old m.
        for n in range(self.n_sums):
            self.accumulate(1 + n, zero, factor)
        self.store(0, v.kind, moved)
        body.do(f"br label %{go_on}")
        body.place(go_on)
        joined = [
            body.emit(f"phi {v.kind} [{old}, %{before}], [{new}, %{rare}]")
            for old, new in zip([reference, *sums], [moved, *scaled])
        ]
        reference, sums = joined[0], joined[1:]
        for column, value in enumerate(exponents):
            term = exp(v, v.plain("sub", value, reference))
            if self.plain_too:
                sums[0] = v.add(sums[0], term)
            for n, weight in enumerate(weights[column] if self.dim else ()):
                place = n + self.plain_too
                sums[place] = v.add(sums[place], v.mul(term, weight))
        return [reference, *sums]

    def leave(self, carried: Carried) -> None:
        for n, sums in enumerate(carried[1:]):
            self.accumulate(1 + n, sums)

    @property
    def _most(self) -> float:
        return 3.4028234663852886e38 if self.v.bits == 32 else 1.7976931348623157e308


class Best(Reducer):
    """The least or the largest of each component, and where: NaN beats all, the first wins."""

    blocked = False

    def __init__(self, v: Vectors, state: Value, dim: int, *, largest: bool, indexed: bool) -> None:
        super().__init__(v, state, dim, v.bits)
        self.indexed = indexed
        self.better = "ugt" if largest else "ult"

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * self.dim + [self.v.ints] * (self.dim * self.indexed)

    def enter(self) -> Carried:
        return [self.load(n, kind) for n, kind in enumerate(self.carried)]

    def update(
        self,
        carried: Carried,
        values: Sequence[Sequence[Value]],
        weights: Sequence[Sequence[Value]],
        places: Sequence[Value],
        valid: Value | None,
    ) -> Carried:
        v = self.v
        carried = list(carried)
        for column, place in zip(values, places):
            for n, value in enumerate(column):
                best = carried[n]
                takes = v.compare(self.better, value, best)  # true for NaN in either
                takes = v.logical("and", takes, v.compare("ord", best, best))
                if valid is not None:
                    takes = v.logical("and", takes, valid)
                carried[n] = v.select(takes, value, best)
                if self.indexed:
                    carried[self.dim + n] = v.int_select(takes, place, carried[self.dim + n])
        return carried

    def leave(self, carried: Carried) -> None:
        for n, (kind, value) in enumerate(zip(self.carried, carried)):
            self.store(n, kind, value)


class Smallest(Reducer):
    """The k least of each component in rising order, with their indices.

    A vector of values is compared with the k-th least of its rows; where none is below, which is most often so, that
    is all. Places that are empty hold NaN and the index -1; NaN that were met come last, as in a sort.
    """

    blocked = False

    def __init__(self, v: Vectors, state: Value, dim: int, k: int) -> None:
        super().__init__(v, state, dim, v.bits)
        self.k = k

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * self.dim

    def enter(self) -> Carried:
        return [self.load(self.k * n + self.k - 1, self.v.kind) for n in range(self.dim)]

    def update(
        self,
        carried: Carried,
        values: Sequence[Sequence[Value]],
        weights: Sequence[Sequence[Value]],
        places: Sequence[Value],
        valid: Value | None,
    ) -> Carried:
        v, body = self.v, self.v.body
        result = []
        for n, last in enumerate(carried):
            masks = [self._masked(v.compare("ult", column[n], last), valid) for column in values]
            either = masks[0]
            for mask in masks[1:]:
                either = v.logical("or", either, mask)
            before, rare, go_on = body.block, body.label("insert"), body.label("on")
            body.branch(v.any(either), rare, go_on, rarely=True)
            body.place(rare)
            for column, place in zip(values, places):
                self._insert(n, column[n], place, valid)
            new, end = self.load(self.k * n + self.k - 1, v.kind), body.block
            body.do(f"br label %{go_on}")
            body.place(go_on)
            result.append(body.emit(f"phi {v.kind} [{last}, %{before}], [{new}, %{end}]"))
        return result

    def leave(self, carried: Carried) -> None:
        """All is in memory."""

    def _masked(self, mask: Value, valid: Value | None) -> Value:
        return mask if valid is None else self.v.logical("and", mask, valid)

    def _worse(self, value: Value, index: Value, than: Value) -> Value:
        """Where what a place holds has to give way: it is larger, or NaN to a number, or nothing."""
        v = self.v
        larger = v.compare("ogt", value, than)
        to_number = v.logical("and", v.compare("uno", value, value), v.compare("ord", than, than))
        empty = v.body.emit(f"icmp slt {v.ints} {index}, {v.int_const(0)}")
        return v.logical("or", v.logical("or", larger, to_number), empty)

    def _insert(self, n: int, value: Value, place: Value, valid: Value | None) -> None:
        """Move what is worse one place down, from the last place on, until no lane has anything to move."""
        v, body = self.v, self.v.body
        first, first_index = self.k * n, self.k * (self.dim + n)
        last = self.load(first + self.k - 1, v.kind), self.load(first_index + self.k - 1, v.ints)
        active = self._masked(self._worse(*last, value), valid)
        before, loop, done = body.block, body.label("move"), body.label("in")
        body.branch(v.any(active), loop, done)
        body.place(loop)
        at, next_at = body.name("at"), body.name("at")
        moving, still, held, held_index = (body.name() for _ in range(4))
        body.do(f"{at} = phi i64 [{self.k - 1}, %{before}], [{next_at}, %{loop}]")
        body.do(f"{moving} = phi {v.bools} [{active}, %{before}], [{still}, %{loop}]")
        above, above_index = body.name(), body.name()
        body.do(f"{held} = phi {v.kind} [{last[0]}, %{before}], [{above}, %{loop}]")
        body.do(f"{held_index} = phi {v.ints} [{last[1]}, %{before}], [{above_index}, %{loop}]")
        body.do(f"{next_at} = sub i64 {at}, 1")
        # Above the first place there is none: it is read again, and not moved.
        is_first = body.emit(f"icmp eq i64 {at}, 0")
        upper = body.emit(f"select i1 {is_first}, i64 0, i64 {next_at}")
        value_at, index_at = (body.emit(f"add i64 {upper}, {base}") for base in (first, first_index))
        body.do(f"{above} = load {v.kind}, ptr {self.slot(value_at)}, align {self._align}")
        body.do(f"{above_index} = load {v.ints}, ptr {self.slot(index_at)}, align {self._align}")
        more = body.emit(f"insertelement {v.bools} poison, i1 {is_first}, i64 0")
        mask = f"<{v.lanes} x i32> zeroinitializer"
        more = body.emit(f"shufflevector {v.bools} {more}, {v.bools} poison, {mask}")
        goes_on = v.logical("and", moving, self._worse(above, above_index, value))
        not_first = v.logical("xor", more, f"splat_true_{v.lanes}") if False else self._not(more)
        body.do(f"{still} = and {v.bools} {goes_on}, {not_first}")
        taken, taken_index = v.select(still, above, value), v.int_select(still, above_index, place)
        own, own_index = (body.emit(f"add i64 {at}, {base}") for base in (first, first_index))
        self.store(own, v.kind, v.select(moving, taken, held))
        self.store(own_index, v.ints, v.int_select(moving, taken_index, held_index))
        body.branch(v.any(still), loop, done)
        body.place(done)

    def _not(self, mask: Value) -> Value:
        v = self.v
        ones = "<" + ", ".join(["i1 1"] * v.lanes) + ">"
        return v.body.emit(f"xor {v.bools} {mask}, {ones}")


def reducer(
    v: Vectors, state: Value, reduction: str, dim: int, n_weights: int, k: int, accumulator_bits: int
) -> Reducer:
    """The reducer of a reduction, by its name."""
    if reduction == "sum":
        return Sum(v, state, dim, accumulator_bits)
    if reduction == "logsumexp":
        return Exponentials(v, state, n_weights, accumulator_bits, plain_too=n_weights == 0)
    if reduction == "sumsoftmaxweight":
        return Exponentials(v, state, n_weights, accumulator_bits, plain_too=True)
    if "kmin" in reduction:
        return Smallest(v, state, dim, k)
    return Best(v, state, dim, largest="max" in reduction, indexed="arg" in reduction)
