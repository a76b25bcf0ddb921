"""LLVM IR of the instructions of scalar programs: each value is a vector over the columns that run together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from upsweep._compiler.formulas.ops import INTEGER
from upsweep._compiler.llvm.integers import integer
from upsweep._compiler.llvm.mathematics import OF_LIBRARY, function
from upsweep._compiler.llvm.vectors import Loop, Section, Value, Vectors

if TYPE_CHECKING:
    from upsweep._compiler.lowering.program import Instruction, Program

Load = Callable[[str, "Value | int", int], Value]

# Instructions of the machine that one of a program takes, roughly; 1 if it is not named.
COSTS = {"exp": 14, "exp2": 14, "expm1": 20, "log": 22, "log2": 22, "log10": 22, "log1p": 35, "sin": 45,
         "cos": 45, "tanh": 40, "asin": 30, "acos": 30, "atan": 25, "atan2": 40, "pow": 150, "div": 8, "sqrt": 10,
         "rsqrt": 10, "load": 0, "const": 0, "integer": 0, "imul": 3, "lookup": 30, "integer_lookup": 30,
         **dict.fromkeys(("idiv", "imod", "unsigned_idiv", "unsigned_imod"), 60),
         **dict.fromkeys(OF_LIBRARY, 200)}  # fmt: skip

_PLAIN = ("mul", "div", "neg")
_COMPARED = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_FIXED = ("array", "loop", "number")  # whose values are in no part
_FEATURES_AT_ONCE = 4  # of long distances: the loop's own instructions are few beside these
_CHAINS = 8  # independent partial sums: two adders with a latency of four cycles each
_LONG, _PART = 5000, 600  # instructions of a program that is written in parts, and of a part


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


def _is_cheap(step: Instruction) -> bool:
    """Whether a part writes a value of another one again: a number of a record, a comparison."""
    return step.op in _COMPARED or (step.op == "load" and not step.args)


class Parts:
    """The parts of a long program: functions of some hundred instructions each.

    LLVM's register allocator, its scheduler and others take time in proportion to the square of a function's
    length: 34 s for 111,000 instructions, in parts 5 to 7 s (AVX-512, LLVM 22, 2026-11). What a part reads of
    another one goes through the workspace. As spill slots of one function these values would be more than a
    small stack holds.
    """

    def __init__(self, v: Vectors) -> None:
        self.v = v
        self.environment: dict[Value, str] = {}  # the names that loads read, and their types
        self._outside: Section | None = None  # while a part is written
        self._sections: dict[int, Section] = {}  # the parts that are not defined yet, by number
        self._number = self._last = 0  # of the part that is written, 0 outside; of the last part
        self._length = 0  # of the part, in instructions
        self._written: dict[Value, tuple[int, int]] = {}  # where a value is: its part, and the line after it
        self._loaded: dict[tuple[int, Value], Value] = {}  # in a part
        self._cells: dict[Value, str] = {}
        self._stored: set[Value] = set()

    @classmethod
    def of(cls, v: Vectors, program: Program) -> Parts | None:
        """The parts of a program; None if it is short."""
        n_steps = sum(step.op not in ("load", "const") for step in program.values)
        return cls(v) if n_steps > _LONG else None

    def enter(self) -> None:
        """Write what follows to a part: the present one, or after so many instructions a new one."""
        if self._outside is not None and self._length >= _PART:
            self.leave()
        if self._outside is None:
            self._last += 1
            self._number, self._length = self._last, 0
            self._outside = self.v.body.exchange(Section(is_part=True))
        self._length += 1

    def leave(self) -> None:
        """Write what follows outside of the parts."""
        if self._outside is not None:
            self._sections[self._number] = self.v.body.exchange(self._outside)
            self.v.body.do(f"call void @part{self._number}({self._parameters()})")
            self._outside, self._number = None, 0

    def _parameters(self) -> str:
        return ", ".join(f"{kind} {name}" for name, kind in {**self.environment, "%workspace": "ptr"}.items())

    def add(self, name: Value) -> None:
        """A value has been written."""
        self._written[name] = self._number, len(self.v.body.lines)

    def local(self, name: Value, again: Callable[[], Value | None]) -> Value:
        """The value in this part: by `again` where that writes it, else from memory."""
        if self._written[name][0] == self._number:
            return name
        key = self._number, name
        if key not in self._loaded:
            written = again()
            if written is None:
                written = self.v.load(self.v.body.emit(self._cell(name)), self.v.target.vector_bytes)
            self._loaded[key] = written
        return self._loaded[key]

    def _cell(self, name: Value) -> str:
        """The instruction that computes the address of a value in the workspace."""
        if name not in self._cells:
            self._cells[name] = self.v.body.in_workspace(self.v.lanes * self.v.bits // 8)
        return self._cells[name]

    def finish(self, *values: Value) -> None:
        """Define the parts, which store what others load, and `values`. A loop around them has not ended."""
        self.leave()
        v = self.v
        for name in values:
            self._cell(name)
        behind: dict[tuple[int, int], list[str]] = {}
        for name in [name for name in self._cells if name not in self._stored]:
            pointer = v.body.name()
            store = f"  store {v.kind} {name}, ptr {pointer}, align {v.target.vector_bytes}"
            behind.setdefault(self._written[name], []).extend([f"  {pointer} = {self._cells[name]}", store])
        self._stored.update(self._cells)
        for number, section in {0: v.body, **self._sections}.items():
            lines = enumerate([*section.lines, ""])
            section.lines[:] = [each for n, line in lines for each in (*behind.get((number, n), ()), line)]
        for number, section in self._sections.items():
            signature = f"internal void @part{number}({self._parameters()}) noinline #0"
            v.body.needs[f"@part{number}"] = section.define(signature)
        self._sections.clear()
        self._loaded.clear()  # the next parts are in another loop


class Steps:
    """Writes instructions for `n_columns` columns at once.

    `load(kind, place, column)` writes the load of a number of the packed record of a kind, its place an integer
    or a value. Values that do not depend on the columns are written once, and shared by all `Steps` of a body.
    """

    def __init__(
        self, v: Vectors, program: Program, varying: frozenset[str], shared: dict[int, Value], n_columns: int,
        load: Load, *, flush: bool, table: bool = False, parts: Parts | None = None,
    ) -> None:  # fmt: skip
        self.v, self.program, self.shared, self.n_columns, self.load = v, program, shared, n_columns, load
        self.flush = flush  # whether the kernel runs with subnormal results as 0
        self.table = table  # whether exp may have other bits in whole vectors than in shorter ones
        self.varying = varying  # the levels that change from column to column
        self.moving = "j" if "j" in varying else "i"
        self.own: list[dict[int, Value]] = [{} for _ in range(n_columns)]
        self.parts = parts
        self._loops: list[tuple[AbstractContextManager[Loop], Loop, list[int]]] = []
        self._ended: list[int] = []  # the carries of the loop that ended last

    @functools.cached_property
    def _at_most_zero(self) -> set[int]:
        return _never_positive(self.program)

    def value(self, n: int, column: int) -> Value:
        step = self.program.values[n]
        if self.parts is not None and step.op == "const":  # the name of a constant is that of one function
            return self.v.const(step.static[0])
        name = self.shared[n] if n in self.shared else self.own[column][n]
        if self.parts is None or step.op in _FIXED:
            return name
        return self.parts.local(name, functools.partial(self._again, n, column))

    def _again(self, n: int, column: int) -> Value | None:
        """Write a value again that takes no more than to load it."""
        step = self.program.values[n]
        return self._one(n, step, column) if _is_cheap(step) else None

    def of_columns(self, roots: tuple[int, ...]) -> list[list[Value]]:
        """For each column, some values."""
        return [[self.value(n, column) for n in roots] for column in range(self.n_columns)]

    def write(self, n: int) -> None:
        """One instruction, for every column or once."""
        step = self.program.values[n]
        if self.parts is not None and not self._loops:
            (self.parts.leave if step.op in _STRUCTURE else self.parts.enter)()
        if step.op in _STRUCTURE:
            _STRUCTURE[step.op](self, n, step)
        elif step.op in ("sqdist", "dot"):
            for own, name in zip(self.own, self._long(step)):
                own[n] = name
        else:
            self.v.body.in_turn(
                functools.partial(self._write_one, n, step, column) for column in self._columns(step)
            )
        if self.parts is not None:
            for m in self._ended if step.op == "end" else [n]:
                for names in (self.shared, *self.own):
                    if m in names:
                        self.parts.add(names[m])

    def leave_parts(self) -> None:
        """What follows the instructions, and reads their values, is in no part."""
        if self.parts is not None:
            self.parts.leave()

    def finish(self, *, shared: bool = False) -> None:
        """Define the parts, before a loop around them ends; those to come load all values that are `shared`."""
        if self.parts is not None:
            steps = ((self.program.values[n], name) for n, name in self.shared.items())
            names = [name for step, name in steps if not (step.op in (*_FIXED, "const") or _is_cheap(step))]
            self.parts.finish(*(names if shared else ()))

    def write_level(self, *levels: str) -> None:
        """All instructions of some levels."""
        self.write_all(n for n, step in enumerate(self.program.values) if step.level in levels)

    def write_all(self, numbers: Iterable[int]) -> None:
        for n in numbers:
            self.write(n)
        self.leave_parts()

    def _columns(self, step: Instruction) -> range:
        return range(self.n_columns if step.level in self.varying else 1)

    def _set(self, n: int, column: int, step: Instruction, name: Value) -> None:
        (self.own[column] if step.level in self.varying else self.shared)[n] = name

    def _write_one(self, n: int, step: Instruction, column: int) -> Value:
        name = self._one(n, step, column)
        self._set(n, column, step, name)
        return name

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
        if op == "integer" or op in INTEGER:
            return integer(v, op, args, step.static)
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
        return function(
            self.v, "exp", x, never_positive=below, negated=negated, flush=self.flush, table=self.table
        )

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
        self._ended = carries

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
