"""The table of operations: for each its name, its dims and its meaning in numpy.

A row is all that nodes, texts and evaluation know of an operation. Its derivative is a row of `derivative.RULES`,
its scalar instructions one of `lower_each` or `lower_across`; tests hold the three together. An operation with an
`expand` is written in terms of others when its node is made, and needs no such rows.

Names, argument orders and conventions are those of KeOps' formulas: step(0) = 1, sign(0) = 0, rsqrt(0) = 0,
sinxdivx(0) = 1, xlogx(0) = 0, ifelse(c, a, b) is a where c >= 0, halves are rounded away from zero, comparisons
are 1 or 0, a matrix is stored row after row.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from upsweep._compiler.formulas import numpy_semantics as m
from upsweep._compiler.formulas.composites import EXPANSIONS
from upsweep._compiler.formulas.dims import DimError, Dims, elementwise, sized, with_integer

if TYPE_CHECKING:
    from upsweep._compiler.formulas.nodes import Node

__all__ = ["BY_KEOPS", "TABLE", "DimError", "Operation", "lookup", "suggestion"]


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the table.

    `dim` takes the arguments' dims and the numbers and returns the result's dim, or raises `DimError`;
    `meaning` takes arrays of shape (..., dim) and the numbers. `n_static` says how few and how many numbers there
    are. An operation is `elementwise` if feature k of the result is a function of feature k of the arguments.
    """

    name: str
    keops: str
    arity: int
    dim: Callable[[tuple[int, ...], tuple[Any, ...]], int]
    meaning: Callable[..., Any] | None
    n_static: tuple[int, int] = (0, 0)
    elementwise: bool = False
    expand: Callable[[Callable[..., Node], tuple[Node, ...], tuple[Any, ...]], Node] | None = None


def _numbers(n: int | tuple[int, int]) -> tuple[int, int]:
    return (n, n) if isinstance(n, int) else n


def _each(name: str, keops: str, arity: int, meaning: Callable[..., Any], n_static: int = 0) -> Operation:
    return Operation(name, keops, arity, elementwise, meaning, _numbers(n_static), elementwise=True)


def _with_integer(name: str, keops: str, meaning: Callable[..., Any]) -> Operation:
    return Operation(name, keops, 1, with_integer, meaning, _numbers(1), elementwise=True)


def _whole(
    name: str, keops: str, arity: int, dim: Dims, meaning: Callable[..., Any], n_static: int | tuple[int, int] = 0
) -> Operation:
    return Operation(name, keops, arity, dim, meaning, _numbers(n_static))


_ROWS = [
    _each("add", "Add", 2, np.add),
    _each("sub", "Subtract", 2, np.subtract),
    _each("mul", "Mult", 2, np.multiply),
    _each("div", "Divide", 2, np.divide),
    _each("neg", "Minus", 1, np.negative),
    _each("abs", "Abs", 1, np.abs),
    _each("sign", "Sign", 1, m.sign),
    _each("step", "Step", 1, m.step),
    _each("relu", "ReLU", 1, m.relu),
    _each("exp", "Exp", 1, np.exp),
    _each("log", "Log", 1, np.log),
    _each("sqrt", "Sqrt", 1, np.sqrt),
    _each("rsqrt", "Rsqrt", 1, m.rsqrt),
    _each("square", "Square", 1, np.square),
    _each("inverse", "Inv", 1, np.reciprocal),
    _with_integer("pow", "Pow", m.integer_power),
    _each("powf", "Powf", 2, np.power),
    _each("sin", "Sin", 1, np.sin),
    _each("cos", "Cos", 1, np.cos),
    _each("asin", "Asin", 1, np.arcsin),
    _each("acos", "Acos", 1, np.arccos),
    _each("atan", "Atan", 1, np.arctan),
    _each("atan2", "Atan2", 2, np.arctan2),
    _each("tanh", "Tanh", 1, np.tanh),
    _each("sinxdivx", "SinXDivX", 1, m.sinxdivx),
    _each("xlogx", "XLogX", 1, m.xlogx),
    _each("floor", "Floor", 1, np.floor),
    _with_integer("round", "Round", m.round_away),
    _each("clamp", "Clamp", 3, m.clamp),
    _each("clampint", "ClampInt", 1, m.clamp, 2),
    _each("diffclampint", "DiffClampInt", 1, m.inside, 2),
    _each("ifelse", "IfElse", 3, m.if_else),
    _each("mod", "Mod", 3, m.modulo),
    _each("eq", "Equal", 2, m.comparison(np.equal)),
    _each("ne", "NotEqual", 2, m.comparison(np.not_equal)),
    _each("lt", "LessThan", 2, m.comparison(np.less)),
    _each("le", "LessOrEqual", 2, m.comparison(np.less_equal)),
    _whole("sum", "Sum", 1, sized.one, m.total),
    _whole("scalprod", "Scalprod", 2, sized.one_of(elementwise), m.scalar_product),
    _whole("sqdist", "SqDist", 2, sized.one_of(elementwise), m.squared_distance),
    _whole("max", "Max", 1, sized.one, m.largest),
    _whole("min", "Min", 1, sized.one, m.smallest),
    _whole("argmax", "ArgMax", 1, sized.one, m.place_of_largest),
    _whole("argmin", "ArgMin", 1, sized.one, m.place_of_smallest),
    _whole("sumT", "SumT", 1, sized.spread, m.spread, 1),
    _whole("elem", "Elem", 1, sized.elem, m.elem, 1),
    _whole("elemT", "ElemT", 1, sized.elem_t, m.elem_t, 2),
    _whole("extract", "Extract", 1, sized.extract, m.extract, 2),
    _whole("extractT", "ExtractT", 1, sized.extract_t, m.extract_t, 2),
    _whole("concat", "Concat", 2, sized.concat, m.concat),
    _whole("one_hot", "OneHot", 1, sized.one_hot, m.one_hot, 1),
    _whole("matvecmult", "MatVecMult", 2, sized.matvec, m.matvec),
    _whole("vecmatmult", "VecMatMult", 2, sized.vecmat, m.vecmat),
    _whole("tensorprod", "TensorProd", 2, sized.outer, m.outer),
    _whole("tensordot", "TensorDot", 2, sized.tensordot, m.tensordot, (4, 5)),
]

TABLE: dict[str, Operation] = {row.name: row for row in _ROWS}
"""All operations by their name here; composite ones included."""

for _name, (_keops, _arity, _static, _dim, _expand) in EXPANSIONS.items():
    TABLE[_name] = Operation(_name, _keops, _arity, _dim, None, _numbers(_static), expand=_expand)

BY_KEOPS: dict[str, str] = {row.keops: row.name for row in TABLE.values()}
"""The names here by the names in formula texts."""


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
