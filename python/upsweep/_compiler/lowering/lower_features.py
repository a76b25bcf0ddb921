"""Lowering rules of operations across features.

`AT` has the rules of operations of which each feature can be computed by itself. `EACH` has those of assembled
vectors: their rules visit all features with their indices; the feature at a loop's index is read from a local
array. The rules call back `LoweringContext`, which `lower.Lowering` implements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.formulas.numpy_semantics import tensordot_loops
from upsweep._compiler.lowering.builder import Builder, Index

Body = Callable[[Index, tuple[int, ...]], Sequence[int]]
Visit = Callable[[Index, int], object]


class LoweringContext(Protocol):
    """The methods of `lower.Lowering` that rules call."""

    builder: Builder

    def at(self, node: Node, index: Index) -> int: ...
    def fold(self, extent: int, inits: Sequence[float], body: Body) -> list[int]: ...
    def total(self, extent: int, term: Callable[[Index], int]) -> int: ...
    def walk(self, extent: int, visit: Callable[[Index], object]) -> None: ...
    def each(self, node: Node, visit: Visit) -> None: ...
    def long_pair(self, op: str, a: Node, b: Node) -> int | None: ...


At = Callable[[LoweringContext, Node, Index], int]
Each = Callable[[LoweringContext, Node, Visit], None]

__all__ = ["AT", "EACH", "Body"]


def _feature(low: LoweringContext, node: Node, k: Index) -> int:
    """Feature k; of a number the number."""
    return low.at(node, k if node.dim > 1 else Index())


def _sum(low: LoweringContext, node: Node, index: Index) -> int:
    (a,) = node.args
    return low.total(a.dim, lambda k: low.at(a, k))


def _scalprod(low: LoweringContext, node: Node, index: Index) -> int:
    a, b = node.args
    known = low.long_pair("dot", a, b)
    if known is not None:
        return known
    return low.total(max(a.dim, b.dim), lambda k: low.builder.mul(_feature(low, a, k), _feature(low, b, k)))


def _sqdist(low: LoweringContext, node: Node, index: Index) -> int:
    a, b = node.args

    def term(k: Index) -> int:
        difference = low.builder.sub(_feature(low, a, k), _feature(low, b, k))
        return low.builder.mul(difference, difference)

    known = low.long_pair("sqdist", a, b)
    return low.total(max(a.dim, b.dim), term) if known is None else known


def _best(largest: bool, index_of: bool) -> At:
    """The largest or smallest feature, or its index; the first NaN if there is one."""

    def rule(low: LoweringContext, node: Node, index: Index) -> int:
        b, (a,) = low.builder, node.args
        zero, one = b.const(0), b.const(1)

        def body(k: Index, carried: tuple[int, ...]) -> list[int]:
            best, at = carried
            value = low.at(a, k)
            first_nan = b.choose("ne", value, value, b.choose("eq", best, best, one, zero), zero)
            better = b.choose("lt", *((best, value) if largest else (value, best)), one, first_nan)
            chosen = b.choose("eq", better, one, value, best)
            return [chosen, b.choose("eq", better, one, b.number(k), at)]

        worst = -math.inf if largest else math.inf
        best = low.fold(a.dim, [worst, 0], body)
        return best[1] if index_of else best[0]

    return rule


def _spread(low: LoweringContext, node: Node, index: Index) -> int:
    return low.at(node.args[0], Index())


def _elem(low: LoweringContext, node: Node, index: Index) -> int:
    return low.at(node.args[0], Index(node.static[0]))


def _elem_t(low: LoweringContext, node: Node, index: Index) -> int:
    b = low.builder
    target = b.const(node.static[1])
    return b.choose("eq", b.number(index), target, low.at(node.args[0], Index()), b.const(0))


def _extract(low: LoweringContext, node: Node, index: Index) -> int:
    return low.at(node.args[0], index + node.static[0])


def _one_hot(low: LoweringContext, node: Node, index: Index) -> int:
    b = low.builder
    nearest = b.call("floor", b.add(low.at(node.args[0], Index()), b.const(0.5)))
    return b.choose("eq", nearest, b.number(index), b.const(1), b.const(0))


def _matvec(low: LoweringContext, node: Node, index: Index) -> int:
    matrix, vector = node.args
    n = vector.dim
    return low.total(n, lambda k: low.builder.mul(_feature(low, matrix, index.scaled(n, k)), low.at(vector, k)))


def _vecmat(low: LoweringContext, node: Node, index: Index) -> int:
    vector, matrix = node.args

    def term(k: Index) -> int:
        return low.builder.mul(low.at(vector, k), _feature(low, matrix, k.scaled(node.dim, index)))

    return low.total(vector.dim, term)


def _shifted(begin: int, visit: Visit) -> Visit:
    """`visit` with indices shifted by `begin`."""
    return lambda k, value: visit(k + begin, value)


def _concat(low: LoweringContext, node: Node, visit: Visit) -> None:
    parts, todo = [], [node]
    while todo:  # iteratively: a vector may be concatenated from a thousand
        part = todo.pop()
        if part.op == "concat":
            todo += part.args[::-1]
        else:
            parts.append(part)
    begin = 0
    for part in parts:
        low.each(part, _shifted(begin, visit))
        begin += part.dim


def _extract_t(low: LoweringContext, node: Node, visit: Visit) -> None:
    (a,), start = node.args, node.static[0]
    zero = low.builder.const(0)
    low.walk(start, lambda k: visit(k, zero))
    low.each(a, _shifted(start, visit))
    end = start + a.dim
    low.walk(node.dim - end, lambda k: visit(k + end, zero))


def _outer(low: LoweringContext, node: Node, visit: Visit) -> None:
    a, b = node.args

    def row(k: Index) -> None:
        low.walk(b.dim, lambda n: visit(k.scaled(b.dim, n), low.builder.mul(low.at(a, k), low.at(b, n))))

    low.walk(a.dim, row)


def _tensordot(low: LoweringContext, node: Node, visit: Visit) -> None:
    """A loop nest over the axes of the result, around one over the contracted axes."""
    a, b = node.args
    loops = tensordot_loops(*node.static)

    def nest(indices: list[Index]) -> None:
        if len(indices) < len(loops.extents):
            low.walk(loops.extents[len(indices)], lambda k: nest([*indices, k]))
        else:
            visit(_along(loops.strides, indices), total(indices, []))

    def total(free: list[Index], contracted: list[Index]) -> int:
        if len(contracted) < len(loops.contracted):
            return low.total(loops.contracted[len(contracted)], lambda k: total(free, [*contracted, k]))
        indices = free + contracted
        left = _along(loops.strides_a, indices)
        return low.builder.mul(_feature(low, a, left), _feature(low, b, _along(loops.strides_b, indices)))

    nest([])


def _along(strides: list[int], indices: list[Index]) -> Index:
    result = Index()
    for stride, index in zip(strides, indices):
        if stride:
            result = result.scaled(1, index.scaled(stride))
    return result


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
