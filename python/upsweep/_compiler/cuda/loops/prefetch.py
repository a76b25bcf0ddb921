"""Prefetch of a scan's inputs, several steps ahead, into registers.

A thread that runs through time by itself waits for memory in each step, some 600 ns. To reach the bandwidth b,
b * 600 ns bytes have to be in flight: 2.1 TB/s of reads on an H200 take 1.3 MB, 10 KB for each of its 132
processors, and two or three times that where loads and stores queue. With 65,536 columns a processor has 496
threads; 32 elements of 4 bytes of each are 63 KB, and 32 of a thread's registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from upsweep._compiler.cuda.loops.keep_states import around, is_long, scan_loops
from upsweep._compiler.loops.expressions import (
    Axis,
    Expr,
    binary,
    constant_of,
    contains,
    index_const,
    key,
    load,
    outside_loads,
    substitute,
    with_args,
)
from upsweep._compiler.loops.linear import linear, simplified
from upsweep._compiler.loops.rewrite import (
    allocate_around,
    block_of,
    mapped,
    paths_to,
    replace_statement,
    with_inner,
)
from upsweep._compiler.loops.statements import Buffer, For, If, Statement, Store, loops_in, stored_buffers
from upsweep._compiler.loops.traversal import fold, walk

# Elements that a thread has in flight, of all inputs together.
_IN_FLIGHT = 32


@dataclass
class _Stream:
    """One read in each step, and the loops around it."""

    read: Expr
    path: tuple[Statement, ...]
    buffer: Buffer
    indices: tuple[Expr, ...]  # in `buffer`, after the step
    count: int


def prefetch(statement: Statement) -> Statement:
    """The kernel with its scan's inputs prefetched, if the scan has one loop over its steps."""
    loops = scan_loops(statement)
    if len(loops) != 1:
        return statement
    step = loops[0]
    streams = _streams(step)
    if not streams:
        return statement
    room = _IN_FLIGHT // sum(stream.count for stream in streams)
    has_loops = any(is_long(each) for each in loops_in(step.body))
    # The body of a step with sums in it is long: one step is far enough ahead, and it is written once.
    n_steps = 1 if has_loops else 1 << (room.bit_length() - 1)
    for stream in streams:
        stream.buffer.shape = (index_const(n_steps), *stream.buffer.shape)
    result = replace_statement(statement, step, _prefetched(step, streams, n_steps))
    return allocate_around([stream.buffer for stream in reversed(streams)], result)


def _streams(step: For) -> list[_Stream]:
    written = stored_buffers(step)
    streams: list[_Stream] = []
    left = _IN_FLIGHT
    for store, path in paths_to(step.body):
        loops = [each for each in path if isinstance(each, For)]
        on_step = any(isinstance(each, If) and contains(each.condition, [step.axis]) for each in path)
        if on_step or any(is_long(loop) for loop in loops):
            continue
        count = math.prod(1 if loop.tag else constant_of(loop.extent) or 1 for loop in loops)
        for read in _always_read(store.value):
            is_stream = read.static[0] not in written and contains(read, [step.axis])
            is_plain = not any(node.op == "load" for index in read.args for node in [index, *index.args])
            known = any(key(each.read) == key(read) and each.path == path for each in streams)
            if is_stream and is_plain and not known and count <= left:
                left -= count
                shape = tuple(loop.extent for loop in loops)
                buffer = Buffer(f"{read.static[0].name}.ahead", shape, read.dtype)
                streams.append(_Stream(read, path, buffer, tuple(loop.axis for loop in loops), count))
    return streams


def _always_read(expr: Expr) -> list[Expr]:
    """The loads of an expression, without those that a select may leave out."""

    def always(node: Expr) -> tuple[Expr, ...]:
        return node.args[:1] if node.op in ("select", "and", "or") else outside_loads(node)

    return [node for node in walk(expr, always) if node.op == "load"]


def _prefetched(step: For, streams: list[_Stream], n_steps: int) -> Statement:
    size = index_const(n_steps)
    slot = Axis("ahead", size)
    tile = Axis(f"{step.axis.name}.outer", None, "scan")

    def refill(at: Expr, position: Expr) -> Statement:
        def one(stream: _Stream) -> Statement:
            read = substitute(stream.read, {step.axis: at})
            read = load(read.static[0], tuple(simplified(index) for index in read.args))
            return around(stream.path, Store(stream.buffer, (position, *stream.indices), read))

        return block_of(*(one(stream) for stream in streams))

    def if_any(at: Expr, body: Statement) -> Statement:
        return If(binary("lt", at, step.extent), body)

    current: Expr = slot if n_steps > 1 else index_const(0)
    by_key = {key(stream.read): stream for stream in streams}

    def changed(node: Expr, args: list[Expr]) -> Expr:
        if node.op == "load":
            stream = by_key.get(key(node))
            return node if stream is None else load(stream.buffer, (current, *stream.indices))
        return with_args(node, args)

    def change(expr: Expr) -> Expr:
        return fold(expr, changed, None, outside_loads)

    def exchanged(statement: Statement, path: tuple[Statement, ...]) -> Statement:
        if isinstance(statement, Store):
            by_key.clear()
            by_key.update({key(stream.read): stream for stream in streams if stream.path == path})
            return mapped(statement, change)
        inside = (*path, statement) if isinstance(statement, (For, If)) else path
        return with_inner(statement, lambda inner: exchanged(inner, inside))

    body = exchanged(step.body, ())
    zero, one_more = index_const(0), linear(binary("add", step.axis, index_const(1))).expr()
    if n_steps == 1:
        loop = For(step.axis, step.extent, block_of(body, if_any(one_more, refill(one_more, current))), step.marks)
        return block_of(if_any(zero, refill(zero, current)), loop)

    def tile_of(first: Expr) -> tuple[Statement, Expr, Expr]:
        """A step of a tile, its index, and the index of the step that is loaded in it."""
        now = binary("add", binary("mul", first, size), slot)
        later = linear(now).plus(linear(size)).expr()
        return mapped(body, lambda expr: _moved(expr, step.axis, now)), now, later

    unrolled = frozenset({"unrolled"})
    # Tiles before a whole one need no conditions; at most two others remain.
    n_whole = binary("floordiv", linear(binary("sub", step.extent, size)).expr(), size)
    whole, _, later = tile_of(tile)
    main = For(
        tile, binary("max", n_whole, zero), For(slot, size, block_of(whole, refill(later, current)), unrolled)
    )
    left = Axis(f"{step.axis.name}.left", None, "scan")
    last, now, later = tile_of(binary("add", binary("max", n_whole, zero), left))
    guarded = if_any(now, block_of(last, if_any(later, refill(later, current))))
    rest = For(left, index_const(2), For(slot, size, guarded, unrolled))
    return block_of(For(slot, size, if_any(slot, refill(slot, slot)), unrolled), main, rest)


def _moved(expr: Expr, axis: Axis, value: Expr) -> Expr:
    """An expression with an axis replaced, the indices of its loads in their linear form."""

    def moved(node: Expr, args: list[Expr]) -> Expr:
        operands = [simplified(arg) for arg in args] if node.op == "load" else args
        return Expr(node.op, tuple(operands), node.dtype, node.static, node.where) if args else node

    return fold(expr, moved, {id(axis): value})
