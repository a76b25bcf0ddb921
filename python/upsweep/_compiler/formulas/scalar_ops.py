"""Operations of user-defined scans beside those of formulas: choices, extremes, logaddexp; their lowering and
derivatives.

What numpy does with NaN is what these do: it goes through extremes, and a comparison with it is false.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from upsweep._compiler.formulas import cotangents, derivative
from upsweep._compiler.formulas.nodes import Node, constant, make, node_of, order
from upsweep._compiler.lowering import lower_elementwise
from upsweep._compiler.lowering.builder import Builder, Index
from upsweep._compiler.lowering.program import Program

__all__ = ["COMPARISONS", "Exact", "lower_nodes", "lower_step", "operation", "pull_back"]

COMPARISONS = ("eq", "ne", "lt", "le")

_OWN = {"where": 3, "minimum": 2, "maximum": 2, "logaddexp": 2}


def operation(op: str, *args: Node, static: tuple[float, ...] = ()) -> Node:
    """The node of an operation on numbers: one of formulas, or one of this module."""
    if op in _OWN:
        assert len(args) == _OWN[op]
        return node_of(op, args, static, 1)
    return make(op, *args, static=static)


# ---- instructions ----------------------------------------------------------------------------------------------


class Exact(Builder):
    """Instructions as they were written: 0 * NaN stays NaN, a quotient a quotient."""

    def call(self, op: str, *args: int, static: tuple[float, ...] = ()) -> int:
        return self._emit(op, args, static)


def _where(b: Builder, node: Node, args: tuple[int, ...]) -> int:
    condition = node.args[0]
    if condition.op in COMPARISONS:
        x, y = b.compared[args[0]] if isinstance(b, _Lowering) else (args[0], b.const(0))
        return b.choose(condition.op, x, y, args[1], args[2])
    return b.choose("ne", args[0], b.const(0), args[1], args[2])


def _extreme(first_wins: Callable[[Builder, int, int], tuple[int, int]]) -> Callable[..., int]:
    def rule(b: Builder, node: Node, args: tuple[int, ...]) -> int:
        x, y = args
        # NaN as the first argument is taken by the second choice, as the second one by the first.
        otherwise = b.choose("ne", x, x, x, y)
        return b.choose("le", *first_wins(b, x, y), x, otherwise)

    return rule


def _logaddexp(b: Builder, node: Node, args: tuple[int, ...]) -> int:
    """max + log(1 + exp(-distance)); equal infinities have no distance."""
    x, y = args
    most = b.choose("le", y, x, x, y)
    apart = b.call("neg", b.call("abs", b.sub(x, y)))
    total = b.add(most, b.call("log", b.add(b.const(1), b.call("exp", apart))))
    return b.choose("eq", x, y, b.add(x, b.const(math.log(2))), total)


_RULES: dict[str, Callable[[Builder, Node, tuple[int, ...]], int]] = {
    "where": _where,
    "minimum": _extreme(lambda b, x, y: (x, y)),
    "maximum": _extreme(lambda b, x, y: (y, x)),
    "logaddexp": _logaddexp,
}


class _Lowering(Exact):
    """Which numbers a comparison was of, so that a choice by it needs no number for it."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: dict[int, tuple[int, int]] = {}


def lower_nodes(roots: tuple[Node, ...], n_states: int) -> tuple[Exact, dict[Node, int]]:
    """The instructions of nodes of dim 1, and the value of each.

    States ("i") and inputs ("j") are one record of kind "j", the states first: both change from column to column.
    """
    builder, value = _Lowering(), dict[Node, int]()
    for node in order(*roots):
        args = tuple(value[arg] for arg in node.args)
        if node.op == "variable":
            position, kind = node.static
            place = position + n_states if kind == "j" else position
            value[node] = builder.load("p" if kind == "p" else "j", Index(place))
        elif node.op in ("constant", "zero"):
            value[node] = builder.const(node.static[0] if node.op == "constant" else 0)
        elif node.op in _RULES:
            value[node] = _RULES[node.op](builder, node, args)
        else:
            value[node] = lower_elementwise.RULES[node.op](builder, args, node.static)
            if node.op in COMPARISONS:
                builder.compared[value[node]] = (args[0], args[1])
    return builder, value


def lower_step(states: tuple[Node, ...], outputs: tuple[Node, ...]) -> Program:
    """The instructions of a recurrence's step; its results are the new states and the outputs."""
    roots = (*states, *outputs)
    builder, value = lower_nodes(roots, len(states))
    values, new = builder.finish([value[root] for root in roots])
    return Program(values, tuple(new[value[root]] for root in roots), (), len(roots), 0, (), (), ())


# ---- derivatives -----------------------------------------------------------------------------------------------


def _where_back(node: Node, cotangent: Node) -> tuple[Node | None, ...]:
    condition, zero = node.args[0], constant(0)
    return (
        None,
        operation("where", condition, cotangent, zero),
        operation("where", condition, zero, cotangent),
    )


def _extreme_back(node: Node, cotangent: Node) -> tuple[Node | None, ...]:
    """To the one that was taken; of equal ones to the first."""
    x, y = node.args
    first = make("le", x, y) if node.op == "minimum" else make("le", y, x)
    zero = constant(0)
    return operation("where", first, cotangent, zero), operation("where", first, zero, cotangent)


def _logaddexp_back(node: Node, cotangent: Node) -> tuple[Node | None, ...]:
    """By the shares of the two; of equal infinities a half."""
    x, y = node.args
    share = make("div", constant(1), make("add", constant(1), make("exp", make("sub", y, x))))
    share = operation("where", make("eq", x, y), constant(0.5), share)
    first = make("mul", cotangent, share)
    return first, make("sub", cotangent, first)


_BACK: dict[str, cotangents.Rule] = {
    **derivative.RULES,
    "where": _where_back,
    "minimum": _extreme_back,
    "maximum": _extreme_back,
    "logaddexp": _logaddexp_back,
}


def pull_back(of_results: Mapping[Node, Node], of: tuple[Node, ...]) -> tuple[Node, ...]:
    """The cotangents of variables, from those of nodes that depend on them; zero where nothing does."""
    found = cotangents.pull_back(of_results, of, _BACK, "where")
    return tuple(constant(0) if each is None else each for each in found)
