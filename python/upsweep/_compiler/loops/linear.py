"""Affine forms of integer expressions: a constant and integer multiples of atoms.

Atoms are sizes, axes, and any other expression that is not affine, by its `key`. Sizes are from 0 to `MAX_SIZE`,
so that `at_least_zero` and `below_zero` decide for all sizes by the ends of their range. `ranges` bounds
expressions while axes run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from upsweep._compiler.loops.expressions import FLOATS, INTS, Expr, as_expr, binary, cast, index_const, key
from upsweep._compiler.loops.traversal import fold_cached, walk

# The largest size of a call. No tensor is so large; the sum of two sizes fits int64.
MAX_SIZE = 2**62


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

    def drop(self, is_dropped: Callable[[int, Expr], bool]) -> Linear:
        """The form without some of its terms."""
        return Linear(self.constant, {name: term for name, term in self.terms.items() if not is_dropped(*term)})

    def is_multiple_of(self, divisor: int) -> bool:
        """Whether the constant and all coefficients are multiples of a number."""
        return not (self.constant % divisor or any(each % divisor for each, _ in self.terms.values()))

    def over(self, divisor: int) -> Linear:
        """The form with its constant and its coefficients divided."""
        terms = {name: (coefficient // divisor, atom) for name, (coefficient, atom) in self.terms.items()}
        return Linear(self.constant // divisor, terms)

    def equals(self, other: Linear) -> bool:
        """Whether both are equal for all values of the atoms."""
        difference = self.plus(other, -1)
        return not difference.terms and not difference.constant

    def least(self) -> int | None:
        """A number that it is never below; None if there is none."""
        total = self.constant
        for coefficient, atom in self.terms.values():
            end = _ends(atom)[coefficient < 0]
            if end is None:
                return None
            total += coefficient * end
        return total

    def at_least_zero(self) -> bool:
        """Whether it is never negative."""
        least = self.least()
        return least is not None and least >= 0

    def below_zero(self) -> bool:
        """Whether it is always negative."""
        least = self.scaled(-1).least()
        return least is not None and least > 0

    def expr(self) -> Expr:
        """The form written out, positive terms first."""
        result: Expr | None = None
        for coefficient, atom in sorted(self.terms.values(), key=lambda term: term[0] < 0):
            if result is None:
                result = atom if coefficient == 1 else binary("mul", atom, index_const(coefficient))
            else:
                term = atom if abs(coefficient) == 1 else binary("mul", atom, index_const(abs(coefficient)))
                result = binary("add" if coefficient > 0 else "sub", result, term)
        if result is None:
            return index_const(self.constant)
        if self.constant:
            result = binary("add" if self.constant > 0 else "sub", result, index_const(abs(self.constant)))
        return result


def _ends(atom: Expr) -> tuple[int | None, int | None]:
    """The least and the largest value of an atom for all sizes; None where there is none."""
    if atom.op in ("var", "axis"):
        return 0, MAX_SIZE
    if atom.op == "mod":
        return 0, int(atom.args[1].static[0]) - 1
    if atom.op in ("mul", "floordiv", "min", "max"):
        a, b = (linear(arg) for arg in atom.args)
        low_a, low_b, minus_a, minus_b = a.least(), b.least(), a.scaled(-1).least(), b.scaled(-1).least()
        if low_a is not None and low_b is not None and minus_a is not None and minus_b is not None:
            if atom.op == "mul":
                products = [x * y for x in (low_a, -minus_a) for y in (low_b, -minus_b)]
                return min(products), max(products)
            if atom.op == "floordiv":
                return low_a // low_b, -minus_a // low_b
            extreme = min if atom.op == "min" else max
            return extreme(low_a, low_b), extreme(-minus_a, -minus_b)
    return None, None


def depends_on_sizes(form: Linear) -> bool:
    """Whether a form is of sizes alone, so that its value is known at the call."""
    nodes = (node for _, atom in form.terms.values() for node in walk(atom))
    return all(node.op not in ("axis", "read", "load", "wrapped") for node in nodes)


def is_of_data(expr: Expr) -> bool:
    """Whether the value of an integer expression comes from tensors, or from floats."""
    return any(node.op in ("read", "load", "wrapped") or node.dtype in FLOATS for node in walk(expr))


def linear(expr: Expr) -> Linear:
    """The linear form of an integer expression."""
    form: Linear = expr.known_form or fold_cached(expr, "known_form", _linear, _linear_operands)
    return form


# Operations of int32 whose result is exact.
_NEVER_WRAP = ("const", "read", "load", "min", "max", "mod", "floordiv")


def _linear_operands(expr: Expr) -> tuple[Expr, ...]:
    """The arguments whose linear forms are needed for that of an expression."""
    if expr.op == "cast":
        return expr.args if expr.dtype == "int64" and expr.args[0].op in _NEVER_WRAP else ()
    if expr.op == "floordiv":
        # A value of data may wrap around before it is divided; the division stays an atom.
        return expr.args if expr.dtype == "int64" and not is_of_data(expr) else ()
    return expr.args if expr.op in ("add", "sub", "neg", "mul") else ()


def _linear(expr: Expr, args: list[Linear]) -> Linear:
    if expr.op == "const":
        return Linear(int(expr.static[0]))
    if expr.op in ("add", "sub"):
        return args[0].plus(args[1], 1 if expr.op == "add" else -1)
    if expr.op == "neg":
        return args[0].scaled(-1)
    if expr.op == "mul":
        a, b = args
        if not b.terms:
            return a.scaled(b.constant)
        if not a.terms:
            return b.scaled(a.constant)
    if expr.op == "cast" and args:
        return args[0]
    if expr.op == "floordiv" and args:
        divisor = int(expr.args[1].static[0])
        if args[0].is_multiple_of(divisor):
            return args[0].over(divisor)
        expr = binary("floordiv", args[0].expr(), expr.args[1])
    return Linear(0, {key(expr): (1, expr)})


def simplified(expr: Expr) -> Expr:
    """An integer expression in its linear form; others as they are."""
    return linear(expr).expr() if expr.dtype in ("int64", "int32") and expr.op != "load" else expr


def last_index(extent: Expr) -> Expr:
    """The last value of an axis: its extent minus 1."""
    return linear(extent).plus(Linear(1), -1).expr()


def same(a: Expr, b: Expr) -> bool:
    """Whether two integer expressions are equal for all sizes."""
    return linear(a).equals(linear(b))


def as_index(value: object) -> Expr:
    """A size or an index as int64."""
    if not isinstance(value, Expr):
        try:
            if not isinstance(value, bool):
                return as_expr(operator.index(value), "int64")  # type: ignore[arg-type]  # its TypeError is worded below
        except TypeError:
            pass
        raise TypeError(f"expected an integer, got {value!r}")
    if value.dtype not in INTS:
        raise TypeError(f"expected an integer, got {value!r} of {value.dtype}")
    return cast(value, "int64")
