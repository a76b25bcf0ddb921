"""Errors name the arguments as the caller does, and are raised before any computation."""

import numpy as np
import pytest
import upsweep
from upsweep import Genred, LazyTensor, Vi, Vj

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


def test_what_only_keops_has_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="ComplexLazyTensor: KeOps has it"):
        from upsweep import ComplexLazyTensor  # noqa: F401
    assert not hasattr(upsweep, "NeitherHas")


def test_features_are_chosen_by_integers_of_numpy_too():
    x = np.random.default_rng(0).normal(size=(5, 3))
    one, two = np.int64(1), np.int32(2)
    for chosen in (Vi(x)[one], Vi(x).elem(one), Vi(x)[one:two], Vi(x).extract(one, one), Vi(x)[-two]):
        np.testing.assert_array_equal(chosen.sum(axis=1), x[:, 1:2])
    with pytest.raises(ValueError, match=r"integers and slices, got 1\.5"):
        Vi(x)[1.5]


KERNEL = (-Vi(X).sqdist(Vj(X * 1.0))).exp()
SQUARES = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], axis=1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Vi(X).sqdist(Vj(Y)).Kmin(1.5, axis=1), TypeError, r"K: expected an integer, got 1\.5"),
        (lambda: Vi(X).sqdist(Vj(Y)).min(1.5), TypeError, r"axis: expected an integer, got 1\.5"),
        (lambda: Genred("x", ["x = Vi(3)"], "KMin", opt_arg=2.5), TypeError, r"opt_arg: expected an integer"),
        (lambda: Genred("x", "x = Vi(3)"), TypeError, "aliases: expected a sequence of str"),
        (lambda: SQUARES(X, Y, device_id="a"), TypeError, "device_id: expected an integer, got 'a'"),
        (lambda: SQUARES.value_and_grad(X, Y, wrt=[2]), ValueError, "wrt: expected places of inputs, from 0 to 1"),
        (lambda: SQUARES.value_and_grad(X, Y, wrt=[-1]), ValueError, "wrt: expected places of inputs, from 0"),
        (lambda: SQUARES.value_and_grad(X, Y, wrt=["x"]), TypeError, "wrt: expected an integer, got 'x'"),
        (lambda: SQUARES.value_and_grad(X, Y, wrt=1), TypeError, "wrt: expected a sequence"),
        (
            lambda: KERNEL.solve(X[:, 0]),
            ValueError,
            r"other: expected an array of shape \(..., M, D\), got \(5,\)",
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
