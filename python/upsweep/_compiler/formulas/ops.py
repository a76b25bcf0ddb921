"""The table of operations: name, name in KeOps, arity, dim rule and numpy function of each.

A row is all that nodes, formula text and evaluation need. The derivative of an operation is an entry of
`derivative.RULES`, its scalar instructions one of `lowering.lower_elementwise` or `lowering.lower_features`; tests
check that no entry is missing. A composite operation has an `expand` instead: `make` replaces it by other
operations. `composites` registers those.

Names, argument orders and conventions are those of KeOps' formulas: step(0) = 1, sign(0) = 0, rsqrt(0) = 0,
sinxdivx(0) = 1, xlogx(0) = 0, ifelse(c, a, b) is a where c >= 0, halves are rounded away from zero, comparisons
are 1 or 0, argmax and argmin are the first of equal features or the first NaN, matrices are row-major.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from upsweep._compiler.formulas import dims
from upsweep._compiler.formulas import numpy_semantics as m
from upsweep._compiler.formulas.dims import DimError, DimRule

__all__ = ["BY_KEOPS", "TABLE", "DimError", "Operation", "lookup", "register", "suggestion"]


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the table.

    Attributes
    ----------
    name, keops : str
        The name here and in formula texts.
    arity : int
        The number of operands.
    dim : function
        The dim rule; see `dims`.
    numpy : function or None
        The value on arrays of shape (..., dim) and the static arguments; None for composite operations.
    n_static : tuple of two ints
        The least and the largest number of static arguments.
    elementwise : bool
        Whether feature k of the result is a function of feature k of the operands.
    expand : function or None
        Of composite operations, the formula of the operands and the static arguments that replaces it.
    """

    name: str
    keops: str
    arity: int
    dim: DimRule
    numpy: Callable[..., Any] | None
    n_static: tuple[int, int] = (0, 0)
    elementwise: bool = False
    expand: Callable[..., Any] | None = None


TABLE: dict[str, Operation] = {}
"""All operations by their name here, composite ones included."""

BY_KEOPS: dict[str, str] = {}
"""The names here by the names in formula texts."""


def register(row: Operation) -> None:
    """Add an operation to the table."""
    TABLE[row.name] = row
    BY_KEOPS[row.keops] = row.name


def _elementwise(
    name: str,
    keops: str,
    arity: int,
    numpy: Callable[..., Any],
    n_static: int = 0,
    dim: DimRule = dims.elementwise,
) -> None:
    register(Operation(name, keops, arity, dim, numpy, (n_static, n_static), elementwise=True))


def _features(
    name: str,
    keops: str,
    arity: int,
    dim: DimRule,
    numpy: Callable[..., Any],
    n_static: int = 0,
    n_optional: int = 0,
) -> None:
    """An operation across features."""
    register(Operation(name, keops, arity, dim, numpy, (n_static, n_static + n_optional)))


