"""Launches of a program for known sizes: grids, shared memory, and the layout of a workspace.

Called by `Program.plan` once for each set of sizes. A buffer of a block's scope is in shared memory if that has
room, else in the workspace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from upsweep._compiler.cuda.loops.binding import THREAD
from upsweep._compiler.cuda.loops.kernel import Kernel
from upsweep._compiler.cuda.loops.memory_scopes import Scope
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


def shared_offsets(
    kernel: Kernel, n_bytes_of: Callable[[Scope], int], shared_limit: int
) -> tuple[dict[Buffer, int], int]:
    """The buffers of a block that shared memory has room for, with their offsets there; the bytes of all."""
    offsets: dict[Buffer, int] = {}
    total = 0
    for buffer in kernel.in_memory():
        scope = kernel.scopes[buffer]
        n_bytes = _aligned(n_bytes_of(scope), _SHARED_ALIGNMENT)
        if scope.level == "block" and total + n_bytes <= shared_limit:
            offsets[buffer] = total
            total += n_bytes
    return offsets, total


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

        def n_bytes_of(scope: Scope) -> int:
            n_elements = evaluator(scope.size())(sizes) * math.prod(steps[tag] for tag in scope.copies)
            return ITEM_BYTES[scope.buffer.dtype] * n_elements

        offsets, shared = shared_offsets(kernel, n_bytes_of, shared_limit)
        self.in_shared |= frozenset(offsets)
        for buffer in kernel.in_memory():
            if buffer in offsets:
                self.numbers.append((offsets[buffer], False))
                continue
            scope = kernel.scopes[buffer]
            n_parts = n_blocks if scope.level == "block" and not scope.is_alike else 1
            self.numbers.append((self._allocate(n_bytes_of(scope) * n_parts), True))
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
