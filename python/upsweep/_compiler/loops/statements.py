"""The statements of a loop nest: what `printing` shows and `render` compiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from upsweep._compiler.loops.expressions import Axis, Expr, walk

__all__ = [
    "Allocate",
    "Barrier",
    "Block",
    "Buffer",
    "For",
    "If",
    "Produce",
    "Statement",
    "Store",
    "inner_statements",
    "loads_of",
]


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of a tensor, or of the part of it that is alive at a time. Its last dimension has stride 1.

    `scope` says whose it is on a device, for those who read the nest.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: str = ""


class Statement:
    """A step of a nest."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Store(Statement):
    """buffer[indices] = value."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(eq=False, slots=True)
class Block(Statement):
    """One after the other."""

    steps: list[Statement]


@dataclass(eq=False, slots=True)
class For(Statement):
    """axis from 0 to extent - 1. Marks: parallel, vectorized, unrolled; `tag`: the thread axis bound to it."""

    axis: Axis
    extent: Expr
    body: Statement
    marks: frozenset[str] = frozenset()
    tag: str = ""


@dataclass(eq=False, slots=True)
class If(Statement):
    """Where a condition holds."""

    condition: Expr
    body: Statement


@dataclass(eq=False, slots=True)
class Barrier(Statement):
    """The threads of a block wait for each other. Only in nests for a device."""


@dataclass(eq=False, slots=True)
class Allocate(Statement):
    """A buffer that lives as long as its body runs."""

    buffer: Buffer
    body: Statement


@dataclass(eq=False, slots=True)
class Produce(Statement):
    """What computes a tensor. `strips`: parallel loops that may run together, strip by strip of their range."""

    name: str
    body: Statement
    strips: list[For] = field(default_factory=list)


def inner_statements(statement: Statement) -> tuple[Statement, ...]:
    """The statements directly inside."""
    if isinstance(statement, Block):
        return tuple(statement.steps)
    if isinstance(statement, (For, If, Allocate, Produce)):
        return (statement.body,)
    return ()


def all_statements(statement: Statement) -> Iterator[Statement]:
    """A statement and all inside it, in the order of their text."""
    yield statement
    for inner in inner_statements(statement):
        yield from all_statements(inner)


def loads_of(expr: Expr) -> list[Expr]:
    """The loads in an expression."""
    return [node for node in walk(expr) if node.op == "load"]
