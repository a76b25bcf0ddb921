"""Loops in LLVM IR: what `render`, `matmul` and `few_columns` write a function with.

`LoopWriter` writes loops (with polling), vector loops (with a masked rest) and loops that carry values in
registers. It writes no statements: `render.StatementWriter` adds them.

A kernel can be ended early. A loop that may take long loads the status, the first number of `args`, and where it
is not 0 calls ``upsweep_poll(args)``; it ends where that returns another number than 0. The caller sets the status
from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from upsweep._compiler.llvm.loops.parallel_for import POLL, SYMBOLS
from upsweep._compiler.llvm.loops.vectorize import Lanes, View, lanes_of
from upsweep._compiler.llvm.target import Target
from upsweep._compiler.llvm.vectors import Body, Loop, Value, module, phi
from upsweep._compiler.loops.expressions import Axis, Expr, atoms, constant_of, contains
from upsweep._compiler.loops.linear import Linear, linear
from upsweep._compiler.loops.reductions import accumulated
from upsweep._compiler.loops.statements import (
    Buffer,
    For,
    If,
    Statement,
    Store,
    inner_statements,
    loops_in,
    stored_buffers,
    stores_in,
)
from upsweep._compiler.loops.traversal import walk

# Vectors of independent sums, which hide the latency of one addition; and so many that these bytes of a row are
# read at once, if there are registers. Where the strides of rows are powers of two, 256 bytes take twice the time
# of other strides (Zen 4).
_VECTORS_OF_SUMS, _MOST_VECTORS_OF_SUMS = 4, 16
_STRIP_BYTES = 512
# Stores that a loop makes between two loads of the status.
_POLL_STORES = 1 << 14
_CHEAP = ("add", "sub", "mul", "min", "max", "neg", "load", "const", "axis", "var", "cast")


@dataclass
class Trimmed:
    """A loop without the conditions that only cut its range."""

    body: Statement
    low: Value
    high: Value


class Module:
    """The functions of one loop nest; `symbols` are the external functions that they may call."""

    def __init__(
        self, buffers: Sequence[Buffer], sizes: Sequence[Expr], target: Target, symbols: Collection[str]
    ) -> None:
        self.buffers, self.sizes, self.target = buffers, sizes, target
        self.own_buffers = set(buffers)
        self.is_parallel, self.polls = set(SYMBOLS) <= set(symbols), POLL in symbols
        self.functions: list[str] = []
        self.needs: dict[str, str] = {}
        self.n_regions = 0

    def finish(self, function: Body, signature: str) -> None:
        """Add a function that is written."""
        self.functions.append(function.define(signature))
        self.needs |= function.needs

    def text(self) -> str:
        return module(self.functions, self.needs)


class LoopWriter:
    """One function while it is written."""

    def __init__(self, module: Module, args: Value) -> None:
        self.module, self.args = module, args
        self.body = Body()
        self.indices: dict[Expr, Value] = {}
        self.views: dict[Buffer, View] = {}
        self.lanes = self.new_lanes()
        self.ranges: dict[int, tuple[Value, Value]] = {}  # of loops that run over a chunk of their range here

    def new_lanes(
        self, count: int = 1, axis: Axis | None = None, mask: Value | None = None,
        wider: dict[int, Value] | None = None,
    ) -> Lanes:  # fmt: skip
        """Lanes of this function that know no values but those in `wider`."""
        return Lanes(self.body, self.module.target, self.indices, self.views, count, axis, mask, wider=wider or {})

    def load_arguments(self, used: Container[Buffer]) -> None:
        """Load addresses and strides of the buffers that are used, and all sizes, before anything else.

        A call of many stages has many buffers, and each region of threads its own function.
        """
        position = 1
        for buffer in self.module.buffers:
            if buffer in used:
                pointer = self.body.emit(f"inttoptr i64 {self.argument(position)} to ptr")
                strides = [self.argument(position + 1 + d) for d in range(len(buffer.shape) - 1)]
                self.views[buffer] = View(pointer, [*strides, "1"] if buffer.shape else [])
            position += max(1, len(buffer.shape))
        for n, size in enumerate(self.module.sizes, position):
            self.indices[size] = self.argument(n)

    def argument(self, position: int) -> Value:
        return self.body.load_at("i64", self.args, position)

    # ---- known values ----

    def forget(self, *buffers: Buffer) -> None:
        """Drop the known values that depend on buffers which have been stored to."""
        known = self.lanes.known
        for each in [k for k, (expr, _) in known.items() if not atoms(expr).isdisjoint(buffers)]:
            del known[each]

    @contextmanager
    def within(self, body: Statement, axis: Axis | None = None) -> Iterator[None]:
        """Write a body that may run or not; what is computed in it is not known after it.

        With `axis` it is the body of a loop, before which only what no step changes is known.
        """
        lanes = self.lanes
        known = lanes.known
        changing = () if axis is None else (axis, *stored_buffers(body))
        lanes.known = {k: v for k, v in known.items() if not contains(v[0], changing)}
        yield
        lanes.known = known
        self.forget(*stored_buffers(body))

    # ---- loops ----

    def trimmed(self, loop: For) -> Trimmed:
        """A loop over the part of its range in which the conditions directly inside it hold."""
        low, high = self.ranges.get(id(loop), ("0", ""))
        high = high or self.lanes.index(loop.extent)
        body = loop.body
        while isinstance(body, If):
            cut = self._cut(loop.axis, body.condition, low, high)
            if cut is None:
                break
            low, high, body = *cut, body.body
        return Trimmed(body, low, high)

    def _cut(self, axis: Axis, condition: Expr, low: Value, high: Value) -> tuple[Value, Value] | None:
        """The range of an index in which a condition holds; None if it is no range."""
        if condition.op not in ("lt", "ge") or condition.args[0].dtype != "int64":
            return None
        a, b = linear(condition.args[0]), linear(condition.args[1])
        form = a.plus(b, -1) if condition.op == "ge" else b.plus(a, -1).plus(Linear(1), -1)
        step, rest = form.coefficient(axis), form.without(axis)  # step * axis + rest >= 0
        if not step or contains(rest.expr(), [axis]) or self.lanes.varies(rest.expr()):
            return None
        lanes, size, extreme = self.lanes, abs(step), self.body.extreme
        sign = 1 if step < 0 else -1
        base = lanes.index(rest.scaled(sign).plus(Linear(size if step < 0 else size - 1)).expr())
        bound = self.body.emit(f"sdiv i64 {extreme('smax', base, '0')}, {size}")
        return (low, extreme("smin", high, bound)) if step < 0 else (extreme("smax", low, bound), high)

    def whole(self, low: Value, high: Value, size: int) -> Value:
        """The end of the groups of `size` from `low` on that are whole."""
        room = self.body.extreme("smax", self.body.emit(f"sub i64 {high}, {low}"), "0")
        rest = self.body.emit(f"urem i64 {room}, {size}")
        return self.lanes.plus(low, self.body.emit(f"sub i64 {room}, {rest}"))

    @contextmanager
    def loop(self, axis: Axis, low: Value, high: Value, body: Statement, step: int = 1) -> Iterator[Loop]:
        """Run what is written inside for axis = low, low + step, ... below high."""
        out = self.body
        steps = _steps_between_polls(body) if self.module.polls else 0
        if low.isdigit() and high.isdigit() and int(high) - int(low) <= steps * step:
            steps = 0  # it is short
        loop, label, done = Loop(out, out.block), out.label("loop"), out.label("done")
        first_limit = self._limit(low, high, steps * step) if steps > 1 else high
        out.branch(out.emit(f"icmp slt i64 {low}, {high}"), label, done)
        out.place(label)
        position = len(out.lines)
        self.indices[axis] = loop.carry("i64", low)
        yield loop
        following = out.emit(f"add i64 {self.indices.pop(axis)}, {step}")
        loop.following.insert(0, following)
        # Labels that lead back: the end of a step, and where it polls, the two blocks of that.
        back, limits = [out.block], list[str]()
        check = out.label("check") if steps else label
        if steps > 1:
            limit, more = out.name("limit"), out.label("more")
            out.branch(out.emit(f"icmp slt i64 {following}, {limit}"), label, more)
            out.place(more)
        loop.ends = [out.block]
        out.branch(out.emit(f"icmp slt i64 {following}, {high}"), check, done)
        if steps:
            out.place(check)
            next_limit = self._limit(following, high, steps * step) if steps > 1 else ""
            slow = self._poll(label, done)
            loop.ends.append(slow)
            if steps > 1:
                values = (first_limit, loop.before), (limit, back[0]), (next_limit, check), (next_limit, slow)
                limits = [f"  {limit} = {phi('i64', *values)}"]
            back = [*(back if steps > 1 else []), check, slow]
        out.lines[position:position] = [*loop.phis(back), *limits]
        out.place(done)

    def _limit(self, index: Value, high: Value, steps: int) -> Value:
        """The index at which a loop polls next."""
        return self.body.extreme("smin", self.body.emit(f"add i64 {index}, {steps}"), high)

    def _poll(self, go_on: str, done: str) -> str:
        """Leave for `done` if the kernel is to end; the label of the block that calls for the answer."""
        out = self.body
        slow = out.label("slow")
        status = out.emit(f"load volatile i64, ptr {self.args}")
        out.branch(out.emit(f"icmp ne i64 {status}, 0"), slow, go_on, rarely=True)
        out.place(slow)
        answer = out.call("i64", POLL, ("ptr", self.args))
        out.branch(out.emit(f"icmp ne i64 {answer}, 0"), done, go_on)
        return slow

    def carrying(
        self, loop: For, starts: list[tuple[str, Value]], step: Callable[[list[Value]], list[Value]],
        trimmed: Trimmed | None = None,
    ) -> list[Value]:  # fmt: skip
        """The values (type, start) after a loop in which `step` maps them to those of the next step."""
        trimmed = trimmed or self.trimmed(loop)
        with (
            self.loop(loop.axis, trimmed.low, trimmed.high, trimmed.body) as steps,
            self.within(trimmed.body, loop.axis),
        ):
            results = step([steps.carry(*start) for start in starts])
            steps.following = list(results)
        return [steps.phi(*start, result) for start, result in zip(starts, results)]

    def vectors(
        self, loop: For, write: Callable[[], None], trimmed: Trimmed | None = None,
        most_sums: int = _MOST_VECTORS_OF_SUMS,
    ) -> None:  # fmt: skip
        """A vector loop: whole vectors, several at once where sums are in registers, and a masked rest."""
        body = loop.body if trimmed is None else trimmed.body
        trimmed = trimmed or self.trimmed(loop)
        low, high = trimmed.low, trimmed.high
        lanes = lanes_of(trimmed.body, self.module.target)
        size = constant_of(loop.extent)
        while size is not None and lanes > max(1, size):
            lanes //= 2
        several = _has_cheap_sums(trimmed.body) and not self._sums_rows(trimmed.body, lanes, loop.axis)
        n_strip = min(most_sums, _STRIP_BYTES // self.module.target.vector_bytes)
        widths = [n * lanes for n in dict.fromkeys((n_strip, _VECTORS_OF_SUMS, 1) if several else (1,))]
        outer = self.lanes
        for width in (width for width in widths if size is None or width <= size):
            end = self.whole(low, high, width)
            self.lanes = self.new_lanes(width, loop.axis)
            with self.loop(loop.axis, low, end, body, width):
                write()
            self.lanes = outer
            self.forget(*stored_buffers(body))
            low = end
        is_whole = trimmed.body is loop.body and size is not None and size % lanes == 0
        if id(loop) in self.ranges or not is_whole:
            self._masked_rest(loop.axis, low, high, body, lanes, write)

    def _sums_rows(self, body: Statement, count: int, axis: Axis) -> bool:
        """Whether sums read rows of arrays, which take as many registers as there are lanes."""
        lanes = self.new_lanes(count, axis)
        sums = ((loop, accumulated(loop)) for loop in loops_in(body))
        return any(store is not None and lanes.rows_along(store.value.args[1], loop.axis) for loop, store in sums)

    def _masked_rest(
        self, axis: Axis, low: Value, high: Value, body: Statement, lanes: int, write: Callable[[], None]
    ) -> None:
        """The last columns, fewer than a vector has lanes."""
        outer, out = self.lanes, self.body
        with out.when(out.emit(f"icmp slt i64 {low}, {high}"), "rest"):
            self.indices[axis] = low
            self.lanes = self.new_lanes(lanes, axis)
            n_left = out.emit(f"sub i64 {high}, {low}")
            self.lanes.mask, self.lanes.last = self.lanes.first_lanes(n_left), out.emit(f"sub i64 {n_left}, 1")
            write()
            del self.indices[axis]
            self.lanes = outer
            self.forget(*stored_buffers(body))


def _n_stores(statement: Statement) -> int | None:
    """How many stores a statement makes; None where that depends on sizes."""
    if isinstance(statement, Store):
        return 1
    inner = [_n_stores(each) for each in inner_statements(statement)]
    known = [each for each in inner if each is not None]
    steps = constant_of(statement.extent) if isinstance(statement, For) else 1
    return None if len(known) < len(inner) or steps is None else steps * sum(known)


def _steps_between_polls(body: Statement) -> int:
    """After how many steps a loop loads the status. After each, if a step's own loops may be long."""
    stores = _n_stores(body)
    return 1 if stores is None else max(1, _POLL_STORES // max(1, stores))


def _has_cheap_sums(body: Statement) -> bool:
    has_sums = any(accumulated(loop) is not None for loop in loops_in(body))
    return has_sums and all(node.op in _CHEAP for store in stores_in(body) for node in walk(store.value))
