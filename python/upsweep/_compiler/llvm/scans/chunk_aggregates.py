"""LLVM IR of chunk aggregates: the state that each chunk of steps of an update s -> M s + c(x) leaves from zero.

    void sums(streams, params, powers, rests, n_chunks, n_vectors)

M does not vary with time. Each chunk consists of `n_vectors` vectors of contiguous steps. The lanes of a vector
are steps, not chunks, so inputs are read in the order of memory, once and in whole vectors: each lane sums its
steps of all vectors times powers of M, and the lanes are added at the end.

`streams` are pairs of the address of the first vector and the bytes from a vector to the next. `powers` are the
power of M for the steps of a round, that for the steps of a vector, and for each lane that for the steps after the
lane; a matrix has k rows of k numbers, or of k vectors. `rests` has k rows of `n_chunks` numbers, the results.
"""

from __future__ import annotations

from collections.abc import Sequence

from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.instructions import Steps, order
from upsweep._compiler.llvm.scans.kernel import ATTRIBUTES, Compiled, lower
from upsweep._compiler.llvm.target import TARGETS, Target
from upsweep._compiler.llvm.vectors import Body, Vectors
from upsweep._compiler.recurrences.recurrence import Recurrence

__all__ = ["VECTORS_AT_ONCE", "compile_sums"]

Value = str
Matrix = list[list[Value]]

VECTORS_AT_ONCE = 4  # of a round: their chains of dependent instructions overlap
_LINE = 64  # bytes, of the cache
_AHEAD = 8192  # bytes, two pages: hardware does not prefetch across pages


