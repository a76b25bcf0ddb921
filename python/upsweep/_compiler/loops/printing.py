"""Nests and expressions as text, in the manner of TVM's `lower`."""

from __future__ import annotations

from upsweep._compiler.loops.expressions import Expr, fold
from upsweep._compiler.loops.statements import Allocate, Barrier, Block, For, If, Produce, Statement, Store

__all__ = ["expression_text", "nest_text"]

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "and": "&&", "or": "||",
}  # fmt: skip


def _constant(expr: Expr) -> str:
    value = expr.static[0]
    if expr.dtype == "float32":
        return f"{value:.9g}f"
    return repr(value) if expr.dtype != "bool" else str(value).lower()


LONGEST = 20_000
"""Characters of an expression's text, which is a tree's: an expression that shares parts can be far smaller."""


def expression_text(expr: Expr, *, inside: bool = False, limit: int = LONGEST) -> str:
    """An expression, cut to `limit` characters; `inside` another one, operators are put into parentheses."""
    text, is_infix = fold(expr, lambda node, args: _text_of(node, args, limit))
    return f"({text})" if is_infix and inside else text


def _text_of(expr: Expr, args: list[tuple[str, bool]], limit: int) -> tuple[str, bool]:
    """The text of one operation, and whether it needs parentheses inside another one."""
    text = _line(expr, [text for text, _ in args], [f"({text})" if infix else text for text, infix in args])
    return text if len(text) <= limit else f"{text[: limit - 3]}...", expr.op in _SIGNS


def _line(expr: Expr, bare: list[str], args: list[str]) -> str:
    """One operation, from the texts of its arguments and the same in parentheses where they need them."""
    op = expr.op
    if op == "const":
        return _constant(expr)
    if op in ("var", "axis"):
        return str(expr.static[0])
    if op in ("read", "load"):
        return f"{expr.static[0].name}[{', '.join(bare)}]"
    if op in _SIGNS:
        glue = _SIGNS[op] if op == "mul" else f" {_SIGNS[op]} "
        return glue.join(args)
    if op == "cast":
        return f"{expr.dtype}({bare[0]})"
    if op == "neg":
        return f"-{args[0]}"
    if op == "not":
        return f"!{args[0]}"
    if op == "reduce":
        names = ", ".join(axis.static[0] for axis in expr.static[1])
        return f"{expr.static[0]}({bare[0]}, axis=[{names}])"
    return f"{op}({', '.join(bare)})"


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
