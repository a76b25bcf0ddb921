"""Tile sizes of single-pass scans of lines: the steps of a lane, a warp and a block.

A single pass reads each input once: tiles obtain the state before them by decoupled look-back, or, in waves, from
a warp of a persistent block. Sizes follow from dtypes and shapes; in waves, also from the number of processors.
`_backends.cuda.user_scan_launch` chooses the sizes and launches, `render` writes the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from upsweep._compiler.recurrences.associative import Monoid

EXTENDED_WORDS = 3  # of a step over all states, in kernels/all_states.cuh
GROUP_BITS = 5  # 32 tiles a group, 32 groups a family: a warp reads the states of all of them at once
MOST_WORDS = 6  # of a carry: longer ones do not fit in registers

WARPS, FEW_WARPS = 8, 4  # of a block of threads
RUN_BYTES, SHORT_RUN_BYTES = 128, 64  # of a lane's inputs
LEAST_RUN, MOST_RUN = 8, 32  # steps
MOST_SHARED = 96 * 1024  # bytes of a block: two share a processor
# From so many long tiles on, they are used: four blocks for each processor of a large device.
MANY_TILES = 528
FULL = 1.2  # at most: the steps that the tiles of a line have room for, relative to its steps
LANES = 32
LEAST_COPIED = 4  # bytes of an element that can be copied to shared memory asynchronously
DECLARED_SHARED = 4 * 1024  # at most, in kernels/scan_persistent.cuh
# Of a processor; of a thread with carries of two words, and for each further word.
REGISTERS, SHARED_OF_PROCESSOR = 65_536, 220 * 1024
SPARE_REGISTERS, REGISTERS_OF_WORD = 48, 16


class TileSizes(NamedTuple):
    """The warps of a block that scan, the steps of a run, and the blocks that share the registers of a processor.

    A run is the steps of one lane. Tiles with look-back form groups of ``2**group_bits``, and as many groups a
    family. In waves, the inputs of `stages` tiles are in shared memory, the aggregate of a tile is published
    `early` waves ahead, and a lane reads the aggregates of `lane_tiles` blocks.
    """

    warps: int
    run: int
    blocks: int = 1
    group_bits: int = 0
    stages: int = 0
    early: int = 0
    lane_tiles: int = 0

    @property
    def steps(self) -> int:
        return 32 * self.warps * self.run

    @property
    def level(self) -> int:
        """A tile has two to this power runs."""
        return 4 + self.warps.bit_length()

    @property
    def threads(self) -> int:
        """Threads of a block; in waves, one more warp computes the states before tiles."""
        return 32 * (self.warps + (self.stages > 0))


class Squares(NamedTuple):
    """The squares of the streams in the shared memory of a warp: their offsets, row pitches, and total bytes."""

    offsets: list[int]
    pitches: list[int]
    n_bytes: int


def lay_out_squares(inputs: Sequence[int], outputs: Sequence[int], steps: int, overlaid: bool) -> Squares:
    """Lay out squares of 32 rows of `steps` steps, for streams with elements of these sizes.

    With `overlaid`, an output shares the memory of an input of its size, whose elements are read first.
    """
    offsets: list[int] = []
    pitches: list[int] = []
    end = 0
    free = list(range(len(inputs))) if overlaid else []
    for place, size in enumerate((*inputs, *outputs)):
        # Lanes read the same step of their rows, so the rows begin at different banks.
        pitch = steps * size + max(size, 4)
        reused = next((n for n in free if place >= len(inputs) and inputs[n] == size), None)
        if reused is None:
            offsets.append(end)
            end += -(-32 * pitch // 16) * 16
        else:
            free.remove(reused)
            offsets.append(offsets[reused])
        pitches.append(pitch)
    return Squares(offsets, pitches, end)


def carry_words(form: Monoid, n_states: int) -> int:
    """The numbers of a carry, which is passed from tile to tile."""
    matrix = 0
    if form.varies:
        matrix = n_states * n_states if form.kind == "affine" else 1
    return matrix + n_states


def n_powers(tile: TileSizes) -> int:
    """How many powers of the matrix of a run are needed: up to a tile, then for groups of tiles."""
    return tile.level + (6 if tile.stages else 2 * tile.group_bits)


def shared_bytes(tile: TileSizes, warp_bytes: int, n_words: int) -> int:
    """Shared memory of a block: its inputs; in waves, also the aggregates of the runs before each thread's."""
    if not tile.stages:
        return tile.warps * warp_bytes
    return tile.stages * tile.warps * warp_bytes + (tile.early + 1) * n_words * 32 * tile.warps * 8


