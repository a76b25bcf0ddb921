"""Derivatives of reductions over pairs, as formulas that are reduced over pairs again.

With result a[i] = reduce over j of F(i, j) and a cotangent g[i], the gradient of a variable is a sum over pairs of
another formula: over j for row variables, over i for column variables, over both for parameters. That formula
reads the cotangent, and the residuals of exponential sums, as row variables that follow those of the reduction:

    position n      the cotangent, of the result's dim
    position n + 1  log(sum(exp(F))) over the same pairs, of dim 1; of "logsumexp" the result itself
    position n + 2  of "sumsoftmaxweight" the result

Gradients are sums over pairs, so they have gradients themselves. `pairs.gradients` (numpy, cupy, dask) and
`_torch.pairs` evaluate these reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from upsweep._compiler.formulas.derivative import differential, gradient
from upsweep._compiler.formulas.nodes import Node, make, substitute, variable, variables, zero
from upsweep._compiler.formulas.reduction import PairReduction, outputs

SUMS = ("sum", "logsumexp", "sumsoftmaxweight")
"""Reductions whose derivative depends on all pairs; that of an extreme depends on the selected pairs only."""

DIFFERENTIABLE = (*SUMS, "min", "max", "kmin", "min_argmin", "max_argmax", "kmin_argkmin")


def variable_at(reduction: PairReduction, position: int) -> Node | None:
    """The variable at a position; None if the reduction does not read that array."""
    return next((v for v in reduction.variables if v.static[0] == position), None)


def broadcast_axes(gradient: Sequence[int], array: Sequence[int]) -> tuple[int, ...]:
    """The axes along which a gradient of shape (*batch, n, dim) is summed to that of an array that was broadcast.

    Parameters have one row.
    """
    wide = (*(1,) * (len(gradient) - len(array)), *array) if len(array) == 1 else tuple(array)
    return tuple(axis for axis in range(len(gradient) - 1) if wide[axis] == 1 and gradient[axis] != 1)


def pullback(reduction: PairReduction, of: Node, n_arrays: int) -> PairReduction:
    """The sum over pairs that is the gradient with respect to the variable `of`.

    The gradient of a parameter is summed over columns only; the caller sums its rows.
    """
    dim = outputs(reduction)[0][0]
    cotangent = variable(n_arrays, dim, reduction.rows)
    if reduction.reduction == "sum":
        formula = gradient(reduction.formula, of, cotangent)
    else:
        formula = _of_exponentials(reduction, of, cotangent, n_arrays)
    rows = reduction.rows if of.static[1] == "p" else of.static[1]
    return replace(reduction, formula=formula, reduction="sum", weight=None, rows=rows)


def _of_exponentials(reduction: PairReduction, of: Node, cotangent: Node, n_arrays: int) -> Node:
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
    formula = gradient(values, of, inner)
    if weight is not None and of in variables(weight):
        if weight.dim == 1 and share.dim > 1:
            share = make("sum", share)
        formula = make("add", formula, gradient(weight, of, share))
    return formula


def pushforward(reduction: PairReduction, moving: Sequence[Node], n_arrays: int) -> PairReduction:
    """The sum over pairs that is the tangent of the result for tangents of the variables `moving`.

    The tangents are variables of the same kinds from position n on; the residuals of exponential sums follow them,
    in the order of `pullback`.
    """
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


def log_total(reduction: PairReduction) -> PairReduction:
    """The log of a softmax's denominator, log(sum(exp(F)))."""
    return replace(reduction, reduction="logsumexp", weight=None)


def at_selected_pairs(reduction: PairReduction, feature: int) -> PairReduction:
    """One feature of the formula at selected pairs: row and column variables both become row variables."""
    formula = reduction.formula
    paired = {v: variable(v.static[0], v.dim, "i") for v in variables(formula) if v.static[1] != "p"}
    formula = substitute(formula, paired)
    if formula.dim > 1:
        formula = make("elem", formula, static=(feature,))
    return replace(reduction, formula=formula, reduction="sum", weight=None, rows="i", k=0)
