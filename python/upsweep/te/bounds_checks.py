"""Bounds checks of indices: proven for all sizes, rejected, or deferred to a check of the sizes at the call.

The machine computes indices in int64 (in int32 where a program casts to it). Where min, max, a division or a cast
is of integers that do not come from data, these have to fit, for all sizes or by a check at the call: else the
index that was checked would not be the one that is read. What is computed of data may wrap around, and counts as
any integer then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from upsweep._compiler.loops.expressions import INTS, Axis, Expr, binary, index_const, lowest
from upsweep._compiler.loops.linear import MAX_SIZE, Linear, depends_on_sizes, is_of_data, last_index, linear
from upsweep._compiler.loops.ranges import Ranges
from upsweep._compiler.loops.traversal import fold, walk
from upsweep.te.tensors import ComputeOp


@dataclass(frozen=True)
class SizeCheck:
    """Must be at least 0 at the call, unless one of the loops is empty; else the message is raised."""

    value: Expr
    extents: tuple[Expr, ...]
    message: str


def _check(
    index: Expr, side: Callable[[Linear], Linear], ranges: Ranges, extents: tuple[Expr, ...], message: str
) -> list[SizeCheck]:
    """Check that one side of an index, a form of its value, is at least 0."""
    exact = side(ranges.exact(index))
    # Conditions on what may wrap around are of the same wrapped value.
    if ranges.always(exact) or ranges.always(side(ranges.form(index))):
        return []
    if ranges.fails(exact):
        raise ValueError(message)
    for low in ranges.bounds_of(exact)[0]:
        if not ranges.assumptions and depends_on_sizes(low) and not low.below_zero():
            return [SizeCheck(low.expr(), extents, message)]
    raise ValueError(
        f"{message}: not shown to stay inside. Bound it by te.min and te.max, or put the read into te.select "
        "under a condition that does"
    )


def _check_arithmetic(expr: Expr, ranges: Ranges, what: str) -> None:
    """Raise where an operation of an index is of integers that leave their dtype, other than those of data."""
    for node in walk(expr):
        if node.op in ("add", "sub", "mul", "neg", "read"):
            continue
        for arg in node.args:
            if arg.dtype in INTS and not is_of_data(arg) and not ranges.is_exact(arg):
                raise ValueError(f"{what}, of which {arg!r} may leave {arg.dtype}; bound it before it is computed")


def _check_read(read: Expr, ranges: Ranges, extents: tuple[Expr, ...], name: str) -> list[SizeCheck]:
    tensor = read.static[0]
    checks = []
    for d, (index, size) in enumerate(zip(read.args, tensor.shape)):
        text = f"{read.where}: {tensor.name}[{', '.join(map(repr, read.args))}] in {name}: index {d}"
        message = f"{text} leaves {tensor.name} of shape ({', '.join(map(repr, tensor.shape))})"
        numbers = [linear(index).constant, *(coefficient for coefficient, _ in linear(index).terms.values())]
        if not all(lowest("int64") <= number < -lowest("int64") for number in numbers):
            raise ValueError(f"{text} has a factor or a summand that does not fit int64")
        _check_arithmetic(index, ranges, text)
        last = linear(last_index(size))
        checks += _check(index, lambda form: form, ranges, extents, message)
        checks += _check(index, partial(last.plus, times=-1), ranges, extents, message)
        # The proofs rest on these; the first read of a stage that needs one adds its check.
        checks += [
            SizeCheck(low.expr(), extents, f"{text} leaves int64 while it is computed") for low in ranges.needed
        ]
        ranges.needed.clear()
    return checks


def _check_extent(axis: Axis, name: str) -> list[SizeCheck]:
    """A loop runs over its extent as the machine computes it."""
    assert axis.extent is not None
    ranges = Ranges({}, at_call=True)
    message = f"{axis.name} of {name} runs over {axis.extent!r}"
    _check_arithmetic(axis.extent, ranges, message)
    extent = linear(axis.extent)
    ends = [extent.plus(Linear(lowest("int64")), -1), Linear(MAX_SIZE).plus(extent, -1), *ranges.needed]
    return [
        SizeCheck(end.expr(), (), f"{message}: expected at most 2**62 steps, computed in int64")
        for end in ends
        if not end.at_least_zero()
    ]


def check_memory(name: str, shape: Sequence[Expr], n_bytes: int) -> list[SizeCheck]:
    """The memory of a tensor with elements of some bytes is less than int64 counts."""
    total = index_const(n_bytes)
    for size in shape:
        total = binary("mul", total, binary("max", size, index_const(1)))
    left = Linear(-1 - lowest("int64")).plus(linear(total), -1)
    message = f"{name} of shape ({', '.join(map(repr, shape))}): expected less than 2**63 bytes"
    if left.below_zero():
        raise ValueError(message)
    return [] if left.at_least_zero() else [SizeCheck(left.expr(), (), message)]


def _proven(expr: Expr, ranges: Ranges, extents: tuple[Expr, ...], name: str) -> dict[int, bool]:
    """Whether all reads in each node, by its id, are inside by the ranges of the axes alone, for all sizes."""

    def is_proven(node: Expr, args: list[bool]) -> bool:
        if node.op != "read" or not all(args):
            return all(args)
        try:
            return not _check_read(node, Ranges(ranges.axes, at_call=True), extents, name)
        except ValueError:
            return False

    known: dict[int, bool] = {}
    fold(expr, is_proven, known)
    return known


def _check_all_reads(expr: Expr, ranges: Ranges, extents: tuple[Expr, ...], name: str) -> list[SizeCheck]:
    checks: list[SizeCheck] = []
    stack, seen = [(expr, ranges)], set[tuple[int, Ranges]]()
    # Reads that are inside without any condition need not be checked for each path of conditions to them.
    proven = _proven(expr, ranges, extents, name) if any(node.op == "select" for node in walk(expr)) else {}
    while stack:
        node, ranges = stack.pop()
        if (id(node), ranges) in seen or proven.get(id(node), False):
            continue
        seen.add((id(node), ranges))
        if node.op == "read":
            checks += _check_read(node, ranges, extents, name)
        if node.op == "select":
            condition, yes, no = node.args
            stack += [
                (no, ranges.assuming(condition, False)),
                (yes, ranges.assuming(condition)),
                (condition, ranges),
            ]
        else:
            stack += [(arg, ranges) for arg in reversed(node.args)]
    return checks


def check_reads(op: ComputeOp, known: Mapping[Axis, tuple[Expr, Expr]]) -> list[SizeCheck]:
    """Check all reads of a stage while its axes run over their extents, or over what is `known` of them.

    Returns what cannot be decided before the sizes are known. Raises ValueError where an index leaves its tensor
    for any sizes, or depends on data.
    """
    axes: dict[Axis, tuple[Expr, Expr]] = {}
    extents = []
    checks: list[SizeCheck] = []
    for axis in (*op.axis, *op.reduce_axis):
        assert axis.extent is not None
        first, last = known.get(axis, (index_const(0), last_index(axis.extent)))
        axes[axis] = (first, last)
        checks += _check_extent(axis, op.name)
        extents.append(linear(last).plus(linear(first), -1).plus(Linear(1)).expr())
    return checks + _check_all_reads(op.body, Ranges(axes, at_call=True), tuple(extents), op.name)
