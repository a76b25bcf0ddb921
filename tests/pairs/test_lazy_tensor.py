"""LazyTensor against numpy: operations, reductions, shapes, transposes, products, what is refused."""

import copy

import numpy as np
import pytest
from helpers import run_python
from upsweep import LazyTensor, Pm, Vi, Vj

M, N, D = 7, 5, 3


def data(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


X, Y, P = data(M, D), data(N, D, seed=1), data(D, seed=2)


def both(function, *, positive=False):
    """The function of lazy and of dense (M, N, D) operands, the lazy one as a dense array too."""
    x, y, p = (np.abs(part) + 0.1 if positive else part for part in (X, Y, P))
    lazy = function(Vi(x), Vj(y), Pm(p))
    wide = np.broadcast_to(x[:, None], (M, N, D)), np.broadcast_to(y[None], (M, N, D)), p
    return np.broadcast_to(dense(lazy), (M, N, D)), function(*wide)


def dense(lazy):
    """All values, one column at a time: reductions over a single column."""
    n_j = 1 if lazy.nj is None else lazy.nj
    columns = [(np.arange(n_j) == j).astype(float)[:, None] for j in range(n_j)]
    return np.stack([(lazy * Vj(column)).sum(axis=1) for column in columns], axis=1)


def test_arithmetic():
    for function in (
        lambda x, y, p: x + y, lambda x, y, p: x - y, lambda x, y, p: x * y * p, lambda x, y, p: x / y,
        lambda x, y, p: 2 + x - 1.5, lambda x, y, p: 3 - y, lambda x, y, p: -x * 2 / 4.0, lambda x, y, p: 1 / y,
        lambda x, y, p: 2.5 / x, lambda x, y, p: x**2 + y**3, lambda x, y, p: abs(x) ** 0.5, lambda x, y, p: x + P,
        lambda x, y, p: P - y * 1 + 0, lambda x, y, p: abs(x) ** -0.5, lambda x, y, p: x**-2,
        lambda x, y, p: np.float64(2) * x,
    ):  # fmt: skip
        np.testing.assert_allclose(*both(function), rtol=1e-12, err_msg=str(function.__code__.co_firstlineno))
    np.testing.assert_allclose(*both(lambda x, y, p: x**y, positive=True))
    np.testing.assert_allclose(*both(lambda x, y, p: x**1.7, positive=True))


@pytest.mark.parametrize("product", [lambda x: 0 * x, lambda x: x * 0.0, lambda x: 0 / x, lambda x: -0.0 * x])
def test_multiplication_by_0_keeps_the_shape(product):
    zero = product(Vi(X[:, :1]).sqdist(Vj(Y[:, :1])))
    assert zero.shape == (M, N)
    np.testing.assert_array_equal((zero + Vi(X[:, :1])).sum(axis=1), N * X[:, :1] * np.ones(1))


def test_neutral_operands_are_left_out():
    x = Vi(X)
    assert x + 0 is x and x * 1 is x and x / 1 is x and x - 0 is x and 1 * x is x


def test_functions_of_numpy():
    for function in (
        lambda x, y, p: np.exp(x) + np.sqrt(abs(y)), lambda x, y, p: np.arctan2(x, y), lambda x, y, p: np.fabs(x),
        lambda x, y, p: np.add(2.0, x), lambda x, y, p: np.subtract(P, y), lambda x, y, p: np.float32(2) / x,
        lambda x, y, p: np.power(abs(x), 1.5), lambda x, y, p: np.clip(x, -1, 1), lambda x, y, p: np.less(P, x),
        lambda x, y, p: np.greater_equal(0.5, x), lambda x, y, p: x % 1.0, lambda x, y, p: 0.7 % (1 + abs(y)),
        lambda x, y, p: np.remainder(x, 0.3), lambda x, y, p: np.rint(x * 3), lambda x, y, p: np.negative(x),
    ):  # fmt: skip
        np.testing.assert_allclose(*both(function), rtol=1e-12, err_msg=str(function.__code__.co_firstlineno))
    squares = ((X[:, None] - Y) ** 2).sum(-1)
    lazy = Vi(X).sqdist(Vj(Y))
    np.testing.assert_allclose(np.sum(lazy, axis=1)[:, 0], squares.sum(1))
    np.testing.assert_allclose(np.mean(lazy, axis=0)[:, 0], squares.mean(0))
    np.testing.assert_allclose(np.matmul(lazy, Y), squares @ Y)


def test_means_and_the_largest():
    lazy, squares = Vi(X).sqdist(Vj(Y)), ((X[:, None] - Y) ** 2).sum(-1)
    np.testing.assert_allclose(Vi(X).mean().sum(axis=0)[0, 0], X.mean(1).sum())
    np.testing.assert_allclose(lazy.mean(dim=1)[:, 0], squares.mean(1))
    np.testing.assert_allclose(lazy.mean(axis=-2)[:, 0], squares.mean(1))
    for largest, sign in ((True, -1), (False, 1)):
        values, indices = lazy.topk(3, dim=1, largest=largest)
        order = (sign * squares).argsort(1)[:, :3]
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_allclose(values, np.take_along_axis(squares, order, 1))


def test_nested_lists_are_rows():
    assert Vi([[1, 2], [3, 4]]).sum(axis=0).tolist() == [[4, 6]]
    assert Vj([[1.0], [3.0]]).sum(axis=1).tolist() == [[4.0]]


def test_missing_methods_are_not_there():
    assert not hasattr(Vi(X), "real2complex") and not hasattr(Vi(X), "sinh") and hasattr(Vi(X), "sinc")


def test_comparisons_are_0_and_1():
    for function in (
        lambda x, y, p: x < y, lambda x, y, p: x > y, lambda x, y, p: x <= y, lambda x, y, p: x >= y,
        lambda x, y, p: x == y, lambda x, y, p: x != y, lambda x, y, p: x > 0,
    ):  # fmt: skip
        np.testing.assert_array_equal(*both(function))


FUNCTIONS = {
    "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "atan": np.arctan, "tanh": np.tanh,
    "sqrt": np.sqrt, "rsqrt": lambda x: x**-0.5,
    "square": np.square, "sign": np.sign, "abs": np.abs, "floor": np.floor,
    "step": lambda x: (x >= 0).astype(float), "relu": lambda x: np.maximum(x, 0), "xlogx": lambda x: x * np.log(x),
    "sinxdivx": lambda x: np.sin(x) / x, "sinc": np.sinc,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    positive = name in ("log", "sqrt", "rsqrt", "xlogx")
    x = np.abs(X) if positive else X
    np.testing.assert_allclose(
        dense(getattr(Vi(x), name)() + 0 * np.float64(1))[:, 0], FUNCTIONS[name](x), rtol=1e-10
    )


def test_inverse_trigonometric_functions():
    x = np.clip(X, -0.9, 0.9)
    np.testing.assert_allclose(dense(Vi(x).asin())[:, 0], np.arcsin(x))
    np.testing.assert_allclose(dense(Vi(x).acos())[:, 0], np.arccos(x))
    np.testing.assert_allclose(dense(Vi(X).atan2(Vj(Y))), np.arctan2(X[:, None], Y[None]))


def test_choices():
    np.testing.assert_allclose(dense(Vi(X).clamp(-1, 1))[:, 0], X.clip(-1, 1))
    np.testing.assert_allclose(dense(Vi(X).clamp(-0.5, Vj(Y) ** 2)), np.clip(X[:, None], -0.5, Y**2))
    np.testing.assert_allclose(dense(Vi(X).ifelse(Vj(Y), 2)), np.where(X[:, None] >= 0, Y, 2.0))
    np.testing.assert_allclose(dense(Vi(X).mod(2))[:, 0], np.mod(X, 2), atol=1e-12)
    np.testing.assert_allclose(dense(Vi(X).mod(2.0, -1))[:, 0], np.mod(X + 1, 2) - 1, atol=1e-12)
    np.testing.assert_allclose(dense(Vi(X).round(1))[:, 0], np.round(X, 1))


def test_conditions_that_are_comparisons():
    """They are 1 or 0, so that KeOps' condition, >= 0, would always hold."""
    x, y = X[:, None], Y[None]
    below, near = (x < y).all(-1, keepdims=True), np.abs(x - y).sum(-1, keepdims=True) < 3
    lazy, lazy_near = (Vi(X) < Vj(Y)).min(), (Vi(X) - Vj(Y)).abs().sum() < 3
    for condition, expected in (
        (Vi(X) < Vj(Y), x < y), (lazy, below), (lazy_near * lazy, near & below), (1 - lazy_near, ~near),
        (Vi(X) - Vj(Y) < 0, x < y), ((Vi(X) < Vj(Y)) - 0.5, x < y),
        (Vi(X).step(), x + 0 * y >= 0),
    ):  # fmt: skip
        np.testing.assert_array_equal(dense(condition.ifelse(Vj(Y), 2)), np.where(expected, Y, 2.0))
    for condition, expected in ((Vi(X) < Vj(Y), x < y), (Vi(X) - Vi(X), False), (Vi(X), True)):
        chosen = np.where(condition, Vj(Y), 2)
        np.testing.assert_array_equal(dense(chosen), np.where(np.broadcast_to(expected, (M, N, D)), Y, 2.0))
    with pytest.raises(ValueError, match=r"number of comparisons that hold.*compare it, as in \(condition >= 1\)"):
        (lazy_near + lazy).ifelse(1, 0).sum(axis=1)


def test_combined_comparisons():
    p, q = X[:, None] < Y, X[:, None] > 0
    a, b = Vi(X) < Vj(Y), Vi(X) > 0
    for lazy, expected in (
        (a & b, p & q), (a | b, p | q), (a ^ b, p ^ q), (~a, ~p), (~(a & ~b) | (a ^ b), ~(p & ~q) | (p ^ q)),
        (np.logical_and(a, b), p & q), (np.bitwise_or(a, b), p | q), (np.logical_or(a, b), p | q),
        (np.logical_xor(a, b), p ^ q), (np.logical_not(a), ~p), ((a | b).ifelse(1, 0), p | q),
    ):  # fmt: skip
        np.testing.assert_array_equal(dense(lazy), np.broadcast_to(expected, (M, N, D)))
    assert (~(Vi(np.full((1, 1), np.nan)) < 1)).sum(axis=1) == 1
    np.testing.assert_allclose(dense(a | Vj(Y))[..., 0], (p * Y).sum(-1))  # a scalar product still


def test_remainders():
    """Rounded quotients are on the wrong side of integers: 49 * (1 / 49) < 1 in float64."""
    numbers = np.arange(1.0, 200)[:, None]
    expected = np.mod(numbers, numbers.T).sum(1)
    for dtype in ("float64", "float32"):
        x = numbers.astype(dtype)
        for moduli in (lambda x=x: Vj(x), lambda x=x: Vj(x) * 1.0):
            np.testing.assert_array_equal((Vi(x) % moduli()).sum(axis=1)[:, 0], expected)
        np.testing.assert_array_equal((Vi(x) % 49).sum(axis=1), numbers % 49)
        np.testing.assert_array_equal((Vi(x) % -49.0).sum(axis=1), numbers % -49)
        np.testing.assert_array_equal((-Vi(x) % Vi(0 * x + 3)).sum(axis=1), -numbers % 3)
        ends = np.array([5.0, -5.0, 0.0, np.inf, -np.inf, np.nan], dtype)
        with np.errstate(invalid="ignore"):
            for modulus in (np.inf, -np.inf, np.nan, 0.0, -2.5):
                for lazy in (Vi(ends[:, None]) % modulus, Vi(ends[:, None]) % Pm(np.array([modulus], dtype))):
                    np.testing.assert_array_equal(lazy.sum(axis=1)[:, 0], np.mod(ends, modulus))
        assert np.isnan((Vi(ends[:, None]) % 0).sum(axis=1)).all()
        huge = (Vi(np.array([[1e20]], dtype)) % Vj(np.array([[0.3]], dtype))).sum(axis=1)
        assert np.isnan(huge) or 0 <= huge < 0.3


def test_norms_and_distances():
    squares = ((X[:, None] - Y) ** 2).sum(-1, keepdims=True)
    x, y = Vi(X), Vj(Y)
    np.testing.assert_allclose(dense((x - y).sqnorm2()), squares)
    np.testing.assert_allclose(dense(x.sqdist(y)), squares)
    np.testing.assert_allclose(dense((x - y).norm2()), squares**0.5)
    np.testing.assert_allclose(dense((x - y).norm(-1)), squares**0.5)
    np.testing.assert_allclose(dense((x - y).norm(2)), squares**0.5)
    np.testing.assert_allclose(dense(np.linalg.norm(x - y, axis=-1)), squares**0.5)
    np.testing.assert_allclose(dense(x | y), (X[:, None] * Y).sum(-1, keepdims=True))
    np.testing.assert_allclose(dense(x.normalize())[:, 0], X / np.linalg.norm(X, axis=1)[:, None])
    for weight in (2.5, np.abs(P), np.eye(3) + 0.1):
        matrix = weight if np.ndim(weight) == 2 else np.eye(3) * weight
        expected = np.einsum("ijk,kl,ijl->ij", X[:, None] - Y, matrix, X[:, None] - Y)[..., None]
        np.testing.assert_allclose(dense((x - y).weightedsqnorm(Pm(np.ravel(weight)))), expected)
        np.testing.assert_allclose(dense(x.weightedsqdist(y, Pm(np.ravel(weight)))), expected)
    np.testing.assert_allclose(
        dense(x.difference_matrix(y)), (X[:, None, :, None] - Y[None, :, None, :]).reshape(M, N, D * D)
    )


def test_features():
    x, y = Vi(X), Vj(Y)
    np.testing.assert_array_equal(dense(x[1])[:, 0, 0], X[:, 1])
    np.testing.assert_array_equal(dense(x[:, :, 1])[:, 0, 0], X[:, 1])
    np.testing.assert_array_equal(dense(x[1:])[:, 0], X[:, 1:])
    np.testing.assert_array_equal(dense(x[:, :, :2])[:, 0], X[:, :2])
    np.testing.assert_array_equal(dense(x[-1])[:, 0, 0], X[:, -1])
    np.testing.assert_array_equal(dense(x[..., -2:])[:, 0], X[:, -2:])
    np.testing.assert_array_equal(dense(x[..., :-1])[:, 0], X[:, :-1])
    np.testing.assert_array_equal(dense(x.extract(1, 2))[:, 0], X[:, 1:])
    wide = np.concatenate([np.broadcast_to(X[:, None], (M, N, D)), np.broadcast_to(Y, (M, N, D))], -1)
    np.testing.assert_array_equal(dense(x.concat(y)), wide)
    np.testing.assert_array_equal(dense(LazyTensor.concatenate((x, y, x), axis=2))[..., : 2 * D], wide)
    np.testing.assert_array_equal(dense(LazyTensor.cat((x, y), -1)), wide)
    np.testing.assert_array_equal(dense(x.sum())[:, 0, 0], X.sum(1))
    np.testing.assert_array_equal(dense(x.max())[:, 0, 0], X.max(1))
    np.testing.assert_array_equal(dense(x.argmin())[:, 0, 0], X.argmin(1))
    np.testing.assert_array_equal(dense(Vi(np.array([[0.0], [2.2]])).one_hot(3))[:, 0], [[1, 0, 0], [0, 0, 1]])


def test_matrices_of_features():
    a, v = data(M, 6), data(N, 3)
    matrix = a.reshape(M, 2, 3)
    np.testing.assert_allclose(dense(Vi(a).matvecmult(Vj(v))), np.einsum("mab,nb->mna", matrix, v))
    np.testing.assert_allclose(
        dense(Vj(data(N, 2)).vecmatmult(Vi(a))), np.einsum("na,mab->mnb", data(N, 2), matrix)
    )
    outer = np.einsum("ma,nb->mnab", X, Y).reshape(M, N, -1)
    np.testing.assert_allclose(dense(Vi(X).tensorprod(Vj(Y))), outer)
    kron = np.stack([[np.kron(p.reshape(2, 3), q.reshape(3, 1)).ravel() for q in v] for p in a])
    np.testing.assert_allclose(dense(Vi(a).keops_kron(Vj(v), [2, 3], [3, 1])), kron)
    dot = dense(Vi(a).keops_tensordot(Vj(v), (2, 3), (3,), (1,), (0,)))
    np.testing.assert_allclose(dot, np.einsum("mab,nb->mna", matrix, v))


def squares():
    return ((X[:, None] - Y) ** 2).sum(-1), Vi(X).sqdist(Vj(Y))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_reductions_of_values(op, axis):
    expected, lazy = squares()
    np.testing.assert_allclose(getattr(lazy, op)(axis=axis)[:, 0], getattr(expected, op)(axis))
    np.testing.assert_allclose(getattr(lazy, op)(dim=axis)[:, 0], getattr(expected, op)(axis))
    np.testing.assert_allclose(getattr(lazy, f"{op}_reduction")(axis=axis)[:, 0], getattr(expected, op)(axis))


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_to_places(axis):
    expected, lazy = squares()
    for op in ("argmin", "argmax"):
        places = getattr(lazy, op)(axis=axis)
        assert places.dtype == np.int64
        np.testing.assert_array_equal(places[:, 0], getattr(expected, op)(axis))
    least, places = lazy.min_argmin(axis=axis)
    np.testing.assert_allclose(least[:, 0], expected.min(axis))
    np.testing.assert_array_equal(places[:, 0], expected.argmin(axis))
    np.testing.assert_array_equal(lazy.max_argmax(axis=axis)[1][:, 0], expected.argmax(axis))
    order = np.moveaxis(expected.argsort(axis), axis, 1)[:, :4]
    np.testing.assert_array_equal(lazy.argKmin(4, axis=axis), order)
    values = np.moveaxis(np.sort(expected, axis), axis, 1)[:, :4]
    np.testing.assert_allclose(lazy.Kmin(4, axis=axis), values)
    both_of_them = lazy.Kmin_argKmin(K=4, dim=axis)
    np.testing.assert_allclose(both_of_them[0], values)
    np.testing.assert_array_equal(both_of_them[1], order)


def test_the_least_of_vectors_are_of_each_feature():
    difference = X[:, None] - Y
    assert (Vi(X) - Vj(Y)).Kmin(2, axis=1).shape == (M, 2, D)
    np.testing.assert_allclose((Vi(X) - Vj(Y)).Kmin(2, axis=1), np.sort(difference, 1)[:, :2])
    np.testing.assert_array_equal((Vi(X) - Vj(Y)).argmin(axis=0), difference.argmin(0))


def test_exponential_sums():
    expected, lazy = squares()
    w = data(N, 2) ** 2
    np.testing.assert_allclose((-lazy).logsumexp(axis=1)[:, 0], np.log(np.exp(-expected).sum(1)))
    np.testing.assert_allclose((-lazy).logsumexp(dim=0)[:, 0], np.log(np.exp(-expected).sum(0)))
    np.testing.assert_allclose((-lazy).logsumexp(axis=1, weight=Vj(w)), np.log(np.exp(-expected) @ w))
    soft = np.exp(-expected) @ w / np.exp(-expected).sum(1, keepdims=True)
    np.testing.assert_allclose((-lazy).sumsoftmaxweight(Vj(w), axis=1), soft)
    np.testing.assert_allclose((lazy * 500.0).logsumexp(axis=1)[:, 0], (500 * expected).max(1), rtol=1e-3)


def test_shapes_are_keops():
    x, y = LazyTensor(X[:, None, :]), LazyTensor(Y[None, :, :])
    assert x.shape == (M, 1, D) and y.shape == (1, N, D) and (x - y).shape == (M, N, D)
    K = (x - y).sqnorm2()
    assert K.shape == (M, N) and K._shape == (M, N, 1) and K.dim() == 3 and K.nbatchdims == 0
    assert (K.ni, K.nj, K.ndim, K.dtype, K.batchdims) == (M, N, 1, "float64", None)
    assert (x.axis, y.axis, Pm(P).axis, K.axis) == (0, 1, 2, None)


def test_products_with_vectors_and_matrices():
    expected, lazy = squares()
    b = data(N, 4)
    np.testing.assert_allclose(lazy @ b, expected @ b)
    np.testing.assert_allclose(lazy @ b[:, 0], expected @ b[:, 0])
    np.testing.assert_allclose(lazy.T @ X, expected.T @ X)
    np.testing.assert_allclose(lazy.t().matvec(X[:, 0]), expected.T @ X[:, 0])
    np.testing.assert_allclose(lazy.rmatvec(X[:, 0]), expected.T @ X[:, 0])
    assert lazy.T.T.shape == lazy.shape
    with pytest.raises(ValueError, match=r"v: expected 5 rows, as K has columns, got shape \(7, 3\)"):
        lazy @ X
    with pytest.raises(ValueError, match="K @ v: expected K of dim 1"):
        Vi(X) @ b


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_of_integers_take_the_kernels_dtype(dtype):
    lazy = (-Vi(X.astype(dtype)).sqdist(Vj(Y.astype(dtype)))).exp()
    n = Y.shape[0]
    for v in (np.arange(n), [*range(n)], np.arange(n) > 1):
        assert (lazy @ v).dtype == dtype
        np.testing.assert_array_equal(lazy @ v, lazy @ np.array(v, dtype))


def test_arrays_without_axes_take_the_points_dtype():
    squares = Vi(X.astype("f")).sqdist(Vj(Y.astype("f")))
    for scale in (np.array(0.5), np.array(2)):
        scaled = (squares * scale).sum(axis=1)
        assert scaled.dtype == np.float32
        np.testing.assert_array_equal(scaled, (squares * float(scale)).sum(axis=1))


def test_they_are_linear_operators_for_scipy():
    linalg = pytest.importorskip("scipy.sparse.linalg")
    K = (-Vi(X).sqdist(Vj(X))).exp()
    expected = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    operator = linalg.aslinearoperator(K)
    np.testing.assert_allclose(
        linalg.eigsh(operator, k=2, return_eigenvectors=False), np.linalg.eigvalsh(expected)[-2:], rtol=1e-8
    )
    x, b = X.astype("f"), data(M, seed=1)  # scipy's vectors are float64
    single = linalg.aslinearoperator((-Vi(x).sqdist(Vj(x))).exp())
    for product in (single.matvec(b), single.rmatvec(b), single.matmat(b[:, None])[:, 0]):
        assert product.dtype == np.float32
        np.testing.assert_allclose(product, expected @ b, rtol=1e-4, atol=1e-5)


def test_linear_systems():
    K = (-Vi(X).sqdist(Vj(X))).exp()
    matrix = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    b = data(M, 2)
    a = K.solve(Vi(b), alpha=0.5, eps=1e-10)
    np.testing.assert_allclose((matrix + 0.5 * np.eye(M)) @ a, b, atol=1e-8)
    np.testing.assert_allclose(K.solve(b, alpha=0.5, eps=1e-10), a)
    with pytest.warns(RuntimeWarning, match="residual's root mean square is .* after the last iteration"):
        K.solve(b, alpha=0.5, max_iterations=1)
    with pytest.raises(ValueError, match="not positive definite"):
        (-K).solve(b)


def test_batches_broadcast():
    x, y, s = data(2, 1, M, D), data(3, N, D), data(2, 1, 1)
    lazy = (LazyTensor(x[..., :, None, :]) - LazyTensor(y[..., None, :, :])) / LazyTensor(
        np.abs(s)[..., None, None, :]
    )
    expected = (x[..., :, None, :] - y[..., None, :, :]) / np.abs(s)[..., None, None, :]
    assert lazy.shape == (2, 3, M, N, D) and lazy.batchdims == (2, 3) and lazy.dim() == 5
    np.testing.assert_allclose(lazy.sum(axis=3), expected.sum(3))
    np.testing.assert_allclose(lazy.sum(axis=2), expected.sum(2))
    np.testing.assert_allclose(lazy.sqnorm2().argmin(axis=3)[..., 0], (expected**2).sum(-1).argmin(3))
    assert lazy.T.shape == (2, 3, N, M, D)
    K = lazy.sqnorm2()
    np.testing.assert_allclose(K @ data(N, 2), np.einsum("abmn,nd->abmd", (expected**2).sum(-1), data(N, 2)))
    np.testing.assert_allclose(K @ data(N), (expected**2).sum(-1) @ data(N))
    with pytest.raises(ValueError, match=r"expected 2 .rows. or 3 .columns., got 1"):
        lazy.sum(axis=1)


@pytest.mark.parametrize("m, n", [(1, 5), (7, 1), (1, 1), (0, 5), (7, 0), (0, 0)])
def test_few_or_no_rows_and_columns(m, n):
    x, y = X[:m], Y[:n]
    expected = ((x[:, None] - y) ** 2).sum(-1)
    for lazy in (Vi(x).sqdist(Vj(y)), LazyTensor(x[:, None, :]).sqdist(LazyTensor(y[None]))):
        assert lazy.shape == (m, n)
        np.testing.assert_allclose(lazy.sum(axis=1)[:, 0], expected.sum(1))
        np.testing.assert_allclose(lazy.sum(axis=0)[:, 0], expected.sum(0))
        np.testing.assert_allclose(lazy.min(axis=1)[:, 0], expected.min(1, initial=np.inf))
        np.testing.assert_array_equal(lazy.argmin(axis=1)[:, 0], expected.argmin(1) if n else [-1] * m)
        np.testing.assert_allclose(
            lazy.logsumexp(axis=1)[:, 0], np.log(np.exp(expected).sum(1)) if n else [-np.inf] * m
        )
        assert (lazy.Kmin(3, axis=1)[:, n:] == np.inf).all() and (lazy.argKmin(3, axis=1)[:, n:] == -1).all()
        np.testing.assert_array_equal(
            lazy.sumsoftmaxweight(Vj(np.ones((n, 2))), axis=1), np.ones((m, 2)) * (n > 0)
        )


def test_one_row_stays_a_variable():
    x = Vi(X[:1])
    assert x.axis == 0 and x.ni == 1
    assert LazyTensor(X[:1, None, :], axis=0).axis == 0
    with pytest.raises(ValueError, match=r"one has 1 rows .i., the other 7"):
        x - Vi(X)


def test_an_array_twice_is_read_once():
    x = Vi(X)
    reduced = (x.sqnorm2() + x.sqnorm2() * x[0]).sum(axis=1, call=False)
    assert len(reduced._function.inputs) == 1
    assert len((Vi(X) - Vj(X)).sum(axis=1, call=False)._function.inputs) == 2


def test_numbers_are_no_part_of_the_formula():
    first = (Vi(X) * 2.5).sum(axis=1, call=False)
    assert (Vi(Y) * 3.5).sum(axis=1, call=False)._function is first._function
    assert (Vi(Y) * 3).sum(axis=1, call=False)._function is not first._function


def test_symbolic_variables():
    squares = Vi(0, D).sqdist(Vj(1, D)) / Pm(2, 1) * Vj(Y)
    reduced = squares.sum(axis=1)
    expected = (((X[:, None] - 2 * Y) ** 2).sum(-1)[..., None] / 3.0 * Y).sum(1)
    np.testing.assert_allclose(reduced(X, 2 * Y, np.array([3.0])), expected)
    with pytest.raises(TypeError, match="expected 3 arrays, for the symbolic variables, got 1"):
        reduced(X)
    with pytest.raises(ValueError, match=r"numbered from 0 without gaps; \[0\] are missing"):
        (Vi(1, D) - Vj(Y)).sum(axis=1)
    np.testing.assert_allclose(LazyTensor((0, D, 0)).sqdist(LazyTensor((1, D, 1))).sum(axis=0)(X, Y)[:, 0],
                               ((X[:, None] - Y) ** 2).sum((0, 2)))  # fmt: skip


def test_print_says_what_will_be_done():
    K = (-Vi(X).sqdist(Vj(Y)) * 0.5).exp()
    assert "Exp((-SqDist(Var(0,3,0),Var(1,3,1)) * Var(2,1,2)))" in str(K)
    assert f"shape: {(M, N)}" in str(K)
    text = str(K.sum(axis=1, call=False))
    for part in (
        "formula: Exp(",
        "reduction: Sum (axis=1)",
        f"shape: ({M}, {N}, 1)",
        f"for i in 0 .. {M}",
        "exp(",
    ):
        assert part in text
    assert text.index("for i in") < text.index(f"for j in 0 .. {N}, or") < text.index("exp(")


def test_strides_of_all_kinds():
    x = np.asfortranarray(data(2 * M, 2 * D))[::-2, ::2]
    y = np.broadcast_to(data(D), (N, D))
    expected = ((x[:, None] - y) ** 2).sum(-1)
    np.testing.assert_allclose(Vi(x).sqdist(Vj(y)).sum(axis=1)[:, 0], expected.sum(1))
    swapped = x.astype(">f8")
    np.testing.assert_allclose(Vi(swapped).sqdist(Vj(y)).sum(axis=1)[:, 0], expected.sum(1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_stay(dtype):
    result = (Vi(X.astype(dtype)) - Vj(Y.astype(dtype))).sum(axis=1)
    assert result.dtype == dtype


def test_out():
    out = np.full((M, 1), np.nan)
    lazy = Vi(X).sqdist(Vj(Y))
    assert lazy.sum(axis=1, out=out) is out
    np.testing.assert_array_equal(out, lazy.sum(axis=1))
    with pytest.raises(ValueError, match=r"out: expected shape \(7, 1\), got \(7,\)"):
        lazy.sum(axis=1, out=np.zeros(M))
    with pytest.raises(TypeError, match="out: expected dtype float64, got float32"):
        lazy.sum(axis=1, out=np.zeros((M, 1), np.float32))


def test_mixed_operands_are_refused():
    with pytest.raises(TypeError, match=r"in sub of Var\(0,3,0\) and Var\(1,3,1\): one is of dtype float64, the"):
        Vi(X) - Vj(Y.astype(np.float32))
    with pytest.raises(ValueError, match=r"one has 5 columns .j., the other 7"):
        Vj(Y) + Vj(X)
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\), do not broadcast"):
        LazyTensor(data(3, M, 1, D)) - LazyTensor(data(2, M, 1, D))


def test_dims_that_do_not_go_name_both_operands():
    with pytest.raises(ValueError, match=r"Var\(0,3,0\) has 3 and Var\(1,2,1\) has 2"):
        Vi(X) - Vj(Y[:, :2])
    with pytest.raises(ValueError, match="expected operands of the same dim, got 3 and 1"):
        Vi(X) | Vj(Y[:, :1])
    with pytest.raises(ValueError, match=r"in Elem\(Var\(0,3,0\), 3\)"):
        Vi(X)[3]
    with pytest.raises(TypeError, match=r"'Var\(0,3,0\) < Var\(1,3,1\)' has a value for each pair"):
        bool(Vi(X) < Vj(Y))
    with pytest.raises(ValueError, match=r"in Elem\(Var\(0,3,0\), -1\)"):
        Vi(X)[-4]
    with pytest.raises(ValueError, match="along its last axis only"):
        Vi(X)[:, 0, :]
    with pytest.raises(ValueError, match="along its last axis only"):
        Vi(X)[..., 0, 1]


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: LazyTensor(X), ValueError, r"x: expected shape \(..., M, 1, D\)"),
        (lambda: LazyTensor(data(2, 3, 4)), ValueError, "x: expected shape"),
        (lambda: LazyTensor(X, axis=3), ValueError, "axis: expected 0, 1 or 2, got 3"),
        (lambda: LazyTensor(X[:, None], axis=1), ValueError, "axis: is 1, which an array of shape"),
        (lambda: LazyTensor("x"), TypeError, "x: expected an array, a number or a list of numbers, got str"),
        (lambda: LazyTensor(1j), TypeError, "x: expected real numbers"),
        (lambda: Vi(X.astype(int)), TypeError, "x: expected float32 or float64, got dtype int64"),
        (lambda: Vi(X.astype(complex)), TypeError, "x: expected float32 or float64, got dtype complex128"),
        (lambda: Vi(X[:, :0]), ValueError, "x: expected at least one feature"),
        (lambda: LazyTensor((1, 2)), ValueError, "x: expected three ints"),
        (lambda: Vi(-1, 3), ValueError, "expected an index of at least 0"),
        (lambda: LazyTensor([]), ValueError, "x: expected at least one number"),
        (lambda: Vi(X).sum(axis=5), ValueError, r"axis: expected 0 \(rows\) or 1 \(columns\), got 5"),
        (lambda: Vi(X).reduction("Som", axis=1), ValueError, "no reduction 'Som'; did you mean Sum"),
        (lambda: Vi(X).Kmin(0, axis=1), ValueError, "K: expected at least 1, as K of KMin, got 0"),
        (lambda: Vi(X).sum(axis=1, wrong=3), TypeError, "wrong: is no keyword of a reduction"),
        (lambda: Vi(X).sum(axis=1, backend="TPU"), ValueError, "backend: expected one of auto, CPU"),
        (lambda: Vi(X).sum(axis=1, sum_scheme="fast"), ValueError, "sum_scheme: expected one of auto"),
        (lambda: Vi(X).min(axis=1, precision="half"), ValueError, "precision: expected one of ieee, split"),
        (lambda: Vi(X).argmin(axis=1, precision=["f16"]), ValueError, "precision: expected .*, got .'f16'."),
        (lambda: Vi(X).solve(Vi(X), precision={}), ValueError, "precision: expected one of ieee.*, got {}"),
        (lambda: Vi(X).sum(axis=2, precision="f16"), TypeError, "precision: is no keyword of a reduction over f"),
        (lambda: Vi(X).mean(nonsense=1), TypeError, "nonsense: is no keyword of a reduction over features"),
        (lambda: Vi(X).min(axis=1, dtype_acc="float64"), ValueError, "dtype_acc: is for sums, not for min"),
        (lambda: Vi(X).sum(axis=1, dtype_acc="float32"), ValueError, "sums of float64 cannot be kept in float32"),
        (lambda: np.asarray(Vi(X)), TypeError, r"of shape \(7, 1, 3\) stores no numbers.*K.sum\(axis=1\)"),
        (lambda: np.sinh(Vi(X)), TypeError, "numpy.sinh: does not take a LazyTensor"),
        (lambda: np.add.reduce(Vi(X)), TypeError, "numpy.add.reduce: does not take"),
        (lambda: np.dot(X, Vi(X)), TypeError, "numpy.dot: does not take"),
        (lambda: X @ Vi(X), TypeError, r"v @ K: .* write K\.T @ v"),
        (lambda: Vi(X.astype(int)), TypeError, r"got dtype int64; convert it: x.astype\('float64'\)"),
        (lambda: Vi([1, 2]), ValueError, r"got \(2,\) with axis=0"),
        (lambda: (Vi(0, 1) * Vj(Y)).mean(axis=1), ValueError, "mean: takes arrays without ranges"),
        (lambda: (Vi(0, 1) * Vj(Y)).topk(2, axis=1), ValueError, "topk: takes arrays"),
        (lambda: Vi(X).exp1j(), NotImplementedError, "LazyTensor.exp1j: KeOps has it, upsweep has not"),
        (lambda: Vi(X).nothing, AttributeError, "no attribute 'nothing'"),
    ],
)  # fmt: skip
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_long_sums_of_expressions_need_no_deep_stack():
    lazy = Vi(X)
    total = lazy
    for _ in range(3000):
        total = total + lazy
    np.testing.assert_allclose(total.sum(axis=1), 3001 * X)
    assert total.T.shape == (1, M, D)
    assert copy.copy(total).shape == total.shape


