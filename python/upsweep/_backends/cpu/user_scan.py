"""User-defined scans of numpy arrays: from a recurrence to compiled steps, and to the driver that runs them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from upsweep._backends import cpu
from upsweep._backends.cpu._user_scans import Kernel, Spans, Sums
from upsweep._backends.cpu._user_scans import Plan as compiled_plan
from upsweep._compiler.llvm.scans import chunk_aggregates
from upsweep._compiler.llvm.scans import kernel as compiled
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.recurrences.associative import Monoid
from upsweep._compiler.recurrences.recurrence import Recurrence, evaluate, lifted

__all__ = ["Plan", "Spans", "is_readable", "run"]

Array = NDArray[Any]

_MOST_KERNELS = 512  # kept in memory
# Outputs from this size on go past the caches, as those of the scans in C++.
_PAST_CACHES = 16 << 20


@functools.lru_cache(_MOST_KERNELS)
def _kernel(
    recurrence: Recurrence, bits: int, shared: tuple[bool, ...], past_caches: bool
) -> tuple[Kernel, float]:
    """The compiled steps of a recurrence whose numbers are lifted, and what a step costs in passes over memory."""
    steps = compiled.compile_steps(recurrence, cpu.level, bits, shared, past_caches)
    turn = compiled.compile_turn(cpu.level, bits)
    program = compiled.lower(recurrence)
    lanes = TARGETS[cpu.level].lanes(f"float{bits}")
    kernel = Kernel(
        steps=steps.address,
        turn=turn.address,
        code=(steps, turn),
        bits=bits,
        lanes=lanes,
        group=lanes * compiled.vectors_at_once(program),
        tiled=lanes * compiled.vectors_in_tiles(program, recurrence.n_states),
        n_states=recurrence.n_states,
    )
    return kernel, recurrence.n_inputs + len(recurrence.outputs) + compiled.cost(program) / 8


@functools.lru_cache(_MOST_KERNELS)
def _lifted(recurrence: Recurrence) -> tuple[Recurrence, tuple[float, ...]]:
    return lifted(recurrence)


@functools.lru_cache(_MOST_KERNELS)
def _prepared(
    recurrence: Recurrence, dtype: np.dtype[Any], shared: tuple[bool, ...], past_caches: bool = False
) -> tuple[Kernel, float, Array]:
    plain, numbers = _lifted(recurrence)
    kernel, cost = _kernel(plain, 8 * dtype.itemsize, shared, past_caches)
    with np.errstate(over="ignore"):
        return kernel, cost, np.array(numbers, dtype)


@functools.lru_cache(_MOST_KERNELS)
def _sums(rests: Recurrence, dtype: np.dtype[Any], shared: tuple[bool, ...]) -> Sums:
    """The compiled sums of chunks, with its numbers."""
    plain, numbers = _lifted(rests)
    code = chunk_aggregates.compile_sums(plain, cpu.level, 8 * dtype.itemsize, shared)
    with np.errstate(over="ignore"):
        params = np.array(numbers, dtype)
    return Sums(sums=code.address, code=code, vectors_at_once=chunk_aggregates.VECTORS_AT_ONCE, params=params)


def _readable(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array that the driver does not take as one that it does."""
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        return array.astype(dtype)
    return array.astype(array.dtype.newbyteorder("="))


def _collapsed(arrays: list[Array]) -> list[Array]:
    """The same elements with as few axes behind the first as all of them allow, at least one."""
    shape = list(arrays[0].shape)
    kept = [d for d in range(1, len(shape)) if shape[d] != 1]
    groups: list[list[int]] = []
    for d in kept:
        last = groups[-1][-1] if groups else None
        if last is not None and all(a.strides[last] == a.strides[d] * shape[d] for a in arrays):
            groups[-1].append(d)
        else:
            groups.append([d])
    if groups and len(groups) == len(shape) - 1:
        return arrays
    sizes = [math.prod(shape[d] for d in group) for group in groups] or [1]
    result = []
    for array in arrays:
        strides = [array.strides[group[-1]] for group in groups] or [array.itemsize]
        # A single column has neighbours of whatever kind suits.
        result.append(
            as_strided(array, (shape[0], *sizes), (array.strides[0], *strides), writeable=array.flags.writeable)
        )
    return result


