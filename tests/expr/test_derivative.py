"""Derivatives of every operation, of random formulas, and twice; by finite differences in float64."""

import numpy as np
import pytest
from formulas import CASES, IDS, arrays_for, case_arrays, case_formula, random_formula
from upsweep._expr import ops
from upsweep._expr.derivative import RULES, differential, divergence, gradient, gradient_matrix, laplacian
from upsweep._expr.evaluate import evaluate
from upsweep._expr.lower import lower_formulas
from upsweep._expr.nodes import constant, make, order, variable, variables, zero

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
    "name, given, expected",
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
def test_conventions(name, given, expected):
    a = variable(0, len(given), "i")
    value = evaluate(gradient(make(name, a), a, constant(1)), [np.array(given)])
    np.testing.assert_allclose(value, expected, rtol=1e-12)


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
