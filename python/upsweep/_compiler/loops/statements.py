"""The statements of a loop nest.

`te.lowering` writes them, `nest_text` shows them, `cuda.loops` rewrites them as kernels, and the code generators
(`llvm.loops.render`, `cuda.loops.render`) compile them. A statement is compared by identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from upsweep._compiler.loops.expression_text import expression_text
from upsweep._compiler.loops.expressions import Axis, Expr
from upsweep._compiler.loops.traversal import walk


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of a tensor, or of the part of it that is live at a time. Its last dimension has stride 1.

    `scope` is the memory scope on a CUDA device, as `nest_text` shows it.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: str = ""


class Statement:
    """A statement of a loop nest."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Store(Statement):
    """buffer[indices] = value."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(eq=False, slots=True)
class Block(Statement):
    """Statements in sequence."""

    steps: list[Statement]


@dataclass(eq=False, slots=True)
class For(Statement):
    """A loop over [0, extent). Marks: parallel, vectorized, unrolled; `tag`: the thread axis bound to it."""

    axis: Axis
    extent: Expr
    body: Statement
    marks: frozenset[str] = frozenset()
    tag: str = ""


@dataclass(eq=False, slots=True)
class If(Statement):
    """A statement under a condition."""

    condition: Expr
    body: Statement


@dataclass(eq=False, slots=True)
class Barrier(Statement):
    """A barrier of a block's threads; only in kernels."""


@dataclass(eq=False, slots=True)
class Allocate(Statement):
    """A buffer with the live range of its body."""

    buffer: Buffer
    body: Statement


@dataclass(eq=False, slots=True)
class Produce(Statement):
    """The computation of a tensor. `strips`: its parallel loops, where threads may take chunks of their range
    through all of it (`te.strip_mining`)."""

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


def loops_in(statement: Statement) -> list[For]:
    """The loops among `all_statements`."""
    return [each for each in all_statements(statement) if isinstance(each, For)]


def stores_in(statement: Statement) -> list[Store]:
    """The stores among `all_statements`."""
    return [each for each in all_statements(statement) if isinstance(each, Store)]


def stored_buffers(statement: Statement) -> set[Buffer]:
    """The buffers that a statement writes."""
    return {store.buffer for store in stores_in(statement)}


def expressions_of(statement: Statement) -> tuple[Expr, ...]:
    """The expressions of a statement itself."""
    if isinstance(statement, Store):
        return (*statement.indices, statement.value)
    return (statement.condition,) if isinstance(statement, If) else ()


def loads_of(expr: Expr) -> list[Expr]:
    """The loads in an expression."""
    return [node for node in walk(expr) if node.op == "load"]


def _header(loop: For) -> str:
    order = [mark for mark in ("parallel", "vectorized", "unrolled") if mark in loop.marks]
    note = f"  // bind {loop.tag}" if loop.tag else ""
    return f"{' '.join(order) or 'for'} ({loop.axis.name}, 0, {expression_text(loop.extent)}) {{{note}"


def _lines(statement: Statement, indent: str) -> list[str]:
    deeper = indent + "  "
    if isinstance(statement, Block):
        return [line for step in statement.steps for line in _lines(step, indent)]
    if isinstance(statement, Store):
        indices = ", ".join(expression_text(index) for index in statement.indices)
        return [f"{indent}{statement.buffer.name}[{indices}] = {expression_text(statement.value)}"]
    if isinstance(statement, For):
        return [indent + _header(statement), *_lines(statement.body, deeper), indent + "}"]
    if isinstance(statement, If):
        head = f"{indent}if ({expression_text(statement.condition)}) {{"
        return [head, *_lines(statement.body, deeper), indent + "}"]
    if isinstance(statement, Allocate):
        buffer = statement.buffer
        sizes = " * ".join([buffer.dtype, *(expression_text(size, inside=True) for size in buffer.shape)])
        note = f"  // {buffer.scope}" if buffer.scope else ""
        return [f"{indent}allocate {buffer.name}[{sizes}]{note}", *_lines(statement.body, indent)]
    if isinstance(statement, Barrier):
        return [f"{indent}wait for the block's threads"]
    assert isinstance(statement, Produce)
    note = "  // each thread takes strips of the parallel loops through all of it" if statement.strips else ""
    return [f"{indent}produce {statement.name} {{{note}", *_lines(statement.body, deeper), indent + "}"]


def nest_text(statement: Statement) -> str:
    """A nest as text, in the manner of TVM's `lower`: a line a statement."""
    return "\n".join(_lines(statement, "")) + "\n"
