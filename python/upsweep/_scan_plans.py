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
from typing import Any, Protocol

from upsweep import _arrays, _dispatch
from upsweep._arrays import Array, OnDevice
from upsweep._expr.recurrence import state
from upsweep._expr.surroundings import Known
from upsweep._expr.trace import Structure
from upsweep._scan_problem import Problem, arranged, choose_path_on_device

__all__ = ["DevicePlan", "Plan", "known_plans", "prepare_on_device", "run_on_device", "signature"]

_MOST_PLANS = 64  # of an update
_EXACT = 2**53  # up to here a Python integer is the same number in float64


class Plan(Protocol):
    """A call that was prepared."""

    def run(self, states: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """The result of such a call on other arrays."""


known_plans: Known[Any] = Known(_MOST_PLANS)


def signature(
    states: Sequence[Any], inputs: Sequence[Any], structures: tuple[Structure, Structure], axis: Any, reverse: Any,
    return_final: Any, length: Any, kind: Callable[[Any], Hashable],
) -> Hashable:  # fmt: skip
    """What a plan depends on; None for a call that has to be looked at.

    `kind` is equal for arrays that a plan does not tell apart, and None for others.
    """
    if type(axis) is not int or not (length is None or type(length) is int):
        return None
    own: Any
    found: list[Any] = [axis, bool(reverse), bool(return_final), length, structures]
    for value in states:
        own = type(value)
        if own is int:
            if not -_EXACT <= value <= _EXACT:
                return None
        elif own is not float and own is not bool:
            own = kind(value)
            if own is None:
                return None
        found.append(own)
    for value in inputs:
        own = type(value)
        if own is int or own is bool:
            if not -_EXACT <= value <= _EXACT:
                return None
            own = own, value
        elif own is float:
            own = own, value.hex()  # which tells -0.0 from 0.0, and of which NaN is equal to itself
        else:
            own = kind(value)
            if own is None:
                return None
        found.append(own)
    return tuple(found)


# ---- arrays of a device ----------------------------------------------------------------------------------------


def prepare_on_device(
    problem: Problem, return_final: bool, *, keeps: Sequence[int] = (), half: str = "float16"
) -> Any:
    """The scan of a checked call on arrays of a device, for any that lie as these do.

    `keeps`: which states before each step are its last outputs. `half` is what its halves of 16 bits are.
    """
    at_home = _dispatch.user_scans_at_home()
    home, traced, columns, axis = problem.home, problem.traced, problem.columns, problem.axis
    assert home is not None
    at_home.check_allocates(home, problem.named())
    recurrence = traced.recurrence
    recurrence = replace(recurrence, outputs=recurrence.outputs + tuple(map(state, keeps)))
    recurrence = at_home.with_numbers(recurrence, problem.inputs)
    form, _ = choose_path_on_device(recurrence, problem.length, columns)

    def place(lying: Array, given: Array) -> Any:
        if not isinstance(lying, OnDevice):
            return None
        array = at_home.described(lying)
        offset = array.pointer - at_home.described(given).pointer
        return at_home.Place(array._replace(dtype=named(array.dtype)), offset)

    def named(dtype: str) -> str:
        return half if dtype == "float16" else dtype

    whole = columns[:axis] + (problem.length,) + columns[axis:]
    like = next((x for x in problem.given if x.shape == whole and 0 not in x.strides), None)
    dtypes = [named(dtype.name) for dtype in traced.output_dtypes]
    dtypes += [traced.dtype.name] * (len(recurrence.outputs) - len(dtypes))
    outputs = [
        at_home.new_result(
            whole, dtype, axis=axis, reverse=problem.reverse, like=like if home.library.transposes else None
        )
        for dtype in dtypes
    ]
    finals = [at_home.new_result(columns, named(d.name)) if return_final else None for d in traced.state_dtypes]
    return at_home.ScanPlan(
        home, recurrence, traced.dtype, [place(*pair) for pair in zip(problem.inputs, problem.given)], outputs,
        [place(*pair) for pair in zip(problem.states, problem.initial)], finals, problem.length, columns, form,
    )  # fmt: skip


class DevicePlan:
    """A call of `scan` on arrays of a device that is not torch's."""

    def __init__(self, problem: Problem, return_final: bool) -> None:
        self._scan = prepare_on_device(problem, return_final)
        self._structures = problem.traced.output_structure, problem.state_structure
        self._returns_final = return_final
        self._library = self._scan.home.library

    def run(self, states: Sequence[Any], inputs: Sequence[Any]) -> Any:
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


def run_on_device(problem: Problem, return_final: bool) -> tuple[Any, DevicePlan]:
    """The result of a checked call on arrays of a device, and the plan of later ones."""
    plan = DevicePlan(problem, return_final)
    at_home = _dispatch.user_scans_at_home()
    with contextlib.closing(at_home.Call(problem.named(), problem.home)) as call:
        states, inputs = (
            [at_home.described(a).pointer if isinstance(a, OnDevice) else at_home.number(a) for a in arrays]
            for arrays in (problem.initial, problem.given)
        )
        return plan.run_in(call, states, inputs), plan
