"""Bounds of integer expressions while axes run over ranges, and proofs that they hold for all sizes.

`te.bounds_checks` proves with `Ranges` that indices stay inside of their tensors; `te.strip_mining` and
`cuda.loops` prove which loops may run in parallel.

The machine computes modulo 2**64 (2**32 in int32). Sums and products of exact integers agree with that: the value
of an index that is proven to be inside is exact whatever its parts do. The operands of min, max, floordiv, casts
and comparisons have to fit their dtype; one that is not proven to fit is one unknown integer of that dtype, a
"wrapped" atom.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from upsweep._compiler.loops.expressions import INTS, Axis, Expr, binary, key, lowest
from upsweep._compiler.loops.linear import Linear, depends_on_sizes, is_of_data, linear


class Ranges:
    """Bounds of expressions while axes run over [first, last], under assumptions.

    With `at_call`, a value that is not proven to fit its dtype for all sizes counts as fitting if sizes decide it:
    `needed` are forms of sizes that have to be at least 0 for this. Otherwise it counts as wrapped.
    """

    def __init__(self, axes: Mapping[Axis, tuple[Expr, Expr]], *, at_call: bool = False) -> None:
        self.axes, self.at_call = dict(axes), at_call
        self.needed: list[Linear] = []
        self.assumptions: tuple[Linear, ...] = ()  # forms that are at least 0
        self._needed_by_assumptions: tuple[Linear, ...] = ()
        self._forms: dict[str, Linear] = {}

    def assuming(self, condition: Expr, holds: bool = True) -> Ranges:
        """The ranges where a condition holds, or does not; `self` if it implies nothing about integers."""
        ranges = Ranges(self.axes, at_call=self.at_call)
        ranges.assumptions = self.assumptions
        assumptions = tuple(ranges._implied(condition, holds))
        if not assumptions:
            return self
        ranges.assumptions += assumptions
        ranges._needed_by_assumptions = (*self._needed_by_assumptions, *ranges.needed)
        ranges.needed[:] = ranges._needed_by_assumptions
        ranges._forms.clear()  # they were made without these assumptions
        return ranges

    # ---- values in their dtypes ----

    def form(self, expr: Expr) -> Linear:
        """The value of an integer expression, as the machine computes it."""
        name = key(expr)
        if name not in self._forms:
            self._forms[name] = _wrapped(
                expr
            )  # until it is known to fit: bounds by assumptions may ask for it again
            exact = self.exact(expr)
            if self._fits(exact, expr.dtype):
                self._forms[name] = exact
        return self._forms[name]

    def is_exact(self, expr: Expr) -> bool:
        """Whether the machine computes the value of an integer expression without wrapping around."""
        return all(atom.op != "wrapped" for _, atom in self.form(expr).terms.values())

    def exact(self, expr: Expr) -> Linear:
        """The linear form of an expression without casts of integers that keep their values."""
        form = linear(expr)
        for coefficient, atom in form.terms.values():
            if atom.op == "cast" and atom.args[0].dtype in INTS:
                inner = self.form(atom.args[0])
                fits = atom.dtype == "int64" or self._fits(inner, atom.dtype)
                form = form.without(atom).plus(inner if fits else _wrapped(atom), coefficient)
        return form

    def _fits(self, form: Linear, dtype: str) -> bool:
        least = Linear(lowest(dtype))
        return self._holds(form.plus(least, -1)) and self._holds(Linear(-1).plus(least, -1).plus(form, -1))

    def _holds(self, form: Linear) -> bool:
        """Whether a form is at least 0, by the dtypes of its atoms too, or by a check at the call."""
        if self.always(form, typed=True):
            return True
        if not self.at_call:
            return False
        cases = self._cases(form)
        if cases is not None:
            return cases[0](self._holds(case) for case in cases[1])
        for each in (form, *(form.plus(assumption, -1) for assumption in self.assumptions)):
            if any(is_of_data(atom) for _, atom in each.terms.values()):
                continue
            for low in self.bounds_of(each, typed=True)[0]:
                if depends_on_sizes(low) and not low.below_zero():
                    self.needed.append(low)
                    return True
        return False

    # ---- bounds ----

    def _bounds(self, expr: Expr, typed: bool) -> tuple[list[Linear], list[Linear]]:
        """Lower and upper bounds, any of which holds."""
        op, args = expr.op, expr.args
        if isinstance(expr, Axis) and expr in self.axes:
            first, last = self.axes[expr]
            return [linear(first)], [linear(last)]
        if op in ("min", "max"):
            return self._of_extreme(op, [self.form(arg) for arg in args], typed)
        if op == "mod":
            return [Linear(0)], [Linear(int(args[1].static[0]) - 1)]
        if op == "floordiv":
            lows, highs = self.bounds_of(self.form(args[0]), typed)
            return (
                [linear(binary("floordiv", low.expr(), args[1])) for low in lows],
                [linear(binary("floordiv", high.expr(), args[1])) for high in highs],
            )
        if op == "mul":
            return self._of_product(*(self.bounds_of(self.exact(arg)) for arg in args))
        if op == "cast" and args[0].dtype == "bool":
            return [Linear(0)], [Linear(1)]
        if op == "abs" and typed:
            form = self.form(args[0])
            return self._of_extreme("max", [form, form.scaled(-1)], typed)
        if op == "select" and typed:
            forms = [self.form(arg) for arg in args[1:]]
            return self._of_extreme("min", forms, typed)[0], self._of_extreme("max", forms, typed)[1]
        return ([linear(expr)], [linear(expr)]) if op in ("axis", "var") else ([], [])

    def _of_extreme(self, op: str, forms: list[Linear], typed: bool) -> tuple[list[Linear], list[Linear]]:
        """max is above both, min below both; `always` bounds the other side by cases, or `typed` does here."""
        (low_a, high_a), (low_b, high_b) = (self.bounds_of(form, typed) for form in forms)
        lows = [linear(binary("min", a.expr(), b.expr())) for a in low_a[:1] for b in low_b[:1] if typed]
        highs = [linear(binary("max", a.expr(), b.expr())) for a in high_a[:1] for b in high_b[:1] if typed]
        return (low_a + low_b, highs) if op == "max" else (lows, high_a + high_b)

    @staticmethod
    def _of_product(*bounds: tuple[list[Linear], list[Linear]]) -> tuple[list[Linear], list[Linear]]:
        """The least and the largest product of the ends of two factors."""
        if not all(lows and highs for lows, highs in bounds):
            return [], []
        ends = [(lows[0].expr(), highs[0].expr()) for lows, highs in bounds]
        products = [binary("mul", a, b) for a in ends[0] for b in ends[1]]
        least, most = (functools.reduce(lambda a, b: binary(op, a, b), products) for op in ("min", "max"))
        return [linear(least)], [linear(most)]

    def bounds_of(self, form: Linear, typed: bool = False) -> tuple[list[Linear], list[Linear]]:
        """Forms in sizes that bound a form from below, and from above; any of them holds."""
        lows, highs = [Linear(form.constant)], [Linear(form.constant)]
        for coefficient, atom in form.terms.values():
            low, high = self._bounds(atom, typed)
            if typed:  # those of the dtype where there are no others
                least = lowest(atom.dtype)
                low, high = low or [Linear(least)], high or [Linear(-1 - least)]
            if coefficient < 0:
                low, high = high, low
            lows = [a.plus(b, coefficient) for a in lows for b in low]
            highs = [a.plus(b, coefficient) for a in highs for b in high]
        return lows[:8], highs[:8]

    def always(self, form: Linear, *, typed: bool = False) -> bool:
        """Whether a form is shown to be at least 0, where loops are not empty; if `typed`, by the dtypes too."""
        cases = self._cases(form)
        if cases is not None:
            return cases[0](self.always(case, typed=typed) for case in cases[1])
        some = (linear(last).plus(linear(first), -1) for first, last in self.axes.values())
        tries = chain([form], (form.plus(assumption, -1) for assumption in chain(self.assumptions, some)))
        return any(low.at_least_zero() for each in tries for low in self.bounds_of(each, typed)[0])

    def _cases(self, form: Linear) -> tuple[Callable[[Iterable[bool]], bool], list[Linear]] | None:
        """Forms of which all or any are to be at least 0 for a form with min or max to be; None for others."""
        for coefficient, atom in form.terms.values():
            if atom.op in ("min", "max"):
                cases = [form.without(atom).plus(self.form(arg), coefficient) for arg in atom.args]
                return all if (atom.op == "min") == (coefficient > 0) else any, cases
        return None

    def fails(self, form: Linear) -> bool:
        """Whether a form is shown to be negative somewhere, if the ranges are not empty."""
        return not self.assumptions and any(low.below_zero() for low in self.bounds_of(form)[0]) and _exact(form)

    def _implied(self, condition: Expr, holds: bool) -> list[Linear]:
        """Forms that are at least 0 where a condition holds, or does not."""
        op = condition.op
        if op == "not":
            return self._implied(condition.args[0], not holds)
        if op == ("and" if holds else "or"):
            return [assumption for arg in condition.args for assumption in self._implied(arg, holds)]
        if op not in ("lt", "le", "gt", "ge", "eq", "ne") or condition.args[0].dtype not in INTS:
            return []
        if not holds:
            op = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}[op]
        difference = self.form(condition.args[0]).plus(self.form(condition.args[1]), -1)
        strict = Linear(int(op in ("lt", "gt")))
        above, below = difference.plus(strict, -1), difference.scaled(-1).plus(strict, -1)
        return {"lt": [below], "le": [below], "gt": [above], "ge": [above], "eq": [above, below]}.get(op, [])


def _wrapped(expr: Expr) -> Linear:
    """A value that may wrap around, as one atom."""
    atom = Expr("wrapped", (linear(expr).expr(),), expr.dtype)
    return Linear(0, {key(atom): (1, atom)})


def _exact(form: Linear) -> bool:
    """Whether the bounds of a form are attained: each atom is an axis or a size."""
    return all(atom.op in ("axis", "var") for _, atom in form.terms.values())
