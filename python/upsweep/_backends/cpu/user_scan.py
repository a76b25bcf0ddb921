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
from upsweep._compiler.recurrences.associative import Monoid
from upsweep._compiler.recurrences.integers import as_word
from upsweep._compiler.recurrences.recurrence import Recurrence, evaluate, lifted, n_parameters
from upsweep._core.layout import memory_order, merge_axes, new_array
from upsweep._core.user_scan import ScanSpec, choose_path

__all__ = ["HostScans", "LaunchPlan", "Spans", "convert", "converted", "is_readable", "readable"]

Array = NDArray[Any]

_WORDS = np.dtype(np.int64)  # of integers in kernels
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


def _prepared(
    recurrence: Recurrence, dtype: np.dtype[Any], shared: tuple[bool, ...], past_caches: bool = False
) -> tuple[Kernel, float]:
    return _kernel(lifted(recurrence)[0], 8 * dtype.itemsize, shared, past_caches)


@functools.lru_cache(_MOST_KERNELS)
def _sums(bias: Recurrence, dtype: np.dtype[Any], shared: tuple[bool, ...]) -> Any:
    """The compiled sums of chunks of an affine update."""
    return chunk_aggregates.compile_sums(lifted(bias)[0], cpu.level, 8 * dtype.itemsize, shared)


def _params(recurrence: Recurrence, parameters: Sequence[float], dtype: np.dtype[Any]) -> Array:
    """What the kernel of a recurrence reads beside arrays: parameters of the call, and its own numbers."""
    with np.errstate(over="ignore"):
        return np.array([*parameters[: n_parameters(recurrence)], *lifted(recurrence)[1]], dtype)


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
    step. `parameters` are those of the recurrence, until `run` takes others.
    """

    def __init__(
        self, spec: ScanSpec, inputs: list[Array], outputs: list[Array], offsets: Sequence[int] = (),
        parameters: Sequence[float] = (),
    ) -> None:  # fmt: skip
        arrays, columns, recurrence, dtype = [*inputs, *outputs], spec.columns, spec.recurrence, spec.dtype
        monoid, _ = choose_path(spec)
        assert monoid is None or isinstance(monoid, Monoid)
        self.is_parallel = monoid is not None  # in time
        n_dims = len(columns)
        self._offsets = offsets or [0] * len(arrays)
        kinds = recurrence.integer_states
        self._state_dtype = _WORDS if all(kinds) else dtype
        self._integer_states = kinds if any(kinds) and not all(kinds) else ()
        # The axes of the columns from the outermost in memory to the innermost; the states are laid out alike.
        order = memory_order((outputs or inputs)[0].strides[1:]) if arrays else list(range(n_dims))
        is_ordered = order == sorted(order)
        self._state_shape = (recurrence.n_states, *(columns[d] for d in order))
        self._state_axes = None if is_ordered else (0, *(1 + order.index(d) for d in range(n_dims)))
        self._plan: tuple[Sequence[float], Any] = parameters, None  # replaced as a whole, since threads share it
        if spec.length == 0 or 0 in columns:
            return
        kernel_inputs, kernel_outputs, dims = inputs, outputs, (math.prod(columns),)
        if arrays:
            axes = (0, *(1 + d for d in order))
            flat = _merge_axes(arrays if is_ordered else [array.transpose(axes) for array in arrays])
            kernel_inputs, kernel_outputs = flat[: len(inputs)], flat[len(inputs) :]
            dims = flat[0].shape[1:]
        lane_axis = 0 if monoid else -1  # lanes are chunks of time, or the innermost columns
        integers = recurrence.integer_inputs, recurrence.integer_outputs
        input_dtypes, output_dtypes = ([_WORDS if flag else dtype for flag in flags] for flags in integers)
        shared = tuple(
            a.strides[lane_axis] == 0 and _are_alike(a.dtype, own) and (monoid is not None or dims[-1] > 1)
            for a, own in zip(kernel_inputs, input_dtypes)
        )
        past_caches = monoid is None and _go_past_caches(
            kernel_inputs, kernel_outputs, shared, input_dtypes, output_dtypes
        )
        kernel, cost = _prepared(recurrence, dtype, shared, past_caches)
        keywords: dict[str, Any] = {}
        if monoid is not None:
            reduce, reduce_cost = _prepared(monoid.reduce, dtype, shared)
            cost += reduce_cost
            start = map(as_word, monoid.start) if monoid.kind == "integers" else monoid.start
            keywords = {
                "reduce": reduce, "kind": monoid.kind, "varies": monoid.varies, "keeps_ties": monoid.keeps_ties,
                "decides": monoid.key_state, "start": tuple(start),
            }  # fmt: skip
        layout = (
            [*map(_without_memory, kernel_inputs)], shared, integers[0], [*map(_without_memory, kernel_outputs)],
            integers[1], dims, spec.length, cost,
        )  # fmt: skip

        def plan_with(parameters: Sequence[float]) -> Plan:
            if monoid is not None:
                keywords["reduce_params"] = _params(monoid.reduce, parameters, dtype)
                if monoid.kind != "integers":
                    keywords["matrix"] = [evaluate(node, dtype, parameters) for node in monoid.matrix]
                if monoid.bias is not None:
                    code, n_vectors = _sums(monoid.bias, dtype, shared), chunk_aggregates.VECTORS_AT_ONCE
                    keywords["sums"] = Sums(
                        sums=code.address("sums"), code=code, vectors_at_once=n_vectors,
                        params=_params(monoid.bias, parameters, dtype),
                    )  # fmt: skip
            return Plan(kernel, _params(recurrence, parameters, dtype), *layout, **keywords)

        self._plan_with = plan_with
        self._plan = parameters, plan_with(parameters)

    def run(
        self, inputs: list[Array], outputs: list[Array], states: Sequence[Any], n_threads: int | None,
        parameters: Sequence[float] = (),
    ) -> Array:  # fmt: skip
        """Write the outputs; return the states after the last step, (states, *columns), for `states`.

        `states` before the first step broadcast to the columns. The bits do not depend on the number of threads.
        """
        memory = np.empty(self._state_shape, self._state_dtype)
        finals = memory if self._state_axes is None else memory.transpose(self._state_axes)
        if self._integer_states or self._state_dtype is _WORDS:
            for view, value in zip(self.states(finals), states):
                view[...] = np.asarray(value)  # uint64 keeps its bits
        else:
            for place, value in enumerate(states):
                finals[place] = value
        known, plan = self._plan
        if plan is not None:
            if parameters != known:
                plan = self._plan_with(parameters)
                self._plan = parameters, plan
            plan.run(inputs, outputs, self._offsets, memory, cpu.threads(n_threads))
        return finals

    def states(self, finals: Array) -> list[Array]:
        """The states in the array that `run` returns, of which integers may be in the bits of floats."""
        kinds = self._integer_states or (False,) * len(finals)
        return [finals[n, ...].view(_WORDS) if flag else finals[n, ...] for n, flag in enumerate(kinds)]


def _without_memory(array: Array) -> Array:
    """An array of the same layout for a plan, which reads nothing else: it does not keep the caller's memory."""
    return as_strided(np.empty(1, array.dtype), array.shape, array.strides)


