"""Explicit gradients of numpy's arrays, against finite differences: every reduction, axis and input."""

import numpy as np
import pytest
from upsweep import BlockRanges, Genred, LazyTensor, Pm, Vi, Vj
from upsweep._compiler.formulas import adjoint

M, N, D = 6, 5, 2


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def finite_differences(function, arrays, cotangent, step=1e-6):
    """The gradients of sum(cotangent * function(*arrays)), by central differences."""
    gradients = []
    for place, array in enumerate(arrays):
        gradient = np.zeros_like(array)
        for index in np.ndindex(*array.shape):
            values = []
            for sign in (1, -1):
                moved = [part.copy() for part in arrays]
                moved[place][index] += sign * step
                values.append((cotangent * function(*moved)).sum())
            gradient[index] = (values[0] - values[1]) / (2 * step)
        gradients.append(gradient)
    return gradients


def check(make, arrays, rtol=1e-6, **keywords):
    """Compare the gradients of ``make(*arrays)``, a reduction that is not called yet, in all arrays."""

    def value(*moved):
        result = make(*moved)(**keywords)
        return result[0] if isinstance(result, tuple) else result

    cotangent = data(*value(*arrays).shape, seed=9)
    result, gradients = make(*arrays).value_and_grad(cotangent=cotangent, **keywords)
    np.testing.assert_array_equal(result[0] if isinstance(result, tuple) else result, value(*arrays))
    assert len(gradients) == len(arrays)
    for actual, expected in zip(gradients, finite_differences(value, arrays, cotangent)):
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-7)


def problem(x, y, p, b):
    return -(Vi(x).sqdist(Vj(y)) * Pm(p) + Vj(b)[0] * Vi(x)[1])


