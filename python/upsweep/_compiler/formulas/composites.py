"""Operations that are written in terms of others when their node is made.

`EXPANSIONS` gives for each the name in formula texts, the number of arguments and of numbers, the rule of dims,
and the expansion, which is handed `make`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from upsweep._compiler.formulas.dims import DimError, Dims, elementwise, sized

if TYPE_CHECKING:
    from upsweep._compiler.formulas.nodes import Node, Static

    Make = Callable[..., Node]
    Args = tuple[Node, ...]

__all__ = ["EXPANSIONS"]


def _constant(value: float) -> Node:
    from upsweep._compiler.formulas.nodes import constant

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


def _bspline(make: Make, args: Args, static: Static) -> Node:
    """The basis of splines of an order at x, by de Boor's recursion over vectors of intervals.

    Where knots coincide, a function of no width is 0.
    """
    knots, x = args
    n, half = knots.dim, _constant(0.5)

    def at(start: int, dim: int) -> Node:
        return make("extract", knots, static=(start, dim))

    basis = make("mul", make("le", at(0, n - 1), x), make("lt", x, at(1, n - 1)))
    for order in range(1, static[0] + 1):
        left, right = at(0, n - order), at(order, n - order)
        rising = make("div", make("sub", x, left), make("sub", right, left))
        rising = make("ifelse", make("sub", make("lt", left, right), half), rising, _constant(0))
        count = n - order - 1
        falling = make("sub", _constant(1), make("extract", rising, static=(1, count)))
        up = make("mul", make("extract", rising, static=(0, count)), make("extract", basis, static=(0, count)))
        basis = make("add", up, make("mul", falling, make("extract", basis, static=(1, count))))
    return basis


def _bspline_dims(dims: tuple[int, ...], static: Static) -> int:
    order = static[0]
    if not isinstance(order, int) or order < 0:
        raise DimError(f"the order has to be an integer of at least 0, not {order!r}")
    if dims[1] != 1 or dims[0] < order + 2:
        raise DimError(f"order {order} takes {order + 2} knots or more, and a number")
    return dims[0] - order - 1


_MOST_CELLS = 400  # of a table of soft alignments, each of which is about 20 instructions


def _softdtw(make: Make, args: Args, static: Static) -> Node:
    """The cost of the soft alignment of two sequences of numbers: a table filled cell by cell."""
    x, y, gamma = args

    def softly(costs: list[Node]) -> Node:
        least = costs[0]
        for cost in costs[1:]:
            least = make("ifelse", make("sub", cost, least), least, cost)
        terms = [make("exp", make("div", make("sub", least, cost), gamma)) for cost in costs]
        total = terms[0]
        for term in terms[1:]:
            total = make("add", total, term)
        return make("sub", least, make("mul", gamma, make("log", total)))

    table: dict[tuple[int, int], Node] = {}
    for m in range(y.dim):
        for n in range(x.dim):
            here = make("sqdist", make("elem", x, static=(n,)), make("elem", y, static=(m,)))
            before = [table[cell] for cell in ((n - 1, m - 1), (n - 1, m), (n, m - 1)) if cell in table]
            table[n, m] = here if not before else make("add", here, softly(before) if before[1:] else before[0])
    return table[x.dim - 1, y.dim - 1]


def _softdtw_dims(dims: tuple[int, ...], static: Static) -> int:
    if dims[2] != 1:
        raise DimError("gamma has to be a number")
    if dims[0] * dims[1] > _MOST_CELLS:
        raise DimError(f"the sequences' lengths multiply to more than {_MOST_CELLS}")
    return 1


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
    "bspline": ("BSpline", 2, 1, _bspline_dims, _bspline),
    "softdtw_sqdist": ("SoftDTW_SqDist", 3, 0, _softdtw_dims, _softdtw),
    # Common subexpressions are found anyway.
    "factorize": ("Factorize", 2, 0, _first, _same),
    "autofactorize": ("AutoFactorize", 1, 0, _first, _same),
}
