"""Expressions in CUDA C++: a table with one row for each operation; kernels/nest.cuh defines the functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from upsweep._compiler.cuda.scalars import FUNCTIONS
from upsweep._compiler.loops.expression_text import SIGNS
from upsweep._compiler.loops.expressions import Expr, has_loads, lowest, outside_loads
from upsweep._compiler.loops.traversal import fold

TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "int64", "bool": "bool"}

_FORMS = {
    **{op: f"({{0}} {sign} {{1}})" for op, sign in SIGNS.items()},
    **{op: f"{op}({{0}})" for op in (*FUNCTIONS, "exp")},
    "floordiv": "floor_div({0}, {1})", "mod": "floor_mod({0}, {1})", "min": "lesser({0}, {1})",
    "max": "greater({0}, {1})", "pow": "pow({0}, {1})", "neg": "(-{0})", "abs": "magnitude({0})",
    "rsqrt": "(1 / sqrt({0}))", "sigmoid": "(1 / (1 + exp(-{0})))", "not": "(!{0})", "select": "({0} ? {1} : {2})",
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
    return fold(expr, lambda node, args: _text(node, args, atom), None, outside_loads)


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