ARRAYS = data(M, D), data(N, D, seed=1), np.array([0.7]), data(N, 2, seed=2)  # as the formula reads them
OF_ALL = {
    "sum": lambda F, b, axis: (F.exp() * b).sum(axis=axis, call=False),
    "logsumexp": lambda F, b, axis: F.logsumexp(axis=axis, call=False),
    "logsumexp, weighted": lambda F, b, axis: F.logsumexp(axis=axis, weight=b.square(), call=False),
    "logsumexp, one weight": lambda F, b, axis: F.logsumexp(axis=axis, weight=b.sqnorm2(), call=False),
    "softmax": lambda F, b, axis: F.sumsoftmaxweight(b, axis=axis, call=False),
    "min": lambda F, b, axis: (F * b).min(axis=axis, call=False),
    "max": lambda F, b, axis: (F * b).max(axis=axis, call=False),
    "min_argmin": lambda F, b, axis: (F * b).min_argmin(axis=axis, call=False),
    "max_argmax": lambda F, b, axis: F.max_argmax(axis=axis, call=False),
    "Kmin": lambda F, b, axis: (F * b).Kmin(3, axis=axis, call=False),
    "Kmin of one": lambda F, b, axis: F.Kmin(2, axis=axis, call=False),
    "Kmin_argKmin": lambda F, b, axis: F.Kmin_argKmin(2, axis=axis, call=False),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", OF_ALL)
def test_every_reduction(name, axis):
    check(lambda x, y, p, b: OF_ALL[name](problem(x, y, p, b), Vj(b), axis), ARRAYS)


RANGES = {
    "tiles": BlockRanges(([[0, 2], [3, 6]], [2, 3], [[0, 2], [3, 4], [1, 5]]), (M, N)),
    "columns that count twice": BlockRanges(([[1, 4]], [2], [[0, 3], [2, 5]]), (M, N)),
    "no tile": BlockRanges(([[0, 2]], [0], np.zeros((0, 2), int)), (M, N)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("name", ["sum", "logsumexp", "logsumexp, weighted", "softmax", "min", "Kmin"])
def test_ranges_hold_for_gradients(name, ranges, axis):
    """Rows of no block have no gradient, though their value is infinite."""
    reduced = OF_ALL[name](problem(*ARRAYS), Vj(ARRAYS[3]), axis)
    value, gradients = reduced.value_and_grad(ranges=RANGES[ranges])
    finite = np.isfinite(value)
    cotangent = np.where(finite, data(*value.shape, seed=3), 0)

    def function(x, y, p, b):
        result = OF_ALL[name](problem(x, y, p, b), Vj(b), axis)(ranges=RANGES[ranges])
        return np.where(finite, result, 0)

    _, gradients = reduced.value_and_grad(cotangent=cotangent, ranges=RANGES[ranges])
    expected = finite_differences(function, ARRAYS, cotangent)
    for actual, each in zip(gradients, expected):
        assert np.isfinite(actual).all()
        np.testing.assert_allclose(actual, each, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["sum", "logsumexp", "softmax", "min", "Kmin"])
def test_batches_are_summed_where_they_were_broadcast(name):
    def make(x, y, p, b):
        weights = LazyTensor(b[:, :, None])
        F = -(
            LazyTensor(x[..., None, :]).sqdist(LazyTensor(y[:, None])) * LazyTensor(p[:, :, None, None]).square()
        )
        return OF_ALL[name](F + weights[0], weights, 3)

    check(make, (data(2, 1, M, D), data(3, N, D, seed=1), data(2, 1, 1, seed=3), data(1, 1, N, 2, seed=2)))


@pytest.mark.parametrize("m, n", [(1, 1), (1, 5), (5, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("name", ["sum", "logsumexp", "softmax", "min", "Kmin of one"])
def test_few_or_no_rows_and_columns(name, m, n):
    x, y, p, b = data(m, D), data(n, D, seed=1), np.array([0.7]), data(n, 2, seed=2)
    _, gradients = OF_ALL[name](problem(x, y, p, b), Vj(b), 1).value_and_grad()
    for gradient, array in zip(gradients, (x, y, p, b)):
        assert gradient.shape == array.shape and np.isfinite(gradient).all()


def test_some_variables_only():
    x, y = Vi(ARRAYS[0]), Vj(ARRAYS[1])
    reduced = x.sqdist(y).sum(axis=1, call=False)
    value, (dy,) = reduced.value_and_grad(wrt=[y])
    np.testing.assert_allclose(dy, 2 * (M * ARRAYS[1] - ARRAYS[0].sum(0)))
    np.testing.assert_allclose(value, reduced())
    with pytest.raises(ValueError, match="wrt: expected LazyTensors of arrays that the formula reads"):
        reduced.value_and_grad(wrt=[Vi(data(M, D))])


def test_an_array_in_both_places_has_two_gradients():
    x = ARRAYS[0]
    _, (rows, columns) = (-Vi(x).sqdist(Vj(x))).exp().sum(axis=1, call=False).value_and_grad()
    np.testing.assert_allclose(rows, columns)


def test_a_formula_that_does_not_depend_on_rows():
    _, (dy,) = Vj(ARRAYS[1]).sum(axis=1, call=False).value_and_grad()
    np.testing.assert_array_equal(dy, np.ones((N, D)))


@pytest.mark.parametrize("name", ["argmin", "argmax", "argKmin"])
def test_places_have_no_gradient(name):
    arguments = (2,) if name == "argKmin" else ()
    reduced = getattr(problem(*ARRAYS), name)(*arguments, axis=1, call=False)
    with pytest.raises(ValueError, match=f"reduction: {name.lower()} has no gradient"):
        reduced.value_and_grad()


def test_cotangents_have_the_results_shape():
    with pytest.raises(ValueError, match=r"cotangent: expected the result's shape, \(6, 1\), got \(6,\)"):
        problem(*ARRAYS).sum(axis=1, call=False).value_and_grad(cotangent=np.ones(M))


def test_the_symbolic_gradient():
    x, y = ARRAYS[:2]
    xi = Vi(x)
    K = (-xi.sqdist(Vj(y))).exp()
    gradient = K.grad(xi, Vj(ARRAYS[3])[0]).sum(axis=1)
    weights = np.exp(-((x[:, None] - y) ** 2).sum(-1)) * ARRAYS[3][:, 0]
    np.testing.assert_allclose(gradient, -2 * np.einsum("ij,ijd->id", weights, x[:, None] - y))
    with pytest.raises(ValueError, match="other: expected a LazyTensor that is a variable"):
        K.grad(K, 1)
    with pytest.raises(ValueError, match="gradin: expected dim 1"):
        K.grad(xi, xi)


def test_the_matrix_of_gradients():
    x, y = ARRAYS[:2]
    xi = Vi(x)
    matrix = (xi * xi[0] * Vj(y)).grad_matrix(xi).sum(axis=1).reshape(M, D, D)
    # feature d of the formula is x_d * x_0 * y_d
    expected = np.zeros((M, D, D))
    for d in range(D):
        expected[:, d, d] += x[:, 0] * y[:, d].sum()
        expected[:, d, 0] += x[:, d] * y[:, d].sum()
    np.testing.assert_allclose(matrix, expected)


def test_float32_gradients_are_float32():
    arrays = [array.astype(np.float32) for array in ARRAYS]
    _, gradients = problem(*arrays).exp().sum(axis=1, call=False).value_and_grad()
    assert all(gradient.dtype == np.float32 for gradient in gradients)


@pytest.mark.parametrize("name", ["logsumexp, weighted", "softmax"])
def test_weights_that_are_all_0(name):
    """log(0) is -inf, and depends on nothing."""
    x, y, p, b = ARRAYS
    b = b * (np.arange(N) > 2)[:, None]
    ranges = BlockRanges(([[0, 2], [2, M]], [1, 2], [[0, 3], [0, N]]), (M, N))
    reduced = OF_ALL[name](problem(x, y, p, b), Vj(b), 1)
    cotangent = np.repeat((np.arange(M) >= 2).astype(float)[:, None], 2, 1)
    value, gradients = reduced.value_and_grad(cotangent=cotangent, ranges=ranges)
    assert (value[:2] == (-np.inf if "log" in name else 0)).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[0][:2], 0)


def test_where_nothing_is_least_the_formula_may_be_anything():
    """Row 0 is in no block; of pair (0, 0), where the logarithm has no derivative, nothing is asked."""
    x, y = np.array([[2.0], [4.0]]), np.array([[2.0], [3.0]])
    reduced = (Vi(x) - Vj(y)).log().min(axis=1, call=False)
    _, (dx, dy) = reduced.value_and_grad(ranges=([[1, 2]], [1], [[0, 2]]))
    np.testing.assert_array_equal(dx, [[0.0], [1.0]])
    np.testing.assert_array_equal(dy, [[0.0], [-1.0]])


def test_symbolic_derivatives_in_one_variable():
    """Of the features x * |x - y|^2: along a change, their divergence; of |x - y|^4 the Laplacian."""
    x, y = ARRAYS[:2]
    xi, yj, moved = Vi(x), Vj(y), data(M, D, seed=4)
    squares = xi.sqdist(yj)
    difference = x[:, None] - y
    values = (difference**2).sum(-1)
    change = moved[:, None] * values[..., None] + x[:, None] * 2 * (difference * moved[:, None]).sum(-1)[..., None]
    np.testing.assert_allclose((xi * squares).diff(xi, Vi(moved)).sum(axis=1), change.sum(1))
    divergence = D * values + 2 * (x[:, None] * difference).sum(-1)
    np.testing.assert_allclose((xi * squares).divergence(xi).sum(axis=1)[:, 0], divergence.sum(1))
    np.testing.assert_allclose((squares**2).laplacian(xi).sum(axis=1)[:, 0], ((4 * D + 8) * values).sum(1))
    with pytest.raises(ValueError, match="diffin: expected dim 2, as the variable has, got 1"):
        squares.diff(xi, 1)
    with pytest.raises(ValueError, match="var: expected dim 1"):
        squares.divergence(xi)
    with pytest.raises(ValueError, match="laplacian: expected a formula of dim 1, got 2"):
        xi.laplacian(xi)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_branch_that_is_not_taken_contributes_nothing(axis):
    """Where f = x - y is negative, or 0, sqrt and 1 / f have no derivative."""
    x, y = np.array([[0.0], [1.0], [2.5]]), np.array([[1.0], [0.0]])
    f = Vi(x) - Vj(y)
    slope = {
        "sqrt": (f.ifelse(f.sqrt(), f * f * f), lambda f: 0.5 / np.sqrt(f) if f > 0 else 3 * f * f),
        "inverse": ((f.square() - 0.5).ifelse(1 / f, f), lambda f: -1 / (f * f) if f * f >= 0.5 else 1),
        "relu": ((f.square().log() + 1).relu(), lambda f: 2 / f if f else 0),
        "clampint": ((1 / f).clamp(-1, 1), lambda f: -1 / (f * f) if abs(f) >= 1 else 0),
    }
    for formula, derivative in slope.values():
        expected = np.array([[derivative(float(a)) for a in row] for row in x - y.T])
        gradients = formula.sum(axis=axis, call=False).value_and_grad()[1]
        np.testing.assert_allclose(gradients[0], expected.sum(1)[:, None])
        np.testing.assert_allclose(gradients[1], -expected.sum(0)[:, None])


def test_derivatives_of_selects_in_formulas():
    """Of formulas as text, twice, and along a direction."""
    x = np.array([[-1.0], [0.0], [4.0]])
    chosen = "IfElse(x - 1, Sqrt(x) * x, Square(x) * x)"
    one = np.ones((3, 1))
    known = np.sqrt(np.abs(x))
    expected = np.where(x >= 1, 1.5 * known, 3 * x * x), np.where(x >= 1, 0.75 / np.maximum(known, 1), 6 * x)
    first = "Grad({}, x, e)"
    twice = first.format(first.format(chosen))
    for formula, value in ((first.format(chosen), expected[0]), (twice, expected[1])):
        actual = Genred(formula + " * y", ["x = Vi(1)", "y = Vj(1)", "e = Vi(1)"], axis=1)(x, one[:1], one)
        np.testing.assert_allclose(actual, value, rtol=1e-12)
    along = Genred(f"Diff({chosen}, x, e) * y", ["x = Vi(1)", "y = Vj(1)", "e = Vi(1)"], axis=1)
    np.testing.assert_allclose(along(x, one[:1], 2 * one), 2 * expected[0], rtol=1e-12)


def test_derivatives_are_derived_once(monkeypatch):
    """Formulas that are written anew for each call, too."""
    derived = []
    original = adjoint.gradients
    monkeypatch.setattr(adjoint, "gradients", lambda *args: derived.append(args) or original(*args))
    generator = np.random.default_rng(5)

    def call(wrt):
        x, y = Vi(generator.random((4, 2))), Vj(generator.random((3, 2)))
        scores = (((x - y) ** 2).sum(-1) * 1.25).sin()
        both = [x, y]
        scores.logsumexp(axis=1, call=False).value_and_grad(wrt=[both[n] for n in wrt])
        scores.min(axis=1, call=False).value_and_grad(wrt=[both[n] for n in wrt])

    call([0, 1])
    assert 0 < len(derived) <= 3
    n_derived = len(derived)
    for _ in range(3):
        call([0, 1])
    assert len(derived) == n_derived
    call([0])  # another set of gradients
    assert len(derived) > n_derived
