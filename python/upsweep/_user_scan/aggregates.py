"""What a block of steps of a user's scan does to the states before it, where its recurrence has a parallel form.

A few numbers a column: of affine updates a matrix and a vector, of maxima, minima and logaddexp a shift and a
bound, of argmax and argmin the winner. They are found by one pass over the block, in the dtype that the scan
computes in, and combined in float64: of a block on a device there, by numpy's functions, which call its library's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import Array
from upsweep._compiler.recurrences.associative import Monoid, matrix_power
from upsweep._compiler.recurrences.recurrence import evaluate
from upsweep._compiler.recurrences.trace import Structure
from upsweep._user_scan.problem import Problem, arranged, as_real, broadcast, flatten, label, monoid_of
from upsweep._user_scan.run import run_block, stacked

__all__ = ["UpdateCarry", "advance", "carry_of", "is_regular", "merge", "reduce_block"]

_HUGE = 1e200  # states beyond are not trusted to what was multiplied without them
_EXTREMES = {"max": np.maximum, "min": np.minimum, "logaddexp": np.logaddexp}


@dataclass(frozen=True)
class UpdateCarry:
    """What a block of steps does to the states before it. Made by ``scan.carry``; `combine` takes two of them.

    Attributes
    ----------
    form : Monoid
        What the numbers mean; its `kind` is "affine", "max", "min", "logaddexp", "argmax" or "argmin".
    factor : ndarray, cupy.ndarray
        Of "affine" the matrix, (states, states, *columns); the shift of extremes, of the shape columns. Axes are 1
        where it is the same for all columns. float64, as `value` is.
    value : ndarray, cupy.ndarray
        Of the shape (states, *columns).
        The vector, the bound, or the winner; of no winner its payload is NaN.
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
            As `init` is; each broadcasts to the shape of the columns. Arrays are of the carry's library.

        Returns
        -------
        ndarray or cupy.ndarray, or tuple of them
            float64.

        Raises
        ------
        TypeError, ValueError
            Another number of states, of another library or device, or shapes that do not broadcast.
        """
        items, structure = flatten(state, "state")
        if structure != self.structure:
            raise TypeError(f"state: expected {_counted(self.structure)}, got {_counted(structure)}")
        columns = self.value.shape[1:]
        named = {label("state", structure, n): value for n, value in enumerate(items)}
        views = {name: as_real(value, name) for name, value in named.items()}
        for name, view in views.items():
            broadcast(view, columns, name)
        _arrays.common_placement({"carry": _arrays.as_operand(self.value, "carry"), **views})
        after = advance(self, stacked(items, columns, self.value))
        return arranged([after[n, ...] for n in range(len(after))], structure)

    def then(self, after: UpdateCarry) -> UpdateCarry:
        """What this block and the one after it do together.

        Raises
        ------
        TypeError, ValueError
            They are of different forms, or of different columns.
        """
        kinds = [(each.form.kind, each.structure) for each in (self, after)]
        if kinds[0] != kinds[1]:
            raise TypeError(f"carry_b: is of {kinds[1]}, and carry_a of {kinds[0]}; they do not combine")
        shapes = self.value.shape[1:], after.value.shape[1:]
        if shapes[0] != shapes[1]:
            raise ValueError(f"carry_b: has columns of shape {shapes[1]}, and carry_a of {shapes[0]}")
        return merge(self, after)


def _counted(structure: Structure) -> str:
    return "one state" if structure == -1 else f"a tuple of {structure}"


def reduce_block(
    form: Monoid, dtype: np.dtype[np.floating], inputs: list[Array], n_states: int, length: int,
    columns: tuple[int, ...], n_threads: int | None = None,
) -> UpdateCarry:  # fmt: skip
    """The carry of a block whose inputs have time on the first axis, in the scan's order."""
    start = np.array(form.start)
    if form.kind in ("argmax", "argmin"):
        start[np.arange(n_states) != form.decides] = np.nan
    _, numbers = run_block(form.reduce, dtype, inputs, start.tolist(), length, columns, n_threads=n_threads)
    factors, value = numbers[:-n_states], numbers[-n_states:]
    shape = (n_states, n_states) if form.kind == "affine" else ()
    if form.varies and form.kind in ("affine", *_EXTREMES):
        return UpdateCarry(form, factors.reshape((*shape, *columns)), value)
    same = _repeated(form, dtype, length).reshape((*shape, *(1,) * len(columns)))
    with _arrays.on_device_of(value):
        return UpdateCarry(form, np.asarray(same, like=value), value)


