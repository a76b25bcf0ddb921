"""Genred, generic_* and KernelSolve: formulas that are text, against numpy and against LazyTensor."""

import numpy as np
import pytest
from upsweep import (
    BlockRanges,
    Genred,
    KernelSolve,
    Vi,
    Vj,
    generic_argkmin,
    generic_argmin,
    generic_logsumexp,
    generic_sum,
)

M, N, D = 7, 5, 3


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


X, Y, B, G = data(M, D), data(N, D, seed=1), data(N, 2, seed=2), np.array([0.7])
ALIASES = ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)", "g = Pm(1)"]
SQUARES = ((X[:, None] - Y) ** 2).sum(-1)
KERNEL = np.exp(-0.7 * SQUARES)


@pytest.mark.parametrize(
    "formula, aliases",
    [
        ("Exp(-g * SqDist(x, y)) * b", ALIASES),
        ("Exp(-g*SqNorm2(x-y))*b", ["x=Vi(0,3)", "y=Vj(1,3)", "b=Vj(2,2)", "g=Pm(3,1)"]),
        ("Exp(-Var(3,1,2) * SqDist(Var(0,3,0), Var(1,3,1))) * Var(2,2,1)", []),
        ("Exp(-Var(3,1,2) * SqDist(x, y)) * Var(2,2,1)", ["x = Vi(3)", "y = Vj(3)"]),
    ],
)
def test_ways_to_write_a_formula(formula, aliases):
    np.testing.assert_allclose(Genred(formula, aliases, axis=1)(X, Y, B, G), KERNEL @ B)


def test_axis_0_is_the_default():
    result = Genred("Exp(-g * SqDist(x, y)) * x", ["x = Vi(3)", "y = Vj(3)", "g = Pm(1)"])(X, Y, G)
    np.testing.assert_allclose(result, KERNEL.T @ X)


@pytest.mark.parametrize("axis", [0, 1])
def test_every_reduction(axis):
    lazy = Vi(X).sqdist(Vj(Y))
    both = {
        "Min": lazy.min(axis=axis), "Max": lazy.max(axis=axis), "ArgMin": lazy.argmin(axis=axis),
        "ArgMax": lazy.argmax(axis=axis), "Min_ArgMin": lazy.min_argmin(axis=axis), "MaxArgMax":
        lazy.max_argmax(axis=axis), "LogSumExp": lazy.logsumexp(axis=axis),
    }  # fmt: skip
    for name, expected in both.items():
        actual = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], name, axis)(X, Y)
        for own, other in zip(np.atleast_1d(actual), np.atleast_1d(expected)):
            np.testing.assert_array_equal(own, other)
    for name, method in (("KMin", lazy.Kmin), ("ArgKMin", lazy.argKmin), ("KMin_ArgKMin", lazy.Kmin_argKmin)):
        actual = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], name, axis, opt_arg=3)(X, Y)
        np.testing.assert_array_equal(actual, method(3, axis=axis))


def test_weights():
    w = B**2
    aliases = ["x = Vi(3)", "y = Vj(3)", "w = Vj(2)"]
    total = Genred("-SqDist(x, y)", aliases, "LogSumExp", 1, formula2="w")(X, Y, w)
    np.testing.assert_allclose(total, np.log(np.exp(-SQUARES) @ w))
    np.testing.assert_array_equal(
        total, Genred("-SqDist(x, y)", aliases, "LogSumExpWeight", 1, formula2="w")(X, Y, w)
    )
    soft = Genred("-SqDist(x, y)", aliases, "SumSoftMaxWeight", 1, formula2="w")(X, Y, w)
    np.testing.assert_allclose(soft, np.exp(-SQUARES) @ w / np.exp(-SQUARES).sum(1, keepdims=True))


