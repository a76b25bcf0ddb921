"""Operations of recurrences that formulas do not have: select by truth, two-operand extremes, logaddexp.

They act on nodes of dim 1 and follow numpy: extremes propagate NaN, and comparisons with NaN are false.
`ops.SCALAR` has their numpy functions, `lowering.lower_scalars` their scalar instructions. `recurrences` builds
and differentiates updates with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from upsweep._compiler.formulas import cotangents, derivative
from upsweep._compiler.formulas.nodes import Node, constant, intern, make
from upsweep._compiler.formulas.ops import SCALAR


def operation(op: str, *args: Node) -> Node:
    """The node of an operation on numbers: one of formulas, or one of this module."""
    if op not in SCALAR:
        return make(op, *args)
    assert len(args) == SCALAR[op][0]
    return intern(op, args, (), 1)


def _where(g: Node, value: Node, condition: Node, a: Node, b: Node) -> cotangents.Cotangents:
    zero = constant(0)
    return None, operation("where", condition, g, zero), operation("where", condition, zero, g)


def _extreme(g: Node, value: Node, x: Node, y: Node) -> cotangents.Cotangents:
    """To the operand that is the result; of equal ones to the first."""
    first = make("le", x, y) if value.op == "minimum" else make("le", y, x)
    return _where(g, value, first, x, y)[1:]


def _logaddexp(g: Node, value: Node, x: Node, y: Node) -> cotangents.Cotangents:
    """In proportion to the exponentials; a half each for equal infinities."""
    share = make("div", constant(1), make("add", constant(1), make("exp", make("sub", y, x))))
    share = operation("where", make("eq", x, y), constant(0.5), share)
    first = make("mul", g, share)
    return first, make("sub", g, first)


_RULES: dict[str, cotangents.Rule] = {
    **derivative.RULES, "where": _where, "minimum": _extreme, "maximum": _extreme, "logaddexp": _logaddexp,
}  # fmt: skip


def pull_back(of_results: Mapping[Node, Node], of: tuple[Node, ...]) -> tuple[Node, ...]:
    """The cotangents of variables, from those of nodes that depend on them; 0 if none does."""
    results = cotangents.pull_back(of_results, of, _RULES, "where")
    return tuple(constant(0) if each is None else each for each in results)