def _are_alike(dtype: np.dtype[Any], computed: np.dtype[Any]) -> bool:
    """Whether elements of a dtype are in memory as the kernel's numbers are; uint64 has the words of int64."""
    return dtype == computed or (computed == _WORDS and dtype.kind == "u" and dtype.itemsize == 8)


def _go_past_caches(
    inputs: list[Array], outputs: list[Array], shared: tuple[bool, ...], input_dtypes: Sequence[np.dtype[Any]],
    output_dtypes: Sequence[np.dtype[Any]],
) -> bool:  # fmt: skip
    """Whether outputs exceed the caches, and the kernel reads and writes arrays in place, not through tiles."""

    def in_place(array: Array, dtype: np.dtype[Any]) -> bool:
        return _are_alike(array.dtype, dtype) and array.strides[-1] == dtype.itemsize

    are_large = bool(outputs) and all(y.size * y.itemsize >= _PAST_CACHES for y in outputs)
    reads = all(same or in_place(x, dtype) for x, same, dtype in zip(inputs, shared, input_dtypes))
    return are_large and reads and all(map(in_place, outputs, output_dtypes))


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
        axes = sorted(range(target.ndim), key=lambda axis: -abs(target.strides[axis]))
        cpu.scans.convert(source.transpose(axes), target.transpose(axes))
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
        outputs: Sequence[Array] | None = None, parameters: Sequence[float] = (),
    ) -> tuple[list[Array], list[Array]]:  # fmt: skip
        """Run a scan of inputs in scan order; return the outputs in user order and the states after the last step.

        Outputs are in the dtypes of `spec.output_dtypes`, new or the `outputs` that were passed.
        """
        if outputs is None:
            like = next((spec.in_user_order(x) for x in inputs if 0 not in x.strides and x.size), None)
            outputs = [self.empty(spec.shape, dtype, like) for dtype in spec.output_dtypes]
        read = [readable(x, spec.dtype) for x in inputs]
        written = [spec.in_scan_order(y) for y in outputs]
        plan = LaunchPlan(spec, read, written, parameters=parameters)
        return [*outputs], plan.states(plan.run(read, written, states, self._n_threads, parameters))
