"""Array operations of `upsweep.cluster` on tensors, where they differ from those of `_core/cluster.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from upsweep._core.cluster import ArrayOps

_COUNTED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # what torch.bincount takes


def _tensor(x: Any, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor, as another argument is one, got {type(x).__qualname__}")
    return x


class TensorOps(ArrayOps):
    """Operations on tensors, on the device of one of them."""

    MIN_WEIGHT: float | None = 1e-9

    def __init__(self, like: Tensor) -> None:
        super().__init__(torch, device=like.device)
        self.device = like.device

    def points(self, x: Any, name: str) -> Tensor:
        return super().points(_tensor(x, name).detach(), name)

    def labels(self, lab: Any) -> Tensor:
        if _tensor(lab, "lab").is_floating_point() or lab.is_complex():
            raise TypeError(f"lab: expected integers, got {lab.dtype}")
        return lab.reshape(-1)

    def check_sorted(self, lab: Tensor) -> None:
        super().check_sorted(self._counted(lab))

    def at_least(self, weights: Tensor, least: float) -> Tensor:
        return weights.clamp(min=least)

    def at_labels(self, totals: Tensor, lab: Tensor, name: str) -> Tensor:
        return super().at_labels(totals, self._counted(lab), name)

    def _counted(self, lab: Tensor) -> Tensor:
        return lab if lab.dtype in _COUNTED else lab.to(torch.int64)

    def floats(self, totals: Tensor, like: Tensor) -> Tensor:
        """The weights of clusters, in the dtype of the points' weights."""
        return totals.to(like.dtype if like.is_floating_point() else torch.get_default_dtype())

    def stable_order(self, x: Tensor) -> Tensor:
        return torch.argsort(x, stable=True)

    def descending_order(self, x: Tensor) -> Tensor:
        return torch.argsort(x, descending=True, stable=True)  # unsigned tensors have no negative

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

    def cells(self, points: Tensor, size: Any) -> Tensor:
        size = torch.as_tensor(size, dtype=points.dtype, device=self.device)
        self.check_cell_size(size, points, size.tolist())
        if points.shape[0]:
            points = points - points.min(dim=0).values
        return self.checked_cells(torch.floor(points / size))

    def leaf_order(self, points: Tensor, n_leaves: int) -> Tensor:
        """All parts of a level at once, by two stable sorts: a device has no use for one part after the other."""
        n_points, n_axes = points.shape
        order = self.arange(n_points)
        if n_points == 0 or n_axes == 0:
            return order
        self.extent(points)
        places = self.arange(n_points)
        parts = [0, n_leaves]  # leaves at which parts begin
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
