"""Expressions as text, in the manner of TVM: `repr`, messages and `statements.nest_text` show it."""

from __future__ import annotations

from upsweep._compiler.loops.traversal import Node, fold

# Infix operators, as in C.
SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "and": "&&", "or": "||",
}  # fmt: skip


# Characters. A text writes shared operands once for each use, and so can be far larger than the expression.
_MAX_LENGTH = 20_000


def expression_text(expr: Node, *, inside: bool = False, limit: int = _MAX_LENGTH) -> str:
    """An expression, cut to `limit` characters; `inside` another one, operators are put into parentheses."""
    text, is_infix = fold(expr, lambda node, args: _text_of(node, args, limit))
    return f"({text})" if is_infix and inside else text


def _text_of(expr: Node, args: list[tuple[str, bool]], limit: int) -> tuple[str, bool]:
    """The text of one operation, and whether it needs parentheses inside another one."""
    text = _line(expr, [text for text, _ in args], [f"({text})" if infix else text for text, infix in args])
    return text if len(text) <= limit else f"{text[: limit - 3]}...", expr.op in SIGNS


def _line(expr: Node, bare: list[str], args: list[str]) -> str:
    """One operation, from the texts of its arguments and the same in parentheses where they need them."""
    op = expr.op
    if op == "const":
        value = expr.static[0]
        if expr.dtype == "float32":
            return f"{value:.9g}f"
        return repr(value) if expr.dtype != "bool" else str(value).lower()
    if op in ("var", "axis"):
        return str(expr.static[0])
    if op in ("read", "load"):
        return f"{expr.static[0].name}[{', '.join(bare)}]"
    if op in SIGNS:
        glue = SIGNS[op] if op == "mul" else f" {SIGNS[op]} "
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
