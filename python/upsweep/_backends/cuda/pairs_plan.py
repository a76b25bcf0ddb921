"""Work distribution of a reduction over pairs: tiles of rows, whose columns are split into items if rows are few.

A plan depends on sizes and on the device's number of processors only, so that results have the same bits on every
run. It is computed on the host, once for each set of sizes or ranges.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

WARP = 32
PARTIAL_BYTES = 1 << 26  # about the most memory for the partial results of a call
PARTS = 4096  # at most, of the columns of a tile
WAVES = 6  # of items of block-sparse work: uneven items then end at nearly the same time
LEAST_WAVE = 0.5  # the time of a wave with few items, relative to a full one
RAGGED = 0.15  # the wait for the last items, relative to an item's time, since some processors are faster
LEAST_COLUMNS = 512  # of an item: starting and combining a shorter one costs more than the balance gains
# The cost of a pair by the rows of a thread, relative to 8 rows: loads of a column, and latencies that warps hide.
ROW_COSTS = {1: 1.3, 2: 1.15, 4: 1.03, 8: 1.0}


class Ranges(Protocol):
    """Blocks of rows and their ranges of columns, as `pairs.block_intervals.BlockIntervals` has them."""

    @property
    def blocks(self) -> Integers: ...
    @property
    def slices(self) -> Integers: ...
    @property
    def columns(self) -> Integers: ...


class WorkPlan(NamedTuple):
    """Items of work, the ranges of columns that each processes, and the tiles of rows that they belong to."""

    items: Integers  # (n, 4): first row, end of rows, first piece, end of pieces
    pieces: Integers  # (n, 2): first column, end of columns
    tiles: Integers  # (n, 4): first row, end of rows, first item, end of items
    is_split: bool  # whether a tile has several items


@lru_cache(1024)
def split_columns(
    n_rows: int, n_columns: int, n_batch: int, tile: int, block: int, partial_bytes: int, n_slots: int,
    n_processors: int, overhead: float,
) -> int:  # fmt: skip
    """Return the number of parts that the columns of every tile are split into.

    The device runs `n_slots` items at a time; starting one costs as much as `overhead` blocks of columns.
    """
    n_tiles = -(-n_rows // tile) * n_batch
    n_blocks = -(-n_columns // block)
    max_parts = max(1, PARTIAL_BYTES // max(1, n_tiles * tile * partial_bytes))
    max_parts = min(n_blocks, PARTS, max(max_parts, -(-n_slots // max(n_tiles, 1))))
    if max_parts <= 1:
        return 1
    parts = np.arange(1, max_parts + 1)
    waves, rest = np.divmod(n_tiles * parts, n_slots)
    # The last wave takes as long as its busiest processor, which is not at full speed with few warps.
    share = -(-rest // n_processors) * n_processors / n_slots
    waves = waves + np.where(rest > 0, np.clip(share, LEAST_WAVE, 1), 0)
    return int(parts[np.argmin((waves + RAGGED) * (-(-n_blocks // parts) + overhead))])


def fitting_rows(ranges: Ranges) -> int:
    """Return the rows of a thread that leave few lanes idle in blocks of these sizes."""
    sizes = np.diff(ranges.blocks)[:, 0]
    if not sizes.sum():
        return 1

    def cost(rows: int) -> float:
        warp = WARP * rows
        return float((-(-sizes // warp) * warp).sum()) * ROW_COSTS[rows]

    return min(ROW_COSTS, key=cost)


def plan_ranges(ranges: Ranges, n_rows: int, tile: int, n_slots: int) -> WorkPlan:
    """Plan blocks of rows that are each paired with ranges of columns; rows of no block have an empty item."""
    order = np.argsort(ranges.blocks[:, 0], kind="stable")
    counts = np.diff(ranges.slices, prepend=0)
    # Sorted by columns, so that of equal values the first one wins.
    columns = ranges.columns
    owner = np.repeat(np.arange(len(counts)), counts)
    if ((np.diff(columns[:, 0]) < 0) & (np.diff(owner) == 0)).any():
        columns = columns[np.lexsort((columns[:, 0], owner))]
    widths = np.diff(columns)[:, 0]
    ends = np.concatenate([[0], np.cumsum(widths)])  # of the ranges, concatenated
    first = ends[ranges.slices - counts]
    n_columns = ends[ranges.slices] - first
    heights = np.diff(ranges.blocks)[:, 0]

    # An item has about as many columns as make WAVES waves of items.
    n_tiles = -(-heights // tile)
    total = int((-(-heights // WARP) * n_columns).sum()) // max(1, tile // WARP)
    target = max(LEAST_COLUMNS, total // max(1, n_slots * WAVES))
    n_items = np.maximum(1, np.rint(n_columns / target).astype(np.int64))

    cuts = _cuts(first, n_columns, n_items)
    bounds = np.sort(np.concatenate([ends[:-1][widths > 0], cuts]), kind="stable")  # of sorted parts: a merge
    bounds = bounds[(np.diff(bounds, prepend=-1) > 0) & (bounds < ends[-1])]
    source = np.searchsorted(ends, bounds, side="right") - 1  # the range that a piece is of
    begins = columns[source, 0] + bounds - ends[source]
    pieces = np.stack([begins, begins + np.diff(np.append(bounds, ends[-1]))], axis=1)

    gaps = _gaps(ranges.blocks[order], n_rows)
    tiles, items = _tiles(ranges.blocks, n_tiles, tile, gaps, n_items)
    block, part = items[:, 2], items[:, 3]
    known = block >= 0
    begin, end = np.zeros(len(items), np.int64), np.zeros(len(items), np.int64)
    b, m = block[known], part[known]
    begin[known] = np.searchsorted(bounds, first[b] + m * n_columns[b] // n_items[b])
    end[known] = np.searchsorted(bounds, first[b] + (m + 1) * n_columns[b] // n_items[b])
    return WorkPlan(
        np.ascontiguousarray(np.stack([items[:, 0], items[:, 1], begin, end], axis=1)),
        np.ascontiguousarray(pieces), tiles, bool((n_items > 1).any()),
    )  # fmt: skip


def _cuts(first: Integers, n_columns: Integers, n_items: Integers) -> Integers:
    """Return where the items of all blocks begin and end, in columns of the concatenated ranges."""
    block = np.repeat(np.arange(len(n_items)), n_items)
    part = np.arange(len(block)) - np.repeat(np.cumsum(n_items) - n_items, n_items)
    begins: Integers = first[block] + part * n_columns[block] // n_items[block]
    return np.concatenate([begins, first + n_columns])


def _gaps(blocks: Integers, n_rows: int) -> Integers:
    """Return the rows of no block, as (n, 2)."""
    ends = np.concatenate([[0], np.maximum.accumulate(blocks[:, 1])])
    starts = np.append(blocks[:, 0], n_rows)
    return np.stack([ends, starts], axis=1)[starts > ends]


def _tiles(
    blocks: Integers, n_tiles: Integers, tile: int, gaps: Integers, n_items: Integers
) -> tuple[Integers, Integers]:
    """Return tiles as (first row, end, first item, end), and items as (first row, end, block or -1, part)."""
    n_gap_tiles = -(-np.diff(gaps)[:, 0] // tile)
    spans = np.concatenate([blocks, gaps])
    per_span = np.concatenate([n_tiles, n_gap_tiles])
    owner = np.concatenate([np.arange(len(blocks)), np.full(len(gaps), -1)])
    parts = np.concatenate([n_items, np.ones(len(gaps), np.int64)])
    span = np.repeat(np.arange(len(spans)), per_span)
    position = np.arange(len(span)) - np.repeat(np.cumsum(per_span) - per_span, per_span)
    starts = spans[span, 0] + position * tile
    ends = np.minimum(starts + tile, spans[span, 1])
    of_tile = parts[span]
    last = np.cumsum(of_tile)
    tiles = np.ascontiguousarray(np.stack([starts, ends, last - of_tile, last], axis=1))
    which = np.repeat(np.arange(len(span)), of_tile)
    part = np.arange(len(which)) - np.repeat(last - of_tile, of_tile)
    items = np.stack([starts[which], ends[which], owner[span[which]], part], axis=1)
    return tiles, items
