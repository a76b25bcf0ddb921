"""`BlockRanges`, the pairs of a block-sparse reduction, and the checks of the argument `ranges`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep import _arrays
from upsweep._utils.examples import with_example
from upsweep._utils.integers import as_size
from upsweep._utils.lru_cache import LRUCache
from upsweep.pairs import block_intervals
from upsweep.pairs.block_intervals import BlockIntervals, Integers, check_blocks

NAMES = ("ranges_i", "slices_i", "redranges_j", "ranges_j", "slices_j", "redranges_i")


_shows = functools.partial(with_example, ">>> import numpy as np, upsweep")


class BlockRanges(Sequence[Any]):
    """The pairs of a block-sparse reduction, checked once, with the execution plans of the backends.

    A value of the argument `ranges` of every reduction, and a sequence of KeOps' six arrays.

    Parameters
    ----------
    ranges : tuple of six integer arrays
        ``(ranges_i, slices_i, redranges_j, ranges_j, slices_j, redranges_i)`` as in KeOps, of any library and
        integer dtype: rows ``ranges_i[k, 0]`` to ``ranges_i[k, 1]`` are reduced over the columns
        ``redranges_j[slices_i[k - 1]:slices_i[k]]``; the last three list the same pairs by columns, for reductions
        over rows and gradients in columns. With three arrays, or None for the last three, those are derived when
        they are needed. Arrays on a device are copied to the host, which waits for the device.
    shape : tuple of two ints, optional
        The numbers of rows and of columns. Default: those of the first reduction.
    check : bool
        Whether to check bounds, order, overlap of blocks, and that both triples of arrays list the same pairs.
        Without the check, wrong arrays give wrong results or crash the process by access to memory out of bounds.

    Raises
    ------
    TypeError
        An array is not of integers.
    ValueError
        A check fails, or an array has another shape.

    Notes
    -----
    Rows of no block, and of blocks without columns, get the reduction's neutral element. A column that is listed
    twice for a block counts twice. The two triples of arrays are compared by a hash when the second is first
    needed. The arrays are copied, and the copies are read-only. Pickles and copies leave out the plans.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> ranges = upsweep.BlockRanges.block_diagonal([2, 3])
    >>> ranges
    BlockRanges(2 blocks; 13 of 5 x 5 pairs)
    >>> [part.tolist() for part in ranges][:3]
    [[[0, 2], [2, 5]], [1, 2], [[0, 2], [2, 5]]]
    """

    def __init__(self, ranges: Any, shape: tuple[int, int] | None = None, *, check: bool = True) -> None:
        arrays = tuple(ranges)
        if len(arrays) == 3:
            arrays = (*arrays, None, None, None)
        if len(arrays) != 6:
            raise ValueError(f"ranges: expected six arrays, {', '.join(NAMES)}, got {len(arrays)}")
        self._rows = _block_intervals(arrays[:3], NAMES[:3])
        derived = all(part is None for part in arrays[3:])
        self._columns = None if derived else _block_intervals(arrays[3:], NAMES[3:])
        self._check = check
        self._agree = derived or not check
        self._shape = None if shape is None else (as_size(shape[0], "shape"), as_size(shape[1], "shape"))
        if check:
            self._check_bounds(*(self._shape or (None, None)))

    @classmethod
    def _of(
        cls, rows: BlockIntervals, shape: tuple[int, int] | None, columns: BlockIntervals | None = None
    ) -> BlockRanges:
        """From valid `BlockIntervals`, unchecked."""
        self = cls.__new__(cls)
        self._rows, self._columns, self._shape = rows, columns, shape
        self._check, self._agree = False, True
        return self

    def _check_bounds(self, n_i: int | None, n_j: int | None) -> None:
        self._rows.check(NAMES[:3], n_i, n_j)
        if self._columns is not None:
            self._columns.check(NAMES[3:], n_j, n_i)

    # ---- sets of pairs -----------------------------------------------------------------------------------------

    @classmethod
    def from_matrix(cls, ranges_i: Any, ranges_j: Any, keep: Any, shape: Any = None) -> BlockRanges:
        """From a bool matrix (Mc, Nc) of pairs of clusters; the arguments of `cluster.from_matrix`.

        Examples
        --------
        >>> import upsweep
        >>> upsweep.BlockRanges.from_matrix([[0, 2], [2, 5]], [[0, 4]], [[True], [False]])
        BlockRanges(2 blocks; 8 of 5 x 4 pairs)
        """
        keep = _on_host(keep).astype(bool)
        rows, columns = _intervals(ranges_i, "ranges_i"), _intervals(ranges_j, "ranges_j")
        if keep.shape != (len(rows), len(columns)):
            raise ValueError(f"keep: expected shape {(len(rows), len(columns))}, got {keep.shape}")
        indptr = np.concatenate([[0], np.cumsum(keep.sum(axis=1))])
        return cls.from_csr(rows, columns, indptr, np.nonzero(keep)[1], shape)

    @classmethod
    @_shows(">>> upsweep.BlockRanges.from_mask(np.tri(3, dtype=bool))", "BlockRanges(3 blocks; 6 of 3 x 3 pairs)")
    def from_mask(cls, mask: Any) -> BlockRanges:
        """From a bool matrix (M, N) of the pairs themselves."""
        mask = _on_host(mask).astype(bool)
        if mask.ndim != 2:
            raise ValueError(f"mask: expected shape (M, N), got {mask.shape}")
        return cls._of(block_intervals.from_mask(mask), mask.shape)

    @classmethod
    def from_csr(cls, ranges_i: Any, ranges_j: Any, indptr: Any, indices: Any, shape: Any = None) -> BlockRanges:
        """From lists of clusters: cluster k of rows with clusters ``indices[indptr[k]:indptr[k + 1]]`` of columns.

        Examples
        --------
        >>> import upsweep
        >>> r = [[0, 2], [2, 5]]
        >>> upsweep.BlockRanges.from_csr(r, r, indptr=[0, 2, 3], indices=[0, 1, 1])
        BlockRanges(2 blocks; 19 of 5 x 5 pairs)
        """
        rows, columns = _intervals(ranges_i, "ranges_i"), _intervals(ranges_j, "ranges_j")
        ends, listed = _integers(indptr, "indptr"), _integers(indices, "indices")
        if ends.shape != (len(rows) + 1,) or ends[0] != 0 or ends[-1] != len(listed) or (np.diff(ends) < 0).any():
            raise ValueError(f"indptr: expected {len(rows) + 1} increasing numbers from 0 to {len(listed)}")
        if listed.size and (listed.min() < 0 or listed.max() >= len(columns)):
            raise ValueError(f"indices: expected clusters from 0 to {len(columns) - 1}, got {listed.max()}")
        if shape is None:
            shape = int(rows[:, 1].max(initial=0)), int(columns[:, 1].max(initial=0))
        intervals = block_intervals.from_clusters(rows, columns, ends, listed)
        intervals.check(NAMES[:3], *shape)
        return cls._of(intervals, shape)

    @classmethod
    def from_radius(cls, x: Any, y: Any, radius: float, ranges_i: Any, ranges_j: Any = None) -> BlockRanges:
        """From distances: every pair of points no farther apart than `radius`, and the rest of their clusters.

        Parameters
        ----------
        x, y : (M, D) and (N, D) arrays
            Points, sorted by cluster.
        radius : float
            The largest distance of the bounding boxes of two clusters.
        ranges_i, ranges_j : (Mc, 2) and (Nc, 2) integer arrays
            The first and last row of each cluster; by default the second is the first.

        Examples
        --------
        >>> import numpy as np, upsweep
        >>> x, r = np.array([[0.0], [1.0], [5.0]]), [[0, 2], [2, 3]]
        >>> upsweep.BlockRanges.from_radius(x, x, 2.0, r)
        BlockRanges(2 blocks; 5 of 3 x 3 pairs)
        """
        rows = _intervals(ranges_i, "ranges_i")
        columns = rows if ranges_j is None else _intervals(ranges_j, "ranges_j")
        x, y = _on_host(x), _on_host(y)
        if not radius >= 0:
            raise ValueError(f"radius: expected at least 0, got {radius}")
        if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
            raise ValueError(f"y: expected points of x's dimension, got shapes {x.shape} and {y.shape}")
        for points, name in ((x, "x"), (y, "y")):
            if not np.isfinite(points).all():  # the bounding box of a cluster with NaN has no distance
                raise ValueError(f"{name}: expected finite coordinates")
        shape = len(x), len(y)
        check_blocks(rows, "ranges_i", shape[0])
        check_blocks(columns, "ranges_j", shape[1])
        return cls._of(block_intervals.from_radius(x, y, rows, columns, radius), shape)

    @classmethod
    @_shows(">>> upsweep.BlockRanges.band(4, 4, 1)", "BlockRanges(4 blocks; 10 of 4 x 4 pairs)")
    def band(cls, n_i: int, n_j: int, lower: int, upper: int | None = None, *, block: int = 1) -> BlockRanges:
        """Row i with columns ``i - lower`` to ``i + upper`` (by default `lower`).

        Each block of rows has the columns of all its rows: larger blocks are more pairs, and faster ones.
        """
        for name, value in (("lower", lower), ("upper", upper)):
            if value is not None:
                as_size(value, name)
        return cls._banded(n_i, n_j, lower, lower if upper is None else upper, block)

    @classmethod
    @_shows(">>> upsweep.BlockRanges.causal(4)", "BlockRanges(4 blocks; 10 of 4 x 4 pairs)")
    def causal(cls, n_i: int, n_j: int | None = None, *, block: int = 1) -> BlockRanges:
        """Row i with columns 0 to i; each block of rows has the columns of its last row."""
        return cls._banded(n_i, n_i if n_j is None else n_j, None, 0, block)

    @classmethod
    def _banded(cls, n_i: int, n_j: int, lower: int | None, upper: int | None, block: int) -> BlockRanges:
        """Columns ``i - lower`` to ``i + upper`` of each row i; None: unbounded."""
        for name, value, least in (("n_i", n_i, 0), ("n_j", n_j, 0), ("block", block, 1)):
            as_size(value, name, least)
        starts = np.arange(0, n_i, block)
        ends = np.minimum(starts + block, n_i)
        left = np.zeros_like(starts) if lower is None else np.clip(starts - lower, 0, n_j)
        right = np.full_like(starts, n_j) if upper is None else np.clip(ends + upper, 0, n_j)
        return cls._of_blocks((starts, ends), (left, np.maximum(left, right)), (n_i, n_j))

    @classmethod
    @_shows(">>> upsweep.BlockRanges.block_diagonal([2, 3])", "BlockRanges(2 blocks; 13 of 5 x 5 pairs)")
    def block_diagonal(cls, sizes_i: Any, sizes_j: Any = None) -> BlockRanges:
        """Block k of rows with block k of columns; by default of the same sizes."""
        rows = _integers(sizes_i, "sizes_i")
        columns = rows if sizes_j is None else _integers(sizes_j, "sizes_j")
        if rows.shape != columns.shape or rows.ndim != 1:
            raise ValueError(f"sizes_j: expected one size for each of {len(rows)} blocks, got {columns.shape}")
        if (rows < 0).any() or (columns < 0).any():
            raise ValueError("sizes_i: expected sizes of at least 0")
        ends_i, ends_j = np.cumsum(rows), np.cumsum(columns)
        shape = int(rows.sum()), int(columns.sum())
        return cls._of_blocks((ends_i - rows, ends_i), (ends_j - columns, ends_j), shape)

    @classmethod
    def _of_blocks(cls, rows: Any, columns: Any, shape: tuple[int, int]) -> BlockRanges:
        """From the starts and ends of blocks of rows, and those of the columns of each."""
        intervals = BlockIntervals.from_counts(np.stack(rows, 1), np.ones(len(rows[0])), np.stack(columns, 1))
        return cls._of(intervals, shape)

    # ---- used by reductions ------------------------------------------------------------------------------------

    @_shows(">>> upsweep.BlockRanges.causal(3).intervals('j', 3, 3).slices", "array([3, 5, 6])")
    def intervals(self, rows: str, n_i: int, n_j: int) -> BlockIntervals:
        """The pairs by rows ("i") or by columns ("j"), for a reduction with that axis of the result.

        Raises ValueError where the shape differs, indices are out of bounds, or the two triples disagree.
        """
        if self._shape is None:
            if self._check:
                self._check_bounds(n_i, n_j)
            self._shape = n_i, n_j
        elif self._shape != (n_i, n_j):
            raise ValueError(f"ranges: are of {self._shape} rows and columns, the reduction of {(n_i, n_j)}")
        return self._rows if rows == "i" else self._transposed()

    def _transposed(self) -> BlockIntervals:
        if self._columns is None:
            self._columns = self._rows.transpose()
        elif not self._agree:
            n_i, n_j = self.shape
            fingerprint = self._rows.fingerprint(n_i, n_j)
            if fingerprint != self._columns.fingerprint(n_j, n_i, transposed=True):
                raise ValueError(
                    f"ranges: {', '.join(NAMES[:3])} and {', '.join(NAMES[3:])} list different pairs; leave the "
                    "last three out (None), and they are derived"
                )
            self._agree = True
        return self._columns

    @_shows(">>> upsweep.BlockRanges.causal(3).fits(3, 4)", "False")
    def fits(self, n_i: int, n_j: int) -> bool:
        """Whether all indices are below these numbers of rows and columns."""
        if self._shape is not None:
            return self._shape == (n_i, n_j)
        return self._largest[0] <= n_i and self._largest[1] <= n_j

    @property
    def _largest(self) -> tuple[int, int]:
        """The largest ends of rows and of columns."""
        ends = [(self._rows.blocks, self._rows.columns)]
        if self._columns is not None:
            ends.append((self._columns.columns, self._columns.blocks))
        rows, columns = ([int(part[:, 1].max(initial=0)) for part in parts] for parts in zip(*ends))
        return max(rows), max(columns)

    @_shows(">>> upsweep.BlockRanges.causal(3).for_batch('i', 3, 3, 2).n_pairs", "6")
    def for_batch(self, rows: str, n_i: int, n_j: int, n_entries: int) -> BlockIntervals | list[BlockIntervals]:
        """The pairs of all batch entries alike, or one set for each entry if indices count through all entries."""
        if n_entries == 1 or self.fits(n_i, n_j):
            return self.intervals(rows, n_i, n_j)
        whole = self.intervals(rows, n_entries * n_i, n_entries * n_j)
        sizes = (n_i, n_j) if rows == "i" else (n_j, n_i)
        name = NAMES[0 if rows == "i" else 3]
        split: list[BlockIntervals] = whole.plan(
            ("batch", n_entries, *sizes), lambda each: each.split(n_entries, *sizes, name)
        )
        return split

    # ---- for users ---------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns; the largest indices as long as these are unknown."""
        return self._largest if self._shape is None else self._shape

    @property
    def n_pairs(self) -> int:
        """The number of pairs, each as often as it is listed."""
        return self._rows.n_pairs

    @property
    def T(self) -> BlockRanges:
        """The same pairs, rows and columns exchanged."""
        shape = None if self._shape is None else self._shape[::-1]
        return type(self)._of(self._transposed(), shape, self._rows)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: Any) -> Any:
        return (*self._rows, *self._transposed())[index]

    def __repr__(self) -> str:
        n_i, n_j = self.shape
        return f"BlockRanges({len(self._rows.blocks)} blocks; {self.n_pairs} of {n_i} x {n_j} pairs)"

    @_shows(">>> upsweep.BlockRanges.causal(2).to_mask().tolist()", "[[1, 0], [1, 1]]")
    def to_mask(self) -> NDArray[np.int64]:
        """A matrix (M, N) of how often each pair is listed, for small sets."""
        counts = np.zeros(self.shape, np.int64)
        for (first, last), (start, end) in zip(self._rows.blocks[self._rows.owners], self._rows.columns):
            counts[first:last, start:end] += 1
        return counts

    @_shows(">>> ax = upsweep.BlockRanges.causal(4).plot()  # doctest: +SKIP")
    def plot(self, ax: Any = None, **keywords: Any) -> Any:
        """Draw the tiles of pairs with matplotlib, rows downwards; return the axes.

        Parameters
        ----------
        ax : matplotlib axes, optional
            A new figure's by default.
        **keywords
            For matplotlib's PolyCollection (`facecolor`, `edgecolor`, ...).
        """
        from matplotlib import pyplot
        from matplotlib.collections import PolyCollection

        if ax is None:
            ax = pyplot.figure().gca()
        rows = self._rows.blocks[self._rows.owners]
        columns = self._rows.columns[: len(rows)]
        corners = [(columns[:, side], rows[:, end]) for side, end in ((0, 0), (1, 0), (1, 1), (0, 1))]
        tiles = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1).astype(float)
        settings = {"facecolor": "tab:blue", "edgecolor": "white", "linewidth": 0.2, **keywords}
        ax.add_collection(PolyCollection(list(tiles), **settings))
        ax.set(xlim=(0, self.shape[1]), ylim=(self.shape[0], 0), xlabel="j", ylabel="i", aspect="equal")
        return ax


