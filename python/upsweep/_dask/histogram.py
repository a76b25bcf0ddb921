"""Histograms of dask arrays: of each block, added up in groups; before that its range, where none is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Alias, Task, TaskRef
from dask.base import tokenize

from upsweep import _backends
from upsweep._dask import graphs
from upsweep._dask.graphs import Keys

__all__ = ["histogram"]

# What sums are added in from block to block: rounded to the weights' own dtype once, in the end.
_WIDE = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}


@dataclass(frozen=True)
class _Work:
    """What tasks do: the histogram, its bins, the dtype of sums (None for counts), a block without elements."""

    histogram: Callable[..., Any]
    bins: Any
    density: bool
    n_threads: int
    dtype: np.dtype[Any] | None
    nothing: Any

    def block(self, x: Any, weights: Any, limits: Any) -> Any:
        if weights is not None:
            weights = weights.astype(_WIDE.get(weights.dtype.kind, weights.dtype), copy=False)
        return self.histogram(x, self.bins, limits, weights=weights, n_threads=self.n_threads)[0]

    def edges(self, limits: Any) -> Any:
        return self.histogram(self.nothing, self.bins, limits)[1]

    def result(self, total: Any, edges: Any) -> Any:
        if self.dtype is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                total = total.astype(self.dtype, copy=False)
        return total / np.diff(edges).astype(float) / total.sum() if self.density else total


def _total(parts: list[Any]) -> Any:
    """Parts are added in order; of bool, whether there is any."""
    whole = parts[0].copy()
    for part in parts[1:]:
        whole += part
    return whole


def _extremes(x: Any) -> Any:
    """The least and the largest element, in the host's memory; None for nothing."""
    return tuple(x.dtype.type(end.item()) for end in (x.min(), x.max())) if x.size else None


def _extremes_of(parts: list[Any]) -> Any:
    found = [part for part in parts if part is not None]
    if not found:
        return None
    # A NaN is to be found again, whichever side it comes from.
    return np.min([low for low, _ in found]), np.max([high for _, high in found])


def _limits(parts: list[Any]) -> Any:
    limits = _extremes_of(parts)
    if limits is not None and not np.all(np.isfinite(limits)):
        raise ValueError(f"x: autodetected range of [{limits[0]}, {limits[1]}] is not finite")
    return (0.0, 1.0) if limits is None else limits


def _refuse_lazy(numbers: Any, name: str) -> None:
    """Refuse dask arrays among numbers, which would be computed here, and by each task again."""
    if isinstance(numbers, (tuple, list)) and any(isinstance(number, da.Array) for number in numbers):
        raise TypeError(
            f"{name}: expected numbers in memory for dask arrays, got a dask array; compute them first"
        )


def histogram(
    function: Callable[..., Any],
    x: Any,
    bins: Any,
    *,
    range: Any,
    weights: Any,
    density: bool,
    n_threads: int | None,
) -> tuple[Any, Any]:
    """The counts, or sums, and the edges as dask arrays."""
    if isinstance(bins, (str, da.Array)):
        kind = "a rule" if isinstance(bins, str) else "a dask array"
        raise TypeError(
            f"bins: expected a number or edges in memory for dask arrays, got {kind}; compute them first"
        )
    _refuse_lazy(bins, "bins")
    _refuse_lazy(range, "range")
    _backends.check_threads(n_threads)
    operands = graphs.as_operands({"x": x, "weights": weights})
    given, summands = operands["x"], operands["weights"]
    if summands is not None and np.shape(summands) != np.shape(given):
        raise ValueError(f"weights: expected x's shape {np.shape(given)}, got {np.shape(summands)}")
    given = operands["x"] = given if isinstance(given, da.Array) else da.asarray(given)
    known = np.ndim(bins) > 0 or range is not None
    nothing = np.empty(0, given.dtype)
    empty_weights = None if summands is None else np.empty(0, summands.dtype)
    low_high = range if known else tuple(np.arange(2).astype(given.dtype))
    sample, edges = function(nothing, bins, low_high, weights=empty_weights)

    axes = {
        name: tuple(np.arange(operand.ndim).tolist()) if isinstance(operand, da.Array) else ()
        for name, operand in operands.items()
    }
    blocks = graphs.cut_alike(operands, axes)
    empty = graphs.empty_like(given, 1, given.dtype)  # where the blocks are, the edges will be
    work = _Work(function, bins, bool(density), 1 if n_threads is None else n_threads,
                 None if summands is None else sample.dtype, empty)  # fmt: skip
    token = tokenize("histogram", operands, bins, range, density, n_threads)
    parts, name, edges_name = (f"histogram-{part}{token}" for part in ("part-", "", "edges-"))

    tasks: dict[Keys, Any] = {}
    reads = blocks.readers("x"), blocks.readers("weights")
    places = list(blocks.indices())
    limits = range
    if not known:
        ends = [(f"histogram-extremes-{token}", *place) for place in places]
        for key, place in zip(ends, places):
            tasks[key] = Task(key, _extremes, reads[0](place))
        whole = (f"histogram-range-{token}",)
        graphs.tree(tasks, f"histogram-range-part-{token}", _extremes_of, ends, whole)
        tasks[whole] = Task(whole, _limits, *tasks[whole].args)
        limits = TaskRef(whole)
    counted = [(f"histogram-block-{token}", *place) for place in places]
    for key, place in zip(counted, places):
        tasks[key] = Task(key, work.block, reads[0](place), reads[1](place), limits)
    total = (f"histogram-total-{token}",)
    graphs.tree(tasks, parts, _total, counted, total)
    at_edges = (f"histogram-limits-{token}",)
    tasks[at_edges] = Task(at_edges, work.edges, limits)

    graph = graphs.with_layer(parts, tasks, blocks.arrays)
    key, edges_key = (name, 0), (edges_name, 0)
    results = {key: Task(key, work.result, TaskRef(total), TaskRef(at_edges))}
    edge_tasks = {edges_key: Alias(edges_key, at_edges)}
    dtype = np.result_type(sample.dtype, np.float64) if density else sample.dtype
    return (
        graphs.new_array(graphs.on_top(graph, name, results, parts), name, ((sample.size,),), dtype, given),
        graphs.new_array(graphs.on_top(graph, edges_name, edge_tasks, parts), edges_name, ((edges.size,),),
                         edges.dtype, given),
    )  # fmt: skip
