"""Reducers: how each kind of reduction accumulates values, and the layout of its state in memory.

A reducer carries vectors through the loop over columns. Between calls its state is in memory, in slots of one
vector each that take `SLOT_BYTES` per lane whatever their type. The slots are, in this order

    sum                 the sums of the components, in the accumulator's type
    logsumexp           the reference m, then sums of weight * exp(value - m); without a weight one sum of exp
    sumsoftmaxweight    m, the sum of exp(value - m), then those times the weights
    min, max            the best values; of those with an index then the indices, integers of the type's width
    kmin                for each component k values in rising order, then for each component their indices;
                        of many values, what `Candidates` says

src/pairs/states.hpp has the same list: it begins, combines and ends states.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from upsweep._compiler.llvm.mathematics import exp
from upsweep._compiler.llvm.vectors import Value, Vectors

Carried = list[Value]
_Candidate = tuple[Value, Value, "Value | None"]  # a value, its index, the lanes that have it

SLOT_BYTES = 8
MOST_INSERTED = 64  # values of a row that are kept in order by insertion, which takes as many steps for each
# What exp(value - m) may reach before m is moved: far from overflow, even as a sum of many.
_HEADROOM = {32: 40.0, 64: 300.0}
_LARGEST = {32: 3.4028234663852886e38, 64: 1.7976931348623157e308}


@dataclass(frozen=True)
class Columns:
    """Some columns that run together: their values and weights, [column][component], and their indices.

    Lanes that are not `valid` have no column.
    """

    values: Sequence[Sequence[Value]]
    weights: Sequence[Sequence[Value]]
    places: Sequence[Value]
    valid: Value | None


class Reducer:
    """One kind of reduction, in one kernel.

    `carried` are the types of the vectors in the loop. `enter` makes their values at the begin of a block of
    columns, `update` takes them past some columns, `leave` brings them to memory at its end.
    """

    blocked = True  # whether blocks have to be short, since rounding errors grow with their length

    def __init__(self, v: Vectors, dim: int, accumulator_bits: int) -> None:
        self.v, self.dim = v, dim
        self.wide = v.with_bits(accumulator_bits, v.lanes)

    @property
    def carried(self) -> list[str]:
        return []

    def enter(self) -> Carried:
        return []

    def update(self, carried: Carried, columns: Columns) -> Carried:
        raise NotImplementedError

    def leave(self, carried: Carried) -> None:
        """Nothing, where all is in memory already."""

    # ---- slots ----

    def slot(self, n: int | Value) -> Value:
        """The address of a slot."""
        body, size = self.v.body, SLOT_BYTES * self.v.lanes
        if isinstance(n, int):
            return body.emit(f"getelementptr i8, ptr %state, i64 {size * n}")
        return body.emit(f"getelementptr [{size} x i8], ptr %state, i64 {n}")

    def load(self, n: int | Value, kind: str) -> Value:
        return self.v.body.emit(f"load {kind}, ptr {self.slot(n)}, align {self._align}")

    def store(self, n: int | Value, kind: str, value: Value, store: str = "store") -> None:
        self.v.body.do(f"{store} {kind} {value}, ptr {self.slot(n)}, align {self._align}")

    @property
    def _align(self) -> int:
        return min(64, SLOT_BYTES * self.v.lanes)

    def accumulate(self, n: int | Value, sums: Value, factor: Value | None = None) -> None:
        """slot n = slot n * factor + sums, in the accumulator's type."""
        v, wide = self.v, self.wide
        before = self.load(n, wide.kind)
        if wide.bits != v.bits:
            sums = v.widened(sums)
            factor = None if factor is None else v.widened(factor)
        if factor is not None:
            before = wide.mul(before, factor)
        self.store(n, wide.kind, wide.add(before, sums))


def plus(v: Vectors, total: Value, value: Value, factors: Sequence[Value] | None, valid: Value | None) -> Value:
    """total + value in lanes that are valid, fused where the value is the product of `factors`."""
    new = v.fused("add", [total, value], [None, factors])
    return new if valid is None else v.select(valid, new, total)


