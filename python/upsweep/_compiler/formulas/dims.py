"""Dim rules: the number of features of an operation's result from those of its operands.

A rule takes the operands' dims and the static arguments, and returns the result's dim or raises `DimError`. The
table in `ops` and the composite operations name their rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["DimError", "DimRule", "Static", "elementwise"]

Static = tuple[Any, ...]
DimRule = Callable[[tuple[int, ...], Static], int]


class DimError(ValueError):
    """Dims or static arguments that an operation does not accept."""


def elementwise(dims: tuple[int, ...], static: Static) -> int:
    """The common dim; an operand of dim 1 broadcasts."""
    wide = {dim for dim in dims if dim != 1}
    if len(wide) > 1:
        raise DimError("dims have to be equal, or 1")
    for number in static:
        if not isinstance(number, (int, float)):
            raise DimError(f"{number!r} is not a number")
    return wide.pop() if wide else 1


def elementwise_integer(dims: tuple[int, ...], static: Static) -> int:
    """`elementwise`, of operations whose static argument is an integer."""
    if not isinstance(static[0], int):
        raise DimError(f"the number has to be an integer, not {static[0]!r}")
    return elementwise(dims, static)


def one(dims: tuple[int, ...], static: Static) -> int:
    return 1


def contraction(dims: tuple[int, ...], static: Static) -> int:
    """Two vectors of one dim, or of dim 1, contracted to a number."""
    elementwise(dims, static)
    return 1


def first(dims: tuple[int, ...], static: Static) -> int:
    return dims[0]


def _index(value: Any, low: int, high: float, what: str) -> int:
    if not isinstance(value, int) or not low <= value <= high:
        bounds = f"from {low} to {high}" if high != math.inf else f"of at least {low}"
        raise DimError(f"{what} has to be an integer {bounds}, not {value!r}")
    return value


def from_scalar(name: str) -> DimRule:
    """Operations from a number to a vector whose dim is the first static argument."""

    def rule(dims: tuple[int, ...], static: Static) -> int:
        if dims[0] != 1:
            raise DimError(f"{name} takes an argument of dim 1")
        return _index(static[0], 1, math.inf, "the dim")

    return rule


def elem(dims: tuple[int, ...], static: Static) -> int:
    _index(static[0], 0, dims[0] - 1, "the index")
    return 1


def elem_t(dims: tuple[int, ...], static: Static) -> int:
    dim = from_scalar("ElemT")(dims, static)
    _index(static[1], 0, dim - 1, "the index")
    return dim


def extract(dims: tuple[int, ...], static: Static) -> int:
    start = _index(static[0], 0, dims[0] - 1, "the start")
    return _index(static[1], 1, dims[0] - start, "the number of features")


def extract_t(dims: tuple[int, ...], static: Static) -> int:
    start = _index(static[0], 0, math.inf, "the start")
    return _index(static[1], start + dims[0], math.inf, "the dim")


def concat(dims: tuple[int, ...], static: Static) -> int:
    return dims[0] + dims[1]


def matvec(dims: tuple[int, ...], static: Static) -> int:
    if dims[0] % dims[1]:
        raise DimError("the matrix's dim has to be a multiple of the vector's")
    return dims[0] // dims[1]


def vecmat(dims: tuple[int, ...], static: Static) -> int:
    return matvec(dims[::-1], static)


def outer(dims: tuple[int, ...], static: Static) -> int:
    return dims[0] * dims[1]


def tensordot(dims: tuple[int, ...], static: Static) -> int:
    shape_a, shape_b, axes_a, axes_b = static[:4]
    if any(not isinstance(part, tuple) for part in static):
        raise DimError("shapes, axes and the permutation have to be lists of integers")
    if math.prod(shape_a) != dims[0] or math.prod(shape_b) != dims[1]:
        raise DimError(f"shapes {list(shape_a)} and {list(shape_b)} do not have the arguments' dims")
    for axes, shape in ((axes_a, shape_a), (axes_b, shape_b)):
        if len(set(axes)) != len(axes) or any(axis not in range(len(shape)) for axis in axes):
            raise DimError(f"{list(axes)} are not axes of a tensor of shape {list(shape)}")
    if [shape_a[axis] for axis in axes_a] != [shape_b[axis] for axis in axes_b]:
        raise DimError(f"axes {list(axes_a)} and {list(axes_b)} have different lengths")
    n_axes = len(shape_a) + len(shape_b) - 2 * len(axes_a)
    if len(static) == 5 and sorted(static[4]) != list(range(n_axes)):
        raise DimError(f"{list(static[4])} is not a permutation of {n_axes} axes")
    contracted: int = math.prod(shape_a[axis] for axis in axes_a)
    return dims[0] * dims[1] // contracted**2
