"""Array functions of clusters for torch tensors: sorting, counting and cutting of points on the tensors' device.

The class overrides the methods of `_core.cluster.Tools` whose functions have other names or rules in torch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from upsweep._core import cluster

__all__ = ["Tools"]


_COUNTED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # dtypes that torch.bincount takes


class Tools(cluster.Tools):
    """Array functions of the library and device of one tensor."""

    MIN_WEIGHT = 1e-9

    def __init__(self, like: Tensor) -> None:
        super().__init__(torch)
        self.device = like.device

    # ---- arguments ---------------------------------------------------------------------------------------------

    def array(self, x: Any) -> Tensor:
        return torch.as_tensor(x, device=self.device)

    def points(self, x: Any, name: str) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor, as another argument is one, got {type(x).__qualname__}")
        return super().points(x.detach(), name)

    def labels(self, lab: Any) -> Tensor:
        if not isinstance(lab, Tensor):
            raise TypeError(f"lab: expected a tensor, as another argument is one, got {type(lab).__qualname__}")
        if lab.is_floating_point() or lab.is_complex():
            raise TypeError(f"lab: expected integers, got {lab.dtype}")
        return lab.reshape(-1)

    def integers(self, x: Tensor) -> Tensor:
        return x.reshape(-1).to(torch.int64)

    def at_least(self, weights: Tensor, least: float) -> Tensor:
        return weights.clamp(min=least)

    def at_labels(self, totals: Tensor, lab: Tensor, name: str) -> Tensor:
        return super().at_labels(totals, self._counted(lab), name)

    def _counted(self, lab: Tensor) -> Tensor:
        return lab if lab.dtype in _COUNTED else lab.to(torch.int64)

    # ---- arrays ------------------------------------------------------------------------------------------------

    def zeros(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int64, device=self.device)

    def arange(self, n: int) -> Tensor:
        return torch.arange(n, device=self.device)

    def floats(self, totals: Tensor, like: Tensor) -> Tensor:
        """Return the weights of clusters in the dtype of the points' weights."""
        return totals.to(like.dtype if like.is_floating_point() else torch.get_default_dtype())

    # ---- sorting and counting ----------------------------------------------------------------------------------

    def stable_order(self, x: Tensor) -> Tensor:
        return torch.argsort(x, stable=True)

    def descending_order(self, x: Tensor) -> Tensor:
        return torch.argsort(x, descending=True, stable=True)

    def cumulative_sum(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 0, dtype=torch.int64)

    def count(self, lab: Tensor) -> Tensor:
        return super().count(self._counted(lab))

    def sum_by_label(
        self, lab: Tensor, x: Tensor, n_labels: int | None, weights: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        n_labels = len(self.count(lab)) if n_labels is None else n_labels
        wide = x.detach().to(torch.float64)
        if weights is not None:
            wide = wide * weights.detach()[:, None]
        sums = torch.zeros(n_labels, x.shape[1], dtype=torch.float64, device=self.device)
        return sums.index_add_(0, lab.to(torch.int64), wide)

    def quotient(self, sums: Tensor, totals: Tensor, like: Tensor) -> Tensor:
        mean = sums / totals.reshape(-1, 1)
        return mean.to(like.dtype if like.is_floating_point() else torch.float64)

    def rows_of_matrix(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        keep = keep.to(torch.bool)
        return self.cumulative_sum(keep.sum(dim=1)), keep.nonzero()[:, 1]

    # ---- cells and curves --------------------------------------------------------------------------------------

    def cells(self, points: Tensor, size: Any) -> Tensor:
        size = torch.as_tensor(size, dtype=points.dtype, device=self.device)
        if tuple(size.shape) not in ((), (1,), tuple(points.shape[1:])):
            raise ValueError(
                f"size: expected a number, or one for each of {points.shape[1]} axes, got {size.tolist()}"
            )
        if not bool((size > 0).all()):
            raise ValueError(f"size: expected positive lengths, got {size.tolist()}")
        if points.shape[0]:
            points = points - points.min(dim=0).values
        cells = torch.floor(points / size)
        if not bool((cells.abs() < 2.0**62).all()):
            raise ValueError("x: expected finite coordinates, of fewer than 2**62 cells")
        return cells.to(torch.int64)

    def leaf_order(self, points: Tensor, n_leaves: int) -> Tensor:
        """Cut all parts of a level at once by two stable sorts, because parts one at a time would be slow."""
        n_points, n_axes = points.shape
        order = self.arange(n_points)
        if n_points == 0 or n_axes == 0:
            return order
        self._extent(points)
        places = self.arange(n_points)
        parts = [0, n_leaves]  # the leaves at which parts begin
        while any(end - begin > 1 for begin, end in pairwise(parts)):
            begins = torch.tensor([-(-leaf * n_points // n_leaves) for leaf in parts[:-1]], device=self.device)
            part = torch.searchsorted(begins, places, right=True) - 1
            spread = part[:, None].expand(-1, n_axes)
            rows = points[order]
            kind = {"dim": 0, "index": spread, "src": rows, "include_self": False}
            empty = points.new_zeros(len(begins), n_axes)
            width = empty.scatter_reduce(reduce="amax", **kind) - empty.scatter_reduce(reduce="amin", **kind)
            along = rows.gather(1, width.argmax(dim=1)[part][:, None]).reshape(-1)
            by_value = torch.argsort(along, stable=True)
            order = order[by_value[torch.argsort(part[by_value], stable=True)]]
            middles = [(begin + end) // 2 for begin, end in pairwise(parts) if end - begin > 1]
            parts = sorted({*parts, *middles})
        return order
