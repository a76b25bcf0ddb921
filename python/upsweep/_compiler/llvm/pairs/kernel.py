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

from typing import TYPE_CHECKING

from upsweep._compiler.llvm.instructions import Steps, cost_of, order
from upsweep._compiler.llvm.pairs.column_values import part, prepare_function
from upsweep._compiler.llvm.pairs.looped import (
    InMemory,
    LoopedEach,
    LoopedExponentials,
    LoopedSum,
    handed_out,
    looped_reducer,
)
from upsweep._compiler.llvm.pairs.reducers import Reducer, Sum, plus, reducer
from upsweep._compiler.llvm.target import Target
from upsweep._compiler.llvm.vectors import Body, Vectors

if TYPE_CHECKING:
    from upsweep._compiler.formulas.reduction import PairReduction
    from upsweep._compiler.lowering.program import Program

__all__ = ["BLOCK", "LONGEST_DISTANCE", "LONGEST_VECTOR", "cost", "render"]

Value = str
Carried = list[Value]

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
        bits = {"float32": 32, "float64": 64}[reduction.dtype]
        self.v = v = Vectors(self.body, target, bits, target.lanes(reduction.dtype))
        self.rows_kind = reduction.rows
        self.columns_kind = "j" if reduction.rows == "i" else "i"
        self.whole = program
        program, self.prepared = part(program, self.columns_kind)
        self.program = program
        self.columns_width = program.width(self.columns_kind) + len(self.prepared)
        self.varying = frozenset({self.columns_kind, "ij"})
        self.shared: dict[int, Value] = {}
        self.unit = 1 if lanes_are == "rows" else v.lanes  # columns in one vector, or scalar
        accumulator_bits = {"float32": 32, "float64": 64}[reduction.dtype_acc]
        self.looped = (
            len(program.results) < program.n_results
            or len(program.weights) < program.n_weights
            or program.n_results > (_MOST_SORTED if reduction.k else _MOST_CARRIED)
            or program.n_weights > _MOST_CARRIED
        )
        make = looped_reducer if self.looped else reducer
        self.reducer: Reducer = make(
            v, "%state", reduction.reduction, program.n_results, program.n_weights, reduction.k, accumulator_bits
        )
        self.rows_copy: Value | None = None

    # ---- loads ----

    def _scalar(self, pointer: Value, place: Value | int) -> Value:
        v, body = self.v, self.body
        address = body.emit(f"getelementptr {v.scalar}, ptr {pointer}, i64 {place}")
        return v.splat(body.emit(f"load {v.scalar}, ptr {address}"))

    def _strided(self, pointer: Value, stride: Value, place: Value | int) -> Value:
        offset = self.body.emit(f"mul i64 {stride}, {place}")
        return self.v.load(self.body.emit(f"getelementptr {self.v.scalar}, ptr {pointer}, i64 {offset}"))

    def load(self, kind: str, place: Value | int, column: int) -> Value:
        v, body = self.v, self.body
        if kind == "p":
            return self._scalar("%params", place)
        if kind == self.rows_kind:
            if self.lanes_are == "columns":
                return self._scalar("%rows", place)
            if self.rows_copy is not None:
                address = body.emit(f"getelementptr {v.kind}, ptr {self.rows_copy}, i64 {place}")
                return v.load(address, v.target.vector_bytes)
            return self._strided("%rows", "%rows_stride", place)
        if self.lanes_are == "rows":
            behind = column * self.columns_width
            place = place + behind if isinstance(place, int) else body.emit(f"add i64 {place}, {behind}")
            return self._scalar(self.at, place)
        vector = body.emit(f"getelementptr {v.scalar}, ptr {self.at}, i64 {column * v.lanes}")
        return self._strided(vector, "%columns_stride", place)

    def copy_rows(self) -> None:
        """Copy the rows' numbers to contiguous memory."""
        v, body, width = self.v, self.body, self.program.width(self.rows_kind)
        if self.lanes_are == "columns" or width <= _LONGEST_SCATTERED:
            return
        memory = v.room(width)
        before, loop, done = body.block, body.label("copy"), body.label("copied")
        body.do(f"br label %{loop}")
        body.place(loop)
        at, after = body.name("c"), body.name("c")
        body.do(f"{at} = phi i64 [0, %{before}], [{after}, %{loop}]")
        value = self._strided("%rows", "%rows_stride", at)
        v.store(value, body.emit(f"getelementptr {v.kind}, ptr {memory}, i64 {at}"), v.target.vector_bytes)
        body.do(f"{after} = add i64 {at}, 1")
        body.branch(body.emit(f"icmp ult i64 {after}, {width}"), loop, done)
        body.place(done)
        self.rows_copy = memory

    # ---- columns ----

    def columns_at_once(self) -> int:
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
        v, body, program = self.v, self.body, self.program
        scale = self.columns_width if self.lanes_are == "rows" else 1
        offset = body.emit(f"mul i64 {j}, {scale}")
        self.at = body.emit(f"getelementptr {v.scalar}, ptr %columns, i64 {offset}")
        steps = Steps(v, program, self.varying, self.shared, n_columns, self.load, flush=self.reducer.blocked)
        if self.looped:
            return self._past_looped(steps, carried, j, n_columns, valid)
        if isinstance(self.reducer, Sum) and not self._has_loops():
            done = set(self.shared)
            carried = list(carried)
            for component, root in enumerate(program.results):
                for n in order(program, (root,), done):
                    steps.write(n)
                for column in range(n_columns):
                    self._add_column(carried, steps, component, column, valid)
            return carried
        if self._has_loops():
            for n, step in enumerate(program.values):
                if step.level in self.varying:
                    steps.write(n)
        else:
            for n in order(program, (*program.results, *program.weights), set(self.shared)):
                steps.write(n)
        columns = range(n_columns)
        if isinstance(self.reducer, Sum):
            carried = list(carried)
            for column in columns:
                for component in range(len(program.results)):
                    self._add_column(carried, steps, component, column, valid)
            return carried
        values = [[steps.value(n, column) for n in program.results] for column in columns]
        weights = [[steps.value(n, column) for n in program.weights] for column in columns]
        return self.reducer.update(carried, values, weights, self._places(j, n_columns), valid)

    def _add_column(
        self, carried: Carried, steps: Steps, component: int, column: int, valid: Value | None
    ) -> None:
        """Add one component of one column to its sum."""
        root = self.program.results[component]
        value, factors = steps.value(root, column), steps.factors(root, column)
        carried[component] = plus(self.v, carried[component], value, factors, valid)

    def _past_looped(
        self, steps: Steps, carried: Carried, j: Value, n_columns: int, valid: Value | None
    ) -> Carried:
        """The same where components are handed out one by one."""
        v, program, reducer = self.v, self.program, self.reducer
        count = program.n_results if isinstance(reducer, LoopedEach) else program.n_weights
        memory = [] if isinstance(reducer, LoopedSum) else handed_out(v, count, n_columns)
        for n, step in enumerate(program.values):
            if step.op not in ("result", "weight"):
                if step.level in self.varying:
                    steps.write(n)
                continue
            self._keep(steps, steps.place_of(step), step.args[0], memory, valid)
        stored = program.weights if isinstance(reducer, LoopedExponentials) else program.results
        for component, n in enumerate(stored):  # of straight-line code, where there are too many to carry
            self._keep(steps, str(component), n, memory, valid)
        if isinstance(reducer, LoopedEach):
            reducer.past(memory, self._places(j, n_columns), valid)
        elif isinstance(reducer, LoopedExponentials):
            exponents = [[steps.value(n, column) for n in program.results] for column in range(n_columns)]
            nothing: list[list[Value]] = [[] for _ in exponents]
            carried = reducer.update(carried, exponents, nothing, [], valid)
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

    def _has_loops(self) -> bool:
        return any(step.op == "loop" and step.level in self.varying for step in self.program.values)

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
        v, body = self.v, self.body
        before, loop, done = body.block, body.label("group"), body.label("past")
        step = n_columns * self.unit
        body.branch(body.emit(f"icmp ult i64 {begin}, {end}"), loop, done)
        body.place(loop)
        j, after = body.name("j"), body.name("j")
        inside = [body.name("a") for _ in carried]
        place = len(body.lines)
        valid = None
        if masked:
            left = body.emit(f"sub i64 {end}, {j}")
            # The index fits the lanes' integers: what is left is at most a whole group when it matters.
            few = body.emit(f"call i64 @llvm.umin.i64(i64 {left}, i64 {v.lanes})")
            body.needs["@llvm.umin.i64"] = "declare i64 @llvm.umin.i64(i64, i64)\n"
            few = body.emit(f"trunc i64 {few} to i32") if v.bits == 32 else few
            valid = body.emit(f"icmp ult {v.ints} {v.int_sequence()}, {v.int_splat(few)}")
        result = self.past(inside, j, n_columns, valid)
        body.do(f"{after} = add i64 {j}, {step}")
        last = body.block
        phis = [f"  {j} = phi i64 [{begin}, %{before}], [{after}, %{last}]"]
        phis += [
            f"  {name} = phi {kind} [{old}, %{before}], [{new}, %{last}]"
            for name, kind, old, new in zip(inside, self.reducer.carried, carried, result)
        ]
        body.lines[place:place] = phis
        body.branch(body.emit(f"icmp ult i64 {after}, {end}"), loop, done)
        body.place(done)
        return [
            body.emit(f"phi {kind} [{old}, %{before}], [{new}, %{last}]")
            for kind, old, new in zip(self.reducer.carried, carried, result)
        ]

    def write(self) -> str:
        v, body, program = self.v, self.body, self.program
        self.copy_rows()
        fixed = Steps(v, program, self.varying, self.shared, 1, self.load, flush=self.reducer.blocked)
        for n, step in enumerate(program.values):
            if step.level not in self.varying:
                fixed.write(n)
        n_columns = self.columns_at_once()
        group = n_columns * self.unit
        before, block, end = body.block, body.label("block"), body.label("end")
        body.do(f"br label %{block}")
        body.place(block)
        begin, limit = body.name("begin"), body.name("limit")
        place = len(body.lines)
        if self.reducer.blocked:
            # In lanes of columns a block is as many to each lane.
            size = BLOCK * self.unit
            further = body.emit(f"add i64 {begin}, {size}")
            body.do(f"{limit} = call i64 @llvm.umin.i64(i64 {further}, i64 %n_columns)")
            body.needs["@llvm.umin.i64"] = "declare i64 @llvm.umin.i64(i64, i64)\n"
        else:
            body.do(f"{limit} = add i64 %n_columns, 0")
        carried = self.reducer.enter()
        length = body.emit(f"sub i64 {limit}, {begin}")
        rest = body.emit(f"urem i64 {length}, {group}")
        groups_end = body.emit(f"sub i64 {limit}, {rest}")
        carried = self.loop(carried, begin, groups_end, n_columns)
        if group > 1:
            carried = self.loop(carried, groups_end, limit, 1, masked=self.unit > 1)
        self.reducer.leave(carried)
        body.lines.insert(place, f"  {begin} = phi i64 [0, %{before}], [{limit}, %{body.block}]")
        body.branch(body.emit(f"icmp ult i64 {limit}, %n_columns"), block, end)
        body.place(end)
        body.do("ret void")
        signature = (
            "void @tile(ptr noalias %rows, i64 %rows_stride, ptr noalias %columns, i64 %columns_stride, "
            "ptr noalias %params, i64 %n_columns, i64 %first, ptr noalias %state, ptr noalias %workspace) #0"
        )
        asked = f"define i64 @workspace() #0 {{\n  ret i64 {body.workspace}\n}}\n"
        parts, needs = [body.define(signature), asked], dict(body.needs)
        if self.prepared:
            text, others = prepare_function(self.whole, self.reduction, v.target, self.lanes_are, self.prepared)
            parts.append(text)
            needs.update(others)
        return "\n".join([*parts, *needs.values(), _ATTRIBUTES])


_ATTRIBUTES = """\
attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }
!0 = !{!"branch_weights", i32 1, i32 500}
"""


def render(program: Program, reduction: PairReduction, target: Target, lanes_are: str) -> str:
    """The module with `tile`, for lanes that are "rows" or "columns", and `prepare` if columns are prepared."""
    return _Kernel(program, reduction, target, lanes_are).write()
