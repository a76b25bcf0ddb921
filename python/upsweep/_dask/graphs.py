"""What the graphs share: operands cut alike, keys of their blocks, trees, and arrays made of tasks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.array.core import unify_chunks
from dask.highlevelgraph import HighLevelGraph

from upsweep import _arrays

__all__ = [
    "FAN_IN", "Blocks", "Keys", "as_operands", "check_library", "cut_alike", "empty_like", "new_array",
    "on_top", "refuse", "sent_to", "stand_in", "tree", "with_layer",
]  # fmt: skip

FAN_IN = 8  # 1/7 of a task a block going up a tree, and as many going down; a depth of log8(blocks)

Chunks = tuple[int, ...]
Keys = tuple[Any, ...]
Graph = dict[Keys, Any]


def refuse(**given: Any) -> None:
    """Refuse keywords that mean nothing for a dask array."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}: does not go with dask arrays, which are computed later, and elsewhere")


def as_operands(named: Mapping[str, Any]) -> dict[str, Any]:
    """Each argument as a dask array with known sizes, or as the number, or nothing, that it is."""
    operands = {name: _as_operand(value, name) for name, value in named.items()}
    check_library(operands.items())
    return operands


def check_library(operands: Iterable[tuple[str, Any]]) -> None:
    """Raise unless all blocks are of one library: none is sent to a device, or from it, behind the user's back.

    Blocks of numpy without axes are numbers, which go with all.
    """
    lazy = [(name, operand) for name, operand in operands if isinstance(operand, da.Array)]
    there = next((pair for pair in lazy if _arrays.any_on_device(pair[1]._meta)), None)
    if there is None:
        return
    chosen, like = there[0], there[1]._meta
    for name, operand in lazy:
        if operand.ndim and type(operand._meta) is not type(like):
            raise TypeError(
                f"{name}: expected blocks of {_arrays.type_name(like)}, as {chosen} has, got "
                f"{_arrays.type_name(operand._meta)}; convert them, e.g. {name}.map_blocks(cupy.asarray)"
            )


def _as_operand(value: Any, name: str) -> Any:
    if isinstance(value, da.Array):
        if any(np.isnan(size) for size in value.shape):
            raise ValueError(
                f"{name}: has chunks of unknown sizes, {value.shape}; call {name}.compute_chunk_sizes() first"
            )
        _check_blocks(value._meta, name)
        return _in_blocks(value)
    if value is None or (isinstance(value, (bool, int, float, complex, np.generic))):
        return value
    if _arrays.any_on_device(value):
        _check_blocks(value, name)
        return da.from_array(value, chunks=-1)
    array = _arrays.as_array(value, name)
    return array if array.ndim == 0 else da.from_array(array, chunks=-1)


def _in_blocks(array: da.Array) -> da.Array:
    """The array with one block where an axis has at most one element: with empty ones beside, dask miscounts."""
    if all(len(sizes) == 1 or size > 1 for size, sizes in zip(array.shape, array.chunks)):
        return array
    chunks = tuple((size,) if size <= 1 else sizes for size, sizes in zip(array.shape, array.chunks))
    if 0 in array.shape:  # what dask does not cut anew
        return da.from_array(np.empty_like(array._meta, shape=array.shape), chunks=chunks)
    return array.rechunk(chunks)


def _check_blocks(meta: Any, name: str) -> None:
    """Refuse blocks that tasks would refuse, or take for what they are not."""
    if isinstance(meta, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: blocks with a mask are not supported; fill them first, e.g. da.ma.filled({name}, 0)"
        )
    if not isinstance(meta, np.ndarray) and not _arrays.calculates(meta):
        raise TypeError(
            f"{name}: expected blocks of numpy or cupy, got {_arrays.type_name(meta)}; convert them, "
            f"e.g. {name}.map_blocks(numpy.asarray)"
        )


def sent_to(like: da.Array, array: Any, axis: int | None = None) -> da.Array:
    """A short array of the host as blocks of the library that `like` has, cut as it is along this axis."""
    chunks = tuple(like.chunks[axis] if n == axis else -1 for n in range(array.ndim))
    lazy = da.from_array(array, chunks=chunks)
    if not _arrays.any_on_device(like._meta):
        return lazy
    meta = empty_like(like, array.ndim, array.dtype)
    return lazy.map_blocks(np.asarray, like=like._meta, dtype=array.dtype, meta=meta)


