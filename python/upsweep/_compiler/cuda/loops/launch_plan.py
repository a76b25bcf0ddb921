"""Launches of a program for known sizes: grids, shared memory, and the layout of a workspace.

Called by `Program.plan` once for each set of sizes. A buffer of a block's scope is in shared memory if that has
room, else in the workspace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from upsweep._compiler.cuda.loops.binding import MAX_THREADS, THREAD
from upsweep._compiler.cuda.loops.kernel import Kernel, too_many_threads
from upsweep._compiler.loops.expressions import ITEM_BYTES, Expr
from upsweep._compiler.loops.sizes import Sizes, evaluator
from upsweep._compiler.loops.statements import Buffer

_MAX_BLOCKS = 2**31 - 1  # of a launch
_ALIGNMENT, _SHARED_ALIGNMENT = 256, 16  # bytes


@dataclass(frozen=True)
class Launch:
    """One kernel's grid for some sizes."""

    kernel: str
    n_blocks: int
    n_threads: int
    shared_bytes: int
    loops: tuple[tuple[int, int], ...] = ()  # of the host: each index's position in the numbers, and its steps


@dataclass(frozen=True)
class Plan:
    """The launches of a call with some sizes, and the numbers that go with them."""

    launches: tuple[Launch, ...]
    in_shared: frozenset[Buffer]
    sizes: tuple[int, ...]  # and room for the indices of the host's loops
    scratch: tuple[int, ...]  # offsets in the workspace of buffers between kernels
    rest: tuple[tuple[int, bool], ...]  # numbers after the sizes; whether each is an offset in the workspace
    workspace_bytes: int


def _aligned(n_bytes: int, alignment: int = _ALIGNMENT) -> int:
    return -(-n_bytes // alignment) * alignment


@dataclass
class _Planner:
    """The plan while kernels are added."""

    name: str
    sizes: Sizes
    shared_limit: int
    index_positions: Mapping[Expr, int]
    launches: list[Launch] = field(default_factory=list)
    rest: list[tuple[int, bool]] = field(default_factory=list)
    in_shared: list[Buffer] = field(default_factory=list)
    n_bytes: int = 0

    def allocate(self, n_bytes: int) -> int:
        """The offset of some more bytes in the workspace."""
        offset = self.n_bytes
        self.n_bytes += _aligned(n_bytes)
        return offset

    def grid(self, kernel: Kernel, steps: Mapping[str, int]) -> tuple[int, int]:
        """The numbers of blocks and threads; raises where a device has no such grid."""
        n_threads = math.prod(n for tag, n in steps.items() if tag.startswith(THREAD))
        blocks = {tag: n for tag, n in steps.items() if not tag.startswith(THREAD)}
        n_blocks = math.prod(blocks.values())
        if n_threads > MAX_THREADS:
            raise too_many_threads(self.name, n_threads, kernel.thread_extents)
        if n_blocks > _MAX_BLOCKS:
            axes = ", ".join(f"{tag} = {n}" for tag, n in blocks.items())
            raise ValueError(f"{self.name}: a grid has {_MAX_BLOCKS} blocks at most, got {n_blocks}: {axes}")
        return n_blocks, n_threads

    def add(self, kernel: Kernel) -> None:
        steps = {tag: max(evaluator(e)(self.sizes) for e in kernel.extents[tag]) for tag in kernel.axes}
        self.rest += [(steps[tag], False) for tag in kernel.axes]
        n_blocks, n_threads = self.grid(kernel, steps)
        shared = 0
        for buffer in kernel.in_memory():
            scope = kernel.scopes[buffer]
            n_bytes = ITEM_BYTES[buffer.dtype] * evaluator(scope.size())(self.sizes)
            n_bytes *= math.prod(steps[tag] for tag in scope.copies)
            is_of_block = scope.level == "block"
            if is_of_block and shared + _aligned(n_bytes, _SHARED_ALIGNMENT) <= self.shared_limit:
                self.in_shared.append(buffer)
                self.rest.append((shared, False))
                shared += _aligned(n_bytes, _SHARED_ALIGNMENT)
            else:
                self.rest.append((self.allocate(n_bytes * (n_blocks if is_of_block else 1)), True))
        if n_threads and n_blocks:
            loops = tuple((self.index_positions[e.index], evaluator(e.extent)(self.sizes)) for e in kernel.loops)
            self.launches.append(Launch(kernel.name, n_blocks, n_threads, shared, loops))


def plan_launches(
    name: str, kernels: Sequence[Kernel], between: Sequence[Buffer], index_positions: Mapping[Expr, int],
    sizes: Sizes, size_names: Sequence[str], shared_limit: int,
) -> Plan:  # fmt: skip
    """The launches for known sizes; ValueError for more threads or blocks than a device takes.

    `between` are the buffers that several kernels use, `index_positions` the positions of the indices of the
    host's loops in the numbers, `size_names` the keys of `sizes` in order. A block may have `shared_limit` bytes
    of shared memory. Messages call the function `name`.
    """
    planner = _Planner(name, sizes, shared_limit, index_positions)
    counts = [math.prod(evaluator(extent)(sizes) for extent in buffer.shape) for buffer in between]
    scratch = [planner.allocate(n * ITEM_BYTES[buffer.dtype]) for n, buffer in zip(counts, between)]
    for kernel in kernels:
        planner.add(kernel)
    return Plan(
        tuple(planner.launches), frozenset(planner.in_shared),
        (*(sizes[each] for each in size_names), *(0 for _ in index_positions)), tuple(scratch),
        tuple(planner.rest), planner.n_bytes,
    )  # fmt: skip
