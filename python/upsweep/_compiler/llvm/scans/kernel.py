"""LLVM IR of the CPU kernel of a recurrence: a function that runs some columns through some steps.

    void steps(streams, params, state, state_stride, n_steps, n_columns)

`streams` are pairs of an address and the bytes from a step to the next, inputs before outputs. Columns are
contiguous in memory, except for inputs that all columns share. States are rows of `state`, `state_stride` numbers
apart; they stay in registers during the steps. Several vectors of columns are interleaved, so that their chains of
dependent instructions overlap; the remaining columns are single vectors, of which the last one is masked.

Outputs larger than the caches are written by non-temporal stores: lines of memory that are written whole need not
be read first, which saves a third of the traffic of a sum. Columns before the first whole line are written
normally. So are outputs that are inputs, and outputs whose rows begin at different offsets within a line.

    void turn(from, from_stride, to, to_stride)

transposes a square with as many numbers a side as a vector has lanes; strides are in bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
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
    "StepFunction",
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
_SHORT_CHAIN = 2  # a product and a sum, which are one instruction: it takes less time than transposing a vector
_LINE = 64  # bytes of a line of memory
_AHEAD = 8  # steps: rows are on different pages, across which hardware does not prefetch

ATTRIBUTES = """\
attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }
!0 = !{!"branch_weights", i32 1, i32 500}
!1 = !{i32 1}
"""


@dataclass(frozen=True)
class Compiled:
    """A function in memory; `code` owns the memory."""

    address: int
    code: Any


def cost(program: Program) -> float:
    """The approximate number of instructions of a step, for a vector of columns."""
    return sum(_COSTS.get(step.op, 1) for step in program.values if step.level == "j")


def vectors_at_once(program: Program) -> int:
    """How many vectors of columns are interleaved."""
    return next((n for n in (_MOST_TOGETHER, 2) if n * cost(program) <= _LONGEST_BODY), 1)


def _chain(program: Program, n_states: int) -> float:
    """The longest chain of dependent instructions from a state to a new state: the latency of a step."""
    lengths: list[float] = []
    for step in program.values:
        if step.op == "load":
            lengths.append(0 if step.static[0] == "j" and step.static[1] < n_states else -math.inf)
        else:
            lengths.append(max((lengths[arg] for arg in step.args), default=-math.inf) + _COSTS.get(step.op, 1))
    return max(lengths[n] for n in program.results[:n_states])


def vectors_in_tiles(program: Program, n_states: int) -> int:
    """How many vectors of columns are interleaved when they pass through transposed tiles.

    Each column is a separate stream in memory, and few streams are better; but other vectors have to fill the
    latency of a step.
    """
    return 1 if _chain(program, n_states) <= _SHORT_CHAIN else vectors_at_once(program)


def lower(recurrence: Recurrence) -> Program:
    """The instructions of a step; its results are the new states and the outputs."""
    return lower_step(recurrence.states, recurrence.outputs)


class StepFunction:
    """Writes a function that runs the steps of a recurrence: its streams, parameters, loops and prefetches."""

    def __init__(self, recurrence: Recurrence, target: Target, bits: int, shared: tuple[bool, ...]) -> None:
        self.recurrence, self.target, self.shared_inputs = recurrence, target, shared
        self.program = lower(recurrence)
        self.body = Body()
        self.v = Vectors(self.body, target, bits, target.lanes(f"float{bits}"))
        self.fixed: dict[int, Value] = {}  # values that do not change during the call
        self.item = bits // 8
        self.bases: list[Value] = []
        self.strides: list[Value] = []

    def read_arguments(self) -> None:
        """Load the addresses and strides of the streams, and compute the values of the parameters."""
        body = self.body
        for n in range(self.recurrence.n_inputs + len(self.recurrence.outputs)):
            for place, kind, values in ((2 * n, "ptr", self.bases), (2 * n + 1, "i64", self.strides)):
                at = body.emit(f"getelementptr i64, ptr %streams, i64 {place}")
                values.append(body.emit(f"load {kind}, ptr {at}"))
        steps = Steps(self.v, self.program, frozenset({"j"}), self.fixed, 1, self._parameter, flush=True)
        for n, step in enumerate(self.program.values):
            if step.level == "p":
                steps.write(n)

    def number(self, base: Value, place: Value | int) -> Value:
        """A number in memory, broadcast to all lanes."""
        at = self.body.emit(f"getelementptr {self.v.scalar}, ptr {base}, i64 {place}")
        return self.v.splat(self.body.emit(f"load {self.v.scalar}, ptr {at}, align {self.item}"))

    def _parameter(self, kind: str, place: Value | int, column: int) -> Value:
        return self.number("%params", place)

    def one_step(self, n_vectors: int, load: Callable[[str, Value | int, int], Value]) -> Steps:
        """A step of some vectors, whose states and inputs `load` returns."""
        steps = Steps(self.v, self.program, frozenset({"j"}), self.fixed, n_vectors, load, flush=True)
        for value in order(self.program, self.program.results, set(self.fixed)):
            steps.write(value)
        return steps

    def loop(
        self, name: str, n_times: Value, carried: Sequence[tuple[str, Value]],
        write: Callable[[Value, list[Value]], list[Value]],
    ) -> list[Value]:  # fmt: skip
        """Write a loop that runs at least once.

        Parameters
        ----------
        name : str
            A prefix of labels.
        carried : sequence of (str, str)
            The types and first values of the variables that an iteration passes to the next.
        write : callable
            Writes an iteration, from its index and the variables, and returns their next values.

        Returns
        -------
        list of str
            The last values of the variables.
        """
        body = self.body
        before, start, done = body.block, body.label(name), body.label(f"{name}_done")
        body.do(f"br label %{start}")
        body.place(start)
        index, next_index = body.name("t"), body.name("t")
        variables = [body.name("c") for _ in carried]
        position = len(body.lines)
        after = write(index, variables)
        body.do(f"{next_index} = add i64 {index}, 1")
        phis = [f"  {index} = phi i64 [0, %{before}], [{next_index}, %{body.block}]"]
        for variable, (kind, first), value in zip(variables, carried, after):
            phis.append(f"  {variable} = phi {kind} [{first}, %{before}], [{value}, %{body.block}]")
        body.lines[position:position] = phis
        body.branch(body.emit(f"icmp ult i64 {next_index}, {n_times}"), start, done)
        body.place(done)
        return after

    def advance(self, pointers: Sequence[Value]) -> list[Value]:
        """The pointers of the streams, one stride further."""
        pairs = zip(pointers, self.strides)
        return [self.body.emit(f"getelementptr i8, ptr {pointer}, i64 {stride}") for pointer, stride in pairs]

    def prefetch(self, address: Value) -> None:
        name = "@llvm.prefetch.p0"
        self.body.needs[name] = f"declare void {name}(ptr, i32, i32, i32)\n"
        self.body.do(f"call void {name}(ptr {address}, i32 0, i32 3, i32 1)")

    def text(self, signature: str) -> str:
        """The module with the function."""
        self.body.do("ret void")
        return "\n".join([self.body.define(signature), *self.body.needs.values(), ATTRIBUTES])


class _Kernel(StepFunction):
    """Writes the function `steps`."""

    def __init__(
        self, recurrence: Recurrence, target: Target, bits: int, shared: tuple[bool, ...], past_caches: bool
    ) -> None:
        super().__init__(recurrence, target, bits, shared)
        self.past_caches, self.is_streaming = past_caches, False
        self.read = {step.static[1] for step in self.program.values if step.op == "load" and step.static[0] == "j"}

    def write(self) -> str:
        assert self.v.lanes > 1
        self.read_arguments()
        self.ahead = [self.body.emit(f"mul i64 {stride}, {_AHEAD}") for stride in self.strides]
        if self.past_caches:
            self._write_past_caches()
        self._all_columns("0")
        return self.text(
            "void @steps(ptr noalias %streams, ptr noalias %params, ptr noalias %state, i64 %state_stride, "
            "i64 %n_steps, i64 %n_columns) #0"
        )

    def _all_columns(self, first: Value) -> None:
        group = vectors_at_once(self.program)
        column = self._columns(first, group)
        if group > 1:
            column = self._columns(column, 1)
        self._rest(column)

    def _write_past_caches(self) -> None:
        """Write code that runs all columns with non-temporal stores and returns, if the outputs allow them."""
        body, n_inputs = self.body, self.recurrence.n_inputs
        past, cached = body.label("past_caches"), body.label("cached")
        outputs = [body.emit(f"ptrtoint ptr {base} to i64") for base in self.bases[n_inputs:]]
        # Bits below the size of a line are set if a row begins at another offset within a line than the first row.
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
        body.do("fence seq_cst")  # makes the stores visible before another thread is notified
        body.do("ret void")
        body.place(cached)

    def _columns(self, first: Value, n_vectors: int, end: Value = "%n_columns") -> Value:
        """Run the columns from `first` to `end` that fill `n_vectors` vectors; return the first one after them."""
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
        # Lanes without a column compute with 0, which is never slow.
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
        """The addresses of the states, by state and vector."""
        body = self.body
        result = []
        for n in range(self.recurrence.n_states):
            row = body.emit(f"mul i64 %state_stride, {n}")
            first = self._place("%state", body.emit(f"add i64 {row}, {column}"))
            result.append([self._place(first, k * self.v.lanes) for k in range(n_vectors)])
        return result

    # ---- steps ----

    def _walk(self, column: Value, n_vectors: int, mask: Value | None) -> None:
        """Run some vectors of columns through all steps."""
        v, k, n_inputs = self.v, self.recurrence.n_states, self.recurrence.n_inputs
        places = [place for row in self._state_places(column, n_vectors) for place in row]
        states = [(v.kind, self._load(place, mask)) for place in places]
        starts = [
            ("ptr", base if self._is_shared(n) else self._place(base, column)) for n, base in enumerate(self.bases)
        ]

        def step(t: Value, variables: list[Value]) -> list[Value]:
            before, pointers = variables[: len(places)], variables[len(places) :]
            rows = [before[n * n_vectors : (n + 1) * n_vectors] for n in range(k)]
            steps = self._one_step(pointers, rows, n_vectors, mask)
            for root, pointer in zip(self.program.results[k:], pointers[n_inputs:]):
                for c in range(n_vectors):
                    target = self._place(pointer, c * v.lanes)
                    if self.is_streaming and mask is None:
                        # A line of memory is a whole number of vectors, so the address is a multiple of their
                        # size.
                        v.store(steps.value(root, c), target, self.target.vector_bytes, past_caches=True)
                    else:
                        self._store(steps.value(root, c), target, mask)
            new = [steps.value(root, c) for root in self.program.results[:k] for c in range(n_vectors)]
            return [*new, *self.advance(pointers)]

        after = self.loop("step", "%n_steps", [*states, *starts], step)
        for place, value in zip(places, after):
            self._store(value, place, mask)

    def _is_shared(self, stream: int) -> bool:
        return stream < self.recurrence.n_inputs and self.shared_inputs[stream]

    def _one_step(
        self, pointers: list[Value], states: list[list[Value]], n_vectors: int, mask: Value | None
    ) -> Steps:
        v, body, k = self.v, self.body, self.recurrence.n_states
        for n in range(self.recurrence.n_inputs):
            if k + n in self.read and not self._is_shared(n) and mask is None:
                first = body.emit(f"getelementptr i8, ptr {pointers[n]}, i64 {self.ahead[n]}")
                for at in range(0, n_vectors * self.target.vector_bytes, _LINE):
                    self.prefetch(body.emit(f"getelementptr i8, ptr {first}, i64 {at}"))
        spread: dict[int, Value] = {}

        def load(kind: str, place: Value | int, column: int) -> Value:
            assert isinstance(place, int)
            if place < k:
                return states[place][column]
            n = place - k
            if not self._is_shared(n):
                return self._load(self._place(pointers[n], column * v.lanes), mask)
            if n not in spread:
                spread[n] = self.number(pointers[n], 0)
            return spread[n]

        return self.one_step(n_vectors, load)


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
    """The function that transposes squares."""
    target = TARGETS[level]
    return _compile(f"turn {bits}", "turn", target, lambda: render_turn(target, bits))
