"""Counts of dask arrays: of each block, added up in groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize

from upsweep import _arrays, _backends
from upsweep._core import bincount as bincount_problem
from upsweep._dask import graphs
from upsweep._dask.graphs import Keys

__all__ = ["bincount"]


@dataclass(frozen=True)
class _Work:
    """What tasks do: the count, and its keywords for every block."""

    count: Callable[..., Any]
    minlength: int
    keywords: dict[str, Any]
    axis: int  # of the bins in a result
    dtype: np.dtype[Any]

    def block(self, place: tuple[int, ...], x: Any, weights: Any) -> tuple[Any, Any]:
        """The counts of a block, and how many keys it had outside of the bins."""
        try:
            counted = self.count(x, weights, self.minlength, **self.keywords)
        except ValueError as error:
            error.add_note(f"x: in its block {place}; elements are counted from there")
            raise
        return counted if self.keywords["return_invalid"] else (counted, 0)

    def total(self, parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        """Parts are added in order; those with fewer bins end in zeros."""
        most = max(range(len(parts)), key=lambda i: parts[i][0].shape[self.axis])
        longest = parts[most][0].shape[self.axis]
        counts = None
        for part, _ in parts:
            if counts is None:
                shape = (*part.shape[: self.axis], longest, *part.shape[self.axis + 1 :])
                counts = part.copy() if part.shape == shape else np.zeros_like(part, shape=shape)
                if part.shape == shape:
                    continue
            held = (slice(None),) * self.axis + (slice(part.shape[self.axis]),)
            counts[held] += part
        return counts, sum(n for _, n in parts)

    def rounded(self, total: tuple[Any, Any]) -> Any:
        return total[0].astype(self.dtype, copy=False)


def _n_invalid(totals: list[tuple[Any, Any]]) -> Any:
    n_invalid = sum(n for _, n in totals)
    return n_invalid if _arrays.any_on_device(n_invalid) else np.asarray(n_invalid, np.int64)


def bincount(
    function: Callable[..., Any],
    x: Any,
    weights: Any,
    minlength: int,
    *,
    length: int | None,
    axis: int | None,
    dtype: Any,
    invalid: Any,
    deterministic: bool,
    return_invalid: bool,
    n_threads: int | None,
) -> Any:
    """The counts as a dask array, and those of keys left out as another one."""
    _backends.check_threads(n_threads)
    operands = graphs.as_operands({"x": x, "weights": weights})
    checked = bincount_problem.normalise_count(
        graphs.stand_in(operands["x"]), graphs.stand_in(operands["weights"]), minlength, length=length, axis=axis,
        out=None, accumulate=False, dtype=dtype, invalid=invalid, deterministic=deterministic,
        return_invalid=return_invalid,
    )  # fmt: skip
    keys, at = operands["x"], checked.axis
    if checked.n_bins is None and keys.ndim > 1:
        raise ValueError("length: needed with axis and dask arrays, whose rows could have other numbers of bins")
    axes = {
        name: tuple(range(operand.ndim)) if isinstance(operand, da.Array) else ()
        for name, operand in operands.items()
    }
    blocks = graphs.cut_alike(operands, axes)
    keywords = {
        "length": checked.n_bins, "axis": axis, "dtype": checked.accumulator, "invalid": invalid,
        "deterministic": bool(deterministic), "return_invalid": bool(return_invalid),
        "n_threads": 1 if n_threads is None else n_threads,
    }  # fmt: skip
    work = _Work(function, checked.least, keywords, at, checked.dtype)
    token = tokenize("bincount", operands, minlength, keywords, checked.dtype)
    parts, name = f"bincount-part-{token}", f"bincount-{token}"

    tasks: dict[Keys, Any] = {}
    results: dict[Keys, Any] = {}
    totals = []
    read_keys, read_weights = blocks.readers("x"), blocks.readers("weights")
    for index in blocks.indices(but=(at,)):
        counted = []
        for i in range(blocks.numblocks[at]):
            place = (*index[:at], i, *index[at + 1 :])
            counted.append((f"bincount-block-{token}", *place))
            tasks[counted[-1]] = Task(counted[-1], work.block, place, read_keys(place), read_weights(place))
        total = (f"bincount-total-{token}", *index)
        graphs.tree(tasks, parts, work.total, counted, total)
        results[(name, *index)] = Task((name, *index), work.rounded, TaskRef(total))
        if not any(index[keys.ndim :]):  # the sums of a key are left out together
            totals.append(total)

    like = blocks.like
    graph = graphs.with_layer(parts, tasks, blocks.arrays)
    bins = (np.nan if checked.n_bins is None else checked.n_bins,)
    chunks = (*blocks.chunks[:at], bins, *blocks.chunks[at + 1 :])
    counts = graphs.new_array(graphs.on_top(graph, name, results, parts), name, chunks, checked.dtype, like)
    if not return_invalid:
        return counts
    invalid_name = f"bincount-invalid-{token}"
    last: dict[Keys, Any] = {}
    graphs.tree(last, f"{invalid_name}-part", _invalid_of, totals, (invalid_name,))
    last[(invalid_name,)] = Task((invalid_name,), _n_invalid, *last[(invalid_name,)].args)
    top = graphs.on_top(graph, invalid_name, last, parts)
    return counts, graphs.new_array(top, invalid_name, (), np.dtype(np.int64), like)


def _invalid_of(totals: list[tuple[Any, Any]]) -> tuple[None, Any]:
    return None, sum(n for _, n in totals)