# ---- arrays of any library on the host -------------------------------------------------------------------------


def _on_host(value: Any) -> NDArray[Any]:
    if type(value) is np.ndarray:
        return value
    if _arrays.any_torch(value):
        value = value.detach().cpu().numpy()
    elif hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
        value = value.get()  # cupy's name for it
    return np.asarray(value)


def _integers(value: Any, name: str) -> Integers:
    array = _on_host(value)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{name}: expected integers, got dtype {array.dtype}")
    return array.astype(np.int64)  # a copy, so that checked arrays do not change


def _intervals(value: Any, name: str) -> Integers:
    array = _integers(value, name)
    if array.ndim != 2 or array.shape[1] != 2:
        if array.size:
            raise ValueError(f"{name}: expected shape (n, 2), of starts and ends, got {array.shape}")
        array = array.reshape(0, 2)
    return array


def _block_intervals(parts: Any, names: tuple[str, ...]) -> BlockIntervals:
    blocks, columns = _intervals(parts[0], names[0]), _intervals(parts[2], names[2])
    slices = _integers(parts[1], names[1]).reshape(-1)
    if len(slices) != len(blocks):
        raise ValueError(f"{names[1]}: expected a number for each of {len(blocks)} blocks, got {len(slices)}")
    last = int(slices[-1]) if len(slices) else 0
    return BlockIntervals(blocks, slices, columns[:last] if 0 <= last < len(columns) else columns)


