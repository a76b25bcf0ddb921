"""A kernel between the passes: its statement, its thread axes, and the memory scopes of its buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from upsweep._compiler.cuda.loops.binding import MAX_THREADS, THREAD
from upsweep._compiler.cuda.loops.memory_scopes import Scope
from upsweep._compiler.cuda.loops.product_tiles import TiledProduct
from upsweep._compiler.cuda.loops.split_kernels import HostLoop
from upsweep._compiler.loops.expression_text import expression_text
from upsweep._compiler.loops.expressions import Axis, Expr, constant_of
from upsweep._compiler.loops.statements import Buffer, For, Statement, Store

CHUNK = 16  # terms of a sum whose weights are kept together


@dataclass(eq=False)
class ResidentSum:
    """A sum of products for each thread and row: the loop over its terms, and where the weights are.

    `loop` has `rows` inside, if there are several; `threads` are the thread axes with a sum for each step.
    """

    loop: For
    store: Store
    rows: For | None
    threads: tuple[str, ...]
    n_threads: int
    left: Expr
    right: Expr
    in_registers: int = 0  # chunks
    chunks: list[Buffer] = field(default_factory=list)  # those that shared memory may have

    @property
    def n_rows(self) -> int:
        return 1 if self.rows is None else constant_of(self.rows.extent) or 1

    @property
    def n_chunks(self) -> int:
        return (constant_of(self.loop.extent) or 0) // CHUNK


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
    product: TiledProduct | None = None  # what the statement is, where blocks compute tiles of it
    resident_sums: list[ResidentSum] = field(default_factory=list)

    def title(self) -> str:
        """The grid, as the first line of the kernel's text."""
        grid = [f"{tag} < {' or '.join(expression_text(e) for e in each)}" for tag, each in self.extents.items()]
        each = "".join(f", for {loop.index!r} < {expression_text(loop.extent)}" for loop in self.loops)
        tiles = "" if self.product is None else f", tiles of {self.product.side} x {self.product.side}"
        return f"// {self.name}: {', '.join(grid) or 'one thread'}{each}{tiles}"

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
