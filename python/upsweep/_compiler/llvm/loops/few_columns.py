"""Scans over few columns: the state stays in registers from step to step.

Where a strip is a few vectors wide, a step is so short that it waits for the store of the step before to come back
from memory. A scan whose loops all run over the strip, elementwise, can process its columns vector by vector
instead, each through all of time; what a step reads of the step before is then carried in registers. Wide strips
stay as they are, because neighbours in memory are better read together. `render` calls both functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from upsweep._compiler.llvm.loops.vectorize import lanes_of
from upsweep._compiler.llvm.loops.writer import LoopWriter
from upsweep._compiler.llvm.vectors import Value
from upsweep._compiler.loops.expressions import Expr, binary, constant_of, index_const, key, load, substitute
from upsweep._compiler.loops.linear import linear, simplified
from upsweep._compiler.loops.statements import Block, Buffer, For, Produce, Statement, Store, loads_of

# The widest strip, in vectors, whose vectors run through time one after the other.
_MAX_VECTORS = 4
_MAX_FIRST_STEPS = 8


@dataclass
class FewColumns:
    """The loops of such a scan: over the strip before time begins, over time, and over the strip in each step.

    `carried` are, for a buffer that a step stores, the loads of what the step before stored; `forwarded` those of
    what the same step has stored already.
    """

    before: list[tuple[For, Store]]
    time: For
    steps: list[tuple[For, Store]]
    carried: dict[Buffer, list[Expr]]
    forwarded: dict[Buffer, list[Expr]]


def _flat(statement: Statement) -> list[Statement]:
    if isinstance(statement, Block):
        return [inner for step in statement.steps for inner in _flat(step)]
    return _flat(statement.body) if isinstance(statement, Produce) else [statement]


def _as_columns(statement: Statement) -> tuple[For, Store] | None:
    if isinstance(statement, For) and "vectorized" in statement.marks and isinstance(statement.body, Store):
        return statement, statement.body
    return None


def _first_steps(statement: Statement) -> list[tuple[For, Store]] | None:
    """The loop over the strip for each step of the initial values."""
    columns = _as_columns(statement)
    if columns is not None:
        return [columns]
    n_steps = constant_of(statement.extent) if isinstance(statement, For) and not statement.marks else None
    if not isinstance(statement, For) or n_steps is None or n_steps > _MAX_FIRST_STEPS:
        return None
    inner = _as_columns(statement.body)
    if inner is None:
        return None
    loop, store = inner
    steps = []
    for t in range(n_steps):
        at = {statement.axis: index_const(t)}
        indices = tuple(substitute(index, at) for index in store.indices)
        steps.append((loop, Store(store.buffer, indices, substitute(store.value, at))))
    return steps


def _position(indices: tuple[Expr, ...], loop: For, time: For, back: int) -> str:
    """Indices as text that is the same for all loops over the strip; `back` steps earlier."""
    column = index_const(-1)  # stands for the column, which is never negative
    earlier = binary("sub", time.axis, index_const(back)) if back else time.axis
    values: dict[Expr, Expr] = {loop.axis: column, time.axis: earlier}
    parts = []
    for index in indices:
        is_column = simplified(index) is loop.axis
        parts.append("column" if is_column else key(linear(substitute(index, values)).expr()))
    return " ".join(parts)


def few_columns_form(produce: Produce) -> FewColumns | None:
    """The loops of a scan whose state can be carried in registers; None for others."""
    *starts, time = _flat(produce.body)
    if not isinstance(time, For) or time.marks:
        return None
    before: list[tuple[For, Store]] = []
    for statement in starts:
        first_steps = _first_steps(statement)
        if first_steps is None:
            return None
        before += first_steps
    columns = [_as_columns(statement) for statement in _flat(time.body)]
    steps = [step for step in columns if step is not None]
    buffers = [store.buffer for _, store in steps]
    if len(steps) < len(columns) or len(set(buffers)) < len(buffers):
        return None
    carried: dict[Buffer, list[Expr]] = {}
    forwarded: dict[Buffer, list[Expr]] = {}
    stored = {store.buffer: (n, loop, store) for n, (loop, store) in enumerate(steps)}
    for n, (reading, reader) in enumerate(steps):
        for each in loads_of(reader.value):
            if each.static[0] not in stored:
                continue
            earlier, loop, store = stored[each.static[0]]
            now, previous = (_position(store.indices, loop, time, back) for back in (0, 1))
            read = _position(each.args, reading, time, 0)
            if read == now and n > earlier:
                forwarded.setdefault(store.buffer, []).append(each)
            elif read == previous and previous != now:
                carried.setdefault(store.buffer, []).append(each)
    return FewColumns(before, time, steps, carried, forwarded) if carried else None


def write_few_columns(writer: LoopWriter, form: FewColumns, write_wide: Callable[[], None]) -> None:
    """Write the scan, with a branch for strips of few vectors; `write_wide` writes it for others."""
    out = writer.body
    lanes = min(lanes_of(store_loop.body, writer.module.target) for store_loop, _ in form.steps)
    low, high = writer.ranges[id(form.steps[0][0])]
    width = out.emit(f"sub i64 {high}, {low}")
    narrow, wide, done = (out.label(hint) for hint in ("narrow", "wide", "done"))
    is_narrow = out.emit(f"icmp sle i64 {width}, {_MAX_VECTORS * lanes}")
    out.branch(is_narrow, narrow, wide)
    out.place(narrow)
    writer.lanes.known = {}
    end = writer.lanes.plus(low, out.emit(f"sub i64 {width}, {out.emit(f'srem i64 {width}, {lanes}')}"))
    with out.loop("columns", end, first=low, step=lanes, is_less="slt", guarded=True) as columns:
        _Columns(writer, lanes, columns.index, None).write(form)
    with out.when(out.emit(f"icmp slt i64 {end}, {high}"), "last"):
        valid = writer.new_lanes(lanes).first_lanes(out.emit(f"sub i64 {high}, {end}"))
        _Columns(writer, lanes, end, valid).write(form)
    out.do(f"br label %{done}")
    out.place(wide)
    write_wide()
    writer.lanes.known = {}
    out.do(f"br label %{done}")
    out.place(done)


class _Columns:
    """One vector of columns, from `base` on, through all steps of time."""

    def __init__(self, writer: LoopWriter, lanes: int, base: Value, mask: Value | None) -> None:
        self.writer, self.lanes, self.base, self.mask = writer, lanes, base, mask
        self.pinned: dict[int, Value] = {}

    def _store(self, loop: For, store: Store) -> Value:
        """One statement of a step; the value that it stores."""
        writer = self.writer
        writer.indices[loop.axis] = self.base
        writer.lanes = writer.new_lanes(self.lanes, loop.axis, self.mask, self.pinned)
        value = writer.lanes.value(store.value)
        writer.lanes.store(store.buffer, store.indices, value)
        del writer.indices[loop.axis]
        return value

    def _initial(self, loop: For, store: Store, time: For) -> Value:
        """The state that the first step reads, from the step before it."""
        writer = self.writer
        writer.indices[loop.axis] = self.base
        reader = writer.new_lanes(self.lanes, loop.axis, self.mask)
        back: dict[Expr, Expr] = {time.axis: binary("sub", time.axis, index_const(1))}
        value = reader.value(load(store.buffer, tuple(substitute(index, back) for index in store.indices)))
        del writer.indices[loop.axis]
        return value

    def write(self, form: FewColumns) -> None:
        writer, outer = self.writer, self.writer.lanes
        for loop, store in form.before:
            self._store(loop, store)
        axis = form.time.axis
        writer.indices[axis] = "0"
        starts = {
            store.buffer: self._initial(loop, store, form.time)
            for loop, store in form.steps
            if store.buffer in form.carried
        }
        end = outer.index(form.time.extent)
        results: dict[Buffer, Value] = {}
        with writer.loop(axis, "0", end, Block([store for _, store in form.steps])) as steps:
            for buffer, start in starts.items():
                state = steps.carry(writer.new_lanes(self.lanes).kind(buffer.dtype), start)
                self.pinned |= {id(each): state for each in form.carried[buffer]}
            for loop, store in form.steps:
                results[store.buffer] = self._store(loop, store)
                self.pinned |= {id(each): results[store.buffer] for each in form.forwarded.get(store.buffer, [])}
            steps.following = [results[buffer] for buffer in starts]
            writer.lanes = outer
