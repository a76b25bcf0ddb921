"""Where the values of a kernel's own buffers lie: in registers, in shared memory, in the device's memory.

A buffer each element of which is of one thread alone is that thread's own, of the part that is its own; one each
element of which is of one block is the block's. Everything else is the grid's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upsweep._compiler.cuda.loops.accesses import Access, accesses_of, allocations, constant, extent_in, inside
from upsweep._compiler.cuda.loops.binding import THREAD
from upsweep._compiler.loops.expressions import Axis, Expr, binary, const
from upsweep._compiler.loops.linear import Linear, linear
from upsweep._compiler.loops.statements import Buffer, Statement

__all__ = ["Place", "place_buffers"]

# Elements that a thread has in registers, or in memory that is as its own stack; more lies in the device's memory.
MOST_IN_REGISTERS = 64
_MOST_OF_THREAD = 2048


@dataclass(eq=False)
class _Cut:
    """What is left of an index: (index - terms of thread axes) // divisor, in [0, extent)."""

    removed: tuple[str, ...]
    divisor: int
    extent: Expr


@dataclass(eq=False)
class Place:
    """The memory of a buffer: a thread's, a block's or the grid's, and how it is indexed."""

    buffer: Buffer
    level: str  # thread, block, grid
    cuts: tuple[_Cut, ...]
    copies: tuple[str, ...] = ()  # thread axes each step of which has its own, beyond the level's

    def extents(self) -> tuple[Expr, ...]:
        """The sizes of what one thread, block or grid has, `copies` apart."""
        return tuple(cut.extent for cut in self.cuts)

    def count(self) -> int | None:
        """How many elements these are, if that is a constant."""
        total = 1
        for extent in self.extents():
            size = constant(extent)
            if size is None:
                return None
            total *= size
        return total

    def local(self, indices: Sequence[Expr], axes: Mapping[str, Axis]) -> tuple[Expr, ...]:
        """The indices of an element in it."""
        found = []
        for index, cut in zip(indices, self.cuts):
            if not cut.removed and cut.divisor == 1:
                found.append(index)
                continue
            form = linear(index)
            for tag in cut.removed:
                form = form.without(axes[tag])
            found.append(_divided(form, cut.divisor).expr())
        return tuple(found)


def _divided(form: Linear, divisor: int) -> Linear:
    if divisor == 1:
        return form
    terms = {name: (coefficient // divisor, atom) for name, (coefficient, atom) in form.terms.items()}
    return Linear(form.constant // divisor, terms)


def _cut(accesses: list[Access], d: int, axes: Mapping[str, Axis], extent: Expr) -> _Cut:
    """What can be taken out of dimension d: thread axes with one coefficient in all accesses."""
    widths = {}
    for tag, axis in axes.items():
        found = {access.forms[d].coefficient(axis) if tag in access.tags else 0 for access in accesses}
        if len(found) == 1 and (width := found.pop()) > 0:
            widths[tag] = width
    order = sorted(widths, key=lambda tag: -widths[tag])
    for taken in (order[:n] for n in range(len(order), 0, -1)):
        if all(_is_nested(access, d, taken, widths, axes) for access in accesses):
            return _Cut(tuple(taken), 1, const(min(widths[tag] for tag in taken), "int64"))
    for tag in order:
        period = _period(accesses, d, axes[tag], widths[tag])
        if period:
            up = binary("floordiv", extent + (period - 1), const(period, "int64"))
            return _Cut((tag,), period, linear(up).expr())
    return _Cut((), 1, extent)


def _is_nested(
    access: Access, d: int, taken: Sequence[str], widths: Mapping[str, int], axes: Mapping[str, Axis]
) -> bool:
    """Whether what is left after each axis is less than one step of it."""
    form = access.forms[d]
    for tag in taken:
        form = form.without(axes[tag])
        if not inside(form, Linear(widths[tag]), access.ranges, axes[tag]):
            return False
    return True


def _period(accesses: list[Access], d: int, axis: Axis, width: int) -> int:
    """The multiple that an index is of beside the thread's own; 0 if there is none."""
    sizes = {extent_in(access.ranges, axis) for access in accesses}
    size = sizes.pop()
    if width != 1 or sizes or size is None:
        return 0
    for access in accesses:
        form = access.forms[d].without(axis)
        if form.constant % size or any(coefficient % size for coefficient, _ in form.terms.values()):
            return 0
    return size


def place_buffers(statement: Statement, axes: Mapping[str, Axis]) -> dict[Buffer, Place]:
    """The places of all buffers that a kernel has for itself."""
    accesses: dict[Buffer, list[Access]] = {}
    for access in accesses_of(statement):
        accesses.setdefault(access.buffer, []).append(access)
    return {
        buffer: _place(buffer, accesses.get(buffer, []), around, axes)
        for buffer, around in allocations(statement).items()
    }


def _place(buffer: Buffer, accesses: list[Access], around: tuple[str, ...], axes: Mapping[str, Axis]) -> Place:
    absent = {tag for tag in axes if all(tag not in access.tags for access in accesses)}
    blocks = {tag for tag in axes if not tag.startswith(THREAD)}
    for level, wanted in (("thread", set(axes)), ("block", blocks)):
        some = {tag: axis for tag, axis in axes.items() if tag in wanted}
        cuts = tuple(_cut(accesses, d, some, extent) for d, extent in enumerate(buffer.shape))
        private = absent | set(around) | {tag for cut in cuts for tag in cut.removed}
        place = Place(buffer, level, cuts, tuple(tag for tag in around if tag not in wanted))
        if wanted <= private and (level != "thread" or (place.count() or _MOST_OF_THREAD + 1) <= _MOST_OF_THREAD):
            return place
    return Place(buffer, "grid", tuple(_Cut((), 1, extent) for extent in buffer.shape), around)
