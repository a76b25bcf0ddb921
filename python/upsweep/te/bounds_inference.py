"""Bounds inference: the region of a tensor that its readers need, in all or in one step of a loop.

A stage computes all of its tensor, unless indices that it reads would leave other tensors: then only what is read
of it (`used_regions`). `lowering` allocates `region_of` for a stage that is computed in a loop of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from upsweep._compiler.loops.expressions import Axis, Expr, binary, contains, index_const, substitute
from upsweep._compiler.loops.linear import Linear, is_of_data, last_index, linear
from upsweep.te.stage_loops import extent_of
from upsweep.te.stages import Stage
from upsweep.te.tensors import ComputeOp, Tensor, reads_of

Span = tuple[Expr, Expr]  # the first and the last index of one dimension
Inlined = Callable[[Tensor], "ComputeOp | None"]  # what is computed where a tensor is read, if it is inlined


@dataclass
class Consumer:
    """A stage inside of a loop: the values of its root axes, and the extents of the loops further inside."""

    op: ComputeOp
    values: Mapping[Axis, Expr]
    inner: Mapping[Axis, Expr]


def expanded_reads(expr: Expr, inlined: Inlined) -> list[Expr]:
    """The reads in an expression, with inlined stages expanded."""
    reads = []
    for read in reads_of(expr):
        op = inlined(read.static[0])
        if op is not None:
            body = substitute(op.body, dict(zip(op.axis, read.args)))
            reads += expanded_reads(body, inlined)
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
        elif atom.args and (contains(atom, consumer.inner) or is_of_data(atom)):
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


def whole(tensor: Tensor) -> list[Span]:
    """All indices of a tensor."""
    return [(index_const(0), last_index(size)) for size in tensor.shape]


def length_of(first: Expr, last: Expr) -> Linear:
    """The number of indices from the first to the last."""
    return linear(last).plus(linear(first), -1).plus(Linear(1))


def consumer_of(op: ComputeOp, spans: Sequence[Span], fixed: Mapping[Axis, Expr]) -> Consumer:
    """A stage that is computed over a region; `fixed` are values of axes without a loop."""
    values: dict[Axis, Expr] = {}
    inner: dict[Axis, Expr] = {axis: extent_of(axis) for axis in op.reduce_axis}
    for axis, (first, last) in zip(op.axis, spans):
        values[axis] = fixed[axis] if axis in fixed else binary("add", first, axis)
        if axis not in fixed:
            inner[axis] = length_of(first, last).expr()
    return Consumer(op, values, inner)


def _used(spans: list[tuple[Linear, Linear] | None], all_of_it: Span) -> Span:
    """The part of a dimension that is read, as far as it is inside of the tensor for all sizes."""
    span, (first, last) = _union(spans), all_of_it
    if span is None:
        return all_of_it
    is_inside = linear(last).plus(span[1], -1).at_least_zero()
    return span[0].expr() if span[0].at_least_zero() else first, span[1].expr() if is_inside else last


def used_regions(stages: Sequence[Stage], narrow: Container[Tensor]) -> dict[Tensor, list[Span]]:
    """What stages compute of their tensors: of the `narrow` ones what is read of them, all of others."""
    regions: dict[Tensor, list[Span]] = {}
    readers: dict[Tensor, list[tuple[Consumer, Expr]]] = {}
    for stage in reversed(stages):
        op = stage.op
        if not isinstance(op, ComputeOp):
            continue
        tensor = op.outputs[0]
        spans = whole(tensor)
        for d, axis in enumerate(op.axis):
            if tensor in readers:
                spans[d] = _used([_span(read.args[d], consumer) for consumer, read in readers[tensor]], spans[d])
            if axis is stage.time:
                assert stage.group is not None
                spans[d] = stage.group.times
        regions[tensor] = spans
        reads = [read for read in reads_of(op.body) if read.static[0] in narrow]
        for read in reads:
            readers.setdefault(read.static[0], []).append((consumer_of(op, spans, {}), read))
    return regions


def region_of(
    tensor: Tensor, consumers: list[Consumer], ranges: Mapping[Axis, Span], inlined: Inlined, used: list[Span]
) -> list[Span]:
    """What is read of each dimension; where that is unknown, all that is `used`."""
    reads = [
        (consumer, read)
        for consumer in consumers
        for read in expanded_reads(consumer.op.body, inlined)
        if read.static[0] is tensor
    ]
    if not reads:
        raise ValueError(f"{tensor.op.line}: {tensor.name} is computed in a loop of a stage that does not read it")
    region = []
    for d, (first, last) in enumerate(used):
        region.append((first, last))
        span = _union([_span(read.args[d], consumer) for consumer, read in reads])
        if span is None:
            continue
        # Guarded reads may span more than the tensor.
        below, beyond = linear(first).plus(span[0], -1), span[1].plus(linear(last), -1)
        is_whole = below.at_least_zero() and beyond.at_least_zero()
        length = span[1].plus(span[0], -1)
        moves = any(contains(atom, ranges) for _, atom in length.terms.values())  # with the loops around
        if not is_whole and not moves:
            region[-1] = span[0].expr(), span[1].expr()
    return region
