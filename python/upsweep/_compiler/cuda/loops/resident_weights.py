"""Weights of a scan's matrix products, kept on the processor from step to step.

    for (t) { ...  for (k) { for (row) { s[row] = s[row] + h[row, k] * W[g, k, j] } }  ... }

Where each thread (g, j) of a block has one such sum for each of its rows, a product's time is that of W, which
each step would read from the L2 cache at 64 bytes a clock. Instead threads load W before the first step, in chunks
of 16 terms: as many into registers as these have room for, the next ones into shared memory, the rest into global
memory. kernels/resident_weights.cuh has the product; `program` calls `keep_weights` after all other passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from upsweep._compiler.cuda.loops.binding import THREAD
from upsweep._compiler.cuda.loops.conflicts import same_extents
from upsweep._compiler.cuda.loops.kernel import CHUNK, Kernel, ResidentSum
from upsweep._compiler.cuda.loops.memory_scopes import Cut, Scope
from upsweep._compiler.loops.expressions import (
    FLOATS,
    ITEM_BYTES,
    Expr,
    atoms,
    constant_of,
    contains,
    has_loads,
    index_const,
)
from upsweep._compiler.loops.reductions import accumulated
from upsweep._compiler.loops.rewrite import allocate_around
from upsweep._compiler.loops.statements import (
    Buffer,
    For,
    If,
    Statement,
    Store,
    inner_statements,
    loads_of,
    stored_buffers,
)

# Registers of a thread beyond those of weights, elements and sums; those of a processor, and the most of a thread.
_OTHER_REGISTERS, _REGISTERS, _MAX_REGISTERS = 32, 65536, 255
_WARP = 32


def keep_weights(kernel: Kernel) -> None:
    """Find the kernel's sums whose weights its threads can keep, and allocate memory for these."""
    written = stored_buffers(kernel.statement)
    for loop, path in _loops_with_paths(kernel.statement, ()):
        if any(isinstance(each, For) and each.axis.kind == "scan" for each in path):
            resident = _resident_sum(loop, path, kernel, written)
            kernel.resident_sums += [] if resident is None else [resident]
    if kernel.resident_sums:
        _choose_places(kernel)


def _loops_with_paths(
    statement: Statement, path: tuple[Statement, ...]
) -> Iterator[tuple[For, tuple[Statement, ...]]]:
    """The loops of no thread axis, and the loops and conditions around each."""
    if isinstance(statement, For) and not statement.tag:
        yield statement, path
    inside = (*path, statement) if isinstance(statement, (For, If)) else path
    for inner in inner_statements(statement):
        yield from _loops_with_paths(inner, inside)


def _sum_of_rows(loop: For) -> tuple[Store, For | None, bool] | None:
    """The store of a sum's loop, the loop over rows inside it, and whether it has a condition on them."""
    store = accumulated(loop)
    if store is not None and loop.body is store:
        return store, None, False
    rows = loop.body
    if not isinstance(rows, For) or rows.tag or "unrolled" not in rows.marks or constant_of(rows.extent) is None:
        return None
    guard = rows.body if isinstance(rows.body, If) else None
    if guard is not None and contains(guard.condition, [loop.axis]):
        return None
    store = accumulated(For(loop.axis, loop.extent, rows.body if guard is None else guard.body))
    return None if store is None else (store, rows, guard is not None)


