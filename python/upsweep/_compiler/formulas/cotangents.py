"""Reverse-mode differentiation: the cotangents of variables from those of results, by a rule for each operation.

A rule takes the cotangent of a node's value, the node, and its operands. It returns one cotangent for each
operand, or None where the derivative is zero everywhere. A rule of a select (`ifelse`, `where`, `relu`, `max`,
...) returns selects between the cotangent and 0.

The cotangent that enters a branch that is not chosen is 0, but derivatives inside that branch may be infinite or
NaN, and 0 times those is NaN. A select is therefore not multiplied with the following factors: it is removed from
the cotangent and becomes a guard, which accompanies the product through the branch. The product is selected by its
guard where it leaves the branch: at a node that other terms reach too, and at the variables. `derivative` uses
this for formulas, and `recurrences` for updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, constant, intern, make, order

Cotangents = tuple[Node | None, ...]
Rule = Callable[..., Cotangents]

_SELECTS = ("ifelse", "where")

_LINEAR = frozenset({"add", "sub", "neg", "sum", "sumT", "elem", "elemT", "extract", "extractT", "concat"})
"""Operations whose rules only add, negate and move features, and so map a cotangent of 0 to 0."""

_Guard = tuple[tuple[Node, bool], ...]
"""Pairs of a condition and the side of its select: the node contributes to the result where all of them match. A
condition has dim 1 or the node's dim."""


class _Term(NamedTuple):
    """A summand of a cotangent: valid where `guard` holds, 0 elsewhere once `pending` is applied."""

    value: Node
    guard: _Guard = ()
    pending: _Guard = ()


def pull_back(
    cotangents: Mapping[Node, Node], of: tuple[Node, ...], rules: Mapping[str, Rule], select: str
) -> Cotangents:
    """The cotangents of variables, from those of nodes that depend on them; None where nothing depends on one.

    `rules` has the rule of each operation. `select`, "ifelse" or "where", is the select operation of the formulas,
    which compares its condition with 0: at least 0, or not 0.
    """
    nodes = order(*cotangents)
    moving = set(of)
    moving.update(node for node in nodes if not moving.isdisjoint(node.args))
    terms = {node: [_Term(cotangent)] for node, cotangent in cotangents.items()}
    for node in reversed(nodes):
        if node in terms and node in moving and node.args:
            total = _total(terms.pop(node), select)
            for arg, term in zip(node.args, _arguments(node, total, rules[node.op], select)):
                if term is not None and arg in moving:
                    terms.setdefault(arg, []).append(term)
    totals = (_total(terms[variable], select) if variable in terms else None for variable in of)
    return tuple(None if total is None else _selected(total.value, total.pending, select) for total in totals)


def widened(node: Node, dim: int) -> Node:
    """A number broadcast to a vector of `dim` features; a vector unchanged."""
    return node if node.dim == dim else make("sumT", node, static=(dim,))


def _arguments(node: Node, total: _Term, rule: Rule, select: str) -> Iterable[_Term | None]:
    """The terms that a node adds to the cotangents of its operands."""
    row = ops.TABLE.get(node.op)
    is_linear = node.op in _LINEAR
    value, guard, pending = total
    guards: Iterable[_Guard] = (guard,) * len(node.args)
    if row is not None and not row.elementwise and _widest(guard) > 1:
        # A condition for each feature does not match the features of the operands.
        value, pending = _selected(value, pending, select), ()
        mask = _mask(guard, select)
        masks = rule(mask, node, *node.args) if is_linear else (make("sum", mask),) * len(node.args)
        guards = tuple(() if each is None else (_holds(each, select),) for each in masks)
    for arg, part, own in zip(node.args, rule(value, node, *node.args), guards):
        if part is None:
            yield None
            continue
        part, conditions = _without_selects(part)
        pending_own = (pending if is_linear else own) + conditions
        own += conditions
        if arg.dim < part.dim and _widest(own) > 1:
            part, pending_own = _selected(part, pending_own, select), ()
            wide = tuple(each for each in own if each[0].dim > 1)
            own = (*(each for each in own if each not in wide), _holds(make("sum", _mask(wide, select)), select))
        part = widened(part, arg.dim) if part.dim == 1 else make("sum", part) if arg.dim == 1 else part
        yield _Term(part, own, pending_own)


def _without_selects(part: Node) -> tuple[Node, _Guard]:
    """Strip the selects between a cotangent and 0 from its root; return it and their conditions."""
    conditions: list[tuple[Node, bool]] = []
    while part.op in _SELECTS:
        condition, chosen, other = part.args
        if not _is_zero(chosen) and not _is_zero(other):
            break
        side = _is_zero(other)
        conditions.append((condition, side))
        part = chosen if side else other
    return part, tuple(conditions)


def _is_zero(node: Node) -> bool:
    return node.op == "zero" or (node.op == "constant" and node.static[0] == 0)


def _total(terms: list[_Term], select: str) -> _Term:
    """The sum of the terms of a node, guarded by the disjunction of their guards."""
    by_guard: dict[_Guard, _Term] = {}
    for term in terms:
        known = by_guard.get(term.guard)
        if known is not None:
            pending = tuple(dict.fromkeys(known.pending + term.pending))
            term = _Term(make("add", known.value, term.value), term.guard, pending)
        by_guard[term.guard] = term
    if len(by_guard) == 1:
        return term
    first, *others = by_guard.values()
    common = tuple(each for each in first.guard if all(each in term.guard for term in others))
    total: Node | None = None
    for term in by_guard.values():
        value = _selected(term.value, (each for each in term.pending if each not in common), select)
        total = value if total is None else make("add", total, value)
    assert total is not None
    pending = tuple(each for each in common if any(each in term.pending for term in by_guard.values()))
    rests = [tuple(each for each in term.guard if each not in common) for term in by_guard.values()]
    return _Term(total, common + _any_of(rests, select), pending)


def _any_of(guards: list[_Guard], select: str) -> _Guard:
    """The disjunction of guards."""
    if not all(guards):
        return ()
    if len(guards) == 2 and len(guards[0]) == len(guards[1]) == 1:
        (condition, side), (other, other_side) = guards[0][0], guards[1][0]
        if condition is other and side != other_side:
            return ()
    mask = constant(0)
    for guard in guards:
        mask = _select(select, _holds(_mask(guard, select), select)[0], constant(1), mask)
    return (_holds(mask, select),)


def _select(select: str, condition: Node, chosen: Node, other: Node) -> Node:
    return intern(select, (condition, chosen, other), (), max(condition.dim, chosen.dim, other.dim))


def _selected(value: Node, guard: Iterable[tuple[Node, bool]], select: str) -> Node:
    """The value where the guard holds, else 0."""
    for condition, side in guard:
        value = _select(select, condition, *((value, constant(0)) if side else (constant(0), value)))
    return value


def _mask(guard: _Guard, select: str) -> Node:
    """1 where the guard holds, else 0."""
    return _selected(constant(1), guard, select)


def _holds(mask: Node, select: str) -> tuple[Node, bool]:
    """The condition that a nonnegative mask is not 0."""
    return (mask if select == "where" else make("sub", mask, constant(0.5)), True)


def _widest(guard: _Guard) -> int:
    return max((condition.dim for condition, _ in guard), default=1)
