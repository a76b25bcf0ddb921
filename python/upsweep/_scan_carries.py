"""What a block of steps of a user's scan does to the states before it, where its recurrence has a parallel form.

A few numbers a column: of affine updates a matrix and a vector, of maxima, minima and logaddexp a shift and a
bound, of argmax and argmin the winner. They are found by one pass over the block, in the dtype that the scan
computes in, and combined in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from upsweep._arrays import Array
from upsweep._expr.parallel_forms import Form
from upsweep._expr.recurrence import evaluate
from upsweep._scan_problem import run_recurrence

__all__ = ["BlockCarry", "advance", "is_regular", "merge", "reduce_block"]

_HUGE = 1e200  # states beyond are not trusted to what was multiplied without them
_EXTREMES = {"max": np.maximum, "min": np.minimum, "logaddexp": np.logaddexp}


@dataclass(frozen=True)
class BlockCarry:
    """What a block does to the states before it; all arrays are float64.

    Attributes
    ----------
    form : Form
        What the numbers mean.
    factor : ndarray
        Of "affine" the matrix, (states, states, *columns); the shift of extremes, of the shape columns. Axes are 1
        where it is the same for all columns.
    value : ndarray of shape (states, *columns)
        The vector, the bound, or the winner; of no winner its payload is NaN.
    """

    form: Form
    factor: Array
    value: Array


def reduce_block(
    form: Form, dtype: np.dtype[np.floating], inputs: list[Array], n_states: int, length: int,
    columns: tuple[int, ...], n_threads: int | None = None,
) -> BlockCarry:  # fmt: skip
    """The carry of a block whose inputs have time on the first axis, in the scan's order."""
    start = np.array(form.start)
    if form.kind in ("argmax", "argmin"):
        start[np.arange(n_states) != form.decides] = np.nan
    _, found = run_recurrence(form.reduce, dtype, inputs, list(start), length, columns, 0, n_threads)
    numbers = np.stack([np.asarray(each, np.float64) for each in found])
    factors, value = numbers[:-n_states], numbers[-n_states:]
    ones = (1,) * len(columns)
    constant = np.array([evaluate(node, dtype) for node in form.matrix])
    with np.errstate(all="ignore"):
        if form.kind == "affine":
            square = (n_states, n_states)
            if form.varies:
                return BlockCarry(form, factors.reshape(*square, *columns), value)
            power = np.linalg.matrix_power(constant.reshape(square), length)
            return BlockCarry(form, power.reshape(*square, *ones), value)
        if form.kind in _EXTREMES:
            shift = factors[0] if form.varies else (constant * length).reshape(ones)
            return BlockCarry(form, shift, value)
    return BlockCarry(form, np.zeros(ones), value)


def advance(carry: BlockCarry, states: Array) -> Array:
    """The states (states, *columns) after a block, from those before it."""
    form = carry.form
    with np.errstate(all="ignore"):
        if form.kind == "affine":
            return np.asarray(np.einsum("ij...,j...->i...", carry.factor, states) + carry.value)
        if form.kind in _EXTREMES:
            return np.asarray(_EXTREMES[form.kind](states + carry.factor, carry.value))
    mine, other = states[form.decides], carry.value[form.decides]
    later = other > mine if form.kind == "argmax" else other < mine
    if not form.keeps_ties:
        others = np.delete(carry.value, form.decides, axis=0)
        later |= (other == mine) & ~(np.isinf(other) & np.isnan(others).all(axis=0))  # the worst may be none
    return np.where(later, carry.value, states)


def merge(first: BlockCarry, second: BlockCarry) -> BlockCarry:
    """What two neighbouring blocks do together; `first` is the first in scan order."""
    value = advance(second, first.value)
    with np.errstate(all="ignore"):
        if first.form.kind == "affine":
            factor = np.einsum("ij...,jk...->ik...", second.factor, first.factor)
        else:
            factor = first.factor + second.factor
    return replace(second, factor=factor, value=value)


def is_regular(carry: BlockCarry, before: Array, after: Array) -> Array:
    """Of which columns the states after a block can be trusted; others are to be found step by step."""
    if carry.form.kind != "affine":
        return np.asarray(~np.isnan(after).any(axis=0))
    with np.errstate(invalid="ignore"):
        small = [np.abs(each) < _HUGE for each in (before, carry.value, after, *carry.factor)]
        return np.asarray(np.all(np.broadcast_arrays(*small), axis=(0, 1)))
