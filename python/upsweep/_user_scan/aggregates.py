"""Aggregates of blocks: what a block of steps of a user-defined scan does to the states before it.

An update whose steps form a `Monoid` has a few numbers for each column: a matrix and a vector (affine updates), a
shift and a bound (max, min, logaddexp), or the winner (argmax, argmin). One pass over the block computes them in
the dtype of the scan; they are combined in float64, by numpy's functions, which call the library of a block on a
device.

`scan.carry`, `combine` and the scans of dask arrays use this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import Array
from upsweep._compiler.recurrences.associative import Monoid, find_monoid, repeated_factor
from upsweep._compiler.recurrences.trace import Structure, arranged, as_length
from upsweep._core.user_scan import ScanSpec
from upsweep._user_scan.problem import Problem, as_real, broadcast, flatten, label
from upsweep._user_scan.run import run_block, stacked

_HUGE = 1e200  # from here on, products of states and aggregates may overflow where the sequential scan does not
_EXTREMES = {"max": np.maximum, "min": np.minimum, "logaddexp": np.logaddexp}


@dataclass(frozen=True)
class UpdateCarry:
    """What a block of steps does to the states before it, as ``scan.carry`` returns it; `combine` takes two of
    them.

    Attributes
    ----------
    form : Monoid
        How the numbers are combined; its `kind` is "affine", "integers" (affine, of integers), "max", "min",
        "logaddexp", "argmax" or "argmin".
    factor : ndarray or cupy.ndarray
        float64, or int64 or uint64 of integers. The matrix of shape (states, states, *columns), or the shift of
        shape columns. Axes that it does not depend on have length 1.
    value : ndarray or cupy.ndarray
        As `factor`, of shape (states, *columns). The vector, the bound, or the winner. The payload is NaN if there
        is no winner.
    structure : int
        -1 for one state, else the length of the tuple of states.
    """

    form: Monoid
    factor: Any
    value: Any
    structure: Structure = None

    def apply(self, state: Any) -> Any:
        """Return the state after the block, given the one before it.

        Parameters
        ----------
        state : number, array_like or tuple of them
            Arranged as `init`; each broadcasts to the shape of the columns. Arrays are of the carry's library.

        Returns
        -------
        ndarray or cupy.ndarray, or tuple of them
            float64, or int64 or uint64 of integers.

        Raises
        ------
        TypeError, ValueError
            The number of states differs, one is a float and the carry is of integers, an array is of another
            library or device, or shapes do not broadcast.

        Examples
        --------
        >>> import upsweep
        >>> upsweep.scan.carry(lambda s, x: 0.5 * s + x, 0.0, [1.0, 2.0]).apply(8.0)
        array(4.5)
        """
        items, structure = flatten(state, "state")
        if as_length(structure) != self.structure:
            raise TypeError(f"state: expected {_counted(self.structure)}, got {_counted(as_length(structure))}")
        columns = self.value.shape[1:]
        named = {label("state", structure, n): value for n, value in enumerate(items)}
        views = {name: as_real(value, name) for name, value in named.items()}
        for name, view in views.items():
            if not _arrays.can_hold(self.value.dtype, view.dtype):
                raise TypeError(f"{name}: {view.dtype} cannot be held by a carry of dtype {self.value.dtype}")
            broadcast(view, columns, name)
        _arrays.common_placement({"carry": _arrays.as_operand(self.value, "carry"), **views})
        after = advance(self, stacked(items, columns, self.value, self.value.dtype))
        return arranged([after[n, ...] for n in range(len(after))], structure)

    def then(self, after: UpdateCarry) -> UpdateCarry:
        """Return what this block and the next one do together.

        Raises
        ------
        TypeError, ValueError
            The carries are of different kinds, or of different columns.

        Examples
        --------
        >>> import upsweep
        >>> a, b = (upsweep.scan.carry(lambda s, x: s + x, 0.0, block) for block in ([1.0, 2.0], [3.0]))
        >>> a.then(b).apply(1.0)
        array(7.)
        """
        kinds = [f"{each.form.kind} of {each.value.dtype}, {_counted(each.structure)}" for each in (self, after)]
        if kinds[0] != kinds[1]:
            raise TypeError(f"carry_b: is {kinds[1]}, and carry_a is {kinds[0]}; they do not combine")
        shapes = self.value.shape[1:], after.value.shape[1:]
        if shapes[0] != shapes[1]:
            raise ValueError(f"carry_b: has columns of shape {shapes[1]}, and carry_a of {shapes[0]}")
        return merge(self, after)


def _counted(structure: Structure) -> str:
    return "one state" if structure == -1 else f"a tuple of {structure}"


def reduce_block(monoid: Monoid, spec: ScanSpec, inputs: list[Array], n_threads: int | None = None) -> UpdateCarry:
    """The carry of a block of a scan, of inputs in scan order."""
    n_states, columns = spec.recurrence.n_states, spec.columns
    start = np.array(monoid.start)
    if monoid.kind in ("argmax", "argmin"):
        start[np.arange(n_states) != monoid.key_state] = np.nan
    reduction = ScanSpec(monoid.reduce, spec.dtype, spec.length, columns)
    _, numbers = run_block(reduction, inputs, start.tolist(), n_threads=n_threads)
    factors, value = numbers[:-n_states], numbers[-n_states:]
    shape = (n_states, n_states) if monoid.is_affine else ()
    if monoid.varies and (monoid.is_affine or monoid.kind in _EXTREMES):
        return UpdateCarry(monoid, factors.reshape((*shape, *columns)), value)
    factor = np.array(repeated_factor(monoid, spec.dtype, spec.length) or (0.0,))
    with _arrays.on_device_of(value):
        factor = np.asarray(factor.reshape((*shape, *(1,) * len(columns))), like=value)
    return UpdateCarry(monoid, factor, value)


def carry_of(problem: Problem) -> UpdateCarry:
    """The carry of a checked call."""
    monoid, why = find_monoid(problem.spec.recurrence)
    if monoid is None:
        raise ValueError(f"update: {why}; what a block does to the state is no few numbers")
    if problem.placement is not None and problem.placement.library.numpy_like is None:
        raise TypeError(
            f"xs: is a {problem.placement.library.name}, with which upsweep does not know how to calculate; "
            "convert it, e.g. by cupy.asarray"
        )
    carry = replace(
        reduce_block(monoid, problem.spec, problem.inputs), structure=as_length(problem.state_structure)
    )
    if np.dtype(np.uint64) not in problem.traced.state_dtypes:
        return carry
    if len({*problem.traced.state_dtypes}) > 1:
        raise TypeError("init: uint64 and other states have no common carry; cast them to uint64")
    return replace(carry, factor=carry.factor.view(np.uint64), value=carry.value.view(np.uint64))


def _times(matrix: Any, columns: Any) -> Any:
    """The product of matrices (n, n, ...) with vectors or matrices (n, ...), for each column."""
    total = matrix[:, 0] * columns[0]
    for n in range(1, len(columns)):
        total = total + matrix[:, n] * columns[n]
    return total


def advance(carry: UpdateCarry, states: Any) -> Any:
    """The states (states, *columns) after a block, from the states before it."""
    form = carry.form
    with _arrays.on_device_of(carry.value), np.errstate(all="ignore"):
        if form.is_affine:
            return _times(carry.factor, states) + carry.value
        if form.kind in _EXTREMES:
            shifted = states + carry.factor
            if form.can_reset:  # whatever the state was, inf - inf included
                shifted = np.where(carry.factor == form.start[1], carry.factor, shifted)
            return _EXTREMES[form.kind](shifted, carry.value)
        key, new_key = states[form.key_state], carry.value[form.key_state]
        is_replaced = new_key > key if form.kind == "argmax" else new_key < key
        if not form.keeps_ties:
            is_empty = np.isinf(new_key)  # an infinite key may stand for no winner, whose payload is NaN
            for n in range(len(carry.value)):
                if n != form.key_state:
                    is_empty = is_empty & np.isnan(carry.value[n])
            is_replaced = is_replaced | ((new_key == key) & ~is_empty)
        return np.where(is_replaced, carry.value, states)


def merge(first: UpdateCarry, second: UpdateCarry) -> UpdateCarry:
    """The carry of two neighbouring blocks; `first` is the first one in scan order."""
    value = advance(second, first.value)
    with _arrays.on_device_of(value), np.errstate(all="ignore"):
        if first.form.is_affine:
            factor = _times(second.factor[:, :, None], first.factor)
        else:
            factor = first.factor + second.factor
    return replace(second, factor=factor, value=value)


def is_regular(carry: UpdateCarry, before: Any, after: Any) -> Any:
    """For which columns the states after a block are exact enough; the others are computed step by step."""
    with _arrays.on_device_of(after), np.errstate(invalid="ignore"):
        if carry.form.kind != "affine":
            return ~np.isnan(after).any(axis=0)
        states = [(np.abs(each) < _HUGE).all(axis=0) for each in (before, carry.value, after)]
        return states[0] & states[1] & states[2] & (np.abs(carry.factor) < _HUGE).all(axis=(0, 1))
