"""Counts of dask arrays: one task counts each block, and a tree adds the counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Task
from dask.base import tokenize

from upsweep import _arrays, _backends
from upsweep._core import bincount as bincount_problem
from upsweep._dask.graph import Graph, Index, Key, align_blocks, as_operands, placeholder

Counted = tuple[Any, Any]  # counts, number of invalid keys


class _Outside(NamedTuple):
    """The first key of a block, or of several, that is outside the bins, in place of their counts."""

    position: Index  # in the whole array
    value: int


@dataclass(frozen=True)
class _Operations:
    """What the tasks compute: `count` with these keywords on each block."""

    count: Callable[..., Any]
    minlength: int
    keywords: dict[str, Any]
    axis: int  # of the bins in a result
    dtype: np.dtype[Any]

    def block(self, begin: Index, x: Any, weights: Any) -> Counted | _Outside:
        """Count a block whose first key is at `begin`."""
        try:
            counted = self.count(x, weights, self.minlength, **self.keywords)
        except ValueError:
            length = self.keywords["length"]
            outside = x < 0 if length is None else (x < 0) | (x >= length)
            if self.keywords["invalid"] == "drop" or not outside.any():
                raise
            # Which block fails first depends on the scheduler; the first key of all does not.
            index = tuple(map(int, np.unravel_index(int(outside.argmax()), x.shape)))
            return _Outside(tuple(map(sum, zip(begin, index))), int(x[index]))
        return counted if self.keywords["return_invalid"] else (counted, 0)

    def add(self, parts: list[Any]) -> Any:
        """Add in order; parts with fewer bins are padded with zeros."""
        outside = [part for part in parts if isinstance(part, _Outside)]
        if outside:
            return min(outside)
        first, axis = parts[0][0], self.axis
        n_bins = max(part.shape[axis] for part, _ in parts)
        shape = (*first.shape[:axis], n_bins, *first.shape[axis + 1 :])
        is_copied = first.shape == shape
        counts = first.copy() if is_copied else np.zeros_like(first, shape=shape)
        for part, _ in parts[is_copied:]:
            counts[(slice(None),) * axis + (slice(part.shape[axis]),)] += part
        return counts, sum(n for _, n in parts)

    def result(self, total: Any) -> Any:
        if isinstance(total, _Outside):
            raise bincount_problem.key_error(*total, self.keywords["length"])
        return total[0].astype(self.dtype, copy=False)


def _add_invalid(totals: list[Counted]) -> tuple[None, Any]:
    return None, sum(n for _, n in totals)


def _n_invalid(totals: list[Counted]) -> Any:
    n_invalid = _add_invalid(totals)[1]
    return n_invalid if _arrays.any_on_device(n_invalid) else np.asarray(n_invalid, np.int64)


def bincount(
    function: Callable[..., Any], x: Any, weights: Any, minlength: int, *, length: int | None, axis: int | None,
    dtype: Any, invalid: Any, deterministic: bool, return_invalid: bool, n_threads: int | None,
) -> Any:  # fmt: skip
    """Return the counts as a dask array, and the number of invalid keys as another one if `return_invalid`."""
    _backends.check_threads(n_threads)
    operands = as_operands(
        {"x": x, "weights": weights}, filled="da.ma.filled(x.astype(int), -1) with invalid='drop'",
        unindexed="keys without it, da.where(mask, x, -1), with invalid='drop'",
    )  # fmt: skip
    checked = bincount_problem.normalise_count(
        placeholder(operands["x"]), placeholder(operands["weights"]), minlength, length=length, axis=axis,
        out=None, accumulate=False, dtype=dtype, invalid=invalid, deterministic=deterministic,
        return_invalid=return_invalid,
    )  # fmt: skip
    keys, bin_axis = operands["x"], checked.axis
    if checked.n_bins is None and keys.ndim > 1:
        raise ValueError("length: needed with axis and dask arrays, whose rows could have other numbers of bins")
    blocks = align_blocks(operands, lambda name, array: tuple(range(array.ndim)))
    keywords = {
        "length": checked.n_bins, "axis": axis, "dtype": checked.accumulator, "invalid": invalid,
        "deterministic": bool(deterministic), "return_invalid": bool(return_invalid),
        "n_threads": 1 if n_threads is None else n_threads,
    }  # fmt: skip
    operations = _Operations(function, checked.least, keywords, bin_axis, checked.dtype)
    token = tokenize("bincount", operands, minlength, keywords, checked.dtype)
    name = f"bincount-{token}"
    graph = Graph(f"bincount-part-{token}", blocks)
    results: dict[Key, Any] = {}
    totals = []
    read = blocks.reader("x", "weights")
    for index, column in blocks.columns(bin_axis):
        tasks = [
            ((f"bincount-block-{token}", *block), operations.block, blocks.begin(block)[: keys.ndim], *read(block))
            for block in column
        ]
        parts = [graph.add(*task) for task in tasks]
        group = graph.reduce_groups(graph.name, operations.add, parts, index)
        total = graph.add((f"bincount-total-{token}", *index), operations.add, group)
        results[(name, *index)] = Task((name, *index), operations.result, total)
        if not any(index[keys.ndim :]):  # all sums of a key have the same invalid keys
            totals.append(total)
    bins: Any = (np.nan if checked.n_bins is None else checked.n_bins,)
    chunks = (*blocks.chunks[:bin_axis], bins, *blocks.chunks[bin_axis + 1 :])
    if not return_invalid:
        return graph.array(name, results, chunks, checked.dtype)
    key = (f"bincount-invalid-{token}",)
    invalid = Task(key, _n_invalid, graph.reduce_groups(f"bincount-invalid-part-{token}", _add_invalid, totals))
    n_invalid = graph.array(key[0], {key: invalid}, (), np.dtype(np.int64))
    return graph.array(name, results, chunks, checked.dtype), n_invalid
