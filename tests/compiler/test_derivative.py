"""Derivatives of every operation, of random formulas, and twice; by finite differences in float64."""

import numpy as np
import pytest
from formulas import CASES, IDS, arrays_for, case_arrays, case_formula, random_formula
from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.derivative import (
    RULES,
    differential,
    divergence,
    gradient,
    gradient_matrix,
    laplacian,
)
from upsweep._compiler.formulas.nodes import constant, make, order, variable, variables, zero
from upsweep._compiler.formulas.reference import evaluate
from upsweep._compiler.lowering.lower import lower_formulas

STEP = 1e-6


def numeric(formula, arrays, position, cotangent):
    """The gradient of sum(cotangent * formula) with respect to the numbers of one array (dim,)."""
    result = np.zeros(arrays[position].shape)
    for k in range(result.size):
        moved = [[array.copy() for array in arrays] for _ in range(2)]
        for sign, copies in zip((1, -1), moved):
            copies[position][k] += sign * STEP
        high, low = (evaluate(formula, copies) for copies in moved)
        result[k] = (cotangent * (high - low)).sum() / (2 * STEP)
    return result


def check(formula, arrays, tolerance=1e-6):
    """The gradient with respect to every variable, at one pair, for a random cotangent."""
    position = len(arrays)
    cotangent = variable(position, formula.dim, "j")
    drawn = np.random.default_rng(9).standard_normal(formula.dim)
    for each in variables(formula):
        derivative = gradient(formula, each, cotangent)
        assert derivative.dim == each.dim
        value = np.broadcast_to(evaluate(derivative, [*arrays, drawn]), each.dim)
        expected = numeric(formula, arrays, each.static[0], drawn)
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance * (1 + np.abs(expected).max()))


def at_one_pair(arrays, pair=1):
    return [array[min(pair, len(array) - 1)] for array in arrays]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_operation(case):
    for seed in range(3):
        check(case_formula(case), at_one_pair(case_arrays(case, seed)))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_operation_twice(case):
    """Of a function of it, since many derivatives are constant."""
    formula = make("sum", make("square", case_formula(case)))
    arrays = at_one_pair(case_arrays(case))
    for each in variables(formula):
        first = gradient(formula, each)
        if variables(first):
            check(first, arrays, tolerance=3e-6)


@pytest.mark.parametrize("seed", range(40))
def test_random_formulas(seed):
    formula = random_formula(np.random.default_rng(seed), depth=4)
    known = [variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "p"), variable(3, 1, "j")]
    check(formula, at_one_pair(arrays_for(known, -1, 1, seed)), tolerance=2e-5)


def test_every_operation_has_a_rule():
    assert set(RULES) == {name for name, row in ops.TABLE.items() if row.expand is None}


x, y, p, e = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "p"), variable(3, 1, "i")
GAUSSIAN = make("exp", make("neg", make("mul", make("sqdist", x, y), p)))


@pytest.mark.parametrize(
    "name, inputs, expected",
    [
        ("sqrt", [0.0, 4.0], [0, 0.25]),
        ("rsqrt", [0.0], [0]),
        ("norm2", [0.0, 0.0], [0, 0]),
        ("asin", [1.0, 0.0], [0, 1]),
        ("sinxdivx", [0.0, 1e-9, -1e-9], [0, -1e-9 / 3, 1e-9 / 3]),
        ("relu", [0.0, -1.0], [1, 0]),
        ("abs", [0.0], [0]),
        ("max", [1.0, 2.0, 2.0], [0, 1, 0]),
    ],
)
def test_conventions(name, inputs, expected):
    a = variable(0, len(inputs), "i")
    value = evaluate(gradient(make(name, a), a, constant(1)), [np.array(inputs)])
    np.testing.assert_allclose(value, expected, rtol=1e-12)


