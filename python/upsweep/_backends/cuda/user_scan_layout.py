"""The layout of the arrays of a user-defined scan on CUDA: the axes of the columns, and chunks of time.

Everything follows from shapes and strides alone, so results do not depend on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from upsweep._core.layout import merge_axes

# Columns times chunks that keep 32 KiB in flight in each processor of a large device; more would only be more to
# join.
CHUNKED_COLUMNS = 32_768
LEAST_CHUNK, WHOLE = 64, 32  # steps: shorter chunks are not worth it; chunks are multiples of 32


class ScanArrays(NamedTuple):
    """What a scan reads and writes, in scan order: arrays, or their layouts.

    An input is None if it is a constant of the recurrence. A state is a number or an array of the shape of the
    columns; a final state is None if it is not returned.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    states: Sequence[Any]
    finals: Sequence[Any]

    @property
    def operands(self) -> tuple[Any, ...]:
        """All of them, in the order in which a launch takes their addresses."""
        return (*self.inputs, *self.outputs, *self.states, *self.finals)


@dataclass(frozen=True)
class ColumnLayout:
    """The axes of the columns, from the outermost in memory to the innermost; contiguous axes are merged.

    `strides` are those of each array along these axes, in bytes.
    """

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    lines: bool  # steps of a column are closer in memory than neighbouring columns

    @property
    def n_columns(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Chunks:
    """The steps of a chunk, and the number of chunks; the last one may be shorter."""

    steps: int
    n: int


def column_layout(
    columns: tuple[int, ...], arrays: Sequence[tuple[int, ...]], time_stride: int, like: int
) -> ColumnLayout:
    """The layout of arrays of one shape `columns`, by their strides; the order is that of the array `like`."""
    reference = arrays[like] if arrays else (0,) * len(columns)
    axes = sorted((d for d, n in enumerate(columns) if n != 1), key=lambda d: (-abs(reference[d]), d))
    shape, merged = merge_axes([columns[d] for d in axes], [[strides[d] for d in axes] for strides in arrays])
    if not shape:
        return ColumnLayout((1,), ((0,),) * len(arrays), lines=True)
    innermost = abs(merged[like][-1]) if arrays else 0
    return ColumnLayout(tuple(shape), tuple(map(tuple, merged)), lines=0 < abs(time_stride) < innermost)


def cut_time(length: int, n_columns: int) -> Chunks:
    """As many chunks of time as fill the device, together with the columns."""
    n_chunks = max(1, CHUNKED_COLUMNS // max(n_columns, 1))
    steps = max(LEAST_CHUNK, -(-length // n_chunks))
    steps = -(-steps // WHOLE) * WHOLE
    return Chunks(steps, max(1, -(-length // steps)))
