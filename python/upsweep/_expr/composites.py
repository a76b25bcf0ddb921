"""Operations that are written in terms of others when their node is made.

`EXPANSIONS` gives for each the name in formula texts, the number of arguments and of numbers, the rule of dims,
and the expansion, which is handed `make`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from .dims import DimError, Dims, elementwise, sized

if TYPE_CHECKING:
    from .nodes import Node, Static

    Make = Callable[..., Node]
    Args = tuple[Node, ...]

__all__ = ["EXPANSIONS"]


def _constant(value: float) -> Node:
    from .nodes import constant

    return constant(value)


def _sqnorm2(make: Make, args: Args, static: Static) -> Node:
    return make("sum", make("square", args[0]))


def _norm2(make: Make, args: Args, static: Static) -> Node:
    return make("sqrt", make("sqnorm2", args[0]))


def _normalize(make: Make, args: Args, static: Static) -> Node:
    return make("mul", make("rsqrt", make("sqnorm2", args[0])), args[0])


def _weightedsqnorm(make: Make, args: Args, static: Static) -> Node:
    """By the weight's dim: one number, one for each feature, or a matrix."""
    weight, x = args
    if weight.dim == 1:
        return make("mul", weight, make("sqnorm2", x))
    if weight.dim == x.dim:
        return make("scalprod", weight, make("square", x))
    return make("scalprod", make("matvecmult", weight, x), x)


def _weightedsqdist(make: Make, args: Args, static: Static) -> Node:
    return make("weightedsqnorm", args[0], make("sub", args[1], args[2]))


def _weighted_dims(dims: tuple[int, ...], static: Static) -> int:
    dim = elementwise(dims[1:], static)
    if dims[0] not in (1, dim, dim * dim):
        raise DimError(f"the weights' dim has to be 1, {dim} or {dim * dim}")
    return 1


def _sinc(make: Make, args: Args, static: Static) -> Node:
    return make("sinxdivx", make("mul", _constant(math.pi), args[0]))


def _difference_matrix(make: Make, args: Args, static: Static) -> Node:
    a, b = args
    one = _constant(1)
    columns = make("tensorprod", a, make("sumT", one, static=(b.dim,)))
    return make("sub", columns, make("tensorprod", make("sumT", one, static=(a.dim,)), b))


def _kron(make: Make, args: Args, static: Static) -> Node:
    shape_a, shape_b = static
    n = len(shape_a)
    interleaved = (*range(0, 2 * n, 2), *range(1, 2 * n, 2))
    return make("tensordot", *args, static=(shape_a, shape_b, (), (), interleaved))


def _kron_dims(dims: tuple[int, ...], static: Static) -> int:
    if len(static[0]) != len(static[1]):
        raise DimError("both shapes have to have as many axes")
    return sized.tensordot(dims, (*static, (), ()))


def _same(make: Make, args: Args, static: Static) -> Node:
    return args[0]


def _first(dims: tuple[int, ...], static: Static) -> int:
    return dims[0]


EXPANSIONS: dict[str, tuple[str, int, int, Dims, Callable[[Make, Args, Static], Node]]] = {
    "sqnorm2": ("SqNorm2", 1, 0, sized.one, _sqnorm2),
    "norm2": ("Norm2", 1, 0, sized.one, _norm2),
    "normalize": ("Normalize", 1, 0, _first, _normalize),
    "weightedsqnorm": ("WeightedSqNorm", 2, 0, _weighted_dims, _weightedsqnorm),
    "weightedsqdist": ("WeightedSqDist", 3, 0, _weighted_dims, _weightedsqdist),
    "sqnormiso": ("SqNormIso", 2, 0, _weighted_dims, _weightedsqnorm),
    "sqnormdiag": ("SqNormDiag", 2, 0, _weighted_dims, _weightedsqnorm),
    "symsqnorm": ("SymSqNorm", 2, 0, _weighted_dims, _weightedsqnorm),
    "sinc": ("Sinc", 1, 0, _first, _sinc),
    "difference_matrix": ("DifferenceMatrix", 2, 0, sized.outer, _difference_matrix),
    "kron": ("Kron", 2, 2, _kron_dims, _kron),
    # Common subexpressions are found anyway.
    "factorize": ("Factorize", 2, 0, _first, _same),
    "autofactorize": ("AutoFactorize", 1, 0, _first, _same),
}
