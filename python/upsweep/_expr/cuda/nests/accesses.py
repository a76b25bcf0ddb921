"""Who touches which element: accesses of a kernel's buffers, and whether two of them can be of different threads.

An index that is ``c * thread + rest`` with 0 <= rest < c tells which thread it is of; so does one that is ``c *
thread + c * n_threads * above + rest``. Two accesses whose indices tell the same are of one thread, unless they
are of different elements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ...nest.expressions import Axis, Expr, const
from ...nest.linear import Linear, Ranges, linear, same
from ...nest.statements import Allocate, Buffer, For, If, Statement, Store, inner_statements, loads_of

__all__ = ["Access", "accesses_of", "tags_that_agree"]

Bounds = Mapping[Axis, tuple[Expr, Expr]]


@dataclass(eq=False)
class Access:
    """A load or a store, with the loops around it."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_store: bool
    target: Buffer | None  # what the statement stores to; None: it is a condition
    tags: frozenset[str]  # of the thread axes around
    ranges: Bounds
    forms: tuple[Linear, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.forms = tuple(linear(index) for index in self.indices)


def accesses_of(
    statement: Statement, tags: frozenset[str] = frozenset(), ranges: Bounds | None = None
) -> list[Access]:
    """All accesses inside of a statement, in order."""
    ranges = ranges or {}
    found: list[Access] = []
    if isinstance(statement, For):
        tags = tags | {statement.tag} if statement.tag else tags
        last = linear(statement.extent).plus(Linear(1), -1).expr()
        ranges = {**ranges, statement.axis: (const(0, "int64"), last)}
    elif isinstance(statement, Store):
        for expr in (*statement.indices, statement.value):
            for each in loads_of(expr):
                found.append(Access(each.static[0], each.args, False, statement.buffer, tags, ranges))
        found.append(Access(statement.buffer, statement.indices, True, statement.buffer, tags, ranges))
    elif isinstance(statement, If):
        for each in loads_of(statement.condition):
            found.append(Access(each.static[0], each.args, False, None, tags, ranges))
    for inner in inner_statements(statement):
        found += accesses_of(inner, tags, ranges)
    return found


def allocations(statement: Statement, tags: tuple[str, ...] = ()) -> dict[Buffer, tuple[str, ...]]:
    """The buffers of a kernel, and the thread axes of the loops around their memory."""
    found: dict[Buffer, tuple[str, ...]] = {}
    if isinstance(statement, Allocate):
        found[statement.buffer] = tags
    if isinstance(statement, For) and statement.tag:
        tags = (*tags, statement.tag)
    for inner in inner_statements(statement):
        found |= allocations(inner, tags)
    return found


def inside(form: Linear, width: int, ranges: Bounds, axis: Axis | None = None) -> bool:
    """Whether a form is in [0, width) while the loops run, those of `axis` not counted."""
    known = Ranges({each: bounds for each, bounds in ranges.items() if each is not axis})
    return known.always(form) and known.always(Linear(width - 1).plus(form, -1))


def constant(extent: Expr) -> int | None:
    """The value of an extent that is one number."""
    return int(extent.static[0]) if extent.op == "const" else None


def extent_in(ranges: Bounds, axis: Axis) -> int | None:
    """How many steps the loop over an axis has, if that is a constant."""
    last = linear(ranges[axis][1])
    return None if last.terms else last.constant + 1


def _tells(a: Access, b: Access, d: int, axis: Axis, known: list[Axis]) -> bool:
    """Whether equal indices in dimension d mean the same step of a thread axis."""
    one, other = a.forms[d], b.forms[d]
    width = one.coefficient(axis)
    if width <= 0 or other.coefficient(axis) != width:
        return False
    one, other = one.without(axis), other.without(axis)
    for name, (coefficient, atom) in list(one.terms.items()):
        is_shared = atom.op == "var" or any(atom is each for each in known)
        if is_shared and other.terms.get(name, (0, atom))[0] == coefficient:
            one, other = one.without(atom), other.without(atom)
    if one.constant == other.constant:
        one, other = one.plus(Linear(one.constant), -1), other.plus(Linear(other.constant), -1)
    sizes = [extent_in(a.ranges, axis), extent_in(b.ranges, axis)]
    if sizes[0] is not None and sizes[1] is not None:
        period = width * max(sizes[0], sizes[1])
        one, other = _below(one, period), _below(other, period)
    return inside(one, width, a.ranges, axis) and inside(other, width, b.ranges, axis)


def _below(form: Linear, period: int) -> Linear:
    """A form without its terms that are whole periods."""
    terms = {name: term for name, term in form.terms.items() if term[0] % period}
    return Linear(form.constant, terms)


def tags_that_agree(a: Access, b: Access, axes: Mapping[str, Axis], alone: frozenset[str]) -> set[str]:
    """The thread axes whose step is the same for both accesses wherever these are of one element.

    `alone` are those for which both statements run at step 0 only.
    """
    agreed = set(alone)
    left = [tag for tag in axes if tag not in agreed and tag in a.tags and tag in b.tags]
    while True:
        known = [axes[tag] for tag in agreed]
        found = [tag for tag in left if any(_tells(a, b, d, axes[tag], known) for d in range(len(a.forms)))]
        if not found:
            return agreed
        agreed |= set(found)
        left = [tag for tag in left if tag not in agreed]


def are_apart(a: Access, b: Access, common: Collection[Axis]) -> bool:
    """Whether two accesses are never of one element while the loops in `common` are at one step for both."""
    for one, other in zip(a.forms, b.forms):
        known = [_is_settled(atom, common) for form in (one, other) for _, atom in form.terms.values()]
        difference = one.plus(other, -1)
        if all(known) and not difference.terms and difference.constant:
            return True
    return False


def _is_settled(expr: Expr, axes: Collection[Axis]) -> bool:
    """Whether an expression has one value while some loops stay at their step."""
    if expr.op == "axis":
        return any(expr is axis for axis in axes)
    return expr.op != "load" and all(_is_settled(arg, axes) for arg in expr.args)


def same_extents(extents: list[Expr], extent: Expr) -> bool:
    """Whether a loop runs over all of its thread axis."""
    return len(extents) == 1 and same(extents[0], extent)
