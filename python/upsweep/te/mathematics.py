"""Functions of expressions: what may stand in the body of a `compute` besides operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from upsweep._compiler.loops.expressions import Expr, as_expr, binary, select, unary
from upsweep._compiler.loops.expressions import cast as _cast
from upsweep.te.tensors import reduction

__all__ = [
    "abs", "acos", "all", "any", "asin", "atan", "cast", "cos", "exp", "floor", "if_then_else", "log",
    "logical_not", "max", "max_reduce", "maximum", "min", "min_reduce", "minimum", "power", "prod", "rsqrt",
    "select", "sigmoid", "sin", "sqrt", "tanh",
]  # fmt: skip

if_then_else = select


def _of_one(op: str, text: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        return unary(op, as_expr(x))

    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"{text} of an expression."
    return function


exp = _of_one("exp", "The exponential")
log = _of_one("log", "The natural logarithm")
sqrt = _of_one("sqrt", "The square root")
rsqrt = _of_one("rsqrt", "One over the square root")
sin = _of_one("sin", "The sine")
cos = _of_one("cos", "The cosine")
asin = _of_one("asin", "The arcsine")
acos = _of_one("acos", "The arccosine")
atan = _of_one("atan", "The arctangent")
tanh = _of_one("tanh", "The hyperbolic tangent")
sigmoid = _of_one("sigmoid", "The logistic function 1 / (1 + exp(-x))")
floor = _of_one("floor", "The largest integer that is not above, as a float,")
abs = _of_one("abs", "The absolute value")
logical_not = _of_one("not", "The opposite")


def power(x: Any, y: Any) -> Expr:
    """`x` to the power `y`."""
    return binary("pow", x, y)


def cast(dtype: str, value: Any) -> Expr:
    """A value as another dtype; floats to integers are truncated."""
    return _cast(value, dtype)


def minimum(a: Any, b: Any) -> Expr:
    """The smaller of two; NaN if one is."""
    return binary("min", a, b)


def maximum(a: Any, b: Any) -> Expr:
    """The larger of two; NaN if one is."""
    return binary("max", a, b)


def min_reduce(expr: Any, axis: Any) -> Expr:
    """The smallest over one or several `reduce_axis`."""
    return reduction("min", expr, axis)


def max_reduce(expr: Any, axis: Any) -> Expr:
    """The largest over one or several `reduce_axis`."""
    return reduction("max", expr, axis)


def prod(expr: Any, axis: Any) -> Expr:
    """The product over one or several `reduce_axis`."""
    return reduction("prod", expr, axis)


def min(a: Any, b: Any = None, *, axis: Any = None) -> Expr:
    """``min(a, b)``: the smaller of two. ``min(a, axis=k)``: the smallest over a `reduce_axis`."""
    return min_reduce(a, axis) if axis is not None else minimum(a, b)


def max(a: Any, b: Any = None, *, axis: Any = None) -> Expr:
    """``max(a, b)``: the larger of two. ``max(a, axis=k)``: the largest over a `reduce_axis`."""
    return max_reduce(a, axis) if axis is not None else maximum(a, b)


def all(*conditions: Any) -> Expr:
    """Whether all conditions hold."""
    result = as_expr(conditions[0])
    for each in conditions[1:]:
        result = binary("and", result, each)
    return result


def any(*conditions: Any) -> Expr:
    """Whether one of the conditions holds."""
    result = as_expr(conditions[0])
    for each in conditions[1:]:
        result = binary("or", result, each)
    return result
