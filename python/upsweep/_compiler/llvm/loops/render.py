"""A loop nest as a module of LLVM IR.

    void kernel(ptr args, i64 n_threads)

`args` are numbers of 64 bits: a status, which is set to 1 if memory runs out; for each buffer its address and
all strides but the last; then the sizes. A loop marked parallel, or the strips of a `Produce`, become a
function over part of the range, which the threads of OpenMP's pool take piece by piece. A loop marked
vectorized runs in vectors, with a masked rest.

A kernel can be ended early. Loops that may take long load the status, and where it is not 0 call
``upsweep_poll(args)``; they end where that returns another number than 0. The caller sets the status from
another thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from upsweep._compiler.llvm.loops.few_columns import narrow_form, write_narrow
from upsweep._compiler.llvm.loops.matmul import (
    VECTORS_OF_SUMS,
    accumulated,
    continues,
    innermost_store,
    shared_sums,
    write_shared_sums,
)
from upsweep._compiler.llvm.loops.parallel_for import NEEDS, POLL, SYMBOLS, launching_text
from upsweep._compiler.llvm.loops.vectorize import BITS, Lanes, View, lanes_of
from upsweep._compiler.llvm.target import Target
from upsweep._compiler.llvm.vectors import Body
from upsweep._compiler.loops.cost import strip_bytes, strip_work
from upsweep._compiler.loops.expressions import Axis, Expr, atoms, contains, mentions, walk
from upsweep._compiler.loops.linear import Linear, linear
from upsweep._compiler.loops.statements import (
    Allocate,
    Block,
    Buffer,
    For,
    If,
    Produce,
    Statement,
    Store,
    all_statements,
    inner_statements,
)

__all__ = ["Function", "render"]

Value = str

_ATTRIBUTES = """\
attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }
!0 = !{!"branch_weights", i32 1, i32 500}
"""
# What a thread has on its stack at most; more comes from the heap.
_MOST_ON_STACK = 32 << 10
# Stores that a loop makes between two loads of the status.
_POLL_STORES = 1 << 14
_CHEAP = ("add", "sub", "mul", "min", "max", "neg", "load", "const", "axis", "var", "cast")


@dataclass
class Trimmed:
    """A loop without the conditions that only cut its range."""

    body: Statement
    low: Value
    high: Value


@dataclass
class LoopEdges:
    """A loop while it is written.

    `phis` are the values that go from step to step, text with LAST for the label that a step ends with. `exits`
    are the labels that the loop ends with, known after it.
    """

    phis: list[str]
    exits: list[str] = field(default_factory=list)


class _Module:
    """The functions of one nest."""

    def __init__(
        self, buffers: Sequence[Buffer], sizes: Sequence[Expr], target: Target, symbols: Collection[str]
    ) -> None:
        self.buffers, self.sizes, self.target = buffers, sizes, target
        self.is_parallel, self.polls = set(SYMBOLS) <= set(symbols), POLL in symbols
        self.functions: list[str] = []
        self.needs: dict[str, str] = {}
        self.n_regions = 0

    def finish(self, function: Function, signature: str) -> None:
        function.body.do("ret void")
        self.functions.append(function.body.define(signature))
        self.needs |= function.body.needs


class Function:
    """One function while it is written."""

    def __init__(self, module: _Module, args: Value) -> None:
        self.module, self.args = module, args
        self.body = Body()
        self.indices: dict[Expr, Value] = {}
        self.views: dict[Buffer, View] = {}
        self.lanes = Lanes(self.body, module.target, self.indices, self.view)
        self.ranges: dict[int, tuple[Value, Value]] = {}  # of loops that run over a part here
        self.in_region = False

    def entered(self) -> None:
        """Arguments as values, before anything else."""
        place = 1
        emit = self.body.emit
        for buffer in self.module.buffers:
            pointer = emit(f"inttoptr i64 {self._argument(place)} to ptr")
            strides = [self._argument(place + 1 + d) for d in range(len(buffer.shape) - 1)]
            self.views[buffer] = View(pointer, [*strides, "1"] if buffer.shape else [])
            place += max(1, len(buffer.shape))
        for size in self.module.sizes:
            self.indices[size] = self._argument(place)
            place += 1

    def _argument(self, place: int) -> Value:
        address = self.body.emit(f"getelementptr i64, ptr {self.args}, i64 {place}")
        return self.body.emit(f"load i64, ptr {address}")

    def view(self, buffer: Buffer) -> View:
        return self.views[buffer]

    # ---- statements ----

    def write(self, statement: Statement) -> None:
        if isinstance(statement, Block):
            self._block(statement)
        elif isinstance(statement, Store):
            self.lanes.store(statement.buffer, statement.indices, self.lanes.value(statement.value))
            self._forget(statement.buffer)
        elif isinstance(statement, If):
            self._if(statement)
        elif isinstance(statement, Allocate):
            self._allocate(statement)
        elif isinstance(statement, Produce):
            form = narrow_form(statement) if statement.strips and self.in_region else None
            if statement.strips and not self.in_region and self.module.is_parallel:
                self._launch(statement, statement.strips)
            elif form is not None:
                write_narrow(self, form, statement)
            else:
                self.write(statement.body)
        elif isinstance(statement, For):
            self._for(statement)

    def _forget(self, buffer: Buffer) -> None:
        """Loads of a buffer before a store say nothing about what comes after it."""
        known = self.lanes.known
        stale = [k for k, (expr, _) in known.items() if buffer in atoms(expr)]
        for each in stale:
            del known[each]

    def _block(self, block: Block) -> None:
        steps = list(block.steps)
        while steps:
            step = steps.pop(0)
            following = steps[0] if steps else None
            if isinstance(step, Store) and isinstance(following, For) and continues(step, following):
                self._accumulate(following, self.lanes.value(step.value))
                steps.pop(0)
            else:
                self.write(step)

    def _if(self, statement: If) -> None:
        lanes = self.lanes
        has_loads = any(node.op == "load" for node in walk(statement.condition))
        mask = lanes.value(statement.condition)
        if lanes.varies(statement.condition) or (has_loads and lanes.axis is not None):
            self.lanes = lanes.masked(mask)
            self.lanes.known = dict(lanes.known)
            self.write(statement.body)
            self.lanes = lanes
            self._forget_stores(statement.body)
            return
        condition = self.body.emit(f"extractelement {lanes.kind('bool')} {mask}, i64 0")
        yes, done = self.body.label("if"), self.body.label("fi")
        self.body.branch(condition, yes, done)
        self.body.place(yes)
        before = lanes.known
        lanes.known = dict(before)
        self.write(statement.body)
        lanes.known = before
        self._forget_stores(statement.body)
        self.body.do(f"br label %{done}")
        self.body.place(done)

    def _forget_stores(self, statement: Statement) -> None:
        for buffer in {each.buffer for each in all_statements(statement) if isinstance(each, Store)}:
            self._forget(buffer)

    def _allocate(self, statement: Allocate) -> None:
        buffer = statement.buffer
        sizes = [self.lanes.index(size) for size in buffer.shape]
        strides = ["1"] * len(sizes)
        for d in range(len(sizes) - 2, -1, -1):
            strides[d] = self.lanes.times(strides[d + 1], sizes[d + 1])
        item = BITS[buffer.dtype] // 8
        constant = 1
        for size in buffer.shape:
            constant *= size.static[0] if size.op == "const" else _MOST_ON_STACK
        if constant * item <= _MOST_ON_STACK:
            self.views[buffer] = View(self.body.stack("i8", max(1, constant) * item, 64), strides)
            self.write(statement.body)
            del self.views[buffer]
            return
        total = self.lanes.times(self.lanes.times(strides[0], sizes[0]), str(item))
        self.body.needs["@malloc"] = "declare noalias ptr @malloc(i64)\n"
        self.body.needs["@free"] = "declare void @free(ptr)\n"
        memory = self.body.emit(f"call ptr @malloc(i64 {self.lanes.extreme('max', total, '1')})")
        is_cuda = self.body.emit(f"icmp ne ptr {memory}, null")
        run, fail, done = (self.body.label(hint) for hint in ("run", "fail", "done"))
        self.body.branch(is_cuda, run, fail)
        self.body.place(fail)
        self.body.do(f"store i64 1, ptr {self.args}")
        self.body.do(f"br label %{done}")
        self.body.place(run)
        self.views[buffer] = View(memory, strides)
        before = self.lanes.known
        self.lanes.known = dict(before)
        self.write(statement.body)
        del self.views[buffer]
        self.lanes.known = before
        self._forget_stores(statement.body)
        self.body.do(f"call void @free(ptr {memory})")
        self.body.do(f"br label %{done}")
        self.body.place(done)

    # ---- loops ----

    def _for(self, loop: For) -> None:
        forks = "parallel" in loop.marks and not self.in_region and self.lanes.axis is None
        if forks and self.module.is_parallel:
            self._launch(loop, [loop])
        elif accumulated(loop) is not None and not ("vectorized" in loop.marks and self.lanes.axis is None):
            self._accumulate(loop, None)
        elif "unrolled" in loop.marks:
            for step in range(loop.extent.static[0]):
                self.indices[loop.axis] = str(step)
                self.lanes.known = {k: v for k, v in self.lanes.known.items() if not mentions(v[0], loop.axis)}
                self.write(loop.body)
            del self.indices[loop.axis]
        elif "vectorized" in loop.marks and self.lanes.axis is None:
            trimmed = self.trimmed(loop)
            self.vectors(loop, trimmed.body, lambda: self.write(trimmed.body), trimmed)
        else:
            trimmed = self.trimmed(loop)
            low, form = trimmed.low, shared_sums(loop) if self.lanes.axis is None else None
            if form is not None:
                low = write_shared_sums(self, form, low, trimmed.high)
            self._serial(loop.axis, low, trimmed.high, trimmed.body)

    def trimmed(self, loop: For) -> Trimmed:
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
        """A range in which a condition on an index holds, if it is such a range."""
        if condition.op not in ("lt", "ge") or condition.args[0].dtype != "int64":
            return None
        a, b = linear(condition.args[0]), linear(condition.args[1])
        form = a.plus(b, -1) if condition.op == "ge" else b.plus(a, -1).plus(Linear(1), -1)
        step, rest = form.coefficient(axis), form.without(axis)  # step * axis + rest >= 0
        if not step or contains(rest.expr(), [axis]) or self.lanes.varies(rest.expr()):
            return None
        lanes, size = self.lanes, abs(step)
        sign = 1 if step < 0 else -1
        base = lanes.index(rest.scaled(sign).plus(Linear(size if step < 0 else size - 1)).expr())
        bound = self.body.emit(f"sdiv i64 {lanes.extreme('max', base, '0')}, {size}")
        return (low, lanes.extreme("min", high, bound)) if step < 0 else (lanes.extreme("max", low, bound), high)

    @contextmanager
    def loop(self, axis: Axis, low: Value, high: Value, body: Statement, step: int = 1) -> Iterator[LoopEdges]:
        """What is written inside runs for axis = low, low + step, ... below high."""
        out = self.body
        steps = _steps_between_polls(body) if self.module.polls else 0
        if low.isdigit() and high.isdigit() and int(high) - int(low) <= steps * step:
            steps = 0  # it is short
        before, label, done = out.block, out.label("loop"), out.label("done")
        first_limit = self._limit(low, high, steps * step) if steps > 1 else high
        out.branch(out.emit(f"icmp slt i64 {low}, {high}"), label, done)
        out.place(label)
        index, following = out.name("i"), out.name("next")
        place = len(out.lines)
        self.indices[axis] = index
        edges = LoopEdges([f"  {index} = phi i64 [{low}, %{before}], [{following}, %LAST]"])
        yield edges
        del self.indices[axis]
        out.do(f"{following} = add i64 {index}, {step}")
        # Labels that lead back: the end of a step, and where it polls, the two blocks of that.
        back, limit = [out.block], out.name("limit") if steps > 1 else high
        more = out.label("more") if steps > 1 else ""
        check = out.label("check") if steps else label
        if more:
            out.branch(out.emit(f"icmp slt i64 {following}, {limit}"), label, more)
            out.place(more)
        edges.exits.append(out.block)
        out.branch(out.emit(f"icmp slt i64 {following}, {high}"), check, done)
        if steps:
            out.place(check)
            next_limit = self._limit(following, high, steps * step) if more else ""
            slow = self._poll(label, done)
            edges.exits.append(slow)
            back = [*(back if more else []), check, slow]
            if more:
                values = ", ".join(
                    f"[{value}, %{source}]" for value, source in zip((limit, next_limit, next_limit), back)
                )
                edges.phis.append(f"  {limit} = phi i64 [{first_limit}, %{before}], {values}")
        out.lines[place:place] = [_with_sources(phi, back) for phi in edges.phis]
        out.place(done)

    def _limit(self, index: Value, high: Value, steps: int) -> Value:
        """The index at which a loop polls next."""
        return self.lanes.extreme("min", self.body.emit(f"add i64 {index}, {steps}"), high)

    def _poll(self, go_on: str, done: str) -> str:
        """Leave for `done` if the kernel is to end; the label of the block that calls for the answer."""
        out = self.body
        slow = out.label("slow")
        status = out.emit(f"load volatile i64, ptr {self.args}")
        out.branch(out.emit(f"icmp ne i64 {status}, 0"), slow, go_on, rarely=True)
        out.place(slow)
        out.needs |= {f"@{POLL}": NEEDS[f"@{POLL}"]}
        answer = out.emit(f"call i64 @{POLL}(ptr {self.args})")
        out.branch(out.emit(f"icmp ne i64 {answer}, 0"), done, go_on)
        return slow

    @contextmanager
    def within(self, axis: Axis, body: Statement) -> Iterator[None]:
        """What is known in here holds for one step of a loop only."""
        lanes = self.lanes
        known = lanes.known
        lanes.known = {k: v for k, v in known.items() if not _changes(v[0], axis, body)}
        yield
        lanes.known = known
        self._forget_stores(body)

    def _serial(self, axis: Axis, low: Value, high: Value, body: Statement, step: int = 1) -> None:
        with self.loop(axis, low, high, body, step), self.within(axis, body):
            self.write(body)

    def carrying(
        self, loop: For, starts: list[tuple[str, Value]], step: Callable[[list[Value]], list[Value]],
        trimmed: Trimmed | None = None,
    ) -> list[Value]:  # fmt: skip
        """Values (kind, start) after a loop whose step takes them to new ones."""
        out = self.body
        trimmed = trimmed or self.trimmed(loop)
        before = out.block
        names = [out.name("c") for _ in starts]
        with (
            self.loop(loop.axis, trimmed.low, trimmed.high, trimmed.body) as edges,
            self.within(loop.axis, trimmed.body),
        ):
            results = step(names)
            edges.phis += [
                f"  {name} = phi {kind} [{start}, %{before}], [{result}, %LAST]"
                for name, (kind, start), result in zip(names, starts, results)
            ]
        return [
            out.emit(_with_sources(f"phi {kind} [{start}, %{before}], [{result}, %LAST]", edges.exits))
            for (kind, start), result in zip(starts, results)
        ]

    def vectors(
        self, loop: For, body: Statement, write: Callable[[], None], trimmed: Trimmed | None = None
    ) -> None:
        """A vector loop: whole vectors, several at once where sums are kept in registers, and a masked rest."""
        trimmed = trimmed or self.trimmed(loop)
        low, high = trimmed.low, trimmed.high
        lanes = lanes_of(trimmed.body, self.module.target)
        size = loop.extent.static[0] if loop.extent.op == "const" else None
        while size is not None and lanes > max(1, size):
            lanes //= 2
        widths = [VECTORS_OF_SUMS * lanes, lanes] if _has_cheap_sums(trimmed.body) else [lanes]
        outer, emit = self.lanes, self.body.emit
        for width in (width for width in widths if size is None or width <= size):
            room = outer.extreme("max", emit(f"sub i64 {high}, {low}"), "0")
            end = outer.plus(low, emit(f"sub i64 {room}, {emit(f'urem i64 {room}, {width}')}"))
            self.lanes = Lanes(self.body, self.module.target, self.indices, self.view, width, loop.axis)
            with self.loop(loop.axis, low, end, body, width):
                write()
            self.lanes = outer
            self._forget_stores(body)
            low = end
        is_whole = (
            id(loop) not in self.ranges and trimmed.body is loop.body and size is not None and size % lanes == 0
        )
        if not is_whole:
            self._rest(loop.axis, low, high, body, lanes, write)

    def _rest(
        self, axis: Axis, low: Value, high: Value, body: Statement, lanes: int, write: Callable[[], None]
    ) -> None:
        """The last lanes, fewer than a vector."""
        outer, out = self.lanes, self.body
        rest, done = out.label("rest"), out.label("over")
        out.branch(out.emit(f"icmp slt i64 {low}, {high}"), rest, done)
        out.place(rest)
        self.indices[axis] = low
        inner = Lanes(out, self.module.target, self.indices, self.view, lanes, axis)
        inner.mask = inner.first_lanes(out.emit(f"sub i64 {high}, {low}"))
        self.lanes = inner
        write()
        del self.indices[axis]
        self.lanes = outer
        self._forget_stores(body)
        out.do(f"br label %{done}")
        out.place(done)

    # ---- sums in registers ----

    def _accumulate(self, loop: For, start: Value | None) -> None:
        """A loop that takes values into one element: read and written once."""
        store = accumulated(loop)
        assert store is not None
        lanes = self.lanes
        if start is None:
            start = lanes.value(store.value.args[0])
        total = self._carry(loop, start)
        lanes.store(store.buffer, store.indices, total)
        self._forget(store.buffer)

    def _carry(self, statement: Statement, value: Value) -> Value:
        """The accumulated value after a statement, from the one before it."""
        if isinstance(statement, Store):
            return self.lanes.accumulated(statement.value, value)
        if isinstance(statement, If):
            mask = self.lanes.value(statement.condition)
            outer = self.lanes
            self.lanes = outer.masked(mask)
            new = self._carry(statement.body, value)
            self.lanes = outer
            kind = outer.kind(innermost_store(statement).buffer.dtype)
            return self.body.emit(f"select {outer.kind('bool')} {mask}, {kind} {new}, {kind} {value}")
        assert isinstance(statement, For)
        trimmed = self.trimmed(statement)
        kind = self.lanes.kind(innermost_store(statement).buffer.dtype)
        (total,) = self.carrying(
            statement, [(kind, value)], lambda values: [self._carry(trimmed.body, values[0])], trimmed
        )
        return total

    # ---- threads ----

    def _launch(self, statement: Statement, loops: list[For]) -> None:
        """A function over a part of the range of some loops, and the call that shares the range among threads."""
        module, out = self.module, self.body
        name = f"@region{module.n_regions}"
        module.n_regions += 1
        captured = [axis for axis in self.indices if isinstance(axis, Axis)]
        given = set(module.buffers)
        private = [(buffer, view) for buffer, view in self.views.items() if buffer not in given]
        inner = Function(module, "%args")
        inner.in_region = True
        inner.body.do("%args = load ptr, ptr %context")
        inner.entered()
        values = [self.indices[axis] for axis in captured]
        for _, view in private:
            values += [out.emit(f"ptrtoint ptr {view.pointer} to i64"), *view.strides]
        context = out.stack("i64", 1 + len(values), 8)
        out.do(f"store ptr {self.args}, ptr {context}")
        handed = []
        for place, value in enumerate(values, 1):
            out.do(f"store i64 {value}, ptr {out.emit(f'getelementptr i64, ptr {context}, i64 {place}')}")
            address = inner.body.emit(f"getelementptr i64, ptr %context, i64 {place}")
            handed.append(inner.body.emit(f"load i64, ptr {address}"))
        for axis in captured:
            inner.indices[axis] = handed.pop(0)
        for buffer, view in private:
            pointer = inner.body.emit(f"inttoptr i64 {handed.pop(0)} to ptr")
            inner.views[buffer] = View(pointer, [handed.pop(0) for _ in view.strides])
        for loop in loops:
            inner.ranges[id(loop)] = ("%low", "%high")
        inner.write(statement)
        module.finish(inner, f"internal void {name}(ptr %context, i64 %low, i64 %high) #0")
        extent = self.lanes.index(loops[0].extent)
        bytes_each = self.lanes.index(strip_bytes(loops))
        work = self.lanes.index(strip_work(statement, loops))
        align = 64 if any("vectorized" in loop.marks for loop in loops) else 1
        out.do(
            f"call void @launch(ptr {name}, ptr {context}, i64 {extent}, i64 {bytes_each}, i64 {work}, "
            f"i64 {align}, i64 %n_threads)"
        )
        self._forget_stores(statement)


def _changes(expr: Expr, axis: Axis, body: Statement) -> bool:
    """Whether a known value may be another one in a loop over `axis`."""
    stored = {each.buffer for each in all_statements(body) if isinstance(each, Store)}
    return contains(expr, (axis, *stored))


def _with_sources(phi: str, labels: list[str]) -> str:
    """A phi's text with the value of LAST coming from each of the labels."""
    return re.sub(
        r"\[([^\[\]]*), %LAST\]", lambda match: ", ".join(f"[{match[1]}, %{label}]" for label in labels), phi
    )


