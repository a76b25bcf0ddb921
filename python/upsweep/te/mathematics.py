"""Functions of elements for the body of a `compute`: elementwise ones, conditions, casts and reductions.

Functions of one shape are created by `_of_one`, `_of_two`, `_extreme` and `_of_conditions`, with their docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from upsweep._compiler.loops.expressions import (
    FLOATS,
    Expr,
    as_expr,
    binary,
    check_dtype,
    select,
    unary,
    users_line,
)
from upsweep._compiler.loops.expressions import cast as _cast
from upsweep._utils.examples import named, with_example
from upsweep.te.tensors import reduction

__all__ = [
    "abs", "acos", "all", "any", "asin", "atan", "cast", "const", "cos", "exp", "floor", "if_then_else", "log",
    "logical_not", "max", "maximum", "min", "minimum", "power", "prod", "rsqrt",
    "select", "sigmoid", "sin", "sqrt", "tanh",
]  # fmt: skip

if_then_else = select
_X = '>>> X, k = te.placeholder((8, 4), name="X"), te.reduce_axis((0, 4), name="k")'


def _shows(*lines: str) -> Callable[[Any], Any]:
    return with_example(">>> from upsweep import te", *lines)


def _of_one(op: str, doc: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        return unary(op, as_expr(x))

    doc = f"{doc} of an expression.\n\nParameters\n----------\nx : Expr or number\n\nReturns\n-------\nExpr"
    return _shows(_X, f">>> te.{op}(X[0, 1])", f"{op}(X[0, 1])")(named(function, op, doc))


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


@_shows('>>> te.logical_not(te.var("n") > 0)', "!(n > 0)")
def logical_not(x: Any) -> Expr:
    """The opposite of a condition."""
    return unary("not", as_expr(x))


@_shows('>>> te.power(te.var("n"), 2).dtype', "'float32'")
def power(x: Any, y: Any) -> Expr:
    """`x` to the power `y`, as a float."""
    return binary("pow", x, y)


@_shows('>>> te.const(1, "float32")', "1f")
def const(value: Any, dtype: str | None = None) -> Expr:
    """A number of a dtype, by default int32, float32 or bool."""
    number = as_expr(value)
    if number.op != "const":
        raise TypeError(f"const: expected a number, got {value!r}")
    if dtype is None:
        return number
    if number.dtype in FLOATS and check_dtype(dtype) not in FLOATS:
        raise TypeError(f"const: expected an integer for {dtype}, got {value!r}; te.cast converts")
    return as_expr(value, check_dtype(dtype))


@_shows('>>> te.cast("float64", te.var("n"))', "float64(n)")
def cast(dtype: str, value: Any) -> Expr:
    """Convert a value to another dtype; floats are truncated to integers, and saturated."""
    if isinstance(dtype, Expr):
        raise TypeError(f"{users_line()}: cast: the dtype comes first, te.cast({value!r}, {dtype!r})")
    return _cast(value, dtype)


def _of_two(op: str, name: str, doc: str, result: str) -> Callable[[Any, Any], Expr]:
    def function(a: Any, b: Any) -> Expr:
        return binary(op, a, b)

    return _shows(f">>> te.{name}(te.var('n'), 8)", result)(named(function, name, doc))


minimum = _of_two("min", "minimum", "The smaller of two values; NaN if one is.", "min(n, 8)")
maximum = _of_two("max", "maximum", "The larger of two values; NaN if one is.", "max(n, 8)")


@_shows(_X, ">>> te.compute((8,), lambda i: te.prod(X[i, k], axis=k)).shape", "(8,)")
def prod(expr: Any, axis: Any) -> Expr:
    """The product over one or several `reduce_axis`, as the whole body of a `compute`."""
    return reduction("prod", expr, axis)


def _extreme(op: str, which: str) -> Callable[..., Expr]:
    def function(a: Any, b: Any = None, *, axis: Any = None) -> Expr:
        return binary(op, a, b) if axis is None else reduction(op, a, axis)

    doc = f"The {which}er of two values, or with `axis` the {which}est over a `reduce_axis`."
    example = f">>> te.compute((8,), lambda i: te.{op}(X[i, k], axis=k)).shape", "(8,)"
    return _shows(_X, f">>> te.{op}(X[0, 0], 1)", f"{op}(X[0, 0], 1f)", *example)(named(function, op, doc))


min = _extreme("min", "small")
max = _extreme("max", "larg")


def _of_conditions(op: str, name: str, sign: str, doc: str) -> Callable[..., Expr]:
    def function(condition: Any, *others: Any) -> Expr:
        return reduce(lambda a, b: binary(op, a, b), others, as_expr(condition))

    example = '>>> n = te.var("n")', f">>> te.{name}(n > 1, n < 8)", f"(n > 1) {sign} (n < 8)"
    return _shows(*example)(named(function, name, doc))


all = _of_conditions("and", "all", "&&", "Whether all conditions hold.")
any = _of_conditions("or", "any", "||", "Whether one of the conditions holds.")
