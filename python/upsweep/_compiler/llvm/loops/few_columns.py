"""Scans over few columns: the state stays in registers from step to step.

Where a strip is a few vectors wide, each step is so short that it waits for the store of the step before to
come back from memory. A scan whose loops all run over the strip, elementwise, can take its columns vector by
vector instead, each through all of time; what a step reads of the step before is then handed on in registers.
Wide strips are left as they are: neighbours in memory are better read together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from upsweep._compiler.llvm.loops.vectorize import Lanes, lanes_of
from upsweep._compiler.loops.expressions import Expr, binary, const, key, load, substitute, walk
from upsweep._compiler.loops.linear import linear, simplified
from upsweep._compiler.loops.statements import Block, Buffer, For, Produce, Statement, Store

if TYPE_CHECKING:
    from upsweep._compiler.llvm.loops.render import Function

__all__ = ["Narrow", "narrow_form", "write_narrow"]

Value = str

# Strips up to so many vectors go through time one vector after the other.
_NARROW_VECTORS = 4
_MOST_FIRST_STEPS = 8


@dataclass
class Narrow:
    """The loops of such a scan: over the strip before time begins, over time, and over the strip in each step.

    `handed` are, for a buffer that a step stores, the loads of what the step before stored; `fresh` those of
    what the same step has stored already.
    """

    before: list[tuple[For, Store]]
    time: For
    steps: list[tuple[For, Store]]
    handed: dict[Buffer, list[Expr]]
    fresh: dict[Buffer, list[Expr]]


def _flat(statement: Statement) -> list[Statement]:
    if isinstance(statement, Block):
        return [inner for step in statement.steps for inner in _flat(step)]
    if isinstance(statement, Produce):
        return _flat(statement.body)
    return [statement]


def _as_columns(statement: Statement) -> tuple[For, Store] | None:
    if isinstance(statement, For) and "vectorized" in statement.marks and isinstance(statement.body, Store):
        return statement, statement.body
    return None


def _first_steps(statement: Statement) -> list[tuple[For, Store]] | None:
    """The loop over the strip of each step that is given before time begins."""
    columns = _as_columns(statement)
    if columns is not None:
        return [columns]
    if not isinstance(statement, For) or statement.marks or statement.extent.op != "const":
        return None
    inner = _as_columns(statement.body)
    if inner is None or statement.extent.static[0] > _MOST_FIRST_STEPS:
        return None
    loop, store = inner
    steps = []
    for t in range(statement.extent.static[0]):
        at = {statement.axis: const(t, "int64")}
        indices = tuple(substitute(index, at) for index in store.indices)
        steps.append((loop, Store(store.buffer, indices, substitute(store.value, at))))
    return steps


def _place(indices: tuple[Expr, ...], loop: For, time: For, back: int) -> str:
    """Indices as text that is the same for all loops over the strip; `back` steps earlier."""
    column = const(-1, "int64")  # stands for the column, which is never negative
    earlier = binary("sub", time.axis, const(back, "int64")) if back else time.axis
    values: dict[Expr, Expr] = {loop.axis: column, time.axis: earlier}
    parts = []
    for index in indices:
        is_column = simplified(index) is loop.axis
        parts.append("column" if is_column else key(linear(substitute(index, values)).expr()))
    return " ".join(parts)


def narrow_form(produce: Produce) -> Narrow | None:
    """The loops of a scan whose state can be handed on in registers; None for others."""
    *starts, time = _flat(produce.body)
    if not isinstance(time, For) or time.marks:
        return None
    before: list[tuple[For, Store]] = []
    for statement in starts:
        first_steps = _first_steps(statement)
        if first_steps is None:
            return None
        before += first_steps
    steps = [_as_columns(statement) for statement in _flat(time.body)]
    found = [step for step in steps if step is not None]
    if len(found) < len(steps):
        return None
    handed: dict[Buffer, list[Expr]] = {}
    fresh: dict[Buffer, list[Expr]] = {}
    for place, (loop, store) in enumerate(found):
        for _, other in found:
            if other is not store and other.buffer is store.buffer:
                return None
        here = _place(store.indices, loop, time, 0)
        was = _place(store.indices, loop, time, 1)
        for later, (reading, reader) in enumerate(found):
            for each in (
                node for node in walk(reader.value) if node.op == "load" and node.static[0] is store.buffer
            ):
                there = _place(each.args, reading, time, 0)
                if there == here and later > place:
                    fresh.setdefault(store.buffer, []).append(each)
                elif there == was and was != here:
                    handed.setdefault(store.buffer, []).append(each)
    return Narrow(before, time, found, handed, fresh) if handed else None


def write_narrow(function: Function, form: Narrow, produce: Produce) -> None:
    out = function.body
    lanes = min(lanes_of(store_loop.body, function.module.target) for store_loop, _ in form.steps)
    low, high = function.ranges[id(form.steps[0][0])]
    width = out.emit(f"sub i64 {high}, {low}")
    narrow, wide, done = (out.label(hint) for hint in ("narrow", "wide", "done"))
    is_narrow = out.emit(f"icmp sle i64 {width}, {_NARROW_VECTORS * lanes}")
    out.branch(is_narrow, narrow, wide)
    out.place(narrow)
    function.lanes.known = {}
    end = function.lanes.plus(low, out.emit(f"sub i64 {width}, {out.emit(f'srem i64 {width}, {lanes}')}"))
    before, loop, rest = out.block, out.label("columns"), out.label("rest")
    out.branch(out.emit(f"icmp slt i64 {low}, {end}"), loop, rest)
    out.place(loop)
    base, following = out.name("base"), out.name("next")
    place = len(out.lines)
    _through_time(function, form, lanes, base, None)
    out.do(f"{following} = add i64 {base}, {lanes}")
    out.lines.insert(place, f"  {base} = phi i64 [{low}, %{before}], [{following}, %{out.block}]")
    out.branch(out.emit(f"icmp slt i64 {following}, {end}"), loop, rest)
    out.place(rest)
    last = out.label("last")
    out.branch(out.emit(f"icmp slt i64 {end}, {high}"), last, done)
    out.place(last)
    probe = Lanes(out, function.module.target, function.indices, function.view, lanes)
    valid = probe.first_lanes(out.emit(f"sub i64 {high}, {end}"))
    _through_time(function, form, lanes, end, valid)
    out.do(f"br label %{done}")
    out.place(wide)
    function.write(produce.body)
    function.lanes.known = {}
    out.do(f"br label %{done}")
    out.place(done)


def _columns(
    function: Function,
    loop: For,
    store: Store,
    lanes: int,
    base: Value,
    mask: Value | None,
    pinned: dict[int, Value],
) -> Value:
    """One statement for a vector of columns; the value that it stores."""
    function.indices[loop.axis] = base
    function.lanes = Lanes(
        function.body,
        function.module.target,
        function.indices,
        function.view,
        lanes,
        loop.axis,
        mask,
        pinned=pinned,
    )
    value = function.lanes.value(store.value)
    function.lanes.store(store.buffer, store.indices, value)
    del function.indices[loop.axis]
    return value


def _through_time(function: Function, form: Narrow, lanes: int, base: Value, mask: Value | None) -> None:
    """A vector of columns through all steps."""
    out, outer, pinned = function.body, function.lanes, dict[int, Value]()
    for loop, store in form.before:
        _columns(function, loop, store, lanes, base, mask, pinned)
    axis = form.time.axis
    starts: dict[Buffer, Value] = {}
    function.indices[axis] = "0"
    for loop, store in form.steps:
        if store.buffer in form.handed:
            function.indices[loop.axis] = base
            reader = Lanes(out, function.module.target, function.indices, function.view, lanes, loop.axis, mask)
            back: dict[Expr, Expr] = {axis: binary("sub", axis, const(1, "int64"))}
            indices = tuple(substitute(index, back) for index in store.indices)
            starts[store.buffer] = reader.value(load(store.buffer, indices))
            del function.indices[loop.axis]
    end = outer.index(form.time.extent)
    before = out.block
    names = {buffer: out.name("state") for buffer in starts}
    for buffer, loads in form.handed.items():
        pinned |= {id(each): names[buffer] for each in loads}
    results: dict[Buffer, Value] = {}
    with function.loop(axis, "0", end, Block([store for _, store in form.steps])) as edges:
        for loop, store in form.steps:
            results[store.buffer] = _columns(function, loop, store, lanes, base, mask, pinned)
            pinned |= {id(each): results[store.buffer] for each in form.fresh.get(store.buffer, [])}
        for _, store in form.steps:
            if store.buffer in starts:
                kind = Lanes(out, function.module.target, function.indices, function.view, lanes).kind(
                    store.buffer.dtype
                )
                pairs = f"[{starts[store.buffer]}, %{before}], [{results[store.buffer]}, %LAST]"
                edges.phis.append(f"  {names[store.buffer]} = phi {kind} {pairs}")
        function.lanes = outer
