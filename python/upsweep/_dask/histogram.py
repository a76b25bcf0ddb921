"""Histograms of dask arrays: one task for each block, and a tree that adds them; before, a tree for the range."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Alias, Task
from dask.base import tokenize

from upsweep import _backends
from upsweep._core import histogram as histogram_problem
from upsweep._dask.graph import Graph, align_blocks, as_operands, has_unknown_sizes

# The dtypes that sums are added in from block to block; they are rounded to that of the weights once, at the end.
_WIDE = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}


@dataclass(frozen=True)
class _Operations:
    """What the tasks compute.

    `dtype` is that of sums, None for counts; `empty` is a block without elements of the library of the blocks.
    """

    histogram: Callable[..., Any]
    bins: Any
    density: bool
    n_threads: int
    dtype: np.dtype[Any] | None
    empty: Any

    def block(self, x: Any, weights: Any, limits: Any) -> Any:
        if weights is not None:
            weights = weights.astype(_WIDE.get(weights.dtype.kind, weights.dtype), copy=False)
        return self.histogram(x, self.bins, limits, weights=weights, n_threads=self.n_threads)[0]

    def edges(self, limits: Any) -> Any:
        return self.histogram(self.empty, self.bins, limits)[1]

    def result(self, total: Any, edges: Any) -> Any:
        if self.dtype is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                total = total.astype(self.dtype, copy=False)
        return total / np.diff(edges).astype(float) / total.sum() if self.density else total


def _add(parts: list[Any]) -> Any:
    """Add in order; for bool, a logical or."""
    return functools.reduce(operator.iadd, parts[1:], parts[0].copy())


def _extremes(x: Any) -> Any:
    """Return the least and the largest element as numbers; () for an empty block."""
    return tuple(np.array(end.item(), x.dtype)[()] for end in (x.min(), x.max())) if x.size else ()


def _combine_extremes(parts: list[Any]) -> Any:
    ends = [end for part in parts for end in part]
    return (np.min(ends), np.max(ends)) if ends else ()  # propagates NaN


def _limits(parts: list[Any]) -> Any:
    limits = _combine_extremes(parts) or (0.0, 1.0)
    if not np.all(np.isfinite(limits)):
        raise ValueError(f"x: autodetected range of [{limits[0]}, {limits[1]}] is not finite")
    return limits


def _reject_lazy(numbers: Any, name: str) -> None:
    """Raise for dask arrays among numbers, which each task would compute again."""
    if isinstance(numbers, (tuple, list)) and any(isinstance(number, da.Array) for number in numbers):
        raise TypeError(
            f"{name}: expected numbers in memory for dask arrays, got a dask array; compute them first"
        )


def _check_shape(weights: da.Array, x: da.Array) -> None:
    """Raise unless weights have x's shape; where that is unknown, tasks compare the shapes of blocks."""
    if has_unknown_sizes(weights) or has_unknown_sizes(x):
        if weights.chunks != x.chunks:
            raise ValueError(
                f"weights: expected the blocks of x, {x.numblocks} of them, got {weights.numblocks} others. Those "
                "of unknown sizes cannot be cut: index both with one mask, or call compute_chunk_sizes() of each"
            )
    else:
        histogram_problem.check_weights(weights, x)


def histogram(
    function: Callable[..., Any], x: Any, bins: Any, *, range: Any, weights: Any, density: bool,
    n_threads: int | None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the counts, or sums, and the edges as dask arrays."""
    if isinstance(bins, (str, da.Array)):
        got = (
            "a rule; pass a number of bins and range="
            if isinstance(bins, str)
            else "a dask array; compute it first"
        )
        raise TypeError(f"bins: expected a number or edges in memory for dask arrays, got {got}")
    _reject_lazy(bins, "bins")
    _reject_lazy(range, "range")
    _backends.check_threads(n_threads)
    filled = "da.ma.filled(x.astype(float), np.nan), which lies in no bin, with range= or edges"
    operands = as_operands({"x": x, "weights": weights}, any_sizes=True, filled=filled)
    array, summands = operands["x"], operands["weights"]
    array = operands["x"] = array if isinstance(array, da.Array) else da.asarray(array)
    if summands is not None:
        _check_shape(da.asarray(summands), array)
    has_limits = np.ndim(bins) > 0 or range is not None
    empty_weights = None if summands is None else np.empty(0, summands.dtype)
    span = 1 if array.dtype.kind not in "mM" else bins  # bins of dates are whole units
    limits = range if has_limits else tuple(np.array([0, span]).astype(array.dtype))
    sample, edges = function(np.empty(0, array.dtype), bins, limits, weights=empty_weights)

    blocks = align_blocks(operands, lambda name, array: tuple(np.arange(array.ndim).tolist()))
    operations = _Operations(
        function, bins, bool(density), 1 if n_threads is None else n_threads,
        None if summands is None else sample.dtype, np.empty_like(array._meta, shape=(0,)),
    )  # fmt: skip
    token = tokenize("histogram", operands, bins, range, density, n_threads)
    graph = Graph(f"histogram-part-{token}", blocks)
    read, indices = blocks.reader("x", "weights"), list(blocks.indices())
    limits = range
    if not has_limits:
        ends = [graph.add((f"histogram-extremes-{token}", *i), _extremes, read(i)[0]) for i in indices]
        group = graph.reduce_groups(f"histogram-range-part-{token}", _combine_extremes, ends)
        limits = graph.add((f"histogram-range-{token}",), _limits, group)
    parts = [graph.add((f"histogram-block-{token}", *i), operations.block, *read(i), limits) for i in indices]
    total = graph.add((f"histogram-total-{token}",), _add, graph.reduce_groups(graph.name, _add, parts))
    block_edges = graph.add((f"histogram-limits-{token}",), operations.edges, limits)

    key, edges_key = (f"histogram-{token}", 0), (f"histogram-edges-{token}", 0)
    dtype = np.result_type(sample.dtype, np.float64) if density else sample.dtype
    results = {key: Task(key, operations.result, total, block_edges)}
    edge_tasks = {edges_key: Alias(edges_key, block_edges.key)}
    counts = graph.array(key[0], results, ((sample.size,),), dtype)
    return counts, graph.array(edges_key[0], edge_tasks, ((edges.size,),), edges.dtype)