def test_generic_names():
    aliases = "x = Vi(3)", "y = Vj(3)"
    np.testing.assert_allclose(generic_sum("SqDist(x, y)", "a = Vj(1)", *aliases)(X, Y)[:, 0], SQUARES.sum(0))
    total = generic_logsumexp("SqDist(x, y)", "a = Vi(1)", *aliases)(X, Y)
    np.testing.assert_allclose(total[:, 0], np.log(np.exp(SQUARES).sum(1)))
    np.testing.assert_array_equal(
        generic_argmin("SqDist(x, y)", "a = Vi(1)", *aliases)(X, Y)[:, 0], SQUARES.argmin(1)
    )
    nearest = generic_argkmin("SqDist(x, y)", "a = Vi(4)", *aliases)(X, Y)
    np.testing.assert_array_equal(nearest, SQUARES.argsort(1)[:, :4])
    with pytest.raises(ValueError, match="output: expected Vi or Vj"):
        generic_sum("SqDist(x, y)", "a = Pm(1)", *aliases)


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_batches(batch):
    x, y, g = (
        data(*batch, M, D),
        data(*batch[1:], N, D, seed=1),
        np.abs(data(*batch[:1], *(1,) * (len(batch) - 1), 1)),
    )
    result = Genred("Exp(-g * SqDist(x, y))", ["x = Vi(3)", "y = Vj(3)", "g = Pm(1)"], axis=1)(x, y, g)
    squares = ((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1)
    np.testing.assert_allclose(result[..., 0], np.exp(-g[..., None] * squares).sum(-1))
    one = Genred("Exp(-g * SqDist(x, y))", ["x = Vi(3)", "y = Vj(3)", "g = Pm(1)"], axis=1)(x, y, np.array([0.7]))
    np.testing.assert_allclose(one[..., 0], np.exp(-0.7 * squares).sum(-1))


def test_known_shapes_are_still_checked_for_dtype_and_kind():
    reduce = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], axis=1)
    for _ in range(2):
        reduce(X, Y)
    for x in (X.astype(np.float32), X[:, :2], X.astype(int)):
        with pytest.raises((TypeError, ValueError)):
            reduce(x, Y)
    np.testing.assert_allclose(reduce(X[:3], Y)[:, 0], SQUARES[:3].sum(1))
    np.testing.assert_allclose(reduce(X, Y)[:, 0], SQUARES.sum(1))


def test_gradients():
    value, gradients = Genred("Exp(-g * SqDist(x, y)) * b", ALIASES, axis=1).value_and_grad(X, Y, B, G)
    np.testing.assert_allclose(value, KERNEL @ B)
    np.testing.assert_allclose(gradients[2], np.repeat(KERNEL.sum(0)[:, None], 2, 1))
    np.testing.assert_allclose(gradients[3], [-(SQUARES * KERNEL * B.sum(1)).sum()])
    _, (only,) = Genred("Exp(-g * SqDist(x, y)) * b", ALIASES, axis=1).value_and_grad(X, Y, B, G, wrt=[2])
    np.testing.assert_array_equal(only, gradients[2])


def test_gradients_in_the_formula():
    formula = "Grad(Exp(-SqDist(x, y)), x, e)"
    result = Genred(formula, ["x = Vi(3)", "y = Vj(3)", "e = Vi(1)"], axis=1)(X, Y, np.ones((M, 1)))
    _, (expected, _) = Genred("Exp(-SqDist(x, y))", ["x = Vi(3)", "y = Vj(3)"], axis=1).value_and_grad(X, Y)
    np.testing.assert_allclose(result, expected)


def test_ranges():
    ranges = BlockRanges.causal(M, N, block=2)
    result = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], axis=1)(X, Y, ranges=tuple(ranges))
    np.testing.assert_allclose(result[:, 0], (SQUARES * ranges.to_mask()).sum(1))


def test_solving():
    aliases = ["x = Vi(3)", "y = Vj(3)", "a = Vj(2)", "g = Pm(1)"]
    b = data(M, 2)
    matrix = np.exp(-0.7 * ((X[:, None] - X) ** 2).sum(-1)) + 0.2 * np.eye(M)
    for axis, formula in ((1, "Exp(-g * SqDist(x, y)) * a"),):
        a = KernelSolve(formula, aliases, "a", axis)(X, X, b, G, alpha=0.2, eps=1e-10)
        np.testing.assert_allclose(matrix @ a, b, atol=1e-8)
    solve = KernelSolve("Exp(-g * SqDist(x, y)) * a", aliases, "a", 1)
    np.testing.assert_array_equal(solve(X, X, 0 * b, G), 0 * b)
    with pytest.warns(RuntimeWarning, match="above eps=.* after the last iteration"):
        solve(X, X, b, G, alpha=0.2, max_iterations=2)
    with pytest.raises(ValueError, match="varinvalias: expected one of x, y, a, g, got 'c'"):
        KernelSolve("Exp(-g * SqDist(x, y)) * a", aliases, "c")
    with pytest.raises(ValueError, match="alpha: expected at least 0"):
        solve(X, X, b, G, alpha=-1)


