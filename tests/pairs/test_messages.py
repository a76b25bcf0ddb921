"""Errors name the arguments as the caller does, and are raised before any computation."""

import re

import numpy as np
import pytest
import upsweep
from upsweep import Genred, LazyTensor, Pm, Vi, Vj

X, Y = np.ones((5, 3)), np.ones((7, 3))


def test_symbolic_variables_are_printed_before_the_formula_is_complete():
    assert str(Vj(1, 3)).splitlines()[1:3] == ["    formula: Var(1,3,1)", "    Var(1,3,1): symbolic"]
    mixed = str(Vj(1, 3) - LazyTensor(X[:, None]))
    assert "formula: Var(1,3,1) - Var(2,3,0)" in mixed and "Var(2,3,0): array of shape (5, 3)" in mixed


def test_dims_of_symbolic_variables_are_compared():
    with pytest.raises(ValueError, match=r"Var\(1,3,0\) has 3 and Var\(2,2,1\) has 2"):
        Vi(1, 3) + Vj(2, 2)
    with pytest.raises(ValueError, match=r"Var\(1,3,0\) \| Var\(2,2,1\)"):
        Vi(1, 3) | Vj(2, 2)
    with pytest.raises(ValueError, match="without gaps"):
        Vj(1, 3).sum(axis=1)


def test_two_operands_have_two_names():
    with pytest.raises(ValueError, match=r"add of Var\(0,3,0\) and Var\(1,3,0\): one has 5 rows"):
        Vi(X) + Vi(Y)


def test_the_nearest_method_is_suggested():
    with pytest.raises(AttributeError, match="did you mean sqnorm2"):
        Vi(X).sqnrom2()
    assert not hasattr(Vi(X), "_sqnorm2")
    with pytest.raises(AttributeError, match=r"no attribute 'squeezed'$"):  # none is near
        Vi(X).squeezed()


def test_what_only_keops_has_is_refused_by_name():
    with pytest.raises(AttributeError, match="'ComplexLazyTensor', which KeOps has; write real and imaginary"):
        upsweep.ComplexLazyTensor  # noqa: B018  # it raises
    assert not hasattr(upsweep, "ComplexLazyTensor")


def test_features_are_chosen_by_integers_of_numpy_too():
    x = np.random.default_rng(0).normal(size=(5, 3))
    one, two = np.int64(1), np.int32(2)
    for chosen in (Vi(x)[one], Vi(x).elem(one), Vi(x)[one:two], Vi(x).extract(one, one), Vi(x)[-two]):
        np.testing.assert_array_equal(chosen.sum(axis=1), x[:, 1:2])
    with pytest.raises(ValueError, match=r"integers and slices, got 1\.5"):
        Vi(x)[1.5]


VECTOR = r"7 numbers is 7 parameters of each pair; .* column write Vj\(w\[:, None\]\), of each row Vi\(w"


@pytest.mark.parametrize(
    "use",
    [
        lambda d, w: d * w, lambda d, w: w * d, lambda d, w: d * list(w), lambda d, w: d.clamp(0, w),
        lambda d, w: d.sqdist(w), lambda d, w: d.logsumexp(weight=w, axis=1),
        lambda d, w: d.sumsoftmaxweight(w, axis=0), lambda d, w: d.t() - w,
    ],
)  # fmt: skip
def test_vectors_of_rows_or_columns_are_no_parameters(use):
    """Hazard: each pair gets a vector of results, and nothing tells."""
    with pytest.raises(ValueError, match=VECTOR):
        use(Vi(X).sqdist(Vj(Y)), np.ones(7))


@pytest.mark.parametrize("n, nones", [(3, 3), (2, 4)])
def test_vectors_of_batches_are_no_parameters(n, nones):
    x, y, w = np.ones((2, 3, 5, 1, 2)), np.ones((2, 3, 1, 7, 2)), np.arange(n) + 1.0
    squares = LazyTensor(x).sqdist(LazyTensor(y) * 3)
    remedy = "w[:" + ", None" * nones + "]"
    with pytest.raises(ValueError, match=re.escape(f"for one number per batch write LazyTensor({remedy})")):
        squares * w
    weighted = (squares * LazyTensor(eval(remedy))).sum(axis=3)
    assert weighted.shape == (2, 3, 5, 1)
    np.testing.assert_array_equal(weighted, np.broadcast_to(56.0 * eval(remedy)[..., 0], weighted.shape))


