"""Matrix products: sums over one axis for several rows at a time (register tiling).

    for row { vectorized column { c[row, column] = start;  for k { c[row, column] += f(row, column, k) } } }

A matrix product reads the other matrix once per row. Where part of f does not depend on the row, several rows are
computed together, each with sums of its own in registers, so that this part is loaded once for all. Loops between
the two, over the gates of a cell say, stay where they are. `render` calls both functions.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from upsweep._compiler.llvm.loops.writer import LoopWriter
from upsweep._compiler.llvm.vectors import Value
from upsweep._compiler.loops.expressions import Axis, Expr, binary, index_const, mentions, substitute
from upsweep._compiler.loops.reductions import initialised_sum
from upsweep._compiler.loops.statements import For, Store, loads_of

# Rows at once, with AVX-512 or without: their sums, a row of the other matrix and a broadcast number fill the
# registers (32, or 16).
_ROWS = {True: 4, False: 2}


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
    """The parts of a loop whose rows can be computed together; None for others."""
    between: list[For] = []
    columns = rows.body
    while isinstance(columns, For) and not columns.marks and not mentions(columns.extent, rows.axis):
        between.append(columns)
        columns = columns.body
    if "vectorized" in rows.marks or not (isinstance(columns, For) and "vectorized" in columns.marks):
        return None
    accumulation = initialised_sum(columns.body)
    if accumulation is None:
        return None
    start, over = accumulation
    step = over.body
    if not isinstance(step, Store) or over.marks or mentions(columns.extent, rows.axis):
        return None
    loads = loads_of(step.value.args[1])
    is_shared = any(mentions(each, over.axis) and not mentions(each, rows.axis) for each in loads)
    is_own = any(mentions(index, rows.axis) for index in step.indices)
    # Steps of time read what the step before them stored; those of a parallel loop do not.
    is_free = "parallel" in rows.marks or not any(each.static[0] is step.buffer for each in loads)
    return SharedSums(rows, between, columns, start, over, step) if is_shared and is_own and is_free else None


def _moved(expr: Expr, axis: Axis, by: int) -> Expr:
    return substitute(expr, {axis: binary("add", axis, index_const(by))}) if by else expr


def write_shared_sums(writer: LoopWriter, form: SharedSums, low: Value, high: Value) -> Value:
    """Write groups of rows from `low` on; the first row that is left."""
    n_rows = _ROWS[writer.module.target.avx512]
    end = writer.whole(low, high, n_rows)
    with ExitStack() as loops:
        loops.enter_context(writer.loop(form.rows.axis, low, end, form.rows.body, n_rows))
        for each in form.between:
            trimmed = writer.trimmed(each)
            loops.enter_context(writer.loop(each.axis, trimmed.low, trimmed.high, each.body))
            loops.enter_context(writer.within(each.body, each.axis))
        # All rows' sums are in registers.
        writer.vectors(form.columns, lambda: _rows_of_sums(writer, form, n_rows), most_sums=4)
    return end


def _rows_of_sums(writer: LoopWriter, form: SharedSums, n_rows: int) -> None:
    """The sums of several rows, for the columns in the lanes."""
    axis, lanes = form.rows.axis, writer.lanes
    starts = [lanes.value(_moved(form.start.value, axis, row)) for row in range(n_rows)]
    kind = lanes.kind(form.step.buffer.dtype)
    # What does not depend on the row is the same node for all rows, and so loaded once.
    element, term = form.step.value.args
    sums = [Expr(form.step.value.op, (element, _moved(term, axis, row)), element.dtype) for row in range(n_rows)]

    def step(totals: list[Value]) -> list[Value]:
        return [writer.lanes.accumulated(each, total) for each, total in zip(sums, totals)]

    totals = writer.carrying(form.over, [(kind, start) for start in starts], step)
    for row, total in enumerate(totals):
        indices = tuple(_moved(index, axis, row) for index in form.step.indices)
        lanes.store(form.step.buffer, indices, total)
