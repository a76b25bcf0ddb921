"""Array operations of `upsweep.cluster`: sorting, counting and ordering of points in the library of the arrays.

`ArrayOps` serves numpy and cupy, whose functions have equal names; `_torch/cluster.py` has a subclass for tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MORTON_BITS = 62  # bits of a nonnegative int64, with one to spare


class ArrayOps:
    """Operations on arrays of numpy or cupy; points are (M, D), labels (M,)."""

    MIN_WEIGHT: float | None = None

    def __init__(self, xp: Any, **where: Any) -> None:
        self.xp, self.where = xp, where  # the module, and its keywords for a new array on the device

    def array(self, x: Any) -> Any:
        return self.xp.asarray(x, **self.where)

    def points(self, x: Any, name: str) -> Any:
        x = self.array(x)
        if x.ndim != 2:
            raise ValueError(f"{name}: expected points in two axes, (M, D), got shape {tuple(x.shape)}")
        return x

    def labels(self, lab: Any) -> Any:
        lab = self.xp.asarray(lab).ravel()
        if lab.dtype.kind not in "iu" and lab.size:
            raise TypeError(f"lab: expected integers, got dtype {lab.dtype}")
        return lab if lab.size else lab.astype(np.int64)

    def check_sorted(self, lab: Any) -> None:
        falls = self.to_integers(lab[1:] < lab[:-1])
        if bool(falls.any()):
            at = int(falls.argmax()) + 1
            raise ValueError(
                f"lab: expected sorted labels, got {int(lab[at])} after {int(lab[at - 1])} at {at}; sort points "
                "and labels first: x, lab = sort_clusters(x, lab)"
            )

    def ranges(self, ranges: Any, name: str) -> Any:
        """Check that the argument has the [start, end) of clusters."""
        ranges = self.array(ranges)
        if ranges.ndim != 2 or ranges.shape[1] != 2:
            raise ValueError(
                f"{name}: expected shape (C, 2), [start, end) of C clusters, got {tuple(ranges.shape)}"
            )
        wrong = self.to_integers((ranges[:, 0] < 0) | (ranges[:, 1] < ranges[:, 0]))
        if bool(wrong.any()):
            at = int(wrong.argmax())
            raise ValueError(
                f"{name}: expected [start, end) of clusters, as of cluster_ranges, got {ranges[at].tolist()} for "
                f"cluster {at}"
            )
        return ranges

    def integers(self, x: Any) -> Any:
        return self.to_integers(self.array(x).reshape(-1))

    def to_integers(self, x: Any) -> Any:
        return self.xp.asarray(x, dtype=self.xp.int64)

    def at_least(self, weights: Any, least: float) -> Any:
        return self.xp.maximum(weights, least)

    def at_labels(self, totals: Any, lab: Any, name: str) -> Any:
        """Check that the argument has a number for each label."""
        totals = self.array(totals).reshape(-1)
        n_labels = int(lab.max()) + 1 if lab.shape[0] else 0
        if n_labels > totals.shape[0]:
            raise ValueError(f"{name}: expected one for each of {n_labels} labels, got {totals.shape[0]}")
        return totals

    def zeros(self, n: int) -> Any:
        return self.xp.zeros(n, dtype=self.xp.int64, **self.where)

    def arange(self, n: int) -> Any:
        return self.xp.arange(n, dtype=self.xp.int64, **self.where)

    def stack(self, *columns: Any) -> Any:
        return self.xp.stack(columns, 1)

    def floats(self, totals: Any, like: Any) -> Any:
        """Convert the weights of clusters: to float64, as KeOps does for numpy."""
        return totals.astype(np.float64)

    def ranks(self, x: Any) -> tuple[Any, int]:
        """Return the rank of each element among the distinct values, and the number of these."""
        values, ranks = self.xp.unique(x, return_inverse=True)
        return ranks.reshape(-1), len(values)

    def stable_order(self, x: Any) -> Any:
        return self.xp.argsort(x, kind="stable")

    def descending_order(self, x: Any) -> Any:
        return (x.shape[0] - 1 - self.stable_order(x[::-1]))[::-1]  # -x would wrap for unsigned integers

    def cumulative_sum(self, x: Any) -> Any:
        return self.xp.cumsum(x, 0, dtype=self.xp.int64)

    def count(self, lab: Any) -> Any:
        if lab.shape[0] and int(lab.min()) < 0:
            raise ValueError(f"lab: labels have to be 0 or more, got {int(lab.min())}")
        return self.xp.bincount(lab)

    def sum_by_label(self, lab: Any, x: Any, n_labels: int | None, weights: Any = None) -> Any:
        """Sum the rows of each label in float64: (C, D)."""
        n_labels = len(self.count(lab)) if n_labels is None else n_labels
        wide = x.astype(np.float64)
        if weights is not None:
            wide = wide * weights[:, None]
        sums = [self.xp.bincount(lab, wide[:, axis], n_labels) for axis in range(x.shape[1])]
        return self.xp.stack(sums, axis=1) if sums else self.xp.zeros((n_labels, 0))

    def quotient(self, sums: Any, totals: Any, like: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = sums / totals.reshape(-1, 1)
        return mean.astype(like.dtype if like.dtype.kind == "f" else np.float64)

    def rows_of_matrix(self, keep: Any) -> tuple[Any, Any]:
        """Return the number of entries set up to the end of each row, and the column of each entry."""
        keep = keep != 0
        return self.cumulative_sum(keep.sum(1)), self.xp.where(keep)[1]

    def cells(self, points: Any, size: Any) -> Any:
        size = self.xp.asarray(size)
        self.check_cell_size(size, points, size, size.dtype.kind in "iuf")
        return self.checked_cells(self.xp.floor(points / size))

    @staticmethod
    def check_cell_size(size: Any, points: Any, shown: Any, is_real: bool = True) -> None:
        if not is_real or tuple(size.shape) not in ((), (1,), tuple(points.shape[1:])):
            raise ValueError(f"size: expected a number, or one for each of {points.shape[1]} axes, got {shown}")
        if not bool((size > 0).all()):
            raise ValueError(f"size: expected positive lengths, got {shown}")

    def checked_cells(self, cells: Any) -> Any:
        if not bool((abs(cells) < 2.0**62).all()):
            raise ValueError("x: expected finite coordinates, of fewer than 2**62 cells")
        return self.to_integers(cells)

    def labels_of_cells(self, cells: Any) -> Any:
        """Number the distinct rows of cells (M, D) from 0 in their order.

        Coordinates are folded into one int64, one after the other. Before that would overflow, both factors are
        replaced by their ranks, which are below M.
        """
        n_points, n_axes = cells.shape
        folded, n_folded = self.zeros(n_points), 1
        for axis in range(n_axes if n_points else 0):
            column = cells[:, axis]
            least = int(column.min())
            n_values = int(column.max()) - least + 1
            if n_folded * n_values < 2**62:
                column = column - least
            else:
                column, n_values = self.ranks(column)
                folded, n_folded = self.ranks(folded)
            folded, n_folded = folded * n_values + column, n_folded * n_values
        return self.ranks(folded)[0]

    def morton_order(self, points: Any) -> Any:
        """Return the order along the Z curve, with as many bits per coordinate as an integer holds."""
        n_points, n_axes = points.shape
        codes = self.zeros(n_points)
        if n_points == 0 or n_axes == 0:
            return self.arange(n_points)
        low, high = self.extent(points)
        # Cells are cubes. Axes without a bit, which are the narrowest, have no influence.
        span = high - low
        axes = self.descending_order(span)[:_MORTON_BITS]
        axes = axes[: max(int((span > 0).sum()), 1)]
        n_bits = min(_MORTON_BITS // len(axes), 31)
        side = float(span.max()) or 1.0
        scaled = self.to_integers((points - low)[:, axes] / side * 2.0**n_bits).clip(0, 2**n_bits - 1)
        for bit in range(n_bits - 1, -1, -1):
            for axis in range(len(axes)):
                codes = 2 * codes + (scaled[:, axis] >> bit & 1)
        return self.stable_order(codes)

    def extent(self, points: Any) -> tuple[Any, Any]:
        """Return the least and the largest coordinates, which must be finite."""
        low, high = self.xp.amin(points, 0), self.xp.amax(points, 0)
        if not bool(self.xp.isfinite(low).all() and self.xp.isfinite(high).all()):
            raise ValueError("x: expected finite coordinates")
        return low, high

    def leaf_order(self, points: Any, n_leaves: int) -> Any:
        """Return the order of the leaves of a tree that halves points along their widest coordinate.

        The cuts are those of `balanced_clusters`, which cuts the order into `n_leaves` parts.
        """
        n_points = points.shape[0]
        order = self.arange(n_points)
        if n_points == 0 or points.shape[1] == 0:
            return order
        self.extent(points)
        parts = [(0, n_leaves)]
        while parts:
            first, last = parts.pop()
            if last - first < 2:
                continue
            middle = (first + last) // 2
            # The first point of leaf k is the least p with p * n_leaves // n_points >= k.
            begin, cut, end = (-(-leaf * n_points // n_leaves) for leaf in (first, middle, last))
            rows = order[begin:end]
            part = points[rows]
            widest = int((part.max(axis=0) - part.min(axis=0)).argmax())
            order[begin:end] = rows[self.xp.argpartition(part[:, widest], cut - begin)]
            parts += [(first, middle), (middle, last)]
        return order
