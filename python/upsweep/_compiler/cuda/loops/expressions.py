"""Expressions in CUDA C++: a table with one row for each operation; kernels/nest.cuh defines the functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from upsweep._compiler.loops.expressions import Expr, has_loads, lowest
from upsweep._compiler.loops.traversal import fold

TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "int64", "bool": "bool"}

_FORMS = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})",
    "floordiv": "floor_div({0}, {1})", "mod": "floor_mod({0}, {1})", "min": "lesser({0}, {1})",
    "max": "greater({0}, {1})", "pow": "pow({0}, {1})", "neg": "(-{0})", "abs": "magnitude({0})",
    "exp": "exp({0})", "log": "log({0})", "sqrt": "sqrt({0})", "rsqrt": "(1 / sqrt({0}))", "sin": "sin({0})",
    "cos": "cos({0})", "tanh": "tanh({0})", "atan": "atan({0})", "asin": "asin({0})", "acos": "acos({0})",
    "sigmoid": "(1 / (1 + exp(-{0})))", "floor": "floor({0})", "lt": "({0} < {1})", "le": "({0} <= {1})",
    "gt": "({0} > {1})", "ge": "({0} >= {1})", "eq": "({0} == {1})", "ne": "({0} != {1})",
    "and": "({0} && {1})", "or": "({0} || {1})", "not": "(!{0})", "select": "({0} ? {1} : {2})",
}  # fmt: skip
# Integers of the data wrap around; those of indices never overflow, which the compiler may use.
_WRAPPING = {
    "add": "wrapped_sum({0}, {1})", "sub": "wrapped_difference({0}, {1})", "mul": "wrapped_product({0}, {1})",
    "neg": "wrapped_difference({1}(0), {0})",
}  # fmt: skip


def literal(value: Any, dtype: str) -> str:
    """A C++ literal with the exact value of a number."""
    if dtype == "bool":
        return "true" if value else "false"
    kind = TYPES[dtype]
    if dtype in ("int32", "int64"):
        return f"({kind}({value + 1}) - 1)" if value == lowest(dtype) else f"{kind}({value})"
    number = float(value)
    if math.isnan(number):
        return f"{kind}(bits_as_float(0x7fc00000u))"
    if math.isinf(number):
        return f"{kind}({'-' if number < 0 else ''}bits_as_float(0x7f800000u))"
    return f"{kind}({number!r})"


def expression(expr: Expr, atom: Callable[[Expr], str]) -> str:
    """An expression; `atom` writes axes, sizes and loads."""
    return fold(
        expr, lambda node, args: _text(node, args, atom), None, lambda node: () if node.op == "load" else node.args
    )


def _text(expr: Expr, args: list[str], atom: Callable[[Expr], str]) -> str:
    if expr.op in ("axis", "var", "load"):
        return atom(expr)
    if expr.op == "const":
        return literal(expr.static[0], expr.dtype)
    if expr.op == "cast":
        return f"{TYPES[expr.dtype]}({args[0]})"
    if expr.dtype in ("int32", "int64") and expr.op in _WRAPPING and has_loads(expr):
        return _WRAPPING[expr.op].format(*args, *([TYPES[expr.dtype]] if expr.op == "neg" else []))
    return _FORMS[expr.op].format(*args)