def test_print_says_what_will_be_done():
    text = str(Genred("Exp(-g * SqDist(x, y)) * b", ALIASES, axis=1))
    assert "inputs: Vi(3), Vj(3), Vj(2), Pm(1)" in text and "for i in 0 .. M" in text


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: Genred("Exq(x)", ["x = Vi(3)"]), ValueError, "did you mean Exp"),
        (lambda: Genred("Exp(z)", ["x = Vi(3)"]), ValueError, "'z' is not the name of an alias"),
        (
            lambda: Genred("x - y", ["x = Vi(3)", "y = Vj(2)"]),
            ValueError,
            r"Var\(0,3,0\) has 3 and Var\(1,2,1\) has 2",
        ),
        (lambda: Genred("x", ["x = Vz(3)"]), ValueError, "aliases: 'x = Vz"),
        (lambda: Genred("x", ["x = Vi(3)"], "Sums"), ValueError, "no reduction 'Sums'; did you mean Sum"),
        (lambda: Genred("x", ["x = Vi(3)"], "LogSumExp"), ValueError, "logsumexp takes a formula of dim 1, not 3"),
        (lambda: Genred("x", ["x = Vi(3)"], axis=2), ValueError, "axis: expected 0 or 1, got 2"),
        (lambda: Genred("x", ["x = Vi(3)"], "KMin"), ValueError, "opt_arg: expected at least 1, as K of KMin"),
        (lambda: Genred("x[0]", ["x = Vi(3)"], "SumSoftMaxWeight"), ValueError, "takes a weight"),
        (lambda: Genred("x + Var(3,3,1)", ["x = Vi(3)"]), ValueError, "declare what is before"),
        (
            lambda: Genred("x", ["x = Vi(3)"], dtype_acc="float64", use_double_acc=True),
            ValueError,
            "use_double_acc",
        ),
        (lambda: Genred("x", ["x = Vi(3)"])(), TypeError, r"expected 1 arrays, x = Vi\(3\), got 0"),
        (lambda: Genred("x", ["x = Vi(3)"])(X, X), TypeError, r"expected 1 arrays, x = Vi\(3\), got 2"),
        (lambda: Genred("x", ["x = Vi(3)"])(X[0]), ValueError, r"x: expected shape \(n, dim\), got \(3,\)"),
        (lambda: Genred("x", ["x = Vi(3)"])(X[:, :2]), ValueError, "x: expected 3 features"),
        (lambda: Genred("x - y", ["x = Vi(3)", "y = Vi(3)"])(X, Y), ValueError, "y: has 5 rows, and x has 7"),
        (
            lambda: Genred("x", ["x = Vi(3)"])(X.astype(int)),
            TypeError,
            "x: expected float32 or float64, got int64",
        ),
        (
            lambda: Genred("x - y", ["x = Vi(3)", "y = Vj(3)"])(X, Y.astype("f")),
            TypeError,
            "y: is of dtype float32, and x of float64",
        ),
        (
            lambda: Genred("x - y", ["x = Vi(3)", "y = Vj(3)"])(data(2, M, D), data(3, N, D)),
            ValueError,
            r"y: batch dimensions \(3,\) do not go with",
        ),
        (lambda: Genred("x", ["x = Vi(3)"])(X, backend="TPU"), ValueError, "backend: expected one of auto"),
        (lambda: Genred("x", ["x = Vi(3)"])(X, ranges=3), TypeError, "ranges: expected None, six arrays"),
        (
            lambda: Genred("x", ["x = Vi(3)"])(X.astype(np.float16)),
            TypeError,
            "x: float16 is reduced on CUDA only; convert to float32",
        ),
        (lambda: Genred("x", ["x = Vi(3)"])("abc"), TypeError, "x: expected real or complex numbers"),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_solving_in_float32_ends_where_rounding_does():
    """The residual's recurrence falls on and on, the residual does not."""
    rng = np.random.default_rng(0)
    x, b = rng.random((500, 2)).astype("f"), rng.random((500, 2)).astype("f")
    solve = KernelSolve("Exp(-g * SqDist(x, y)) * a", ["x=Vi(2)", "y=Vj(2)", "a=Vj(2)", "g=Pm(1)"], "a", 1)
    matrix = np.exp(-50.0 * ((x[:, None].astype(float) - x) ** 2).sum(-1)) + 0.01 * np.eye(500)
    with pytest.warns(RuntimeWarning, match="rounding lets it get no smaller"):
        a = solve(x, x, b, np.array([50.0], "f"), alpha=0.01, eps=1e-9)
    np.testing.assert_allclose(a, np.linalg.solve(matrix, b), rtol=1e-3, atol=1e-2)
    a = solve(x, x, b, np.array([50.0], "f"), alpha=0.01, eps=1e-3)
    np.testing.assert_allclose(matrix @ a, b, atol=2e-2)


def test_what_a_recurrence_got_wrong_is_solved_again():
    from upsweep.pairs.kernel_solve import conjugate_gradients

    matrix, b, calls = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([[1.0], [2.0]]), []

    def apply(a):
        calls.append(a)
        return (1.01 if len(calls) <= 2 else 1.0) * (matrix @ a)

    np.testing.assert_allclose(matrix @ conjugate_gradients(apply, b, 1e-12, None), b, atol=1e-11)
