"""LLVM IR of the instructions of scalar programs: each value is a vector over the columns that run together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from upsweep._compiler.llvm.mathematics import function
from upsweep._compiler.llvm.vectors import Vectors

if TYPE_CHECKING:
    from upsweep._compiler.lowering.program import Instruction, Program

__all__ = ["Steps", "cost_of", "order"]

Value = str
Load = Callable[[str, "Value | int", int], Value]

# Instructions of the machine that one of a program takes, roughly; 1 if it is not named.
_COSTS = {"exp": 14, "log": 22, "sin": 45, "cos": 45, "tanh": 40, "asin": 30, "acos": 30, "atan": 25, "atan2": 40,
          "pow": 150, "div": 8, "sqrt": 10, "rsqrt": 10, "load": 0, "const": 0}  # fmt: skip

_PLAIN = ("mul", "div", "neg")
_COMPARED = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_FEATURES_AT_ONCE = 4  # of long distances: the loop's own instructions are few beside these
_CHAINS = 8  # independent partial sums: two adders with a latency of four cycles each


def cost_of(step: Instruction) -> float:
    """About how many instructions a step takes for one vector."""
    return 2.0 * step.static[2] if step.op in ("sqdist", "dot") else _COSTS.get(step.op, 1)


def _never_negative(program: Program) -> set[int]:
    """The values that are at least 0, or NaN, whatever the data are.

    Not quotients: a zero may be a negative one.
    """
    result: set[int] = set()
    for n, step in enumerate(program.values):
        known = [arg in result for arg in step.args]
        if (
            step.op in ("abs", "sqrt", "exp", "sqdist")
            or (step.op == "mul" and step.args[0] == step.args[1])
            or (step.op == "const" and step.static[0] >= 0)
            or (step.op in ("add", "mul") and all(known))
            or (step.op == "select" and all(known[1:]))
        ):
            result.add(n)
    return result


def _never_positive(program: Program, at_least_zero: set[int]) -> set[int]:
    result: set[int] = set()
    for n, step in enumerate(program.values):
        args = step.args
        if step.op == "neg":
            fits = args[0] in at_least_zero
        elif step.op == "const":
            fits = step.static[0] <= 0
        elif step.op == "mul":
            signs = [(arg in at_least_zero, arg in result) for arg in args]
            fits = (signs[0][0] and signs[1][1]) or (signs[0][1] and signs[1][0])
        else:
            fits = step.op == "add" and args[0] in result and args[1] in result
        if fits:
            result.add(n)
    return result


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
        self,
        v: Vectors,
        program: Program,
        varying: frozenset[str],
        shared: dict[int, Value],
        n_columns: int,
        load: Load,
        *,
        flush: bool,
    ) -> None:
        self.v, self.program, self.shared, self.n_columns, self.load = v, program, shared, n_columns, load
        self.flush = flush  # whether the kernel runs with subnormal results as 0
        self.varying = varying  # the levels that change from column to column
        self.moving = "j" if "j" in varying else "i"
        self.own: list[dict[int, Value]] = [{} for _ in range(n_columns)]
        self._at_least_zero = _never_negative(program)
        self._at_most_zero = _never_positive(program, self._at_least_zero)
        self._loops: list[tuple[int, str, str, list[int], list[list[Value]]]] = []

    def value(self, n: int, column: int) -> Value:
        return self.shared[n] if n in self.shared else self.own[column][n]

    def write(self, n: int) -> None:
        """One instruction, for every column or once."""
        step = self.program.values[n]
        if step.op in _STRUCTURE:
            _STRUCTURE[step.op](self, n, step)
            return
        if step.op in ("sqdist", "dot"):
            for column, name in enumerate(self._long(step)):
                self.own[column][n] = name
            return
        for column in self._columns(step):
            self._set(n, column, step, self._one(n, step, column))

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
        before, loop, done = body.block, body.label("long"), body.label("summed")
        whole = dim - dim % _FEATURES_AT_ONCE
        # Sums of few columns are parted by features: each has to wait for itself only.
        n_chains = min(_FEATURES_AT_ONCE, max(1, _CHAINS // self.n_columns))
        body.do(f"br label %{loop}")
        body.place(loop)
        at, after = body.name("k"), body.name("k")
        body.do(f"{at} = phi i64 [0, %{before}], [{after}, %{loop}]")
        begins = [[body.name("sum") for _ in range(self.n_columns)] for _ in range(n_chains)]
        place = len(body.lines)
        chains = [list(begin) for begin in begins]
        for feature in range(_FEATURES_AT_ONCE):
            chain = feature % n_chains
            chains[chain] = self._feature(
                step.op, chains[chain], (at, x_offset + feature), (at, y_offset + feature)
            )
        body.do(f"{after} = add i64 {at}, {_FEATURES_AT_ONCE}")
        for begin, end in (two for chain in zip(begins, chains) for two in zip(*chain)):
            body.lines.insert(place, f"  {begin} = phi {v.kind} [{v.const(0.0)}, %{before}], [{end}, %{loop}]")
        body.branch(body.emit(f"icmp ult i64 {after}, {whole}"), loop, done)
        body.place(done)
        for k in range(whole, dim):
            chain = k % n_chains
            chains[chain] = self._feature(step.op, chains[chain], (None, x_offset + k), (None, y_offset + k))
        while len(chains) > 1:
            half = len(chains) // 2
            chains = [[v.add(*two) for two in zip(*pair)] for pair in zip(chains[:half], chains[half:])]
        return chains[0]

    def _feature(
        self, op: str, sums: list[Value], x_at: tuple[Value | None, int], y_at: tuple[Value | None, int]
    ) -> list[Value]:
        v = self.v
        places = []
        for at, offset in (x_at, y_at):
            places.append(offset if at is None else v.body.emit(f"add i64 {at}, {offset}"))
        of_kind = dict(zip(("i", "j"), places))
        fixed = "i" if self.moving == "j" else "j"
        x = self.load(fixed, of_kind[fixed], 0)
        result = []
        for column, total in enumerate(sums):
            y = self.load(self.moving, of_kind[self.moving], column)
            if op == "dot":
                result.append(v.fma(x, y, total))
            else:
                difference = v.sub(x, y)
                result.append(v.fma(difference, difference, total))
        return result

    # ---- loops over features ----

    def _loop(self, n: int, step: Instruction) -> None:
        body = self.v.body
        before, label = body.block, body.label("each")
        body.do(f"br label %{label}")
        body.place(label)
        self.shared[n] = body.name("k")
        # The phi's other end is known at the loop's end.
        self._loops.append((n, before, label, [], []))
        body.lines.append(f"  {self.shared[n]} = phi i64 [0, %{before}], [{self.shared[n]}.next, %{{{label}}}]")

    def _carry(self, n: int, step: Instruction) -> None:
        _, before, label, carries, names = self._loops[-1]
        carries.append(n)
        result: list[Value] = []
        for column in self._columns(step):
            name, init = self.v.body.name("c"), self.value(step.args[0], column)
            self.v.body.lines.append(
                f"  {name} = phi {self.v.kind} [{init}, %{before}], [{name}.next, %{{{label}}}]"
            )
            self._set(n, column, step, name)
            result.append(name)
        names.append(result)

    def _end(self, n: int, step: Instruction) -> None:
        body, v = self.v.body, self.v
        loop, _, label, carries, names = self._loops.pop()
        index, extent = self.shared[loop], self.program.values[loop].static[0]
        for carry, result, following in zip(carries, names, step.args[1:]):
            for column, name in enumerate(result):
                value = self.value(following, column)
                body.lines.append(f"  {name}.next = bitcast {v.kind} {value} to {v.kind}")
                self._set(carry, column, self.program.values[carry], f"{name}.next")
        body.lines.append(f"  {index}.next = add i64 {index}, 1")
        done, last = body.label("over"), body.block
        # Blocks within the body may have come between: the phis are given the last one.
        mark = f"%{{{label}}}"
        for at in range(len(body.lines) - 1, -1, -1):
            if mark in body.lines[at]:
                body.lines[at] = body.lines[at].replace(mark, f"%{last}")
            if body.lines[at] == f"{label}:":
                break
        body.branch(body.emit(f"icmp ult i64 {index}.next, {extent}"), label, done)
        body.place(done)

    def _number(self, n: int, step: Instruction) -> None:
        v, body = self.v, self.v.body
        self.shared[n] = v.splat(body.emit(f"uitofp i64 {self.shared[step.args[0]]} to {v.scalar}"))

    def _array(self, n: int, step: Instruction) -> None:
        for column in self._columns(step):
            memory = self.v.room(max(1, step.static[0]))
            self._set(n, column, step, memory)

    def _cell(self, array: Value, loops: tuple[int, ...], static: tuple[int, ...]) -> Value:
        place = self._place(loops, list(static))
        return self.v.body.emit(f"getelementptr {self.v.kind}, ptr {array}, i64 {place}")

    def _put(self, n: int, step: Instruction) -> None:
        array, value, *loops = step.args
        for column in self._columns(step):
            cell = self._cell(self.value(array, column), tuple(loops), step.static)
            self.v.store(self.value(value, column), cell, self.v.target.vector_bytes)

    def _get(self, n: int, step: Instruction) -> None:
        array, *loops = step.args
        for column in self._columns(step):
            cell = self._cell(self.value(array, column), tuple(loops), step.static)
            self._set(n, column, step, self.v.load(cell, self.v.target.vector_bytes))

    def place_of(self, step: Instruction) -> Value:
        """The component that a `result` or `weight` is."""
        return str(self._place(step.args[1:], list(step.static)))


_STRUCTURE: dict[str, Callable[[Steps, int, Instruction], None]] = {
    "loop": Steps._loop, "carry": Steps._carry, "end": Steps._end, "number": Steps._number,
    "array": Steps._array, "put": Steps._put, "get": Steps._get,
}  # fmt: skip
