"""Register tiling over rows: a block computes several rows of a matrix product, and loads a weight once for all.

    for (blockIdx.x, 0, B) { for (threadIdx.x) { c[b, j] = 0;  for (k) { c[b, j] += h[b, k] * W[k, j] } } }

becomes, with sums in registers,

    for (blockIdx.x, 0, B / R) { for (threadIdx.x) { s[*] = 0;  for (k) { for (row, 0, R) { s[row] += ... } } } }

A product's time is that of loading W, from the L2 cache at 64 bytes a clock and processor: R rows a block divide
it by R until the multiply-adds, one for each load of h from shared memory, take as long, at about 4 to 8.
"""

from __future__ import annotations

from collections.abc import Mapping

from upsweep._compiler.cuda.loops.binding import THREAD, tag_extents
from upsweep._compiler.cuda.loops.keep_states import scan_loops
from upsweep._compiler.loops.expressions import Axis, Expr, binary, constant_of, contains, index_const, load
from upsweep._compiler.loops.linear import linear, same
from upsweep._compiler.loops.reductions import accumulated, initialised_sum
from upsweep._compiler.loops.rewrite import allocate_around, block_of, replaced, with_inner
from upsweep._compiler.loops.statements import Block, Buffer, For, If, Statement, Store, loads_of, loops_in

_MAX_ROWS = 8
# Blocks that a device runs at the same time at least; fewer leave processors without work.
_BLOCKS = 128
# Rows a block of a product outside of scans, which usually has many; with fewer than so many rows it is not tiled.
_OF_STAGES, _FEW = 4, 64


def choose_rows(statement: Statement, axis: Axis) -> int:
    """How many steps of a thread axis of blocks one block computes; 1 where they share no loads."""
    loops = [each for each in loops_in(statement) if each.axis is axis]
    sums = [each for each in loops_in(statement) if _shares(each, axis)]
    if not sums or not all(same(loop.extent, loops[0].extent) for loop in loops):
        return 1
    size = constant_of(loops[0].extent)
    if not scan_loops(statement):
        return _OF_STAGES if size is None or size >= _FEW else 1
    rows = 1
    while size is not None and rows < _MAX_ROWS and size >= 2 * rows * _BLOCKS:
        rows *= 2
    return rows


def _shares(loop: For, axis: Axis) -> bool:
    """Whether a sum has loads in its steps that all rows share, and others."""
    store = accumulated(loop)
    if store is None or loop.tag:
        return False
    loads = loads_of(store.value.args[1])
    both = [contains(each, [axis]) for each in loads if contains(each, [loop.axis])]
    return True in both and False in both


def tile_rows(statement: Statement, axis: Axis, n_rows: int, axes: Mapping[str, Axis]) -> Statement:
    """The kernel with `n_rows` steps of a thread axis of blocks in each of its blocks.

    Where a statement is in no loop over one of the `axes` of threads, the steps of that axis share its rows.
    """
    sums: list[Buffer] = []
    threads = {tag: each for tag, each in axes.items() if tag.startswith(THREAD)}
    extents_of = tag_extents(statement)
    # Thread axes each step of which may have as many of the rows.
    spare = [
        For(each, extents_of[tag][0], Block([]), tag=tag)
        for tag, each in threads.items()
        if len(extents_of[tag]) == 1 and n_rows % (constant_of(extents_of[tag][0]) or n_rows + 1) == 0
    ]

    def change(each: Statement) -> Statement:
        if isinstance(each, For) and each.axis is axis:
            return _tiled(each, n_rows, sums, spare)
        return with_inner(each, change)

    result = change(statement)
    return allocate_around(sums[::-1], result)


def _tiled(loop: For, n_rows: int, sums: list[Buffer], spare: list[For]) -> Statement:
    row, size = Axis("row", index_const(n_rows)), index_const(n_rows)
    index = linear(binary("add", binary("mul", loop.axis, size), row)).expr()
    n_blocks = linear(binary("floordiv", loop.extent + (n_rows - 1), size)).expr()
    is_whole = same(binary("mul", n_blocks, size), loop.extent)

    def at_row(body: Statement, at: Expr) -> Statement:
        inner = replaced(body, {loop.axis: at})
        return inner if is_whole else If(binary("lt", at, loop.extent), inner)

    def each_row(body: Statement) -> Statement:
        return For(row, size, at_row(body, index), frozenset({"unrolled"}))

    def shared_rows(body: Statement, threads: tuple[For, ...]) -> Statement:
        """All rows of a statement, by the threads of an axis that it does not use if there is one."""
        used = {each.tag for each in (*threads, *loops_in(body))}
        others = [each for each in spare if each.tag not in used]
        if not others:
            return each_row(body)
        (other,) = others[:1]
        count = index_const(n_rows // (constant_of(other.extent) or 1))
        own = Axis("row", count)
        at = linear(index).without(row).plus(linear(binary("mul", other.axis, count))).plus(linear(own)).expr()
        rows = For(own, count, at_row(body, at), frozenset({"unrolled"}))
        return For(other.axis, other.extent, rows, tag=other.tag)

    def spread(body: Statement, threads: tuple[For, ...]) -> Statement:
        if isinstance(body, For) and body.tag:
            return For(body.axis, body.extent, spread(body.body, (*threads, body)), body.marks, body.tag)
        accumulation = initialised_sum(body)
        if accumulation is None or not _shares(accumulation[1], loop.axis):
            return shared_rows(body, threads)
        return summed(*accumulation, threads)

    def summed(start: Store, total: For, threads: tuple[For, ...]) -> Statement:
        """A sum of each row, the rows inside of its steps."""
        axes = (loop.axis, *(each.axis for each in threads))
        shape = (n_blocks, *(each.extent for each in threads), size)
        buffer = Buffer(f"{start.buffer.name}.sum", shape, start.buffer.dtype)
        sums.append(buffer)
        # `each_row` replaces the loop's axis by rows, so that another axis stands for blocks until then.
        block = Axis(loop.axis.name, None, "thread")
        indices = (block, *axes[1:], row)

        def to_blocks(body: Statement) -> Statement:
            return replaced(each_row(body), {block: loop.axis})

        def step(statement: Statement) -> Statement:
            if isinstance(statement, For):
                return For(statement.axis, statement.extent, step(statement.body), statement.marks)
            return to_blocks(_into_sum(statement, buffer, indices))

        first = to_blocks(Store(buffer, indices, start.value))
        last = to_blocks(Store(start.buffer, start.indices, load(buffer, indices)))
        return block_of(first, step(total), last)

    return For(loop.axis, n_blocks, spread(loop.body, ()), loop.marks, loop.tag)


def _into_sum(statement: Statement, buffer: Buffer, indices: tuple[Expr, ...]) -> Statement:
    """A statement whose store accumulates into a sum's own element instead."""
    if isinstance(statement, Store):
        value = statement.value
        new = Expr(value.op, (load(buffer, indices), value.args[1]), value.dtype)
        return Store(buffer, indices, new)
    return with_inner(statement, lambda inner: _into_sum(inner, buffer, indices))
