"""Derivatives of reductions over pairs, as formulas that are reduced over pairs again.

With result a[i] = reduce over j of F(i, j) and a cotangent g[i], the gradient of a variable is a sum over pairs of
another formula: over j for row variables, over i for column variables, over both for parameters. That formula
reads the cotangent, and the residuals of exponential sums, as row variables that follow those of the reduction:

    position n      the cotangent, of the result's dim
    position n + 1  log(sum(exp(F))) over the same pairs, of dim 1; of "logsumexp" the result itself
    position n + 2  of "sumsoftmaxweight" the result

Gradients are sums over pairs, so they have gradients themselves. `pairs.gradients` (numpy, cupy, dask) and
`_torch.pairs` evaluate these reductions, at each call anew; they are derived once and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce, wraps
from typing import Any, TypeVar

from upsweep._compiler.formulas.derivative import differential, gradients
from upsweep._compiler.formulas.nodes import Node, constant, make, substitute, variable, variables, zero
from upsweep._compiler.formulas.reduction import PairReduction, outputs
from upsweep._utils.lru_cache import LRUCache

Result = TypeVar("Result")

SUMS = ("sum", "logsumexp", "sumsoftmaxweight")
"""Reductions whose derivative depends on all pairs; that of an extreme depends on the selected pairs only."""

DIFFERENTIABLE = (*SUMS, "min", "max", "kmin", "min_argmin", "max_argmax", "kmin_argkmin")


def _cached(derive: Callable[..., Result]) -> Callable[..., Result]:
    """A derivation of hashable arguments, cached; torch.compile warns of `functools.lru_cache`, and ignores it."""
    cache: LRUCache[Any, Result] = LRUCache(512)

    @wraps(derive)
    def cached(*args: Any) -> Result:
        return cache.get_or_build(args, lambda: derive(*args))

    return cached


def broadcast_axes(gradient: Sequence[int], array: Sequence[int]) -> tuple[int, ...]:
    """The axes along which a gradient of shape (*batch, n, dim) is summed to that of an array that was broadcast.

    Parameters have one row.
    """
    wide = (*(1,) * (len(gradient) - len(array)), *array) if len(array) == 1 else tuple(array)
    return tuple(axis for axis in range(len(gradient) - 1) if wide[axis] == 1 and gradient[axis] != 1)


@_cached
def pullbacks(
    reduction: PairReduction, positions: tuple[int, ...], n_arrays: int
) -> tuple[tuple[int, PairReduction], ...]:
    """The sums over pairs that are the gradients with respect to the arrays at some positions, by position.

    Arrays that the reduction does not read are left out. The gradient of a parameter is summed over columns only;
    the caller sums its rows.
    """
    of = tuple(v for v in reduction.variables if v.static[0] in positions)
    cotangent = variable(n_arrays, outputs(reduction)[0][0], reduction.rows)
    if reduction.reduction == "sum":
        formulas = gradients(reduction.formula, of, cotangent)
    else:
        formulas = _of_exponentials(reduction, of, cotangent, n_arrays)
    return tuple(
        (v.static[0], replace(
            reduction, formula=formula, reduction="sum", weight=None,
            rows=reduction.rows if v.static[1] == "p" else v.static[1],
        ))
        for v, formula in zip(of, formulas)
    )  # fmt: skip


@_cached
def with_gradients(reduction: PairReduction, positions: tuple[int, ...]) -> PairReduction:
    """A sum of dim 1 and, behind it, its gradients with respect to row variables, for a cotangent of 1.

    Its rows multiplied by another cotangent are the gradients for that one: a pair's exponential is computed once.
    """
    of = tuple(v for v in reduction.variables if v.static[0] in positions)
    parts = gradients(reduction.formula, of, constant(1.0))
    return replace(reduction, formula=reduce(lambda a, b: make("concat", a, b), parts, reduction.formula))


def _of_exponentials(
    reduction: PairReduction, of: tuple[Node, ...], cotangent: Node, n_arrays: int
) -> tuple[Node, ...]:
    weight, values = reduction.weight, reduction.formula
    if reduction.reduction == "logsumexp":
        total = variable(n_arrays + 1, cotangent.dim, reduction.rows)
        share = make("mul", cotangent, make("exp", make("sub", values, total)))  # of dim g
        inner = make("sum", share if weight is None else make("mul", share, weight))
    else:
        assert weight is not None
        total = variable(n_arrays + 1, 1, reduction.rows)
        mean = variable(n_arrays + 2, cotangent.dim, reduction.rows)
        part = make("exp", make("sub", values, total))
        share = make("mul", part, cotangent)
        inner = make("mul", part, make("scalprod", cotangent, make("sub", weight, mean)))
    formulas = gradients(values, of, inner)
    weighted = () if weight is None else tuple(v for v in of if v in variables(weight))
    if weight is None or not weighted:
        return formulas
    if weight.dim == 1 and share.dim > 1:
        share = make("sum", share)
    of_weight = dict(zip(weighted, gradients(weight, weighted, share)))
    return tuple(
        make("add", formula, of_weight[v]) if v in of_weight else formula for v, formula in zip(of, formulas)
    )


@_cached
def pushforward(reduction: PairReduction, positions: tuple[int, ...], n_arrays: int) -> PairReduction:
    """The sum over pairs that is the tangent of the result for tangents of the arrays at some positions.

    The tangents are variables of the same kinds from position n on; the residuals of exponential sums follow them,
    in the order of `pullback`.
    """
    moving = [v for v in reduction.variables if v.static[0] in positions]
    tangents = [variable(n_arrays + place, v.dim, v.static[1]) for place, v in enumerate(moving)]
    weight, values, n_known = reduction.weight, reduction.formula, n_arrays + len(moving)
    change = _tangent(values, moving, tangents)
    if reduction.reduction == "sum":
        formula = change
    else:
        dim = outputs(reduction)[0][0]
        total = variable(n_known, dim if reduction.reduction == "logsumexp" else 1, reduction.rows)
        share = make("exp", make("sub", values, total))
        if weight is None:
            formula = make("mul", share, change)
        else:
            mean = variable(n_known + 1, dim, reduction.rows)
            level = weight if reduction.reduction == "logsumexp" else make("sub", weight, mean)
            moved = make("add", make("mul", level, change), _tangent(weight, moving, tangents))
            formula = make("mul", share, moved)
    return replace(reduction, formula=formula, reduction="sum", weight=None)


def _tangent(formula: Node, moving: Sequence[Node], tangents: Sequence[Node]) -> Node:
    """The tangent of a formula for tangents of its variables."""
    parts = [differential(formula, each, tangent) for each, tangent in zip(moving, tangents)]
    return reduce(lambda a, b: make("add", a, b), parts) if parts else zero(formula.dim)


@_cached
def log_total(reduction: PairReduction) -> PairReduction:
    """The log of a softmax's denominator, log(sum(exp(F)))."""
    return replace(reduction, reduction="logsumexp", weight=None)


@_cached
def at_selected_pairs(reduction: PairReduction, feature: int) -> PairReduction:
    """One feature of the formula at selected pairs: row and column variables both become row variables."""
    formula = reduction.formula
    paired = {v: variable(v.static[0], v.dim, "i") for v in variables(formula) if v.static[1] != "p"}
    formula = substitute(formula, paired)
    if formula.dim > 1:
        formula = make("elem", formula, static=(feature,))
    return replace(reduction, formula=formula, reduction="sum", weight=None, rows="i", k=0)
