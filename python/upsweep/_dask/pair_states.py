"""What is kept of a block of pairs, so that it can be taken together with others: each reduction's own monoid.

sum                         the sum
logsumexp                   the logarithm of the total
sumsoftmaxweight, and logsumexp with weights
                            the largest exponent, and the sums of exp(F - largest) times the weights, and times 1
min, max                    the extreme
argmin, min_argmin, ...     the extreme and its place
kmin, argkmin, ...          the K least in order, and their places

Numbers of sums are float64 from block to block. Places count from the first column of all. Of equal values the
first wins, NaN goes as in numpy, as in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.reduction import PairReduction, outputs

__all__ = ["State", "combine", "finish", "of_block"]

State = tuple[Any, ...]
Run = Callable[[PairReduction, Sequence[Any]], tuple[Any, ...]]

# Of these the places alone tell too little, and the values of others.
_WHOLE = {"argmin": "min_argmin", "argmax": "max_argmax", "kmin": "kmin_argkmin", "argkmin": "kmin_argkmin"}


def of_block(reduction: PairReduction, run: Run, arrays: Sequence[Any], begin: int, n_columns: int) -> State:
    """The state of a block of columns that begin at `begin`; `run` reduces over them."""
    if reduction.weight is not None:
        return _weighted(reduction, run, arrays, n_columns)
    name = reduction.reduction
    found = run(replace(reduction, reduction=_WHOLE.get(name, name)), arrays)
    if len(found) == 2:
        values, places = found
        return values, np.where(places < 0, places, places + begin)
    return found if name in ("min", "max") else (found[0].astype(np.float64),)


def _weighted(reduction: PairReduction, run: Run, arrays: Sequence[Any], n_columns: int) -> State:
    """Where nothing is finite, the sums are 0, infinite or NaN, of no scale; the exponent is -inf then."""
    assert reduction.weight is not None
    (largest,) = run(replace(reduction, reduction="max", weight=None), arrays)
    is_finite = np.isfinite(largest)
    scale = variable(len(arrays), 1, reduction.rows)
    shares = make("exp", make("sub", reduction.formula, scale))
    weights = reduction.weight
    if reduction.reduction == "sumsoftmaxweight":
        weights = make("concat", weights, constant(1))
    sums = replace(reduction, reduction="sum", weight=None, formula=make("mul", shares, weights))
    (found,) = run(sums, [*arrays, np.where(is_finite, largest, 0).astype(largest.dtype)])
    return np.where(is_finite, largest, -np.inf).astype(np.float64), found.astype(np.float64), n_columns


def combine(reduction: PairReduction, first: State, second: State) -> State:
    """The state of two neighbouring blocks of columns; those of `first` come before."""
    name = reduction.reduction
    with np.errstate(all="ignore"):
        if reduction.weight is not None:
            return _rescaled(first, second)
        if name == "sum":
            return (first[0] + second[0],)
        if name == "logsumexp":
            return (np.logaddexp(first[0], second[0]),)
        if name in ("min", "max"):
            return ((np.minimum if name == "min" else np.maximum)(first[0], second[0]),)
        return _least(reduction, first, second) if reduction.k else _best("max" in name, first, second)


def _rescaled(first: State, second: State) -> State:
    (scale_a, sums_a, n_a), (scale_b, sums_b, n_b) = first, second
    scale = np.maximum(scale_a, scale_b)
    factors = (np.where(np.isneginf(own), 1.0, np.exp(own - scale)) for own in (scale_a, scale_b))
    parts = [sums * factor for sums, factor in zip((sums_a, sums_b), factors)]
    return scale, parts[0] + parts[1], n_a + n_b


def _best(largest: bool, first: State, second: State) -> State:
    (value_a, place_a), (value_b, place_b) = first, second
    beats = value_b > value_a if largest else value_b < value_a
    later = (place_a < 0) | beats | (np.isnan(value_b) & ~np.isnan(value_a))
    return np.where(later, value_b, value_a), np.where(later, place_b, place_a)


def _least(reduction: PairReduction, first: State, second: State) -> State:
    """Rows of which nothing in `second` is among the K least stay as they are."""
    shape, k = first[0].shape, reduction.k
    # Of each row and feature the K least, side by side.
    a, b = (
        [part.reshape(*shape[:-1], k, shape[-1] // k).swapaxes(-1, -2) for part in state]
        for state in (first, second)
    )
    touched = ~(b[0][..., 0] >= a[0][..., -1]) | (a[1][..., -1] < 0)
    values, places = (np.concatenate([x[touched], y[touched]], axis=-1) for x, y in zip(a, b))
    if (places < 0).any():  # what is missing comes last, behind NaN
        order = np.argsort(places < 0, axis=-1, kind="stable")
        values, places = (np.take_along_axis(part, order, -1) for part in (values, places))
        order = np.argsort(np.where(places < 0, np.nan, values), axis=-1, kind="stable")[..., :k]
    else:
        order = np.argsort(values, axis=-1, kind="stable")[..., :k]
    merged = [part.copy() for part in a]
    for whole, part in zip(merged, (values, places)):
        whole[touched] = np.take_along_axis(part, order, -1)
    return tuple(part.swapaxes(-1, -2).reshape(shape) for part in merged)


def finish(reduction: PairReduction, state: State) -> tuple[Any, ...]:
    """The results of the whole, in their dtypes."""
    if reduction.weight is not None:
        scale, sums, n_columns = state
        with np.errstate(all="ignore"):
            if reduction.reduction == "logsumexp":
                state = (np.where(np.isfinite(scale), scale, 0.0) + np.log(sums),)
            else:  # of no columns 0
                state = (sums[..., :-1] / sums[..., -1:] if n_columns else sums[..., :-1],)
    elif len(state) == 2:
        wanted = [kind for _, kind in outputs(reduction)]
        state = tuple(part for part, kind in zip(state, ("float", "index")) if kind in wanted)
    with np.errstate(over="ignore"):
        return tuple(
            part.astype(reduction.dtype, copy=False) if part.dtype.kind == "f" else part for part in state
        )
