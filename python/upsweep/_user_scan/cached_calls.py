"""Calls of `scan` that were prepared before: what does not depend on where arrays are is found once.

The first call of a kind checks everything and makes a plan; a later one of the same signature cannot fail these
checks, and only fills in addresses. A signature has all that a plan depends on: dtypes, shapes, strides and
devices of arrays, numbers that become part of a formula, axis, order and structures. What an update takes from
around it `Known` compares.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import Array, DeviceView
from upsweep._compiler.recurrences.guards import Known
from upsweep._compiler.recurrences.recurrence import state
from upsweep._compiler.recurrences.trace import Structure
from upsweep._user_scan.outputs import as_targets
from upsweep._user_scan.problem import (
    Problem,
    arranged,
    choose_path,
    choose_path_on_device,
    in_scan_order,
    moved,
    rounded,
)

__all__ = [
    "DevicePlan",
    "HostPlan",
    "kinds",
    "known_plans",
    "prepare",
    "prepare_on_device",
    "run_on_device",
    "signature",
]

_MOST_PLANS = 64  # of an update
_EXACT = 2**53  # up to here a Python integer is the same number in float64


known_plans: Known[Any] = Known(_MOST_PLANS)


def signature(
    states: Sequence[Any], inputs: Sequence[Any], structures: tuple[Structure, Structure], axis: Any, reverse: Any,
    return_final: Any, length: Any, out: Any = None,
) -> Hashable:  # fmt: skip
    """What the plan of a call on arrays of numpy, or of a device, depends on; None for one to be looked at."""
    if type(axis) is not int or not (length is None or type(length) is int):
        return None
    common = axis, bool(reverse), bool(return_final), length, structures
    of_states, of_inputs = kinds(states, _arrays.host_layout_key), kinds(inputs, _arrays.host_layout_key)
    if of_states is not None and of_inputs is not None:
        if out is None:
            return common, of_states, of_inputs
        of_targets = kinds(out if type(out) is tuple else (out,), _arrays.host_layout_key)
        return None if of_targets is None else (common, of_states, of_inputs, type(out), of_targets)
    of_states = kinds(states, _arrays.device_layout_key)
    of_inputs = kinds(inputs, _arrays.device_layout_key, are_constants=True)
    return None if of_states is None or of_inputs is None else (common, of_states, of_inputs)


def kinds(
    values: Sequence[Any], kind: Callable[[Any], Hashable], are_constants: bool = False
) -> tuple[Hashable, ...] | None:
    """What a plan depends on of states or inputs; None for what has to be looked at.

    `kind` is equal for arrays that a plan does not tell apart, and None for others. Python's numbers are read at
    each call, unless they `are_constants` of a formula.
    """
    found: list[Hashable] = []
    for value in values:
        own: Any = type(value)
        if own is float:
            if are_constants:
                own = own, value.hex()  # which tells -0.0 from 0.0, and of which NaN is equal to itself
        elif own is int or own is bool:
            if not -_EXACT <= value <= _EXACT:
                return None
            if are_constants:
                own = own, value
        else:
            own = kind(value)
            if own is None:
                return None
        found.append(own)
    return tuple(found)


# ---- arrays of the host ----------------------------------------------------------------------------------------


class HostPlan:
    """A call of `scan` on arrays of numpy that the kernel takes as they are."""

    def __init__(self, problem: Problem, return_final: bool, targets: Sequence[Array] = ()) -> None:
        traced, axis, self._columns = problem.traced, problem.axis, problem.columns
        self._structures = traced.output_structure, problem.state_structure
        self._output_dtypes, self._state_dtypes = traced.output_dtypes, traced.state_dtypes
        self._returns_final, self._dtype = return_final, traced.dtype
        self._are_rounded = any(dtype != traced.dtype for dtype in traced.output_dtypes)
        form, _ = choose_path(traced.recurrence, problem.length, problem.columns)
        whole = problem.columns[:axis] + (problem.length,) + problem.columns[axis:]
        order = _order_in_memory(problem, whole)
        self._new = tuple(whole[d] for d in order)  # the shape of a new result, as it lies in memory
        self._back = None if order == sorted(order) else tuple(map(order.index, range(len(whole))))
        outputs = list(targets) or [self._empty() for _ in traced.output_dtypes]
        lying = [in_scan_order(y, problem) for y in outputs]
        pairs = [*zip(problem.inputs, problem.given), *zip(lying, outputs)]
        host = _backends.cpu_user_scan()
        self._scan = host.Plan(
            traced.recurrence, traced.dtype, problem.inputs, lying, problem.columns, problem.length, form,
            [_address(view) - _address(array) for view, array in pairs],
        )  # fmt: skip
        alike = [form is None and _lie_alike(x, y) for y in targets for x in problem.given]
        self._spans = host.Spans(problem.given, targets, alike)

    def _empty(self) -> Array:
        new = np.empty(self._new, self._dtype)
        return new if self._back is None else new.transpose(self._back)

    def run(self, states: Sequence[Any], inputs: Sequence[Any], out: Any) -> Any:
        """The result of such a call on other arrays; NotImplemented where `out` lies over these in another way."""
        arrays = [x if type(x) is np.ndarray else np.asarray(x) for x in inputs]
        if out is not None:
            outputs = list(out) if isinstance(out, tuple) else [out]
            if not self._spans.are_apart(arrays, outputs):
                return NotImplemented
        else:
            outputs = [self._empty() for _ in self._output_dtypes]
        last = self._scan.run(arrays, outputs, states, None)
        ys = out
        if out is None:
            if self._are_rounded:
                outputs = [rounded(y, dtype) for y, dtype in zip(outputs, self._output_dtypes)]
            ys = arranged(outputs, self._structures[0])
        if not self._returns_final:
            return ys
        final = [rounded(last[n, ...], dtype) for n, dtype in enumerate(self._state_dtypes)]
        return ys, arranged(final, self._structures[1])


def _order_in_memory(problem: Problem, whole: tuple[int, ...]) -> list[int]:
    """The axes of new results from the outermost to the innermost: as those of an input that repeats nothing."""
    for x in problem.inputs:
        if 0 not in x.strides and x.size:
            strides = moved(x, 0, problem.axis).strides
            return sorted(range(len(whole)), key=lambda d: -abs(strides[d]))
    return list(range(len(whole)))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _lie_alike(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.strides == b.strides


def _prepare_on_host(problem: Problem, return_final: bool, out: Any) -> HostPlan | None:
    """None where what is read or written has to be converted."""
    targets = [] if out is None else as_targets(out, problem)
    readable = _backends.cpu_user_scan().is_readable
    if not all(map(readable, (*problem.given, *targets))) or any(y.dtype != problem.traced.dtype for y in targets):
        return None
    return HostPlan(problem, return_final, targets)


# ---- arrays of a device ----------------------------------------------------------------------------------------


def prepare_on_device(
    problem: Problem, return_final: bool, *, keeps: Sequence[int] = (), half: str = "float16"
) -> Any:
    """The scan of a checked call on arrays of a device, for any that lie as these do.

    `keeps`: which states before each step are its last outputs. `half` is what its halves of 16 bits are.
    """
    cuda = _backends.cuda_user_scan()
    placement, traced, columns, axis = problem.placement, problem.traced, problem.columns, problem.axis
    assert placement is not None
    cuda.check_allocates(placement, problem.named())
    recurrence = traced.recurrence
    recurrence = replace(recurrence, outputs=recurrence.outputs + tuple(map(state, keeps)))
    recurrence = cuda.with_numbers(recurrence, problem.inputs)
    form, _ = choose_path_on_device(recurrence, problem.length, columns)

    def place(lying: Array, given: Array) -> Any:
        if not isinstance(lying, DeviceView):
            return None
        array = cuda.described(lying)
        offset = array.pointer - cuda.described(given).pointer
        return cuda.Place(array._replace(dtype=named(array.dtype)), offset)

    def named(dtype: str) -> str:
        return half if dtype == "float16" else dtype

    whole = columns[:axis] + (problem.length,) + columns[axis:]
    like = next((x for x in problem.given if x.shape == whole and 0 not in x.strides), None)
    dtypes = [named(dtype.name) for dtype in traced.output_dtypes]
    dtypes += [traced.dtype.name] * (len(recurrence.outputs) - len(dtypes))
    outputs = [
        cuda.new_result(
            whole, dtype, axis=axis, reverse=problem.reverse, like=like if placement.library.transposes else None
        )
        for dtype in dtypes
    ]
    finals = [cuda.new_result(columns, named(d.name)) if return_final else None for d in traced.state_dtypes]
    return cuda.ScanPlan(
        placement, recurrence, traced.dtype, [place(*pair) for pair in zip(problem.inputs, problem.given)],
        outputs,
        [place(*pair) for pair in zip(problem.states, problem.initial)], finals, problem.length, columns, form,
    )  # fmt: skip


class DevicePlan:
    """A call of `scan` on arrays of a device that is not torch's."""

    def __init__(self, problem: Problem, return_final: bool) -> None:
        self._scan = prepare_on_device(problem, return_final)
        self._structures = problem.traced.output_structure, problem.state_structure
        self._returns_final = return_final
        self._library = self._scan.placement.library

    def run(self, states: Sequence[Any], inputs: Sequence[Any], out: None = None) -> Any:
        """The result of such a call on other arrays."""
        with contextlib.closing(self._scan.again()) as call:
            return self.run_in(call, [self._operand(s) for s in states], [self._operand(x) for x in inputs])

    def run_in(self, call: Any, states: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """The result, of addresses, or of states that are numbers."""
        made, last = self._scan.run(call, inputs, states)
        ys = arranged(made, self._structures[0])
        return (ys, arranged(last, self._structures[1])) if self._returns_final else ys

    def _operand(self, value: Any) -> Any:
        if isinstance(value, (int, float)):
            return float(value)
        return _arrays.address_on_device(value, self._library)


def run_on_device(problem: Problem, return_final: bool) -> Any:
    """The result of a checked call on arrays of a device, of which some may have to wait for their producer."""
    cuda = _backends.cuda_user_scan()
    plan = DevicePlan(problem, return_final)
    with contextlib.closing(cuda.Call(problem.named(), problem.placement)) as call:
        states, inputs = (
            [cuda.described(a).pointer if isinstance(a, DeviceView) else cuda.number(a) for a in arrays]
            for arrays in (problem.initial, problem.given)
        )
        return plan.run_in(call, states, inputs)


def prepare(problem: Problem, return_final: bool, out: Any) -> HostPlan | DevicePlan | None:
    """The plan of a checked call that has a signature, if one can be made."""
    if problem.placement is not None:
        return DevicePlan(problem, return_final)
    return _prepare_on_host(problem, return_final, out)