# Functions with points where their derivative is infinite or NaN, and such a point.
SINGULAR = [
    ("sqrt", (), -1.0), ("rsqrt", (), -1.0), ("log", (), 0.0), ("log", (), -1.0), ("xlogx", (), 0.0),
    ("inverse", (), 0.0), ("pow", (-2,), 0.0), ("asin", (), 2.0), ("acos", (), -2.0), ("exp", (), 1e4),
    ("norm2", (), np.nan), ("normalize", (), np.inf), ("sin", (), np.inf), ("square", (), np.inf),
]  # fmt: skip


def derivatives(formula, value):
    """A formula's first and second derivative at one number."""
    a = variable(0, 1, "i")
    first = gradient(formula, a)
    return [float(evaluate(each, [np.array([value])])[0]) for each in (first, gradient(first, a))]


@pytest.mark.parametrize("name, static, at", SINGULAR)
def test_the_branch_that_is_not_taken_contributes_nothing(name, static, at):
    a = variable(0, 1, "i")
    singular = make("mul", make("sin", make(name, a, static=static)), make(name, a, static=static))
    condition = make("sub", make("eq", a, constant(at)), constant(0.5))
    smooth = make("atan", a) if np.isfinite(at) else constant(3)
    if np.isnan(at):
        condition = make("sub", make("ne", a, a), constant(0.5))
    with np.errstate(all="ignore"):
        expected = [1 / (1 + at * at), -2 * at / (1 + at * at) ** 2] if np.isfinite(at) else [0, 0]
    chosen = make("ifelse", condition, smooth, singular)
    np.testing.assert_allclose(derivatives(chosen, at), expected, rtol=1e-14)
    # The other way around, under a function, and as the only user of a node that two selects share.
    chosen = make("ifelse", make("neg", condition), singular, smooth)
    np.testing.assert_allclose(derivatives(make("mul", constant(3), chosen), at), np.multiply(3, expected))
    never = make("ifelse", make("neg", condition), make("mul", singular, singular), constant(0))
    both = make("add", chosen, make("add", never, make("ifelse", condition, smooth, make("neg", singular))))
    np.testing.assert_allclose(derivatives(both, at), np.multiply(2, expected), rtol=1e-14)


@pytest.mark.parametrize(
    "formula, at, expected",
    [
        (lambda a: make("relu", make("log", a)), 0.0, [0, 0]),
        (lambda a: make("clampint", make("inverse", a), static=(-1, 1)), 0.0, [0, 0]),
        (lambda a: make("clamp", make("log", a), constant(-1), constant(1)), 0.0, [0, 0]),
        (lambda a: make("clamp", constant(0), make("log", a), constant(1)), 0.0, [0, 0]),
        (lambda a: make("clamp", constant(0), constant(-1), make("inverse", a)), 0.0, [0, 0]),
        (lambda a: make("max", make("concat", make("log", a), make("exp", a))), 0.0, [1, 1]),
        (lambda a: make("min", make("concat", make("inverse", a), make("exp", a))), 0.0, [1, 1]),
    ],
)
def test_what_is_clipped_or_no_extreme_contributes_nothing(formula, at, expected):
    np.testing.assert_allclose(derivatives(formula(variable(0, 1, "i")), at), expected)


