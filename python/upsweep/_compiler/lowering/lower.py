"""Lowering of a formula to its scalar program.

`lower_formulas` checks and simplifies the formula, and chooses between loops and straight code;
`lower_features.Lowering` lowers it.
"""

from __future__ import annotations

import math
from typing import Any

from upsweep._compiler.formulas.nodes import Node, check_formula, check_variables
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.formulas.rules import simplify
from upsweep._compiler.lowering.builder import TooLong
from upsweep._compiler.lowering.lower_features import Lowering
from upsweep._compiler.lowering.program import LONG, Program, check_program

UNROLLED = 64
"""Vectors of more features are processed by loops."""

STRAIGHT = 1000
"""Programs of more instructions have loops for shorter vectors too, to limit the time of the native compiler."""

_RETRIES = ((UNROLLED, STRAIGHT), (16, STRAIGHT), (4, STRAIGHT), (1, math.inf))


def lower(reduction: PairReduction, **options: Any) -> Program:
    """The scalar program of a reduction's formula and weight; `options` are those of `lower_formulas`.

    Examples
    --------
    >>> from upsweep._compiler.formulas.nodes import make, variable
    >>> distance = make("sqdist", variable(0, 2, "i"), variable(1, 2, "j"))
    >>> gaussian = make("exp", make("neg", make("mul", distance, variable(2, 1, "p"))))
    >>> print(lower(PairReduction(gaussian, "sum")))
    i  v0 = i[0]
    i  v1 = i[1]
    j  v2 = j[0]
    j  v3 = j[1]
    ij v4 = sub(v0, v2)
    ij v5 = mul(v4, v4)
    ij v6 = sub(v1, v3)
    ij v7 = mul(v6, v6)
    ij v8 = add(v5, v7)
    p  v9 = p[0]
    p  v10 = neg(v9)
    ij v11 = mul(v8, v10)
    ij v12 = exp(v11)
    results: v12
    """
    return lower_formulas(reduction.formula, reduction.weight, **options)


def lower_formulas(
    formula: Node,
    weight: Node | None = None,
    *,
    distances: bool = True,
    long: int = LONG,
    unrolled: int = UNROLLED,
) -> Program:
    """The scalar program of a formula, and of a weight.

    Parameters
    ----------
    distances : bool, optional
        Whether long squared distances and scalar products of a row and a column variable are single instructions,
        `sqdist` and `dot`, or loops like others.
    long : int, optional
        The number of features above which they are long.
    unrolled : int, optional
        The number of features above which vectors are processed by loops.
    """
    roots = [formula] if weight is None else [formula, weight]
    check_variables(*roots)
    roots = [simplify(root) for root in roots]
    check_formula(*roots)
    for most, limit in _RETRIES:
        try:
            program = Lowering(roots, min(most, unrolled), limit, long if distances else math.inf).program()
        except TooLong:
            continue
        check_program(program)
        return program
    raise AssertionError("the last try has no limit")
