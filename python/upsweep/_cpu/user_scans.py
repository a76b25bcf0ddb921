"""User-defined scans of numpy arrays: from a recurrence to compiled steps, and to the driver that runs them."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from upsweep import _cpu
from upsweep._cpu._user_scans import Kernel, Sums, scan
from upsweep._expr.llvm import chunk_sums
from upsweep._expr.llvm import recurrence as compiled
from upsweep._expr.llvm.target import TARGETS
from upsweep._expr.parallel_forms import Form
from upsweep._expr.recurrence import Recurrence, evaluate, lifted

__all__ = ["run"]

Array = NDArray[Any]

_MOST_KERNELS = 512  # kept in memory


@functools.lru_cache(_MOST_KERNELS)
def _kernel(recurrence: Recurrence, bits: int, shared: tuple[bool, ...]) -> tuple[Kernel, float]:
    """The compiled steps of a recurrence whose numbers are lifted, and what a step costs in passes over memory."""
    steps = compiled.compile_steps(recurrence, _cpu.level, bits, shared)
    turn = compiled.compile_turn(_cpu.level, bits)
    program = compiled.lower(recurrence)
    lanes = TARGETS[_cpu.level].lanes(f"float{bits}")
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
    recurrence: Recurrence, dtype: np.dtype[Any], shared: tuple[bool, ...]
) -> tuple[Kernel, float, Array]:
    plain, numbers = _lifted(recurrence)
    kernel, cost = _kernel(plain, 8 * dtype.itemsize, shared)
    with np.errstate(over="ignore"):
        return kernel, cost, np.array(numbers, dtype)


@functools.lru_cache(_MOST_KERNELS)
def _sums(rests: Recurrence, dtype: np.dtype[Any], shared: tuple[bool, ...]) -> Sums:
    """The compiled sums of chunks, with its numbers."""
    plain, numbers = _lifted(rests)
    code = chunk_sums.compile_sums(plain, _cpu.level, 8 * dtype.itemsize, shared)
    with np.errstate(over="ignore"):
        params = np.array(numbers, dtype)
    return Sums(sums=code.address, code=code, vectors_at_once=chunk_sums.VECTORS_AT_ONCE, params=params)


def _readable(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array as the driver takes it: native and aligned, of a type that it knows."""
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        return array.astype(dtype)
    if array.dtype.isnative and array.flags.aligned:
        return array
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


def run(
    recurrence: Recurrence,
    dtype: np.dtype[Any],
    inputs: list[Array],
    outputs: list[Array],
    states: Array,
    length: int,
    form: Form | None,
    n_threads: int | None,
) -> Array:
    """Run over the first axis of all arrays, and write the outputs.

    Parameters
    ----------
    recurrence : Recurrence
        What a step does.
    dtype : dtype
        float32 or float64: what is calculated in, and what outputs are of.
    inputs, outputs : list of ndarray
        Of the same shape (time, ...); inputs of any real dtype and strides.
    states : ndarray
        Of shape (states, ...), before the first step; overwritten.
    length : int
        The number of steps.
    form : Form, optional
        What makes time parallel; without it time is sequential, and columns are parallel.
    n_threads : int, optional
        At most so many; the bits do not depend on it.

    Returns
    -------
    ndarray
        The states after the last step.
    """
    inputs = [_readable(array, dtype) for array in inputs]
    arrays = [*inputs, *outputs]
    n_dims, n_states = states.ndim - 1, recurrence.n_states
    reference = (outputs or inputs or [states])[0]
    order = sorted(range(1, n_dims + 1), key=lambda d: (-abs(reference.strides[d]), d))
    moved = np.ascontiguousarray(states if n_dims < 2 else states.transpose(0, *order), dtype=dtype)
    kernel_inputs, kernel_outputs, dims = inputs, outputs, (moved[0].size,)
    if arrays:
        flat = _collapsed(arrays if n_dims < 2 else [array.transpose(0, *order) for array in arrays])
        kernel_inputs, kernel_outputs = flat[: len(inputs)], flat[len(inputs) :]
        dims = flat[0].shape[1:]
    axis = 0 if form else -1  # along which lanes go: chunks of time, or the innermost columns
    shared = tuple(
        a.strides[axis] == 0 and a.dtype == dtype and (form is not None or dims[-1] > 1) for a in kernel_inputs
    )
    kernel, cost, params = _prepared(recurrence, dtype, shared)
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
    scan(
        kernel, params, kernel_inputs, shared, kernel_outputs, moved.reshape(n_states, -1), dims, length, cost,
        _cpu.threads(n_threads), **keywords,
    )  # fmt: skip
    return moved if n_dims < 2 else moved.transpose(0, *(1 + order.index(d) for d in range(1, n_dims + 1)))
