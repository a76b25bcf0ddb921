"""A kernel between the passes: its statement, its thread axes, and the memory scopes of its buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from upsweep._compiler.cuda.loops.binding import MAX_THREADS, THREAD
from upsweep._compiler.cuda.loops.memory_scopes import Scope
from upsweep._compiler.cuda.loops.split_kernels import HostLoop
from upsweep._compiler.loops.expression_text import expression_text
from upsweep._compiler.loops.expressions import Axis, Expr, constant_of
from upsweep._compiler.loops.statements import Buffer, Statement


@dataclass
class Kernel:
    """One kernel; `extents` are those of the loops of each thread axis, `loops` the host's around its launches."""

    name: str
    statement: Statement
    axes: dict[str, Axis]
    extents: dict[str, list[Expr]]
    scopes: dict[Buffer, Scope]
    loops: tuple[HostLoop, ...] = ()
    # In `Call.numbers`: of the addresses of buffers, of sizes, and of the extents of thread axes.
    positions: dict[Buffer | Expr | str, int] = field(default_factory=dict)

    def title(self) -> str:
        """The grid, as the first line of the kernel's text."""
        grid = [f"{tag} < {' or '.join(expression_text(e) for e in each)}" for tag, each in self.extents.items()]
        each = "".join(f", for {loop.index!r} < {expression_text(loop.extent)}" for loop in self.loops)
        return f"// {self.name}: {', '.join(grid) or 'one thread'}{each}"

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

    def check_threads(self, n_threads: int, name: str) -> None:
        """Raise where a block is too large, in a message that calls the function `name`."""
        if n_threads > MAX_THREADS:
            extents = self.thread_extents.items()
            axes = ", ".join(f"{tag} of {' or '.join(map(repr, each))}" for tag, each in extents)
            raise ValueError(f"{name}: a block has {MAX_THREADS} threads at most, got {n_threads}: {axes}")
