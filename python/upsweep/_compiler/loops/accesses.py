"""Accesses of a loop nest: each load and store, with the loops around it.

`te.strip_mining` and the passes of `cuda.loops` decide by them which loops may run in parallel, which buffers a
thread or a block has for itself, and where barriers stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from upsweep._compiler.loops.expressions import Axis, Expr, index_const
from upsweep._compiler.loops.linear import Linear, last_index, linear
from upsweep._compiler.loops.statements import (
    Buffer,
    For,
    Statement,
    Store,
    expressions_of,
    inner_statements,
    loads_of,
)  # fmt: skip

Bounds = Mapping[Axis, tuple[Expr, Expr]]


@dataclass(eq=False)
class Access:
    """A load or a store; `loops` are those around it, `ranges` the first and last value of their axes."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_store: bool
    target: Buffer | None  # what the statement stores to; None: it is a condition
    loops: tuple[For, ...]
    ranges: Bounds
    tags: frozenset[str] = field(init=False)  # of the thread axes around
    forms: tuple[Linear, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.tags = frozenset(loop.tag for loop in self.loops if loop.tag)
        self.forms = tuple(linear(index) for index in self.indices)


def accesses_of(statement: Statement, loops: tuple[For, ...] = (), ranges: Bounds | None = None) -> list[Access]:
    """All accesses inside of a statement, in order."""
    ranges = ranges or {}
    accesses: list[Access] = []
    if isinstance(statement, For):
        loops = (*loops, statement)
        ranges = {**ranges, statement.axis: (index_const(0), last_index(statement.extent))}
    target = statement.buffer if isinstance(statement, Store) else None
    for load in (load for expr in expressions_of(statement) for load in loads_of(expr)):
        accesses.append(Access(load.static[0], load.args, False, target, loops, ranges))
    if isinstance(statement, Store):
        accesses.append(Access(statement.buffer, statement.indices, True, target, loops, ranges))
    for inner in inner_statements(statement):
        accesses += accesses_of(inner, loops, ranges)
    return accesses


def accesses_by_buffer(statement: Statement) -> dict[Buffer, list[Access]]:
    """The accesses inside of a statement to each buffer, in order."""
    accesses: dict[Buffer, list[Access]] = {}
    for access in accesses_of(statement):
        accesses.setdefault(access.buffer, []).append(access)
    return accesses
