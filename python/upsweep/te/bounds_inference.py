"""Bounds inference: the region of a tensor that its readers need in one step of a loop.

`lowering` allocates this region for a stage that is computed inside of a loop of another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from upsweep._compiler.loops.expressions import Axis, Expr, contains, index_const, substitute
from upsweep._compiler.loops.linear import Linear, linear
from upsweep.te.schedule import Schedule
from upsweep.te.tensors import ComputeOp, Tensor, reads_of


@dataclass
class Consumer:
    """A stage inside of a loop: the values of its root axes, and the extents of the loops further inside."""

    op: ComputeOp
    values: Mapping[Axis, Expr]
    inner: Mapping[Axis, Expr]


def expanded_reads(expr: Expr, schedule: Schedule) -> list[Expr]:
    """The reads in an expression, with inlined stages expanded."""
    reads = []
    for read in reads_of(expr):
        op = read.static[0].op
        if isinstance(op, ComputeOp) and schedule[op].inlined:
            body = substitute(op.body, dict(zip(op.axis, read.args)))
            reads += expanded_reads(body, schedule)
        else:
            reads.append(read)
    return reads


def _span(index: Expr, consumer: Consumer) -> tuple[Linear, Linear] | None:
    """The first and last value of an index while the inner loops run; None if it is unknown."""
    form = linear(substitute(index, consumer.values))
    low = high = Linear(form.constant)
    for coefficient, atom in form.terms.values():
        if isinstance(atom, Axis) and atom in consumer.inner:
            reach = linear(consumer.inner[atom]).plus(Linear(1), -1).scaled(coefficient)
            low, high = (low, high.plus(reach)) if coefficient > 0 else (low.plus(reach), high)
        elif contains(atom, consumer.inner):
            return None
        else:
            only = Linear(0, {name: term for name, term in form.terms.items() if term[1] is atom})
            low, high = low.plus(only), high.plus(only)
    return low, high


def _union(spans: list[tuple[Linear, Linear] | None]) -> tuple[Linear, Linear] | None:
    """The span around one or more; None where one is unknown, or their ends differ by more than a constant."""
    known = [span for span in spans if span is not None]
    low, high = known[0] if known else (Linear(0), Linear(0))
    for first, last in known[1:]:
        below, above = first.plus(low, -1), last.plus(high, -1)
        if below.terms or above.terms:
            return None
        low, high = first if below.constant < 0 else low, last if above.constant > 0 else high
    return (low, high) if len(known) == len(spans) else None


def region_of(
    tensor: Tensor, consumers: list[Consumer], ranges: Mapping[Axis, tuple[Expr, Expr]], schedule: Schedule
) -> tuple[list[Expr], list[Expr]]:
    """The first index and the extent of what is read in each dimension; all of it where that is unknown."""
    reads = [
        (consumer, read)
        for consumer in consumers
        for read in expanded_reads(consumer.op.body, schedule)
        if read.static[0] is tensor
    ]
    if not reads:
        raise ValueError(f"{tensor.op.line}: {tensor.name} is computed in a loop of a stage that does not read it")
    first, extents = [], []
    for d, size in enumerate(tensor.shape):
        span = _union([_span(read.args[d], consumer) for consumer, read in reads])
        first.append(index_const(0))
        extents.append(size)
        if span is None:
            continue
        # Guarded reads may span more than the tensor.
        beyond = span[1].plus(linear(size), -1).plus(Linear(1))
        is_whole = span[0].scaled(-1).at_least_zero() and beyond.at_least_zero()
        length = span[1].plus(span[0], -1).plus(Linear(1))
        moves = any(contains(atom, ranges) for _, atom in length.terms.values())  # with the loops around
        if not is_whole and not moves:
            first[-1], extents[-1] = span[0].expr(), length.expr()
    return first, extents
