"""Lowering of recurrences: nodes of dim 1, with the operations of `formulas.scalar_ops`.

The code generators of scans call `lower_step`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from upsweep._compiler.formulas.nodes import Node, order
from upsweep._compiler.lowering import lower_elementwise
from upsweep._compiler.lowering.builder import Builder, Index
from upsweep._compiler.lowering.program import COMPARISONS, Program

__all__ = ["lower_step"]


class ExactBuilder(Builder):
    """A builder without rewrites, which keeps IEEE semantics: 0 * NaN stays NaN, a quotient a quotient."""

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
        # A NaN in x is the result of the inner select, a NaN in y that of the outer one.
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


class _Lowering(ExactBuilder):
    """Records the operands of comparisons, so that a select by one needs no 0 or 1 for it."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: dict[int, tuple[int, int]] = {}


def _lower_nodes(roots: tuple[Node, ...], n_states: int) -> tuple[ExactBuilder, dict[Node, int]]:
    """The instructions of nodes of dim 1, and the value number of each.

    States ("i") and inputs ("j") form one record of kind "j", the states first: both change at each step.
    """
    builder, value = _Lowering(), dict[Node, int]()
    for node in order(*roots):
        args = tuple(value[arg] for arg in node.args)
        if node.op == "variable":
            position, kind = node.static
            offset = position + n_states if kind == "j" else position
            value[node] = builder.load("p" if kind == "p" else "j", Index(offset))
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
    """The scalar program of a recurrence's step, whose results are the new states and the outputs."""
    roots = (*states, *outputs)
    builder, value = _lower_nodes(roots, len(states))
    values, new = builder.finish([value[root] for root in roots])
    return Program(values, tuple(new[value[root]] for root in roots), (), len(roots), 0, (), (), ())
