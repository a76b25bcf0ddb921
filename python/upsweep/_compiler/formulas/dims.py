"""Dims of results from dims of arguments, one rule an operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["DimError", "Dims", "elementwise", "sized", "with_integer"]

Static = tuple[Any, ...]
Dims = Callable[[tuple[int, ...], Static], int]


class DimError(ValueError):
    """Dims or numbers that an operation does not take; the message says what it wants."""


def elementwise(dims: tuple[int, ...], static: Static) -> int:
    """The dim that all have, where those of 1 go with any."""
    wide = {dim for dim in dims if dim != 1}
    if len(wide) > 1:
        raise DimError("dims have to be equal, or 1")
    for number in static:
        _number(number)
    return wide.pop() if wide else 1


def with_integer(dims: tuple[int, ...], static: Static) -> int:
    """As `elementwise`, of operations whose number is an integer."""
    if not isinstance(static[0], int):
        raise DimError(f"the number has to be an integer, not {static[0]!r}")
    return elementwise(dims, static)


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise DimError(f"{value!r} is not a number")
    return value


def _index(value: Any, least: int, most: float, what: str) -> int:
    if not isinstance(value, int) or not least <= value <= most:
        bounds = f"from {least} to {most}" if most != math.inf else f"of at least {least}"
        raise DimError(f"{what} has to be an integer {bounds}, not {value!r}")
    return value


class sized:
    """The rules of operations across features."""

    @staticmethod
    def one(dims: tuple[int, ...], static: Static) -> int:
        return 1

    @staticmethod
    def one_of(rule: Dims) -> Dims:
        def dim(dims: tuple[int, ...], static: Static) -> int:
            rule(dims, static)
            return 1

        return dim

    @staticmethod
    def scalar(dims: tuple[int, ...], what: str) -> None:
        if dims[0] != 1:
            raise DimError(f"{what} takes an argument of dim 1")

    @staticmethod
    def spread(dims: tuple[int, ...], static: Static) -> int:
        sized.scalar(dims, "SumT")
        return _index(static[0], 1, math.inf, "the dim")

    @staticmethod
    def elem(dims: tuple[int, ...], static: Static) -> int:
        _index(static[0], 0, dims[0] - 1, "the index")
        return 1

    @staticmethod
    def elem_t(dims: tuple[int, ...], static: Static) -> int:
        sized.scalar(dims, "ElemT")
        dim = _index(static[0], 1, math.inf, "the dim")
        _index(static[1], 0, dim - 1, "the index")
        return dim

    @staticmethod
    def extract(dims: tuple[int, ...], static: Static) -> int:
        start = _index(static[0], 0, dims[0] - 1, "the start")
        return _index(static[1], 1, dims[0] - start, "the number of features")

    @staticmethod
    def extract_t(dims: tuple[int, ...], static: Static) -> int:
        start = _index(static[0], 0, math.inf, "the start")
        return _index(static[1], start + dims[0], math.inf, "the dim")

    @staticmethod
    def concat(dims: tuple[int, ...], static: Static) -> int:
        return dims[0] + dims[1]

    @staticmethod
    def one_hot(dims: tuple[int, ...], static: Static) -> int:
        sized.scalar(dims, "OneHot")
        return _index(static[0], 1, math.inf, "the dim")

    @staticmethod
    def matvec(dims: tuple[int, ...], static: Static) -> int:
        if dims[0] % dims[1]:
            raise DimError("the matrix's dim has to be a multiple of the vector's")
        return dims[0] // dims[1]

    @staticmethod
    def vecmat(dims: tuple[int, ...], static: Static) -> int:
        return sized.matvec(dims[::-1], static)

    @staticmethod
    def outer(dims: tuple[int, ...], static: Static) -> int:
        return dims[0] * dims[1]

    @staticmethod
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
        kept = len(shape_a) + len(shape_b) - 2 * len(axes_a)
        if len(static) == 5 and sorted(static[4]) != list(range(kept)):
            raise DimError(f"{list(static[4])} is not a permutation of {kept} axes")
        summed: int = math.prod(shape_a[axis] for axis in axes_a)
        return dims[0] * dims[1] // summed**2
