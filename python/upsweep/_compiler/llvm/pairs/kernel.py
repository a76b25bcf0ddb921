"""The kernel of a pair reduction: one tile of rows against a run of columns, as a function in LLVM IR.

    void tile(rows, rows_stride, columns, columns_stride, params, n_columns, first, state, workspace)
    int64 workspace()

It takes the reduction's state (`reducers`) past `n_columns` columns, whose indices begin at `first`. Every
argument but the pointers is an int64; strides are counted in numbers. `workspace` is memory for the time of the
call, of as many bytes as the function of that name says. There are two kinds:

    "rows"      lanes are rows. Component c of lane l is rows[c * rows_stride + l]; a column is a record of
                neighbours, and each of its numbers is spread over a vector.
    "columns"   for few rows: lanes are columns, and the tile is one row, whose record's numbers are neighbours.
                Component c of column j is columns[c * columns_stride + j]. What the lanes hold at the end is
                combined by the caller. Whole vectors are read, beyond the last column too.

Several columns are taken at once, so that the numbers of the row are loaded once for all of them and chains of
independent instructions overlap. Columns come in blocks: sums of float32 are of at most `BLOCK` columns,
and from block to block in the accumulator's type.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.instructions import Parts, Steps, cost_of, order
from upsweep._compiler.llvm.pairs.column_values import part, prepare_function
from upsweep._compiler.llvm.pairs.looped import InMemory, LoopedEach, LoopedExponentials, LoopedSum, reducer
from upsweep._compiler.llvm.pairs.reducers import Carried, Columns, Sum, plus
from upsweep._compiler.llvm.target import BITS, TARGETS, Target
from upsweep._compiler.llvm.vectors import Body, Value, Vectors, module
from upsweep._compiler.lowering.lower import lower

if TYPE_CHECKING:
    from upsweep._compiler.formulas.reduction import PairReduction
    from upsweep._compiler.lowering.program import Program

BLOCK = 256

LONGEST_DISTANCE, LONGEST_VECTOR = 7, 16
"""Distances, and other vectors, of more features are loops: quicker to compile, and they keep to the registers."""

# Columns at once: as many as leave the registers some room, fewer for long programs, whose code would grow.
_COLUMNS_OF_LONG, _COLUMNS = 8, 4
# Components beyond these are walked by a loop: the code of each one would be compiled.
_MOST_SORTED = 3
_MOST_CARRIED = 16
_LONGEST_BODY = 260
# Rows of more numbers are first copied to contiguous memory: far apart they fall into the same few cache sets.
_LONGEST_SCATTERED = 16


def cost(program: Program, reduction: PairReduction) -> float:
    """About how many instructions a vector of pairs takes."""
    varying = {"ij", "j" if reduction.rows == "i" else "i"}
    total, times = 0.0, [1]
    for step in program.values:
        if step.level not in varying:
            continue
        if step.op == "loop":
            times.append(times[-1] * step.static[0])
        elif step.op == "end":
            times.pop()
        total += times[-1] * cost_of(step)
    return total + 2.0 * (program.n_results + program.n_weights) + 14 * (program.n_weights > 0) + 2


class _Kernel:
    """One function while it is written."""

    def __init__(self, program: Program, reduction: PairReduction, target: Target, lanes_are: str) -> None:
        self.reduction, self.lanes_are = reduction, lanes_are
        self.body = Body()
        self.v = v = Vectors(self.body, target, BITS[reduction.dtype])
        self.rows_kind = reduction.rows
        self.columns_kind = "j" if reduction.rows == "i" else "i"
        self.whole = program
        program, self.prepared = part(program, self.columns_kind)
        self.program = program
        self.columns_width = program.width(self.columns_kind) + len(self.prepared)
        self.varying = frozenset({self.columns_kind, "ij"})
        self.shared: dict[int, Value] = {}
        self.unit = 1 if lanes_are == "rows" else v.lanes  # columns in one vector, or scalar
        self.looped = (
            len(program.results) < program.n_results
            or len(program.weights) < program.n_weights
            or program.n_results > (_MOST_SORTED if reduction.k else _MOST_CARRIED)
            or program.n_weights > _MOST_CARRIED
        )
        self.reducer = reducer(
            v, reduction.reduction, program.n_results, program.n_weights, reduction.k,
            BITS[reduction.dtype_acc], looped=self.looped, one_row=lanes_are == "columns",
        )  # fmt: skip
        self.rows_copy: InMemory | None = None
        self.parts = Parts.of(v, program)

    # ---- loads ----

    def _strided(self, pointer: Value, stride: Value, place: Value | int) -> Value:
        return self.v.load(self.v.at(pointer, self.body.emit(f"mul i64 {stride}, {place}")))

    def load(self, kind: str, place: Value | int, column: int) -> Value:
        v, body = self.v, self.body
        if kind == "p":
            return v.number("%params", place)
        if kind == self.rows_kind:
            if self.lanes_are == "columns":
                return v.number("%rows", place)
            if self.rows_copy is not None:
                return self.rows_copy.load(place)
            return self._strided("%rows", "%rows_stride", place)
        if self.lanes_are == "rows":
            behind = column * self.columns_width
            place = place + behind if isinstance(place, int) else body.emit(f"add i64 {place}, {behind}")
            return v.number(self.at, place)
        return self._strided(v.at(self.at, column * v.lanes), "%columns_stride", place)

    def copy_rows(self) -> None:
        """Copy the rows' numbers to contiguous memory."""
        width = self.program.width(self.rows_kind)
        if self.lanes_are == "columns" or width <= _LONGEST_SCATTERED:
            return
        copy = InMemory(self.v, width)
        with self.body.loop("copy", width) as loop:
            copy.store(loop.index, self._strided("%rows", "%rows_stride", loop.index))
        self.rows_copy = copy

    # ---- columns ----

    def columns_at_once(self) -> int:
        if self.parts is not None:
            return 1
        varying = [step for step in self.program.values if step.level in self.varying]
        long = [step for step in varying if step.op in ("sqdist", "dot")]
        most = _COLUMNS_OF_LONG if long else _COLUMNS
        if self.looped:  # what they hand out is kept for each
            most = min(most, _COLUMNS)
        written = sum(cost_of(step) for step in varying if step not in long)
        written += 2 * (len(self.program.results) + len(self.program.weights))
        return next((n for n in (8, 4, 2) if n <= most and n * written <= _LONGEST_BODY), 1)

    def past(self, carried: Carried, j: Value, n_columns: int, valid: Value | None) -> Carried:
        """The reduction past `n_columns` columns (or vectors of them) from column `j` on."""
        v, body = self.v, self.body
        scale = self.columns_width if self.lanes_are == "rows" else 1
        self.at = v.at("%columns", body.emit(f"mul i64 {j}, {scale}"))
        self._enter_parts(self.at)
        steps = self._steps(n_columns)
        carried = (self._past_looped if self.looped else self._past_unrolled)(steps, carried, j, valid)
        steps.finish()
        return carried

    def _past_unrolled(self, steps: Steps, carried: Carried, j: Value, valid: Value | None) -> Carried:
        """The same where all components are carried."""
        v, program, n_columns = self.v, self.program, steps.n_columns
        has_loops = any(step.op == "loop" and step.level in self.varying for step in program.values)
        if has_loops:
            steps.write_level(*self.varying)
        if isinstance(self.reducer, Sum):
            carried, done = list(carried), set(self.shared)
            for component, root in enumerate(program.results):
                if not has_loops:
                    steps.write_all(order(program, (root,), done))
                for column in range(n_columns):
                    value, factors = steps.value(root, column), steps.factors(root, column)
                    carried[component] = plus(v, carried[component], value, factors, valid)
            return carried
        if not has_loops:
            steps.write_all(order(program, (*program.results, *program.weights), set(self.shared)))
        values, weights = (steps.of_columns(roots) for roots in (program.results, program.weights))
        return self.reducer.update(carried, Columns(values, weights, self._places(j, n_columns), valid))

    def _steps(self, n_columns: int) -> Steps:
        return Steps(
            self.v,
            self.program,
            self.varying,
            self.shared,
            n_columns,
            self.load,
            flush=self.reducer.blocked,
            table=True,
            parts=self.parts,
        )

    def _past_looped(self, steps: Steps, carried: Carried, j: Value, valid: Value | None) -> Carried:
        """The same where components are handed out one by one."""
        program, reducer, n_columns = self.program, self.reducer, steps.n_columns
        count = program.n_results if isinstance(reducer, LoopedEach) else program.n_weights
        memory = [] if isinstance(reducer, LoopedSum) else [InMemory(self.v, count) for _ in range(n_columns)]
        for n, step in enumerate(program.values):
            if step.op in ("result", "weight"):
                steps.leave_parts()
                self._keep(steps, steps.place_of(step), step.args[0], memory, valid)
            elif step.level in self.varying:
                steps.write(n)
        steps.leave_parts()
        stored = program.weights if isinstance(reducer, LoopedExponentials) else program.results
        for component, n in enumerate(stored):  # of straight-line code, where there are too many to carry
            self._keep(steps, str(component), n, memory, valid)
        if isinstance(reducer, LoopedEach):
            reducer.past(memory, self._places(j, n_columns), valid)
        elif isinstance(reducer, LoopedExponentials):
            exponents = steps.of_columns(program.results)
            carried = reducer.update(carried, Columns(exponents, [[]] * n_columns, [], valid))
            reducer.add_products(memory, valid)
        return carried

    def _keep(self, steps: Steps, at: Value, n: int, memory: list[InMemory], valid: Value | None) -> None:
        """Add a component to its sum, or keep it until all are there."""
        values = [steps.value(n, column) for column in range(steps.n_columns)]
        if isinstance(self.reducer, LoopedSum):
            factors = [steps.factors(n, column) for column in range(steps.n_columns)]
            self.reducer.sums.add(at, values, factors, valid)
        else:
            for cells, value in zip(memory, values):
                cells.store(at, value)

    def _places(self, j: Value, n_columns: int) -> list[Value]:
        """The indices of the columns, as integers of the numbers' width."""
        v, body = self.v, self.body
        index = body.emit(f"add i64 {j}, %first")
        if v.bits == 32:
            index = body.emit(f"trunc i64 {index} to i32")
        start = v.int_splat(index)
        if self.lanes_are == "columns":
            start = v.integer("add", start, v.int_sequence())
        return [v.integer("add", start, column * self.unit) if column else start for column in range(n_columns)]

    # ---- the function ----

    def loop(self, carried: Carried, begin: Value, end: Value, n_columns: int, *, masked: bool = False) -> Carried:
        """Past the columns from `begin` to `end`, a group of `n_columns` at a time."""
        v, body, kinds = self.v, self.body, self.reducer.carried
        with body.loop("group", end, first=begin, step=n_columns * self.unit, guarded=True) as loop:
            inside, valid = [loop.carry(*each) for each in zip(kinds, carried)], None
            if masked:
                left = body.emit(f"sub i64 {end}, {loop.index}")
                # The index fits the lanes' integers: what is left is at most a whole group when it matters.
                valid = v.first_lanes(body.extreme("umin", left, v.lanes))
            loop.following = self.past(inside, loop.index, n_columns, valid)
        return [loop.phi(*each) for each in zip(kinds, carried, loop.following[1:])]

    def write_block(self, begin: Value, end: Value) -> None:
        """A block of columns, from the state in memory to that after it."""
        n_columns = self.columns_at_once()
        group = n_columns * self.unit
        carried = self.reducer.enter()
        if self.parts is not None and self.unit > 1:  # one copy of a long program
            self.reducer.leave(self.loop(carried, begin, end, 1, masked=True))
            return
        length = self.body.emit(f"sub i64 {end}, {begin}")
        rest = self.body.emit(f"urem i64 {length}, {group}")
        groups_end = self.body.emit(f"sub i64 {end}, {rest}")
        carried = self.loop(carried, begin, groups_end, n_columns)
        if group > 1:
            carried = self.loop(carried, groups_end, end, 1, masked=self.unit > 1)
        self.reducer.leave(carried)

    def _enter_parts(self, *pointers: Value) -> None:
        """Tell the parts of a long program what their loads read."""
        if self.parts is not None:
            copy = [] if self.rows_copy is None else [self.rows_copy.memory]
            strides = dict.fromkeys(("%rows_stride", "%columns_stride"), "i64")
            self.parts.environment = {**dict.fromkeys(("%rows", "%params", *copy, *pointers), "ptr"), **strides}

    def write(self) -> str:
        body = self.body
        self.copy_rows()
        self._enter_parts()
        steps = self._steps(1)
        steps.write_level(*({"i", "j", "ij", "p"} - self.varying))
        steps.finish(shared=True)
        if self.reducer.blocked:
            size = BLOCK * self.unit  # in lanes of columns a block is as many to each lane
            with body.repeat("block") as block:
                begin = block.carry("i64", "0")
                end = body.extreme("umin", body.emit(f"add i64 {begin}, {size}"), "%n_columns")
                self.write_block(begin, end)
                block.following = [end]
                block.again = body.emit(f"icmp ult i64 {end}, %n_columns")
        else:
            self.write_block("0", "%n_columns")
        signature = (
            "void @tile(ptr noalias %rows, i64 %rows_stride, ptr noalias %columns, i64 %columns_stride, "
            "ptr noalias %params, i64 %n_columns, i64 %first, ptr noalias %state, ptr noalias %workspace) #0"
        )
        asked = f"define i64 @workspace() #0 {{\n  ret i64 {body.workspace}\n}}\n"
        functions, needs = [body.define(signature), asked], body.needs
        if self.prepared:
            text, more = prepare_function(self.whole, self.reduction, self.v.target, self.lanes_are, self.prepared)
            functions.append(text)
            needs = {**needs, **more}
        return module(functions, needs)


