"""The tasks of a scan over blocks: a sequential chain of states, a tree, or blocks in order without aggregates.

A *carry* (`upsweep.Carry`, `UpdateCarry`) is an aggregate: what the steps of a block do to the state before them.
The results of a block need the state before it; the methods differ in how these states follow from the carries.
`scan` and `user_scan` provide the work of the tasks as a `BlockOperations`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Protocol

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef

from upsweep import _arrays
from upsweep._dask.graph import FAN_IN, Graph, Index, Key, split_groups, without

METHODS = ("sequential", "tree")
IN_ORDER = "in order"  # for updates whose steps cannot be combined into a carry


class BlockOperations(Protocol):
    """What the tasks of a scan compute; `blocks` are those of its operands, `state` is that before a block.

    `combine` returns the carry of two neighbouring blocks, `apply` the state after a block of this carry. `carry`
    is that of a block, `result` its result, and `first_result` has the state before the block in front. `state`
    returns the state after a block, and scans its steps where the carry is not finite; `step` the result and that
    state.
    """

    def combine(self, first: Any, second: Any) -> Any: ...
    def apply(self, carry: Any, state: Any) -> Any: ...
    def carry(self, *blocks: Any) -> Any: ...
    def result(self, state: Any, *blocks: Any) -> Any: ...
    def first_result(self, state: Any, *blocks: Any) -> Any: ...
    def state(self, carry: Any, state: Any, *blocks: Any) -> Any: ...
    def step(self, state: Any, *blocks: Any) -> tuple[Any, Any]: ...


def check_method(method: str | None) -> str:
    """Return the method, by default "sequential"; raise for unknown ones."""
    method = METHODS[0] if method is None else method
    if method not in METHODS:
        raise ValueError(f"method: expected 'sequential' or 'tree', got {method!r}")
    return method


def _states(state: Any, apply: Callable[[Any, Any], Any], carries: list[Any]) -> list[Any]:
    """Return the state before each carry, and the one after the last."""
    states = [state]
    for carry in carries:
        states.append(apply(carry, states[-1]))
    return states


def _call_with_item(function: Callable[..., Any], values: list[Any], position: int, *arguments: Any) -> Any:
    return function(values[position], *arguments)


class BlockScan:
    """Tasks of a scan along one axis, one chain or tree for each column of blocks.

    States are added to `graph`; `results` has the tasks of the results, whose `name` is the kind of scan, "-" and
    a token. The operations take the operands `names`. `initial` returns the state before the column of blocks
    that an index is in; with `include_initial` the first result begins with it.
    """

    def __init__(
        self, operations: BlockOperations, graph: Graph, name: str, axis: int, reverse: bool, names: list[str],
        initial: Callable[[Index], Any], include_initial: bool = False,
    ):  # fmt: skip
        self.operations, self.graph, self.name, self.axis, self.reverse = operations, graph, name, axis, reverse
        self.initial, self.include_initial = initial, include_initial
        kind, token = name.rsplit("-", 1)
        task_names = (f"{kind}-{part}-{token}" for part in ("carry", "state", "step"))
        self.carry_name, self.state_name, self.step_name = task_names
        self.results: dict[Key, Task] = {}
        # For each column of blocks: its index; the last state, or a list of states and its position in that.
        self._last: list[tuple[Index, Any, int | None]] = []
        self._operands = graph.blocks.reader(*names)

    def add_tasks(self, method: str) -> None:
        """Add the tasks of all blocks; `method` is one of `METHODS` or `IN_ORDER`."""
        add = {"sequential": self._add_chain, "tree": self._add_tree, IN_ORDER: self._add_in_order}[method]
        sizes = self.graph.blocks.chunks[self.axis]
        for index, blocks in self.graph.blocks.columns(self.axis):
            column, state = blocks[:: -1 if self.reverse else 1], self.initial(index)
            if self.include_initial:
                self._add_result(column[0], self.operations.first_result, state)
            # Empty blocks leave the state alone.
            for block in column:
                if not sizes[block[self.axis]]:
                    self._add_result(block, self.operations.result, state)
            self._last.append((index, *add([block for block in column if sizes[block[self.axis]]], state, index)))

    def _add_result(self, block: Index, function: Callable[..., Any], *arguments: Any) -> None:
        key = (self.name, *block)
        if key not in self.results:
            self.results[key] = Task(key, function, *arguments, *self._operands(block))

    def _add_carry(self, block: Index) -> TaskRef:
        return self.graph.add((self.carry_name, *block), self.operations.carry, *self._operands(block))

    def _add_chain(self, column: list[Index], state: Any, index: Index) -> tuple[Any, None]:
        """Each state follows from the state before it and the carry between them."""
        for block in column:
            self._add_result(block, self.operations.result, state)
            key, carry = (self.state_name, *block), self._add_carry(block)
            state = self.graph.add(key, self.operations.state, carry, state, *self._operands(block))
        return state, None

    def _add_in_order(self, column: list[Index], state: Any, index: Index) -> tuple[Any, None]:
        """One pass per block. Result and state come from tasks of their own, so that workers fetch only one."""
        for block in column:
            key = (self.name, *block)
            step = self.graph.add((self.step_name, *block), self.operations.step, state, *self._operands(block))
            self.results[key] = Task(key, operator.getitem, step, 0)
            state = self.graph.add((self.state_name, *block), operator.getitem, step, 1)
        return state, None

    def _add_tree(self, column: list[Index], state: Any, index: Index) -> tuple[Any, int | None]:
        """Up-sweep: the carries of groups, and of groups of groups. Down-sweep: the states before their parts."""
        if not column:
            return state, None
        combine, apply, add = self.operations.combine, self.operations.apply, self.graph.add
        levels = [split_groups([self._add_carry(block) for block in column])]
        while len(levels[-1]) > 1:
            names = [(self.carry_name, "up", len(levels), i, *index) for i in range(len(levels[-1]))]
            carries = [add(key, functools.reduce, combine, List(*group)) for key, group in zip(names, levels[-1])]
            levels.append(split_groups(carries))
        n_levels, (last_group,) = len(levels), levels[-1]
        top = add((self.state_name, "down", n_levels, 0, *index), _states, state, apply, List(*last_group))
        above = [top]
        for level in range(n_levels - 1, 0, -1):
            above = [
                add((self.state_name, "down", level, i, *index), _call_with_item, _states, above[i // FAN_IN],
                    i % FAN_IN, apply, List(*group))
                for i, group in enumerate(levels[level - 1])
            ]  # fmt: skip
        for i, block in enumerate(column):
            self._add_result(block, _call_with_item, self.operations.result, above[i // FAN_IN], i % FAN_IN)
        return top, len(last_group)

    def final_state(self, dtype: np.dtype[Any], position: int | None = None) -> da.Array:
        """Return the state after the last step, or one of several states, as an array."""
        kind, token = self.name.rsplit("-", 1)
        name = "-".join([kind, "final", *([] if position is None else [str(position)]), token])
        tasks, blocks = {}, self.graph.blocks
        for index, state, last in self._last:
            key, shape = (name, *without(index, self.axis)), without(blocks.shape(index), self.axis)
            call = (_finish_state, state) if last is None else (_call_with_item, _finish_state, state, last)
            tasks[key] = Task(key, *call, position, blocks.like._meta, dtype, shape)
        return self.graph.array(name, tasks, without(blocks.chunks, self.axis), dtype)


def _finish_state(state: Any, position: int | None, like: Any, dtype: np.dtype[Any], shape: Index) -> Any:
    """Return a state as an array of the library of `like`, with the block's shape; None is zeros.

    `position` is that of one of several states.
    """
    state = state if position is None else state[position]
    with _arrays.on_device_of(state), np.errstate(over="ignore", invalid="ignore"):
        if state is None:
            return np.zeros_like(like, shape=shape, dtype=dtype)
        result = np.empty_like(like, shape=shape, dtype=dtype)
        result[...] = (state if hasattr(state, "dtype") else np.asarray(state)[()]).astype(dtype)
        return result
