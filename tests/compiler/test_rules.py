"""Simplification: the forms that come out, that no value changes, and that it ends."""

import numpy as np
import pytest
from formulas import CASES, IDS, arrays_for, case_arrays, case_formula, over_pairs, random_formula
from hypothesis import given, settings
from hypothesis import strategies as st
from upsweep._compiler.formulas.derivative import gradient
from upsweep._compiler.formulas.nodes import constant, make, order, text, variable, zero
from upsweep._compiler.formulas.reference import evaluate
from upsweep._compiler.formulas.rules import simplify

x, y, z = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 3, "j")
p, q = variable(3, 1, "p"), variable(4, 1, "i")
one, two = constant(1), constant(2)


def neg(a):
    return make("neg", a)


def spread(a, dim=3):
    return make("sumT", a, static=(dim,))


def mul(a, b):
    return make("mul", a, b)


FORMS = {
    "0 x": (mul(constant(0), x), zero(3)),
    "x 0": (mul(x, zero(3)), zero(3)),
    "1 x": (mul(one, x), x),
    "-1 x": (mul(constant(-1), x), neg(x)),
    "1 p as wide as x": (mul(make("sumT", one, static=(3,)), p), spread(p)),
    "x + 0": (make("add", x, zero(1)), x),
    "0 + p as wide as x": (make("add", zero(3), p), spread(p)),
    "0 - x": (make("sub", zero(3), x), neg(x)),
    "x + x": (make("add", x, x), mul(two, x)),
    "2 x + x": (make("add", mul(two, x), x), mul(constant(3), x)),
    "x + 2 x": (make("add", x, mul(x, two)), mul(constant(3), x)),
    "x - 3 x": (make("sub", x, mul(constant(3), x)), mul(constant(-2), x)),
    "x - x": (make("sub", x, x), zero(3)),
    "2 p x + p x": (make("add", mul(mul(two, p), x), mul(p, x)), mul(constant(3), mul(p, x))),
    "p x + q x": (make("add", mul(p, x), mul(x, q)), mul(make("add", p, q), x)),
    "x - p x": (make("sub", x, mul(p, x)), mul(make("sub", one, p), x)),
    "-(p (x - y))": (neg(mul(p, make("sub", x, y))), mul(neg(p), make("sub", x, y))),
    "(-p) (-x)": (mul(neg(p), neg(x)), mul(p, x)),
    "(x - y) + y": (make("add", make("sub", x, y), y), make("add", make("sub", x, y), y)),
    "x - (-y)": (make("sub", x, neg(y)), make("add", x, y)),
    "-x + y": (make("add", neg(x), y), make("sub", y, x)),
    "-x - y": (make("sub", neg(x), y), neg(make("add", x, y))),
    "-(-x)": (neg(neg(x)), x),
    "-(x - y)": (neg(make("sub", x, y)), make("sub", y, x)),
    "-(2 x)": (neg(mul(two, x)), mul(constant(-2), x)),
    "(-x) y": (mul(neg(x), y), neg(mul(x, y))),
    "(-x) (-y)": (mul(neg(x), neg(y)), mul(x, y)),
    "x x": (mul(x, x), make("square", x)),
    "2 (3 x)": (mul(two, mul(constant(3), x)), mul(constant(6), x)),
    "1e30 (1e-30 x)": (mul(constant(1e30), mul(constant(1e-30), x)), mul(constant(1e30), mul(constant(1e-30), x))),
    "q (p (x - y))": (mul(q, mul(p, make("sub", x, y))), mul(mul(q, p), make("sub", x, y))),
    "(p (x - y)) z": (mul(mul(p, make("sub", x, y)), z), mul(p, mul(make("sub", x, y), z))),
    "x / 1": (make("div", x, one), x),
    "0 / x": (make("div", zero(3), x), zero(3)),
    "(-x) / y": (make("div", neg(x), y), neg(make("div", x, y))),
    "square(-x)": (make("square", neg(x)), make("square", x)),
    "x^1": (make("pow", x, static=(1,)), x),
    "x^2": (make("pow", x, static=(2,)), make("square", x)),
    "x^0": (make("pow", x, static=(0,)), spread(one)),
    "exp(0)": (make("exp", zero(3)), spread(one)),
    "sum(p)": (make("sum", p), p),
    "sum(spread(p))": (make("sum", spread(p)), mul(constant(3), p)),
    "sum(-x)": (make("sum", neg(x)), neg(make("sum", x))),
    "sum((x - y)^2)": (make("sum", make("square", make("sub", x, y))), make("sqdist", x, y)),
    "sum(x y)": (make("sum", mul(x, y)), make("scalprod", x, y)),
    "sum(p x)": (make("sum", mul(p, x)), mul(p, make("sum", x))),
    "sum(x^2)": (make("sum", make("square", x)), make("scalprod", x, x)),
    "(x - y | x - y)": (make("scalprod", make("sub", x, y), make("sub", x, y)), make("sqdist", x, y)),
    "(x | p y)": (make("scalprod", x, mul(p, y)), mul(p, make("scalprod", x, y))),
    "(x | spread(p))": (make("scalprod", x, spread(p)), mul(p, make("sum", x))),
    "(p x | p x)": (make("scalprod", mul(p, x), mul(p, x)), mul(p, mul(p, make("scalprod", x, x)))),
    "(x | -y)": (make("scalprod", x, neg(y)), neg(make("scalprod", x, y))),
    "(x | unit)": (make("scalprod", x, make("elemT", p, static=(3, 1))), mul(p, make("elem", x, static=(1,)))),
    "|x p - y p|^2": (make("sqdist", mul(x, p), mul(y, p)), mul(make("square", p), make("sqdist", x, y))),
    "|2 x - 2 y|^2": (make("sqdist", mul(x, two), mul(two, y)), mul(constant(4), make("sqdist", x, y))),
    "|x / p - y / p|^2": (
        make("sqdist", make("div", x, p), make("div", y, p)),
        make("div", make("sqdist", x, y), make("square", p)),
    ),
    "|-x - -y|^2": (make("sqdist", neg(x), neg(y)), make("sqdist", x, y)),
    "|x - 0|^2": (make("sqdist", x, zero(3)), make("scalprod", x, x)),
    "concat(x, y)[4]": (make("elem", make("concat", x, y), static=(4,)), make("elem", y, static=(1,))),
    "concat(x, p)[0:3]": (make("extract", make("concat", x, p), static=(0, 3)), x),
    "x[1:3][1]": (make("elem", make("extract", x, static=(1, 2)), static=(1,)), make("elem", x, static=(2,))),
    "unit[its place]": (make("elem", make("elemT", p, static=(3, 1)), static=(1,)), p),
    "unit[another]": (make("elem", make("elemT", p, static=(3, 1)), static=(0,)), zero(1)),
    "concat(0, 0)": (make("concat", zero(2), zero(1)), zero(3)),
    "outer(x, p)": (make("tensorprod", x, p), mul(p, x)),
    "matrix 0": (make("matvecmult", zero(9), x), zero(3)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    formula, expected = FORMS[name]
    assert simplify(formula) is simplify(expected) and text(simplify(formula)) == text(expected)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_value_changes(case):
    formula = case_formula(case)
    arrays = over_pairs([variable(n, dim, "ijp"[n]) for n, dim in enumerate(case[1])], case_arrays(case))
    np.testing.assert_allclose(
        *np.broadcast_arrays(evaluate(simplify(formula), arrays), evaluate(formula, arrays))
    )


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_random_formulas_and_their_derivatives(seed):
    formula = random_formula(np.random.default_rng(seed), depth=4)
    known = [variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "p"), variable(3, 1, "j")]
    arrays = over_pairs(known, arrays_for(known, -1, 1, seed))
    simple = simplify(formula)
    both = np.broadcast_arrays(evaluate(simple, arrays), evaluate(formula, arrays))
    np.testing.assert_allclose(*both, rtol=1e-9, atol=1e-12)
    assert len(order(simple)) <= len(order(formula)) + 3  # numbers that are made first
    assert simplify(simple) is simple
    derived = gradient(formula, known[0], one)
    assert simplify(derived) is derived
