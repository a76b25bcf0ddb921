"""Formulas of many components on the CPU: in loops, in memory, beyond all registers; and the error that they
may have.
"""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from pair_cases import check
from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.reduction import PairReduction

DIMS = [17, 33, 40, 65, 100]


def cases(dim, dtype):
    x, y, b = variable(0, dim, "i"), variable(1, dim, "j"), variable(2, 1, "j")
    distance = make("mul", make("sqdist", x, y), constant(1 / dim))
    kernel = make("exp", make("neg", distance))
    difference = make("sub", x, y)
    sharp = make("mul", distance, constant(-300.0))  # the reference has to move
    yield PairReduction(make("mul", kernel, b), "sum", dtype=dtype)
    yield PairReduction(make("mul", make("mul", kernel, b), difference), "sum", dtype=dtype)
    yield PairReduction(make("scalprod", x, y), "sum", dtype=dtype)
    yield PairReduction(make("sum", make("abs", difference)), "sum", dtype=dtype)
    yield PairReduction(make("max", make("mul", x, y)), "max", dtype=dtype)
    yield PairReduction(distance, "min_argmin", dtype=dtype)
    yield PairReduction(distance, "kmin_argkmin", k=3, dtype=dtype)
    yield PairReduction(difference, "min_argmin", dtype=dtype)
    yield PairReduction(difference, "max", dtype=dtype)
    yield PairReduction(difference, "kmin_argkmin", k=2, dtype=dtype)
    yield PairReduction(sharp, "logsumexp", dtype=dtype)
    yield PairReduction(sharp, "logsumexp", make("abs", make("add", x, y)), dtype=dtype)
    yield PairReduction(sharp, "sumsoftmaxweight", y, dtype=dtype)


def arrays_of(n_i, n_j, dim, dtype):
    rng = np.random.default_rng(dim)
    return [rng.standard_normal(shape).astype(dtype) for shape in ((n_i, dim), (n_j, dim), (n_j, 1))]


@pytest.mark.parametrize("dim", DIMS)
def test_many_components_in_float64(dim):
    for reduction in cases(dim, "float64"):
        for n_i, n_j in [(37, 75), (3, 70)]:
            check(reduction, arrays_of(n_i, n_j, dim, "float64"), n_i, n_j)


@pytest.mark.parametrize("dim", [40, 500])
def test_many_components_in_float32(dim):
    for reduction in cases(dim, "float32"):
        if reduction.reduction != "logsumexp" and reduction.weight is None:  # 300 times a distance's rounding
            check(reduction, arrays_of(37, 300, dim, "float32"), 37, 300)


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 10, 31, 32, 33, 64, 128, 500])
def test_sums_of_float32_are_within_1e_5_of_the_absolute_values(dim):
    reduction = next(cases(dim, "float32"))
    check(reduction, arrays_of(50, 3000, dim, "float32"), 50, 3000)


def test_more_components_than_a_stack_has_room_for():
    """Their memory is the caller's: a thread's stack may have half a MiB."""
    dim = 60_000
    x, y = variable(0, dim, "i"), variable(1, dim, "j")
    mean = make("mul", make("scalprod", x, y), constant(1 / dim))
    reductions = list(cases(dim, "float64"))[:2]
    reductions.append(PairReduction(make("sub", x, y), "max", dtype="float64"))
    reductions.append(PairReduction(mean, "sumsoftmaxweight", y, dtype="float64"))
    for reduction in reductions:
        check(reduction, arrays_of(20, 5, dim, "float64"), 20, 5)


def test_rows_as_j_and_ranges_with_many_components():
    for dim in (40, 100):
        x, y = variable(0, dim, "i"), variable(1, dim, "j")
        formula = make("mul", make("exp", make("neg", make("mul", make("sqdist", x, y), constant(1 / dim)))), x)
        reduction = PairReduction(formula, "sum", rows="j", dtype="float64")
        triple = np.array([[0, 20], [20, 75]]), np.array([1, 3]), np.array([[0, 9], [9, 20], [25, 37]])
        check(reduction, arrays_of(37, 75, dim, "float64")[:2], 37, 75, ranges=triple)


def test_the_operations_of_formulas():
    """One formula with each scalar function in it: what is lowered to an instruction is rendered."""
    x, y = variable(0, 1, "i"), variable(1, 1, "j")
    s = make("sub", x, y)
    inside = make("mul", s, constant(0.15))
    positive = make("add", make("square", s), constant(0.1))
    for op, arg in [("exp", s), ("log", positive), ("sqrt", positive), ("rsqrt", positive), ("sin", s), ("cos", s),
                    ("tanh", s), ("atan", s), ("asin", inside), ("acos", inside), ("abs", s), ("sign", s),
                    ("step", s), ("relu", s), ("floor", s), ("inverse", positive), ("sinxdivx", s),
                    ("xlogx", positive)]:  # fmt: skip
        check(PairReduction(make(op, arg), "sum", dtype="float64"), arrays_of(20, 33, 1, "float64"), 20, 33)
        check(PairReduction(make(op, arg), "max", dtype="float32"), arrays_of(20, 33, 1, "float32"), 20, 33)
    for formula in (make("atan2", x, y), make("powf", positive, y), make("pow", s, static=(3,)),
                    make("pow", positive, static=(-2,)), make("ifelse", s, x, y), make("lt", x, y),
                    make("mod", s, constant(1.5), constant(0.0)), make("round", s, static=(1,)),
                    make("clamp", s, constant(-0.5), constant(0.5))):  # fmt: skip
        check(PairReduction(formula, "sum", dtype="float64"), arrays_of(20, 33, 1, "float64"), 20, 33)
