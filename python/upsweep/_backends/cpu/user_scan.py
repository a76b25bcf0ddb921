"""CPU executor of user-defined scans: compiled kernels of a recurrence, run by the driver in ``src/user_scan``.

Kernels are compiled once for a recurrence and cached. A `LaunchPlan` adds the layout of the arrays, and runs any
arrays of that layout. `_user_scan.cached_calls` caches launch plans; everything else runs through `HostScans`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from upsweep._backends import cpu
from upsweep._backends.cpu._user_scans import Kernel, Plan, Spans, Sums
from upsweep._compiler.llvm.scans import chunk_aggregates
from upsweep._compiler.llvm.scans import kernel as compiled
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.recurrences.recurrence import Recurrence, evaluate, lifted
from upsweep._core.layout import memory_order, merge_axes, new_array
from upsweep._core.user_scan import ScanSpec, choose_path

__all__ = ["HostScans", "LaunchPlan", "Spans", "convert", "converted", "is_readable", "readable"]

Array = NDArray[Any]

_MOST_KERNELS = 512  # in the cache
# Bytes of an output from which on it is written past the caches, as by the scans in C++.
_PAST_CACHES = 16 << 20


@functools.lru_cache(_MOST_KERNELS)
def _kernel(
    recurrence: Recurrence, bits: int, shared: tuple[bool, ...], past_caches: bool
) -> tuple[Kernel, float]:
    """The compiled steps of a recurrence with lifted numbers, and the cost of a step in passes over memory."""
    steps = compiled.compile_steps(recurrence, cpu.level, bits, shared, past_caches)
    turn = compiled.compile_turn(cpu.level, bits)
    program = compiled.lower(recurrence)
    lanes = TARGETS[cpu.level].lanes(f"float{bits}")
    kernel = Kernel(
        steps=steps.address("steps"), turn=turn.address("turn"), code=(steps, turn), bits=bits, lanes=lanes,
        group=lanes * compiled.vectors_at_once(program),
        tiled=lanes * compiled.vectors_in_tiles(program, recurrence.n_states), n_states=recurrence.n_states,
    )  # fmt: skip
    return kernel, recurrence.n_inputs + len(recurrence.outputs) + compiled.cost(program) / 8


_lifted = functools.lru_cache(_MOST_KERNELS)(lifted)


@functools.lru_cache(_MOST_KERNELS)
def _prepared(
    recurrence: Recurrence, dtype: np.dtype[Any], shared: tuple[bool, ...], past_caches: bool = False
) -> tuple[Kernel, float, Array]:
    plain, numbers = _lifted(recurrence)
    kernel, cost = _kernel(plain, 8 * dtype.itemsize, shared, past_caches)
    with np.errstate(over="ignore"):
        return kernel, cost, np.array(numbers, dtype)


@functools.lru_cache(_MOST_KERNELS)
def _sums(bias: Recurrence, dtype: np.dtype[Any], shared: tuple[bool, ...]) -> Sums:
    """The compiled sums of chunks of an affine update, with their numbers."""
    plain, numbers = _lifted(bias)
    code = chunk_aggregates.compile_sums(plain, cpu.level, 8 * dtype.itemsize, shared)
    with np.errstate(over="ignore"):
        params = np.array(numbers, dtype)
    return Sums(
        sums=code.address("sums"), code=code, vectors_at_once=chunk_aggregates.VECTORS_AT_ONCE, params=params
    )


def _merge_axes(arrays: list[Array]) -> list[Array]:
    """Views with as few axes after the first as the strides of all arrays allow, at least one."""
    length, *columns = arrays[0].shape
    sizes, merged = merge_axes(columns, [array.strides[1:] for array in arrays])
    if sizes and len(sizes) == len(columns):
        return arrays
    result = []
    for array, steps in zip(arrays, merged):
        strides = steps or [array.itemsize]
        # The stride of a single column does not matter: that of neighbours suits the kernels.
        layout = (length, *(sizes or [1])), (array.strides[0], *strides)
        result.append(as_strided(array, *layout, writeable=array.flags.writeable))
    return result


class LaunchPlan:
    """The prepared arguments of a scan: compiled kernels, and operands for arrays of one layout.

    `inputs` and `outputs` are in scan order, with any strides. Inputs are `is_readable`; outputs have the dtype of
    the scan. For each of them, `offsets` has the bytes from the address of the array that `run` takes to the first
    step.
    """

    def __init__(
        self, spec: ScanSpec, inputs: list[Array], outputs: list[Array], offsets: Sequence[int] = ()
    ) -> None:
        arrays, columns, recurrence, dtype = [*inputs, *outputs], spec.columns, spec.recurrence, spec.dtype
        monoid, _ = choose_path(spec)
        self.is_parallel = monoid is not None  # in time
        n_dims = len(columns)
        self._offsets, self._dtype = offsets or [0] * len(arrays), dtype
        # The axes of the columns from the outermost in memory to the innermost; the states are laid out alike.
        order = memory_order((outputs or inputs)[0].strides[1:]) if arrays else list(range(n_dims))
        is_ordered = order == sorted(order)
        self._state_shape = (recurrence.n_states, *(columns[d] for d in order))
        self._state_axes = None if is_ordered else (0, *(1 + order.index(d) for d in range(n_dims)))
        self._plan: Any = None
        if spec.length == 0 or 0 in columns:
            return
        kernel_inputs, kernel_outputs, dims = inputs, outputs, (math.prod(columns),)
        if arrays:
            axes = (0, *(1 + d for d in order))
            flat = _merge_axes(arrays if is_ordered else [array.transpose(axes) for array in arrays])
            kernel_inputs, kernel_outputs = flat[: len(inputs)], flat[len(inputs) :]
            dims = flat[0].shape[1:]
        lane_axis = 0 if monoid else -1  # lanes are chunks of time, or the innermost columns
        shared = tuple(
            a.strides[lane_axis] == 0 and a.dtype == dtype and (monoid is not None or dims[-1] > 1)
            for a in kernel_inputs
        )
        past_caches = monoid is None and _go_past_caches(kernel_inputs, kernel_outputs, shared, dtype)
        kernel, cost, params = _prepared(recurrence, dtype, shared, past_caches)
        keywords: dict[str, Any] = {}
        if monoid is not None:
            reduce, reduce_cost, reduce_params = _prepared(monoid.reduce, dtype, shared)
            cost += reduce_cost
            keywords = {
                "reduce": reduce, "reduce_params": reduce_params, "kind": monoid.kind, "varies": monoid.varies,
                "keeps_ties": monoid.keeps_ties, "decides": monoid.key_state,
                "matrix": [evaluate(node, dtype) for node in monoid.matrix], "start": monoid.start,
                "sums": None if monoid.bias is None else _sums(monoid.bias, dtype, shared),
            }  # fmt: skip
        self._plan = Plan(
            kernel, params, kernel_inputs, shared, kernel_outputs, dims, spec.length, cost, **keywords
        )

    def run(
        self, inputs: list[Array], outputs: list[Array], states: Sequence[Any], n_threads: int | None
    ) -> Array:
        """Write the outputs; return the states after the last step, of shape (states, *columns).

        `states` before the first step broadcast to the columns. The bits do not depend on the number of threads.
        """
        memory = np.empty(self._state_shape, self._dtype)
        finals = memory if self._state_axes is None else memory.transpose(self._state_axes)
        for place, value in enumerate(states):
            finals[place] = value
        if self._plan is not None:
            self._plan.run(inputs, outputs, self._offsets, memory, cpu.threads(n_threads))
        return finals


def _go_past_caches(
    inputs: list[Array], outputs: list[Array], shared: tuple[bool, ...], dtype: np.dtype[Any]
) -> bool:
    """Whether outputs exceed the caches, and the kernel reads and writes arrays in place, not through tiles."""

    def in_place(array: Array) -> bool:
        return array.dtype == dtype and array.strides[-1] == dtype.itemsize

    are_large = bool(outputs) and all(y.size * y.itemsize >= _PAST_CACHES for y in outputs)
    reads = all(same or in_place(x) for x, same in zip(inputs, shared))
    return are_large and reads and all(map(in_place, outputs))


def is_readable(array: Array) -> bool:
    """Whether the kernels read the array as it is: native, aligned, and of a dtype that they know."""
    dtype = array.dtype
    return (dtype.kind != "f" or dtype.itemsize in (4, 8)) and dtype.isnative and array.flags.aligned


def readable(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array, converted if the kernels cannot read it as it is; `dtype` is that of the scan."""
    if is_readable(array):
        return array
    is_float16 = array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8)
    return converted(array, dtype if is_float16 else array.dtype.newbyteorder("="))


def converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array in another dtype; numbers too large for it become infinities without a warning."""
    result = np.empty_like(array, dtype, subok=False)
    convert(array, result)
    return result


def convert(source: Array, target: Array) -> None:
    """Write an array to one of another dtype; numbers too large for it become infinities without a warning."""
    types = {source.dtype.str[1:], target.dtype.str[1:]}
    if "f2" in types and types <= {"f2", "f4", "f8"} and target.dtype.isnative:
        cpu.scans.convert(source, target)
        return
    with np.errstate(over="ignore"):
        np.copyto(target, source, casting="unsafe")


class HostScans:
    """Runs scans on arrays of the host, with `run` and `empty` as in `DeviceScans` of the CUDA backend."""

    def __init__(self, n_threads: int | None = None) -> None:
        self._n_threads = n_threads

    empty = staticmethod(new_array)

    def run(
        self, spec: ScanSpec, inputs: Sequence[Array], states: Sequence[Array],
        outputs: Sequence[Array] | None = None,
    ) -> tuple[list[Array], list[Array]]:  # fmt: skip
        """Run a scan of inputs in scan order; return the outputs in user order and the states after the last step.

        Outputs are in the dtype of the scan, new or the `outputs` that were passed.
        """
        if outputs is None:
            like = next((spec.in_user_order(x) for x in inputs if 0 not in x.strides and x.size), None)
            outputs = [self.empty(spec.shape, spec.dtype, like) for _ in spec.recurrence.outputs]
        read = [readable(x, spec.dtype) for x in inputs]
        written = [spec.in_scan_order(y) for y in outputs]
        finals = LaunchPlan(spec, read, written).run(read, written, states, self._n_threads)
        return [*outputs], [finals[n, ...] for n in range(len(states))]
