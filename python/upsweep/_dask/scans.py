"""Scans of dask arrays: the carries of blocks, the states before them, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.base import tokenize

from upsweep import _arrays, _signature, carries
from upsweep._dask import graphs
from upsweep._dask.graphs import FAN_IN, Keys

__all__ = ["scan"]

_CARRIES: dict[str, Callable[..., carries.Carry]] = {
    "cumulative_sum": carries.cumulative_sum_carry,
    "discounted_cumsum": carries.discounted_cumsum_carry,
    "linear_recurrence": carries.linear_recurrence_carry,
}
_METHODS = ("sequential", "tree")


@dataclass(frozen=True)
class _Work:
    """What tasks do: the scan, and its keywords for every block."""

    scan: Callable[..., Any]
    of_a_carry: dict[str, Any]
    keywords: dict[str, Any]

    def carry(self, reset: Any, *arrays: Any) -> carries.Carry:
        return _CARRIES[self.scan.__name__](*arrays, reset=reset, **self.of_a_carry)

    def result(self, state: Any, reset: Any, *arrays: Any) -> Any:
        return self.scan(*arrays, initial=state, reset=reset, **self.keywords)

    def state(self, carry: carries.Carry, state: Any, reset: Any, *arrays: Any) -> Any:
        """The state after a block; where products leave the range of numbers, from its steps in order."""
        after = carry.apply(state)
        if state is None:
            return after
        regular = np.isfinite(carry.multiplier) & np.isfinite(after)
        if regular.all():
            return after
        keywords = {name: value for name, value in self.keywords.items() if name != "exclusive"}
        _, final = self.scan(*arrays, initial=state, reset=reset, return_final=True, **keywords)
        return np.where(regular, after, final)

    def first_result(self, state: Any, reset: Any, *arrays: Any) -> Any:
        """That of the block which the state before it is put before."""
        return self.scan(*arrays, initial=state, reset=reset, include_initial=True, **self.keywords)

    def result_of(self, states: list[Any], place: int, reset: Any, *arrays: Any) -> Any:
        return self.result(states[place], reset, *arrays)


def _combined(parts: list[carries.Carry]) -> carries.Carry:
    whole = parts[0]
    for part in parts[1:]:
        whole = carries.combine(whole, part)
    return whole


def _states(state: Any, parts: list[carries.Carry]) -> list[Any]:
    """The states before each of the blocks, and the one after them."""
    states = [state]
    for part in parts:
        states.append(part.apply(states[-1]))
    return states


def _states_of(before: list[Any], place: int, parts: list[carries.Carry]) -> list[Any]:
    return _states(before[place], parts)


def _final(state: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """The state as users see it; `shape` is its block's."""
    if state is None:
        return np.zeros(shape, dtype)
    state = np.asarray(state) if np.ndim(state) == 0 else state
    with np.errstate(over="ignore", invalid="ignore"):
        state = state.astype(dtype)
    return state if state.shape == shape else np.broadcast_to(state, shape)


