"""Functions of elements for the body of a `compute`: elementwise ones, conditions, casts and reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from upsweep._compiler.loops.expressions import Expr, as_expr, binary, select, unary
from upsweep._compiler.loops.expressions import cast as _cast
from upsweep.te.tensors import reduction

__all__ = [
    "abs", "acos", "all", "any", "asin", "atan", "cast", "cos", "exp", "floor", "if_then_else", "log",
    "logical_not", "max", "maximum", "min", "minimum", "power", "prod", "rsqrt",
    "select", "sigmoid", "sin", "sqrt", "tanh",
]  # fmt: skip

if_then_else = select


def _of_one(op: str, text: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        return unary(op, as_expr(x))

    function.__name__ = function.__qualname__ = op
    name = "logical_not" if op == "not" else op
    result = "bool" if op == "not" else "float32"
    argument = "X[i] > 0" if op == "not" else "X[i]"
    function.__doc__ = f"""{text} of an expression.

    Parameters
    ----------
    x : Expr or number

    Returns
    -------
    Expr

    Examples
    --------
    >>> from upsweep import te
    >>> X = te.placeholder((4,), name="X")
    >>> te.compute((4,), lambda i: te.{name}({argument}), name="Y").dtype
    '{result}'
    """
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
    """`x` to the power `y`, as a float.

    Examples
    --------
    >>> from upsweep import te
    >>> te.power(te.var("n"), 2).dtype
    'float32'
    """
    return binary("pow", x, y)


def cast(dtype: str, value: Any) -> Expr:
    """Convert a value to another dtype; floats are truncated to integers, and saturated.

    Examples
    --------
    >>> from upsweep import te
    >>> te.cast("float64", te.var("n"))
    float64(n)
    """
    return _cast(value, dtype)


def minimum(a: Any, b: Any) -> Expr:
    """The smaller of two values; NaN if one is.

    Examples
    --------
    >>> from upsweep import te
    >>> te.minimum(te.var("n"), 8)
    min(n, 8)
    """
    return binary("min", a, b)


def maximum(a: Any, b: Any) -> Expr:
    """The larger of two values; NaN if one is.

    Examples
    --------
    >>> from upsweep import te
    >>> te.maximum(te.var("n"), 8)
    max(n, 8)
    """
    return binary("max", a, b)


def prod(expr: Any, axis: Any) -> Expr:
    """The product over one or several `reduce_axis`, as the whole body of a `compute`.

    Examples
    --------
    >>> from upsweep import te
    >>> X, k = te.placeholder((8, 4), name="X"), te.reduce_axis((0, 4), name="k")
    >>> te.compute((8,), lambda i: te.prod(X[i, k], axis=k), name="product")
    Tensor(name=product, shape=(8), dtype=float32)
    """
    return reduction("prod", expr, axis)


def min(a: Any, b: Any = None, *, axis: Any = None) -> Expr:
    """The smaller of two values, or with `axis` the smallest over a `reduce_axis`.

    Examples
    --------
    >>> from upsweep import te
    >>> X, k = te.placeholder((8, 4), name="X"), te.reduce_axis((0, 4), name="k")
    >>> te.min(X[0, 0], X[0, 1])
    min(X[0, 0], X[0, 1])
    >>> te.compute((8,), lambda i: te.min(X[i, k], axis=k), name="smallest")
    Tensor(name=smallest, shape=(8), dtype=float32)
    """
    return minimum(a, b) if axis is None else reduction("min", a, axis)


def max(a: Any, b: Any = None, *, axis: Any = None) -> Expr:
    """The larger of two values, or with `axis` the largest over a `reduce_axis`.

    Examples
    --------
    >>> from upsweep import te
    >>> X, k = te.placeholder((8, 4), name="X"), te.reduce_axis((0, 4), name="k")
    >>> te.max(X[0, 0], X[0, 1])
    max(X[0, 0], X[0, 1])
    >>> te.compute((8,), lambda i: te.max(X[i, k], axis=k), name="largest")
    Tensor(name=largest, shape=(8), dtype=float32)
    """
    return maximum(a, b) if axis is None else reduction("max", a, axis)


def all(*conditions: Any) -> Expr:
    """Whether all conditions hold.

    Examples
    --------
    >>> from upsweep import te
    >>> n = te.var("n")
    >>> te.all(n > 1, n < 8)
    (n > 1) && (n < 8)
    """
    return reduce(lambda a, b: binary("and", a, b), conditions[1:], as_expr(conditions[0]))


def any(*conditions: Any) -> Expr:
    """Whether one of the conditions holds.

    Examples
    --------
    >>> from upsweep import te
    >>> n = te.var("n")
    >>> te.any(n < 1, n > 8)
    (n < 1) || (n > 8)
    """
    return reduce(lambda a, b: binary("or", a, b), conditions[1:], as_expr(conditions[0]))
