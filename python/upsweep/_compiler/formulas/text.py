"""Formulas as text, in KeOps' language: `formula.parse` reads it back to the same node."""

from __future__ import annotations

import math

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import KINDS, Node, order

__all__ = ["LONGEST", "listing", "text"]

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "scalprod": "|",
}  # fmt: skip


LONGEST = 20_000
"""Characters of a formula's text, unless another limit is given: its tree can be far larger than its graph."""


def text(node: Node, limit: int | None = LONGEST) -> str:
    """The formula, for people: as long as the tree of it, cut to `limit` characters; None for all of it.

    >>> from upsweep._compiler.formulas.nodes import make, variable
    >>> x, y = variable(0, 3, "i"), variable(1, 3, "j")
    >>> text(make("exp", make("neg", make("sqdist", x, y))))
    'Exp(-SqDist(Var(0,3,0),Var(1,3,1)))'
    """
    written: dict[Node, str] = {}
    for each in order(node):
        written[each] = _cut(_line(each, [written[arg] for arg in each.args]), limit)
    whole = written[node]
    return whole[1:-1] if node.op in _INFIX and whole.endswith(")") else whole


def listing(*roots: Node) -> str:
    """The formulas as numbered steps, one for each node: short where the tree is large, and no two are alike."""
    numbers: dict[Node, int] = {}
    lines = []
    for node in order(*roots):
        numbers[node] = len(numbers)
        operands = ",".join(str(numbers[arg]) for arg in node.args)
        lines.append(f"{node.op}:{node.dim}({operands}){node.static!r}")
    return "\n".join([*lines, " ".join(str(numbers[root]) for root in roots)])


def _cut(written: str, limit: int | None) -> str:
    return written if limit is None or len(written) <= limit else f"{written[: limit - 3]}..."


def _line(node: Node, args: list[str]) -> str:
    if node.op == "variable":
        position, kind = node.static
        return f"Var({position},{node.dim},{KINDS.index(kind)})"
    if node.op == "zero":
        return f"Zero({node.dim})"
    if node.op == "constant":
        return _number(node.static[0])
    if node.op == "neg" and node.args[0].op != "constant":
        return f"-{args[0]}"
    if node.op in _INFIX:
        return f"({args[0]} {_INFIX[node.op]} {args[1]})"
    return f"{ops.TABLE[node.op].keops}({','.join([*args, *map(_static, node.static)])})"


def _static(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)  # not as an integer, which would be another number of the operation
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "(-inf)"}.get(value, "nan")
    digits = "-0.0" if value == 0 and math.copysign(1, value) < 0 else repr(value).removesuffix(".0")
    return f"({digits})" if digits.startswith("-") else digits