def render(program: Program, reduction: PairReduction, target: Target, lanes_are: str) -> str:
    """The module with `tile`, for lanes that are "rows" or "columns", and `prepare` if columns are prepared."""
    return _Kernel(program, reduction, target, lanes_are).write()


class CompiledReduction:
    """The tiles of a reduction for one instruction set; each is compiled when it is asked for."""

    def __init__(self, reduction: PairReduction, level: str) -> None:
        self.reduction = reduction
        self.target = TARGETS[level]
        self.program = lower(reduction, long=LONGEST_DISTANCE, unrolled=LONGEST_VECTOR)
        self.lanes = self.target.lanes(reduction.dtype)
        parted, prepared = part(self.program, "j" if reduction.rows == "i" else "i")
        self.n_prepared = len(prepared)  # the numbers that each column is given
        self.cost = cost(parted, reduction)

    def tile(self, lanes_are: str) -> tuple[int, int, int, Any]:
        """The address of the tile whose lanes are "rows" or "columns", that of `prepare` or 0, the bytes of its
        workspace, and what the code lives in.
        """
        key = f"{jit.sources()}\n{lanes_are}\n{self.reduction.key()}"
        text = functools.partial(render, self.program, self.reduction, self.target, lanes_are)
        loaded = jit.load(key, text, self.target)
        prepare = loaded.address("prepare") if self.n_prepared else 0
        return loaded.address("tile"), prepare, loaded.integer("workspace"), loaded
