"""Launches of a program for known sizes: grids, shared memory, and the layout of a workspace.

Called by `Program.plan` once for each set of sizes. A buffer of a block's scope is in shared memory if that has
room, else in the workspace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upsweep._compiler.cuda.loops.binding import THREAD
from upsweep._compiler.cuda.loops.kernel import Kernel
from upsweep._compiler.loops.expressions import ITEM_BYTES
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


def _aligned(n_bytes: int, alignment: int = _ALIGNMENT) -> int:
    return -(-n_bytes // alignment) * alignment


class Plan:
    """The launches of a program for known sizes; ValueError for more threads or blocks than a device takes.

    `between` are the buffers that several kernels use, `size_names` the keys of `sizes` in order. A block may have
    `shared_limit` bytes of shared memory. Messages call the function `name`.
    """

    def __init__(
        self, name: str, kernels: Sequence[Kernel], between: Sequence[Buffer], sizes: Sizes,
        size_names: Sequence[str], shared_limit: int,
    ) -> None:  # fmt: skip
        self.launches: list[Launch] = []
        self.in_shared: frozenset[Buffer] = frozenset()
        self.workspace_bytes = 0
        # Those after the arrays' in `Call.numbers`; whether each is an offset in the workspace.
        self.numbers: list[tuple[int, bool]] = []
        for buffer in between:
            count = math.prod(evaluator(extent)(sizes) for extent in buffer.shape)
            self.numbers.append((self._allocate(count * ITEM_BYTES[buffer.dtype]), True))
        self.numbers += [(sizes[each], False) for each in size_names]
        self.numbers += [(0, False) for _ in {loop.index for kernel in kernels for loop in kernel.loops}]
        for kernel in kernels:
            self._add(name, kernel, sizes, shared_limit)

    def _allocate(self, n_bytes: int) -> int:
        """The offset of some more bytes in the workspace."""
        offset = self.workspace_bytes
        self.workspace_bytes += _aligned(n_bytes)
        return offset

    def _add(self, name: str, kernel: Kernel, sizes: Sizes, shared_limit: int) -> None:
        steps = {tag: max(evaluator(e)(sizes) for e in kernel.extents[tag]) for tag in kernel.axes}
        self.numbers += [(n, False) for n in steps.values()]
        n_blocks, n_threads = _grid(name, kernel, steps)
        shared = 0
        for buffer in kernel.in_memory():
            scope = kernel.scopes[buffer]
            n_bytes = ITEM_BYTES[buffer.dtype] * evaluator(scope.size())(sizes)
            n_bytes *= math.prod(steps[tag] for tag in scope.copies)
            is_of_block = scope.level == "block"
            if is_of_block and shared + _aligned(n_bytes, _SHARED_ALIGNMENT) <= shared_limit:
                self.in_shared |= {buffer}
                self.numbers.append((shared, False))
                shared += _aligned(n_bytes, _SHARED_ALIGNMENT)
            else:
                self.numbers.append((self._allocate(n_bytes * (n_blocks if is_of_block else 1)), True))
        if n_threads and n_blocks:
            loops = tuple((kernel.positions[e.index], evaluator(e.extent)(sizes)) for e in kernel.loops)
            self.launches.append(Launch(kernel.name, n_blocks, n_threads, shared, loops))


def _grid(name: str, kernel: Kernel, steps: Mapping[str, int]) -> tuple[int, int]:
    """The numbers of blocks and threads; raises where a device has no such grid."""
    n_threads = math.prod(n for tag, n in steps.items() if tag.startswith(THREAD))
    blocks = {tag: n for tag, n in steps.items() if not tag.startswith(THREAD)}
    n_blocks = math.prod(blocks.values())
    kernel.check_threads(n_threads, name)
    if n_blocks > _MAX_BLOCKS:
        axes = ", ".join(f"{tag} = {n}" for tag, n in blocks.items())
        raise ValueError(f"{name}: a grid has {_MAX_BLOCKS} blocks at most, got {n_blocks}: {axes}")
    return n_blocks, n_threads