def workspace_bytes(
    tile: TileSizes, n_lines: int, n_tiles: int, n_words: int, n_states: int, n_waves: int, extends: bool
) -> int:  # fmt: skip
    """Global memory of a scan: a counter, a carry and a state of each tile, a carry of each group.

    In waves, a carry of each block in each wave, and a state of each tile. If it `extends` to all states, also a
    step over all states of each tile and group; in waves, of each tile in place of the state.
    """
    extended = EXTENDED_WORDS * extends
    if tile.stages:
        slots = 32 * tile.lane_tiles
        return 8 * (n_waves * slots * n_words + n_lines * n_tiles * (extended or n_states))
    n_groups = -(-n_tiles // (1 << tile.group_bits))
    of_tiles, of_groups = n_words + n_states + extended, n_words + extended
    return 8 * (1 + n_lines * (n_tiles * of_tiles + n_groups * of_groups))


def choose_tile_sizes(
    form: Monoid, n_states: int, inputs: Sequence[int], outputs: Sequence[int], n_lines: int, length: int,
    n_processors: int, most_shared: int,
) -> TileSizes | None:  # fmt: skip
    """Choose the sizes for streams with elements of these bytes; None if no single pass fits.

    `n_processors` and `most_shared`, the bytes of shared memory that a block can have, describe the device.
    """
    n_words = carry_words(form, n_states)
    if n_words > MOST_WORDS or not inputs:
        return None

    def sized(warps: int, run_bytes: int) -> tuple[TileSizes, int]:
        """Tiles, and the bytes of a warp's squares."""
        run = _fit_run(inputs, run_bytes)
        return TileSizes(warps, run), lay_out_squares(inputs, outputs, run, overlaid=True).n_bytes

    long, warp_bytes = sized(WARPS, RUN_BYTES)
    if n_lines * (length // long.steps) >= MANY_TILES:
        # Blocks proceed from wave to wave together: tiles that are mostly empty would delay the others.
        is_full = -(-length // long.steps) * long.steps <= FULL * length
        tile = None
        if is_full and min(inputs) >= LEAST_COPIED:
            tile = _in_waves(long, warp_bytes, n_words, n_processors, most_shared)
        tile = tile or _with_look_back(long, warp_bytes, n_words)
        if tile is not None:
            return tile
    return _with_look_back(*sized(FEW_WARPS, SHORT_RUN_BYTES), n_words)


def _fit_run(inputs: Sequence[int], n_bytes: int) -> int:
    run = MOST_RUN
    while run * sum(inputs) > n_bytes and run > LEAST_RUN:
        run //= 2
    return run


def _with_look_back(tile: TileSizes, warp_bytes: int, n_words: int) -> TileSizes | None:
    """Tiles with look-back, as many blocks as a processor has room for; None if a block is too large."""
    shared = tile.warps * warp_bytes
    if shared > MOST_SHARED:
        return None
    registers = SPARE_REGISTERS + REGISTERS_OF_WORD * max(n_words - 2, 0)
    by_registers = REGISTERS // (32 * tile.warps * registers)
    return tile._replace(blocks=max(1, min(by_registers, SHARED_OF_PROCESSOR // shared)), group_bits=GROUP_BITS)


def _in_waves(
    tile: TileSizes, warp_bytes: int, n_words: int, n_processors: int, most_shared: int
) -> TileSizes | None:
    """Tiles in waves, with asynchronous copies; None if a processor has too little shared memory."""
    for stages, early in ((6, 3), (5, 3), (4, 2)):
        waves = tile._replace(stages=stages, early=early, lane_tiles=-(-n_processors // LANES))
        if shared_bytes(waves, warp_bytes, n_words) <= most_shared - DECLARED_SHARED:
            return waves
    return None