def test_a_select_of_single_features():
    """Of vectors, and through operations that move, join and sum features."""
    a, at = variable(0, 3, "i"), np.array([-1.0, 4.0, 0.0])
    root, condition = make("sqrt", a), make("sub", a, constant(0.5))
    chosen = make("sum", make("ifelse", condition, root, constant(0)))
    np.testing.assert_array_equal(evaluate(gradient(chosen, a), [at]), [0, 0.25, 0])
    first = variable(1, 1, "i")
    spread = make("concat", make("log", first), make("extract", root, static=(1, 2)))  # log(first) is not taken
    whole = make("sum", make("ifelse", condition, spread, constant(1)))
    moved = make("sum", make("ifelse", condition, make("extract", make("concat", spread, a), static=(0, 3)), a))
    for formula, expected in ((whole, [0, 0, 0.25]), (moved, [1, 0, 1.25])):
        arrays = [np.array([-1.0, 4.0, 4.0]), np.array([0.0])]
        np.testing.assert_array_equal(evaluate(gradient(formula, first), arrays), [0])
        value = evaluate(gradient(formula, a), arrays)
        np.testing.assert_array_equal(value, [expected[0], 0.25, 0.25])
    # One number for all features: it counts where any feature takes it.
    number = make("ifelse", condition, make("mul", make("sqrt", first), a), constant(0))
    for features, expected in (([-1.0, 0.0, 0.0], 0), ([-1.0, 4.0, 2.0], 6 * 0.25)):
        value = evaluate(gradient(make("sum", number), first), [np.array(features), np.array([4.0])])
        np.testing.assert_array_equal(value, [expected])
    none = evaluate(gradient(make("sum", number), first), [np.array([-1.0, 0, 0]), np.array([-1.0])])
    np.testing.assert_array_equal(none, [0])
    product = make("matvecmult", make("tensorprod", root, a), a)
    chosen = make("sum", make("ifelse", make("neg", make("abs", a)), product, make("square", a)))
    np.testing.assert_array_equal(evaluate(gradient(chosen, a), [np.array([-1.0, -2.0, 3.0])]), [-2, -4, 6])


def test_a_node_that_branches_of_several_selects_share():
    """Its derivative counts where one of them is taken, however they are nested."""
    a, u, v = variable(0, 1, "i"), variable(1, 1, "i"), variable(2, 1, "i")
    root = make("sqrt", a)
    under_u = make("ifelse", u, make("mul", root, root), a)
    nested = make("ifelse", u, make("ifelse", v, root, constant(1)), make("ifelse", v, make("sin", root), a))
    formula = make("add", under_u, make("add", nested, make("ifelse", v, make("exp", root), constant(0))))
    first = gradient(formula, a)
    for at_u in (-1.0, 1.0):
        for at_v in (-1.0, 1.0):
            value = evaluate(first, [np.array([0.25]), np.array([at_u]), np.array([at_v])])[0]
            expected = 1 + (at_v > 0) * ((1 if at_u > 0 else np.cos(0.5)) + np.exp(0.5)) + (at_v < 0 and at_u < 0)
            np.testing.assert_allclose(value, expected, rtol=1e-14)
    arrays = [np.array([-1.0]), np.array([-1.0]), np.array([-1.0])]
    np.testing.assert_array_equal(evaluate(first, arrays), [2])
    np.testing.assert_array_equal(evaluate(gradient(first, a), arrays), [0])


def test_sinxdivx_where_its_series_ends():
    """No cancellation: both branches agree with each other, and with more digits."""
    a = variable(0, 1, "i")
    at = np.array([[1e-3], [0.1], [0.4999999], [0.5000001], [0.6]])
    exact = np.array([float(_derivative_of_sinc(float(value))) for value in at[:, 0]])
    value = evaluate(gradient(make("sinxdivx", a), a), [at])[:, 0]
    np.testing.assert_allclose(value, exact, rtol=1e-14, atol=0)


def _derivative_of_sinc(value):
    from fractions import Fraction
    from math import factorial

    v = Fraction(value)
    return sum(Fraction((-1) ** n * 2 * n, factorial(2 * n + 1)) * v ** (2 * n - 1) for n in range(1, 15))


def test_powers_of_zero():
    a, b = variable(0, 1, "i"), variable(1, 1, "j")
    value = evaluate(gradient(make("powf", a, b), b), [np.zeros(1), np.array([2.0])])
    np.testing.assert_array_equal(value, [0])
    for at in (0.0, np.inf, np.nan, 2.0):  # of a constant
        value = evaluate(gradient(make("powf", a, b), a), [np.array([at]), np.zeros(1)])
        np.testing.assert_array_equal(value, [0])
        value = evaluate(gradient(make("pow", a, static=(0,)), a), [np.array([at])])
        np.testing.assert_array_equal(value, [0])
    expected = make("mul", constant(2.5), make("powf", a, constant(1.5)))
    assert gradient(make("powf", a, constant(2.5)), a) is expected
    np.testing.assert_array_equal(evaluate(gradient(make("atan2", a, b), a), [np.zeros(1), np.zeros(1)]), [0])


