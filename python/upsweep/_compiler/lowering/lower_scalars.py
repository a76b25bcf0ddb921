"""Lowering of recurrences: nodes of dim 1, with the operations of `formulas.ops.SCALAR`.

The code generators of scans call `lower_step`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, order
from upsweep._compiler.lowering.builder import Builder, Index
from upsweep._compiler.lowering.lower_elementwise import RULES
from upsweep._compiler.lowering.program import MASKS, Program


class ExactBuilder(Builder):
    """A builder without rewrites, which keeps IEEE semantics: 0 * NaN stays NaN, a quotient a quotient.

    It records the operands of comparisons, so that a select by one needs no 0 or 1 for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.compared: dict[int, tuple[int, int]] = {}

    def call(self, op: str, *args: int, static: tuple[float, ...] = ()) -> int:
        return self._emit(op, args, static)


def _where(b: ExactBuilder, node: Node, condition: int, x: int, y: int) -> int:
    comparison = node.args[0].op
    if comparison in MASKS:
        return b.choose(comparison, *b.compared[condition], x, y)
    return b.choose("ne", condition, b.const(0), x, y)


def _extreme(b: ExactBuilder, node: Node, x: int, y: int) -> int:
    # A NaN in x is the result of the inner select, a NaN in y that of the outer one.
    otherwise = b.choose("ne", x, x, x, y)
    first_wins = (x, y) if node.op == "minimum" else (y, x)
    return b.choose("le", *first_wins, x, otherwise)


def _logaddexp(b: ExactBuilder, node: Node, x: int, y: int) -> int:
    """max + log(1 + exp(-distance)); equal infinities have no distance."""
    most = b.choose("le", y, x, x, y)
    apart = b.call("neg", b.call("abs", b.sub(x, y)))
    total = b.add(most, b.call("log1p", b.call("exp", apart)))
    return b.choose("eq", x, y, b.add(x, b.const(math.log(2))), total)


def _sigmoid(b: ExactBuilder, node: Node, x: int) -> int:
    return b.div(b.const(1), b.add(b.const(1), b.call("exp", b.call("neg", x))))


def _compared(b: ExactBuilder, node: Node, x: int, y: int) -> int:
    return b.choose(node.op, x, y, b.const(1), b.const(0))


def _instruction(b: ExactBuilder, node: Node, *args: int) -> int:
    return b.call(node.op, *args, static=() if node.op == "to_integer" else node.static)


_RULES: dict[str, Callable[..., int]] = {
    **dict.fromkeys((*ops.SCALAR, *ops.INTEGER, "integer"), _instruction),
    **dict.fromkeys(ops.INTEGER_COMPARISONS, _compared),
    "where": _where, "minimum": _extreme, "maximum": _extreme, "logaddexp": _logaddexp, "sigmoid": _sigmoid,
}  # fmt: skip


def lower_step(states: tuple[Node, ...], outputs: tuple[Node, ...]) -> Program:
    """The scalar program of a recurrence's step, whose results are the new states and the outputs.

    States ("i") and inputs ("j") form one record of kind "j", the states first: both change at each step.
    """
    roots = (*states, *outputs)
    builder, value = ExactBuilder(), dict[Node, int]()
    for node in order(*roots):
        args = [value[arg] for arg in node.args]
        if node.op == "variable":
            position, kind, *_ = node.static
            offset = position + len(states) if kind == "j" else position
            value[node] = builder.load("p" if kind == "p" else "j", Index(offset))
        elif node.op in ("constant", "zero"):
            value[node] = builder.const(node.static[0] if node.op == "constant" else 0)
        elif node.op in _RULES:
            value[node] = _RULES[node.op](builder, node, *args)
        else:
            value[node] = RULES[node.op](builder, *args, *node.static)
        if node.op in MASKS:
            builder.compared[value[node]] = (args[0], args[1])
    values, new = builder.finish([value[root] for root in roots])
    return Program(values, tuple(new[value[root]] for root in roots), (), len(roots), 0, (), (), ())
