"""The kernel of a recurrence: some columns past some steps, as a function in LLVM IR.

    void steps(streams, params, state, state_stride, n_steps, n_columns)

`streams` are pairs of an address and the bytes from a step to the next, inputs before outputs. Columns are
neighbours in memory, but for inputs that all columns share. States are rows of `state`, `state_stride` numbers
apart; they are in registers while the steps are walked. Several vectors of columns go together, so that each
step's chain of dependent instructions runs beside others; what is left goes in single vectors, the last one
masked.

Outputs larger than the caches are to be written past them: the lines of memory that are written whole are not
read before, a third of all traffic of a sum. Columns up to the first whole line go before those. A call
whose outputs' rows begin at different places of a line, or that are its inputs, writes them as any other.

    void turn(from, from_stride, to, to_stride)

turns a square of as many numbers a side as a vector holds; strides are bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.instructions import Steps, order
from upsweep._compiler.llvm.target import TARGETS, Target
from upsweep._compiler.llvm.transpose import turned
from upsweep._compiler.llvm.vectors import Body, Vectors
from upsweep._compiler.lowering.lower_scalars import lower_step
from upsweep._compiler.lowering.program import Program
from upsweep._compiler.recurrences.recurrence import Recurrence

__all__ = [
    "ATTRIBUTES",
    "Compiled",
    "compile_steps",
    "compile_turn",
    "cost",
    "vectors_at_once",
    "vectors_in_tiles",
]

Value = str

_COSTS = {"exp": 14, "log": 22, "sin": 45, "cos": 45, "tanh": 40, "asin": 30, "acos": 30, "atan": 25, "atan2": 40,
          "pow": 150, "div": 6, "sqrt": 8, "load": 0, "const": 0}  # fmt: skip
_LONGEST_BODY = 400
_MOST_TOGETHER = 4
_SHORT_CHAIN = 2  # a product and a sum, which are one instruction: less time than turning a vector takes
_LINE = 64  # bytes of memory that are written at once
_AHEAD = 8  # steps: rows lie on other pages, where no prefetcher of the hardware looks

ATTRIBUTES = """\
attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }
!0 = !{!"branch_weights", i32 1, i32 500}
!1 = !{i32 1}
"""


@dataclass(frozen=True)
class Compiled:
    """A function in memory; `code` keeps it there."""

    address: int
    code: Any


def cost(program: Program) -> float:
    """About how many instructions a vector of columns takes for a step."""
    return sum(_COSTS.get(step.op, 1) for step in program.values if step.level == "j")


def vectors_at_once(program: Program) -> int:
    return next((n for n in (_MOST_TOGETHER, 2) if n * cost(program) <= _LONGEST_BODY), 1)


def _chain(program: Program, n_states: int) -> float:
    """The longest way, in instructions, from a state to a new one: what no step can begin before."""
    ways: list[float] = []
    for step in program.values:
        if step.op == "load":
            ways.append(0 if step.static[0] == "j" and step.static[1] < n_states else -math.inf)
        else:
            ways.append(max((ways[arg] for arg in step.args), default=-math.inf) + _COSTS.get(step.op, 1))
    return max(ways[n] for n in program.results[:n_states])


def vectors_in_tiles(program: Program, n_states: int) -> int:
    """How many vectors of columns go together through tiles.

    Each column's row of memory is read in a place of its own, and few places are better; but while a step waits
    for the one before, other vectors have to fill the time.
    """
    return 1 if _chain(program, n_states) <= _SHORT_CHAIN else vectors_at_once(program)


def lower(recurrence: Recurrence) -> Program:
    """The instructions of a step; its results are the new states and the outputs."""
    return lower_step(recurrence.states, recurrence.outputs)


class _Kernel:
    """The function while it is written."""

    def __init__(
        self, recurrence: Recurrence, target: Target, bits: int, shared: tuple[bool, ...], past_caches: bool
    ) -> None:
        self.recurrence, self.target, self.shared_inputs = recurrence, target, shared
        self.past_caches, self.is_streaming = past_caches, False
        self.program = lower(recurrence)
        self.body = Body()
        self.v = Vectors(self.body, target, bits, target.lanes(f"float{bits}"))
        self.fixed: dict[int, Value] = {}
        self.item = bits // 8
        self.read = {step.static[1] for step in self.program.values if step.op == "load" and step.static[0] == "j"}

    def write(self) -> str:
        v, body = self.v, self.body
        n_streams = self.recurrence.n_inputs + len(self.recurrence.outputs)
        self.bases: list[Value] = []
        self.strides: list[Value] = []
        for n in range(n_streams):
            for place, kind, values in ((2 * n, "ptr", self.bases), (2 * n + 1, "i64", self.strides)):
                at = body.emit(f"getelementptr i64, ptr %streams, i64 {place}")
                values.append(body.emit(f"load {kind}, ptr {at}"))
        self.ahead = [body.emit(f"mul i64 {stride}, {_AHEAD}") for stride in self.strides]
        steps = Steps(v, self.program, frozenset({"j"}), self.fixed, 1, self._param, flush=True)
        for n, step in enumerate(self.program.values):
            if step.level == "p":
                steps.write(n)
        if self.past_caches:
            self._write_past_caches()
        self._all_columns("0")
        body.do("ret void")
        signature = (
            "void @steps(ptr noalias %streams, ptr noalias %params, ptr noalias %state, i64 %state_stride, "
            "i64 %n_steps, i64 %n_columns) #0"
        )
        assert v.lanes > 1
        return "\n".join([body.define(signature), *body.needs.values(), ATTRIBUTES])

    def _all_columns(self, first: Value) -> None:
        group = vectors_at_once(self.program)
        column = self._columns(first, group)
        if group > 1:
            column = self._columns(column, 1)
        self._rest(column)

    def _write_past_caches(self) -> None:
        """All columns, where outputs can be written past the caches; else on with what is written next."""
        body, n_inputs = self.body, self.recurrence.n_inputs
        past, cached = body.label("past_caches"), body.label("cached")
        outputs = [body.emit(f"ptrtoint ptr {base} to i64") for base in self.bases[n_inputs:]]
        # Bits that are set say why not: rows that begin elsewhere in a line than the first output's first one.
        apart = body.emit("add i64 0, 0")
        for address, stride in zip(outputs, self.strides[n_inputs:]):
            off = body.emit(f"xor i64 {address}, {outputs[0]}")
            apart = body.emit(f"or i64 {apart}, {body.emit(f'or i64 {off}, {stride}')}")
        ok = body.emit(f"icmp eq i64 {body.emit(f'and i64 {apart}, {_LINE - 1}')}, 0")
        part = body.emit(f"and i64 {outputs[0]}, {self.item - 1}")
        ok = body.emit(f"and i1 {ok}, {body.emit(f'icmp eq i64 {part}, 0')}")
        for base in self.bases[:n_inputs]:
            for output in self.bases[n_inputs:]:
                ok = body.emit(f"and i1 {ok}, {body.emit(f'icmp ne ptr {base}, {output}')}")
        body.branch(ok, past, cached)
        body.place(past)
        back = body.emit(f"sub i64 0, {outputs[0]}")
        before = body.emit(f"udiv i64 {body.emit(f'and i64 {back}, {_LINE - 1}')}, {self.item}")
        few = body.emit(f"call i64 @llvm.umin.i64(i64 {before}, i64 %n_columns)")
        body.needs["@llvm.umin.i64"] = "declare i64 @llvm.umin.i64(i64, i64)\n"
        self._rest(self._columns("0", 1, few), few)
        self.is_streaming = True
        self._all_columns(few)
        self.is_streaming = False
        body.do("fence seq_cst")  # before whoever is told that these are written
        body.do("ret void")
        body.place(cached)

    def _param(self, kind: str, place: Value | int, column: int) -> Value:
        body, v = self.body, self.v
        at = body.emit(f"getelementptr {v.scalar}, ptr %params, i64 {place}")
        return v.splat(body.emit(f"load {v.scalar}, ptr {at}"))

    def _columns(self, first: Value, n_vectors: int, end: Value = "%n_columns") -> Value:
        """All columns from `first` to `end` that fill `n_vectors` vectors; returns the first that is left."""
        body, size = self.body, n_vectors * self.v.lanes
        before, loop, done = body.block, body.label("columns"), body.label("walked")
        limit = body.emit(f"sub i64 {end}, {size}")
        body.branch(body.emit(f"icmp sle i64 {first}, {limit}"), loop, done)
        body.place(loop)
        column, after = body.name("column"), body.name("column")
        place = len(body.lines)
        self._walk(column, n_vectors, None)
        body.do(f"{after} = add i64 {column}, {size}")
        last = body.block
        body.lines.insert(place, f"  {column} = phi i64 [{first}, %{before}], [{after}, %{last}]")
        body.branch(body.emit(f"icmp sle i64 {after}, {limit}"), loop, done)
        body.place(done)
        return body.emit(f"phi i64 [{first}, %{before}], [{after}, %{last}]")

    def _rest(self, first: Value, end: Value = "%n_columns") -> None:
        v, body = self.v, self.body
        some, done = body.label("rest"), body.label("end")
        left = body.emit(f"sub i64 {end}, {first}")
        body.branch(body.emit(f"icmp sgt i64 {left}, 0"), some, done)
        body.place(some)
        few = body.emit(f"trunc i64 {left} to i32") if v.bits == 32 else left
        self._walk(first, 1, body.emit(f"icmp slt {v.ints} {v.int_sequence()}, {v.int_splat(few)}"))
        body.do(f"br label %{done}")
        body.place(done)

    # ---- memory ----

    def _load(self, pointer: Value, mask: Value | None) -> Value:
        v, body = self.v, self.body
        if mask is None:
            return v.load(pointer)
        name = f"@llvm.masked.load.{v.suffix}.p0"
        body.needs[name] = f"declare {v.kind} {name}(ptr, i32, {v.bools}, {v.kind})\n"
        # What is not there counts as 0, of which nothing is slow.
        return body.emit(
            f"call {v.kind} {name}(ptr {pointer}, i32 {self.item}, {v.bools} {mask}, {v.kind} {v.const(0.0)})"
        )

    def _store(self, value: Value, pointer: Value, mask: Value | None) -> None:
        v, body = self.v, self.body
        if mask is None:
            v.store(value, pointer)
            return
        name = f"@llvm.masked.store.{v.suffix}.p0"
        body.needs[name] = f"declare void {name}({v.kind}, ptr, i32, {v.bools})\n"
        body.do(f"call void {name}({v.kind} {value}, ptr {pointer}, i32 {self.item}, {v.bools} {mask})")

    def _place(self, pointer: Value, column: Value | int) -> Value:
        return self.body.emit(f"getelementptr {self.v.scalar}, ptr {pointer}, i64 {column}")

    def _state_places(self, column: Value, n_vectors: int) -> list[list[Value]]:
        """By state, by vector."""
        body = self.body
        result = []
        for n in range(self.recurrence.n_states):
            row = body.emit(f"mul i64 %state_stride, {n}")
            first = self._place("%state", body.emit(f"add i64 {row}, {column}"))
            result.append([self._place(first, k * self.v.lanes) for k in range(n_vectors)])
        return result

    # ---- steps ----

    def _walk(self, column: Value, n_vectors: int, mask: Value | None) -> None:
        """Some vectors of columns past all steps."""
        v, body, k = self.v, self.body, self.recurrence.n_states
        places = self._state_places(column, n_vectors)
        states = [[self._load(place, mask) for place in row] for row in places]
        starts = []
        for n, base in enumerate(self.bases):
            starts.append(base if self._is_shared(n) else self._place(base, column))
        before, loop, done = body.block, body.label("step"), body.label("past")
        body.do(f"br label %{loop}")
        body.place(loop)
        t, next_t = body.name("t"), body.name("t")
        pointers, next_pointers = ([body.name("at") for _ in starts] for _ in range(2))
        inside = [[body.name("s") for _ in row] for row in states]
        place = len(body.lines)
        steps = self._one_step(pointers, inside, n_vectors, mask)
        results = self.program.results
        new = [[steps.value(results[n], c) for c in range(n_vectors)] for n in range(k)]
        for n, root in enumerate(results[k:]):
            pointer = pointers[self.recurrence.n_inputs + n]
            for c in range(n_vectors):
                there = self._place(pointer, c * v.lanes)
                if self.is_streaming and mask is None:
                    # Lines of memory are whole vectors: a vector's place is a multiple of its size.
                    v.store(steps.value(root, c), there, self.target.vector_bytes, past_caches=True)
                else:
                    self._store(steps.value(root, c), there, mask)
        for pointer, following, stride in zip(pointers, next_pointers, self.strides):
            body.do(f"{following} = getelementptr i8, ptr {pointer}, i64 {stride}")
        body.do(f"{next_t} = add i64 {t}, 1")
        last = body.block
        phis = [f"  {t} = phi i64 [0, %{before}], [{next_t}, %{last}]"]
        for pointer, start, following in zip(pointers, starts, next_pointers):
            phis.append(f"  {pointer} = phi ptr [{start}, %{before}], [{following}, %{last}]")
        for names, olds, news in zip(inside, states, new):
            for name, old, value in zip(names, olds, news):
                phis.append(f"  {name} = phi {v.kind} [{old}, %{before}], [{value}, %{last}]")
        body.lines[place:place] = phis
        body.branch(body.emit(f"icmp ult i64 {next_t}, %n_steps"), loop, done)
        body.place(done)
        for row, values in zip(places, new):
            for where, value in zip(row, values):
                self._store(value, where, mask)

    def _is_shared(self, stream: int) -> bool:
        return stream < self.recurrence.n_inputs and self.shared_inputs[stream]

    def _one_step(
        self, pointers: list[Value], states: list[list[Value]], n_vectors: int, mask: Value | None
    ) -> Steps:
        v, body, k = self.v, self.body, self.recurrence.n_states
        for n in range(self.recurrence.n_inputs):
            if k + n in self.read and not self._is_shared(n) and mask is None:
                self._prefetch(pointers[n], self.ahead[n], n_vectors)
        spread: dict[int, Value] = {}

        def load(kind: str, place: Value | int, column: int) -> Value:
            assert isinstance(place, int)
            if place < k:
                return states[place][column]
            n = place - k
            if not self._is_shared(n):
                return self._load(self._place(pointers[n], column * v.lanes), mask)
            if n not in spread:
                spread[n] = v.splat(body.emit(f"load {v.scalar}, ptr {pointers[n]}, align {self.item}"))
            return spread[n]

        steps = Steps(v, self.program, frozenset({"j"}), self.fixed, n_vectors, load, flush=True)
        for value in order(self.program, self.program.results, set(self.fixed)):
            steps.write(value)
        return steps

    def _prefetch(self, pointer: Value, ahead: Value, n_vectors: int) -> None:
        body = self.body
        name = "@llvm.prefetch.p0"
        body.needs[name] = f"declare void {name}(ptr, i32, i32, i32)\n"
        there = body.emit(f"getelementptr i8, ptr {pointer}, i64 {ahead}")
        for at in range(0, n_vectors * self.target.vector_bytes, 64):
            line = body.emit(f"getelementptr i8, ptr {there}, i64 {at}")
            body.do(f"call void {name}(ptr {line}, i32 0, i32 3, i32 1)")


def render(
    recurrence: Recurrence, target: Target, bits: int, shared: tuple[bool, ...], past_caches: bool = False
) -> str:
    """The module with the function `steps`."""
    return _Kernel(recurrence, target, bits, shared, past_caches).write()


def render_turn(target: Target, bits: int) -> str:
    """The module with the function `turn`."""
    body = Body()
    v = Vectors(body, target, bits, target.lanes(f"float{bits}"))
    rows = []
    for n in range(v.lanes):
        offset = body.emit(f"mul i64 %from_stride, {n}")
        rows.append(v.load(body.emit(f"getelementptr i8, ptr %from, i64 {offset}")))
    for n, value in enumerate(turned(v, rows)):
        offset = body.emit(f"mul i64 %to_stride, {n}")
        v.store(value, body.emit(f"getelementptr i8, ptr %to, i64 {offset}"))
    body.do("ret void")
    signature = "void @turn(ptr noalias %from, i64 %from_stride, ptr noalias %to, i64 %to_stride) #0"
    return "\n".join([body.define(signature), *body.needs.values(), ATTRIBUTES])


def _compile(key: str, name: str, target: Target, text: Callable[[], str]) -> Compiled:
    loaded = jit.load(f"{jit.sources()}\n{key}", text, target)
    return Compiled(loaded.address(name), loaded)


def compile_steps(
    recurrence: Recurrence, level: str, bits: int, shared: tuple[bool, ...], past_caches: bool = False
) -> Compiled:
    """The function of a recurrence whose numbers are lifted.

    `shared`: inputs that all columns have in common; `past_caches`: outputs are written past the caches.
    """
    target = TARGETS[level]
    key = f"steps {bits} {shared} {past_caches} {recurrence.key()}"
    return _compile(key, "steps", target, lambda: render(recurrence, target, bits, shared, past_caches))


@functools.cache
def compile_turn(level: str, bits: int) -> Compiled:
    """The function that turns squares."""
    target = TARGETS[level]
    return _compile(f"turn {bits}", "turn", target, lambda: render_turn(target, bits))