def _final_of(states: list[Any], place: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    return _final(states[place], shape, dtype)


def scan(
    function: Callable[..., Any],
    arrays: dict[str, Any],
    *,
    axis: int,
    reverse: bool,
    initial: Any,
    reset: Any,
    return_final: bool,
    method: str | None,
    n_threads: int | None,
    include_initial: bool = False,
    **keywords: Any,
) -> Any:
    """The scan of arguments of which one is a dask array, as a dask array, with the final state as another one."""
    method = _METHODS[0] if method is None else method
    if method not in _METHODS:
        raise ValueError(f"method: expected 'sequential' or 'tree', got {method!r}")
    operands = graphs.as_operands({**arrays, "reset": reset, "initial": initial})
    dtypes, shape, at = _check(function, operands, list(arrays), axis, keywords)
    reverse = bool(reverse)
    blocks = _cut(operands, shape, at)

    threads = 1 if n_threads is None else n_threads  # the workers' own threads are as many as there are cores
    common = {"axis": at - len(shape), "reverse": reverse, "n_threads": threads}
    of_a_carry = {key: value for key, value in keywords.items() if key == "dtype"}
    work = _Work(function, {**common, **of_a_carry}, {**common, **keywords})
    token = tokenize(function.__name__, operands, common, keywords, method, include_initial)
    column = _Column(work, blocks, f"{function.__name__}-{token}", at, reverse, include_initial, list(arrays))
    for index in blocks.indices(but=(at,)):
        column.add(index, method)

    like = next(operand for operand in operands.values() if isinstance(operand, da.Array))
    states, results = f"{function.__name__}-states-{token}", column.name
    graph = graphs.with_layer(states, column.states, blocks.arrays)
    chunks = list(blocks.chunks)
    if include_initial:
        longer = list(chunks[at])
        longer[-1 if reverse else 0] += 1
        chunks[at] = tuple(longer)
    top = graphs.on_top(graph, results, column.results, states)
    result = graphs.new_array(top, results, tuple(chunks), dtypes[0], like)
    if not return_final:
        return result
    final = f"{function.__name__}-final-{token}"
    top = graphs.on_top(graph, final, column.finals(final, dtypes[1]), states)
    return result, graphs.new_array(top, final, blocks.chunks[:at] + blocks.chunks[at + 1 :], dtypes[1], like)


def _check(
    function: Callable[..., Any],
    operands: dict[str, Any],
    names: list[str],
    axis: object,
    keywords: dict[str, Any],
) -> tuple[tuple[np.dtype[Any], np.dtype[Any]], tuple[int, ...], int]:
    """Dtypes of result and state, the result's shape and axis; raises what the scan of the whole would."""
    ones = [graphs.stand_in(operands[name]) for name in names]
    # Numbers promote otherwise than arrays do: they are handed on as they came.
    nothing = [np.zeros((0,) * one.ndim, one.dtype) if getattr(one, "ndim", 0) else one for one in ones]
    y, final = function(*nothing, return_final=True, **keywords)
    named = {name: _arrays.as_array(one, name) for name, one in zip(names, ones)}
    leading = "tokens" if "tokens" in names else "x"
    x = named.pop(leading)
    other, factor = named.popitem() if named else (None, None)
    reset, initial = graphs.stand_in(operands["reset"]), graphs.stand_in(operands["initial"])
    checked = _signature.normalise(leading, x, other, factor, y.dtype, axis=axis, reset=reset, initial=initial)
    return (y.dtype, final.dtype), checked.shape, checked.axis


def _cut(operands: dict[str, Any], shape: tuple[int, ...], axis: int) -> graphs.Blocks:
    others = tuple(i for i in range(len(shape)) if i != axis)
    whole = tuple(range(len(shape)))
    axes = {}
    for name, operand in operands.items():
        of_shape = others if name == "initial" else whole
        axes[name] = of_shape[len(of_shape) - getattr(operand, "ndim", 0) :]
    return graphs.cut_alike(operands, axes)


class _Column:
    """Tasks for blocks that follow each other along the axis, one column of them after the other."""

    def __init__(
        self,
        work: _Work,
        blocks: graphs.Blocks,
        name: str,
        axis: int,
        reverse: bool,
        include_initial: bool,
        names: list[str],
    ):
        self.work, self.blocks, self.name, self.axis, self.reverse = work, blocks, name, axis, reverse
        self.include_initial = include_initial
        kind, token = name.rsplit("-", 1)
        self.carry_name, self.state_name = f"{kind}-carry-{token}", f"{kind}-state-{token}"
        self.states: dict[Keys, Task] = {}
        self.results: dict[Keys, Task] = {}
        self.last: list[tuple[tuple[int, ...], Any]] = []
        self.readers = [blocks.readers(name) for name in ("reset", *names)]
        self.initial = blocks.readers("initial")

    def add(self, index: tuple[int, ...], method: str) -> None:
        """All tasks of the column that this block is in."""
        before, after = index[: self.axis], index[self.axis + 1 :]
        sizes = self.blocks.chunks[self.axis]
        order = range(len(sizes))[:: -1 if self.reverse else 1]
        column = [(*before, i, *after) for i in order]
        state = self.initial(index)
        if self.include_initial:
            self._result(column[0], self.work.first_result, state)
        # Blocks without elements change no state, and make none out of nothing.
        steps = [block for block in column if sizes[block[self.axis]]]
        for block in column:
            if not sizes[block[self.axis]]:
                self._result(block, self.work.result, state)
        (self._chain if method == "sequential" else self._tree)(steps, state, index)

    def _result(self, block: tuple[int, ...], function: Callable[..., Any], *state: Any) -> None:
        key = (self.name, *block)
        if key not in self.results:
            self.results[key] = Task(key, function, *state, *(read(block) for read in self.readers))

    def _carry(self, block: tuple[int, ...]) -> TaskRef:
        key = (self.carry_name, *block)
        self.states[key] = Task(key, self.work.carry, *(read(block) for read in self.readers))
        return TaskRef(key)

    def _chain(self, steps: list[tuple[int, ...]], state: Any, index: tuple[int, ...]) -> None:
        for block in steps:
            self._result(block, self.work.result, state)
            key = (self.state_name, *block)  # the state after the block
            given = (read(block) for read in self.readers)
            self.states[key] = Task(key, self.work.state, self._carry(block), state, *given)
            state = TaskRef(key)
        self.last.append((index, (_final, state)))

    def _tree(self, steps: list[tuple[int, ...]], state: Any, index: tuple[int, ...]) -> None:
        """Up: the carry of each group, of each group of groups. Down: the states before its parts."""
        if not steps:
            self.last.append((index, (_final, state)))
            return
        levels = [[self._carry(block) for block in steps]]
        while len(levels[-1]) > FAN_IN:
            parts, level = levels[-1], len(levels)
            keys = [(self.carry_name, "up", level, i, *index) for i in range(-(-len(parts) // FAN_IN))]
            for i, key in enumerate(keys):
                group = parts[i * FAN_IN : (i + 1) * FAN_IN]
                self.states[key] = Task(key, _combined, List(*group))
            levels.append([TaskRef(key) for key in keys])
        top = (self.state_name, "down", len(levels), 0, *index)
        self.states[top] = Task(top, _states, state, List(*levels[-1]))
        for level in range(len(levels) - 1, 0, -1):
            parts = levels[level - 1]
            for i in range(len(levels[level])):
                key = (self.state_name, "down", level, i, *index)
                above = (self.state_name, "down", level + 1, i // FAN_IN, *index)
                group = List(*parts[i * FAN_IN : (i + 1) * FAN_IN])
                self.states[key] = Task(key, _states_of, TaskRef(above), i % FAN_IN, group)
        for i, block in enumerate(steps):
            key = (self.state_name, "down", 1, i // FAN_IN, *index)
            self._result(block, self.work.result_of, TaskRef(key), i % FAN_IN)
        self.last.append((index, (_final_of, TaskRef(top), len(levels[-1]))))

    def finals(self, name: str, dtype: np.dtype[Any]) -> dict[Keys, Task]:
        """Tasks for the states after the last block of each column."""
        tasks = {}
        for index, (function, *state) in self.last:
            shape = tuple(c[i] for a, (c, i) in enumerate(zip(self.blocks.chunks, index)) if a != self.axis)
            key = (name, *index[: self.axis], *index[self.axis + 1 :])
            tasks[key] = Task(key, function, *state, shape, dtype)
        return tasks
