"""Lowering of operations across features.

`AT` has the rules of those whose feature at any index can be computed by itself. `EACH` has those of others: they
visit all features with their places; a feature of theirs at the index of a loop is read from an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.formulas.numpy_semantics import tensordot_axes
from upsweep._compiler.lowering.builder import Index

if TYPE_CHECKING:
    from upsweep._compiler.lowering.lower import Lowering

    At = Callable[[Lowering, Node, Index], int]
    Visit = Callable[[Index, int], object]
    Each = Callable[[Lowering, Node, Visit], None]

__all__ = ["AT", "EACH"]


def _feature(low: Lowering, node: Node, k: Index) -> int:
    """Feature k, or the only one."""
    return low.at(node, k if node.dim > 1 else Index())


def _sum(low: Lowering, node: Node, index: Index) -> int:
    (a,) = node.args
    return low.total(a.dim, lambda k: low.at(a, k))


def _scalprod(low: Lowering, node: Node, index: Index) -> int:
    a, b = node.args
    known = low.long_pair("dot", a, b)
    if known is not None:
        return known
    return low.total(max(a.dim, b.dim), lambda k: low.builder.mul(_feature(low, a, k), _feature(low, b, k)))


def _sqdist(low: Lowering, node: Node, index: Index) -> int:
    a, b = node.args

    def term(k: Index) -> int:
        difference = low.builder.sub(_feature(low, a, k), _feature(low, b, k))
        return low.builder.mul(difference, difference)

    known = low.long_pair("sqdist", a, b)
    return low.total(max(a.dim, b.dim), term) if known is None else known


def _best(largest: bool, place: bool) -> At:
    """The largest or smallest feature, or where it is: the first NaN if there is one."""

    def rule(low: Lowering, node: Node, index: Index) -> int:
        b, (a,) = low.builder, node.args
        zero, one = b.const(0), b.const(1)

        def body(k: Index, carried: tuple[int, ...]) -> list[int]:
            best, where = carried
            value = low.at(a, k)
            first_nan = b.choose("ne", value, value, b.choose("eq", best, best, one, zero), zero)
            better = b.choose("lt", *((best, value) if largest else (value, best)), one, first_nan)
            chosen = b.choose("eq", better, one, value, best)
            return [chosen, b.choose("eq", better, one, b.number(k), where)]

        worst = -math.inf if largest else math.inf
        best = low.fold(a.dim, [worst, 0], body)
        return best[1] if place else best[0]

    return rule


def _spread(low: Lowering, node: Node, index: Index) -> int:
    return low.at(node.args[0], Index())


def _elem(low: Lowering, node: Node, index: Index) -> int:
    return low.at(node.args[0], Index(node.static[0]))


def _elem_t(low: Lowering, node: Node, index: Index) -> int:
    b = low.builder
    here = b.const(node.static[1])
    return b.choose("eq", b.number(index), here, low.at(node.args[0], Index()), b.const(0))


def _extract(low: Lowering, node: Node, index: Index) -> int:
    return low.at(node.args[0], index + node.static[0])


def _one_hot(low: Lowering, node: Node, index: Index) -> int:
    b = low.builder
    nearest = b.call("floor", b.add(low.at(node.args[0], Index()), b.const(0.5)))
    return b.choose("eq", nearest, b.number(index), b.const(1), b.const(0))


def _matvec(low: Lowering, node: Node, index: Index) -> int:
    matrix, vector = node.args
    n = vector.dim
    return low.total(n, lambda k: low.builder.mul(_feature(low, matrix, index.scaled(n, k)), low.at(vector, k)))


def _vecmat(low: Lowering, node: Node, index: Index) -> int:
    vector, matrix = node.args

    def term(k: Index) -> int:
        return low.builder.mul(low.at(vector, k), _feature(low, matrix, k.scaled(node.dim, index)))

    return low.total(vector.dim, term)


def _from(begin: int, visit: Visit) -> Visit:
    """Visits as at places from `begin` on."""
    return lambda k, value: visit(k + begin, value)


def _concat(low: Lowering, node: Node, visit: Visit) -> None:
    parts, todo = [], [node]
    while todo:  # one by one: a vector may be made of a thousand
        part = todo.pop()
        if part.op == "concat":
            todo += part.args[::-1]
        else:
            parts.append(part)
    begin = 0
    for part in parts:
        low.each(part, _from(begin, visit))
        begin += part.dim


def _extract_t(low: Lowering, node: Node, visit: Visit) -> None:
    (a,), start = node.args, node.static[0]
    nothing = low.builder.const(0)
    low.walk(start, lambda k: visit(k, nothing))
    low.each(a, _from(start, visit))
    end = start + a.dim
    low.walk(node.dim - end, lambda k: visit(k + end, nothing))


def _outer(low: Lowering, node: Node, visit: Visit) -> None:
    a, b = node.args

    def row(k: Index) -> None:
        low.walk(b.dim, lambda n: visit(k.scaled(b.dim, n), low.builder.mul(low.at(a, k), low.at(b, n))))

    low.walk(a.dim, row)


def _tensordot(low: Lowering, node: Node, visit: Visit) -> None:
    """Loops over the axes of the result, and inside over those that are summed."""
    a, b = node.args
    axes = tensordot_axes(*node.static)

    def over(extents: list[int], at: list[Index], then: Callable[[list[Index]], object]) -> None:
        if len(at) == len(extents):
            then(at)
        else:
            low.walk(extents[len(at)], lambda k: over(extents, [*at, k], then))

    def total(kept: list[Index], summed: list[Index]) -> int:
        if len(summed) < len(axes.summed):
            return low.total(axes.summed[len(summed)], lambda k: total(kept, [*summed, k]))
        places = kept + summed
        left = _along(axes.strides_a, places)
        return low.builder.mul(_feature(low, a, left), _feature(low, b, _along(axes.strides_b, places)))

    over(axes.kept, [], lambda kept: visit(_along(axes.strides, kept), total(kept, [])))


def _along(strides: list[int], places: list[Index]) -> Index:
    index = Index()
    for stride, place in zip(strides, places):
        if stride:
            index = index.scaled(1, place.scaled(stride))
    return index


AT: dict[str, At] = {
    "sum": _sum,
    "scalprod": _scalprod,
    "sqdist": _sqdist,
    "max": _best(True, False),
    "min": _best(False, False),
    "argmax": _best(True, True),
    "argmin": _best(False, True),
    "sumT": _spread,
    "elem": _elem,
    "elemT": _elem_t,
    "extract": _extract,
    "one_hot": _one_hot,
    "matvecmult": _matvec,
    "vecmatmult": _vecmat,
}

EACH: dict[str, Each] = {
    "concat": _concat,
    "extractT": _extract_t,
    "tensorprod": _outer,
    "tensordot": _tensordot,
}
