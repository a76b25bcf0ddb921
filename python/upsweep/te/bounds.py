"""Indices that stay inside: shown for all sizes, refused, or left to a check of the sizes at the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from upsweep._expr.nest.expressions import Axis, Expr, const, walk
from upsweep._expr.nest.linear import Linear, Ranges, linear

from .tensors import ComputeOp

__all__ = ["SizeCheck", "check_reads"]


@dataclass(frozen=True)
class SizeCheck:
    """Must be at least 0 at the call, unless one of the loops is empty; else the message is raised."""

    value: Expr
    extents: tuple[Expr, ...]
    message: str


def _last(extent: Expr) -> Expr:
    return linear(extent).plus(Linear(1), -1).expr()


def _check(form: Linear, ranges: Ranges, extents: tuple[Expr, ...], message: str) -> list[SizeCheck]:
    if ranges.always(form):
        return []
    if ranges.fails(form):
        raise ValueError(message)
    for low in ranges.lowest(form):
        if not ranges.facts and all(_is_of_sizes(atom) for _, atom in low.terms.values()):
            return [SizeCheck(low.expr(), extents, message)]
    raise ValueError(
        f"{message}: not shown to stay inside. Bound it by te.min and te.max, or put the read into te.select "
        "under a condition that does"
    )


def _is_of_sizes(expr: Expr) -> bool:
    return all(node.op not in ("axis", "read") for node in walk(expr))


def _check_read(read: Expr, ranges: Ranges, extents: tuple[Expr, ...], name: str) -> list[SizeCheck]:
    tensor = read.static[0]
    found = []
    for d, (index, size) in enumerate(zip(read.args, tensor.shape)):
        form = linear(index)
        message = (
            f"{read.where}: {tensor.name}[{', '.join(map(repr, read.args))}] in {name}: index {d} leaves "
            f"{tensor.name} of shape ({', '.join(map(repr, tensor.shape))})"
        )
        found += _check(form, ranges, extents, message)
        found += _check(linear(_last(size)).plus(form, -1), ranges, extents, message)
    return found


def _walk(expr: Expr, ranges: Ranges, extents: tuple[Expr, ...], name: str) -> list[SizeCheck]:
    found: list[SizeCheck] = []
    if expr.op == "read":
        found += _check_read(expr, ranges, extents, name)
    if expr.op == "select":
        condition, yes, no = expr.args
        return [
            *_walk(condition, ranges, extents, name),
            *_walk(yes, ranges.given(condition), extents, name),
            *_walk(no, ranges.given(condition, False), extents, name),
        ]
    for arg in expr.args:
        found += _walk(arg, ranges, extents, name)
    return found


def check_reads(op: ComputeOp, known: Mapping[Axis, tuple[Expr, Expr]]) -> list[SizeCheck]:
    """Check all reads of a stage while its axes run over their extents, or over what is `known` of them.

    Returns
    -------
    list of SizeCheck
        What cannot be decided before the sizes are known.

    Raises
    ------
    ValueError
        An index leaves its tensor for any sizes, or depends on data.
    """
    axes: dict[Axis, tuple[Expr, Expr]] = {}
    extents = []
    for axis in (*op.axis, *op.reduce_axis):
        assert axis.extent is not None
        first, last = known.get(axis, (const(0, "int64"), _last(axis.extent)))
        axes[axis] = (first, last)
        extents.append(linear(last).plus(linear(first), -1).plus(Linear(1)).expr())
    return _walk(op.body, Ranges(axes), tuple(extents), op.name)
