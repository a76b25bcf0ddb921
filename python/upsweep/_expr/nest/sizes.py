"""Integer expressions of sizes, as functions of the sizes' values; exact, in integers of Python."""

from __future__ import annotations

from collections.abc import Callable

from .expressions import INTEGER_OPERATIONS, Expr, key

__all__ = ["Sizes", "evaluator"]

Sizes = dict[str, int]


def evaluator(expr: Expr) -> Callable[[Sizes], int]:
    """An integer expression of sizes as a function of their values by `key`."""
    if expr.op == "const":
        value = int(expr.static[0])
        return lambda sizes: value
    if expr.op == "var":
        name = key(expr)
        return lambda sizes: sizes[name]
    args = [evaluator(arg) for arg in expr.args]
    if expr.op == "cast":
        return args[0]
    meaning = INTEGER_OPERATIONS[expr.op]
    return lambda sizes: meaning(*(arg(sizes) for arg in args))
