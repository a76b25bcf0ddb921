"""Integer expressions of sizes, as functions of the sizes' values."""

from __future__ import annotations

from collections.abc import Callable

from .expressions import OPERATIONS, Expr, key

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
    meaning = OPERATIONS[expr.op][1]
    return lambda sizes: int(meaning(*(arg(sizes) for arg in args)))
