"""Loops that accumulate into one element: ``c[i] = c[i] + f(i, k)`` for all k.

Code generators keep such an element in a register. `accumulated` recognises the loop, `paired_steps` the store of
the first value before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from upsweep._compiler.loops.expressions import Axis, Expr, contains, key
from upsweep._compiler.loops.statements import Block, For, If, Statement, Store


def innermost_store(statement: Statement) -> Store:
    """The one store of nested loops and conditions."""
    while not isinstance(statement, Store):
        assert isinstance(statement, (For, If))
        statement = statement.body
    return statement


def _are_alike(one: Sequence[Expr], other: Sequence[Expr]) -> bool:
    return len(one) == len(other) and all(key(a) == key(b) for a, b in zip(one, other))


def accumulated(loop: For) -> Store | None:
    """The store of a loop nest that accumulates into one element, and does nothing else."""
    axes: list[Axis] = []
    statement: Statement = loop
    while isinstance(statement, (For, If)):
        if isinstance(statement, For):
            if statement.marks - {"unrolled"}:
                return None
            axes.append(statement.axis)
        statement = statement.body
    if not isinstance(statement, Store) or statement.value.op not in ("add", "mul", "min", "max"):
        return None
    first = statement.value.args[0]
    if first.op != "load" or first.static[0] is not statement.buffer:
        return None
    is_one = _are_alike(first.args, statement.indices)
    return statement if is_one and not any(contains(index, axes) for index in statement.indices) else None


def _continues(start: Store, loop: For) -> bool:
    """Whether a loop accumulates into the element that a store has initialised."""
    store = accumulated(loop)
    return store is not None and store.buffer is start.buffer and _are_alike(store.indices, start.indices)


def paired_steps(block: Block) -> Iterator[tuple[Statement, For | None]]:
    """The steps of a block; a store with the loop after it where that accumulates into its element."""
    steps = list(block.steps)
    while steps:
        step = steps.pop(0)
        following = steps[0] if steps else None
        if isinstance(step, Store) and isinstance(following, For) and _continues(step, following):
            steps.pop(0)
            yield step, following
        else:
            yield step, None


def initialised_sum(statement: Statement) -> tuple[Store, For] | None:
    """The store and the loop of a block that is one accumulation; None for other statements."""
    if isinstance(statement, Block) and len(statement.steps) == 2:
        start, loop = next(paired_steps(statement))
        if isinstance(start, Store) and loop is not None:
            return start, loop
    return None
