"""Integer expressions of sizes as functions of the sizes' values, exact in Python's integers."""

from __future__ import annotations

from collections.abc import Callable

from upsweep._compiler.loops.expressions import INTEGER_OPERATIONS, Expr, key
from upsweep._compiler.loops.traversal import fold

Sizes = dict[str, int]


def evaluator(expr: Expr) -> Callable[[Sizes], int]:
    """An integer expression of sizes as a function of their values by `key`."""
    if expr.op == "const":
        value = int(expr.static[0])
        return lambda sizes: value
    if expr.op == "var":
        name = key(expr)
        return lambda sizes: sizes[name]
    steps: list[tuple[Callable[..., int], list[int]]] = []

    def append(node: Expr, args: list[int]) -> int:
        steps.append((_function(node), args))
        return len(steps) - 1

    fold(expr, append)

    def evaluate(sizes: Sizes) -> int:
        values: list[int] = []
        for function, args in steps:
            values.append(function(sizes, *[values[arg] for arg in args]))
        return values[-1]

    return evaluate


def _function(expr: Expr) -> Callable[..., int]:
    """One operation, as a function of the sizes and of its arguments' values."""
    if not expr.args:
        return evaluator(expr)
    if expr.op == "cast":
        return lambda sizes, value: value
    meaning = INTEGER_OPERATIONS[expr.op]
    return lambda sizes, *args: meaning(*args)
