"""How the arrays of a scan by an update lie, and how its kernels go past them: axes, columns, chunks of time.

Everything here follows from shapes and strides alone, so that results do not depend on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Chunks", "Layout", "cut_time", "lay_out"]

# Columns times chunks, which keep 32 KiB on their way in each of a large device's processors; more of them would
# only be more to join. And the least that a chunk is worth.
CHUNKED_COLUMNS = 32_768
LEAST_CHUNK, WHOLE = 64, 32  # steps


@dataclass(frozen=True)
class Layout:
    """The axes of the columns, from the outermost in memory to the innermost; some are walked as one.

    `strides` are those of each array along them, in bytes.
    """

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    lines: bool  # a column's own steps are nearer than other columns

    @property
    def n_columns(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Chunks:
    """Steps of a chunk, and how many there are; the last one has what is left."""

    steps: int
    n: int


def lay_out(columns: tuple[int, ...], arrays: Sequence[tuple[int, ...]], time_stride: int, like: int) -> Layout:
    """The layout of arrays of one shape `columns`, by their strides; the order is that of the array `like`."""
    reference = arrays[like] if arrays else (0,) * len(columns)
    kept = sorted((d for d, n in enumerate(columns) if n != 1), key=lambda d: (-abs(reference[d]), d))
    shape: list[int] = []
    found: list[list[int]] = [[] for _ in arrays]
    for d in kept:
        steps = [strides[d] for strides in arrays]
        if shape and all(own[-1] == step * columns[d] for own, step in zip(found, steps)):
            shape[-1] *= columns[d]
            for own, step in zip(found, steps):
                own[-1] = step
        else:
            shape.append(columns[d])
            for own, step in zip(found, steps):
                own.append(step)
    if not shape:
        shape, found = [1], [[0] for _ in arrays]
        return Layout((1,), tuple(map(tuple, found)), lines=True)
    innermost = abs(found[like][-1]) if arrays else 0
    return Layout(tuple(shape), tuple(map(tuple, found)), lines=0 < abs(time_stride) < innermost)


def cut_time(length: int, n_columns: int) -> Chunks:
    """Chunks of time, so many that they fill the device together with the columns."""
    wanted = max(1, CHUNKED_COLUMNS // max(n_columns, 1))
    steps = max(LEAST_CHUNK, -(-length // wanted))
    steps = -(-steps // WHOLE) * WHOLE
    return Chunks(steps, max(1, -(-length // steps)))
