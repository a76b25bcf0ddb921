"""Rewriting of loop nests: the same statements with other expressions, or other statements in their places.

All passes of `cuda.loops` are built of these functions; `te.lowering` uses `block_of` and `allocate_around`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from upsweep._compiler.loops.expressions import Expr, substitute
from upsweep._compiler.loops.statements import (
    Allocate,
    Block,
    Buffer,
    For,
    If,
    Produce,
    Statement,
    Store,
    all_statements,
    expressions_of,
    inner_statements,
    loads_of,
    stored_buffers,
)  # fmt: skip

Change = Callable[[Expr], Expr]


def block_of(*steps: Statement) -> Statement:
    """Statements in sequence; the steps of blocks among them become steps of the result."""
    flat = [each for step in steps for each in (step.steps if isinstance(step, Block) else [step])]
    return flat[0] if len(flat) == 1 else Block(flat)


def with_inner(statement: Statement, inner: Callable[[Statement], Statement]) -> Statement:
    """The statement with each one directly inside replaced."""
    if isinstance(statement, Block):
        return block_of(*(inner(step) for step in statement.steps)) if statement.steps else statement
    if isinstance(statement, (For, If, Allocate)):
        return replace(statement, body=inner(statement.body))
    if isinstance(statement, Produce):
        return Produce(statement.name, inner(statement.body))
    return statement


def allocate_around(buffers: Sequence[Buffer], body: Statement) -> Statement:
    """A statement with the allocation of some buffers around it, that of the first outermost."""
    for buffer in reversed(buffers):
        body = Allocate(buffer, body)
    return body


def replace_statement(statement: Statement, old: Statement, new: Statement) -> Statement:
    """The statement with one of those inside it, or itself, replaced."""
    if statement is old:
        return new
    return with_inner(statement, lambda inner: replace_statement(inner, old, new))


def rewritten(statement: Statement, change: Callable[[Statement], Statement]) -> Statement:
    """The statement after `change` of each one inside it and then of itself."""
    return change(with_inner(statement, lambda inner: rewritten(inner, change)))


def mapped(statement: Statement, change: Change) -> Statement:
    """The statement with its expressions changed: values, indices and conditions."""

    def one(each: Statement) -> Statement:
        if isinstance(each, Store):
            return Store(each.buffer, tuple(map(change, each.indices)), change(each.value))
        return If(change(each.condition), each.body) if isinstance(each, If) else each

    return rewritten(statement, one)


def replaced(statement: Statement, values: Mapping[Any, Expr]) -> Statement:
    """The statement with axes replaced by expressions of other loops' axes."""
    return mapped(statement, lambda expr: substitute(expr, values))


def used_buffers(statement: Statement) -> set[Buffer]:
    """The buffers that a statement reads or writes, and those inside it."""
    exprs = (expr for each in all_statements(statement) for expr in expressions_of(each))
    return {load.static[0] for expr in exprs for load in loads_of(expr)} | stored_buffers(statement)


def paths_to(
    statement: Statement, around: tuple[Statement, ...] = ()
) -> Iterator[tuple[Store, tuple[Statement, ...]]]:
    """Each store, and the loops and conditions around it from the outermost."""
    if isinstance(statement, Store):
        yield statement, around
    inside = (*around, statement) if isinstance(statement, (For, If)) else around
    for inner in inner_statements(statement):
        yield from paths_to(inner, inside)