def _resident_sum(
    loop: For, path: tuple[Statement, ...], kernel: Kernel, written: set[Buffer]
) -> ResidentSum | None:
    shape = _sum_of_rows(loop)
    if shape is None or (constant_of(loop.extent) or 0) < CHUNK:
        return None
    store, rows, is_guarded = shape
    product = store.value.args[1]
    scope = kernel.scopes.get(store.buffer)
    is_sum = store.value.op == "add" and product.op == "mul" and store.buffer.dtype in FLOATS
    if not is_sum or scope is None or scope.level != "thread":
        return None
    tags = [each.tag for each in path if isinstance(each, For) and each.tag]
    threads = tuple(tag for tag in kernel.axes if tag in tags and tag.startswith(THREAD))
    n_threads = _count_first(threads, path, kernel)
    if not n_threads:
        return None
    lanes = {kernel.axes[tag] for tag in kernel.thread_extents}
    blocks = {axis for tag, axis in kernel.axes.items() if not tag.startswith(THREAD)}
    for left, right in (product.args, product.args[::-1]):
        known = {loop.axis, *blocks, *(kernel.axes[tag] for tag in threads)}
        axes = {atom for atom in atoms(right) if isinstance(atom, Expr) and atom.op == "axis"}
        is_weight = axes <= known and all(_is_constant(each, kernel, written) for each in loads_of(right))
        is_shared = not contains(left, lanes) and all(
            _is_of_block(each, kernel, is_guarded) for each in loads_of(left)
        )
        if is_weight and is_shared and has_loads(right) and loop.axis in atoms(left) & atoms(right):
            return ResidentSum(loop, store, rows, threads, n_threads, left, right)
    return None


def _count_first(threads: tuple[str, ...], path: tuple[Statement, ...], kernel: Kernel) -> int:
    """How many threads run what is inside of a path, if these are the block's first warps, all of them; else 0."""
    lanes = [kernel.axes[tag] for tag in kernel.thread_extents]
    for each in path:
        if isinstance(each, If) and (contains(each.condition, lanes) or has_loads(each.condition)):
            return 0
        is_part = (
            isinstance(each, For)
            and each.tag in threads
            and not same_extents(kernel.extents[each.tag], each.extent)
        )
        if is_part:
            return 0
    sizes = [constant_of(kernel.extents[tag][0]) for tag in threads]
    first = tuple(kernel.thread_extents)[: len(threads)]
    if not threads or None in sizes or first != threads:
        return 0
    count = math.prod(size for size in sizes if size is not None)
    return count if count % _WARP == 0 else 0


def _is_constant(load: Expr, kernel: Kernel, written: set[Buffer]) -> bool:
    """Whether an element has one value while the kernel runs, and an index that needs no other element."""
    buffer = load.static[0]
    return buffer not in written and buffer not in kernel.scopes and not any(map(has_loads, load.args))


def _is_of_block(load: Expr, kernel: Kernel, is_guarded: bool) -> bool:
    """Whether all threads may read an element, also in rows beyond the last one if there are."""
    scope = kernel.scopes.get(load.static[0])
    level = "grid" if scope is None else scope.level
    return level == "block" or (level == "grid" and not is_guarded)


def _choose_places(kernel: Kernel) -> None:
    """Assign chunks to registers, as far as there is room, and buffers to the others."""
    registers = min(_MAX_REGISTERS, _REGISTERS // kernel.max_threads() // 8 * 8) - _OTHER_REGISTERS
    registers -= sum(scope.words() for scope in kernel.scopes.values() if scope.level == "thread")
    registers -= max(each.n_rows * 4 * _words(each) for each in kernel.resident_sums)
    blocks = {axis for tag, axis in kernel.axes.items() if not tag.startswith(THREAD)}
    buffers = []
    for each in kernel.resident_sums:
        n_free = max(0, registers) // (CHUNK * _words(each))
        each.in_registers = min(each.n_chunks, n_free)
        registers -= each.in_registers * CHUNK * _words(each)
        size, name = index_const(CHUNK * each.n_threads), loads_of(each.right)[0].static[0].name
        for _ in range(each.n_chunks - each.in_registers):
            buffer = Buffer(f"{name}.resident", (size,), each.store.buffer.dtype)
            each.chunks.append(buffer)
            kernel.scopes[buffer] = Scope(
                buffer, "block", (Cut((), 1, size),), is_alike=not contains(each.right, blocks)
            )
        buffers += each.chunks
    kernel.statement = allocate_around(buffers, kernel.statement)


def _words(each: ResidentSum) -> int:
    return ITEM_BYTES[each.store.buffer.dtype] // 4
