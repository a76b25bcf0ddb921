"""User-defined scans of dask arrays: what blocks do to the states, where that is a few numbers; else in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.base import tokenize

from upsweep import _arrays
from upsweep._arrays import Array
from upsweep._compiler.recurrences.associative import Monoid, find_monoid
from upsweep._compiler.recurrences.recurrence import Recurrence
from upsweep._compiler.recurrences.trace import Traced
from upsweep._core.user_scan import Explanation, ScanSpec
from upsweep._dask import graphs
from upsweep._dask.columns import IN_ORDER, Columns, check_method, final_chunks, final_state, item
from upsweep._user_scan.aggregates import UpdateCarry, advance, is_regular, merge, reduce_block
from upsweep._user_scan.problem import Problem, arranged, as_real, check, flatten, label
from upsweep._user_scan.run import run_block, stacked

__all__ = ["explain", "user_scan"]


@dataclass(frozen=True)
class _Work:
    """What tasks do. Between them states are arrays (states, *columns) in float64, or as the user gave them.

    All of it happens where the blocks are.

    Parameters
    ----------
    traced, form
        The update, traced once; how its steps are combined, if they can be.
    axis, reverse
        Of the scan.
    length : int, optional
        The number of steps where there are no inputs, which would tell.
    labels : tuple of str
        The inputs' names.
    """

    traced: Traced
    form: Monoid | None
    axis: int
    reverse: bool
    length: int | None
    labels: tuple[str, ...]

    def combine(self, first: UpdateCarry, second: UpdateCarry) -> UpdateCarry:
        return merge(first, second)

    def apply(self, carry: UpdateCarry, state: Any) -> Any:
        return advance(carry, stacked(state, carry.value.shape[1:], carry.value))

    def carry(self, *blocks: Any) -> UpdateCarry:
        assert self.form is not None
        spec, inputs = self._inputs(self.traced.recurrence, blocks)
        return reduce_block(self.form, spec, inputs, n_threads=1)

    def state(self, carry: UpdateCarry, state: Any, *blocks: Any) -> Any:
        before = stacked(state, carry.value.shape[1:], carry.value)
        after = advance(carry, before)
        with _arrays.on_device_of(after):
            regular = is_regular(carry, before, after)
            if regular.all():
                return after
            traced = self.traced.recurrence
            _, in_order = self._run(Recurrence(traced.states, (), traced.n_inputs), before, blocks)
            return np.where(regular, after, in_order)

    def result(self, state: Any, *blocks: Any) -> Any:
        return self.step(state, *blocks)[0]

    first_result = result

    def step(self, state: Any, *blocks: Any) -> tuple[Any, Any]:
        """The outputs of a block, of which one stands for itself; and the states after it."""
        outputs, after = self._run(self.traced.recurrence, state, blocks, self.traced.output_dtypes)
        return (outputs[0] if len(outputs) == 1 else outputs), after

    def _run(
        self, recurrence: Recurrence, state: Any, blocks: Sequence[Any], results: Sequence[np.dtype[Any]] = ()
    ) -> tuple[list[Any], Any]:
        spec, inputs = self._inputs(recurrence, blocks, state)
        return run_block(spec, inputs, state, results, n_threads=1)

    def _inputs(
        self, recurrence: Recurrence, blocks: Sequence[Any], states: Any = ()
    ) -> tuple[ScanSpec, list[Array]]:  # fmt: skip
        """The scan of a block, and its inputs in scan order."""
        arrays = [as_real(block, name) for block, name in zip(blocks, self.labels)]
        if not arrays:
            assert self.length is not None
            length = self.length
            columns = np.broadcast_shapes(*(getattr(state, "shape", ()) for state in states))
        else:
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
            length, columns = shape[self.axis], shape[: self.axis] + shape[self.axis + 1 :]
        spec = ScanSpec(recurrence, self.traced.dtype, length, columns, self.axis, self.reverse)
        return spec, [spec.in_scan_order(np.broadcast_to(array, spec.shape)) for array in arrays]


def _final(states: Any, place: int, like: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    return final_state(states[place], like, dtype, shape)


def user_scan(
    update: Callable[..., Any], init: Any, xs: Any, *, axis: int, reverse: bool, return_final: bool,
    length: int | None, method: str | None,
) -> Any:  # fmt: skip
    """`upsweep.scan` where one of the arrays is a dask array: its outputs, and final states, as dask arrays."""
    method = check_method(method)
    operands, problem = _check(update, init, xs, axis, reverse, length)
    traced, spec = problem.traced, problem.spec
    at = spec.axis
    form, _ = find_monoid(traced.recurrence)
    states, inputs = _labels(problem)
    blocks = _cut(operands, states, problem)
    fixed = None if inputs else spec.length
    work = _Work(traced, form, at, spec.reverse, fixed, tuple(inputs))

    key, dtypes = traced.recurrence.key(), (traced.state_dtypes, traced.output_dtypes, traced.dtype)
    token = tokenize("scan", key, dtypes, operands, at, spec.reverse, fixed, method)
    read = [blocks.readers(name) for name in states]
    columns = Columns(
        work, blocks, f"scan-{token}", at, spec.reverse, inputs,
        lambda index: List(*(state(index) for state in read)),
    )  # fmt: skip
    columns.add_all(IN_ORDER if form is None or not inputs else method)

    like = blocks.like
    of_states = f"scan-states-{token}"
    graph = graphs.with_layer(of_states, columns.states, blocks.arrays)
    top = graphs.on_top(graph, columns.name, columns.results, of_states)
    n_outputs = len(traced.output_dtypes)
    ys = []
    for place, dtype in enumerate(traced.output_dtypes):
        if n_outputs == 1:
            ys.append(graphs.new_array(top, columns.name, blocks.chunks, dtype, like))
            continue
        name = f"scan-output-{place}-{token}"
        parts = {(name, *k[1:]): Task((name, *k[1:]), item, TaskRef(k), place) for k in columns.results}
        ys.append(
            graphs.new_array(graphs.on_top(top, name, parts, columns.name), name, blocks.chunks, dtype, like)
        )
    result = arranged(ys, traced.output_structure)
    if not return_final:
        return result
    last = []
    for place, dtype in enumerate(traced.state_dtypes):
        name = f"scan-final-{place}-{token}"
        tasks = columns.finals(name, _final, place, like._meta, dtype)
        above = graphs.on_top(graph, name, tasks, of_states)
        last.append(graphs.new_array(above, name, final_chunks(blocks, at), dtype, like))
    return result, arranged(last, problem.state_structure)


def explain(
    update: Callable[..., Any], init: Any, xs: Any, *, axis: int, reverse: bool, length: int | None
) -> Explanation:
    """Which way the blocks go."""
    operands, problem = _check(update, init, xs, axis, reverse, length)
    n_blocks = _cut(operands, _labels(problem)[0], problem).numblocks[problem.spec.axis]
    form, why = find_monoid(problem.traced.recurrence)
    if form is None or not problem.user_inputs:
        how = f"{n_blocks} block{'s' * (n_blocks != 1)} in order, each from the state after the one before"
        return Explanation("sequential in time", f"{why}; {how}")
    how = f"of each of {n_blocks} blocks, one pass finds what it does to the state, and one its result"
    return Explanation("parallel in time", f"{why}; {how}")


def _labels(problem: Problem) -> tuple[list[str], list[str]]:
    """The names of states and of inputs."""
    n_states, n_inputs = len(problem.traced.state_dtypes), problem.traced.recurrence.n_inputs
    return (
        [label("init", problem.state_structure, n) for n in range(n_states)],
        [label("xs", problem.input_structure, n) for n in range(n_inputs)],
    )


def _check(
    update: Callable[..., Any], init: Any, xs: Any, axis: int, reverse: bool, length: int | None
) -> tuple[dict[str, Any], Problem]:
    """The arguments by name, as dask arrays; the call as it is of arrays of their shapes and dtypes."""
    named: list[tuple[list[str], Any]] = []
    given: dict[str, Any] = {}
    for name, value in (("init", init), ("xs", xs)):
        items, structure = flatten(value, name)
        labels = [label(name, structure, n) for n in range(len(items))]
        given.update(zip(labels, items))
        named.append((labels, structure))
    operands = graphs.as_operands(given)
    for name, operand in operands.items():
        if isinstance(operand, da.Array):
            as_real(operand._meta, name)
    states, inputs = (arranged([graphs.stand_in(operands[n]) for n in labels], s) for labels, s in named)
    return operands, check(update, states, inputs, axis, reverse, length)


def _cut(operands: dict[str, Any], states: list[str], problem: Problem) -> graphs.Blocks:
    """Where nothing is read along the axis, all of its steps are one block."""
    axis, shape = problem.spec.axis, problem.spec.shape
    whole = tuple(range(len(shape)))
    axes = {}
    for name, operand in operands.items():
        of_shape = tuple(i for i in whole if i != axis) if name in states else whole
        axes[name] = of_shape[len(of_shape) - getattr(operand, "ndim", 0) :]
    return graphs.cut_alike(operands, axes, shape)
