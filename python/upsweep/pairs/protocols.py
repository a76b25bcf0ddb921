"""Leads functions of numpy and torch of a LazyTensor to its methods and operators, by their names.

`operations` calls `call` from ``__array_ufunc__``, ``__array_function__`` and ``__torch_function__``, and takes
from here what to write in place of a method that a LazyTensor does not have.
"""

from __future__ import annotations

from typing import Any

from upsweep import _arrays
from upsweep.pairs.expression import Expression

# Methods by the names of functions of numpy and torch, where these differ.
_METHODS = {
    "absolute": "abs", "fabs": "abs", "arccos": "acos", "arcsin": "asin", "arctan": "atan", "arctan2": "atan2",
    "amax": "max", "amin": "min", "clip": "clamp", "rint": "round", "sgn": "sign", "linalg_norm": "norm",
    "linalg_vector_norm": "norm",
}  # fmt: skip
_KEYWORDS = {"a_min": "min", "a_max": "max", "ord": "p"}  # of methods, by those of numpy's and torch's functions
# What to write instead of functions of numpy and torch, and methods of arrays, that a LazyTensor does not have.
REMEDIES = {
    **dict.fromkeys(("maximum", "fmax"), "(x < y).ifelse(y, x)"),
    **dict.fromkeys(("minimum", "fmin"), "(x < y).ifelse(x, y)"),
    **dict.fromkeys(("sort", "argsort"), "x.Kmin_argKmin(K, axis=1), the K smallest in order"),
    **dict.fromkeys(("numpy", "cpu", "tolist", "item"), "a reduction, as x.sum(axis=1)"),
    **dict.fromkeys(("std", "var"), "the means of x and of x**2"),
    **dict.fromkeys(("softmax", "log_softmax"), "x.sumsoftmaxweight(w, axis=1), the softmax times the values w"),
    **dict.fromkeys(("unsqueeze", "expand_dims", "squeeze"), "x itself, whose axes broadcast"),
    **dict.fromkeys(("view", "reshape"), "Vi(x) and Vj(y) of arrays that have the shape"),
    **dict.fromkeys(("median", "nanmedian"), "x.Kmin(n // 2 + 1, axis=1)[:, -1] for n columns"),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), "&, |, ^ or ~ of comparisons"),
    "masked_fill": "(x < y).ifelse(value, x)", "reciprocal": "1 / x", "sigmoid": "1 / (1 + (-x).exp())",
    "log1p": "(1 + x).log()", "expm1": "x.exp() - 1", "log2": "x.log() / math.log(2)", "exp2": "2.0**x",
    "log10": "x.log() / math.log(10)", "tan": "x.sin() / x.cos()", "pow": "x**y",
    "sinh": "(x.exp() - (-x).exp()) / 2", "cosh": "(x.exp() + (-x).exp()) / 2",
    "any": "(x < y).max(axis=1), 1 where any holds", "all": "(x < y).min(axis=1), 1 where all hold",
    "prod": "x.log().sum(axis=1), the logarithm of the product of positive numbers", "transpose": "x.T",
    "where": "(x < y).ifelse(a, b)", "dot": "(x | y) for features, x @ v for columns",
    "einsum": "products and sums of features, as (x * y).sum(-1)",
}  # fmt: skip
# Keywords that functions of torch pass on with their defaults, and methods do not have.
_DEFAULTS = (("out", None), ("dtype", None), ("inplace", False), ("p", "fro"), ("p", None), ("sorted", True))
# Parameters of torch's functions behind the first, which methods have in another order.
_OF_TORCH = {
    **dict.fromkeys(("sum", "mean", "min", "max", "amin", "amax"), ("dim", "keepdim")),
    **dict.fromkeys(("argmin", "argmax", "logsumexp"), ("dim", "keepdim")),
    "topk": ("k", "dim", "largest", "sorted"),
}
COMPARISONS = ("eq", "ne", "lt", "le")
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
# Operators, with a LazyTensor as the left and as the right operand, by functions of numpy and torch.
_OPERATORS = {
    name: (f"__{symbol}__", f"__{_MIRRORED.get(symbol, 'r' + symbol)}__")
    for symbol, names in {
        "add": "add", "sub": "sub subtract", "mul": "mul multiply", "truediv": "div divide true_divide",
        "pow": "pow power float_power", "mod": "remainder", "floordiv": "floor_divide",
        "or": "__or__ bitwise_or", "matmul": "matmul",
        "neg": "neg negative", "eq": "eq equal", "ne": "ne not_equal", "lt": "lt less", "le": "le less_equal",
        "gt": "gt greater", "ge": "ge greater_equal", "and": "__and__ bitwise_and logical_and",
        "xor": "__xor__ bitwise_xor logical_xor", "invert": "invert bitwise_not logical_not",
    }.items()
    for name in names.split()
} | {"logical_or": ("_one_of", "_one_of")}  # fmt: skip


def call(library: str, name: str, args: Any, keywords: dict[str, Any]) -> Any:
    """A function of numpy or torch, as the method or the operator of a LazyTensor that does the same."""
    first, *others = args
    is_lazy = isinstance(first, Expression)
    if name == "where" and len(others) == 2 and is_lazy:
        return (first if first._op in COMPARISONS else first != 0).ifelse(*others)
    operators = _OPERATORS.get(name)
    if operators is not None:
        if is_lazy:
            method = operators[0]
        else:
            first, others, method = others[0], [first], operators[1]
    else:
        method = _METHODS.get(name, name)
    function = getattr(type(first), method, None) if isinstance(first, Expression) else None
    if function is None or (operators is None and method[0] == "_"):
        remedy = f"; write {REMEDIES[name]}" if name in REMEDIES else ", whose functions are its methods"
        raise TypeError(f"{library}.{name}: does not take a LazyTensor{remedy}")
    keywords = {_KEYWORDS.get(keyword, keyword): value for keyword, value in keywords.items()}
    if library == "torch" and name in _OF_TORCH:
        second = others[0] if others else keywords.get("other")
        if name in ("min", "max") and (isinstance(second, Expression) or _arrays.any_torch(second)):
            return call(library, f"{name}imum", args, keywords)
        keywords |= zip(_OF_TORCH[name], others)
        others = []
        if name in ("min", "max") and "dim" in keywords:
            return first._extremes(name, keywords.pop("dim"), **keywords)
    if method == "norm":
        for keyword in ("keepdim", "keepdims"):  # torch.norm always passes it; a formula has the axis anyway
            keywords.pop(keyword, None)
    for keyword, default in _DEFAULTS:
        if keyword in keywords and isinstance(keywords[keyword], type(default)) and keywords[keyword] == default:
            keywords = {other: value for other, value in keywords.items() if other != keyword}
    return function(first, *others, **keywords)
