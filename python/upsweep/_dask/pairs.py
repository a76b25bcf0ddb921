"""Reductions over pairs of dask arrays: rows in blocks, and for each the blocks of columns one after the other.

A task reduces one block of pairs and takes it together with what the blocks of columns before it gave, so that no
more is kept than that, and a few blocks of columns, whatever their number. `pair_states` says what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize

from upsweep import _arrays, _backends
from upsweep._compiler.formulas.reduction import PairReduction, outputs
from upsweep._dask import graphs
from upsweep._dask.columns import check_method, item
from upsweep._dask.graphs import Keys
from upsweep._dask.pair_states import State, combine, finish, of_block

__all__ = ["operands", "run_pairs"]


def operands(named: Sequence[tuple[str, Any]]) -> list[Any]:
    """Arguments as dask arrays of known sizes; numbers as arrays."""
    arrays = [graphs.as_operands({name: value})[name] for name, value in named]
    graphs.check_library(zip((name for name, _ in named), arrays))
    return [array if isinstance(array, da.Array) else np.asarray(array) for array in arrays]


@dataclass(frozen=True)
class _Work:
    """What tasks do: a reduction of blocks of its arrays.

    Parameters
    ----------
    reduction : PairReduction
        The whole.
    n_threads : int
        Of one task.
    """

    reduction: PairReduction
    n_threads: int

    def first(self, begin: int, sizes: tuple[int, ...], *blocks: Any) -> State:
        """The state of a block of pairs, whose columns begin at `begin`; sizes: batch, rows, columns."""
        *batch, n_i, n_j = sizes

        def run(reduction: PairReduction, arrays: Sequence[Any]) -> tuple[Any, ...]:
            ready = [_arrays.as_operand(array, f"array {place}") for place, array in enumerate(arrays)]
            return _backends.run_pairs(
                reduction, ready, n_i, n_j, tuple(batch), None, n_threads=self.n_threads
            )  # fmt: skip

        return of_block(self.reduction, run, blocks, begin, n_j if self.reduction.rows == "i" else n_i)

    def next(self, _: State, state: State, begin: int, sizes: tuple[int, ...], *blocks: Any) -> State:
        """The same with the blocks of columns before it; that of other rows is only waited for."""
        return combine(self.reduction, state, self.first(begin, sizes, *blocks))

    def only(self, begin: int, sizes: tuple[int, ...], *blocks: Any) -> Any:
        return self._finished(self.first(begin, sizes, *blocks))

    def last(self, _: State, state: State, begin: int, sizes: tuple[int, ...], *blocks: Any) -> Any:
        return self._finished(self.next(_, state, begin, sizes, *blocks))

    def together(self, states: list[State]) -> State:
        whole = states[0]
        for state in states[1:]:
            whole = combine(self.reduction, whole, state)
        return whole

    def all_together(self, states: list[State]) -> Any:
        return self._finished(self.together(states))

    def _finished(self, state: State) -> Any:
        """The results, of which one stands for itself."""
        results = finish(self.reduction, state)
        return results[0] if len(results) == 1 else results


def run_pairs(
    reduction: PairReduction, arrays: Sequence[Any], n_i: int, n_j: int, batch: tuple[int, ...],
    method: str | None = None, n_threads: int | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """`_backends.run_pairs` of dask arrays, and of such as lie in memory: its results as dask arrays."""
    method = check_method(method)
    _backends.check_threads(n_threads)
    kind_of = {v.static[0]: v.static[1] for v in reduction.variables}
    read = [place for place in range(len(arrays)) if place in kind_of]
    # An array that the formula does not read is not brought.
    unread = np.zeros(1, reduction.dtype)
    blocks = _cut({place: arrays[place] for place in read}, kind_of, batch, n_i, n_j)
    like = next(array for array in arrays if isinstance(array, da.Array))
    work = _Work(reduction, 1 if n_threads is None else n_threads)
    rows, along = len(batch), len(batch) + 1
    if reduction.rows == "j":
        rows, along = along, rows
    token = tokenize(
        "pairs", reduction.key(), [arrays[place] for place in read], n_i, n_j, batch, method, n_threads
    )
    name = f"pairs-{token}"
    readers = [blocks.readers(str(p)) if p in kind_of else lambda index: unread for p in range(len(arrays))]
    begins = np.cumsum([0, *blocks.chunks[along]]).tolist()

    tasks: dict[Keys, Any] = {}
    results: dict[Keys, Any] = {}
    for index in blocks.indices(but=(along,)):
        given = []
        for i in range(blocks.numblocks[along]):
            at = (*index[:along], i, *index[along + 1 :])
            sizes = tuple(chunks[n] for chunks, n in zip(blocks.chunks, at))
            given.append((at, (begins[i], sizes, *(reader(at) for reader in readers))))
        key = (name, *index[:along], *index[along + 1 :], 0)
        if method == "sequential":
            more, results[key] = _chain(work, token, given, key, rows, blocks.numblocks[rows])
        else:
            more, results[key] = _tree(work, token, given, key)
        tasks.update(more)

    chunks = (*blocks.chunks[:along], *blocks.chunks[along + 1 :])
    parts = f"pairs-states-{token}"
    graph = graphs.on_top(graphs.with_layer(parts, tasks, blocks.arrays), name, results, parts)
    made = []
    several = outputs(reduction)
    for place, (dim, kind) in enumerate(several):
        dtype = np.dtype(np.int64 if kind == "index" else reduction.dtype)
        if len(several) == 1:
            made.append(graphs.new_array(graph, name, (*chunks, (dim,)), dtype, like))
            continue
        own = f"pairs-output-{place}-{token}"
        each = {(own, *key[1:]): Task((own, *key[1:]), item, TaskRef(key), place) for key in results}
        above = graphs.on_top(graph, own, each, name)
        made.append(graphs.new_array(above, own, (*chunks, (dim,)), dtype, like))
    return tuple(made)


def _cut(
    arrays: dict[int, Any], kind_of: dict[int, str], batch: tuple[int, ...], n_i: int, n_j: int
) -> graphs.Blocks:
    """The arrays cut alike along batch, rows and columns; features come behind, and are not cut."""
    n_batch, shape = len(batch), (*batch, n_i, n_j)
    lazy, axes = {}, {}
    for place, array in arrays.items():
        name, kind = str(place), kind_of[place]
        if isinstance(array, da.Array):
            lazy[name] = array.rechunk({array.ndim - 1: -1})
        else:
            lazy[name] = da.from_array(array, chunks=-1)
        # Parameters of a batch have one row.
        own = () if array.ndim == 1 else (*range(n_batch), n_batch + (kind == "j"))
        axes[name] = (*own, len(shape) + place)
    return graphs.cut_alike(lazy, axes, shape)


_Given = list[tuple[tuple[int, ...], tuple[Any, ...]]]
_Tasks = dict[Keys, Any]


def _chain(
    work: _Work, token: str, given: _Given, key: Keys, rows: int, n_rows: int
) -> tuple[_Tasks, Task]:  # fmt: skip
    """A block of columns after the other: each task holds a state and a block.

    All blocks of rows read the same columns, and keep step with each other, so that a block of columns can go
    soon: each waits for another one, 1, 2, 4, ... places on, and so for all within log2(n_rows) blocks of columns.
    """
    n_turns = max(1, (n_rows - 1).bit_length())
    name = f"pairs-state-{token}"
    tasks: _Tasks = {}
    before: tuple[TaskRef, ...] = ()
    for step, (place, arguments) in enumerate(given[:-1]):
        own = (name, *place)
        tasks[own] = Task(own, work.next if before else work.first, *before, *arguments)
        other = (place[rows] + (1 << step % n_turns)) % n_rows
        before = TaskRef((name, *place[:rows], other, *place[rows + 1 :])), TaskRef(own)
    return tasks, Task(key, work.last if before else work.only, *before, *given[-1][1])


def _tree(work: _Work, token: str, given: _Given, key: Keys) -> tuple[_Tasks, Task]:
    """All blocks of columns at the same time, taken together in groups."""
    tasks: _Tasks = {}
    states = []
    for place, arguments in given:
        states.append((f"pairs-state-{token}", *place))
        tasks[states[-1]] = Task(states[-1], work.first, *arguments)
    graphs.tree(tasks, f"pairs-part-{token}", work.together, states, key)
    return tasks, Task(key, work.all_together, *tasks.pop(key).args)