_elementwise("add", "Add", 2, np.add)
_elementwise("sub", "Subtract", 2, np.subtract)
_elementwise("mul", "Mult", 2, np.multiply)
_elementwise("div", "Divide", 2, np.divide)
_elementwise("neg", "Minus", 1, np.negative)
_elementwise("abs", "Abs", 1, np.abs)
_elementwise("sign", "Sign", 1, m.sign)
_elementwise("step", "Step", 1, lambda x: np.where(x < 0, 0, 1).astype(x.dtype))
_elementwise("relu", "ReLU", 1, lambda x: np.where(x < 0, 0, x))
_elementwise("exp", "Exp", 1, np.exp)
_elementwise("log", "Log", 1, np.log)
_elementwise("sqrt", "Sqrt", 1, np.sqrt)
_elementwise("rsqrt", "Rsqrt", 1, lambda x: np.where(x == 0, 0, 1 / np.sqrt(x)))
_elementwise("square", "Square", 1, np.square)
_elementwise("inverse", "Inv", 1, np.reciprocal)
_elementwise("pow", "Pow", 1, lambda x, n: np.power(x, x.dtype.type(n)), 1, dims.elementwise_integer)
_elementwise("powf", "Powf", 2, np.power)
_elementwise("sin", "Sin", 1, np.sin)
_elementwise("cos", "Cos", 1, np.cos)
_elementwise("asin", "Asin", 1, np.arcsin)
_elementwise("acos", "Acos", 1, np.arccos)
_elementwise("atan", "Atan", 1, np.arctan)
_elementwise("atan2", "Atan2", 2, np.arctan2)
_elementwise("tanh", "Tanh", 1, np.tanh)
_elementwise("sinxdivx", "SinXDivX", 1, lambda x: np.where(x == 0, 1, np.sin(x) / x))
_elementwise("xlogx", "XLogX", 1, lambda x: np.where(x == 0, 0, x * np.log(x)))
_elementwise("floor", "Floor", 1, np.floor)
_elementwise("round", "Round", 1, m.round_half_away, 1, dims.elementwise_integer)
_elementwise("clamp", "Clamp", 3, m.clamp)
_elementwise("clampint", "ClampInt", 1, m.clamp, 2)
_elementwise(
    "diffclampint", "DiffClampInt", 1, lambda x, low, high: (~((x < low) | (x > high))).astype(x.dtype), 2
)
_elementwise("ifelse", "IfElse", 3, lambda condition, a, b: np.where(condition >= 0, a, b))
_elementwise("mod", "Mod", 3, lambda x, modulus, offset: x - modulus * np.floor((x - offset) / modulus))
_elementwise("eq", "Equal", 2, m.comparison(np.equal))
_elementwise("ne", "NotEqual", 2, m.comparison(np.not_equal))
_elementwise("lt", "LessThan", 2, m.comparison(np.less))
_elementwise("le", "LessOrEqual", 2, m.comparison(np.less_equal))
_features("sum", "Sum", 1, dims.one, m.over_features(np.sum))
_features("scalprod", "Scalprod", 2, dims.contraction, m.scalprod)
_features("sqdist", "SqDist", 2, dims.contraction, lambda a, b: np.square(a - b).sum(-1, keepdims=True))
_features("max", "Max", 1, dims.one, m.over_features(np.max))
_features("min", "Min", 1, dims.one, m.over_features(np.min))
_features("argmax", "ArgMax", 1, dims.one, m.over_features(np.argmax))
_features("argmin", "ArgMin", 1, dims.one, m.over_features(np.argmin))
_features("sumT", "SumT", 1, dims.from_scalar("SumT"), lambda x, dim: np.repeat(x, dim, axis=-1), 1)
_features("elem", "Elem", 1, dims.elem, lambda x, index: x[..., index : index + 1], 1)
_features("elemT", "ElemT", 1, dims.elem_t, lambda x, dim, index: m.extract_t(x, index, dim), 2)
_features("extract", "Extract", 1, dims.extract, lambda x, start, dim: x[..., start : start + dim], 2)
_features("extractT", "ExtractT", 1, dims.extract_t, m.extract_t, 2)
_features("concat", "Concat", 2, dims.concat, m.concat)
_features(
    "one_hot", "OneHot", 1, dims.from_scalar("OneHot"),
    lambda x, dim: (np.floor(x + 0.5) == np.arange(dim)).astype(x.dtype), 1,
)  # fmt: skip
_features("matvecmult", "MatVecMult", 2, dims.matvec, m.matvec)
_features("vecmatmult", "VecMatMult", 2, dims.vecmat, m.vecmat)
_features("tensorprod", "TensorProd", 2, dims.outer, m.outer)
_features("tensordot", "TensorDot", 2, dims.tensordot, m.tensordot, 4, n_optional=1)


def suggestion(name: str, known: list[str]) -> str:
    """``; did you mean X?`` for the nearest known name, or nothing."""
    folded = {k.lower().replace("_", ""): k for k in known}
    near = difflib.get_close_matches(name.lower().replace("_", ""), list(folded), n=1, cutoff=0.6)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def lookup(name: str) -> Operation:
    """The row of an operation.

    Raises
    ------
    ValueError
        If there is none; the nearest name is suggested.
    """
    row = TABLE.get(name)
    if row is None:
        raise ValueError(f"there is no operation {name!r}{suggestion(name, list(TABLE))}")
    return row