def stand_in(operand: Any) -> Any:
    """An array of the operand's shape and dtype in no memory, for the checks that look at no element."""
    if isinstance(operand, da.Array):
        return np.broadcast_to(np.zeros((), operand.dtype), operand.shape)
    return operand


class Blocks:
    """Operands that are cut at the same places.

    chunks : sizes along each axis of the shape that they broadcast to.
    """

    def __init__(self, operands: dict[str, Any], axes: dict[str, tuple[int, ...]], chunks: dict[int, Chunks]):
        self.operands = operands
        self.axes = axes
        self.chunks = tuple(chunks[axis] for axis in sorted(chunks))

    @property
    def numblocks(self) -> tuple[int, ...]:
        return tuple(map(len, self.chunks))

    @property
    def arrays(self) -> list[da.Array]:
        return [operand for operand in self.operands.values() if isinstance(operand, da.Array)]

    @property
    def like(self) -> da.Array:
        """One whose blocks are of the library that results are of."""
        there = (array for array in self.arrays if _arrays.any_on_device(array._meta))
        return next(there, self.arrays[0])

    def indices(self, but: Sequence[int] = ()) -> Iterator[tuple[int, ...]]:
        """Of all blocks; 0 along some axes."""
        return itertools.product(*(range(1 if i in but else n) for i, n in enumerate(self.numblocks)))

    def readers(self, name: str) -> Callable[[tuple[int, ...]], Any]:
        """From a block's index to what a task is given of the operand: a reference, or the number that it is."""
        operand = self.operands[name]
        if not isinstance(operand, da.Array):
            return lambda index: operand
        key, axes = operand.name, self.axes[name]
        counts = operand.numblocks
        return lambda index: TaskRef((key, *(index[axis] if n > 1 else 0 for axis, n in zip(axes, counts))))


def cut_alike(
    operands: dict[str, Any], axes: dict[str, tuple[int, ...]], shape: tuple[int, ...] | None = None
) -> Blocks:
    """Cut operands at the same places; `axes`: which of the common shape's axes theirs are.

    `shape`: the common one, if there is an axis that none of them has, or one of theirs that it has not.
    """
    pairs = []
    for name, operand in operands.items():
        pairs += [operand, axes[name] if isinstance(operand, da.Array) else None]
    chunks, cut = unify_chunks(*pairs, warn=False)
    if shape is not None:
        chunks = {axis: chunks.get(axis, (size,)) for axis, size in enumerate(shape)}
    return Blocks(dict(zip(operands, cut)), axes, chunks)


def tree(graph: Graph, name: str, total: Callable[..., Any], keys: list[Keys], last: Keys) -> None:
    """Put tasks into the graph that bring what is at these keys together in `last`, in groups and in order."""
    level = 0
    while len(keys) > FAN_IN:
        groups = [keys[i : i + FAN_IN] for i in range(0, len(keys), FAN_IN)]
        keys = [(name, level, i, *last[1:]) for i in range(len(groups))]
        for key, group in zip(keys, groups):
            graph[key] = Task(key, total, List(*map(TaskRef, group)))
        level += 1
    graph[last] = Task(last, total, List(*map(TaskRef, keys)))


def with_layer(name: str, tasks: Graph, arrays: Sequence[da.Array]) -> HighLevelGraph:
    return HighLevelGraph.from_collections(name, tasks, dependencies=arrays)


def on_top(graph: HighLevelGraph, name: str, tasks: Graph, below: str) -> HighLevelGraph:
    """The graph with one more layer, which reads the layer `below` and what that reads."""
    depends = {**graph.dependencies, name: {below, *graph.dependencies[below]}}
    return HighLevelGraph({**graph.layers, name: tasks}, depends)


def new_array(graph: HighLevelGraph, name: str, chunks: Any, dtype: np.dtype[Any], like: da.Array) -> da.Array:
    """The array whose blocks are at the keys of this name: of the library that the blocks of `like` are of."""
    return da.Array(graph, name, chunks, meta=empty_like(like, len(chunks), dtype))


def empty_like(like: da.Array, ndim: int, dtype: np.dtype[Any]) -> Any:
    """No elements, of the library that the blocks of `like` are of."""
    return np.empty_like(like._meta, shape=(0,) * ndim, dtype=dtype)
