"""A loop nest as a module of LLVM IR.

    void kernel(ptr args, i64 n_threads)

`args` are numbers of 64 bits: a status, which is set to 1 if memory runs out; for each buffer its address and
all strides but the last; then the sizes. A loop marked parallel, or the strips of a `Produce`, become a
function over a chunk of the range, which the threads of OpenMP's pool run chunk by chunk (`parallel_for`). A loop
marked vectorized runs in vectors, with a masked rest. `_backends.cpu.loops` compiles the text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from upsweep._compiler.llvm.loops.few_columns import few_columns_form, write_few_columns
from upsweep._compiler.llvm.loops.matmul import shared_sums, write_shared_sums
from upsweep._compiler.llvm.loops.parallel_for import write_launch, write_worker
from upsweep._compiler.llvm.loops.vectorize import View
from upsweep._compiler.llvm.loops.writer import LoopWriter, Module, Trimmed
from upsweep._compiler.llvm.target import Target
from upsweep._compiler.llvm.vectors import Body, Value
from upsweep._compiler.loops.cost import strip_bytes, strip_work
from upsweep._compiler.loops.expressions import ITEM_BYTES, Axis, Expr, constant_of, has_loads, mentions
from upsweep._compiler.loops.reductions import accumulated, innermost_store, paired_steps
from upsweep._compiler.loops.rewrite import used_buffers
from upsweep._compiler.loops.statements import (
    Allocate,
    Block,
    Buffer,
    For,
    If,
    Produce,
    Statement,
    Store,
    stored_buffers,
)

# Bytes that a thread has on its stack at most; larger buffers are allocated on the heap.
_MAX_ON_STACK = 32 << 10


class StatementWriter(LoopWriter):
    """One function of a nest: the kernel, or with `in_region` the body of a parallel for."""

    def __init__(self, module: Module, args: Value, in_region: bool = False) -> None:
        super().__init__(module, args)
        self.in_region = in_region

    def write(self, statement: Statement) -> None:
        """Write a statement at the end of the function."""
        if isinstance(statement, Block):
            for step, loop in paired_steps(statement):
                if isinstance(step, Store) and loop is not None:
                    self._accumulate(loop, self.lanes.value(step.value))
                else:
                    self.write(step)
        elif isinstance(statement, Store):
            self.lanes.store(statement.buffer, statement.indices, self.lanes.value(statement.value))
            self.forget(statement.buffer)
        elif isinstance(statement, If):
            self._if(statement)
        elif isinstance(statement, Allocate):
            self._allocate(statement)
        elif isinstance(statement, Produce):
            self._produce(statement)
        elif isinstance(statement, For):
            self._for(statement)

    def _produce(self, statement: Produce) -> None:
        form = few_columns_form(statement) if statement.strips and self.in_region else None
        if statement.strips and not self.in_region and self.module.is_parallel:
            self._parallel_for(statement, statement.strips)
        elif form is not None:
            write_few_columns(self, form, lambda: self.write(statement.body))
        else:
            self.write(statement.body)

    def _if(self, statement: If) -> None:
        lanes, out = self.lanes, self.body
        mask = lanes.value(statement.condition)
        if lanes.axis is not None and (lanes.varies(statement.condition) or has_loads(statement.condition)):
            self.lanes = lanes.masked(mask)
            self.lanes.known = dict(lanes.known)
            self.write(statement.body)
            self.lanes = lanes
            self.forget(*stored_buffers(statement.body))
            return
        condition = out.emit(f"extractelement {lanes.kind('bool')} {mask}, i64 0")
        with out.when(condition, "if"), self.within(statement.body):
            self.write(statement.body)

    def _allocate(self, statement: Allocate) -> None:
        buffer, lanes, out = statement.buffer, self.lanes, self.body
        sizes = [lanes.index(size) for size in buffer.shape]
        strides = ["1"] * len(sizes)
        for d in range(len(sizes) - 2, -1, -1):
            strides[d] = lanes.times(strides[d + 1], sizes[d + 1])
        item, extents = ITEM_BYTES[buffer.dtype], [constant_of(extent) for extent in buffer.shape]
        n_bytes = item * math.prod(_MAX_ON_STACK + 1 if extent is None else extent for extent in extents)
        if n_bytes <= _MAX_ON_STACK:
            self.views[buffer] = View(out.stack("i8", n_bytes or item, 64), strides)
            self.write(statement.body)
            del self.views[buffer]
            return
        total = lanes.times(lanes.times(strides[0], sizes[0]), str(item))
        memory = out.call("noalias ptr", "malloc", ("i64", out.extreme("smax", total, "1")))
        is_allocated = out.emit(f"icmp ne ptr {memory}, null")
        run, fail, done = (out.label(hint) for hint in ("run", "fail", "done"))
        out.branch(is_allocated, run, fail)
        out.place(fail)
        out.do(f"store i64 1, ptr {self.args}")
        out.do(f"br label %{done}")
        out.place(run)
        self.views[buffer] = View(memory, strides)
        with self.within(statement.body):
            self.write(statement.body)
        del self.views[buffer]
        out.call("void", "free", ("ptr", memory))
        out.do(f"br label %{done}")
        out.place(done)

    # ---- loops ----

    def _for(self, loop: For) -> None:
        is_scalar = self.lanes.axis is None
        is_vector = "vectorized" in loop.marks and is_scalar
        if "parallel" in loop.marks and not self.in_region and is_scalar and self.module.is_parallel:
            self._parallel_for(loop, [loop])
        elif accumulated(loop) is not None and not is_vector:
            self._accumulate(loop, None)
        elif "unrolled" in loop.marks:
            for step in range(loop.extent.static[0]):
                self.indices[loop.axis] = str(step)
                self.lanes.known = {k: v for k, v in self.lanes.known.items() if not mentions(v[0], loop.axis)}
                self.write(loop.body)
            del self.indices[loop.axis]
        elif is_vector:
            trimmed = self.trimmed(loop)
            self.vectors(loop, lambda: self.write(trimmed.body), trimmed)
        else:
            trimmed = self.trimmed(loop)
            low, form = trimmed.low, shared_sums(loop) if is_scalar else None
            if form is not None:
                low = write_shared_sums(self, form, low, trimmed.high)
            with self.loop(loop.axis, low, trimmed.high, trimmed.body), self.within(trimmed.body, loop.axis):
                self.write(trimmed.body)

    # ---- sums in registers ----

    def _accumulate(self, loop: For, start: Value | None) -> None:
        """A loop that accumulates into one element, which is loaded and stored once."""
        store = accumulated(loop)
        assert store is not None
        lanes = self.lanes
        if start is None:
            start = lanes.value(store.value.args[0])
        total = self._carry(loop, start)
        lanes.store(store.buffer, store.indices, total)
        self.forget(store.buffer)

    def _carry(self, statement: Statement, value: Value) -> Value:
        """The accumulated value after a statement, from the one before it."""
        if isinstance(statement, Store):
            return self.lanes.accumulated(statement.value, value)
        dtype = innermost_store(statement).buffer.dtype
        if isinstance(statement, If):
            mask = self.lanes.value(statement.condition)
            outer = self.lanes
            self.lanes = outer.masked(mask)
            new = self._carry(statement.body, value)
            self.lanes = outer
            return outer.choose(dtype, mask, new, value)
        assert isinstance(statement, For)
        trimmed = self.trimmed(statement)
        rows = (
            self.lanes.rows_along(trimmed.body.value.args[1], statement.axis)
            if isinstance(trimmed.body, Store)
            else []
        )
        if rows:
            value, trimmed = self._carry_rows(statement.axis, trimmed, rows, value)
        starts = [(self.lanes.kind(dtype), value)]
        return self.carrying(statement, starts, lambda v: [self._carry(trimmed.body, v[0])], trimmed)[0]

    def _carry_rows(self, axis: Axis, loop: Trimmed, rows: list[Expr], value: Value) -> tuple[Value, Trimmed]:
        """The accumulated value after as many steps as vectors of rows hold; and the loop over the rest."""
        lanes, kind = self.lanes, self.lanes.kind(innermost_store(loop.body).buffer.dtype)
        end = self.whole(loop.low, loop.high, lanes.count)
        with self.loop(axis, loop.low, end, loop.body, lanes.count) as steps, self.within(loop.body, axis):
            total, first = steps.carry(kind, value), self.indices[axis]
            for step, values in enumerate(zip(*(lanes.load_rows(load) for load in rows))):
                self.indices[axis] = lanes.plus(first, str(step))
                lanes.known = {k: v for k, v in lanes.known.items() if not mentions(v[0], axis)}
                lanes.known |= {(id(load), lanes.mask): (load, each) for load, each in zip(rows, values)}
                total = self._carry(loop.body, total)
            self.indices[axis] = first
            steps.following = [total]
        return steps.phi(kind, value, total), Trimmed(loop.body, end, loop.high)

    # ---- threads ----

    def _parallel_for(self, statement: Statement, loops: list[For]) -> None:
        """A function over a chunk of the range of some loops, and the call that runs it in threads."""
        module, out = self.module, self.body
        name = f"@region{module.n_regions}"
        module.n_regions += 1
        captured = [axis for axis in self.indices if isinstance(axis, Axis)]
        used = used_buffers(statement)
        private = [(b, view) for b, view in self.views.items() if b in used and b not in module.own_buffers]
        inner = StatementWriter(module, "%args", in_region=True)
        inner.body.do("%args = load ptr, ptr %context")
        inner.load_arguments(used)
        values = [self.indices[axis] for axis in captured]
        for _, view in private:
            values += [out.emit(f"ptrtoint ptr {view.pointer} to i64"), *view.strides]
        context = out.stack("i64", 1 + len(values), 8)
        out.do(f"store ptr {self.args}, ptr {context}")
        loaded = []
        for position, value in enumerate(values, 1):
            out.do(f"store i64 {value}, ptr {out.at('i64', context, position)}")
            loaded.append(inner.body.load_at("i64", "%context", position))
        for axis in captured:
            inner.indices[axis] = loaded.pop(0)
        for buffer, view in private:
            pointer = inner.body.emit(f"inttoptr i64 {loaded.pop(0)} to ptr")
            inner.views[buffer] = View(pointer, [loaded.pop(0) for _ in view.strides])
        for loop in loops:
            inner.ranges[id(loop)] = ("%low", "%high")
        inner.write(statement)
        module.finish(inner.body, f"internal void {name}(ptr %context, i64 %low, i64 %high) #0")
        extent = self.lanes.index(loops[0].extent)
        bytes_each = self.lanes.index(strip_bytes(loops))
        work = self.lanes.index(strip_work(statement, loops))
        align = 64 if any("vectorized" in loop.marks for loop in loops) else 1
        out.do(
            f"call void @launch(ptr {name}, ptr {context}, i64 {extent}, i64 {bytes_each}, i64 {work}, "
            f"i64 {align}, i64 %n_threads)"
        )
        self.forget(*stored_buffers(statement))


def render(
    body: Statement, buffers: Sequence[Buffer], sizes: Sequence[Expr], target: Target, symbols: Collection[str]
) -> str:
    """The module of a nest. `args` has the buffers of the call, then those of the whole nest, then the sizes.

    `symbols` are the functions that it may call: without OpenMP's nothing is parallel, without `upsweep_poll` no
    loop polls.
    """
    module = Module(buffers, sizes, target, symbols)
    kernel = StatementWriter(module, "%args")
    kernel.load_arguments(module.own_buffers)
    kernel.write(body)
    module.finish(kernel.body, "void @kernel(ptr %args, i64 %n_threads) #0")
    if module.n_regions:
        worker, launch = Body(), Body()
        module.finish(worker, write_worker(worker, module.polls))
        module.finish(launch, write_launch(launch))
    return module.text()
