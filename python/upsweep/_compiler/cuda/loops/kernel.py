"""A kernel between the passes: its statement, its thread axes, and the memory scopes of its buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from upsweep._compiler.cuda.loops.binding import MAX_THREADS, THREAD
from upsweep._compiler.cuda.loops.memory_scopes import MAX_IN_REGISTERS, Scope
from upsweep._compiler.cuda.loops.split_kernels import HostLoop
from upsweep._compiler.loops.expression_text import expression_text
from upsweep._compiler.loops.expressions import Axis, Expr, constant_of
from upsweep._compiler.loops.rewrite import rewritten
from upsweep._compiler.loops.statements import Allocate, Buffer, Statement


@dataclass
class Kernel:
    """One kernel; `extents` are those of the loops of each thread axis, `loops` the host's around its launches."""

    name: str
    statement: Statement
    axes: dict[str, Axis]
    extents: dict[str, list[Expr]]
    scopes: dict[Buffer, Scope]
    loops: tuple[HostLoop, ...] = ()

    def title(self) -> str:
        """The grid, as the first line of the kernel's text."""
        grid = [f"{tag} < {' or '.join(expression_text(e) for e in each)}" for tag, each in self.extents.items()]
        each = "".join(f", for {loop.index!r} < {expression_text(loop.extent)}" for loop in self.loops)
        return f"// {self.name}: {', '.join(grid) or 'one thread'}{each}"

    def annotate_scopes(self) -> None:
        """Note the memory scope of each buffer for the kernel's text."""

        def annotate(each: Statement) -> Statement:
            if isinstance(each, Allocate):
                each.buffer.scope = _scope_text(self.scopes[each.buffer])
            return each

        self.statement = rewritten(self.statement, annotate)

    @property
    def thread_extents(self) -> dict[str, list[Expr]]:
        """The extents of the axes of a block."""
        return {tag: self.extents[tag] for tag in self.axes if tag.startswith(THREAD)}

    def in_memory(self) -> list[Buffer]:
        """The buffers in shared or global memory."""
        return [buffer for buffer, scope in self.scopes.items() if scope.level != "thread"]

    def max_threads(self) -> int:
        """The bound of a block's threads, by which the compiler assigns registers."""
        sizes = [[constant_of(extent) for extent in extents] for extents in self.thread_extents.values()]
        if any(size is None for each in sizes for size in each):
            return MAX_THREADS
        return math.prod(max(size for size in each if size is not None) for each in sizes)


def _scope_text(scope: Scope) -> str:
    if scope.level == "thread":
        count = scope.count() or 1
        return f"{'registers' if count <= MAX_IN_REGISTERS else 'stack'}: {count} of each thread"
    if scope.level == "block":
        sizes = " * ".join(expression_text(e, inside=True) for e in scope.extents() if constant_of(e) != 1)
        return f"shared: {sizes or 1} of each block"
    return "global"


def too_many_threads(name: str, n_threads: int, extents: Mapping[str, list[Expr]]) -> ValueError:
    """The error for a block that is too large."""
    axes = ", ".join(f"{tag} of {' or '.join(map(repr, each))}" for tag, each in extents.items())
    return ValueError(f"{name}: a block has {MAX_THREADS} threads at most, got {n_threads}: {axes}")


@dataclass
class Layout:
    """Positions in `Call.numbers`, as one kernel needs them."""

    buffers: dict[Buffer, int]  # of an address; strides follow
    between: dict[Buffer, int]  # of the address of a buffer between kernels: no strides follow
    sizes: dict[Expr, int]
    tags: dict[str, int] = field(default_factory=dict)  # of the extents of thread axes
    memory: dict[Buffer, int] = field(default_factory=dict)  # of addresses or offsets in shared memory