class Sum(Reducer):
    """Sums of the components."""

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * self.dim

    def enter(self) -> Carried:
        return [self.v.const(0.0)] * self.dim

    def leave(self, carried: Carried) -> None:
        for n, sums in enumerate(carried):
            self.accumulate(n, sums)


class Exponentials(Reducer):
    """Sums of exp(value - m) and of their products with weights.

    m is some value that has been met, or the least number; it moves when a value exceeds it by so much that exp
    might overflow, which happens rarely, and then the sums are scaled. That is exact to the same bits as the
    largest value would be: the largest term is at least 1.
    """

    def __init__(self, v: Vectors, n_weights: int, accumulator_bits: int, *, plain_too: bool) -> None:
        super().__init__(v, n_weights, accumulator_bits)
        self.plain_too = plain_too  # whether the sum without weights is wanted
        self.terms: list[Value] = []  # of the last `update`, exp(value - m) of each column
        self.n_sums = n_weights + plain_too

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * (1 + self.n_sums)

    def enter(self) -> Carried:
        return [self.load(0, self.v.kind)] + [self.v.const(0.0)] * self.n_sums

    def update(self, carried: Carried, columns: Columns) -> Carried:
        v, valid, weights = self.v, columns.valid, columns.weights
        reference, *sums = carried
        zero, lowest = v.const(0.0), v.const(-math.inf)
        exponents = [value[0] for value in columns.values]
        if valid is not None:
            exponents = [v.select(valid, value, lowest) for value in exponents]
            weights = [[v.select(valid, weight, zero) for weight in column] for column in weights]
        largest = exponents[0]
        for value in exponents[1:]:
            largest = v.select(v.compare("ogt", value, largest), value, largest)
        limit = v.add(reference, v.const(_HEADROOM[v.bits]))
        with v.body.when(v.any(v.compare("ogt", largest, limit)), "move", rarely=True) as move:
            # Finite, so that infinities subtract to no NaN.
            largest = v.select(v.compare("ogt", largest, reference), largest, reference)
            moved = v.at_most(largest, v.const(_LARGEST[v.bits]))
            factor = exp(v, v.sub(reference, moved), never_positive=True, flush=True)
            scaled = [v.mul(part, factor) for part in sums]
            self.moved(factor)
            self.store(0, v.kind, moved)
        reference, *sums = (move.phi(v.kind, *two) for two in zip(carried, [moved, *scaled]))
        bounded = functools.partial(exp, v, never_large=True, flush=True, table=True)
        differences = [v.sub(value, reference) for value in exponents]
        self.terms = v.body.in_turn(functools.partial(bounded, each) for each in differences)
        for column, term in enumerate(self.terms):
            if self.plain_too:
                sums[0] = v.add(sums[0], term)
            for n, weight in enumerate(weights[column] if self.dim else (), self.plain_too):
                sums[n] = v.fma(term, weight, sums[n])
        return [reference, *sums]

    def moved(self, factor: Value) -> None:
        """m has moved: what memory holds refers to the old one."""
        for n in range(self.n_sums):
            self.accumulate(1 + n, self.v.const(0.0), factor)

    def leave(self, carried: Carried) -> None:
        for n, sums in enumerate(carried[1:]):
            self.accumulate(1 + n, sums)


