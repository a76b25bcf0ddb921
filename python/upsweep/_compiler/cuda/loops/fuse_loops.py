"""Fusion of successive loops of one thread axis, and of successive equal conditions.

No barrier stands between such loops, so that no thread needs what another one has computed in them.
"""

from __future__ import annotations

from upsweep._compiler.loops.expressions import Expr, has_loads, key
from upsweep._compiler.loops.linear import same
from upsweep._compiler.loops.rewrite import block_of, rewritten
from upsweep._compiler.loops.statements import Block, For, If, Statement

__all__ = ["fused"]


def fused(statement: Statement) -> Statement:
    """The statement with such loops and conditions fused."""
    return rewritten(statement, _fused_block)


def _fused_block(statement: Statement) -> Statement:
    if not isinstance(statement, Block):
        return statement
    steps: list[Statement] = []
    for step in statement.steps:
        fusion = _fusion(steps[-1], step) if steps else None
        if fusion is None:
            steps.append(step)
        else:
            steps[-1] = fusion
    return block_of(*steps) if steps else statement


def _fusion(first: Statement, second: Statement) -> Statement | None:
    if isinstance(first, For) and isinstance(second, For) and _are_one(first, second):
        return For(first.axis, first.extent, _fused_bodies(first, second), first.marks, first.tag)
    if isinstance(first, If) and isinstance(second, If) and _are_alike(first.condition, second.condition):
        return If(first.condition, _fused_bodies(first, second))
    return None


def _fused_bodies(first: For | If, second: For | If) -> Statement:
    return _fused_block(block_of(first.body, second.body))


def _are_one(first: For, second: For) -> bool:
    return bool(first.tag) and first.axis is second.axis and same(first.extent, second.extent)


def _are_alike(first: Expr, second: Expr) -> bool:
    return not has_loads(first) and key(first) == key(second)
