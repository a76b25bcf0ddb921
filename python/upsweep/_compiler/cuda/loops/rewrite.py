"""Nests rebuilt: the same statements with other expressions, or others in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from upsweep._compiler.loops.expressions import Expr, substitute, walk
from upsweep._compiler.loops.statements import (
    Allocate,
    Block,
    For,
    If,
    Produce,
    Statement,
    Store,
    inner_statements,
)

__all__ = ["block_of", "expressions_of", "mapped", "paths_to", "replaced", "rewritten", "used_buffers"]

Change = Callable[[Expr], Expr]


def block_of(*steps: Statement) -> Statement:
    """Steps one after the other, blocks among them opened."""
    flat = [each for step in steps for each in (step.steps if isinstance(step, Block) else [step])]
    return flat[0] if len(flat) == 1 else Block(flat)


def with_inner(statement: Statement, inner: Callable[[Statement], Statement]) -> Statement:
    """The statement with each one directly inside replaced."""
    if isinstance(statement, Block):
        return block_of(*(inner(step) for step in statement.steps)) if statement.steps else statement
    if isinstance(statement, For):
        return For(statement.axis, statement.extent, inner(statement.body), statement.marks, statement.tag)
    if isinstance(statement, If):
        return If(statement.condition, inner(statement.body))
    if isinstance(statement, Allocate):
        return Allocate(statement.buffer, inner(statement.body))
    if isinstance(statement, Produce):
        return Produce(statement.name, inner(statement.body))
    return statement


def rewritten(statement: Statement, change: Callable[[Statement], Statement]) -> Statement:
    """All statements changed, the inner ones first."""
    return change(with_inner(statement, lambda inner: rewritten(inner, change)))


def mapped(statement: Statement, change: Change) -> Statement:
    """The same statements with their expressions changed, stores' places and conditions among them."""

    def one(each: Statement) -> Statement:
        if isinstance(each, Store):
            return Store(each.buffer, tuple(map(change, each.indices)), change(each.value))
        return If(change(each.condition), each.body) if isinstance(each, If) else each

    return rewritten(statement, one)


def replaced(statement: Statement, values: Mapping[Any, Expr]) -> Statement:
    """Axes replaced by expressions, which have loops elsewhere."""
    return mapped(statement, lambda expr: substitute(expr, values))


def expressions_of(statement: Statement) -> tuple[Expr, ...]:
    """The expressions of a statement itself."""
    if isinstance(statement, Store):
        return (*statement.indices, statement.value)
    return (statement.condition,) if isinstance(statement, If) else ()


def used_buffers(statement: Statement) -> set[Any]:
    """The buffers that a statement reads or writes, and those inside it."""
    found = {node.static[0] for expr in expressions_of(statement) for node in walk(expr) if node.op == "load"}
    if isinstance(statement, Store):
        found.add(statement.buffer)
    for inner in inner_statements(statement):
        found |= used_buffers(inner)
    return found


def paths_to(
    statement: Statement, around: tuple[Statement, ...] = ()
) -> Iterator[tuple[Store, tuple[Statement, ...]]]:
    """Each store, and the loops and conditions around it from the outermost."""
    if isinstance(statement, Store):
        yield statement, around
    inside = (*around, statement) if isinstance(statement, (For, If)) else around
    for inner in inner_statements(statement):
        yield from paths_to(inner, inside)
