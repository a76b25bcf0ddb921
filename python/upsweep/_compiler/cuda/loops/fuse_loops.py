"""Loops of one thread axis that follow each other, as one: what a thread does in them is the same, said once.

Between them nobody waits, so that no thread needs there what another one has done.
"""

from __future__ import annotations

from upsweep._compiler.cuda.loops.rewrite import block_of, rewritten
from upsweep._compiler.loops.expressions import Expr, has_loads, key
from upsweep._compiler.loops.linear import same
from upsweep._compiler.loops.statements import Block, For, If, Statement

__all__ = ["fused"]


def fused(statement: Statement) -> Statement:
    """The statement with such loops, and the same conditions, taken together."""
    return rewritten(statement, _fused_block)


def _fused_block(statement: Statement) -> Statement:
    if not isinstance(statement, Block):
        return statement
    steps: list[Statement] = []
    for step in statement.steps:
        both = _together(steps[-1], step) if steps else None
        if both is None:
            steps.append(step)
        else:
            steps[-1] = both
    return block_of(*steps) if steps else statement


def _together(first: Statement, second: Statement) -> Statement | None:
    if isinstance(first, For) and isinstance(second, For) and _are_one(first, second):
        return For(first.axis, first.extent, _both(first, second), first.marks, first.tag)
    if isinstance(first, If) and isinstance(second, If) and _are_alike(first.condition, second.condition):
        return If(first.condition, _both(first, second))
    return None


def _both(first: For | If, second: For | If) -> Statement:
    return _fused_block(block_of(first.body, second.body))


def _are_one(first: For, second: For) -> bool:
    return bool(first.tag) and first.axis is second.axis and same(first.extent, second.extent)


def _are_alike(first: Expr, second: Expr) -> bool:
    return not has_loads(first) and key(first) == key(second)
