"""Memory scopes of a kernel's buffers: registers, shared memory or global memory.

A buffer has the scope of a thread if one thread alone accesses each element; a thread then has the part of the
buffer that it accesses. It has the scope of a block if one block accesses each element. Any other buffer is the
grid's. `program` and `keep_states` call `memory_scopes`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upsweep._compiler.cuda.loops.binding import THREAD
from upsweep._compiler.cuda.loops.conflicts import allocations, inside, steps_in
from upsweep._compiler.loops.accesses import Access, accesses_by_buffer
from upsweep._compiler.loops.expression_text import expression_text
from upsweep._compiler.loops.expressions import (
    ITEM_BYTES,
    Axis,
    Expr,
    binary,
    constant_of,
    constant_product,
    index_const,
)
from upsweep._compiler.loops.linear import Linear, linear
from upsweep._compiler.loops.statements import Buffer, Statement

# Elements of a thread in registers, and on its stack; larger buffers are in global memory.
_MAX_IN_REGISTERS = 64
_MAX_OF_THREAD = 2048


@dataclass(eq=False)
class Cut:
    """How an index becomes one of the part: (index - terms of thread axes) // divisor, in [0, extent)."""

    removed: tuple[str, ...]
    divisor: int
    extent: Expr


@dataclass(eq=False)
class Scope:
    """The memory of a buffer: a thread's, a block's or the grid's, and how it is indexed."""

    buffer: Buffer
    level: str  # thread, block, grid
    cuts: tuple[Cut, ...]
    copies: tuple[str, ...] = ()  # thread axes each step of which has its own, beyond the level's
    is_alike: bool = False  # all blocks have the same elements: one part for all where shared memory has no room

    def extents(self) -> tuple[Expr, ...]:
        """The sizes of the part that one thread, block or grid has, `copies` apart."""
        return tuple(cut.extent for cut in self.cuts)

    def count(self) -> int | None:
        """How many elements these are, if that is a constant."""
        return constant_product(self.extents())

    def words(self) -> int:
        """The words of 32 bits that these are, if that is a constant."""
        return (self.count() or 0) * max(1, ITEM_BYTES[self.buffer.dtype] // 4)

    def size(self) -> Expr:
        """The number of elements of that part."""
        return functools.reduce(functools.partial(binary, "mul"), self.extents(), index_const(1))

    def text(self) -> str:
        """The scope in the text of a nest."""
        if self.level == "thread":
            count = self.count() or 1
            return f"{'registers' if count <= _MAX_IN_REGISTERS else 'stack'}: {count} of each thread"
        if self.level == "block":
            sizes = " * ".join(expression_text(e, inside=True) for e in self.extents() if constant_of(e) != 1)
            return f"shared: {sizes or 1} of each block"
        return "global"

    def local(self, indices: Sequence[Expr], axes: Mapping[str, Axis]) -> tuple[Expr, ...]:
        """The indices of an element in that part."""
        local = []
        for index, cut in zip(indices, self.cuts):
            if not cut.removed and cut.divisor == 1:
                local.append(index)
                continue
            form = linear(index)
            for tag in cut.removed:
                form = form.without(axes[tag])
            local.append(form.over(cut.divisor).expr())
        return tuple(local)


def _cut(accesses: list[Access], d: int, axes: Mapping[str, Axis], extent: Expr) -> Cut:
    """The part of dimension d without the thread axes that have one coefficient in all accesses."""
    widths = {}
    for tag, axis in axes.items():
        coefficients = {access.forms[d].coefficient(axis) if tag in access.tags else 0 for access in accesses}
        if len(coefficients) == 1 and (width := coefficients.pop()) > 0:
            widths[tag] = width
    order = sorted(widths, key=lambda tag: -widths[tag])
    for removed in (order[:n] for n in range(len(order), 0, -1)):
        if all(_is_nested(access, d, removed, widths, axes) for access in accesses):
            return Cut(tuple(removed), 1, index_const(min(widths[tag] for tag in removed)))
    for tag in order:
        period = _period(accesses, d, axes[tag], widths[tag])
        if period:
            up = binary("floordiv", extent + (period - 1), index_const(period))
            return Cut((tag,), period, linear(up).expr())
    return Cut((), 1, extent)


def _is_nested(
    access: Access, d: int, removed: Sequence[str], widths: Mapping[str, int], axes: Mapping[str, Axis]
) -> bool:
    """Whether the rest after removing each axis is less than one step of that axis."""
    form = access.forms[d]
    for tag in removed:
        form = form.without(axes[tag])
        if not inside(form, Linear(widths[tag]), access.ranges, axes[tag]):
            return False
    return True


def _period(accesses: list[Access], d: int, axis: Axis, width: int) -> int:
    """The number of which an index without the thread's own is a multiple; 0 if there is none."""
    sizes = {constant_of(steps_in(access.ranges, axis).expr()) for access in accesses}
    size = sizes.pop()
    if width != 1 or sizes or size is None:
        return 0
    return size if all(access.forms[d].without(axis).is_multiple_of(size) for access in accesses) else 0


def memory_scopes(statement: Statement, axes: Mapping[str, Axis]) -> dict[Buffer, Scope]:
    """The scopes of all buffers that a kernel allocates."""
    accesses = accesses_by_buffer(statement)
    return {
        buffer: _scope(buffer, accesses.get(buffer, []), around, axes)
        for buffer, around in allocations(statement).items()
    }


def _scope(buffer: Buffer, accesses: list[Access], around: tuple[str, ...], axes: Mapping[str, Axis]) -> Scope:
    absent = {tag for tag in axes if all(tag not in access.tags for access in accesses)}
    blocks = {tag for tag in axes if not tag.startswith(THREAD)}
    for level, tags in (("thread", set(axes)), ("block", blocks)):
        some = {tag: axis for tag, axis in axes.items() if tag in tags}
        cuts = tuple(_cut(accesses, d, some, extent) for d, extent in enumerate(buffer.shape))
        private = absent | set(around) | {tag for cut in cuts for tag in cut.removed}
        scope = Scope(buffer, level, cuts, tuple(tag for tag in around if tag not in tags))
        if tags <= private and (level != "thread" or (scope.count() or _MAX_OF_THREAD + 1) <= _MAX_OF_THREAD):
            return scope
    return Scope(buffer, "grid", tuple(Cut((), 1, extent) for extent in buffer.shape), around)
