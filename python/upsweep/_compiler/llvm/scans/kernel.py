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

from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.instructions import COSTS, Steps, order
from upsweep._compiler.llvm.target import TARGETS, Target
from upsweep._compiler.llvm.transpose import turned
from upsweep._compiler.llvm.vectors import CACHE_LINE, Body, Value, Vectors, module
from upsweep._compiler.lowering.lower_scalars import lower_step
from upsweep._compiler.lowering.program import Program
from upsweep._compiler.recurrences.recurrence import Recurrence, written

_COSTS = {**COSTS, "div": 6, "sqrt": 8, "rsqrt": 1}
_LONGEST_BODY = 400
_MOST_TOGETHER = 4
_SHORT_CHAIN = 2  # a product and a sum, which are one instruction: it takes less time than transposing a vector
_AHEAD = 8  # steps: rows are on different pages, across which hardware does not prefetch


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
        self.v = Vectors(self.body, target, bits)
        self.fixed: dict[int, Value] = {}  # values that do not change during the call
        self.item = bits // 8
        self.bases: list[Value] = []
        self.strides: list[Value] = []

    def read_arguments(self) -> None:
        """Load the addresses and strides of the streams, and compute the values of the parameters."""
        body = self.body
        for n in range(self.recurrence.n_inputs + len(self.recurrence.outputs)):
            self.bases.append(body.load_at("ptr", "%streams", 2 * n))
            self.strides.append(body.load_at("i64", "%streams", 2 * n + 1))

        def load(kind: str, place: Value | int, column: int) -> Value:
            return self.v.number("%params", place)

        Steps(self.v, self.program, frozenset({"j"}), self.fixed, 1, load, flush=True).write_level("p")

    def one_step(self, n_vectors: int, load: Callable[[str, Value | int, int], Value]) -> Steps:
        """A step of some vectors, whose states and inputs `load` returns."""
        steps = Steps(self.v, self.program, frozenset({"j"}), self.fixed, n_vectors, load, flush=True)
        steps.write_all(order(self.program, self.program.results, set(self.fixed)))
        return steps

    def advance(self, pointers: Sequence[Value]) -> list[Value]:
        """The pointers of the streams, one stride further."""
        pairs = zip(pointers, self.strides)
        return [self.body.emit(f"getelementptr i8, ptr {pointer}, i64 {stride}") for pointer, stride in pairs]

    def prefetch(self, address: Value) -> None:
        hints = ("i32", 0), ("i32", 3), ("i32", 1)  # to read, into all caches, data
        self.body.call("void", "llvm.prefetch.p0", ("ptr", address), *hints)

    def text(self, signature: str) -> str:
        """The module with the function."""
        return module([self.body.define(signature)], self.body.needs)


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
        ok = body.emit(f"icmp eq i64 {body.emit(f'and i64 {apart}, {CACHE_LINE - 1}')}, 0")
        part = body.emit(f"and i64 {outputs[0]}, {self.item - 1}")
        ok = body.emit(f"and i1 {ok}, {body.emit(f'icmp eq i64 {part}, 0')}")
        for base in self.bases[:n_inputs]:
            for output in self.bases[n_inputs:]:
                ok = body.emit(f"and i1 {ok}, {body.emit(f'icmp ne ptr {base}, {output}')}")
        body.branch(ok, past, cached)
        body.place(past)
        back = body.emit(f"sub i64 0, {outputs[0]}")
        before = body.emit(f"udiv i64 {body.emit(f'and i64 {back}, {CACHE_LINE - 1}')}, {self.item}")
        few = body.extreme("umin", before, "%n_columns")
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
        limit = body.emit(f"sub i64 {end}, {size}")
        with body.repeat("columns", body.emit(f"icmp sle i64 {first}, {limit}")) as loop:
            column = loop.carry("i64", first)
            self._walk(column, n_vectors, None)
            after = body.emit(f"add i64 {column}, {size}")
            loop.following = [after]
            loop.again = body.emit(f"icmp sle i64 {after}, {limit}")
        return loop.phi("i64", first, after)

    def _rest(self, first: Value, end: Value = "%n_columns") -> None:
        left = self.body.emit(f"sub i64 {end}, {first}")
        with self.body.when(self.body.emit(f"icmp sgt i64 {left}, 0"), "rest"):
            self._walk(first, 1, self.v.first_lanes(left))

    # ---- memory ----

    def _state_places(self, column: Value, n_vectors: int) -> list[Value]:
        """The addresses of the states, by state and vector."""
        result = []
        for n in range(self.recurrence.n_states):
            row = self.body.emit(f"mul i64 %state_stride, {n}")
            first = self.v.at("%state", self.body.emit(f"add i64 {row}, {column}"))
            result += [self.v.at(first, k * self.v.lanes) for k in range(n_vectors)]
        return result

    # ---- steps ----

    def _walk(self, column: Value, n_vectors: int, mask: Value | None) -> None:
        """Run some vectors of columns through all steps."""
        v, k, n_inputs = self.v, self.recurrence.n_states, self.recurrence.n_inputs
        places = self._state_places(column, n_vectors)
        states = [(v.kind, v.load(place, mask=mask)) for place in places]
        starts = [("ptr", base if self._is_shared(n) else v.at(base, column)) for n, base in enumerate(self.bases)]
        # A line of memory is a whole number of vectors: streamed outputs begin at multiples of a vector's size.
        past_caches = self.is_streaming and mask is None
        align = self.target.vector_bytes if past_caches else None
        with self.body.loop("step", "%n_steps") as loop:
            variables = [loop.carry(*each) for each in (*states, *starts)]
            before, pointers = variables[: len(places)], variables[len(places) :]
            rows = [before[n * n_vectors : (n + 1) * n_vectors] for n in range(k)]
            steps = self._one_step(pointers, rows, n_vectors, mask)
            for root, pointer in zip(self.program.results[k:], pointers[n_inputs:]):
                for c in range(n_vectors):
                    v.store(steps.value(root, c), v.at(pointer, c * v.lanes), align, past_caches, mask)
            after = [steps.value(root, c) for root in self.program.results[:k] for c in range(n_vectors)]
            loop.following = [*after, *self.advance(pointers)]
        for place, value in zip(places, after):
            v.store(value, place, mask=mask)

    def _is_shared(self, stream: int) -> bool:
        return stream < self.recurrence.n_inputs and self.shared_inputs[stream]

    def _one_step(
        self, pointers: list[Value], states: list[list[Value]], n_vectors: int, mask: Value | None
    ) -> Steps:
        v, body, k = self.v, self.body, self.recurrence.n_states
        for n in range(self.recurrence.n_inputs):
            if k + n in self.read and not self._is_shared(n) and mask is None:
                first = body.emit(f"getelementptr i8, ptr {pointers[n]}, i64 {self.ahead[n]}")
                for at in range(0, n_vectors * self.target.vector_bytes, CACHE_LINE):
                    self.prefetch(body.emit(f"getelementptr i8, ptr {first}, i64 {at}"))
        spread: dict[int, Value] = {}

        def load(kind: str, place: Value | int, column: int) -> Value:
            assert isinstance(place, int)
            if place < k:
                return states[place][column]
            n = place - k
            if not self._is_shared(n):
                return v.load(v.at(pointers[n], column * v.lanes), mask=mask)
            if n not in spread:
                spread[n] = v.number(pointers[n], 0)
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
    v = Vectors(body, target, bits)
    rows = []
    for n in range(v.lanes):
        offset = body.emit(f"mul i64 %from_stride, {n}")
        rows.append(v.load(body.emit(f"getelementptr i8, ptr %from, i64 {offset}")))
    for n, value in enumerate(turned(v, rows)):
        offset = body.emit(f"mul i64 %to_stride, {n}")
        v.store(value, body.emit(f"getelementptr i8, ptr %to, i64 {offset}"))
    signature = "void @turn(ptr noalias %from, i64 %from_stride, ptr noalias %to, i64 %to_stride) #0"
    return module([body.define(signature)], body.needs)


def compile_steps(
    recurrence: Recurrence, level: str, bits: int, shared: tuple[bool, ...], past_caches: bool = False
) -> jit.Loaded:
    """The module with `steps` of a recurrence whose numbers are lifted.

    `shared`: inputs that all columns have in common; `past_caches`: outputs are written past the caches.
    """
    target = TARGETS[level]
    key = f"{jit.sources()}\nsteps {bits} {shared} {past_caches} {written(recurrence)}"
    return jit.load(key, lambda: render(recurrence, target, bits, shared, past_caches), target)


@functools.cache
def compile_turn(level: str, bits: int) -> jit.Loaded:
    """The module with `turn`."""
    target = TARGETS[level]
    return jit.load(f"{jit.sources()}\nturn {bits}", lambda: render_turn(target, bits), target)
