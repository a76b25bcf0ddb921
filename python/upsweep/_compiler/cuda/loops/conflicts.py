"""Whether two accesses of a kernel's buffers can be of different threads.

An index ``c * thread + rest`` with 0 <= rest < c determines its thread; so does one that is ``c * thread + c *
n_threads * above + rest``; c and n_threads may be sizes. The indices of fused axes, ``i // c`` and ``i % c``,
together determine what i does. Two accesses whose indices determine the thread in the same way are of one thread
wherever they are of one element. `barriers` and `memory_scopes` call this module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from upsweep._compiler.loops.accesses import Access, Bounds
from upsweep._compiler.loops.expressions import Axis, Expr, atoms, binary, constant_of, has_loads
from upsweep._compiler.loops.linear import Linear, linear, same
from upsweep._compiler.loops.ranges import Ranges
from upsweep._compiler.loops.statements import Allocate, Buffer, For, Statement, inner_statements


def allocations(statement: Statement, tags: tuple[str, ...] = ()) -> dict[Buffer, tuple[str, ...]]:
    """The buffers of a kernel, with the thread axes of the loops around their allocation."""
    result: dict[Buffer, tuple[str, ...]] = {}
    if isinstance(statement, Allocate):
        result[statement.buffer] = tags
    if isinstance(statement, For) and statement.tag:
        tags = (*tags, statement.tag)
    for inner in inner_statements(statement):
        result |= allocations(inner, tags)
    return result


def inside(form: Linear, width: Linear, ranges: Bounds, axis: Axis | None = None) -> bool:
    """Whether a form is in [0, width) while the loops other than that of `axis` run."""
    known = Ranges({each: bounds for each, bounds in ranges.items() if each is not axis})
    return known.always(form) and known.always(width.plus(Linear(1), -1).plus(form, -1))


def steps_in(ranges: Bounds, axis: Axis) -> Linear:
    """The number of steps of the loop over an axis."""
    return linear(ranges[axis][1]).plus(Linear(1))


def _determines_step(one: Linear, other: Linear, a: Access, b: Access, axis: Axis, known: list[Axis]) -> bool:
    """Whether two accesses with one value of this index are of the same step of a thread axis."""
    (width, one), (other_width, other) = _factored_out(one, axis), _factored_out(other, axis)
    if not (width.terms or width.constant > 0) or not width.equals(other_width):
        return False
    for name, (coefficient, atom) in list(one.terms.items()):
        is_shared = atom.op == "var" or any(atom is each for each in known)
        if is_shared and other.terms.get(name, (0, atom))[0] == coefficient:
            one, other = one.without(atom), other.without(atom)
    if one.constant == other.constant:
        one, other = one.plus(Linear(one.constant), -1), other.plus(Linear(other.constant), -1)
    sizes = [steps_in(a.ranges, axis), steps_in(b.ranges, axis)]
    if not (width.terms or sizes[0].terms or sizes[1].terms):
        period = width.constant * max(sizes[0].constant, sizes[1].constant)
        one, other = (each.drop(lambda coefficient, atom: coefficient % period == 0) for each in (one, other))
    elif sizes[0].equals(sizes[1]) and width.equals(Linear(1)):
        one, other = (each.drop(lambda _, atom: _is_multiple(atom, sizes[0])) for each in (one, other))
    return inside(one, width, a.ranges, axis) and inside(other, width, b.ranges, axis)


def _factored_out(form: Linear, axis: Axis) -> tuple[Linear, Linear]:
    """The factor of an axis, a number or a size, and the form without the axis."""
    coefficient = form.coefficient(axis)
    if coefficient:
        return Linear(coefficient), form.without(axis)
    for coefficient, atom in form.terms.values():
        if coefficient == 1 and atom.op == "mul" and any(arg is axis for arg in atom.args):
            size = atom.args[0] if atom.args[1] is axis else atom.args[1]
            if _is_settled(size, ()):
                return linear(size), form.without(atom)
    return Linear(0), form


def _is_multiple(atom: Expr, size: Linear) -> bool:
    return atom.op == "mul" and any(linear(arg).equals(size) for arg in atom.args)


def _has_fused(access: Access) -> bool:
    return any(atom.op == "mod" for form in access.forms for _, atom in form.terms.values())


def _joined(access: Access) -> list[Linear]:
    """The indices of the last dimension, of the last two as of one, and so on, as far as sizes are constants."""
    result: list[Linear] = []
    size, joined = 1, Linear(0)
    for form, extent in zip(reversed(access.forms), reversed(access.buffer.shape)):
        joined = _whole(form.scaled(size).plus(joined))
        result.append(joined)
        if constant_of(extent) is None:
            break
        size *= int(extent.static[0])
    return result


def _whole(form: Linear) -> Linear:
    """Replace c * (x // c) + x % c by x."""
    for coefficient, atom in form.terms.values():
        if atom.op == "mod":
            n = int(atom.args[1].static[0])
            quotient = binary("floordiv", linear(atom.args[0]).expr(), atom.args[1])
            if form.coefficient(quotient) == coefficient * n:
                rest = form.without(atom).without(quotient)
                return _whole(rest.plus(linear(atom.args[0]), coefficient))
    return form


def tags_that_agree(a: Access, b: Access, axes: Mapping[str, Axis], alone: frozenset[str]) -> set[str]:
    """The thread axes whose step is the same for both accesses wherever these are of one element.

    `alone` are those for which both statements run at step 0 only.
    """
    agreed = set(alone)
    left = [tag for tag in axes if tag not in agreed and tag in a.tags and tag in b.tags]
    indices = list(zip(a.forms, b.forms))
    if _has_fused(a) or _has_fused(b):
        indices += zip(_joined(a), _joined(b))
    while True:
        known = [axes[tag] for tag in agreed]
        result = [tag for tag in left if any(_determines_step(*each, a, b, axes[tag], known) for each in indices)]
        if not result:
            return agreed
        agreed |= set(result)
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
    inner = [axis for axis in atoms(expr) if isinstance(axis, Axis) and not any(axis is each for each in axes)]
    return not inner and not has_loads(expr)


def same_extents(extents: list[Expr], extent: Expr) -> bool:
    """Whether a loop runs over all of its thread axis."""
    return len(extents) == 1 and same(extents[0], extent)
