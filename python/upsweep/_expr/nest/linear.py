"""Linear forms of integer expressions, and what can be shown with them.

A form is a constant and integer multiples of atoms: sizes, axes, and whatever else is not linear, by its
`key`. Sizes are at least 0. `Ranges` bounds an expression by forms in sizes alone; `at_least_zero` and
`below_zero` decide by signs, so that what they answer holds for every size.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

from .expressions import Axis, Expr, binary, const, key

__all__ = ["Linear", "Ranges", "linear", "same", "simplified"]


class Linear:
    """constant + sum of coefficient * atom; it never changes."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: int, terms: dict[str, tuple[int, Expr]] | None = None) -> None:
        self.constant = constant
        self.terms = {name: term for name, term in (terms or {}).items() if term[0]}

    def plus(self, other: Linear, times: int = 1) -> Linear:
        """self + times * other."""
        terms = dict(self.terms)
        for name, (coefficient, atom) in other.terms.items():
            terms[name] = (terms.get(name, (0, atom))[0] + times * coefficient, atom)
        return Linear(self.constant + times * other.constant, terms)

    def scaled(self, times: int) -> Linear:
        return Linear(0).plus(self, times)

    def coefficient(self, atom: Expr) -> int:
        """The multiple of an axis or a size."""
        return self.terms.get(key(atom), (0, atom))[0]

    def without(self, atom: Expr) -> Linear:
        return Linear(self.constant, {name: term for name, term in self.terms.items() if name != key(atom)})

    def at_least_zero(self) -> bool:
        """Whether it is never negative."""
        return self.constant >= 0 and all(coefficient >= 0 for coefficient, _ in self.terms.values())

    def below_zero(self) -> bool:
        """Whether it is always negative."""
        return self.constant < 0 and all(coefficient <= 0 for coefficient, _ in self.terms.values())

    def expr(self) -> Expr:
        """The form written out, positive terms first."""
        result: Expr | None = None
        for coefficient, atom in sorted(self.terms.values(), key=lambda term: term[0] < 0):
            size = abs(coefficient)
            term = atom if size == 1 else binary("mul", atom, const(size, "int64"))
            if result is None:
                result = term if coefficient > 0 else binary("mul", atom, const(coefficient, "int64"))
            else:
                result = binary("add" if coefficient > 0 else "sub", result, term)
        if result is None:
            return const(self.constant, "int64")
        if self.constant:
            sign = "add" if self.constant > 0 else "sub"
            result = binary(sign, result, const(abs(self.constant), "int64"))
        return result


def linear(expr: Expr) -> Linear:
    """The linear form of an integer expression."""
    if expr.known_form is None:
        expr.known_form = _linear(expr)
    form: Linear = expr.known_form
    return form