def test_what_does_not_matter_has_no_derivative():
    assert gradient(GAUSSIAN, e) is zero(1)
    assert gradient(make("floor", x), x, constant(1)) is zero(3)
    assert gradient(x, x, constant(1)) is make("sumT", constant(1), static=(3,))


def test_derivatives_stay_small():
    first = gradient(GAUSSIAN, x, e)
    assert len(order(first)) == 14
    second = gradient(first, x, y)
    assert len(order(second)) <= 26
    pairs = [step.op for step in lower_formulas(first).values if step.level == "ij"]
    # the Gaussian's ten, the factor of its derivative, and three features
    assert len(pairs) == 14 and pairs.count("exp") == 1
    scaled = make("sqdist", make("div", x, p), make("div", y, p))
    derived = lower_formulas(gradient(make("exp", make("neg", scaled)), x, e))
    assert [step.op for step in derived.values if step.level == "ij"].count("sub") == 3  # the distance's own
    linear = gradient(make("mul", make("add", x, make("mul", constant(2), x)), y), x, e)
    assert linear is make("mul", make("mul", constant(3), e), y) or len(order(linear)) == 5


def test_differential_and_matrices():
    formula = make("mul", make("sin", make("scalprod", x, y)), make("concat", x, p))
    arrays = at_one_pair(arrays_for([x, y, p, e, variable(4, 3, "i")], seed=3))
    tangent = variable(4, 3, "i")
    moved = [[*arrays], [*arrays]]
    moved[0][0], moved[1][0] = arrays[0] + STEP * arrays[4], arrays[0] - STEP * arrays[4]
    expected = (evaluate(formula, moved[0]) - evaluate(formula, moved[1])) / (2 * STEP)
    np.testing.assert_allclose(evaluate(differential(formula, x, tangent), arrays), expected, rtol=1e-6)
    assert all(v.static[0] >= 0 for v in variables(differential(formula, x, tangent)))
    matrix = evaluate(gradient_matrix(formula, x), arrays).reshape(4, 3)
    np.testing.assert_allclose(matrix @ arrays[4], expected, rtol=1e-6)
    for n in range(4):
        np.testing.assert_allclose(matrix[n], numeric(formula, arrays, 0, np.eye(4)[n]), rtol=1e-6, atol=1e-8)


def test_a_differential_of_what_reads_the_first_array():
    a, b = variable(0, 1, "p"), variable(1, 1, "i")
    value = evaluate(differential(make("mul", a, b), b, constant(1)), [np.array([3.0]), np.array([5.0])])
    np.testing.assert_array_equal(value, [3])


def test_divergence_and_laplacian():
    arrays = at_one_pair(arrays_for([x, y, p], 0.1, 1, seed=3))
    squared = ((arrays[0] - arrays[1]) ** 2).sum()
    expected = (4 * arrays[2] ** 2 * squared - 6 * arrays[2]) * np.exp(-arrays[2] * squared)
    np.testing.assert_allclose(evaluate(laplacian(GAUSSIAN, x), arrays), expected)
    np.testing.assert_allclose(evaluate(divergence(make("mul", p, x), x), arrays), 3 * arrays[2])


def test_a_deep_formula():
    node = p
    for _ in range(2000):
        node = make("sin", node)
    assert gradient(node, p).dim == 1


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: gradient(x, x), r"takes a cotangent of dim 3, not none"),
        (lambda: gradient(x, x, variable(4, 2, "i")), r"dim 3, not Var\(4,2,0\) of dim 2"),
        (lambda: gradient(x, make("exp", x), e), "taken of variables, not of Exp"),
        (lambda: differential(x, x, p), r"cannot move along Var\(2,1,2\) of dim 1"),
        (lambda: divergence(p, x), "of dim 1 cannot be of"),
        (lambda: laplacian(x, x), "that of a number"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
