"""Operations of recurrences that formulas do not have: select by truth, two-operand extremes, logaddexp.

They act on nodes of dim 1 and follow numpy: extremes propagate NaN, and comparisons with NaN are false. Their
scalar instructions are in `lowering.lower_scalars`; `recurrences` builds and differentiates updates with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from upsweep._compiler.formulas import cotangents, derivative
from upsweep._compiler.formulas.nodes import Node, constant, intern, make

__all__ = ["operation", "pull_back"]

_ARITY = {"where": 3, "minimum": 2, "maximum": 2, "logaddexp": 2}


def operation(op: str, *args: Node, static: tuple[float, ...] = ()) -> Node:
    """The node of an operation on numbers: one of formulas, or one of this module."""
    if op in _ARITY:
        assert len(args) == _ARITY[op]
        return intern(op, args, static, 1)
    return make(op, *args, static=static)


# ---- derivatives -----------------------------------------------------------------------------------------------


def _where(node: Node, cotangent: Node) -> tuple[Node | None, ...]:
    condition, zero = node.args[0], constant(0)
    return (
        None,
        operation("where", condition, cotangent, zero),
        operation("where", condition, zero, cotangent),
    )


def _extreme(node: Node, cotangent: Node) -> tuple[Node | None, ...]:
    """To the operand that is the result; of equal ones to the first."""
    x, y = node.args
    first = make("le", x, y) if node.op == "minimum" else make("le", y, x)
    zero = constant(0)
    return operation("where", first, cotangent, zero), operation("where", first, zero, cotangent)


def _logaddexp(node: Node, cotangent: Node) -> tuple[Node | None, ...]:
    """In proportion to the exponentials; a half each for equal infinities."""
    x, y = node.args
    share = make("div", constant(1), make("add", constant(1), make("exp", make("sub", y, x))))
    share = operation("where", make("eq", x, y), constant(0.5), share)
    first = make("mul", cotangent, share)
    return first, make("sub", cotangent, first)


_RULES: dict[str, cotangents.Rule] = {
    **derivative.RULES,
    "where": _where,
    "minimum": _extreme,
    "maximum": _extreme,
    "logaddexp": _logaddexp,
}


def pull_back(of_results: Mapping[Node, Node], of: tuple[Node, ...]) -> tuple[Node, ...]:
    """The cotangents of variables, from those of nodes that depend on them; 0 if none does."""
    results = cotangents.pull_back(of_results, of, _RULES, "where")
    return tuple(constant(0) if each is None else each for each in results)
