"""Loop nests as text, in the manner of TVM's `lower`."""

from __future__ import annotations

from upsweep._compiler.loops.expression_text import expression_text
from upsweep._compiler.loops.statements import Allocate, Barrier, Block, For, If, Produce, Statement, Store

__all__ = ["nest_text"]


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
        return [
            f"{indent}if ({expression_text(statement.condition)}) {{",
            *_lines(statement.body, deeper),
            indent + "}",
        ]
    if isinstance(statement, Allocate):
        sizes = " * ".join(
            [statement.buffer.dtype, *(expression_text(s, inside=True) for s in statement.buffer.shape)]
        )
        note = f"  // {statement.buffer.scope}" if statement.buffer.scope else ""
        return [f"{indent}allocate {statement.buffer.name}[{sizes}]{note}", *_lines(statement.body, indent)]
    if isinstance(statement, Barrier):
        return [f"{indent}wait for the block's threads"]
    assert isinstance(statement, Produce)
    note = "  // each thread takes strips of the parallel loops through all of it" if statement.strips else ""
    return [f"{indent}produce {statement.name} {{{note}", *_lines(statement.body, deeper), indent + "}"]


def nest_text(statement: Statement) -> str:
    """A nest, a line a statement."""
    return "\n".join(_lines(statement, "")) + "\n"
