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

import itertools

from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.scans.kernel import StepFunction
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.llvm.vectors import CACHE_LINE, Value
from upsweep._compiler.recurrences.recurrence import Recurrence, written

Matrix = list[list[Value]]

VECTORS_AT_ONCE = 4  # of a round: their chains of dependent instructions overlap
_AHEAD = 8192  # bytes, two pages: hardware does not prefetch across pages


class _Sums(StepFunction):
    """Writes the function `sums`."""

    def write(self) -> str:
        body, k = self.body, len(self.program.results)
        self.read_arguments()
        number = self.v.number
        self.same = [number(base, 0) if same else "" for base, same in zip(self.bases, self.shared_inputs)]
        of_round, of_vector = (
            [[number("%powers", first + row * k + column) for column in range(k)] for row in range(k)]
            for first in (0, k * k)
        )
        n_rounds = body.emit(f"udiv i64 %n_vectors, {VECTORS_AT_ONCE}")
        n_left = body.emit(f"urem i64 %n_vectors, {VECTORS_AT_ONCE}")
        with body.loop("chunk", "%n_chunks") as chunk:
            pointers = [chunk.carry("ptr", base) for base in self.bases]
            zero = [self.v.const(0.0)] * (k * VECTORS_AT_ONCE)
            pointers, sums = self._run(pointers, zero, n_rounds, of_round)
            total = sums[:k]
            for c in range(1, VECTORS_AT_ONCE):
                total = self._moved(of_vector, total, sums[c * k : (c + 1) * k])
            pointers, total = self._run_left(pointers, total, n_left, of_vector)
            self._finish(chunk.index, total)
            chunk.following = pointers
        return self.text(
            "void @sums(ptr noalias %streams, ptr noalias %params, ptr noalias %powers, ptr noalias %rests, "
            "i64 %n_chunks, i64 %n_vectors) #0"
        )

    def _moved(self, matrix: Matrix, state: list[Value], more: list[Value]) -> list[Value]:
        """matrix state + more."""
        result = []
        for row, total in zip(matrix, more):
            for factor, value in zip(row, state):
                total = self.v.fma(factor, value, total)
            result.append(total)
        return result

    def _run(
        self, pointers: list[Value], sums: list[Value], n_times: Value, matrix: Matrix
    ) -> tuple[list[Value], list[Value]]:
        """Run rounds of as many vectors as there are sums, at least one; return pointers and sums after them."""
        k = len(matrix)
        with self.body.loop("round", n_times) as loop:
            inside = [loop.carry("ptr", pointer) for pointer in pointers]
            old = [loop.carry(self.v.kind, value) for value in sums]
            values, after = self._values(inside, len(sums) // k)
            new: list[Value] = []
            for c, more in enumerate(values):
                new += self._moved(matrix, old[c * k : (c + 1) * k], more)
            loop.following = [*after, *new]
        return after, new

    def _run_left(
        self, pointers: list[Value], total: list[Value], n_left: Value, matrix: Matrix
    ) -> tuple[list[Value], list[Value]]:
        """Run the vectors after the last whole round, if any, one by one."""
        with self.body.when(self.body.emit(f"icmp ne i64 {n_left}, 0"), "left") as left:
            after, sums = self._run(pointers, total, n_left, matrix)
        return (
            [left.phi("ptr", *two) for two in zip(pointers, after)],
            [left.phi(self.v.kind, *two) for two in zip(total, sums)],
        )

    def _values(self, pointers: list[Value], n_vectors: int) -> tuple[list[list[Value]], list[Value]]:
        """c(x) of some vectors of steps, and the pointers after them."""
        columns = [pointers]
        if n_vectors == VECTORS_AT_ONCE:
            size = self.target.vector_bytes
            vectors = range(0, VECTORS_AT_ONCE, max(1, CACHE_LINE // size))
            for (pointer, stride), vector in itertools.product(zip(pointers, self.strides), vectors):
                distance = self.body.emit(f"mul i64 {stride}, {_AHEAD // size + vector}")
                self.prefetch(self.body.emit(f"getelementptr i8, ptr {pointer}, i64 {distance}"))
        for _ in range(n_vectors):
            columns.append(self.advance(columns[-1]))

        def load(kind: str, place: Value | int, column: int) -> Value:
            assert isinstance(place, int)
            return self.same[place] if self.shared_inputs[place] else self.v.load(columns[column][place])

        steps = self.one_step(n_vectors, load)
        return [[steps.value(root, c) for root in self.program.results] for c in range(n_vectors)], columns[-1]

    def _finish(self, chunk: Value, total: list[Value]) -> None:
        """Add the lanes, and store the sums of a chunk."""
        v, body, k = self.v, self.body, len(self.program.results)
        for row in range(k):
            value = ""
            for column, lanes in enumerate(total):
                place = 2 * k * k + (row * k + column) * v.lanes
                weights = v.load(v.at("%powers", place))
                value = v.fma(weights, lanes, value) if value else v.mul(weights, lanes)
            rest = v.sum_of_lanes(value)
            first = body.emit(f"mul i64 %n_chunks, {row}")
            at = v.at("%rests", body.emit(f"add i64 {first}, {chunk}"))
            body.do(f"store {v.scalar} {rest}, ptr {at}, align {self.item}")


def compile_sums(rests: Recurrence, level: str, bits: int, shared: tuple[bool, ...]) -> jit.Loaded:
    """The module with `sums` for c(x), the outputs of `rests`, with lifted numbers; `shared` inputs are fixed in
    time.
    """
    target = TARGETS[level]
    key = f"{jit.sources()}\nsums {bits} {shared} {written(rests)}"
    return jit.load(key, lambda: _Sums(rests, target, bits, shared).write(), target)
