"""Sums over one axis for several rows at a time: what all rows read is loaded once.

    for row { vectorized column { c[row, column] = start;  for k { c[row, column] += f(row, column, k) } } }

A matrix product reads the other matrix anew for each row. Where part of f does not depend on the row, several
rows are taken together, each with sums of its own in registers. Loops between the two, over the gates of a cell
say, stay where they are.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from upsweep._compiler.loops.expressions import (
    Axis,
    Expr,
    binary,
    const,
    contains,
    key,
    mentions,
    substitute,
    walk,
)
from upsweep._compiler.loops.statements import Block, For, If, Statement, Store

if TYPE_CHECKING:
    from upsweep._compiler.llvm.loops.render import Function

__all__ = ["SharedSums", "accumulated", "continues", "innermost_store", "shared_sums", "write_shared_sums"]

Value = str

# Sums of so many vectors side by side hide the latency of one.
VECTORS_OF_SUMS = 4
# Rows at once: their sums, a row of the other matrix and one number spread out fill the registers (32, or 16).
_ROWS = {True: 4, False: 2}


def innermost_store(statement: Statement) -> Store:
    """The one store of nested loops and conditions."""
    while not isinstance(statement, Store):
        assert isinstance(statement, (For, If))
        statement = statement.body
    return statement


def accumulated(loop: For) -> Store | None:
    """The store of a nest of loops that takes values into one element, and does nothing else."""
    axes: list[Axis] = []
    statement: Statement = loop
    while isinstance(statement, (For, If)):
        if isinstance(statement, For):
            if statement.marks - {"unrolled"}:
                return None
            axes.append(statement.axis)
        statement = statement.body
    if not isinstance(statement, Store) or statement.value.op not in ("add", "mul", "min", "max"):
        return None
    first = statement.value.args[0]
    if first.op != "load" or first.static[0] is not statement.buffer:
        return None
    same_place = len(first.args) == len(statement.indices) and all(
        key(a) == key(b) for a, b in zip(first.args, statement.indices)
    )
    return statement if same_place and not any(contains(index, axes) for index in statement.indices) else None


def continues(start: Store, loop: For) -> bool:
    """Whether a loop takes values into the element that was stored just before."""
    store = accumulated(loop)
    return (
        store is not None
        and store.buffer is start.buffer
        and all(key(a) == key(b) for a, b in zip(store.indices, start.indices))
    )


@dataclass
class SharedSums:
    """The loops of such a nest, from the outside to the inside."""

    rows: For
    between: list[For]
    columns: For
    start: Store
    over: For
    step: Store


def shared_sums(rows: For) -> SharedSums | None:
    """The parts of a loop over rows that can be taken together; None for others."""
    between: list[For] = []
    columns = rows.body
    while isinstance(columns, For) and not columns.marks and not mentions(columns.extent, rows.axis):
        between.append(columns)
        columns = columns.body
    if "vectorized" in rows.marks or not (isinstance(columns, For) and "vectorized" in columns.marks):
        return None
    body = columns.body
    if not (isinstance(body, Block) and len(body.steps) == 2):
        return None
    start, over = body.steps
    if not (isinstance(start, Store) and isinstance(over, For) and continues(start, over)):
        return None
    step = over.body
    if not isinstance(step, Store) or over.marks or mentions(columns.extent, rows.axis):
        return None
    loads = [node for node in walk(step.value.args[1]) if node.op == "load"]
    is_shared = any(mentions(each, over.axis) and not mentions(each, rows.axis) for each in loads)
    is_own = any(mentions(index, rows.axis) for index in step.indices)
    # Steps of time read what the one before them stored; those of a parallel loop do not.
    is_free = "parallel" in rows.marks or not any(each.static[0] is step.buffer for each in loads)
    return SharedSums(rows, between, columns, start, over, step) if is_shared and is_own and is_free else None


def _moved(expr: Expr, axis: Axis, by: int) -> Expr:
    return substitute(expr, {axis: binary("add", axis, const(by, "int64"))}) if by else expr


def write_shared_sums(function: Function, form: SharedSums, low: Value, high: Value) -> Value:
    """Rows from `low`, several at once, as far as they go; the first row that is left."""
    out, target = function.body, function.module.target
    n_rows = _ROWS[target.avx512]
    count = out.emit(f"sub i64 {high}, {low}")
    count = function.lanes.extreme("max", count, "0")
    end = function.lanes.plus(low, out.emit(f"sub i64 {count}, {out.emit(f'urem i64 {count}, {n_rows}')}"))
    with ExitStack() as loops:
        loops.enter_context(function.loop(form.rows.axis, low, end, form.rows.body, n_rows))
        for each in form.between:
            trimmed = function.trimmed(each)
            loops.enter_context(function.loop(each.axis, trimmed.low, trimmed.high, each.body))
            loops.enter_context(function.within(each.axis, each.body))
        function.vectors(form.columns, form.columns.body, lambda: _rows_of_sums(function, form, n_rows))
    return end


def _rows_of_sums(function: Function, form: SharedSums, n_rows: int) -> None:
    """The sums of several rows, for the columns in the lanes."""
    axis, lanes = form.rows.axis, function.lanes
    starts = [lanes.value(_moved(form.start.value, axis, row)) for row in range(n_rows)]
    kind = lanes.kind(form.step.buffer.dtype)
    # What does not depend on the row is the same node for all rows, and so loaded once.
    element, term = form.step.value.args
    sums = [Expr(form.step.value.op, (element, _moved(term, axis, row)), element.dtype) for row in range(n_rows)]

    def step(totals: list[Value]) -> list[Value]:
        return [function.lanes.accumulated(each, total) for each, total in zip(sums, totals)]

    totals = function.carrying(form.over, [(kind, start) for start in starts], step)
    for row, total in enumerate(totals):
        indices = tuple(_moved(index, axis, row) for index in form.step.indices)
        lanes.store(form.step.buffer, indices, total)