class Best(Reducer):
    """The least or the largest of each component, and where: NaN beats all, the first wins."""

    blocked = False

    def __init__(self, v: Vectors, dim: int, *, largest: bool, indexed: bool) -> None:
        super().__init__(v, dim, v.bits)
        self.indexed = indexed
        self.better = "ugt" if largest else "ult"

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * self.dim + [self.v.ints] * (self.dim * self.indexed)

    def enter(self) -> Carried:
        return [self.load(n, kind) for n, kind in enumerate(self.carried)]

    def update(self, carried: Carried, columns: Columns) -> Carried:
        carried = list(carried)
        for n in range(self.dim):
            # Among themselves first, in pairs: the columns would otherwise wait for each other, one by one.
            some = [(column[n], place, columns.valid) for column, place in zip(columns.values, columns.places)]
            while len(some) > 1:
                some = [self._better(*some[i : i + 2]) for i in range(0, len(some), 2)]
            index = carried[self.dim + n] if self.indexed else ""
            carried[n], index, _ = self._better((carried[n], index, None), *some)
            if self.indexed:
                carried[self.dim + n] = index
        return carried

    def _better(self, first: _Candidate, *second: _Candidate) -> _Candidate:
        """The better of two, the first if they are as good; of the second only lanes that are valid."""
        if not second:
            return first
        v, ((value, place, valid), (other, other_place, other_valid)) = self.v, (first, second[0])
        takes = v.compare(self.better, other, value)  # true for NaN in either
        takes = v.logical("and", takes, v.compare("ord", value, value))
        if other_valid is not None:
            takes = v.logical("and", takes, other_valid)
        if self.indexed:
            place = v.int_select(takes, other_place, place)
        return v.select(takes, other, value), place, valid

    def leave(self, carried: Carried) -> None:
        for n, (kind, value) in enumerate(zip(self.carried, carried)):
            self.store(n, kind, value)


