"""Which scans may run strip by strip: each thread takes part of the parallel loops' range through all steps.

It may where all loops marked parallel run over one range, everything is stored inside of them, and each
element of a buffer that they share is read by the same step of that range that stored it: there is a
dimension in which all indices are ``width * p + g`` with 0 <= g < width, where p is the parallel index.
Otherwise every step needs the threads to wait for each other; then a loop keeps its mark only if the user
gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from upsweep._compiler.loops.expressions import Axis, Expr
from upsweep._compiler.loops.linear import Linear, Ranges, linear, same
from upsweep._compiler.loops.statements import (
    Allocate,
    Buffer,
    For,
    If,
    Produce,
    Statement,
    Store,
    all_statements,
    inner_statements,
    loads_of,
)

__all__ = ["find_strips"]


@dataclass
class _Access:
    """Indices of a load or a store, inside of a parallel loop, with the ranges of the loops around."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    strip: Axis | None
    ranges: Mapping[Axis, tuple[Expr, Expr]]
    is_store: bool


def _accesses(
    statement: Statement, strip: Axis | None, ranges: dict[Axis, tuple[Expr, Expr]], found: list[_Access],
    parallel: list[For], private: set[Buffer],
) -> None:  # fmt: skip
    if isinstance(statement, For):
        last = linear(statement.extent).plus(Linear(1), -1).expr()
        if strip is None and "parallel" in statement.marks:
            parallel.append(statement)
            strip = statement.axis
        ranges = {**ranges, statement.axis: (linear(statement.extent).scaled(0).expr(), last)}
    elif isinstance(statement, Allocate):
        private.add(statement.buffer)
    elif isinstance(statement, Store):
        found.append(_Access(statement.buffer, statement.indices, strip, ranges, True))
        expressions = [statement.value, *statement.indices]
        for load in (load for expression in expressions for load in loads_of(expression)):
            found.append(_Access(load.static[0], load.args, strip, ranges, False))
    elif isinstance(statement, If):
        for load in loads_of(statement.condition):
            found.append(_Access(load.static[0], load.args, strip, ranges, False))
    for inner in inner_statements(statement):
        _accesses(inner, strip, ranges, found, parallel, private)


def _width(access: _Access, d: int) -> int:
    """The width of the steps' own ranges in a dimension; 0 if an index may leave its step's."""
    assert access.strip is not None
    form = linear(access.indices[d])
    width = form.coefficient(access.strip)
    rest = form.without(access.strip)
    ranges = Ranges({axis: bounds for axis, bounds in access.ranges.items() if axis is not access.strip})
    inside = width > 0 and ranges.always(rest) and ranges.always(Linear(width - 1).plus(rest, -1))
    return width if inside else 0


def _is_owned(accesses: list[_Access], n_dims: int) -> bool:
    for d in range(n_dims):
        widths = {_width(access, d) for access in accesses}
        if len(widths) == 1 and widths != {0}:
            return True
    return False


def _may_run_in_strips(found: list[_Access], parallel: list[For], private: set[Buffer]) -> bool:
    if not parallel or not all(same(loop.extent, parallel[0].extent) for loop in parallel):
        return False
    written = {access.buffer for access in found if access.is_store} - private
    shared = [access for access in found if access.buffer in written]
    if any(access.strip is None for access in shared):
        return False
    return all(_is_owned([a for a in shared if a.buffer is buffer], len(buffer.shape)) for buffer in written)


def find_strips(produce: Produce, may_unmark: Callable[[For], bool]) -> None:
    """Set `produce.strips` where it may; else take the marks off parallel loops that allow it."""
    found: list[_Access] = []
    parallel: list[For] = []
    private: set[Buffer] = set()
    _accesses(produce, None, {}, found, parallel, private)
    if _may_run_in_strips(found, parallel, private):
        produce.strips = parallel
        return
    for loop in (each for each in all_statements(produce) if isinstance(each, For)):
        if "parallel" in loop.marks and may_unmark(loop):
            loop.marks = loop.marks - {"parallel"}
