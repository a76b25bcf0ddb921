"""Constructors of `BlockIntervals`: clusters, masks, a radius, bands, block-diagonal. `BlockRanges` calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep.pairs.block_intervals import BlockIntervals, Integers

__all__ = ["from_band", "from_clusters", "from_diagonal", "from_mask", "from_radius"]

_MAX_CELLS = 1 << 22  # of the part of the matrix of cluster distances that is in memory


def from_clusters(ranges_i: Integers, ranges_j: Integers, indptr: Integers, indices: Integers) -> BlockIntervals:
    """Cluster k of rows with clusters ``indices[indptr[k]:indptr[k + 1]]`` of columns; merges adjacent ones."""
    columns, owner = ranges_j[indices], np.repeat(np.arange(len(ranges_i)), np.diff(indptr))
    # Longer intervals are faster.
    starts = np.ones(len(columns), bool)
    starts[1:] = (columns[1:, 0] != columns[:-1, 1]) | (owner[1:] != owner[:-1])
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(columns)) - 1 if len(first) else first
    merged = np.stack([columns[first, 0], columns[last, 1]], axis=1)
    return BlockIntervals.from_counts(ranges_i, np.bincount(owner[first], minlength=len(ranges_i)), merged)


def from_mask(mask: NDArray[np.bool_]) -> BlockIntervals:
    """Runs of true entries in each row; adjacent rows that are equal form one block."""
    n_rows = mask.shape[0]
    if n_rows == 0:
        return BlockIntervals.from_counts([], [], [])
    new = np.ones(n_rows, bool)
    new[1:] = (mask[1:] != mask[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    blocks = np.stack([first, np.append(first[1:], n_rows)], axis=1)
    padded = np.zeros((len(first), mask.shape[1] + 2), np.int8)
    padded[:, 1:-1] = mask[first]
    steps = np.diff(padded, axis=1)
    owner, starts = np.nonzero(steps == 1)
    ends = np.nonzero(steps == -1)[1]
    return BlockIntervals.from_counts(
        blocks, np.bincount(owner, minlength=len(first)), np.stack([starts, ends], axis=1)
    )


def _boxes(x: NDArray[Any], ranges: Integers) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bounding box of each cluster; of an empty one +inf to -inf, infinitely far from all others."""
    low = np.full((len(ranges), x.shape[1]), np.inf)
    high = -low
    for k, (start, end) in enumerate(ranges):
        if end > start:
            low[k], high[k] = x[start:end].min(axis=0), x[start:end].max(axis=0)
    return low, high


def from_radius(
    x: NDArray[Any], y: NDArray[Any], ranges_i: Integers, ranges_j: Integers, radius: float
) -> BlockIntervals:  # fmt: skip
    """All pairs of clusters whose bounding boxes are no farther apart than `radius`."""
    (low_i, high_i), (low_j, high_j) = _boxes(x, ranges_i), _boxes(y, ranges_j)
    counts, indices = [], []
    step = max(_MAX_CELLS // max(low_j.size, 1), 1)
    for begin in range(0, len(ranges_i), step):
        part = slice(begin, begin + step)
        with np.errstate(invalid="ignore"):
            gaps = np.maximum(low_j - high_i[part, None], low_i[part, None] - high_j)
        squares = np.square(np.maximum(gaps, 0)).sum(axis=2)
        keep = squares <= radius * radius
        counts.append(keep.sum(axis=1))
        indices.append(np.nonzero(keep)[1])
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(counts))]) if counts else np.zeros(1, np.int64)
    clusters = np.concatenate(indices) if indices else np.zeros(0, np.int64)
    return from_clusters(ranges_i, ranges_j, indptr, clusters)


def from_band(n_i: int, n_j: int, lower: int | None, upper: int | None, block: int) -> BlockIntervals:
    """Columns i - lower to i + upper of each row i (None: unbounded); a block has the columns of all its rows."""
    starts = np.arange(0, n_i, block)
    ends = np.minimum(starts + block, n_i)
    left = np.zeros_like(starts) if lower is None else np.clip(starts - lower, 0, n_j)
    right = np.full_like(starts, n_j) if upper is None else np.clip(ends + upper, 0, n_j)
    right = np.maximum(left, right)
    return BlockIntervals.from_counts(
        np.stack([starts, ends], 1), np.ones(len(starts)), np.stack([left, right], 1)
    )


def from_diagonal(sizes_i: Any, sizes_j: Any) -> BlockIntervals:
    """Block k of rows with block k of columns."""
    ends_i, ends_j = np.cumsum(sizes_i, dtype=np.int64), np.cumsum(sizes_j, dtype=np.int64)
    rows = np.stack([ends_i - sizes_i, ends_i], axis=1)
    return BlockIntervals.from_counts(rows, np.ones(len(rows)), np.stack([ends_j - sizes_j, ends_j], axis=1))