class Smallest(Reducer):
    """The k least of each component in rising order, with their indices.

    A vector of values is compared with the k-th least of its rows; where none is below, which is most often so,
    that is all. Places that are empty hold NaN and the index -1; NaN that were met come last, as in a sort.
    Places may begin with a limit and the index -2 (src/pairs/candidates.hpp): no value from it on, and no NaN, is
    then taken.
    """

    blocked = False

    def __init__(self, v: Vectors, dim: int, k: int) -> None:
        super().__init__(v, dim, v.bits)
        self.k = k

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * self.dim

    def enter(self) -> Carried:
        return [self._last(n) for n in range(self.dim)]

    def update(self, carried: Carried, columns: Columns) -> Carried:
        v = self.v
        result = []
        for n, last in enumerate(carried):
            values = [column[n] for column in columns.values]
            masks = [self._masked(v.compare("ult", value, last), columns.valid) for value in values]
            either = functools.reduce(functools.partial(v.logical, "or"), masks)
            with v.body.when(v.any(either), "insert", rarely=True) as insert:
                self._insert_all(n, values, columns)
                new = self._last(n)
            result.append(insert.phi(v.kind, last, new))
        return result

    def _last(self, n: int) -> Value:
        """The k-th least of a component."""
        return self.load(self.k * n + self.k - 1, self.v.kind)

    def _masked(self, mask: Value, valid: Value | None) -> Value:
        return mask if valid is None else self.v.logical("and", mask, valid)

    def _insert_all(self, n: int, values: Sequence[Value], columns: Columns) -> None:
        """Insert the values of some columns, one after the other: through memory, so that the code is there
        once.
        """
        v, body, align = self.v, self.v.body, self.v.target.vector_bytes
        rooms = [(kind, body.stack(kind, len(values), align)) for kind in (v.kind, v.ints)]
        for column, pair in enumerate(zip(values, columns.places)):
            for (kind, room), each in zip(rooms, pair):
                body.do(f"store {kind} {each}, ptr {body.at(kind, room, column)}, align {align}")
        with body.loop("each", len(values)) as loop:
            value, place = (
                body.emit(f"load {kind}, ptr {body.at(kind, room, loop.index)}, align {align}")
                for kind, room in rooms
            )
            last = self._last(n)
            is_number = self._masked(v.compare("ord", value, value), columns.valid)
            active = v.logical("and", v.compare("ult", value, last), is_number)
            with body.when(v.any(active), "take"):
                self._insert(n, value, place, active)
            last_index = self.load(self.k * (self.dim + n) + self.k - 1, v.ints)
            has_room = body.emit(f"icmp eq {v.ints} {last_index}, {v.int_const(-1)}")
            is_nan = self._masked(v.logical("and", has_room, v.compare("uno", value, value)), columns.valid)
            with body.when(v.any(is_nan), "nan", rarely=True):
                self._append(n, value, place, is_nan)

    def _insert(self, n: int, value: Value, place: Value, active: Value) -> None:
        """Numbers to their places. Whether a place has to give way depends on the new number alone, not on the
        places before: so all are processed together, a few at a time from the last on, until nothing has to
        move.
        """
        v, body = self.v, self.v.body
        at_once = next(size for size in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1) if self.k % size == 0)
        if self.k > 10 and at_once < 5:
            at_once = 1  # k without a fair divisor
        with body.repeat("move") as loop:
            at = loop.carry("i64", str(self.k - at_once))
            is_first = body.emit(f"icmp eq i64 {at}, 0")
            loop.following = [body.emit(f"sub i64 {at}, {at_once}")]
            # The place above the first of them; above the first of all there is none, and itself is read instead.
            upper = body.emit(f"sub i64 {at}, 1")
            upper = body.emit(f"select i1 {is_first}, i64 0, i64 {upper}")
            above = self._held(n, upper, 0)
            moves_above = v.logical("and", active, v.compare("ugt", above[0], value))
            none = v.bool_const(False)
            moves_above = body.emit(f"select i1 {is_first}, {v.bools} {none}, {v.bools} {moves_above}")
            first_moves = moves_above
            held = [self._held(n, at, offset) for offset in range(at_once)]
            for offset, (number, index) in enumerate(held):
                moves = v.logical("and", active, v.compare("ugt", number, value))  # true for empty places
                new = v.select(moves, v.select(moves_above, above[0], value), number)
                new_index = v.int_select(moves, v.int_select(moves_above, above[1], place), index)
                self._hold(n, at, offset, new, new_index)
                above, moves_above = (number, index), moves
            loop.again = v.any(first_moves)

    def _append(self, n: int, value: Value, place: Value, is_nan: Value) -> None:
        """NaN, which come last, to the first place that is empty."""
        v, body = self.v, self.v.body
        with body.loop("seek", self.k) as loop:
            missing = loop.carry(v.bools, is_nan)
            number, index = self._held(n, loop.index, 0)
            empty = body.emit(f"icmp eq {v.ints} {index}, {v.int_const(-1)}")
            takes = v.logical("and", missing, empty)
            self._hold(n, loop.index, 0, v.select(takes, value, number), v.int_select(takes, place, index))
            others = v.logical("xor", takes, v.bool_const(True))
            loop.following = [v.logical("and", missing, others)]

    def _places_of(self, n: int, at: Value, offset: int) -> tuple[Value, Value]:
        first, first_index = self.k * n + offset, self.k * (self.dim + n) + offset
        body = self.v.body
        return body.emit(f"add i64 {at}, {first}"), body.emit(f"add i64 {at}, {first_index}")

    def _held(self, n: int, at: Value, offset: int) -> tuple[Value, Value]:
        """What a place holds, a number and its index."""
        slot, index_slot = self._places_of(n, at, offset)
        return self.load(slot, self.v.kind), self.load(index_slot, self.v.ints)

    def _hold(self, n: int, at: Value, offset: int, number: Value, index: Value) -> None:
        """Volatile: LLVM would make masked stores of selects and stores, which take AMD's processors some 20
        instructions each (AVX2, Zen 4: 3 to 9 times the time of an insertion).
        """
        slot, index_slot = self._places_of(n, at, offset)
        self.store(slot, self.v.kind, number, "store volatile")
        self.store(index_slot, self.v.ints, index, "store volatile")


