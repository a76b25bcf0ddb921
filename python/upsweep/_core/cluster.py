"""Sorting, counting and cutting of points: what `cluster` does, for arrays of numpy and of what has its functions.

`_torch/cluster.py` overrides the methods that differ for tensors.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["MORTON_BITS", "Tools", "fold_cells", "tools_of"]

MORTON_BITS = 62  # of an int64 that stays positive


def tools_of(*values: Any) -> Tools:
    """For numpy's arrays and lists, or for cupy's where one of these is."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and any(isinstance(value, cupy.ndarray) for value in values):
        return Tools(cupy)
    return Tools(np)


def fold_cells(tools: Any, cells: Any) -> Any:
    """One number for each row of cells (M, D), int64: equal and ordered as the rows are.

    Coordinates are folded in one after the other; before the numbers could leave int64, both factors are replaced
    by their ranks, which are below M.
    """
    n_points, n_axes = cells.shape
    folded, n_folded = tools.zeros(n_points), 1
    if n_points == 0:
        return folded
    for axis in range(n_axes):
        column = cells[:, axis]
        least = int(column.min())
        n_values = int(column.max()) - least + 1
        if n_folded * n_values < 2**62:
            column = column - least
        else:
            column, n_values = tools.ranks(column)
            folded, n_folded = tools.ranks(folded)
        folded, n_folded = folded * n_values + column, n_folded * n_values
    return folded


class Tools:
    MIN_WEIGHT: float | None = None

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    # ---- arguments ---------------------------------------------------------------------------------------------

    def array(self, x: Any) -> Any:
        return self.xp.asarray(x)

    def points(self, x: Any, name: str) -> Any:
        x = self.xp.asarray(x)
        if x.ndim != 2:
            raise ValueError(f"{name}: expected points in two axes, (M, D), got shape {tuple(x.shape)}")
        return x

    def labels(self, lab: Any) -> Any:
        lab = self.xp.asarray(lab).ravel()
        if lab.dtype.kind not in "iu" and lab.size:
            raise TypeError(f"lab: expected integers, got dtype {lab.dtype}")
        return lab if lab.size else lab.astype(np.int64)

    def integers(self, x: Any) -> Any:
        return self.xp.asarray(x).ravel().astype(np.int64)

    def at_least(self, weights: Any, least: float) -> Any:
        return self.xp.maximum(weights, least)

    def at_labels(self, totals: Any, lab: Any, name: str) -> Any:
        """The argument, which has to have a number for each label."""
        if len(lab) and int(lab.max()) >= totals.shape[0]:
            raise ValueError(
                f"{name}: expected one for each of {int(lab.max()) + 1} labels, got {totals.shape[0]}"
            )
        return totals

    # ---- arrays ------------------------------------------------------------------------------------------------

    def zeros(self, n: int) -> Any:
        return self.xp.zeros(n, np.int64)

    def arange(self, n: int) -> Any:
        return self.xp.arange(n, dtype=np.int64)

    def stack(self, *columns: Any) -> Any:
        return self.xp.stack(columns, axis=1)

    def floats(self, totals: Any, like: Any) -> Any:
        """KeOps' weights of clusters: float64 in numpy."""
        return totals.astype(np.float64)

    # ---- sorting and counting ----------------------------------------------------------------------------------

    def ranks(self, x: Any) -> tuple[Any, int]:
        """Each element's place among the distinct ones, and how many there are."""
        values, places = self.xp.unique(x, return_inverse=True)
        return places.reshape(-1), len(values)

    def stable_order(self, x: Any) -> Any:
        return self.xp.argsort(x, kind="stable")

    def descending_order(self, x: Any) -> Any:
        return self.stable_order(-x)

    def cumulative_sum(self, x: Any) -> Any:
        return self.xp.cumsum(x, dtype=np.int64)

    def count(self, lab: Any) -> Any:
        if len(lab) and int(lab.min()) < 0:
            raise ValueError(f"lab: labels have to be 0 or more, got {int(lab.min())}")
        return self.xp.bincount(lab)

    def sum_by_label(self, lab: Any, x: Any, n_labels: int | None, weights: Any = None) -> Any:
        """The sum of rows of each label, in float64: (C, D)."""
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
        """How many entries are set up to the end of each row, and the column of each."""
        keep = self.xp.asarray(keep).astype(bool)
        return self.cumulative_sum(keep.sum(axis=1)), self.xp.nonzero(keep)[1]

    # ---- cells and curves --------------------------------------------------------------------------------------

    def cells(self, points: Any, size: Any) -> Any:
        size = self.xp.asarray(size)
        if size.dtype.kind not in "iuf" or size.shape not in ((), (1,), points.shape[1:]):
            raise ValueError(f"size: expected a number, or one for each of {points.shape[1]} axes, got {size}")
        if not bool((size > 0).all()):
            raise ValueError(f"size: expected positive lengths, got {size}")
        cells = self.xp.floor(points / size)
        if not bool((abs(cells) < 2.0**62).all()):
            raise ValueError("x: expected finite coordinates, of fewer than 2**62 cells")
        return cells.astype(np.int64)

    def labels_of_cells(self, cells: Any) -> Any:
        return self.ranks(fold_cells(self, cells))[0]

    def morton_order(self, points: Any) -> Any:
        """The order along the Z curve, of as many bits a coordinate as an integer holds."""
        n_points, n_axes = points.shape
        codes = self.zeros(n_points)
        if n_points == 0 or n_axes == 0:
            return self.arange(n_points)
        low, high = self._extent(points)
        # Cells are cubes; axes beyond the bits, the narrowest, do not steer.
        span = high - low
        axes = self.descending_order(span)[:MORTON_BITS]
        axes = axes[: max(int((span > 0).sum()), 1)]
        n_bits = min(MORTON_BITS // len(axes), 31)
        side = float(span.max()) or 1.0
        scaled = (points - low)[:, axes] / side * 2.0**n_bits
        scaled = self.integers(scaled).reshape(scaled.shape).clip(0, 2**n_bits - 1)
        for bit in range(n_bits - 1, -1, -1):
            for axis in range(len(axes)):
                codes = 2 * codes + (scaled[:, axis] >> bit & 1)
        return self.stable_order(codes)

    def _extent(self, points: Any) -> tuple[Any, Any]:
        """Return the least and the largest coordinates."""
        low, high = self.xp.amin(points, axis=0), self.xp.amax(points, axis=0)
        if not bool(self.xp.isfinite(low).all() and self.xp.isfinite(high).all()):
            raise ValueError("x: expected finite coordinates")
        return low, high

    def leaf_order(self, points: Any, n_leaves: int) -> Any:
        """The order of the leaves of a tree that halves points along their widest coordinate.

        Cuts fall where `balanced_clusters` cuts the order into `n_leaves` parts.
        """
        n_points = points.shape[0]
        order = self.arange(n_points)
        if n_points == 0 or points.shape[1] == 0:
            return order
        self._extent(points)
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
