"""Compiled scans: what a call of `scan` prepares once, and later calls with arrays of the same layout use again.

The first call checks its arguments, traces the update and prepares a `CompiledScan`. A later call with the same
signature cannot fail these checks, so it only passes addresses. A signature has all that a compiled scan depends
on: dtypes, shapes, strides and devices of the arrays, numbers that become part of a formula, the axis, the
direction and how arguments are arranged. `GuardedCache` compares what the update reads from outside.

    CompiledScan      one call: its results and how they are arranged
      HostScan        numpy arrays; `cpu.user_scan.LaunchPlan` has the operands and the kernels
      DeviceScan      arrays on CUDA; `cuda.user_scan.LaunchPlan` allocates results and starts the kernels
        TensorScan    of `_torch.user_scan_plans`: torch tensors on CUDA, and their first derivative
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import Array, DeviceView
from upsweep._compiler.recurrences.guards import GuardedCache
from upsweep._compiler.recurrences.recurrence import keeping_states
from upsweep._compiler.recurrences.trace import Structure, arranged, as_length
from upsweep._core.layout import address, memory_order, overlap
from upsweep._core.scan import check_out
from upsweep._core.user_scan import repeated_number, with_host_numbers
from upsweep._user_scan.problem import EXACT, EXACT_SINGLE, Problem, check, label, rounded

_MAX_SCANS = 64  # of an update

compiled_scans: GuardedCache[Any] = GuardedCache(_MAX_SCANS)


def scan_arrays(
    update: Any, states: list[Any], inputs: list[Any], structures: tuple[Structure, Structure], axis: Any,
    reverse: Any, return_final: Any, length: Any, out: Any, parameters: tuple[float, ...] = (),
    of_integers: np.dtype[Any] | None = None,
) -> Any:  # fmt: skip
    """`upsweep.scan` of numpy arrays or arrays on a device, by the compiled scan of an earlier call if any.

    `of_integers` is the dtype of integers as floats, if the arrays are views of tensors, promoted as by torch.
    With `parameters` the arrays are numpy's, and the update takes the parameters as further inputs. Calls with
    other parameters use the same trace and the same compiled scan.
    """
    with_parameters = (parameters,) if parameters else ()
    entry = compiled_scans.entry(update) if callable(update) else None
    key = None
    if entry is not None:
        key = _signature(states, inputs, structures, axis, reverse, return_final, length, out, of_integers)
    compiled = None if entry is None or key is None else entry.get(key)
    if compiled is not None:
        result = compiled.run(states, inputs, out, *with_parameters)
        if result is not NotImplemented:
            return result
    init, xs = (arranged(items, structure) for items, structure in zip((states, inputs), structures, strict=True))
    problem = check(update, init, xs, axis, reverse, length, of_integers, parameters)
    if problem.placement is not None:
        scan = DeviceScan(problem, return_final)
        if entry is not None and key is not None:
            entry[key] = scan
            return scan.run(states, inputs)
        return scan.run_checked(problem)
    targets = [] if out is None else _as_targets(out, problem)
    are_converted = _convert_inputs(problem)
    is_direct = all(map(_backends.cpu_user_scan.is_readable, targets))
    if compiled is None and is_direct and [y.dtype for y in targets] == problem.spec.output_dtypes[: len(targets)]:
        compiled = HostScan(problem, return_final, targets, are_converted)
        if entry is not None and key is not None:
            entry[key] = compiled
        result = compiled.run(problem.user_states, problem.user_inputs, out, parameters)
        if result is not NotImplemented:
            return result
    # `out` has to be converted, or needs a copy.
    scans = _backends.cpu_user_scan.HostScans()
    outputs, finals = scans.run(problem.spec, problem.inputs, problem.states, parameters=parameters)
    for target, y in zip(targets, outputs):
        _backends.cpu_user_scan.convert(y, target)
    traced = problem.traced
    if out is None:
        out = arranged([*map(rounded, outputs, traced.output_dtypes)], traced.output_structure)
    if not return_final:
        return out
    return out, arranged([*map(rounded, finals, traced.state_dtypes)], problem.state_structure)


def _convert_inputs(problem: Problem) -> bool:
    """Replace inputs that kernels cannot read, as those of float16, by converted ones; whether there are any."""
    spec, cpu = problem.spec, _backends.cpu_user_scan
    if all(map(cpu.is_readable, problem.user_inputs)):
        return False
    problem.user_inputs = [cpu.readable(x, spec.dtype) for x in problem.user_inputs]
    problem.inputs = [spec.in_scan_order(np.broadcast_to(x, spec.shape)) for x in problem.user_inputs]
    return True


def _signature(
    states: Sequence[Any], inputs: Sequence[Any], structures: tuple[Structure, Structure], axis: Any, reverse: Any,
    return_final: Any, length: Any, out: Any, of_integers: np.dtype[Any] | None,
) -> Hashable:  # fmt: skip
    """What the compiled scan of a call depends on; None if the call has to be checked."""
    if type(axis) is not int or not (length is None or type(length) is int):
        return None
    common = axis, bool(reverse), bool(return_final), length, structures, of_integers
    of_states = layout_keys(states, _arrays.host_layout_key)
    of_inputs = layout_keys(inputs, _arrays.host_layout_key)
    if of_states is None or of_inputs is None:
        of_states = layout_keys(states, _arrays.device_layout_key)
        of_inputs = layout_keys(inputs, _arrays.device_layout_key, are_constants=True)
        return None if of_states is None or of_inputs is None else (common, of_states, of_inputs)
    if out is None:
        return common, of_states, of_inputs
    of_targets = layout_keys(out if type(out) is tuple else (out,), _arrays.host_layout_key)
    return None if of_targets is None else (common, of_states, of_inputs, type(out), of_targets)


def layout_keys(
    values: Sequence[Any], layout_key: Callable[[Any], Hashable], are_constants: bool = False
) -> tuple[Hashable, ...] | None:
    """The keys of states or inputs in a signature; None if one of them has to be checked at each call.

    `layout_key` is equal for arrays that differ in their addresses alone, and None for other objects. Python's
    numbers are read at each call, unless they `are_constants` of a formula.
    """
    keys: list[Hashable] = []
    for value in values:
        key: Any = type(value)
        if key is float:
            if are_constants:
                key = key, value.hex()  # tells -0.0 from 0.0; NaN is equal to itself
        elif key is not int and key is not bool:
            key = layout_key(value)
        elif not -EXACT < value < EXACT:
            key = None
        elif not -EXACT_SINGLE < value < EXACT_SINGLE:  # beside float32 it may be an integer, or an error
            key = int, value < 0, float(np.float32(value)) == value
        elif value < 0:
            key = int, -1  # out of bounds for an unsigned integer
        if are_constants and key is not None and isinstance(value, int):
            key = key, value
        if key is None:
            return None
        keys.append(key)
    return tuple(keys)


class CompiledScan:
    """A call of `scan` whose arguments were checked; subclasses run it on other arrays of the same layout."""

    def __init__(self, problem: Problem, return_final: bool) -> None:
        self._output_structure = problem.traced.output_structure
        self._state_structure = problem.state_structure
        self._returns_final = return_final

    def _arranged(self, outputs: list[Any], finals: list[Any]) -> Any:
        """The result of the call."""
        ys = arranged(outputs, self._output_structure)
        return (ys, arranged(finals, self._state_structure)) if self._returns_final else ys


class HostScan(CompiledScan):
    """A call of `scan` on numpy arrays that the kernels write, and read or, if `are_converted`, read copies of."""

    def __init__(
        self, problem: Problem, return_final: bool, targets: Sequence[Array], are_converted: bool
    ) -> None:
        super().__init__(problem, return_final)
        self._read_dtype = problem.spec.dtype if are_converted else None
        spec, cpu = problem.spec, _backends.cpu_user_scan
        self._output_dtypes, self._state_dtypes = problem.traced.output_dtypes, problem.traced.state_dtypes
        self._computed, shape, like = spec.output_dtypes, spec.shape, problem.like()
        self._are_rounded = self._computed != [*self._output_dtypes]
        order = list(range(len(shape))) if like is None else memory_order(like.strides)
        self._new_shape = tuple(shape[d] for d in order)  # of a new output, by its axes in memory
        self._new_axes = None if order == sorted(order) else tuple(map(order.index, range(len(shape))))
        outputs = list(targets) or [*map(self._empty, self._computed)]
        in_order = [spec.in_scan_order(y) for y in outputs]
        pairs = [*zip(problem.inputs, problem.user_inputs), *zip(in_order, outputs)]
        offsets = [address(view) - address(array) for view, array in pairs]
        self._plan = cpu.LaunchPlan(spec, problem.inputs, in_order, offsets, problem.parameters)
        # Only a scan that is sequential in time may overwrite its inputs: in parallel they are read twice.
        in_place = [
            not self._plan.is_parallel and (x.dtype, x.shape, x.strides) == (y.dtype, y.shape, y.strides)
            for y in targets
            for x in problem.user_inputs
        ]
        self._spans = cpu.Spans(problem.user_inputs, targets, in_place)

    def _empty(self, dtype: np.dtype[Any]) -> Array:
        new = np.empty(self._new_shape, dtype)
        return new if self._new_axes is None else new.transpose(self._new_axes)

    def run(
        self, states: Sequence[Any], inputs: Sequence[Any], out: Any = None, parameters: tuple[float, ...] = ()
    ) -> Any:
        """The result for other arrays and parameters; NotImplemented if an overlap of `out` has to be checked."""
        arrays = [x if type(x) is np.ndarray else np.asarray(x) for x in inputs]
        if self._read_dtype is not None:
            arrays = [_backends.cpu_user_scan.readable(x, self._read_dtype) for x in arrays]
        if out is None:
            outputs = [*map(self._empty, self._computed)]
        else:
            outputs = list(out) if isinstance(out, tuple) else [out]
            if not self._spans.are_apart(arrays, outputs):
                return NotImplemented
        last = self._plan.run(arrays, outputs, states, None, parameters)
        if out is None:
            if self._are_rounded:
                outputs = [*map(rounded, outputs, self._output_dtypes)]
            out = arranged(outputs, self._output_structure)
        if not self._returns_final:
            return out
        finals = [rounded(state, dtype) for state, dtype in zip(self._plan.states(last), self._state_dtypes)]
        return out, arranged(finals, self._state_structure)


def _as_targets(out: Any, problem: Problem) -> list[Array]:
    """The arrays of `out`, arranged, shaped and typed as the outputs are.

    They share no memory with each other, nor with an input without being that input.
    """
    structure, dtypes = problem.traced.output_structure, problem.traced.output_dtypes
    if structure is None:
        raise ValueError("out: the update has no output")
    length = as_length(structure)
    if structure != -1 and (not isinstance(out, tuple) or len(out) != length):
        got = f"a tuple of {len(out)}" if isinstance(out, tuple) else type(out).__qualname__
        raise TypeError(f"out: expected a tuple of {length} arrays, as the outputs are, got {got}")
    inputs: dict[str, Array | None] = {
        label("xs", problem.input_structure, n): x for n, x in enumerate(problem.user_inputs)
    }
    targets: list[Array] = []
    for place, (array, dtype) in enumerate(zip([out] if structure == -1 else out, dtypes)):
        name = label("out", structure, place)
        target = check_out(array, problem.spec.shape, dtype, inputs, tuple(inputs), called=name)
        for other, earlier in enumerate(targets):
            if overlap(target, earlier):
                raise ValueError(f"{name}: overlaps out[{other}] in memory")
        targets.append(target)
    return targets


class DeviceScan(CompiledScan):
    """A call of `scan` on arrays of a CUDA device.

    The values of the `saved_states` before each step are additional outputs, for a derivative. `half` is the
    16-bit dtype of the call, "float16" or "bfloat16", which is traced as float16.
    """

    def __init__(
        self, problem: Problem, return_final: bool, saved_states: Sequence[int] = (), half: str = "float16"
    ) -> None:
        super().__init__(problem, return_final)
        cuda, placement, traced = _backends.cuda_user_scan, problem.placement, problem.traced
        assert placement is not None
        cuda.check_allocates(placement, problem.named())
        recurrence = with_host_numbers(keeping_states(traced.recurrence, saved_states), problem.inputs)
        spec = replace(problem.spec, recurrence=recurrence)

        def layout(view: Array, array: Array) -> Any:
            if not isinstance(view, DeviceView):
                return None
            described = cuda.describe(view)
            offset = described.pointer - cuda.describe(array).pointer
            return cuda.Layout(described._replace(dtype=named(described.dtype)), offset)

        def named(dtype: str) -> str:
            return half if dtype == "float16" else dtype

        like = problem.like() if placement.library.transposes else None
        dtypes = [named(dtype.name) for dtype in traced.output_dtypes]
        dtypes += [spec.state_dtypes[p].name for p in saved_states]
        layouts = cuda.ScanArrays(
            [layout(*pair) for pair in zip(problem.inputs, problem.user_inputs)],
            [cuda.output_spec(spec, dtype, like) for dtype in dtypes],
            [layout(*pair) for pair in zip(problem.states, problem.user_states)],
            [cuda.final_spec(spec, named(d.name)) if return_final else None for d in traced.state_dtypes],
        )
        self.plan: Any = cuda.LaunchPlan(spec, placement, layouts)

    def run(self, states: Sequence[Any], inputs: Sequence[Any], out: None = None) -> Any:
        """The result for other arrays."""
        return self._arranged(*self.start(states, inputs))

    def start(self, states: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs, followed by the saved states, and the final states."""
        with self.plan.context() as context:
            return self.plan.run(context, [*map(self._operand, inputs)], [*map(self._operand, states)])

    def run_checked(self, problem: Problem) -> Any:
        """The result for the arrays of a checked call, of which some may have to wait for their producer."""
        cuda = _backends.cuda_user_scan
        with cuda.ExecutionContext(problem.named(), problem.placement) as context:
            inputs, states = (
                [cuda.describe(a).pointer if isinstance(a, DeviceView) else repeated_number(a) for a in arrays]
                for arrays in (problem.user_inputs, problem.user_states)
            )
            return self._arranged(*self.plan.run(context, inputs, states))

    def _operand(self, value: Any) -> Any:
        """The address of an array, or a number."""
        if isinstance(value, (int, float)):
            return value
        return _arrays.address_on_device(value, self.plan.placement.library)