class Candidates(Reducer):
    """Candidates for the k least of each component.

    A vector of values is compared with the thresholds of its rows. Where none is below, which is most often so,
    that is all; else the values that are below are appended to the rows' lists, with their indices. The driver
    (src/pairs/candidates.hpp) gives a list room for the columns of a call; between calls it selects the k least
    and lowers the threshold. So a column costs the same for any k.

    A component's state is three slots: thresholds, whether NaN is wanted (integers of the type's width, 0 or -1),
    and where in memory the next candidate goes. A threshold of NaN accepts everything. Lanes of columns have one
    list, that of lane 0.
    """

    blocked = False

    def __init__(self, v: Vectors, dim: int, *, one_list: bool) -> None:
        super().__init__(v, dim, v.bits)
        self.one_list = one_list

    @property
    def carried(self) -> list[str]:
        return [self.v.kind] * self.dim

    def enter(self) -> Carried:
        return [self.load(n, self.v.kind) for n in range(self.dim)]

    def update(self, carried: Carried, columns: Columns) -> Carried:
        v = self.v
        for n, threshold in enumerate(carried):
            values = [column[n] for column in columns.values]
            masks = [v.compare("ult", value, threshold) for value in values]
            if columns.valid is not None:
                masks = [v.logical("and", mask, columns.valid) for mask in masks]
            either = functools.reduce(functools.partial(v.logical, "or"), masks)
            with v.body.when(v.any(either), "accept", rarely=True):
                self._append(n, values, masks, columns.places[0])
        return carried

    def _append(self, n: int, values: Sequence[Value], masks: Sequence[Value], places: Value) -> None:
        """Append the values of some columns: a loop over the bits of all their masks, which most often are one."""
        v, body = self.v, self.v.body
        word = f"i{max(v.lanes * len(values), 64)}"
        wants_nan = body.emit(f"icmp ne {v.ints} {self.load(self.dim + n, v.ints)}, {v.int_const(0)}")
        numbers, accepted = v.room(len(values)), "0"
        for n_before, (value, mask) in enumerate(zip(values, masks)):
            v.store(value, v.at(numbers, n_before * v.lanes), v.target.vector_bytes)
            mask = v.logical("and", mask, v.logical("or", wants_nan, v.compare("ord", value, value)))
            bits = body.emit(f"bitcast {v.bools} {mask} to i{v.lanes}")
            bits = body.emit(f"zext i{v.lanes} {bits} to {word}")
            accepted = body.emit(f"or {word} {accepted}, {body.emit(f'shl {word} {bits}, {n_before * v.lanes}')}")
        first = body.emit(f"extractelement {v.ints} {places}, i64 0")
        ends = self.slot(2 * self.dim + n)
        with body.repeat("append", body.emit(f"icmp ne {word} {accepted}, 0")) as loop:
            left = loop.carry(word, accepted)
            place = body.call(word, f"llvm.cttz.{word}", (word, left), ("i1", "true"))
            if word != "i64":
                place = body.emit(f"trunc {word} {place} to i64")
            lane, column = "0", place
            if not self.one_list:
                lane = body.emit(f"and i64 {place}, {v.lanes - 1}")
                column = body.emit(f"lshr i64 {place}, {v.lanes.bit_length() - 1}")
            if v.bits == 32:
                column = body.emit(f"trunc i64 {column} to i32")
            index = body.emit(f"add i{v.bits} {first}, {column}")
            value = body.emit(f"load {v.scalar}, ptr {v.at(numbers, place)}")
            end = body.at("ptr", ends, lane)
            candidate = body.emit(f"load ptr, ptr {end}")
            body.do(f"store {v.scalar} {value}, ptr {candidate}")
            body.do(f"store i{v.bits} {index}, ptr {v.at(candidate, 1)}")
            body.do(f"store ptr {v.at(candidate, 2)}, ptr {end}")
            rest = body.emit(f"and {word} {left}, {body.emit(f'sub {word} {left}, 1')}")
            loop.following = [rest]
            loop.again = body.emit(f"icmp ne {word} {rest}, 0")
