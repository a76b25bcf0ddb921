"""Reductions over pairs of dask arrays: one task for each block of rows with each block of columns.

A task computes the partial reduction of its pairs (`pair_partials`). With method "sequential" it also combines it
with the partial reduction of the columns before, so that each block of rows needs the memory of one partial
reduction and a few blocks of columns, whatever their number. With "tree" all tasks may run at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize

from upsweep import _arrays, _backends
from upsweep._compiler.formulas.reduction import PairReduction, outputs
from upsweep._dask import pair_partials
from upsweep._dask.block_scan import check_method
from upsweep._dask.graph import Blocks, Graph, Index, align_blocks, as_operands, check_library, without
from upsweep._dask.pair_partials import Partial


def operands(named: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return arguments as dask arrays of known sizes, and numbers as arrays."""
    arrays = [as_operands({name: value})[name] for name, value in named]
    check_library(zip((name for name, _ in named), arrays))
    return [array if isinstance(array, da.Array) else np.asarray(array) for array in arrays]


@dataclass(frozen=True)
class _Operations:
    """What the tasks compute: parts of a reduction, each with `n_threads`."""

    reduction: PairReduction
    n_threads: int

    def partial(self, begin: int, sizes: Index, *blocks: Any) -> Partial:
        """Reduce a block of pairs; its columns start at `begin`, `sizes` are those of batch, rows and columns."""
        *batch, n_i, n_j = sizes

        def run(reduction: PairReduction, arrays: Sequence[Any]) -> tuple[Any, ...]:
            ready = [_arrays.as_operand(array, f"array {place}") for place, array in enumerate(arrays)]
            return _backends.run_pairs(reduction, ready, n_i, n_j, tuple(batch), None, n_threads=self.n_threads)

        n_columns = n_j if self.reduction.rows == "i" else n_i
        return pair_partials.reduce_block(self.reduction, run, blocks, begin, n_columns)

    def next_partial(
        self, is_last: bool, before: Partial | None, waits_for: Any, begin: int, sizes: Index, *blocks: Any
    ) -> Any:
        """Reduce a block and combine it with the columns before; `waits_for` only orders the tasks."""
        partial = self.partial(begin, sizes, *blocks)
        if before is not None:
            partial = pair_partials.combine(self.reduction, before, partial)
        return self._finish(partial) if is_last else partial

    def combine(self, partials: list[Partial]) -> Partial:
        return functools.reduce(functools.partial(pair_partials.combine, self.reduction), partials)

    def finish(self, partials: list[Partial]) -> Any:
        return self._finish(self.combine(partials))

    def _finish(self, partial: Partial) -> Any:
        results = pair_partials.finish(self.reduction, partial)
        return results[0] if len(results) == 1 else results


def run_pairs(
    reduction: PairReduction, arrays: Sequence[Any], n_i: int, n_j: int, batch: tuple[int, ...],
    method: str | None = None, n_threads: int | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the results of `_backends.run_pairs` for dask arrays, and arrays in memory, as dask arrays."""
    method = check_method(method)
    _backends.check_threads(n_threads)
    kinds = {variable.static[0]: variable.static[1] for variable in reduction.variables}
    unread = np.zeros(1, reduction.dtype)  # stands for an array that the formula does not read
    blocks = _align([array if n in kinds else unread for n, array in enumerate(arrays)], kinds, batch, n_i, n_j)
    operations = _Operations(reduction, 1 if n_threads is None else n_threads)
    row_axis, column_axis = len(batch), len(batch) + 1
    if reduction.rows == "j":
        row_axis, column_axis = column_axis, row_axis
    used = [arrays[n] for n in sorted(kinds)]
    token = tokenize("pairs", reduction.key(), reduction.precision, used, n_i, n_j, batch, method, n_threads)
    name, state_name = f"pairs-{token}", f"pairs-state-{token}"
    read = blocks.reader(*blocks.operands)
    begins = np.cumsum([0, *blocks.chunks[column_axis]]).tolist()
    like = next(array for array in arrays if isinstance(array, da.Array))
    graph = Graph(f"pairs-states-{token}", blocks, like)
    results = {}
    for index, column in blocks.columns(column_axis):
        columns = [(block, (begin, blocks.shape(block), *read(block))) for block, begin in zip(column, begins)]
        key = (name, *without(index, column_axis), 0)
        if method == "sequential":
            last = _add_chain(graph, operations, columns, state_name, row_axis)
            results[key] = Task(key, operations.next_partial, True, *last)
        else:
            states = [graph.add((state_name, *block), operations.partial, *task) for block, task in columns]
            group = graph.reduce_groups(f"pairs-part-{token}", operations.combine, states, key[1:])
            results[key] = Task(key, operations.finish, group)
    chunks = without(blocks.chunks, column_axis)
    dims, output_kinds = zip(*outputs(reduction))
    dtypes = [np.dtype(np.int64 if kind == "index" else reduction.dtype) for kind in output_kinds]
    return tuple(graph.arrays(name, results, [(*chunks, (dim,)) for dim in dims], dtypes))


def _add_chain(
    graph: Graph, operations: _Operations, columns: list[tuple[Index, tuple[Any, ...]]], name: str, row_axis: int
) -> tuple[Any, ...]:
    """Add one task per block of columns, but for the last; return the arguments of `next_partial` for that one.

    All blocks of rows read the same columns and stay in step, so that a block of columns can be released soon:
    each task waits for one of other rows, 1, 2, 4, ... blocks ahead, and so for all within log2(n_rows) blocks of
    columns.
    """
    n_rows = graph.blocks.numblocks[row_axis]
    n_rounds = max(1, (n_rows - 1).bit_length())
    before: tuple[TaskRef | None, TaskRef | None] = None, None
    for step, (block, task) in enumerate(columns[:-1]):
        state = graph.add((name, *block), operations.next_partial, False, *before, *task)
        other = (block[row_axis] + (1 << step % n_rounds)) % n_rows
        before = state, TaskRef((name, *block[:row_axis], other, *block[row_axis + 1 :]))
    return *before, *columns[-1][1]


def _align(arrays: Sequence[Any], kinds: dict[int, str], batch: tuple[int, ...], n_i: int, n_j: int) -> Blocks:
    """Align the blocks along batch, rows and columns; the features of each array are one block."""
    n_batch, shape = len(batch), (*batch, n_i, n_j)

    def axes_of(name: str, array: da.Array) -> Index:
        position = int(name)
        # Parameters of a batch have one row.
        axes = () if array.ndim == 1 else (*range(n_batch), n_batch + (kinds[position] == "j"))
        return *axes, len(shape) + position

    operands: dict[str, Any] = {}
    for n, array in enumerate(arrays):
        if n not in kinds:
            operands[str(n)] = array
        elif isinstance(array, da.Array):
            operands[str(n)] = array.rechunk({array.ndim - 1: -1})
        else:
            operands[str(n)] = da.from_array(array, chunks=-1)
    return align_blocks(operands, axes_of, shape)