def _stores_of(statement: Statement) -> int | None:
    """How many stores a statement makes; None where that depends on sizes."""
    if isinstance(statement, Store):
        return 1
    inner = [_stores_of(each) for each in inner_statements(statement)]
    known = [each for each in inner if each is not None]
    if len(known) < len(inner):
        return None
    if isinstance(statement, For):
        return known[0] * statement.extent.static[0] if statement.extent.op == "const" else None
    return sum(known)


def _steps_between_polls(body: Statement) -> int:
    """After how many steps a loop loads the status. After each, if a step's own loops may be long."""
    stores = _stores_of(body)
    return 1 if stores is None else max(1, _POLL_STORES // max(1, stores))


def _has_cheap_sums(body: Statement) -> bool:
    loops = [each for each in all_statements(body) if isinstance(each, For) and accumulated(each) is not None]
    stores = [each for each in all_statements(body) if isinstance(each, Store)]
    return bool(loops) and all(node.op in _CHEAP for store in stores for node in walk(store.value))


def render(
    body: Statement,
    buffers: Sequence[Buffer],
    sizes: Sequence[Expr],
    target: Target,
    symbols: Collection[str],
) -> str:
    """The module of a nest. Buffers of the arguments come first, then those of the whole nest, then sizes.

    `symbols` are the functions that it may call: without OpenMP's nothing is parallel, without `POLL` no loop
    polls.
    """
    module = _Module(buffers, sizes, target, symbols)
    kernel = Function(module, "%args")
    kernel.entered()
    kernel.write(body)
    module.finish(kernel, "void @kernel(ptr %args, i64 %n_threads) #0")
    if module.n_regions:
        module.functions.append(launching_text(module.polls))
        module.needs |= {name: text for name, text in NEEDS.items() if module.polls or name != f"@{POLL}"}
    parts = [*module.functions, *module.needs.values(), _ATTRIBUTES]
    return "\n".join(parts)