# The arrays are stored too, so that no other array gets the identity of one on a device.
_checked: LRUCache[Any, tuple[Any, BlockRanges]] = LRUCache(8)


def as_ranges(ranges: Any, *sizes: int) -> BlockRanges | None:
    """The argument `ranges` of a reduction of these sizes. A tuple is checked and copied at its first use."""
    if ranges is None or isinstance(ranges, BlockRanges):
        return ranges
    if not isinstance(ranges, (tuple, list)):
        kind = _arrays.type_name(ranges)
        raise TypeError(f"ranges: expected None, six arrays or a BlockRanges, got {kind}")
    parts: list[Any]
    contents: Any
    if any(getattr(part, "is_cuda", False) for part in ranges):
        # Identities and versions stand for the contents: to read these would wait for the device.
        parts = list(ranges)
        contents = tuple((id(part), getattr(part, "_version", None)) for part in parts)
    else:
        parts = [None if part is None else _on_host(part) for part in ranges]
        contents = tuple(None if part is None else (part.shape, part.dtype.str, part.tobytes()) for part in parts)
    return _checked.get_or_build((*sizes, contents), lambda: (parts, BlockRanges(parts)))[1]


def same_ranges(a: Any, b: Any) -> bool:
    """Whether two arguments `ranges` have equal arrays."""
    parts = [[None if part is None else _on_host(part) for part in ranges] for ranges in (a, b)]
    return len(parts[0]) == len(parts[1]) and all(map(np.array_equal, *parts))
