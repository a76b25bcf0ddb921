"""Composite operations: `make` replaces them by other operations, so that no later pass knows them.

Importing this module registers them in the table of `ops`; the package does that.
"""

from __future__ import annotations

import math
from functools import reduce

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, constant, make
from upsweep._compiler.formulas.ops import DimError, Static

__all__: list[str] = []


def _sqnorm2(x: Node) -> Node:
    return make("sum", make("square", x))


def _weighted_dim(widths: tuple[int, ...], static: Static) -> int:
    dim = ops.elementwise(widths[1:], static)
    if widths[0] not in (1, dim, dim * dim):
        raise DimError(f"the weights' dim has to be 1, {dim} or {dim * dim}")
    return 1


def _weightedsqnorm(weight: Node, x: Node) -> Node:
    """The weight is one number, one for each feature, or a matrix."""
    if weight.dim == 1:
        return make("mul", weight, _sqnorm2(x))
    if weight.dim == x.dim:
        return make("scalprod", weight, make("square", x))
    return make("scalprod", make("matvecmult", weight, x), x)


def _difference_matrix(a: Node, b: Node) -> Node:
    one = constant(1)
    columns = make("tensorprod", a, make("sumT", one, static=(b.dim,)))
    return make("sub", columns, make("tensorprod", make("sumT", one, static=(a.dim,)), b))


def _kron_dim(widths: tuple[int, ...], static: Static) -> int:
    if len(static[0]) != len(static[1]):
        raise DimError("both shapes have to have as many axes")
    return ops.tensordot(widths, (*static, (), ()))


def _kron(a: Node, b: Node, shape_a: Static, shape_b: Static) -> Node:
    n = len(shape_a)
    interleaved = (*range(0, 2 * n, 2), *range(1, 2 * n, 2))
    return make("tensordot", a, b, static=(shape_a, shape_b, (), (), interleaved))


def _bspline_dim(widths: tuple[int, ...], static: Static) -> int:
    order = static[0]
    if not isinstance(order, int) or order < 0:
        raise DimError(f"the order has to be an integer of at least 0, not {order!r}")
    if widths[1] != 1 or widths[0] < order + 2:
        raise DimError(f"order {order} takes {order + 2} knots or more, and a number")
    return widths[0] - order - 1


def _bspline(knots: Node, x: Node, order: int) -> Node:
    """The B-spline basis of an order at x, by de Boor's recursion over vectors of intervals.

    A basis function of width 0, between equal knots, is 0.
    """
    n, half = knots.dim, constant(0.5)

    def part(x: Node, start: int, dim: int) -> Node:
        return make("extract", x, static=(start, dim))

    basis = make("mul", make("le", part(knots, 0, n - 1), x), make("lt", x, part(knots, 1, n - 1)))
    for degree in range(1, order + 1):
        left, right = part(knots, 0, n - degree), part(knots, degree, n - degree)
        rising = make("div", make("sub", x, left), make("sub", right, left))
        rising = make("ifelse", make("sub", make("lt", left, right), half), rising, constant(0))
        count = n - degree - 1
        falling = make("sub", constant(1), part(rising, 1, count))
        up = make("mul", part(rising, 0, count), part(basis, 0, count))
        basis = make("add", up, make("mul", falling, part(basis, 1, count)))
    return basis


_MAX_CELLS = 2500  # of a table of soft alignments; a cell is about 20 instructions, that of a gradient 45


def _softdtw_dim(widths: tuple[int, ...], static: Static) -> int:
    if widths[2] != 1:
        raise DimError("gamma has to be a number")
    if widths[0] * widths[1] > _MAX_CELLS:
        raise DimError(f"the sequences' lengths multiply to more than {_MAX_CELLS}")
    return 1


def _softdtw(x: Node, y: Node, gamma: Node) -> Node:
    """The cost of the soft alignment (dynamic time warping) of two sequences of numbers, cell by cell."""

    def soft_minimum(costs: list[Node]) -> Node:
        least = reduce(lambda a, b: make("ifelse", make("sub", b, a), a, b), costs)
        terms = [make("exp", make("div", make("sub", least, cost), gamma)) for cost in costs]
        total = reduce(lambda a, b: make("add", a, b), terms)
        return make("sub", least, make("mul", gamma, make("log", total)))

    table: dict[tuple[int, int], Node] = {}
    for m in range(y.dim):
        for n in range(x.dim):
            cost = make("sqdist", make("elem", x, static=(n,)), make("elem", y, static=(m,)))
            before = [table[cell] for cell in ((n - 1, m - 1), (n - 1, m), (n, m - 1)) if cell in table]
            if before:
                cost = make("add", cost, soft_minimum(before) if before[1:] else before[0])
            table[n, m] = cost
    return table[x.dim - 1, y.dim - 1]


for _name, _keops, _arity, _dim, _n_static, _expand in (
    ("sqnorm2", "SqNorm2", 1, ops.one, 0, _sqnorm2),
    ("norm2", "Norm2", 1, ops.one, 0, lambda x: make("sqrt", _sqnorm2(x))),
    ("normalize", "Normalize", 1, ops.first, 0, lambda x: make("mul", make("rsqrt", _sqnorm2(x)), x)),
    ("weightedsqnorm", "WeightedSqNorm", 2, _weighted_dim, 0, _weightedsqnorm),
    ("weightedsqdist", "WeightedSqDist", 3, _weighted_dim, 0,
     lambda weight, x, y: _weightedsqnorm(weight, make("sub", x, y))),
    ("sqnormiso", "SqNormIso", 2, _weighted_dim, 0, _weightedsqnorm),
    ("sqnormdiag", "SqNormDiag", 2, _weighted_dim, 0, _weightedsqnorm),
    ("symsqnorm", "SymSqNorm", 2, _weighted_dim, 0, _weightedsqnorm),
    ("sinc", "Sinc", 1, ops.first, 0, lambda x: make("sinxdivx", make("mul", constant(math.pi), x))),
    ("difference_matrix", "DifferenceMatrix", 2, ops.outer, 0, _difference_matrix),
    ("kron", "Kron", 2, _kron_dim, 2, _kron),
    ("bspline", "BSpline", 2, _bspline_dim, 1, _bspline),
    ("softdtw_sqdist", "SoftDTW_SqDist", 3, _softdtw_dim, 0, _softdtw),
    # KeOps' hints to compute a common subexpression once: hash-consing does that anyway.
    ("factorize", "Factorize", 2, ops.first, 0, lambda x, common: x),
    ("autofactorize", "AutoFactorize", 1, ops.first, 0, lambda x: x),
):  # fmt: skip
    ops.register(_name, _keops, _arity, None, _dim, _n_static, expand=_expand)
