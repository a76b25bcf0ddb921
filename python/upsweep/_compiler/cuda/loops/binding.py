"""Binding of a kernel's loops to blocks and threads.

A loop that the schedule bound has its thread axis; others get one by their marks: a parallel loop blockIdx, a
vector loop threadIdx, one that is both is split. A statement in no bound loop runs in one thread.

Loops that the schedule leaves open are bound as it bound others of their length, whole or split, so that a thread
computes the same elements of all stages. A block has as many threads as the product, over its axes, of their
longest loops: loops that are left open are bound to no more threads than the others leave of a block's maximum.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from upsweep._compiler.loops.expressions import Axis, Expr, binary, constant_of, index_const
from upsweep._compiler.loops.linear import linear, same
from upsweep._compiler.loops.rewrite import allocate_around, replaced, used_buffers, with_inner
from upsweep._compiler.loops.statements import (
    Block,
    Buffer,
    For,
    If,
    Statement,
    all_statements,
    inner_statements,
    loops_in,
)

THREAD = "threadIdx"
MAX_THREADS = 1024  # of a block
# Threads of a block whose columns are independent: small blocks are distributed evenly over the processors.
_THREADS_OF_COLUMNS = 64
# Threads along a loop whose length is not known, and those of a block with the loops around it.
_THREADS_OF_VECTOR, _MAX_OF_BLOCK = 128, 512
# Threads that may be bound along the first thread axis where others are bound too; the fewest for a second axis.
_VECTORS, _LEAST_BESIDE = tuple(MAX_THREADS >> n for n in range(1, 11)), 32
_DIMENSIONS = "xyzwvuts"  # the first one runs fastest
_VECTOR, _SECOND = f"{THREAD}.x", f"{THREAD}.y"  # what vector loops take, and short loops around them
_BLOCKS = tuple(f"blockIdx.{dimension}" for dimension in _DIMENSIONS)


def sunk(statement: Statement, buffers: list[Buffer]) -> Statement:
    """Each buffer's memory around the innermost statement that has all of its uses.

    A stage is computed there before it is read, in each step of the loops around it.
    """
    used = [buffer for buffer in buffers if buffer in used_buffers(statement)]
    inner = inner_statements(statement)
    own = used_buffers(If(statement.condition, Block([]))) if isinstance(statement, If) else set()
    sinking = [b for b in used if b not in own and sum(b in used_buffers(step) for step in inner) == 1]
    result = with_inner(statement, lambda step: sunk(step, sinking))
    return allocate_around([b for b in used if b not in sinking], result)


def _vector_loops(statement: Statement) -> list[For]:
    return [loop for loop in loops_in(statement) if "vectorized" in loop.marks]


class _Room(NamedTuple):
    """The thread axis of loops that the schedule leaves open, its most threads, whether a second is used."""

    tag: str
    most: int
    second: bool


class Binding:
    """A kernel's statement with one `Axis` for each thread axis; `scheduled` are those that the schedule binds.

    `widths` are the extents of the open loops of a scan that one block runs.
    """

    def __init__(
        self, statement: Statement, free: Collection[int], of_scan: bool, wide: bool, use_blocks: bool,
        room: _Room, bound: Mapping[str, list[Expr]],
    ) -> None:  # fmt: skip
        self.free, self.of_scan, self.wide, self.use_blocks = free, of_scan, wide, use_blocks
        self.room, self.bound = room, bound
        self.widths: list[Expr] = []
        self.axes: dict[str, Axis] = {}
        self.scheduled: set[str] = set()
        self.statement = self.walk(statement, ())
        self.axes = {tag: self.axes[tag] for tag in sorted(self.axes, key=lambda tag: _DIMENSIONS.find(tag[-1]))}

    def axis(self, tag: str) -> Axis:
        return self.axes.setdefault(tag, Axis(tag, None, "thread"))

    def walk(self, statement: Statement, outer_tags: tuple[str, ...]) -> Statement:
        if not isinstance(statement, For):
            return with_inner(statement, lambda inner: self.walk(inner, outer_tags))
        if statement.tag:
            if statement.tag == "vthread" or statement.tag in outer_tags:  # steps of one thread, in order
                axis = Axis(f"{statement.axis.name}.step", statement.extent)
                body = replaced(statement.body, {statement.axis: axis})
                return For(axis, statement.extent, self.walk(body, outer_tags))
            return self.tagged(statement, statement.tag, outer_tags)
        if id(statement.axis) in self.free and self.bound:
            tag = self.bound_alike(statement, outer_tags)
            if tag:
                return self.tagged(statement, tag, outer_tags)
            extents_of = self.split_alike(statement, outer_tags)
            if extents_of is not None:
                return self.split(statement, *extents_of, outer_tags)
        in_threads = any(tag.startswith(THREAD) for tag in outer_tags)
        in_blocks = any(not tag.startswith(THREAD) for tag in outer_tags)
        free_block = next((tag for tag in _BLOCKS if tag not in outer_tags), "")
        has_threads = any(loop.tag.startswith(THREAD) for loop in loops_in(statement.body))
        is_column = "vectorized" in statement.marks or not (has_threads or _vector_loops(statement.body))
        is_parallel = "parallel" in statement.marks and (self.use_blocks or id(statement.axis) not in self.free)
        if is_parallel and is_column and not in_threads and not in_blocks:
            return self.split(statement, self.few(_THREADS_OF_COLUMNS), _BLOCKS[0], self.room.tag, outer_tags)
        if is_parallel and not in_threads and free_block:
            return self.tagged(statement, free_block, outer_tags)
        if "vectorized" in statement.marks and self.room.tag not in outer_tags:
            if self.of_scan and not outer_tags and id(statement.axis) in self.free:
                self.widths.append(statement.extent)
                if self.wide and self.use_blocks:
                    return self.split(
                        statement, self.few(_THREADS_OF_COLUMNS), _BLOCKS[0], self.room.tag, outer_tags
                    )
            size = constant_of(statement.extent)
            if size is not None and size <= self.room.most:
                return self.tagged(statement, self.room.tag, outer_tags)
            return self.split(statement, self.few(_THREADS_OF_VECTOR), "", self.room.tag, outer_tags)
        if self.room.second and self.is_beside_a_vector(statement) and not in_threads:
            return self.tagged(statement, _SECOND, outer_tags)
        is_free = id(statement.axis) in self.free and not (self.of_scan or statement.marks)
        if is_free and in_blocks and free_block and _vector_loops(statement.body):
            return self.tagged(statement, free_block, outer_tags)
        return with_inner(statement, lambda inner: self.walk(inner, outer_tags))

    def few(self, n_threads: int) -> int:
        """At most so many threads, within the room."""
        return min(n_threads, self.room.most)

    def bound_alike(self, loop: For, outer_tags: tuple[str, ...]) -> str:
        """The thread axis that the schedule bound to loops of this length alone."""
        tags = [
            tag
            for tag, extents in self.bound.items()
            if tag not in outer_tags and all(same(extent, loop.extent) for extent in extents)
        ]
        # Neighbours in memory are neighbouring threads, where several axes are of one length.
        rank = sorted(tags, key=lambda tag: (not tag.startswith(THREAD), _DIMENSIONS.find(tag[-1])))
        return "" if not rank else rank[0 if "vectorized" in loop.marks else -1]

    def split_alike(self, loop: For, outer_tags: tuple[str, ...]) -> tuple[int, str, str] | None:
        """How the schedule split and bound loops of this length: (threads, axis of blocks, axis of threads)."""
        for thread, extents in self.bound.items():
            size = constant_of(extents[0])
            if not thread.startswith(THREAD) or thread in outer_tags or len(extents) > 1 or size is None:
                continue
            n_outer = binary("floordiv", loop.extent + (size - 1), index_const(size))
            for block, each in self.bound.items():
                if (
                    not block.startswith(THREAD)
                    and block not in outer_tags
                    and all(same(n, n_outer) for n in each)
                ):
                    return size, block, thread
        return None

    def is_beside_a_vector(self, loop: For) -> bool:
        """A short loop around a vector loop: its steps are threads too, if a block has room for them."""
        size, vectors = constant_of(loop.extent), _vector_loops(loop.body)
        if id(loop.axis) not in self.free or size is None or not vectors or loop.marks:
            return False
        widths = [constant_of(vector.extent) or _THREADS_OF_VECTOR for vector in vectors]
        return size * max(min(width, _MAX_OF_BLOCK) for width in widths) <= _MAX_OF_BLOCK

    def tagged(self, loop: For, tag: str, outer_tags: tuple[str, ...]) -> Statement:
        axis = self.axis(tag)
        if id(loop.axis) not in self.free:
            self.scheduled.add(tag)
        body = self.walk(replaced(loop.body, {loop.axis: axis}), (*outer_tags, tag))
        return For(axis, loop.extent, body, loop.marks & {"parallel", "vectorized"}, tag)

    def split(self, loop: For, factor: int, tag: str, thread: str, outer_tags: tuple[str, ...]) -> Statement:
        """The loop as an outer one, with this tag or in order, and `factor` threads."""
        size = constant_of(loop.extent)
        if size is not None and size <= factor:
            return self.tagged(
                For(loop.axis, loop.extent, loop.body, frozenset({"vectorized"})), thread, outer_tags
            )
        self.scheduled.add(tag)
        inner = self.axis(thread)
        outer = self.axis(tag) if tag else Axis(f"{loop.axis.name}.outer", None)
        n_outer = linear(binary("floordiv", loop.extent + (factor - 1), index_const(factor))).expr()
        index = binary("add", binary("mul", outer, index_const(factor)), inner)
        now = (*outer_tags, thread, *([tag] if tag else []))
        body: Statement = self.walk(replaced(loop.body, {loop.axis: index}), now)
        if not same(binary("mul", n_outer, index_const(factor)), loop.extent):
            body = If(binary("lt", index, loop.extent), body)
        body = For(inner, index_const(factor), body, frozenset({"vectorized"}), thread)
        return For(outer, n_outer, body, frozenset({"parallel"} if tag else set()), tag)


def _rooms(bound: Mapping[str, list[Expr]]) -> Iterator[_Room]:
    """The options besides the thread axes that the schedule bound, the best first.

    Next to an axis whose length the call tells there may be no room for another one. Its own is taken then: a
    block has room for so many steps of it. Next to two of them nothing is.
    """
    threads = {tag: extents for tag, extents in bound.items() if tag.startswith(THREAD)}
    unknown = [tag for tag, extents in threads.items() if any(constant_of(extent) is None for extent in extents)]
    if not unknown:
        yield from (_Room(_VECTOR, most, second=True) for most in _VECTORS if most >= _LEAST_BESIDE)
    tag = unknown[0] if unknown else _VECTOR
    yield from (_Room(tag, most, second=False) for most in _VECTORS if most == 1 or len(unknown) < 2)


def bind(
    statement: Statement, free: Collection[int], of_scan: bool, wide: bool, use_blocks: bool = True
) -> Binding:
    """A kernel with its thread axes; `free` are the ids of axes of stages that the schedule leaves open.

    A scan whose columns all need each other runs in one block, which has barriers; `wide` gives it several blocks.
    Without `use_blocks` no free loop is of several blocks, where these would need each other's values.
    """
    bound = {tag: each for tag, each in tag_extents(statement).items() if tag != "vthread"}
    for room in _rooms(bound):
        binding = Binding(statement, free, of_scan, wide, use_blocks, room, bound)
        if least_threads(tag_extents(binding.statement)) <= MAX_THREADS:
            break
    return binding


def least_threads(extents: Mapping[str, list[Expr]]) -> int:
    """The threads of a block where those axes have one step whose length is not known."""
    threads = (each for tag, each in extents.items() if tag.startswith(THREAD))
    return math.prod(max(constant_of(extent) or 1 for extent in each) for each in threads)


def tag_extents(statement: Statement) -> dict[str, list[Expr]]:
    """The extents of loops of each thread axis, those that differ."""
    extents_of: dict[str, list[Expr]] = {}
    for each in all_statements(statement):
        if isinstance(each, For) and each.tag:
            extents = extents_of.setdefault(each.tag, [])
            if not any(same(each.extent, extent) for extent in extents):
                extents.append(each.extent)
    return extents_of
