"""Block-sparse sets of pairs as arrays: blocks of rows and, in CSR form, the intervals of columns of each block.

:class:`BlockIntervals` holds, for one axis, what KeOps' three arrays hold: block k, the rows ``blocks[k, 0]`` to
``blocks[k, 1]``, is reduced over the columns ``columns[slices[k-1]:slices[k]]`` (from 0 for the first). Columns
that are listed twice count twice. All methods run on the host, in int64. `BlockRanges` is the public class, and
the backends read the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
_MAX_CELLS = 1 << 22  # of the part of the matrix of cluster distances that is in memory
_HASH_SEED = 0x9E3779B97F4A7C15


class _Arrays(NamedTuple):
    blocks: Integers  # (B, 2): [start, end) of each block of rows
    slices: Integers  # (B,): the end of its intervals in `columns`
    columns: Integers  # (S, 2): [start, end) of each interval of columns


class BlockIntervals(_Arrays):
    """The three arrays, which are read-only, and the execution plans that backends derive from them.

    Kernels rely on checked indices. The arrays are therefore copies in immutable memory, which neither their
    sources nor `setflags` can change. Pickles and copies leave out the plans.
    """

    plans: dict[Hashable, Any]

    def __new__(cls, blocks: Integers, slices: Integers, columns: Integers) -> BlockIntervals:
        self = super().__new__(cls, _immutable(blocks), _immutable(slices), _immutable(columns))
        self.plans = {}
        return self

    @classmethod
    def from_counts(cls, blocks: Any, counts: Any, columns: Any) -> BlockIntervals:
        """From the number of intervals of each block."""
        return cls(
            np.asarray(blocks, np.int64).reshape(-1, 2),
            np.cumsum(counts, dtype=np.int64),
            np.asarray(columns, np.int64).reshape(-1, 2),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockIntervals, tuple(self)

    def plan(self, key: Hashable, build: Callable[[BlockIntervals], Any]) -> Any:
        """The cached result of `build` for a key, such as the backend, the device and the tile size."""
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans.setdefault(key, build(self))
        return plan

    @property
    def counts(self) -> Integers:
        """The number of intervals of each block."""
        return np.diff(self.slices, prepend=0)

    @property
    def owners(self) -> Integers:
        """The block of each interval."""
        return np.repeat(np.arange(len(self.blocks)), self.counts)

    @property
    def n_pairs(self) -> int:
        """The number of pairs, each as often as it is listed."""
        heights, widths = np.diff(self.blocks)[:, 0], np.diff(self.columns)[:, 0]
        return int((heights[self.owners] * widths).sum())

    # ---- checks ------------------------------------------------------------------------------------------------

    def check(self, names: tuple[str, str, str], n_rows: int | None, n_columns: int | None) -> None:
        """Raise ValueError for arrays out of order or bounds, and for overlapping blocks; name the block."""
        blocks, slices, columns = self
        if len(slices) and (slices[0] < 0 or (np.diff(slices) < 0).any()):
            k = 0 if slices[0] < 0 else int(np.argmax(np.diff(slices) < 0)) + 1
            before = 0 if k == 0 else slices[k - 1]
            raise ValueError(
                f"ranges: {names[1]} has to increase, but for block {k} it is {slices[k]} after {before}"
            )
        if len(slices) and slices[-1] > len(columns):
            k = int(np.argmax(slices > len(columns)))
            raise ValueError(
                f"ranges: {names[1]} of block {k} is {slices[k]}, but {names[2]} has {len(columns)} rows only"
            )
        check_blocks(blocks, names[0], n_rows)
        wrong = _first_wrong(columns, n_columns)
        if wrong is not None:
            k = int(np.searchsorted(slices, wrong, side="right"))
            raise _bounds_error(f"{names[2]}[{wrong}], of block {k},", columns[wrong], n_columns, "columns")

    def fingerprint(self, n_rows: int, n_columns: int, *, transposed: bool = False) -> int:
        """A hash of the pairs: the sum over pairs of the row's hash times the column's hash.

        A tile's sum is the product of two differences of prefix sums, so this takes O(tiles + rows + columns).
        Different sets of pairs have the same hash with probability 2**-64 or so.
        """
        row_salt, column_salt = (2, 1) if transposed else (1, 2)
        rows, columns = _hash_sums(n_rows, row_salt), _hash_sums(n_columns, column_salt)
        heights = rows[self.blocks[:, 1]] - rows[self.blocks[:, 0]]
        widths = columns[self.columns[:, 1]] - columns[self.columns[:, 0]]
        return int((heights[self.owners] * widths).sum(dtype=np.uint64))

    # ---- derived sets of pairs ---------------------------------------------------------------------------------

    def transpose(self) -> BlockIntervals:
        """The same pairs with columns as rows, cut where any interval of columns begins or ends."""
        full = np.flatnonzero(self.columns[:, 1] > self.columns[:, 0])
        columns, rows = self.columns[full], self.blocks[self.owners[full]]
        cuts = np.unique(columns)
        first, last = np.searchsorted(cuts, columns[:, 0]), np.searchsorted(cuts, columns[:, 1])
        counts = last - first
        tile = np.repeat(np.arange(len(columns)), counts)
        piece = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[tile]
        order = np.argsort(piece, kind="stable")
        pieces = np.stack([cuts[:-1], cuts[1:]], axis=1) if len(cuts) else np.zeros((0, 2), np.int64)
        n_tiles = np.bincount(piece, minlength=len(pieces))
        return BlockIntervals.from_counts(pieces[n_tiles > 0], n_tiles[n_tiles > 0], rows[tile[order]])

    def split(self, n_entries: int, n_rows: int, n_columns: int, name: str) -> list[BlockIntervals]:
        """One set for each batch entry, from one whose indices count through all entries."""
        entry = self.blocks[:, 0] // max(n_rows, 1)
        empty = self.blocks[:, 0] == self.blocks[:, 1]
        owner = self.owners
        columns = self.columns[: len(owner)]
        wrong = (self.blocks[:, 1] > (entry + 1) * n_rows) & ~empty
        if wrong.any():
            k = int(np.argmax(wrong))
            raise ValueError(
                f"ranges: block {k} of {name}, {self.blocks[k].tolist()}, has rows of two batch entries"
            )
        low = entry[owner] * n_columns
        wrong = ((columns[:, 0] < low) | (columns[:, 1] > low + n_columns)) & (columns[:, 1] > columns[:, 0])
        if wrong.any():
            k = int(owner[np.argmax(wrong)])
            raise ValueError(
                f"ranges: block {k} of {name}, of batch entry {entry[k]}, has columns of another entry"
            )
        parts = []
        for number in range(n_entries):
            own = (entry == number) & ~empty
            inside = columns[own[owner]] - number * n_columns
            parts.append(BlockIntervals.from_counts(self.blocks[own] - number * n_rows, self.counts[own], inside))
        return parts


# ---- patterns of pairs, which `BlockRanges` constructs ---------------------------------------------------------


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
    new = np.ones(len(mask), bool)
    new[1:] = (mask[1:] != mask[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    edges = np.append(first, len(mask))
    outside = np.zeros((len(first), 1), np.int8)
    steps = np.diff(mask[first].astype(np.int8), axis=1, prepend=outside, append=outside)
    owner, starts = np.nonzero(steps == 1)
    counts, ends = np.bincount(owner, minlength=len(first)), np.nonzero(steps == -1)[1]
    return BlockIntervals.from_counts(np.stack([edges[:-1], edges[1:]], 1), counts, np.stack([starts, ends], 1))


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
    counts, indices = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
    step = max(_MAX_CELLS // max(low_j.size, 1), 1)
    for begin in range(0, len(ranges_i), step):
        part = slice(begin, begin + step)
        with np.errstate(invalid="ignore"):
            gaps = np.maximum(low_j - high_i[part, None], low_i[part, None] - high_j)
        squares = np.square(np.maximum(gaps, 0)).sum(axis=2)
        keep = squares <= radius * radius
        counts.append(keep.sum(axis=1))
        indices.append(np.nonzero(keep)[1])
    return from_clusters(ranges_i, ranges_j, np.cumsum(np.concatenate(counts)), np.concatenate(indices))


# ---- checks ----------------------------------------------------------------------------------------------------


def check_blocks(blocks: Integers, name: str, n_rows: int | None) -> None:
    """Raise ValueError for blocks of rows out of bounds, and for overlapping ones."""
    wrong = _first_wrong(blocks, n_rows)
    if wrong is not None:
        raise _bounds_error(f"block {wrong} of {name}", blocks[wrong], n_rows, "rows")
    full = np.flatnonzero(blocks[:, 1] > blocks[:, 0])
    order = full[np.argsort(blocks[full, 0], kind="stable")]
    overlapping = blocks[order[1:], 0] < blocks[order[:-1], 1]
    if overlapping.any():
        at = int(np.argmax(overlapping))
        first, second = sorted((int(order[at]), int(order[at + 1])))
        raise ValueError(
            f"ranges: blocks {first} and {second} of {name} overlap: [{blocks[first, 0]}, {blocks[first, 1]}) and "
            f"[{blocks[second, 0]}, {blocks[second, 1]}); each row can be in one block only"
        )


def _first_wrong(intervals: Integers, limit: int | None) -> int | None:
    """The first interval that is out of bounds, or ends before it starts."""
    wrong = (intervals[:, 0] < 0) | (intervals[:, 1] < intervals[:, 0])
    if limit is not None:
        wrong |= intervals[:, 1] > limit
    return int(np.argmax(wrong)) if wrong.any() else None


def _bounds_error(where: str, interval: Integers, limit: int | None, what: str) -> ValueError:
    start, end = map(int, interval)
    problem = "ends before it starts" if end < start else "is out of bounds"
    bounds = "" if limit is None else f"; there are {limit} {what}"
    return ValueError(f"ranges: {where} is [{start}, {end}), which {problem}{bounds}")


def _immutable(array: Integers) -> Integers:
    """A copy in the memory of a bytes object; the array itself if it is one already."""
    if isinstance(array.base, bytes) and not array.flags.writeable:  # an unpickled array may write to its bytes
        return array
    return np.ndarray(array.shape, np.int64, buffer=array.astype(np.int64, copy=False).tobytes())


def _hash_sums(n: int, salt: int) -> NDArray[np.uint64]:
    """Sums of the first 0 to n pseudo-random words, modulo 2**64."""
    words = np.arange(n, dtype=np.uint64) * np.uint64(_HASH_SEED) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the finaliser of splitmix64
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    words ^= words >> np.uint64(31)
    sums = np.zeros(n + 1, np.uint64)
    np.cumsum(words, out=sums[1:])
    return sums
