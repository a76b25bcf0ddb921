"""Partial reductions of blocks of pairs, and the monoid that combines them.

| reduction                                    | partial reduction                                             |
|----------------------------------------------|---------------------------------------------------------------|
| sum                                          | the sum                                                       |
| logsumexp                                    | the logarithm of the sum                                      |
| sumsoftmaxweight, logsumexp with weights     | the largest exponent; sums of exp(F - largest) times weights  |
| min, max                                     | the extreme                                                   |
| argmin, min_argmin, ...                      | the extreme and its index                                     |
| kmin, argkmin, ...                           | the K least in order, and their indices                       |

Sums are float64 from block to block. Indices count from the first column of all. The first of equal values wins,
and NaN propagates as in numpy, as in a reduction of one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.reduction import PairReduction, outputs

Partial = tuple[Any, ...]
Run = Callable[[PairReduction, Sequence[Any]], tuple[Any, ...]]

# To combine these, both values and indices are needed.
_WITH_INDICES = {"argmin": "min_argmin", "argmax": "max_argmax", "kmin": "kmin_argkmin", "argkmin": "kmin_argkmin"}


def reduce_block(reduction: PairReduction, run: Run, arrays: Sequence[Any], begin: int, n_columns: int) -> Partial:
    """Return the partial reduction of a block whose columns start at `begin`; `run` reduces over them."""
    if reduction.weight is not None:
        return _weighted(reduction, run, arrays, n_columns)
    name = reduction.reduction
    results = run(replace(reduction, reduction=_WITH_INDICES.get(name, name)), arrays)
    if len(results) == 2:
        values, indices = results
        return values, np.where(indices < 0, indices, indices + begin)
    return results if name in ("min", "max") else (results[0].astype(np.float64),)


def _weighted(reduction: PairReduction, run: Run, arrays: Sequence[Any], n_columns: int) -> Partial:
    """If no exponent is finite, the largest is -inf, and the sums are 0, infinite or NaN without a scale."""
    assert reduction.weight is not None
    (largest,) = run(replace(reduction, reduction="max", weight=None), arrays)
    is_finite = np.isfinite(largest)
    scale = variable(len(arrays), 1, reduction.rows)
    shares = make("exp", make("sub", reduction.formula, scale))
    weights = reduction.weight
    if reduction.reduction == "sumsoftmaxweight":
        weights = make("concat", weights, constant(1))
    sums = replace(reduction, reduction="sum", weight=None, formula=make("mul", shares, weights))
    (total,) = run(sums, [*arrays, np.where(is_finite, largest, 0).astype(largest.dtype)])
    return np.where(is_finite, largest, -np.inf).astype(np.float64), total.astype(np.float64), n_columns


def combine(reduction: PairReduction, first: Partial, second: Partial) -> Partial:
    """Combine the partial reductions of two neighbouring blocks of columns."""
    name = reduction.reduction
    with np.errstate(all="ignore"):
        if reduction.weight is not None:
            return _combine_scaled(first, second)
        if name == "sum":
            return (first[0] + second[0],)
        if name == "logsumexp":
            return (np.logaddexp(first[0], second[0]),)
        if name in ("min", "max"):
            return ((np.minimum if name == "min" else np.maximum)(first[0], second[0]),)
        if reduction.k:
            return _combine_k(reduction.k, first, second)
        return _combine_extremes("max" in name, first, second)


def _combine_scaled(first: Partial, second: Partial) -> Partial:
    (scale_a, sums_a, n_a), (scale_b, sums_b, n_b) = first, second
    scale = np.maximum(scale_a, scale_b)
    factors = (np.where(np.isneginf(own), 1.0, np.exp(own - scale)) for own in (scale_a, scale_b))
    parts = [sums * factor for sums, factor in zip((sums_a, sums_b), factors)]
    return scale, parts[0] + parts[1], n_a + n_b


def _combine_extremes(is_max: bool, first: Partial, second: Partial) -> Partial:
    (value_a, index_a), (value_b, index_b) = first, second
    is_better = value_b > value_a if is_max else value_b < value_a
    takes_b = (index_a < 0) | is_better | (np.isnan(value_b) & ~np.isnan(value_a))
    return np.where(takes_b, value_b, value_a), np.where(takes_b, index_b, index_a)


def _combine_k(k: int, first: Partial, second: Partial) -> Partial:
    """Merge the K least; rows of which `second` has none of the K least stay as they are."""
    shape = first[0].shape
    # For each row and feature, the K least along the last axis.
    a, b = (
        [part.reshape(*shape[:-1], k, shape[-1] // k).swapaxes(-1, -2) for part in both]
        for both in (first, second)
    )
    changes = ~(b[0][..., 0] >= a[0][..., -1]) | (a[1][..., -1] < 0)
    values, indices = (np.concatenate([x[changes], y[changes]], axis=-1) for x, y in zip(a, b))
    if (indices < 0).any():  # missing entries come last, after NaN
        order = np.argsort(indices < 0, axis=-1, kind="stable")
        values, indices = (np.take_along_axis(part, order, -1) for part in (values, indices))
        order = np.argsort(np.where(indices < 0, np.nan, values), axis=-1, kind="stable")[..., :k]
    else:
        order = np.argsort(values, axis=-1, kind="stable")[..., :k]
    merged = [part.copy() for part in a]
    for whole, part in zip(merged, (values, indices)):
        whole[changes] = np.take_along_axis(part, order, -1)
    return tuple(part.swapaxes(-1, -2).reshape(shape) for part in merged)


def finish(reduction: PairReduction, partial: Partial) -> tuple[Any, ...]:
    """Return the results of the whole reduction, in their dtypes."""
    if reduction.weight is not None:
        scale, sums, n_columns = partial
        with np.errstate(all="ignore"):
            if reduction.reduction == "logsumexp":
                partial = (np.where(np.isfinite(scale), scale, 0.0) + np.log(sums),)
            else:  # 0 if there are no columns
                partial = (sums[..., :-1] / sums[..., -1:] if n_columns else sums[..., :-1],)
    elif len(partial) == 2:
        kinds = [kind for _, kind in outputs(reduction)]
        partial = tuple(part for part, kind in zip(partial, ("float", "index")) if kind in kinds)
    with np.errstate(over="ignore"):
        return tuple(
            part.astype(reduction.dtype, copy=False) if part.dtype.kind == "f" else part for part in partial
        )
