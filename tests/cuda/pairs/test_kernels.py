"""Pair reductions on a CUDA device against the reference: sizes around tiles, long vectors, ranges."""

import numpy as np
import pytest
from pair_cases import (
    check_neighbours_of_far_vectors,
    check_products_of_scales,
    compare,
    distance,
    gaussian,
    named_formulas,
    of_name,
    random_arrays,
    run_on_device,
    some_ranges,
)
from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.reduction import REDUCTIONS, PairReduction

pytestmark = pytest.mark.cuda


def check(reduction, arrays, n_i, n_j, batch=(), ranges=None, tolerance=1e-5):
    results = run_on_device(reduction, arrays, n_i, n_j, batch, ranges)
    compare(results, reduction, arrays, n_i, n_j, batch, ranges, tolerance)
    return results


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("n_i, n_j", [(1, 1), (33, 129), (1025, 2047), (3, 20001), (4000, 1), (50, 0)])
def test_every_reduction(name, n_i, n_j):
    check(of_name(name), random_arrays(n_i, n_j), n_i, n_j)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes(name, dtype):
    tolerance = 1e-12 if dtype == "float64" else 4e-3
    if dtype == "float16" and "arg" in name:
        pytest.skip("rounded numbers tie")
    check(of_name(name, dtype), random_arrays(300, 500, dtype=dtype), 300, 500, tolerance=tolerance)


@pytest.mark.parametrize("axis", ["i", "j"])
@pytest.mark.parametrize("name, formula", list(named_formulas()), ids=[name for name, _ in named_formulas()])
def test_sums_of_formulas(name, formula, axis):
    rng = np.random.default_rng(1)
    shapes = [(450, 3), (700, 3), (700, 1), (1, 1), (450, 3)]
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    arrays[3] = np.abs(arrays[3])
    check(PairReduction(formula, "sum", rows=axis), arrays, 450, 700, tolerance=3e-4)


@pytest.mark.parametrize("dim", [1, 2, 7, 16, 32, 33, 48, 64, 65, 100, 128, 129, 500])
@pytest.mark.parametrize("far", [0, 30])
def test_dims(dim, far):
    x, y, b = random_arrays(300, 400, (dim, dim, 1))
    x, y, b = x / dim**0.5 + far, y / dim**0.5 + far, np.abs(b)
    check(PairReduction(gaussian(dim), "sum"), [x, y, b], 300, 400)
    nearest = PairReduction(make("sqdist", variable(0, dim, "i"), variable(1, dim, "j")), "kmin", k=5)
    check(nearest, [x, y], 300, 400, tolerance=3e-6)


@pytest.mark.parametrize("dim", [40, 100, 300])
def test_products_of_long_vectors(dim):
    x, y, b = random_arrays(300, 400, (dim, dim, 1))
    product = make("mul", constant(1 / dim), make("scalprod", variable(0, dim, "i"), variable(1, dim, "j")))
    check(PairReduction(make("mul", make("exp", product), variable(2, 1, "j")), "sum"), [x, y, b], 300, 400)
    check(PairReduction(product, "logsumexp"), [x, y], 300, 400)


@pytest.mark.parametrize("dim", [36, 100, 500])
@pytest.mark.parametrize("row_scale, column_scale", [(1e25, 1e-25), (1e-30, 1e30), (1e18, 1e18), (1e-18, 1e-18)])
def test_products_of_huge_and_tiny_vectors(dim, row_scale, column_scale):
    check_products_of_scales(run_on_device, dim, row_scale, column_scale)


@pytest.mark.parametrize("dim", [40, 100, 500])
def test_a_vector_far_away_takes_no_bits_of_others(dim):
    check_neighbours_of_far_vectors(run_on_device, dim)


@pytest.mark.parametrize("dim", [16, 45, 64, 128])
@pytest.mark.parametrize("precision", ["ieee", "split", "tf32", "f16"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_precisions(dim, precision, dtype):
    x, y, b = random_arrays(1000, 1300, (dim, dim, 1))
    arrays = [(x / dim**0.5).astype(dtype), (y / dim**0.5).astype(dtype), np.abs(b).astype(dtype)]
    exact = dtype == "float16" or precision in ("ieee", "split")
    stored = 2.0**-11 if dtype == "float16" else 0
    settings = {
        "precision": precision,
        "dtype": dtype,
        "dtype_acc": "float32" if dtype == "float16" else "float64",
    }
    tolerance = stored + (1e-5 if exact else 2.0**-10)
    nearest = make("sqdist", variable(0, dim, "i"), variable(1, dim, "j"))
    check(PairReduction(gaussian(dim), "sum", **settings), arrays, 1000, 1300, tolerance=tolerance)
    for name in ("min", "logsumexp"):
        check(PairReduction(nearest, name, **settings), arrays[:2], 1000, 1300, tolerance=tolerance)
    (at,) = run_on_device(PairReduction(nearest, "argmin", **settings), arrays[:2], 1000, 1300)
    distances = ((arrays[0].astype(float)[:, None] - arrays[1].astype(float)) ** 2).sum(-1)
    assert (distances[np.arange(1000), at[:, 0]] <= (1 + (1e-5 if exact else 2.0**-9)) * distances.min(1)).all()


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_ranges(name, seed):
    rng = np.random.default_rng(seed)
    n_i, n_j = ((60, 90), (900, 1100), (5000, 7000))[seed]
    ranges = some_ranges(rng, n_i, n_j, (4, 7, 9)[seed])
    check(of_name(name), random_arrays(n_i, n_j), n_i, n_j, ranges=ranges, tolerance=2e-5)


def test_batches():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in [(3, 1, 40, 3), (2, 60, 3), (3, 2, 60, 1)]]
    each = [some_ranges(rng, 40, 60, 3) for _ in range(6)]
    for ranges in (None, each[0], each):
        check(PairReduction(gaussian(), "sum"), arrays, 40, 60, (3, 2), ranges)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_same_bits_on_each_run(name):
    arrays = random_arrays(3000, 5000)
    first = check(of_name(name), arrays, 3000, 5000)
    for _ in range(3):
        for one, other in zip(first, run_on_device(of_name(name), arrays, 3000, 5000)):
            assert one.tobytes() == other.tobytes()


def test_many_columns_against_few_rows():
    x, y, b = random_arrays(7, 1_000_003)
    check(PairReduction(gaussian(), "sum"), [x, y, np.abs(b)], 7, 1_000_003)
    check(PairReduction(distance(), "max_argmax"), [x, y], 7, 1_000_003)