def _repeated(form: Monoid, dtype: np.dtype[np.floating], length: int) -> Array:
    """The factor of so many steps that have the same."""
    constant = np.array([evaluate(node, dtype) for node in form.matrix])
    with np.errstate(all="ignore"):
        if form.kind == "affine":
            return matrix_power(tuple(constant.tolist()), length)
        return constant * length if form.kind in _EXTREMES else np.zeros(1)


def carry_of(problem: Problem) -> UpdateCarry:
    """What a checked call's steps do to the state before them."""
    traced = problem.traced
    form, why = monoid_of(traced.recurrence)
    if form is None:
        raise ValueError(f"update: {why}; what a block does to the state is no few numbers")
    if problem.placement is not None and problem.placement.library.numpy_like is None:
        raise TypeError(
            f"xs: is a {problem.placement.library.name}, with which upsweep does not know how to calculate; "
            "convert it, e.g. by cupy.asarray"
        )
    n_states = traced.recurrence.n_states
    carry = reduce_block(form, traced.dtype, problem.inputs, n_states, problem.length, problem.columns)
    return replace(carry, structure=problem.state_structure)


def _times(matrix: Any, columns: Any) -> Any:
    """The product of matrices (n, n, ...) with columns (n, ...) of vectors, or of matrices."""
    total = matrix[:, 0] * columns[0]
    for n in range(1, len(columns)):
        total = total + matrix[:, n] * columns[n]
    return total


def advance(carry: UpdateCarry, states: Any) -> Any:
    """The states (states, *columns) after a block, from those before it."""
    form = carry.form
    with _arrays.on_device_of(carry.value), np.errstate(all="ignore"):
        if form.kind == "affine":
            return _times(carry.factor, states) + carry.value
        if form.kind in _EXTREMES:
            moved = states + carry.factor
            if form.drops:  # whatever the state was
                moved = np.where(carry.factor == form.start[1], carry.factor, moved)
            return _EXTREMES[form.kind](moved, carry.value)
        mine, other = states[form.decides], carry.value[form.decides]
        later = other > mine if form.kind == "argmax" else other < mine
        if not form.keeps_ties:
            is_none = np.isinf(other)  # the worst may be none, whose payload is NaN
            for n in range(len(carry.value)):
                if n != form.decides:
                    is_none = is_none & np.isnan(carry.value[n])
            later = later | ((other == mine) & ~is_none)
        return np.where(later, carry.value, states)


def merge(first: UpdateCarry, second: UpdateCarry) -> UpdateCarry:
    """What two neighbouring blocks do together; `first` is the first in scan order."""
    value = advance(second, first.value)
    with _arrays.on_device_of(value), np.errstate(all="ignore"):
        if first.form.kind == "affine":
            factor = _times(second.factor[:, :, None], first.factor)
        else:
            factor = first.factor + second.factor
    return replace(second, factor=factor, value=value)


def is_regular(carry: UpdateCarry, before: Any, after: Any) -> Any:
    """Of which columns the states after a block can be trusted; others are to be found step by step."""
    with _arrays.on_device_of(after), np.errstate(invalid="ignore"):
        if carry.form.kind != "affine":
            return ~np.isnan(after).any(axis=0)
        states = [(np.abs(each) < _HUGE).all(axis=0) for each in (before, carry.value, after)]
        return states[0] & states[1] & states[2] & (np.abs(carry.factor) < _HUGE).all(axis=(0, 1))
