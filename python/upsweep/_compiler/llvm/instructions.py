"""LLVM IR of the instructions of scalar programs: each value is a vector over the columns that run together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from upsweep._compiler.llvm.mathematics import function
from upsweep._compiler.llvm.vectors import Loop, Value, Vectors

if TYPE_CHECKING:
    from upsweep._compiler.lowering.program import Instruction, Program

Load = Callable[[str, "Value | int", int], Value]

# Instructions of the machine that one of a program takes, roughly; 1 if it is not named.
COSTS = {"exp": 14, "log": 22, "sin": 45, "cos": 45, "tanh": 40, "asin": 30, "acos": 30, "atan": 25, "atan2": 40,
          "pow": 150, "div": 8, "sqrt": 10, "rsqrt": 10, "load": 0, "const": 0}  # fmt: skip

_PLAIN = ("mul", "div", "neg")
_COMPARED = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_FEATURES_AT_ONCE = 4  # of long distances: the loop's own instructions are few beside these
_CHAINS = 8  # independent partial sums: two adders with a latency of four cycles each


def cost_of(step: Instruction) -> float:
    """About how many instructions a step takes for one vector."""
    return 2.0 * step.static[2] if step.op in ("sqdist", "dot") else COSTS.get(step.op, 1)


def _never_positive(program: Program) -> set[int]:
    """The values that are at most 0, or NaN, whatever the data are.

    Not quotients: a zero may be a negative one.
    """
    positive: set[int] = set()
    negative: set[int] = set()
    for n, step in enumerate(program.values):
        op, args = step.op, step.args
        above, below = [arg in positive for arg in args], [arg in negative for arg in args]
        if (
            op in ("abs", "sqrt", "exp", "sqdist")
            or (op == "mul" and args[0] == args[1])
            or (op == "const" and step.static[0] >= 0)
            or (op in ("add", "mul") and all(above))
            or (op == "select" and all(above[1:]))
        ):
            positive.add(n)
        if (
            (op == "neg" and above[0])
            or (op == "const" and step.static[0] <= 0)
            or (op == "mul" and ((above[0] and below[1]) or (below[0] and above[1])))
            or (op == "add" and all(below))
        ):
            negative.add(n)
    return negative


def order(program: Program, roots: tuple[int, ...], done: set[int]) -> list[int]:
    """The values that `roots` need and are not `done`, arguments first, each as late as it can be.

    So few are kept at a time: of a sum of squares one term, where the program's list may have all before the
    first sum.
    """
    result: list[int] = []
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        n, entered = stack.pop()
        if n in done:
            continue
        if entered:
            done.add(n)
            result.append(n)
        else:
            stack.append((n, True))
            stack += [(arg, False) for arg in reversed(program.values[n].args)]
    return result


class Steps:
    """Writes instructions for `n_columns` columns at once.

    `load(kind, place, column)` writes the load of a number of the packed record of a kind, its place an integer
    or a value. Values that do not depend on the columns are written once, and shared by all `Steps` of a body.
    """

    def __init__(
        self, v: Vectors, program: Program, varying: frozenset[str], shared: dict[int, Value], n_columns: int,
        load: Load, *, flush: bool,
    ) -> None:  # fmt: skip
        self.v, self.program, self.shared, self.n_columns, self.load = v, program, shared, n_columns, load
        self.flush = flush  # whether the kernel runs with subnormal results as 0
        self.varying = varying  # the levels that change from column to column
        self.moving = "j" if "j" in varying else "i"
        self.own: list[dict[int, Value]] = [{} for _ in range(n_columns)]
        self._loops: list[tuple[AbstractContextManager[Loop], Loop, list[int]]] = []

    @functools.cached_property
    def _at_most_zero(self) -> set[int]:
        return _never_positive(self.program)

    def value(self, n: int, column: int) -> Value:
        return self.shared[n] if n in self.shared else self.own[column][n]

    def of_columns(self, roots: tuple[int, ...]) -> list[list[Value]]:
        """For each column, some values."""
        return [[self.value(n, column) for n in roots] for column in range(self.n_columns)]

    def write(self, n: int) -> None:
        """One instruction, for every column or once."""
        step = self.program.values[n]
        if step.op in _STRUCTURE:
            _STRUCTURE[step.op](self, n, step)
        elif step.op in ("sqdist", "dot"):
            for own, name in zip(self.own, self._long(step)):
                own[n] = name
        else:
            for column in self._columns(step):
                self._set(n, column, step, self._one(n, step, column))

    def write_level(self, *levels: str) -> None:
        """All instructions of some levels."""
        self.write_all(n for n, step in enumerate(self.program.values) if step.level in levels)

    def write_all(self, numbers: Iterable[int]) -> None:
        for n in numbers:
            self.write(n)

    def _columns(self, step: Instruction) -> range:
        return range(self.n_columns if step.level in self.varying else 1)

    def _set(self, n: int, column: int, step: Instruction, name: Value) -> None:
        (self.own[column] if step.level in self.varying else self.shared)[n] = name

    def _one(self, n: int, step: Instruction, column: int) -> Value:
        v, op = self.v, step.op
        if op == "load" and column and step.static[0] != self.moving:
            return self.own[0][n]  # in a loop of pairs' level: the same for every column
        if op == "const":
            return v.const(step.static[0])
        if op == "load":
            kind, *static = step.static
            return self.load(kind, self._place(step.args, static), column)
        if op == "exp":
            return self._exp(step.args[0], column)
        args = [self.value(arg, column) for arg in step.args]
        if op in ("add", "sub"):
            return v.fused(op, args, [self.factors(arg, column) for arg in step.args])
        if op in _PLAIN:
            return str(getattr(v, op)(*args))
        if op in _COMPARED:
            return v.compare(_COMPARED[op], *args)
        if op == "select":
            return v.select(*args)
        return function(v, op, *args)

    def factors(self, n: int, column: int) -> list[Value] | None:
        """The factors of a value that is a product, to be fused with a sum; else None.

        A product that does not vary is computed once, outside of the loop over columns, and is not fused.
        """
        step = self.program.values[n]
        if step.op != "mul" or step.level not in self.varying:
            return None
        return [self.value(arg, column) for arg in step.args]

    def _exp(self, arg: int, column: int) -> Value:
        below = arg in self._at_most_zero
        source = self.program.values[arg]
        negated = source.op == "neg" and below  # the sign costs nothing in there
        x = self.value(source.args[0] if negated else arg, column)
        return function(self.v, "exp", x, never_positive=below, negated=negated, flush=self.flush)

    def _place(self, loops: tuple[int, ...], static: list[int]) -> Value | int:
        """offset + sum(loop * stride), as a number or a value of 64 bits."""
        body, (offset, *strides) = self.v.body, static
        place: Value | int = offset
        for loop, stride in zip(loops, strides):
            term = body.emit(f"mul i64 {self.shared[loop]}, {stride}") if stride != 1 else self.shared[loop]
            place = body.emit(f"add i64 {term}, {place}")
        return place

    def _long(self, step: Instruction) -> list[Value]:
        """Sums over many features of (x - y)^2 or x y, of all columns in one loop."""
        v, body = self.v, self.v.body
        x_offset, y_offset, dim = step.static
        whole = dim - dim % _FEATURES_AT_ONCE
        # Sums of few columns are parted by features: each has to wait for itself only.
        n_chains = min(_FEATURES_AT_ONCE, max(1, _CHAINS // self.n_columns))
        with body.loop("long", whole, step=_FEATURES_AT_ONCE) as loop:
            zero = v.const(0.0)
            chains = [[loop.carry(v.kind, zero) for _ in range(self.n_columns)] for _ in range(n_chains)]
            for n in range(_FEATURES_AT_ONCE):
                x, y = (body.emit(f"add i64 {loop.index}, {offset + n}") for offset in (x_offset, y_offset))
                chains[n % n_chains] = self._feature(step.op, chains[n % n_chains], x, y)
            loop.following = [total for chain in chains for total in chain]
        for n in range(whole, dim):
            chains[n % n_chains] = self._feature(step.op, chains[n % n_chains], x_offset + n, y_offset + n)
        while len(chains) > 1:
            half = len(chains) // 2
            chains = [[v.add(*two) for two in zip(*pair)] for pair in zip(chains[:half], chains[half:])]
        return chains[0]

    def _feature(self, op: str, sums: list[Value], i: Value | int, j: Value | int) -> list[Value]:
        """The sums after a feature, which is in these places of the records of kinds i and j."""
        v = self.v
        (fixed, x_at), (moving, y_at) = (("i", i), ("j", j)) if self.moving == "j" else (("j", j), ("i", i))
        x = self.load(fixed, x_at, 0)
        result = []
        for column, total in enumerate(sums):
            y = self.load(moving, y_at, column)
            difference = v.sub(x, y) if op == "sqdist" else ""
            result.append(v.fma(difference or x, difference or y, total))
        return result

    # ---- loops over features ----

    def _loop(self, n: int, step: Instruction) -> None:
        manager = self.v.body.loop("each", step.static[0])
        loop = manager.__enter__()  # left by the instruction `end`
        self.shared[n] = loop.index
        self._loops.append((manager, loop, []))

    def _carry(self, n: int, step: Instruction) -> None:
        _, loop, carries = self._loops[-1]
        carries.append(n)
        for column in self._columns(step):
            self._set(n, column, step, loop.carry(self.v.kind, self.value(step.args[0], column)))

    def _end(self, n: int, step: Instruction) -> None:
        manager, loop, carries = self._loops.pop()
        for carry, following in zip(carries, step.args[1:]):
            for column in self._columns(self.program.values[carry]):
                value = self.value(following, column)
                loop.following.append(value)
                self._set(carry, column, self.program.values[carry], value)
        manager.__exit__(None, None, None)

    def _number(self, n: int, step: Instruction) -> None:
        v, body = self.v, self.v.body
        self.shared[n] = v.splat(body.emit(f"uitofp i64 {self.shared[step.args[0]]} to {v.scalar}"))

    def _array(self, n: int, step: Instruction) -> None:
        for column in self._columns(step):
            self._set(n, column, step, self.v.room(max(1, step.static[0])))

    def _cell(self, n: int, column: int, loops: list[int], step: Instruction) -> Value:
        """The address of an element of the array that instruction n is."""
        array = self.value(n, column)
        return self.v.body.at(self.v.kind, array, self._place(tuple(loops), list(step.static)))

    def _put(self, n: int, step: Instruction) -> None:
        array, value, *loops = step.args
        for column in self._columns(step):
            cell = self._cell(array, column, loops, step)
            self.v.store(self.value(value, column), cell, self.v.target.vector_bytes)

    def _get(self, n: int, step: Instruction) -> None:
        array, *loops = step.args
        for column in self._columns(step):
            cell = self._cell(array, column, loops, step)
            self._set(n, column, step, self.v.load(cell, self.v.target.vector_bytes))

    def place_of(self, step: Instruction) -> Value:
        """The component that a `result` or `weight` is."""
        return str(self._place(step.args[1:], list(step.static)))


_STRUCTURE: dict[str, Callable[[Steps, int, Instruction], None]] = {
    "loop": Steps._loop, "carry": Steps._carry, "end": Steps._end, "number": Steps._number,
    "array": Steps._array, "put": Steps._put, "get": Steps._get,
}  # fmt: skip