class Plan:
    """A scan over arrays that lie as some do, ready to run on others.

    Parameters
    ----------
    recurrence : Recurrence
        What a step does.
    dtype : dtype
        float32 or float64: what is calculated in, and what outputs are of.
    inputs, outputs : list of ndarray
        Of the same shape (time, ...), in the scan's order; any strides. Inputs of `is_readable`.
    columns : tuple of int
        Their shape behind the first axis, and that of states.
    form : Monoid, optional
        What makes time parallel; without it time is sequential, and columns are parallel.
    offsets : sequence of int, optional
        The bytes from the address of an array that a call gives to the first step of what is here.
    """

    def __init__(
        self, recurrence: Recurrence, dtype: np.dtype[Any], inputs: list[Array], outputs: list[Array],
        columns: tuple[int, ...], length: int, form: Monoid | None, offsets: Sequence[int] = (),
    ) -> None:  # fmt: skip
        arrays = [*inputs, *outputs]
        n_dims, n_states = len(columns), recurrence.n_states
        self._offsets, self.dtype = offsets or [0] * len(arrays), dtype
        # The axes of columns in memory, from the outermost to the innermost; those of states follow them.
        order = list(range(n_dims))
        if arrays:
            strides = (outputs or inputs)[0].strides
            order.sort(key=lambda d: (-abs(strides[d + 1]), d))
        is_ordered = order == sorted(order)
        self._shape = (n_states, *(columns[d] for d in order))
        self._back = None if is_ordered else (0, *(1 + order.index(d) for d in range(n_dims)))
        self._compiled: Any = None
        if length == 0 or 0 in columns:
            return
        kernel_inputs, kernel_outputs, dims = inputs, outputs, (math.prod(columns),)
        if arrays:
            axes = (0, *(1 + d for d in order))
            flat = _collapsed(arrays if is_ordered else [array.transpose(axes) for array in arrays])
            kernel_inputs, kernel_outputs = flat[: len(inputs)], flat[len(inputs) :]
            dims = flat[0].shape[1:]
        axis = 0 if form else -1  # along which lanes go: chunks of time, or the innermost columns
        shared = tuple(
            a.strides[axis] == 0 and a.dtype == dtype and (form is not None or dims[-1] > 1) for a in kernel_inputs
        )
        past_caches = form is None and _go_past_caches(kernel_inputs, kernel_outputs, shared, dtype)
        kernel, cost, params = _prepared(recurrence, dtype, shared, past_caches)
        keywords: dict[str, Any] = {}
        if form is not None:
            reduce, reduce_cost, reduce_params = _prepared(form.reduce, dtype, shared)
            cost += reduce_cost
            keywords = {
                "reduce": reduce,
                "reduce_params": reduce_params,
                "kind": form.kind,
                "varies": form.varies,
                "keeps_ties": form.keeps_ties,
                "decides": form.decides,
                "matrix": [evaluate(node, dtype) for node in form.matrix],
                "start": form.start,
                "sums": None if form.rests is None else _sums(form.rests, dtype, shared),
            }
        self._compiled = compiled_plan(
            kernel, params, kernel_inputs, shared, kernel_outputs, dims, length, cost, **keywords
        )

    def run(
        self, inputs: list[Array], outputs: list[Array], states: Sequence[Any], n_threads: int | None
    ) -> Array:  # fmt: skip
        """Write the outputs; the states after the last step, of shape (states, *columns).

        `states` before the first one broadcast to the columns. At most so many threads; the bits do not depend on
        their number.
        """
        memory = np.empty(self._shape, self.dtype)
        theirs = memory if self._back is None else memory.transpose(self._back)  # with the axes of the columns
        for place, value in enumerate(states):
            theirs[place] = value
        if self._compiled is not None:
            self._compiled.run(inputs, outputs, self._offsets, memory, cpu.threads(n_threads))
        return theirs


def _go_past_caches(
    inputs: list[Array], outputs: list[Array], shared: tuple[bool, ...], dtype: np.dtype[Any]
) -> bool:
    """Whether outputs are too large for the caches, and the kernel writes them where they are: none is a tile."""

    def in_place(array: Array) -> bool:
        return array.dtype == dtype and array.strides[-1] == dtype.itemsize

    are_large = bool(outputs) and all(y.size * y.itemsize >= _PAST_CACHES for y in outputs)
    reads = all(same or in_place(x) for x, same in zip(inputs, shared))
    return are_large and reads and all(map(in_place, outputs))


def is_readable(array: Array) -> bool:
    """Whether the driver takes it as it is: native and aligned, of a type that it knows."""
    dtype = array.dtype
    return (dtype.kind != "f" or dtype.itemsize in (4, 8)) and dtype.isnative and array.flags.aligned


def run(
    recurrence: Recurrence, dtype: np.dtype[Any], inputs: list[Array], outputs: list[Array], states: list[Array],
    length: int, columns: tuple[int, ...], form: Monoid | None, n_threads: int | None,
) -> list[Array]:  # fmt: skip
    """Run over the first axis of all arrays, and write the outputs: a `Plan` of them, which says what these are.

    `states` are of the columns' shape. Inputs are of any real dtype.

    Returns
    -------
    list of ndarray
        The states after the last step.
    """
    inputs = [x if is_readable(x) else _readable(x, dtype) for x in inputs]
    plan = Plan(recurrence, dtype, inputs, outputs, columns, length, form)
    after = plan.run(inputs, outputs, states, n_threads)
    return [after[place, ...] for place in range(len(states))]