class _Sums:
    """Writes the function `sums`."""

    def __init__(self, rests: Sequence[Node], n_inputs: int, target: Target, bits: int, shared: tuple[bool, ...]):
        self.program = lower(Recurrence((), tuple(rests), n_inputs))
        self.k, self.n_inputs, self.shared = len(rests), n_inputs, shared
        self.body = Body()
        self.v = Vectors(self.body, target, bits, target.lanes(f"float{bits}"))
        self.fixed: dict[int, Value] = {}
        self.item = bits // 8

    def write(self) -> str:
        body, v, k = self.body, self.v, self.k
        bases = [self._of_stream("ptr", 2 * n) for n in range(self.n_inputs)]
        self.strides = [self._of_stream("i64", 2 * n + 1) for n in range(self.n_inputs)]
        self.same = [self._number(base, 0) if same else "" for base, same in zip(bases, self.shared)]
        steps = Steps(v, self.program, frozenset({"j"}), self.fixed, 1, self._param, flush=True)
        for n, step in enumerate(self.program.values):
            if step.level == "p":
                steps.write(n)
        matrices = [
            [[self._number("%powers", place + row * k + column) for column in range(k)] for row in range(k)]
            for place in (0, k * k)
        ]
        n_rounds = body.emit(f"udiv i64 %n_vectors, {VECTORS_AT_ONCE}")
        n_left = body.emit(f"urem i64 %n_vectors, {VECTORS_AT_ONCE}")
        before, loop, done = body.block, body.label("chunk"), body.label("all")
        body.do(f"br label %{loop}")
        body.place(loop)
        chunk, following = body.name("chunk"), body.name("chunk")
        pointers = [body.name("at") for _ in bases]
        place = len(body.lines)
        after, sums = self._rounds(pointers, n_rounds, matrices[0])
        total = sums[0]
        for one in sums[1:]:
            total = self._moved(matrices[1], total, one)
        after, total = self._left(after, n_left, matrices[1], total)
        self._finish(chunk, total)
        body.do(f"{following} = add i64 {chunk}, 1")
        phis = [f"  {chunk} = phi i64 [0, %{before}], [{following}, %{body.block}]"]
        for pointer, base, then in zip(pointers, bases, after):
            phis.append(f"  {pointer} = phi ptr [{base}, %{before}], [{then}, %{body.block}]")
        body.lines[place:place] = phis
        body.branch(body.emit(f"icmp ult i64 {following}, %n_chunks"), loop, done)
        body.place(done)
        body.do("ret void")
        signature = (
            "void @sums(ptr noalias %streams, ptr noalias %params, ptr noalias %powers, ptr noalias %rests, "
            "i64 %n_chunks, i64 %n_vectors) #0"
        )
        return "\n".join([body.define(signature), *body.needs.values(), ATTRIBUTES])

    # ---- numbers ----

    def _of_stream(self, kind: str, place: int) -> Value:
        at = self.body.emit(f"getelementptr i64, ptr %streams, i64 {place}")
        return self.body.emit(f"load {kind}, ptr {at}")

    def _number(self, base: Value, place: int) -> Value:
        """A number in memory, broadcast to all lanes."""
        at = self.body.emit(f"getelementptr {self.v.scalar}, ptr {base}, i64 {place}")
        return self.v.splat(self.body.emit(f"load {self.v.scalar}, ptr {at}, align {self.item}"))

    def _param(self, kind: str, place: Value | int, column: int) -> Value:
        assert isinstance(place, int)
        return self._number("%params", place)

    def _moved(self, matrix: Matrix, state: list[Value], more: list[Value]) -> list[Value]:
        """matrix state + more."""
        result = []
        for row, total in zip(matrix, more):
            for factor, value in zip(row, state):
                total = self.v.fma(factor, value, total)
            result.append(total)
        return result

    # ---- loops ----

    def _rounds(
        self, starts: list[Value], n_rounds: Value, matrix: Matrix
    ) -> tuple[list[Value], list[list[Value]]]:
        """Run all whole rounds of a chunk, at least one; return the pointers after them and the sums by vector."""
        body, v = self.body, self.v
        before, loop, done = body.block, body.label("round"), body.label("summed")
        body.do(f"br label %{loop}")
        body.place(loop)
        t, next_t = body.name("t"), body.name("t")
        pointers = [body.name("at") for _ in starts]
        old = [[body.name("s") for _ in range(self.k)] for _ in range(VECTORS_AT_ONCE)]
        place = len(body.lines)
        values, after = self._values(pointers, VECTORS_AT_ONCE)
        new = [self._moved(matrix, state, more) for state, more in zip(old, values)]
        body.do(f"{next_t} = add i64 {t}, 1")
        phis = [f"  {t} = phi i64 [0, %{before}], [{next_t}, %{loop}]"]
        for pointer, start, then in zip(pointers, starts, after):
            phis.append(f"  {pointer} = phi ptr [{start}, %{before}], [{then}, %{loop}]")
        for olds, news in zip(old, new):
            for one, other in zip(olds, news):
                phis.append(f"  {one} = phi {v.kind} [{v.const(0.0)}, %{before}], [{other}, %{loop}]")
        body.lines[place:place] = phis
        body.branch(body.emit(f"icmp ult i64 {next_t}, {n_rounds}"), loop, done)
        body.place(done)
        return after, new

    def _left(
        self, starts: list[Value], n_left: Value, matrix: Matrix, total: list[Value]
    ) -> tuple[list[Value], list[Value]]:
        """Run the vectors after the last whole round, one by one."""
        body, v = self.body, self.v
        before, loop, done = body.block, body.label("left"), body.label("whole")
        body.branch(body.emit(f"icmp ne i64 {n_left}, 0"), loop, done)
        body.place(loop)
        t, next_t = body.name("t"), body.name("t")
        pointers = [body.name("at") for _ in starts]
        old = [body.name("s") for _ in total]
        place = len(body.lines)
        values, after = self._values(pointers, 1)
        new = self._moved(matrix, old, values[0])
        body.do(f"{next_t} = add i64 {t}, 1")
        phis = [f"  {t} = phi i64 [0, %{before}], [{next_t}, %{loop}]"]
        for pointer, start, then in zip(pointers, starts, after):
            phis.append(f"  {pointer} = phi ptr [{start}, %{before}], [{then}, %{loop}]")
        for one, begin, other in zip(old, total, new):
            phis.append(f"  {one} = phi {v.kind} [{begin}, %{before}], [{other}, %{loop}]")
        body.lines[place:place] = phis
        body.branch(body.emit(f"icmp ult i64 {next_t}, {n_left}"), loop, done)
        body.place(done)
        ends = [
            body.emit(f"phi ptr [{start}, %{before}], [{then}, %{loop}]") for start, then in zip(starts, after)
        ]
        totals = [
            body.emit(f"phi {v.kind} [{begin}, %{before}], [{other}, %{loop}]") for begin, other in zip(total, new)
        ]
        return ends, totals

    def _values(self, pointers: list[Value], n_vectors: int) -> tuple[list[list[Value]], list[Value]]:
        """c(x) of some vectors of steps, and the pointers after them."""
        v, body = self.v, self.body
        places: list[list[Value]] = []
        after = []
        for pointer, stride in zip(pointers, self.strides):
            row = [pointer]
            if n_vectors == VECTORS_AT_ONCE:
                self._fetch_ahead(pointer, stride)
            for _ in range(n_vectors):
                row.append(body.emit(f"getelementptr i8, ptr {row[-1]}, i64 {stride}"))
            after.append(row.pop())
            places.append(row)

        def load(kind: str, place: Value | int, column: int) -> Value:
            assert isinstance(place, int)
            return self.same[place] if self.shared[place] else v.load(places[place][column])

        steps = Steps(v, self.program, frozenset({"j"}), self.fixed, n_vectors, load, flush=True)
        for value in order(self.program, self.program.results, set(self.fixed)):
            steps.write(value)
        return [[steps.value(root, c) for root in self.program.results] for c in range(n_vectors)], after

    def _fetch_ahead(self, pointer: Value, stride: Value) -> None:
        body, name, size = self.body, "@llvm.prefetch.p0", self.v.target.vector_bytes
        body.needs[name] = f"declare void {name}(ptr, i32, i32, i32)\n"
        for vector in range(0, VECTORS_AT_ONCE, max(1, _LINE // size)):
            distance = body.emit(f"mul i64 {stride}, {_AHEAD // size + vector}")
            address = body.emit(f"getelementptr i8, ptr {pointer}, i64 {distance}")
            body.do(f"call void {name}(ptr {address}, i32 0, i32 3, i32 1)")

    def _finish(self, chunk: Value, total: list[Value]) -> None:
        """Add the lanes, and store the sums of a chunk."""
        v, body, k = self.v, self.body, self.k
        name = f"@llvm.vector.reduce.fadd.{v.suffix}"
        body.needs[name] = f"declare {v.scalar} {name}({v.scalar}, {v.kind})\n"
        for row in range(k):
            value = ""
            for column, lanes in enumerate(total):
                place = 2 * k * k + (row * k + column) * v.lanes
                weights = v.load(body.emit(f"getelementptr {v.scalar}, ptr %powers, i64 {place}"))
                value = v.fma(weights, lanes, value) if value else v.mul(weights, lanes)
            zero = v.spelled(-0.0)
            rest = body.emit(f"call reassoc {v.scalar} {name}({v.scalar} {zero}, {v.kind} {value})")
            first = body.emit(f"mul i64 %n_chunks, {row}")
            at = body.emit(f"getelementptr {v.scalar}, ptr %rests, i64 {body.emit(f'add i64 {first}, {chunk}')}")
            body.do(f"store {v.scalar} {rest}, ptr {at}, align {self.item}")


def render(rests: Sequence[Node], n_inputs: int, target: Target, bits: int, shared: tuple[bool, ...]) -> str:
    """The module with the function `sums`."""
    return _Sums(rests, n_inputs, target, bits, shared).write()


def compile_sums(rests: Recurrence, level: str, bits: int, shared: tuple[bool, ...]) -> Compiled:
    """The function for c(x), the outputs of `rests`, with lifted numbers; `shared` inputs are fixed in time."""
    target = TARGETS[level]
    key = f"sums {bits} {shared} {rests.key()}"
    loaded = jit.load(
        f"{jit.sources()}\n{key}", lambda: render(rests.outputs, rests.n_inputs, target, bits, shared), target
    )
    return Compiled(loaded.address("sums"), loaded)
