"""User-defined scans of dask arrays: with carries, as the named scans, if steps can be combined; else in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import List
from dask.base import tokenize

from upsweep import _arrays
from upsweep._arrays import Array
from upsweep._compiler.recurrences.associative import Monoid, find_monoid
from upsweep._compiler.recurrences.recurrence import Recurrence, written
from upsweep._compiler.recurrences.trace import Traced, arranged
from upsweep._core.user_scan import Explanation, ScanSpec
from upsweep._dask.block_scan import IN_ORDER, BlockScan, check_method
from upsweep._dask.graph import Blocks, Graph, Index, align_blocks, as_operands, placeholder
from upsweep._user_scan.aggregates import UpdateCarry, advance, is_regular, merge, reduce_block
from upsweep._user_scan.problem import Problem, as_real, check, flatten, label, refuse_record, to_extent
from upsweep._user_scan.run import run_block, stacked

Update = Callable[..., Any]


@dataclass(frozen=True)
class _Operations:
    """What the tasks compute, in the library of the blocks; see `block_scan.BlockOperations`.

    Between tasks, states are as `run_block` returns them, or the user's initial states.
    """

    traced: Traced
    monoid: Monoid | None  # None: steps cannot be combined
    axis: int
    reverse: bool
    length: int | None  # steps, if there are no inputs that have their number
    labels: tuple[str, ...]  # the names of the inputs

    combine = staticmethod(merge)

    def apply(self, carry: UpdateCarry, state: Any) -> Any:
        return advance(carry, stacked(state, carry.value.shape[1:], carry.value, carry.value.dtype))

    def carry(self, *blocks: Any) -> UpdateCarry:
        assert self.monoid is not None
        spec, inputs = self._inputs(self.traced.recurrence, blocks)
        return reduce_block(self.monoid, spec, inputs, n_threads=1)

    def state(self, carry: UpdateCarry, state: Any, *blocks: Any) -> Any:
        before = stacked(state, carry.value.shape[1:], carry.value, carry.value.dtype)
        after = advance(carry, before)
        with _arrays.on_device_of(after):
            regular = is_regular(carry, before, after)
            if regular.all():
                return after
            silent = replace(self.traced.recurrence, outputs=())
            return np.where(regular, after, self._run(silent, before, blocks)[1])

    def result(self, state: Any, *blocks: Any) -> Any:
        return self.step(state, *blocks)[0]

    first_result = result

    def step(self, state: Any, *blocks: Any) -> tuple[Any, Any]:
        """Return the outputs of a block, a single one by itself, and the states after it."""
        outputs, after = self._run(self.traced.recurrence, state, blocks, self.traced.output_dtypes)
        return (outputs[0] if len(outputs) == 1 else outputs), after

    def _run(
        self, recurrence: Recurrence, state: Any, blocks: Sequence[Any], results: Sequence[np.dtype[Any]] = ()
    ) -> tuple[list[Any], Any]:
        spec, inputs = self._inputs(recurrence, blocks, state)
        return run_block(spec, inputs, state, results, n_threads=1)

    def _inputs(self, recurrence: Recurrence, blocks: Any, states: Any = ()) -> tuple[ScanSpec, list[Array]]:
        """Return the scan of a block, and its inputs in scan order."""
        arrays = [as_real(block, name) for block, name in zip(blocks, self.labels)]
        shape = np.broadcast_shapes(*(getattr(array, "shape", ()) for array in arrays or states))
        _, length, columns = to_extent(shape if arrays else None, shape, self.axis, self.length)
        spec = ScanSpec(recurrence, self.traced.dtype, length, columns, self.axis, self.reverse)
        return spec, [spec.in_scan_order(np.broadcast_to(array, spec.shape)) for array in arrays]


def user_scan(
    update: Update, init: Any, xs: Any, *, axis: int, reverse: bool, return_final: bool,
    length: int | None, method: str | None,
) -> Any:  # fmt: skip
    """`upsweep.scan` with a dask array among the arguments: outputs and final states as dask arrays."""
    method = check_method(method)
    operands, problem = _check(update, init, xs, axis, reverse, length)
    traced, axis, reverse = problem.traced, problem.spec.axis, problem.spec.reverse
    monoid, _ = find_monoid(traced.recurrence)
    states, inputs = _labels(problem)
    blocks = _align(operands, states, problem)
    fixed_length = None if inputs else problem.spec.length
    operations = _Operations(traced, monoid, axis, reverse, fixed_length, tuple(inputs))

    key, dtypes = written(traced.recurrence), (traced.state_dtypes, traced.output_dtypes, traced.dtype)
    token = tokenize("scan", key, dtypes, operands, axis, reverse, fixed_length, method)
    graph, read_states = Graph(f"scan-states-{token}", blocks), blocks.reader(*states)
    tasks = BlockScan(
        operations, graph, f"scan-{token}", axis, reverse, inputs, lambda index: List(*read_states(index))
    )
    tasks.add_tasks(IN_ORDER if monoid is None or not inputs else method)
    chunks = [blocks.chunks] * len(traced.output_dtypes)
    ys = arranged(graph.arrays(tasks.name, tasks.results, chunks, traced.output_dtypes), traced.output_structure)
    if not return_final:
        return ys
    finals = [tasks.final_state(dtype, position) for position, dtype in enumerate(traced.state_dtypes)]
    return ys, arranged(finals, problem.state_structure)


def explain(update: Update, init: Any, xs: Any, *, axis: int, reverse: bool, length: int | None) -> Explanation:
    """Describe how the blocks run."""
    operands, problem = _check(update, init, xs, axis, reverse, length)
    states, inputs = _labels(problem)
    n_blocks = _align(operands, states, problem).numblocks[problem.spec.axis]
    monoid, why = find_monoid(problem.traced.recurrence)
    if monoid is None or not inputs:
        how = f"{n_blocks} block{'s' * (n_blocks != 1)} in order, each from the state after the one before"
        return Explanation("sequential in time", f"{why}; {how}")
    how = f"of each of {n_blocks} blocks, one pass finds what it does to the state, and one its result"
    return Explanation("parallel in time", f"{why}; {how}")


def _labels(problem: Problem) -> tuple[list[str], list[str]]:
    """Return the names of states and of inputs."""
    n_states, n_inputs = len(problem.traced.state_dtypes), problem.traced.recurrence.n_inputs
    states = [label("init", problem.state_structure, n) for n in range(n_states)]
    return states, [label("xs", problem.input_structure, n) for n in range(n_inputs)]


def _check(
    update: Update, init: Any, xs: Any, axis: int, reverse: bool, length: int | None
) -> tuple[dict[str, Any], Problem]:
    """Return the arguments by name as dask arrays, and the checked call of placeholders."""
    named, structures = [], []
    for name, value in (("init", init), ("xs", xs)):
        items, structure = flatten(value, name)
        named.append({label(name, structure, n): item for n, item in enumerate(items)})
        for at, item in named[-1].items():
            refuse_record(item, at)
        structures.append(structure)
    operands = as_operands({**named[0], **named[1]})
    for name, operand in operands.items():
        if isinstance(operand, da.Array):
            as_real(operand._meta, name)
    states, inputs = (arranged([placeholder(operands[n]) for n in each], s) for each, s in zip(named, structures))
    return operands, check(update, states, inputs, axis, reverse, length)


def _align(operands: dict[str, Any], states: list[str], problem: Problem) -> Blocks:
    """Align the blocks. If there are no inputs, all steps are one block."""
    axis, shape = problem.spec.axis, problem.spec.shape

    def axes_of(name: str, array: da.Array) -> Index:
        axes = [i for i in range(len(shape)) if i != axis or name not in states]
        return tuple(axes[len(axes) - array.ndim :])

    return align_blocks(operands, axes_of, shape)
