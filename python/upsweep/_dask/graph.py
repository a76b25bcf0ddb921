"""Operands in aligned blocks, tasks, tree reductions and arrays of results: what all graphs are built from."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.array.core import unify_chunks
from dask.highlevelgraph import HighLevelGraph

from upsweep import _arrays

FAN_IN = 8  # of a tree: 1/7 of a task per block on the way up, and as many on the way down

Index = tuple[int, ...]  # of a block
Key = tuple[Any, ...]  # of a task
Chunks = tuple[tuple[int, ...], ...]


def reject_options(**options: Any) -> None:
    """Raise for keywords that mean nothing for a dask array."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}: does not go with dask arrays, which are computed later, and elsewhere")


def as_operands(
    named: Mapping[str, Any], *, any_sizes: bool = False, filled: str = "", unindexed: str = ""
) -> dict[str, Any]:
    """Return arguments as dask arrays, of known sizes unless `any_sizes`; numbers and None stay as they are.

    Errors say how to write `x` with its masked elements `filled`, and `unindexed` in place of indexing by a mask.
    """
    operands = {
        name: _as_operand(value, name, any_sizes, filled if name == "x" else "", unindexed)
        for name, value in named.items()
    }
    check_library(operands.items())
    return operands


def check_library(operands: Iterable[tuple[str, Any]]) -> None:
    """Raise unless the blocks of all arrays are of one library; no block is copied to or from a device silently.

    0-d arrays are numbers, which go with all libraries.
    """
    lazy = [(name, operand) for name, operand in operands if isinstance(operand, da.Array)]
    on_device = next((pair for pair in lazy if _arrays.any_on_device(pair[1]._meta)), None)
    if on_device is None:
        return
    chosen, like = on_device[0], on_device[1]._meta
    for name, operand in lazy:
        if operand.ndim and type(operand._meta) is not type(like):
            raise TypeError(
                f"{name}: expected blocks of {_arrays.type_name(like)}, as {chosen} has, got "
                f"{_arrays.type_name(operand._meta)}; convert them, e.g. {name}.map_blocks(cupy.asarray)"
            )


def _as_operand(value: Any, name: str, any_sizes: bool, filled: str, unindexed: str) -> Any:
    if isinstance(value, da.Array):
        if has_unknown_sizes(value) and not any_sizes:
            sizes = f"has chunks of unknown sizes, {value.shape}"
            instead = f", or in place of indexing by a mask pass {unindexed}" if unindexed else ""
            raise ValueError(f"{name}: {sizes}; call {name}.compute_chunk_sizes() first{instead}")
        _check_blocks(value._meta, name, filled)
        return _merge_empty_blocks(value)
    if value is None or isinstance(value, (bool, int, float, complex, np.generic)):
        return value
    if _arrays.any_on_device(value):
        _check_blocks(value, name, filled)
        return da.from_array(value, chunks=-1)
    array = _arrays.as_array(value, name)
    return array if array.ndim == 0 else da.from_array(array, chunks=-1)


def has_unknown_sizes(array: da.Array) -> bool:
    """Return whether sizes of blocks are unknown until they are computed, as after indexing with a mask."""
    return any(np.isnan(size) for size in array.shape)


def _merge_empty_blocks(array: da.Array) -> da.Array:
    """Use one block along an axis of at most one element; `unify_chunks` miscounts if there are empty ones too."""
    chunks = tuple((size,) if size <= 1 else sizes for size, sizes in zip(array.shape, array.chunks))
    if chunks == array.chunks:
        return array
    if 0 in array.shape:  # dask does not rechunk these
        return da.from_array(np.empty_like(array._meta, shape=array.shape), chunks=chunks)
    return array.rechunk(chunks)


def _check_blocks(meta: Any, name: str, filled: str) -> None:
    """Raise for blocks that the tasks would reject or misread."""
    if isinstance(meta, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: blocks with a mask are not supported; fill them first, e.g. "
            f"{filled or f'da.ma.filled({name}, 0)'}"
        )
    if not isinstance(meta, np.ndarray) and not _arrays.calculates(meta):
        raise TypeError(
            f"{name}: expected blocks of numpy or cupy, got {_arrays.type_name(meta)}; convert them, "
            f"e.g. {name}.map_blocks(numpy.asarray)"
        )