def test_without_llvmlite_it_says_what_to_install():
    code = """
    import sys
    sys.modules["llvmlite"] = None
    import numpy as np
    from upsweep import Vi
    K = Vi(np.ones((3, 1)))
    print(K.shape)
    try:
        K.sum(axis=1)
    except ImportError as error:
        print(error)
    """
    assert 'pip install "upsweep[expr]"' in run_python(code)


def test_arrays_of_numpys_own_subclasses(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.testing.assert_array_equal(Vi(mapped).sqdist(Vj(Y)).sum(axis=1), Vi(X).sqdist(Vj(Y)).sum(axis=1))


def test_splines():
    interpolate = pytest.importorskip("scipy.interpolate")
    knots, x = np.sort(data(6)), np.linspace(-1, 1, M)[:, None]
    actual = dense(Pm(knots).bspline(Vi(x), 2))[:, 0]
    for n in range(3):
        basis = interpolate.BSpline.basis_element(knots[n : n + 4], extrapolate=False)
        np.testing.assert_allclose(actual[:, n], np.nan_to_num(basis(x[:, 0])), atol=1e-12)


def test_soft_alignments():
    """With a small gamma, the cost of the cheapest path through the table of squared distances."""

    def cheapest(a, b):
        costs = (a[:, None] - b) ** 2
        best = np.full((len(a) + 1, len(b) + 1), np.inf)
        best[0, 0] = 0
        for m in range(len(a)):
            for n in range(len(b)):
                best[m + 1, n + 1] = costs[m, n] + min(best[m, n], best[m, n + 1], best[m + 1, n])
        return best[-1, -1]

    actual = dense(Vi(X).softdtw_sqdist(Vj(Y), 1e-4))[..., 0]
    np.testing.assert_allclose(actual, [[cheapest(a, b) for b in Y] for a in X], atol=1e-3)
