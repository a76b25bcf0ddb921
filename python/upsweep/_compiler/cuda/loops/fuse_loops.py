"""Fusion of successive loops of one thread axis, and of successive equal conditions.

No barrier stands between such loops, so that no thread needs what another one has computed in them.
"""

from __future__ import annotations

from upsweep._compiler.loops.expressions import has_loads, key
from upsweep._compiler.loops.linear import same
from upsweep._compiler.loops.rewrite import block_of, rewritten
from upsweep._compiler.loops.statements import Block, For, If, Statement


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
    if isinstance(first, For) and isinstance(second, For):
        is_one = first.axis is second.axis and same(first.extent, second.extent)
        if first.tag and is_one:
            body = _fused_block(block_of(first.body, second.body))
            return For(first.axis, first.extent, body, first.marks, first.tag)
    if isinstance(first, If) and isinstance(second, If):
        is_one = key(first.condition) == key(second.condition)
        if is_one and not has_loads(first.condition):
            return If(first.condition, _fused_block(block_of(first.body, second.body)))
    return None
