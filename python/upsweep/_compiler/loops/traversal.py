"""Traversals of expression graphs: every node in order (`walk`), or values from the operands up (`fold`).

Both keep a stack of their own, because an expression may be deeper than Python's stack, and visit a node once,
however many expressions it is an operand of. They need nothing of a node but `op` and `args`, so that
`expressions`, which imports this module, can use them for its own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar


class Node(Protocol):
    """What a traversal, or the text of an expression, reads of a node."""

    op: str
    args: tuple[Any, ...]
    dtype: str
    static: tuple[Any, ...]


_Node = TypeVar("_Node", bound=Node)
_Value = TypeVar("_Value")


def walk(expr: _Node, operands: Callable[[_Node], Sequence[_Node]] = lambda node: node.args) -> Iterator[_Node]:
    """All nodes in the order of the text, each before its operands."""
    stack, seen = [expr], set[int]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack += reversed(operands(node))


def fold(
    expr: _Node,
    value_of: Callable[[_Node, list[_Value]], _Value],
    known: dict[int, _Value] | None = None,
    operands: Callable[[_Node], Sequence[_Node]] = lambda node: node.args,
) -> _Value:
    """The value of an expression, by ``value_of(node, values of its operands)``; `known` values are by id."""
    known = {} if known is None else known
    stack = [expr]
    while stack:
        node = stack[-1]
        below = operands(node) if id(node) not in known else ()
        missing = [arg for arg in below if id(arg) not in known]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        if id(node) not in known:
            known[id(node)] = value_of(node, [known[id(arg)] for arg in below])
    return known[id(expr)]


def fold_cached(
    expr: Any,
    slot: str,
    value_of: Callable[[Any, list[Any]], Any],
    operands: Callable[[Any], Sequence[Any]] = lambda node: node.args,
) -> Any:
    """`fold` with values that are kept in an attribute of the nodes, None before; callers look there first."""

    def value(node: Any, args: list[Any]) -> Any:
        if getattr(node, slot) is None:
            setattr(node, slot, value_of(node, args))
        return getattr(node, slot)

    return fold(expr, value, None, lambda node: operands(node) if getattr(node, slot) is None else ())
