"""Scans over few columns: the state stays in registers from step to step.

Where a strip is a few vectors wide, each step is so short that it waits for the store of the step before to come back from
memory. A scan whose loops all run over the strip, elementwise, can take its columns vector by vector instead, each through all of
time; what a step reads of the step before is then handed on in registers. Wide strips are left as they are: neighbours in
memory are better read together.
"""

from __future__ import annotations

from dataclasses import dataclass

from .expressions import Expr, binary, const, key, substitute, walk
from .linear import linear, simplified
from .statements import Block, Buffer, For, Produce, Statement, Store

__all__ = ["Narrow", "narrow_form"]


@dataclass
class Narrow:
    """The loops of such a scan: over the strip before time begins, over time, and over the strip in each step.

    `handed` are, for a buffer that a step stores, the loads of what the step before stored; `fresh` those of what the same step has
    stored already.
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


def _place(indices: tuple[Expr, ...], loop: For, time: For, back: int) -> str:
    """Indices as text that is the same for all loops over the strip; `back` steps earlier."""
    column = const(-1, "int64")  # stands for the column, which is never negative
    earlier = binary("sub", time.axis, const(back, "int64")) if back else time.axis
    values = {loop.axis: column, time.axis: earlier}
    parts = []
    for index in indices:
        is_column = simplified(index) is loop.axis
        parts.append("column" if is_column else key(linear(substitute(index, values)).expr()))
    return " ".join(parts)


def narrow_form(produce: Produce) -> Narrow | None:
    """The loops of a scan whose state can be handed on in registers; None for others."""
    before: list[tuple[For, Store]] = []
    time: For | None = None
    for statement in _flat(produce.body):
        columns = _as_columns(statement)
        if time is not None:
            return None
        if columns is not None:
            before.append(columns)
        elif isinstance(statement, For) and not statement.marks:
            time = statement
        else:
            return None
    if time is None:
        return None
    steps = [_as_columns(statement) for statement in _flat(time.body)]
    found = [step for step in steps if step is not None]
    if len(found) < len(steps):
        return None
    handed: dict[Buffer, list[Expr]] = {}
    fresh: dict[Buffer, list[Expr]] = {}
    for place, (loop, store) in enumerate(found):
        for other_loop, other in found:
            if other is not store and other.buffer is store.buffer:
                return None
        here = _place(store.indices, loop, time, 0)
        was = _place(store.indices, loop, time, 1)
        for later, (reading, reader) in enumerate(found):
            for load in (node for node in walk(reader.value) if node.op == "load" and node.static[0] is store.buffer):
                there = _place(load.args, reading, time, 0)
                if there == here and later > place:
                    fresh.setdefault(store.buffer, []).append(load)
                elif there == was and was != here:
                    handed.setdefault(store.buffer, []).append(load)
    return Narrow(before, time, found, handed, fresh) if handed else None
