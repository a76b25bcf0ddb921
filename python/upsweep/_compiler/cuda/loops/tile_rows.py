"""Several rows for a block where they share what they sum: a weight is loaded once for all of them.

    for (blockIdx.x, 0, B) { for (threadIdx.x) { c[b, j] = 0;  for (k) { c[b, j] += h[b, k] * W[k, j] } } }

becomes, with sums in registers,

    for (blockIdx.x, 0, B / R) { for (threadIdx.x) { s[*] = 0;  for (k) { for (row, 0, R) { s[row] += ... } } } }

A product's time is that of loading W, from the L2 cache at 64 bytes a clock and processor: R rows a block divide
it by R until the multiply-adds, one for each load of h from shared memory, take as long, at about 4 to 8.
"""

from __future__ import annotations

from collections.abc import Callable

from upsweep._compiler.cuda.loops.accesses import constant
from upsweep._compiler.cuda.loops.keep_states import is_scan
from upsweep._compiler.cuda.loops.rewrite import block_of, replaced, with_inner
from upsweep._compiler.llvm.loops.matmul import accumulated, continues
from upsweep._compiler.loops.expressions import Axis, Expr, binary, const, contains, load
from upsweep._compiler.loops.linear import linear, same
from upsweep._compiler.loops.statements import (
    Allocate,
    Block,
    Buffer,
    For,
    If,
    Statement,
    Store,
    all_statements,
    loads_of,
)

__all__ = ["choose_rows", "in_rows"]

_MOST = 8
# Blocks that a device runs at the same time at least; fewer leave processors without work.
_BLOCKS = 128
# Rows of a product beside scans, where there are usually many; and how many of them are too few to cut.
_OF_STAGES, _FEW = 4, 64


def choose_rows(statement: Statement, axis: Axis) -> int:
    """How many steps of a thread axis of blocks one block takes; 1 where they share nothing."""
    loops = [each for each in all_statements(statement) if isinstance(each, For) and each.axis is axis]
    sums = [each for each in all_statements(statement) if isinstance(each, For) and _shares(each, axis)]
    if not sums or not all(same(loop.extent, loops[0].extent) for loop in loops):
        return 1
    size = constant(loops[0].extent)
    if not any(is_scan(each) for each in all_statements(statement)):
        return _OF_STAGES if size is None or size >= _FEW else 1
    rows = 1
    while size is not None and rows < _MOST and size >= 2 * rows * _BLOCKS:
        rows *= 2
    return rows


def _shares(loop: For, axis: Axis) -> bool:
    """Whether a sum reads something in each of its steps that all rows share, and something else."""
    store = accumulated(loop)
    if store is None or loop.tag:
        return False
    loads = loads_of(store.value.args[1])
    both = [contains(each, [axis]) for each in loads if contains(each, [loop.axis])]
    return True in both and False in both


def in_rows(statement: Statement, axis: Axis, n_rows: int) -> Statement:
    """The kernel with `n_rows` steps of a thread axis of blocks in each of its blocks."""
    sums: list[Buffer] = []

    def change(each: Statement) -> Statement:
        if isinstance(each, For) and each.axis is axis:
            return _cut(each, n_rows, sums)
        return with_inner(each, change)

    result = change(statement)
    for buffer in sums:
        result = Allocate(buffer, result)
    return result


def _cut(loop: For, n_rows: int, sums: list[Buffer]) -> Statement:
    row, size = Axis("row", const(n_rows, "int64")), const(n_rows, "int64")
    index = linear(binary("add", binary("mul", loop.axis, size), row)).expr()
    n_blocks = linear(binary("floordiv", loop.extent + (n_rows - 1), size)).expr()
    is_whole = same(binary("mul", n_blocks, size), loop.extent)
    guard = None if is_whole else binary("lt", index, loop.extent)

    def each_row(body: Statement) -> Statement:
        inner = replaced(body, {loop.axis: index})
        return For(row, size, inner if guard is None else If(guard, inner), frozenset({"unrolled"}))

    def spread(body: Statement, threads: tuple[For, ...]) -> Statement:
        if isinstance(body, For) and body.tag:
            return For(body.axis, body.extent, spread(body.body, (*threads, body)), body.marks, body.tag)
        if isinstance(body, Block) and len(body.steps) == 2:
            start, total = body.steps
            is_sum = isinstance(start, Store) and isinstance(total, For) and continues(start, total)
            if isinstance(start, Store) and isinstance(total, For) and is_sum and _shares(total, loop.axis):
                return _summed(start, total, each_row, threads, loop, row, n_rows, n_blocks, sums)
        return each_row(body)

    return For(loop.axis, n_blocks, spread(loop.body, ()), loop.marks, loop.tag)


def _summed(
    start: Store, total: For, each_row: Callable[[Statement], Statement], threads: tuple[For, ...], loop: For,
    row: Axis, n_rows: int, n_blocks: Expr, sums: list[Buffer],
) -> Statement:  # fmt: skip
    """A sum of each row, the rows inside of its steps."""
    axes = (loop.axis, *(each.axis for each in threads))
    shape = (n_blocks, *(each.extent for each in threads), const(n_rows, "int64"))
    buffer = Buffer(f"{start.buffer.name}.sum", shape, start.buffer.dtype)
    sums.append(buffer)
    # `each_row` puts rows into the place of the loop's axis, so that this one stands for blocks by another name.
    block = Axis(loop.axis.name, None, "thread")
    renamed = (block, *axes[1:], row)

    def to_blocks(body: Statement) -> Statement:
        return replaced(body, {block: loop.axis})

    def step(statement: Statement) -> Statement:
        if isinstance(statement, For):
            inner = step(statement.body)
            return For(statement.axis, statement.extent, inner, statement.marks)
        return to_blocks(each_row(_into_sum(statement, buffer, renamed)))

    first = to_blocks(each_row(Store(buffer, renamed, start.value)))
    last = to_blocks(each_row(Store(start.buffer, start.indices, load(buffer, renamed))))
    return block_of(first, step(total), last)


def _into_sum(statement: Statement, buffer: Buffer, places: tuple[Expr, ...]) -> Statement:
    """An accumulating store, with what is around it, on a sum's own element."""
    if isinstance(statement, Store):
        value = statement.value
        new = Expr(value.op, (load(buffer, places), value.args[1]), value.dtype)
        return Store(buffer, places, new)
    return with_inner(statement, lambda inner: _into_sum(inner, buffer, places))