def blocks_like(like: da.Array, array: Any, axis: int | None = None) -> da.Array:
    """Return a short numpy array as blocks of the library of `like`, cut as `like` is along `axis`."""
    chunks = tuple(like.chunks[axis] if n == axis else -1 for n in range(array.ndim))
    lazy = da.from_array(array, chunks=chunks)
    if not _arrays.any_on_device(like._meta):
        return lazy
    meta = _empty_like(like, array.ndim, array.dtype)
    return lazy.map_blocks(np.asarray, like=like._meta, dtype=array.dtype, meta=meta)


def placeholder(operand: Any) -> Any:
    """Return an array of the operand's shape and dtype without memory, for checks that read no element."""
    if isinstance(operand, da.Array):
        return np.broadcast_to(np.zeros((), operand.dtype), operand.shape)
    return operand


class Blocks:
    """Operands (dask arrays and numbers) that are cut at the same places.

    `axes` has the axes of the common shape that each dask array has, `chunks` the sizes of the blocks along each
    axis of the common shape.
    """

    def __init__(self, operands: dict[str, Any], axes: dict[str, Index], chunks: Chunks):
        self.operands, self.axes, self.chunks = operands, axes, chunks
        self.numblocks = tuple(map(len, chunks))
        self.arrays = [operand for operand in operands.values() if isinstance(operand, da.Array)]

    @cached_property
    def like(self) -> da.Array:
        """An array whose blocks are of the library of the results."""
        on_device = (array for array in self.arrays if _arrays.any_on_device(array._meta))
        return next(on_device, self.arrays[0])

    def indices(self) -> Iterator[Index]:
        """Yield the indices of all blocks."""
        return itertools.product(*map(range, self.numblocks))

    def columns(self, axis: int) -> Iterator[tuple[Index, list[Index]]]:
        """Yield each column of blocks along an axis: its index, which has 0 there, and those of its blocks."""
        for index in itertools.product(*(range(1 if i == axis else n) for i, n in enumerate(self.numblocks))):
            yield index, [(*index[:axis], i, *index[axis + 1 :]) for i in range(self.numblocks[axis])]

    def shape(self, index: Index) -> Index:
        """Return the shape of a block."""
        return tuple(sizes[i] for sizes, i in zip(self.chunks, index))

    def begin(self, index: Index) -> Index:
        """Return the position of the first element of a block."""
        return tuple(begins[i] for begins, i in zip(self._begins, index))

    @cached_property
    def _begins(self) -> list[list[int]]:
        return [[0, *itertools.accumulate(sizes)] for sizes in self.chunks]

    def reader(self, *names: str) -> Callable[[Index], list[Any]]:
        """Return a function from the index of a block to these arguments of its task: references and numbers."""
        readers = [self._reader(name) for name in names]
        return lambda index: [read(index) for read in readers]

    def _reader(self, name: str) -> Callable[[Index], Any]:
        operand = self.operands[name]
        if not isinstance(operand, da.Array):
            return lambda index: operand
        key, axes, counts = operand.name, self.axes[name], operand.numblocks
        return lambda index: TaskRef((key, *(index[axis] if n > 1 else 0 for axis, n in zip(axes, counts))))


def align_blocks(
    operands: dict[str, Any], axes_of: Callable[[str, da.Array], Index], shape: Index | None = None
) -> Blocks:
    """Cut operands at the same places; `axes_of` returns which axes of the common shape a dask array has.

    The common `shape` is needed if no operand has one of its axes, or an operand has an axis besides.
    """
    axes = {name: axes_of(name, array) for name, array in operands.items() if isinstance(array, da.Array)}
    pairs = [part for name, operand in operands.items() for part in (operand, axes.get(name))]
    chunks, aligned = unify_chunks(*pairs, warn=False)
    if shape is not None:
        chunks = {axis: chunks.get(axis, (size,)) for axis, size in enumerate(shape)}
    return Blocks(dict(zip(operands, aligned)), axes, tuple(chunks[axis] for axis in sorted(chunks)))


