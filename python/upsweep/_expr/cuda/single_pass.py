"""The sizes of scans of lines in one pass: how many steps a lane, a warp and a block take at a time.

They follow from dtypes and shapes alone, so that results do not depend on the device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from upsweep._expr.parallel_forms import Form

__all__ = [
    "GROUP_BITS",
    "Squares",
    "TileSizes",
    "carry_words",
    "choose_tile_sizes",
    "lay_out_squares",
    "n_powers",
    "workspace_bytes",
]

GROUP_BITS = 5  # 32 tiles a group, 32 groups a family: a warp reads the letters of one or the other at once
MOST_WORDS = 6  # of a carry; longer ones do not stay in registers

WARPS, FEW_WARPS = 8, 4  # of a block of threads
RUN_BYTES, SHORT_RUN_BYTES = 128, 64  # of a lane's inputs
LEAST_RUN, MOST_RUN = 8, 32  # steps
MOST_SHARED = 100 * 1024  # bytes of a block: two share a processor
# Long tiles, where there are so many of them: four blocks of them for each processor of a large device.
MANY_TILES = 528
# Of a processor; of a thread whose carries are of two words, and for each word more.
REGISTERS, SHARED_OF_PROCESSOR = 65_536, 220 * 1024
SPARE_REGISTERS, REGISTERS_OF_WORD = 48, 16


class TileSizes(NamedTuple):
    """Warps of a block of threads, steps of a lane's run, and blocks of a processor that registers are dealt to.

    A group has two to the power `group_bits` tiles, a family as many groups.
    """

    warps: int
    run: int
    blocks: int
    group_bits: int

    @property
    def steps(self) -> int:
        return 32 * self.warps * self.run

    @property
    def level(self) -> int:
        """The tile is two to this power runs."""
        return 4 + self.warps.bit_length()


class Squares(NamedTuple):
    """Where each stream's square begins in a warp's shared memory, how long its rows are, and all their bytes."""

    offsets: list[int]
    pitches: list[int]
    n_bytes: int


def lay_out_squares(inputs: Sequence[int], outputs: Sequence[int], steps: int, overlaid: bool) -> Squares:
    """The squares of 32 rows of so many steps, of streams with elements of these sizes.

    With `overlaid` an output takes the place of an input of its size, whose elements have been read before.
    """
    offsets: list[int] = []
    pitches: list[int] = []
    end = 0
    free = list(range(len(inputs))) if overlaid else []
    for place, size in enumerate((*inputs, *outputs)):
        # Lanes read at the same step of their rows: these begin at different banks.
        pitch = steps * size + max(size, 4)
        taken = next((n for n in free if place >= len(inputs) and inputs[n] == size), None)
        if taken is None:
            offsets.append(end)
            end += -(-32 * pitch // 16) * 16
        else:
            free.remove(taken)
            offsets.append(offsets[taken])
        pitches.append(pitch)
    return Squares(offsets, pitches, end)


def carry_words(form: Form, n_states: int) -> int:
    """The numbers of a carry that travels from tile to tile."""
    matrix = 0
    if form.varies:
        matrix = n_states * n_states if form.kind == "affine" else 1
    return matrix + n_states


def n_powers(tile: TileSizes) -> int:
    """How many powers of a run's matrix are needed: up to those of a family of tiles."""
    return tile.level + 2 * tile.group_bits


def workspace_bytes(tile: TileSizes, n_lines: int, n_tiles: int, n_words: int, n_states: int) -> int:
    """A counter, and the letters: a carry and a state of each tile, a carry of each group."""
    n_groups = -(-n_tiles // (1 << tile.group_bits))
    return 8 * (1 + n_lines * (n_tiles * (n_words + n_states) + n_groups * n_words))


def choose_tile_sizes(
    form: Form, n_states: int, inputs: Sequence[int], outputs: Sequence[int], n_lines: int, length: int
) -> TileSizes | None:
    """The sizes for streams with elements of so many bytes; None where one pass does not fit."""
    if carry_words(form, n_states) > MOST_WORDS or not inputs:
        return None
    for warps, n_bytes in ((WARPS, RUN_BYTES), (FEW_WARPS, SHORT_RUN_BYTES)):
        run = MOST_RUN
        while run * sum(inputs) > n_bytes and run > LEAST_RUN:
            run //= 2
        sizes = _dealt(TileSizes(warps, run, 1, GROUP_BITS), inputs, outputs, carry_words(form, n_states))
        if sizes is not None and (warps == FEW_WARPS or n_lines * (length // sizes.steps) >= MANY_TILES):
            return sizes
    return None


def _dealt(
    tile: TileSizes, inputs: Sequence[int], outputs: Sequence[int], n_words: int
) -> TileSizes | None:  # fmt: skip
    """The same with as many blocks as there is room for in a processor; None if a block is too large."""
    if "UPSWEEP_TILE" in os.environ:  # TRIAL
        warps, run, blocks = map(int, os.environ["UPSWEEP_TILE"].split(","))
        return TileSizes(warps, run, blocks, GROUP_BITS)
    shared = tile.warps * lay_out_squares(inputs, outputs, tile.run, overlaid=True).n_bytes
    if shared > MOST_SHARED:
        return None
    registers = SPARE_REGISTERS + REGISTERS_OF_WORD * max(n_words - 2, 0)
    by_registers = REGISTERS // (32 * tile.warps * registers)
    return tile._replace(blocks=max(1, min(by_registers, SHARED_OF_PROCESSOR // shared)))
