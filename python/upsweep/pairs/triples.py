"""Blocks of rows and the ranges of columns that each is reduced over: what engines are given.

A :class:`Triple` says of one axis what KeOps' three arrays say: block k, the rows ``blocks[k, 0]`` to
``blocks[k, 1]``, is reduced over the columns ``columns[slices[k-1]:slices[k]]`` (from 0 for the first). Columns
that are listed twice count twice. Here triples are checked, transposed and compared; all on the host, in int64.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Triple", "check_triple", "fingerprint", "join", "n_pairs", "split", "transpose", "triple_of_lists"]

Integers = NDArray[np.int64]
_HASH_SEED = 0x9E3779B97F4A7C15


class _Arrays(NamedTuple):
    blocks: Integers  # (B, 2): [start, end) of each block of rows
    slices: Integers  # (B,): where its ranges of columns end
    columns: Integers  # (S, 2): [start, end)


class Triple(_Arrays):
    """The three arrays, which cannot be written to, and the plans that engines have derived from them.

    Kernels rely on checked indices. The arrays are therefore copies in immutable memory: neither what they were
    copied from nor `setflags` changes them. Pickles and copies have the arrays, not the plans.
    """

    plans: dict[Hashable, Any]

    def __new__(cls, blocks: Integers, slices: Integers, columns: Integers) -> Triple:
        self = super().__new__(cls, _immutable(blocks), _immutable(slices), _immutable(columns))
        self.plans = {}
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Triple, tuple(self)

    def plan(self, key: Hashable, build: Callable[[Triple], Any]) -> Any:
        """What `build` makes of this triple, made once for each key (an engine, a device, a size of tiles)."""
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans.setdefault(key, build(self))
        return plan


def _immutable(array: Integers) -> Integers:
    """A copy whose memory is a bytes object; the array itself if it is one already."""
    if isinstance(array.base, bytes) and not array.flags.writeable:  # an unpickled array may write to its bytes
        return array
    return np.ndarray(array.shape, np.int64, buffer=array.astype(np.int64, copy=False).tobytes())


def owners(triple: Triple) -> Integers:
    """The block that each range of columns belongs to."""
    counts = np.diff(triple.slices, prepend=0)
    return np.repeat(np.arange(len(triple.blocks)), counts)


def n_pairs(triple: Triple) -> int:
    """How many pairs are reduced over, each as often as it is listed."""
    heights, widths = np.diff(triple.blocks)[:, 0], np.diff(triple.columns)[:, 0]
    return int((heights[owners(triple)] * widths).sum())


def triple_of_lists(blocks: Any, counts: Any, columns: Any) -> Triple:
    """From how many ranges each block has."""
    return Triple(
        np.asarray(blocks, np.int64).reshape(-1, 2),
        np.cumsum(counts, dtype=np.int64),
        np.asarray(columns, np.int64).reshape(-1, 2),
    )


# ---- checks ----------------------------------------------------------------------------------------------------


def check_triple(triple: Triple, names: tuple[str, str, str], n_rows: int | None, n_columns: int | None) -> None:
    """Raise ValueError for what is out of order or bounds, or overlaps, and name the block."""
    blocks, slices, columns = triple
    if len(slices) and (slices[0] < 0 or (np.diff(slices) < 0).any()):
        k = 0 if slices[0] < 0 else int(np.argmax(np.diff(slices) < 0)) + 1
        before = 0 if k == 0 else slices[k - 1]
        raise ValueError(f"ranges: {names[1]} has to increase, but for block {k} it is {slices[k]} after {before}")
    if len(slices) and slices[-1] > len(columns):
        k = int(np.argmax(slices > len(columns)))
        raise ValueError(
            f"ranges: {names[1]} of block {k} is {slices[k]}, but {names[2]} has {len(columns)} rows only"
        )
    _check_intervals(blocks, names[0], n_rows, None)
    _check_intervals(columns, names[2], n_columns, triple)
    _check_overlap(blocks, names[0])


def _check_intervals(intervals: Integers, name: str, limit: int | None, triple: Triple | None) -> None:
    wrong = (intervals[:, 0] < 0) | (intervals[:, 1] < intervals[:, 0])
    if limit is not None:
        wrong |= intervals[:, 1] > limit
    if not wrong.any():
        return
    place = int(np.argmax(wrong))
    start, end = map(int, intervals[place])
    where = f"{name}[{place}]" if triple is not None else f"block {place} of {name}"
    if triple is not None:
        where += f", of block {int(np.searchsorted(triple.slices, place, side='right'))},"
    what = "ends before it starts" if end < start else "is out of bounds"
    bounds = (
        "" if limit is None else f"; there are {limit} rows" if triple is None else f"; there are {limit} columns"
    )
    raise ValueError(f"ranges: {where} is [{start}, {end}), which {what}{bounds}")


def _check_overlap(blocks: Integers, name: str) -> None:
    full = np.flatnonzero(blocks[:, 1] > blocks[:, 0])
    if len(full) < 2:
        return
    order = full[np.argsort(blocks[full, 0], kind="stable")]
    overlapping = blocks[order[1:], 0] < blocks[order[:-1], 1]
    if overlapping.any():
        at = int(np.argmax(overlapping))
        first, second = sorted((int(order[at]), int(order[at + 1])))
        raise ValueError(
            f"ranges: blocks {first} and {second} of {name} overlap: [{blocks[first, 0]}, {blocks[first, 1]}) and "
            f"[{blocks[second, 0]}, {blocks[second, 1]}); each row can be in one block only"
        )


def _hashed(n: int, salt: int) -> NDArray[np.uint64]:
    """Sums of the first 0 to n pseudo-random words, modulo 2**64."""
    words = np.arange(n, dtype=np.uint64) * np.uint64(_HASH_SEED) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the finaliser of splitmix64
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    words ^= words >> np.uint64(31)
    sums = np.zeros(n + 1, np.uint64)
    np.cumsum(words, out=sums[1:])
    return sums


def fingerprint(triple: Triple, n_rows: int, n_columns: int, *, transposed: bool = False) -> int:
    """A number that two triples share if they list the same pairs as often: sum of row's times column's hash.

    A tile's sum is the product of two differences of prefix sums, so this takes O(tiles + rows + columns).
    Different lists of pairs have the same number with probability 2**-64 or so.
    """
    row_salt, column_salt = (2, 1) if transposed else (1, 2)
    rows, columns = _hashed(n_rows, row_salt), _hashed(n_columns, column_salt)
    heights = rows[triple.blocks[:, 1]] - rows[triple.blocks[:, 0]]
    widths = columns[triple.columns[:, 1]] - columns[triple.columns[:, 0]]
    return int((heights[owners(triple)] * widths).sum(dtype=np.uint64))


# ---- other triples ---------------------------------------------------------------------------------------------


def transpose(triple: Triple) -> Triple:
    """The same pairs with columns as rows: cut at each place where a range of columns begins or ends."""
    kept = np.flatnonzero(triple.columns[:, 1] > triple.columns[:, 0])
    columns, rows = triple.columns[kept], triple.blocks[owners(triple)[kept]]
    cuts = np.unique(columns)
    first, last = np.searchsorted(cuts, columns[:, 0]), np.searchsorted(cuts, columns[:, 1])
    counts = last - first
    tile = np.repeat(np.arange(len(columns)), counts)
    piece = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[tile]
    order = np.argsort(piece, kind="stable")
    pieces = np.stack([cuts[:-1], cuts[1:]], axis=1) if len(cuts) else np.zeros((0, 2), np.int64)
    seen = np.bincount(piece, minlength=len(pieces))
    return triple_of_lists(pieces[seen > 0], seen[seen > 0], rows[tile[order]])


def split(triple: Triple, n_entries: int, n_rows: int, n_columns: int, name: str) -> list[Triple]:
    """One triple for each entry of a batch, from one whose indices run through all entries one after the other."""
    entry = triple.blocks[:, 0] // max(n_rows, 1)
    empty = triple.blocks[:, 0] == triple.blocks[:, 1]
    owner = owners(triple)
    columns = triple.columns[: len(owner)]
    wrong = (triple.blocks[:, 1] > (entry + 1) * n_rows) & ~empty
    if wrong.any():
        k = int(np.argmax(wrong))
        raise ValueError(
            f"ranges: block {k} of {name}, {triple.blocks[k].tolist()}, has rows of two batch entries"
        )
    low = entry[owner] * n_columns
    strays = ((columns[:, 0] < low) | (columns[:, 1] > low + n_columns)) & (columns[:, 1] > columns[:, 0])
    if strays.any():
        k = int(owner[np.argmax(strays)])
        raise ValueError(f"ranges: block {k} of {name}, of batch entry {entry[k]}, has columns of another entry")
    counts = np.diff(triple.slices, prepend=0)
    parts = []
    for number in range(n_entries):
        mine = (entry == number) & ~empty
        inside = columns[mine[owner]] - number * n_columns
        parts.append(triple_of_lists(triple.blocks[mine] - number * n_rows, counts[mine], inside))
    return parts


def join(parts: list[Triple], n_rows: int, n_columns: int) -> Triple:
    """The inverse of `split`."""
    shift = range(len(parts))
    return triple_of_lists(
        np.concatenate([part.blocks + k * n_rows for k, part in zip(shift, parts)]),
        np.concatenate([np.diff(part.slices, prepend=0) for part in parts]),
        np.concatenate([part.columns + k * n_columns for k, part in zip(shift, parts)]),
    )