def test_vectors_that_are_parameters():
    squares = Vi(X).sqdist(Vj(Y))
    assert (squares * np.ones(4)).shape == (5, 7, 4) and (squares * Pm(np.ones(7))).shape == (5, 7, 7)
    assert (Vi(Y[:5, [0] * 7]) * np.ones(7)).shape == (5, 1, 7)


@pytest.mark.parametrize("kind", ["DataFrame", "Series"])
def test_labelled_arrays_are_refused(kind):
    frame = pytest.importorskip("pandas").DataFrame(X)
    labelled = frame if kind == "DataFrame" else frame[0]
    remedy = rf"without labels, got a pandas\.{kind}; pass x\.to_numpy\(\)"
    for call in (lambda: Vi(labelled), lambda: Vi(X).sum() * labelled, lambda: SQUARES(labelled, Y)):
        with pytest.raises(TypeError, match=remedy):
            call()
    with pytest.raises(TypeError, match=rf"v: .*got a pandas\.{kind}; pass v\.to_numpy"):
        KERNEL @ labelled


KERNEL = (-Vi(X).sqdist(Vj(X * 1.0))).exp()
SQUARES = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], axis=1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Vi(X).sqdist(Vj(Y)).Kmin(1.5, axis=1), TypeError, r"K: expected an integer, got 1\.5"),
        (lambda: Vi(X).sqdist(Vj(Y)).min(1.5), TypeError, r"axis: expected an integer, got 1\.5"),
        (lambda: Genred("x", ["x = Vi(3)"], "KMin", opt_arg=2.5), TypeError, r"opt_arg: expected an integer"),
        (lambda: Genred("x", "x = Vi(3)"), TypeError, "aliases: expected a sequence of str"),
        (
            lambda: Genred("x", ["x = Vi(1)"])(X[:, 0]),
            ValueError,
            r"x: expected .*, got \(5,\); write x\[:, None\]",
        ),
        (
            lambda: Genred("g", ["g = Pm(1)"])(1.0),
            ValueError,
            r"g: expected shape \(dim,\), got \(\); write \[x\]",
        ),
        (lambda: np.linalg.norm(KERNEL), ValueError, "norms are over the features, axis 2 or -1, got None"),
        (lambda: SQUARES(X, Y, device_id="a"), TypeError, "device_id: expected an integer, got 'a'"),
        (lambda: SQUARES.value_and_grad(X, Y, wrt=[2]), ValueError, "wrt: expected places of inputs, from 0 to 1"),
        (lambda: SQUARES.value_and_grad(X, Y, wrt=[-1]), ValueError, "wrt: expected places of inputs, from 0"),
        (lambda: SQUARES.value_and_grad(X, Y, wrt=["x"]), TypeError, "wrt: expected an integer, got 'x'"),
        (lambda: SQUARES.value_and_grad(X, Y, wrt=1), TypeError, "wrt: expected a sequence"),
        (
            lambda: KERNEL.solve(X[:, 0]),
            ValueError,
            r"other: expected an array of shape \(..., M, D\), got \(5,\); write K.solve\(b\[:, None\]\)",
        ),
        (
            lambda: KERNEL.solve(Y),
            ValueError,
            r"in solve of .* and Var\(2,3,0\): one has 5 rows \(i\), the other 7",
        ),
        (
            lambda: (-Vi(X).sqdist(Vj(Y))).exp().solve(X),
            ValueError,
            r"other: has 5 rows, and the matrix is of shape",
        ),
        (
            lambda: Vi(X[:, 0]),
            ValueError,
            r"got \(5,\) with axis=0; write x\[:, None\] for one number in each row",
        ),
        (lambda: Vi(X) - Y, ValueError, r"got \(7, 3\); write Vi\(x\) for rows, Vj\(x\) for columns"),
        (lambda: Pm(X), ValueError, r"got \(5, 3\) with axis=2; parameters are one vector, rows are Vi"),
        (lambda: KERNEL @ KERNEL, TypeError, r"v: .*got LazyTensor; .* is \(K \* v\).sum\(axis=1\)"),
        (
            lambda: KERNEL & 1,
            TypeError,
            r"&: expected comparisons of LazyTensors, got Exp.*; compare it, as in \(x > 0\)",
        ),
        (lambda: (KERNEL < 1) | KERNEL, TypeError, r"\|: expected comparisons of LazyTensors, got Exp"),
        (lambda: np.logical_or(KERNEL, KERNEL), TypeError, r"\|: expected comparisons"),
        (lambda: ~KERNEL, TypeError, "~: expected comparisons"),
        (lambda: 0 < KERNEL < 1, TypeError, r"neither true nor false; combine comparisons by &, \| and ~"),
        (lambda: list(KERNEL), TypeError, "'LazyTensor' object is not iterable"),
        (
            lambda: np.where(True, KERNEL, 1),
            TypeError,
            r"does not take a LazyTensor; write \(x < y\).ifelse\(a, b\)",
        ),
        (lambda: np.maximum(KERNEL, 1), TypeError, r"write \(x < y\).ifelse\(y, x\)"),
        (lambda: np.arcsinh(KERNEL), TypeError, "does not take a LazyTensor, whose functions are its methods"),
        (lambda: np.median(KERNEL), TypeError, r"write x\.Kmin\(n // 2 \+ 1, axis=1\)"),
        (lambda: np.expm1(KERNEL), TypeError, r"write x\.exp\(\) - 1"),
        (lambda: KERNEL.masked_fill(KERNEL < 1, 0), AttributeError, r"write \(x < y\)\.ifelse\(value, x\)"),
        (lambda: KERNEL.sum(axis=1, keepdims=False), ValueError, r"keepdims: results keep .* write \[\.\.\., 0\]"),
        (lambda: np.sum(KERNEL, axis=1, keepdims=False), ValueError, "keepdims: results keep the last axis"),
        (lambda: KERNEL // 0.5, TypeError, r"//: is not defined for LazyTensors; write \(x / y\)\.floor\(\)"),
        (lambda: np.floor_divide(1.0, KERNEL), TypeError, r"write \(x / y\)\.floor\(\)"),
        (lambda: np.ones(5) @ KERNEL, TypeError, r"write K\.T @ v"),
        (lambda: KERNEL.clamp(), TypeError, "clamp: expected min, max or both, got none"),
        (lambda: Vi(X).norm(-1, p=3), ValueError, r"p: expected 1 or 2, got 3; write \(x\.abs\(\)\*\*p\)"),
        (lambda: len(KERNEL), TypeError, r"no length; its shape is \(5, 5\)"),
        (lambda: float(KERNEL), TypeError, r"of shape \(5, 5\) is no number: reduce it"),
        (lambda: KERNEL * np.ones((1, 5)), ValueError, r"write Vj\(x\.T\), or x\[None, :, None\]"),
        (lambda: Vi(np.ones((2, 5, 3))), ValueError, r"write LazyTensor\(x\[\.\.\., :, None, :\]\) for a batch"),
        (lambda: Vj(np.ones((2, 5, 3))), ValueError, r"write LazyTensor\(x\[\.\.\., None, :, :\]\) for a batch"),
        (
            lambda: KERNEL * Pm(np.ones(1, "f")),
            TypeError,
            r"the other of float32; convert one \(here an array of shape \(1,\) and dtype float32\)",
        ),
        (lambda: KERNEL.argsort(), AttributeError, r"no argsort; write x\.Kmin_argKmin\(K, axis=1\)"),
        (lambda: KERNEL.norm(axis=1), ValueError, r"norms are over the features, .* write \(x\*\*2\).sum"),
        (lambda: KERNEL.topk(2), ValueError, r"axis: expected 0 \(rows\) or 1 \(columns\), got none"),
        (lambda: KERNEL.solve(X * np.nan), ValueError, "b: has NaN, infinite or overflowing values"),
        (lambda: (KERNEL * np.nan).solve(X), ValueError, "the arrays or their kernel have NaN or infinite values"),
        (lambda: KERNEL.solve(X, eps=-1), ValueError, "eps: expected at least 0, got -1"),
        (lambda: KERNEL.solve(X, max_iterations=0), ValueError, "max_iterations: expected at least 1, got 0"),
        (lambda: KERNEL.solve(X, max_iterations=1.5), TypeError, "max_iterations: expected an integer"),
    ],
)
def test_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_numbers_of_numpy_are_numbers():
    nearest = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], "ArgKMin", axis=1, opt_arg=np.int64(2))
    assert nearest(X, Y).shape == Vi(X).sqdist(Vj(Y)).argKmin(np.int32(2), axis=np.int64(1)).shape == (5, 2)
    assert len(SQUARES.value_and_grad(X, Y, wrt=np.array([1]))[1]) == 1


def test_numbers_of_numpy_widen_no_system():
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    solution = (-Vi(x).sqdist(Vj(x))).exp().solve(x, alpha=np.float64(1))
    assert solution.dtype == np.float32
    matrix = np.exp(-((x[:, None] - x) ** 2).sum(-1)) + np.eye(5)
    np.testing.assert_allclose(matrix @ solution, x, atol=1e-5)
