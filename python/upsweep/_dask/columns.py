"""Tasks for blocks that follow each other along an axis: states in order, by a tree, or together with results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from dask._task_spec import List, Task, TaskRef

from upsweep import _arrays
from upsweep._dask import graphs
from upsweep._dask.graphs import FAN_IN, Keys

__all__ = ["IN_ORDER", "METHODS", "Columns", "Work", "check_method", "final_chunks", "final_state", "item"]

METHODS = ("sequential", "tree")
IN_ORDER = "in order"  # of blocks whose states nothing but the steps themselves tells

Block = tuple[int, ...]


class Work(Protocol):
    """What the tasks of one scan do; `blocks` are those of its operands."""

    def combine(self, first: Any, second: Any) -> Any:
        """What two neighbouring blocks do to the state, from what each does."""

    def apply(self, carry: Any, state: Any) -> Any:
        """The state after a block, from what it does and the state before."""

    def carry(self, *blocks: Any) -> Any:
        """What a block does to the state."""

    def result(self, state: Any, *blocks: Any) -> Any:
        """The result of a block, from the state before it."""

    def state(self, carry: Any, state: Any, *blocks: Any) -> Any:
        """The state after a block; where its carry leaves the range of numbers, from its steps in order."""

    def first_result(self, state: Any, *blocks: Any) -> Any:
        """That of the block which the state before it is put before."""

    def step(self, state: Any, *blocks: Any) -> tuple[Any, Any]:
        """Result and state of a block, where there are no carries."""


def check_method(method: str | None) -> str:
    """The method that is meant; raise for others."""
    method = METHODS[0] if method is None else method
    if method not in METHODS:
        raise ValueError(f"method: expected 'sequential' or 'tree', got {method!r}")
    return method


def _combined(combine: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    whole = parts[0]
    for part in parts[1:]:
        whole = combine(whole, part)
    return whole


def _states(apply: Callable[[Any, Any], Any], state: Any, parts: list[Any]) -> list[Any]:
    """The states before each of the blocks, and the one after them."""
    states = [state]
    for part in parts:
        states.append(apply(part, states[-1]))
    return states


def _states_of(apply: Callable[[Any, Any], Any], before: list[Any], place: int, parts: list[Any]) -> list[Any]:
    return _states(apply, before[place], parts)


def _result_of(result: Callable[..., Any], states: list[Any], place: int, *blocks: Any) -> Any:
    return result(states[place], *blocks)


def _finish_of(finish: Callable[..., Any], states: list[Any], place: int, *arguments: Any) -> Any:
    return finish(states[place], *arguments)


def item(values: Sequence[Any], place: int) -> Any:
    """One of several values that a task gives."""
    return values[place]


class Columns:
    """Tasks for blocks that follow each other along the axis, one column of them after the other.

    Parameters
    ----------
    work : Work
        What tasks do.
    blocks : Blocks
        The operands.
    name : str
        Of results: the kind of scan, "-", and a token.
    axis, reverse
        Of the scan.
    names : list of str
        The operands that each task of a block is given.
    initial : callable
        From a block's index to the state before the column that it is in.
    include_initial : bool
        Whether the first result begins with that state.

    Attributes
    ----------
    states, results : dict
        Tasks by key.
    """

    def __init__(
        self,
        work: Work,
        blocks: graphs.Blocks,
        name: str,
        axis: int,
        reverse: bool,
        names: list[str],
        initial: Callable[[Block], Any],
        include_initial: bool = False,
    ):
        self.work, self.blocks, self.name, self.axis, self.reverse = work, blocks, name, axis, reverse
        self.initial, self.include_initial = initial, include_initial
        kind, token = name.rsplit("-", 1)
        self.carry_name, self.state_name = f"{kind}-carry-{token}", f"{kind}-state-{token}"
        self.step_name = f"{kind}-step-{token}"
        self.states: dict[Keys, Task] = {}
        self.results: dict[Keys, Task] = {}
        self.last: list[tuple[Block, Any]] = []
        self.readers = [blocks.readers(name) for name in names]

    def add_all(self, method: str) -> None:
        """All tasks."""
        ways = {"sequential": self._chain, "tree": self._tree, IN_ORDER: self._in_order}
        for index in self.blocks.indices(but=(self.axis,)):
            self._add(index, ways[method])

    def _add(self, index: Block, way: Callable[..., None]) -> None:
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
        way(steps, state, index)

    def _given(self, block: Block) -> Iterator[Any]:
        return (read(block) for read in self.readers)

    def _result(self, block: Block, function: Callable[..., Any], *state: Any) -> None:
        key = (self.name, *block)
        if key not in self.results:
            self.results[key] = Task(key, function, *state, *self._given(block))

    def _carry(self, block: Block) -> TaskRef:
        key = (self.carry_name, *block)
        self.states[key] = Task(key, self.work.carry, *self._given(block))
        return TaskRef(key)

    def _chain(self, steps: list[Block], state: Any, index: Block) -> None:
        for block in steps:
            self._result(block, self.work.result, state)
            key = (self.state_name, *block)  # the state after the block
            self.states[key] = Task(key, self.work.state, self._carry(block), state, *self._given(block))
            state = TaskRef(key)
        self.last.append((index, (None, state)))

    def _in_order(self, steps: list[Block], state: Any, index: Block) -> None:
        """One pass a block; results and states are parted, so that no worker sends results for a state."""
        for block in steps:
            step, key = (self.step_name, *block), (self.state_name, *block)
            self.states[step] = Task(step, self.work.step, state, *self._given(block))
            self.states[key] = Task(key, item, TaskRef(step), 1)
            state = TaskRef(key)
            result = (self.name, *block)
            self.results[result] = Task(result, item, TaskRef(step), 0)
        self.last.append((index, (None, state)))

    def _tree(self, steps: list[Block], state: Any, index: Block) -> None:
        """Up: the carry of each group, of each group of groups. Down: the states before its parts."""
        if not steps:
            self.last.append((index, (None, state)))
            return
        combine, apply = self.work.combine, self.work.apply
        levels = [[self._carry(block) for block in steps]]
        while len(levels[-1]) > FAN_IN:
            parts, level = levels[-1], len(levels)
            keys = [(self.carry_name, "up", level, i, *index) for i in range(-(-len(parts) // FAN_IN))]
            for i, key in enumerate(keys):
                group = parts[i * FAN_IN : (i + 1) * FAN_IN]
                self.states[key] = Task(key, _combined, combine, List(*group))
            levels.append([TaskRef(key) for key in keys])
        top = (self.state_name, "down", len(levels), 0, *index)
        self.states[top] = Task(top, _states, apply, state, List(*levels[-1]))
        for level in range(len(levels) - 1, 0, -1):
            parts = levels[level - 1]
            for i in range(len(levels[level])):
                key = (self.state_name, "down", level, i, *index)
                above = (self.state_name, "down", level + 1, i // FAN_IN, *index)
                group = List(*parts[i * FAN_IN : (i + 1) * FAN_IN])
                self.states[key] = Task(key, _states_of, apply, TaskRef(above), i % FAN_IN, group)
        for i, block in enumerate(steps):
            key = (self.state_name, "down", 1, i // FAN_IN, *index)
            self._result(block, _result_of, self.work.result, TaskRef(key), i % FAN_IN)
        self.last.append((index, (len(levels[-1]), TaskRef(top))))

    def finals(self, name: str, finish: Callable[..., Any], *arguments: Any) -> dict[Keys, Task]:
        """Tasks ``finish(state, *arguments, shape)`` of the states after the last block of each column."""
        tasks = {}
        for index, (place, state) in self.last:
            shape = tuple(c[i] for a, (c, i) in enumerate(zip(self.blocks.chunks, index)) if a != self.axis)
            key = (name, *index[: self.axis], *index[self.axis + 1 :])
            if place is None:
                tasks[key] = Task(key, finish, state, *arguments, shape)
            else:
                tasks[key] = Task(key, _finish_of, finish, state, place, *arguments, shape)
        return tasks


def final_state(state: Any, like: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """A state as users see it: of the library that `like` is of, and of its block's shape; None is zeros."""
    with _arrays.on_device_of(state), np.errstate(over="ignore", invalid="ignore"):
        if state is None:
            return np.zeros_like(like, shape=shape, dtype=dtype)
        whole = np.empty_like(like, shape=shape, dtype=dtype)
        whole[...] = (state if hasattr(state, "dtype") else np.asarray(state)[()]).astype(dtype)
        return whole


def final_chunks(blocks: graphs.Blocks, axis: int) -> tuple[tuple[int, ...], ...]:
    """Those of the state after the last block."""
    return blocks.chunks[:axis] + blocks.chunks[axis + 1 :]
