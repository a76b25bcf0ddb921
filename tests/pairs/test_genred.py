"""Genred, generic_* and KernelSolve: formulas that are text, against numpy and against LazyTensor."""

import copy
import pickle
import re
import sys
import types
from unittest import mock

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
from upsweep.pairs import kernel_solve

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


@pytest.mark.parametrize("duplicate", [lambda each: pickle.loads(pickle.dumps(each)), copy.deepcopy])
def test_copies_and_pickles(duplicate):
    gaussian = Genred("Exp(-g * SqDist(x, y)) * b", ALIASES, axis=1)
    expected = gaussian(X, Y, B, G)  # a copy of what has compiled code
    np.testing.assert_array_equal(duplicate(gaussian)(X, Y, B, G), expected)
    solve = KernelSolve("Exp(-SqDist(x, y)) * a", ["x = Vi(3)", "y = Vj(3)", "a = Vj(1)"], "a", 1)
    a = solve(X, X, X[:, :1], alpha=1.0)
    np.testing.assert_array_equal(duplicate(solve)(X, X, X[:, :1], alpha=1.0), a)


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
        (
            lambda: Genred("x", ["x = Vi(3)"], precision="fp8"),
            ValueError,
            "precision: expected one of ieee, split, tf32, f16, got 'fp8'",
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
    with pytest.warns(
        RuntimeWarning, match="rounding of float32 lets it get no smaller; raise eps, pass arrays of f"
    ):
        a = solve(x, x, b, np.array([50.0], "f"), alpha=0.01, eps=1e-9)
    np.testing.assert_allclose(a, np.linalg.solve(matrix, b), rtol=1e-3, atol=1e-2)
    a = solve(x, x, b, np.array([50.0], "f"), alpha=0.01, eps=1e-3)
    np.testing.assert_allclose(matrix @ a, b, atol=2e-2)


def gaussian(x):
    """A kernel of close points, which is singular but for alpha, and its matrix."""
    squares = ((x[..., :, None, :] - x[..., None, :, :]) ** 2).sum(-1)
    i, j = Vi(x[..., :, None, :]), Vj(x[..., None, :, :])
    return (-i.sqdist(j)).exp(), np.exp(-squares)


@pytest.mark.parametrize("shape, dim", [((300, 2), 1), ((300, 2), 3), ((2, 150, 1), 2)])
def test_systems_that_take_conjugate_gradients_long_are_solved_densely(shape, dim):
    x, b = 0.5 * data(*shape), data(*shape[:-1], dim, seed=1)
    kernel, matrix = gaussian(x)
    matrix += 1e-8 * np.eye(shape[-2])
    a, info = kernel.solve(b, alpha=1e-8, return_info=True)
    assert info.method == "dense" and info.n_products <= 100 and info.residual < 1e-6
    np.testing.assert_allclose(matrix @ a, b, atol=1e-5)
    a, info = kernel.solve(b, alpha=10.0, return_info=True)
    assert info.method == "conjugate gradients" and 0 < info.n_products < 100 and info.residual < 1e-6
    np.testing.assert_allclose(matrix @ a + 10.0 * a, b, atol=1e-4)


def test_systems_of_many_right_hand_sides_are_solved_densely_at_once():
    """Hazard: n / 8 products with 100 vectors take several times as long as a factorization."""
    x, b = data(200, 2), data(200, 100, seed=1)
    kernel, matrix = gaussian(x)
    a, info = kernel.solve(b, alpha=1.0, return_info=True)
    assert info.method == "dense" and info.n_products == 0
    np.testing.assert_allclose(matrix @ a + a, b, atol=1e-8)
    assert kernel.solve(b[:, :1], alpha=10.0, return_info=True)[1].method == "conjugate gradients"
    with pytest.raises(ValueError, match="the arrays or their kernel have NaN"):
        (kernel * np.nan).solve(b)
    with pytest.raises(ValueError, match=r"b: expected shape \(2, 200, 100\), as the sum has, got \(200, 100\)"):
        gaussian(data(2, 200, 2))[0].solve(b)
    with pytest.raises(ValueError, match=r"alpha on its diagonal is singular, .* raise alpha"):
        gaussian(np.zeros((200, 2)))[0].solve(b, alpha=0.0)


def test_unknowns_of_rows_and_formulas_that_are_no_product_are_solved_densely():
    x, b = 0.5 * data(200, 2), data(200, 1, seed=1)
    matrix = gaussian(x)[1] + 1e-8 * np.eye(200)
    for formula, axis in (("a * Exp(-SqDist(x, y))", 0), ("Exp(-SqDist(x, y)) * a * IntCst(1)", 0)):
        solve = KernelSolve(formula, ["x = Vi(2)", "y = Vj(2)", "a = Vi(1)"], "a", axis)
        a, info = solve(x, x, b, alpha=1e-8, return_info=True)
        assert info.method == "dense"
        np.testing.assert_allclose(matrix @ a, b, atol=1e-5)


def test_features_that_a_matrix_mixes_are_solved_by_conjugate_gradients():
    solve = KernelSolve(
        "Exp(-SqDist(x, y)) * a + (a | a0) * a0", ["x = Vi(2)", "y = Vj(2)", "a = Vj(2)", "a0 = Pm(2)"], "a", 1
    )
    x, b = 0.5 * data(60, 2), data(60, 2, seed=1)
    with pytest.warns(RuntimeWarning, match="rounding of float64 lets it get no smaller; raise eps, or raise a"):
        _, info = solve(x, x, b, np.ones(2), alpha=1e-13, eps=1e-9, return_info=True)
    assert info.method == "conjugate gradients"


def test_the_warning_points_at_the_line_of_the_call():
    x = data(30, 2)
    message = "above eps=1e-06, after the last iteration; raise max_iterations, or raise alpha"
    with pytest.warns(RuntimeWarning, match=message) as all:
        gaussian(x)[0].solve(x, max_iterations=1)
        KernelSolve("x * a", ["x = Vi(1)", "a = Vj(1)"], "a", 1)(x[:, :1] ** 2, x[:, :1], max_iterations=1)
    assert [each.filename for each in all] == [__file__] * 2


def test_long_solutions_show_their_progress(monkeypatch, capsys):
    monkeypatch.setattr(kernel_solve, "_PROGRESS_DELAY", 0.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    x = data(30, 2)
    gaussian(x)[0].solve(x, alpha=0.1)
    assert re.match(
        r"conjugate gradients: 1 of at most 38, residual .*, eps 1e-06 \(silenced by progress=False\)\n$",
        capsys.readouterr().err,
    )
    gaussian(x)[0].solve(x, alpha=0.1, progress=False)
    assert capsys.readouterr().err == ""


def test_long_solutions_show_their_progress_by_tqdm(monkeypatch, capsys):
    bar = mock.Mock()
    tqdm = types.SimpleNamespace(tqdm=mock.Mock(return_value=bar))
    monkeypatch.setattr(kernel_solve, "_PROGRESS_DELAY", 0.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: tqdm)
    monkeypatch.setitem(sys.modules, "tqdm.auto", tqdm)
    gaussian(data(30, 2))[0].solve(data(30, 2), alpha=0.1)
    tqdm.tqdm.assert_called_once_with(desc="conjugate gradients", total=38, leave=False)
    assert bar.n > 1 and "eps 1e-06" in bar.set_postfix_str.call_args.args[0]
    bar.close.assert_called_once_with()
    assert capsys.readouterr().err == ""


def test_the_method_is_that_of_the_solution():
    """A singular system in float32: the dense solution, rounded to float32, is worse than no step at all."""
    x, b = data(300, 1).astype("f"), data(300, 1, seed=1).astype("f")
    with pytest.warns(RuntimeWarning, match="rounding of float32"):
        a, info = gaussian(x)[0].solve(b, alpha=1e-10, return_info=True)
    residual = b - gaussian(x.astype(float))[1] @ a
    assert info.method == "conjugate gradients"
    np.testing.assert_allclose(info.residual, np.sqrt((residual**2).mean()), rtol=1e-3)


def test_what_a_recurrence_got_wrong_is_solved_again():
    matrix, b, calls = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([[1.0], [2.0]]), []

    def apply(a):
        calls.append(a)
        return (1.01 if len(calls) <= 2 else 1.0) * (matrix @ a)

    np.testing.assert_allclose(matrix @ kernel_solve.Solver(apply, None, 1e-12)(b), b, atol=1e-11)


@pytest.mark.parametrize("option", ["dtype", "cuda_type"])
def test_options_that_name_a_dtype_have_no_effect(option):
    aliases = ["x = Vi(1)", "y = Vj(1)", "a = Vj(1)"]
    x = np.array([[0.0], [1.0]])
    for value in ("float32", "double", "auto", None):
        product = Genred("Exp(-SqDist(x, y)) * a", aliases, axis=1, **{option: value})
        solve = KernelSolve("Exp(-SqDist(x, y)) * a", aliases, "a", axis=1, **{option: value})
        solution = solve(x, x, x, alpha=1.0)
        assert solution.dtype == np.float64
        np.testing.assert_allclose(product(x, x, solution) + solution, x, atol=1e-6)
    for kind in (Genred, KernelSolve):
        more = ("a",) if kind is KernelSolve else ()
        with pytest.raises(ValueError, match=rf"^{option}: expected None or one of 'auto', .* got 'float8'"):
            kind("Exp(-SqDist(x, y)) * a", aliases, *more, axis=1, **{option: "float8"})