def _linear(expr: Expr) -> Linear:
    if expr.op == "const":
        return Linear(int(expr.static[0]))
    if expr.op in ("add", "sub"):
        return linear(expr.args[0]).plus(linear(expr.args[1]), 1 if expr.op == "add" else -1)
    if expr.op == "neg":
        return linear(expr.args[0]).scaled(-1)
    if expr.op == "mul":
        a, b = linear(expr.args[0]), linear(expr.args[1])
        if not b.terms:
            return a.scaled(b.constant)
        if not a.terms:
            return b.scaled(a.constant)
    if expr.op == "cast" and expr.dtype == "int64" and expr.args[0].dtype == "int32":
        return linear(expr.args[0])
    if expr.op == "floordiv":
        inner, divisor = linear(expr.args[0]), int(expr.args[1].static[0])
        parts = [inner.constant, *(coefficient for coefficient, _ in inner.terms.values())]
        if all(part % divisor == 0 for part in parts):
            terms = {name: (coefficient // divisor, atom) for name, (coefficient, atom) in inner.terms.items()}
            return Linear(inner.constant // divisor, terms)
        expr = binary("floordiv", inner.expr(), expr.args[1])
    return Linear(0, {key(expr): (1, expr)})


def simplified(expr: Expr) -> Expr:
    """An integer expression in its linear form; others as they are."""
    return linear(expr).expr() if expr.dtype in ("int64", "int32") and expr.op != "load" else expr


def same(a: Expr, b: Expr) -> bool:
    """Whether two integer expressions are equal for all sizes."""
    difference = linear(a).plus(linear(b), -1)
    return not difference.terms and not difference.constant


class Ranges:
    """Bounds of expressions while axes run over [first, last]; `facts` are forms known to be at least 0."""

    def __init__(self, axes: Mapping[Axis, tuple[Expr, Expr]], facts: tuple[Linear, ...] = ()) -> None:
        self.axes, self.facts = dict(axes), facts

    def given(self, condition: Expr, holds: bool = True) -> Ranges:
        """The ranges where a condition holds, or does not."""
        return Ranges(self.axes, self.facts + tuple(_facts(condition, holds)))

    def _bounds(self, expr: Expr) -> tuple[list[Linear], list[Linear]]:
        """Lower and upper bounds, any of which holds."""
        if isinstance(expr, Axis) and expr in self.axes:
            first, last = self.axes[expr]
            return [linear(first)], [linear(last)]
        if expr.op in ("min", "max"):
            return self._of_extreme(expr)
        if expr.op == "mod":
            return [Linear(0)], [Linear(int(expr.args[1].static[0]) - 1)]
        if expr.op in ("load", "read"):
            return [], []
        if expr.op == "floordiv":
            lows, highs = self._bounds_of(linear(expr.args[0]))
            divisor = expr.args[1]
            return (
                [linear(binary("floordiv", low.expr(), divisor)) for low in lows],
                [linear(binary("floordiv", high.expr(), divisor)) for high in highs],
            )
        if expr.op in ("const", "var", "axis"):
            return [linear(expr)], [linear(expr)]
        return [], []

    def _of_extreme(self, expr: Expr) -> tuple[list[Linear], list[Linear]]:
        """max is above both, min below both; the other side is told by cases, in `always`."""
        (low_a, high_a), (low_b, high_b) = (self._bounds_of(linear(arg)) for arg in expr.args)
        return (low_a + low_b, []) if expr.op == "max" else ([], high_a + high_b)

    def _bounds_of(self, form: Linear) -> tuple[list[Linear], list[Linear]]:
        lows, highs = [Linear(form.constant)], [Linear(form.constant)]
        for coefficient, atom in form.terms.values():
            low, high = self._bounds(atom)
            if coefficient < 0:
                low, high = high, low
            lows = [a.plus(b, coefficient) for a in lows for b in low]
            highs = [a.plus(b, coefficient) for a in highs for b in high]
        return lows[:8], highs[:8]

    def lowest(self, form: Linear) -> list[Linear]:
        """Forms in sizes that bound a form from below, any of which holds."""
        return self._bounds_of(form)[0]

    def always(self, form: Linear) -> bool:
        """Whether a form is shown to be at least 0, where loops are not empty."""
        for coefficient, atom in form.terms.values():
            if atom.op in ("min", "max"):
                cases = [form.without(atom).plus(linear(arg), coefficient) for arg in atom.args]
                shown = all if (atom.op == "min") == (coefficient > 0) else any
                return shown(self.always(case) for case in cases)
        ranges = self.axes.values()
        some = [linear(last).plus(linear(first), -1) for first, last in ranges]
        tries = [form, *(form.plus(fact, -1) for fact in (*self.facts, *some))]
        return any(low.at_least_zero() for each in tries for low in self._bounds_of(each)[0])

    def fails(self, form: Linear) -> bool:
        """Whether a form is shown to be negative somewhere, if the ranges are not empty."""
        return not self.facts and any(low.below_zero() for low in self._bounds_of(form)[0]) and _exact(form)


def _exact(form: Linear) -> bool:
    """Whether bounds of a form are taken on: each atom is an axis or a size."""
    return all(atom.op in ("axis", "var") for _, atom in form.terms.values())


def _facts(condition: Expr, holds: bool) -> list[Linear]:
    """Forms that are at least 0 where a condition holds, or does not."""
    op = condition.op
    if op == "not":
        return _facts(condition.args[0], not holds)
    if op == ("and" if holds else "or"):
        return [fact for arg in condition.args for fact in _facts(arg, holds)]
    if op not in ("lt", "le", "gt", "ge", "eq", "ne") or condition.args[0].dtype not in ("int32", "int64"):
        return []
    if not holds:
        op = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}[op]
    difference = linear(condition.args[0]).plus(linear(condition.args[1]), -1)
    if op in ("lt", "le"):
        return [difference.scaled(-1).plus(Linear(1 if op == "lt" else 0), -1)]
    if op in ("gt", "ge"):
        return [difference.plus(Linear(1 if op == "gt" else 0), -1)]
    return [difference, difference.scaled(-1)] if op == "eq" else []


def as_index(value: object) -> Expr:
    """A size or an index as int64."""
    if not isinstance(value, Expr):
        try:
            if not isinstance(value, bool):
                return const(operator.index(value), "int64")  # type: ignore[arg-type]  # its TypeError is worded below
        except TypeError:
            pass
        raise TypeError(f"expected an integer, got {value!r}")
    expr = value
    if expr.dtype not in ("int64", "int32"):
        raise TypeError(f"expected an integer, got {expr!r} of {expr.dtype}")
    return expr if expr.dtype == "int64" else Expr("cast", (expr,), "int64")