class Graph:
    """A layer `name` of tasks that read the operands `blocks`, and layers of results on top of it.

    `like` is an array of the library of the results, if no operand is one.
    """

    def __init__(self, name: str, blocks: Blocks, like: da.Array | None = None):
        self.name, self.blocks, self._like = name, blocks, like
        self.tasks: dict[Key, Task] = {}

    def add(self, key: Key, function: Callable[..., Any], *arguments: Any) -> TaskRef:
        """Add a task and return a reference to its result."""
        self.tasks[key] = Task(key, function, *arguments)
        return TaskRef(key)

    def reduce_groups(self, name: str, combine: Callable[..., Any], parts: list[TaskRef], index: Key = ()) -> List:
        """Add the tasks of a tree that combines parts in groups and in order; return its last group."""
        level = 0
        while len(parts) > FAN_IN:
            groups = split_groups(parts)
            parts = [self.add((name, level, i, *index), combine, List(*group)) for i, group in enumerate(groups)]
            level += 1
        return List(*parts)

    @cached_property
    def _base(self) -> HighLevelGraph:
        """The graph of all operands, with the layer of tasks on top of them."""
        operands = HighLevelGraph.merge(*(array.dask for array in self.blocks.arrays))
        return self._on_top(operands, self.name, self.tasks)

    def array(self, name: str, tasks: dict[Key, Any], chunks: Chunks, dtype: np.dtype[Any]) -> da.Array:
        """Return the array of the results of these tasks, which read the layer of this graph."""
        return self.arrays(name, tasks, [chunks], [dtype])[0]

    def arrays(
        self, name: str, tasks: dict[Key, Any], chunks: Sequence[Chunks], dtypes: Sequence[np.dtype[Any]]
    ) -> list[da.Array]:
        """Return one array per output of tasks that return several; `name` ends in "-" and a token."""
        graph = self._on_top(self._base, name, tasks)
        if len(dtypes) == 1:
            return [self._array(graph, name, chunks[0], dtypes[0])]
        kind, token = name.rsplit("-", 1)
        outputs = []
        for position, (sizes, dtype) in enumerate(zip(chunks, dtypes)):
            output = f"{kind}-output-{position}-{token}"
            items = {
                (output, *k[1:]): Task((output, *k[1:]), operator.getitem, TaskRef(k), position) for k in tasks
            }
            outputs.append(self._array(self._on_top(graph, output, items), output, sizes, dtype))
        return outputs

    def _on_top(self, graph: HighLevelGraph, name: str, tasks: dict[Key, Any]) -> HighLevelGraph:
        """Return the graph with one more layer, which depends on the layers that its tasks read."""
        read = {key for task in tasks.values() for key in task.dependencies if key not in tasks}
        below = {self.name if key in self.tasks else key[0] for key in read}
        return HighLevelGraph({**graph.layers, name: tasks}, {**graph.dependencies, name: below})

    def _array(self, graph: HighLevelGraph, name: str, chunks: Chunks, dtype: np.dtype[Any]) -> da.Array:
        like = self.blocks.like if self._like is None else self._like
        return da.Array(graph, name, chunks, meta=_empty_like(like, len(chunks), dtype))


def without(values: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    """Return a tuple of one item for each axis without the item of one of them."""
    return values[:axis] + values[axis + 1 :]


def split_groups(parts: list[TaskRef]) -> list[list[TaskRef]]:
    """Split parts into the groups that one task of a tree combines."""
    return [parts[i : i + FAN_IN] for i in range(0, len(parts), FAN_IN)]


def _empty_like(like: da.Array, ndim: int, dtype: np.dtype[Any]) -> Any:
    """Return an array without elements of the library of the blocks of `like`."""
    return np.empty_like(like._meta, shape=(0,) * ndim, dtype=dtype)
