"""NaN, infinities, equal values and ends of the range in reductions over pairs on the CPU."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from pair_cases import ALL
from upsweep._backends.cpu import pairs
from upsweep._compiler.formulas.nodes import make, variable
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.formulas.reference import pair_reduction

SHAPES = [(20, 33), (40, 7), (2, 200), (1, 3), (3, 1000), (17, 1)]


def compare(reduction, arrays, n_i, n_j):
    """Sums of integers are exact in any order, so results equal the reference."""
    got = pairs.run(reduction, arrays, n_i, n_j)
    with np.errstate(all="ignore"):
        want = pair_reduction(reduction, [array.astype("f8") for array in arrays], n_i, n_j)
    for part, exact in zip(got, want, strict=True):
        np.testing.assert_allclose(part, exact, rtol=1e-5 if reduction.dtype == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ALL)
def test_nan_infinities_and_equal_values(name, dtype):
    rng = np.random.default_rng(0)
    dim = 1 if name in ("logsumexp", "sumsoftmaxweight") else 2
    x, y = variable(0, dim, "i"), variable(1, dim, "j")
    weight = variable(2, 1, "j") if name == "sumsoftmaxweight" else None
    reduction = PairReduction(make("add", x, y), name, weight, k=5 if "kmin" in name else 0, dtype=dtype)
    for special in ([], [np.nan], [np.inf], [-np.inf], [np.nan, np.inf, -np.inf]):
        for n_i, n_j in SHAPES:
            arrays = [rng.integers(-3, 4, (n, dim)).astype(dtype) for n in (n_i, n_j)] + [np.ones((n_j, 1), dtype)]
            for array in arrays[:2]:
                for value in special:
                    array[rng.random(array.shape) < 0.1] = value
            compare(reduction, arrays, n_i, n_j)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ALL)
def test_all_values_alike_and_not_finite(name, value):
    x, y = variable(0, 1, "i"), variable(1, 1, "j")
    weight = y if name == "sumsoftmaxweight" else None
    for dtype in ("float32", "float64"):
        reduction = PairReduction(make("add", x, y), name, weight, k=3 if "kmin" in name else 0, dtype=dtype)
        for n_i, n_j in [(20, 2), (20, 30), (2, 90)]:
            compare(reduction, [np.full((n_i, 1), value, dtype), np.zeros((n_j, 1), dtype)], n_i, n_j)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logsumexp_over_the_whole_range(dtype):
    """The reference moves up and far up, from below everything."""
    most = float(np.finfo(dtype).max)
    rng = np.random.default_rng(1)
    x, y = variable(0, 1, "i"), variable(1, 1, "j")
    reduction = PairReduction(make("mul", x, y), "logsumexp", dtype=dtype)
    for scale in (1.0, 100.0, 1e4, 1e30, most / 8):
        for n_i, n_j in SHAPES:
            columns = rng.standard_normal((n_j, 1)).clip(-4, 4)
            for each in (columns, np.sort(columns, 0), np.sort(columns, 0)[::-1]):
                compare(reduction, [np.full((n_i, 1), scale, dtype), each.astype(dtype)], n_i, n_j)
    compare(reduction, [np.full((20, 1), -1, dtype), np.full((5, 1), most, dtype)], 20, 5)


def test_tails_below_float32_are_zero_and_cost_no_more():
    x, y = variable(0, 1, "i"), variable(1, 1, "j")
    reduction = PairReduction(make("exp", make("neg", make("sqdist", x, y))), "sum")
    for distance in (9.0, 9.34, 9.4, 10.0, 10.1, 11.0, 100.0, 1e18):
        arrays = [np.zeros((20, 1), np.float32), np.full((50, 1), distance, np.float32)]
        (sums,) = pairs.run(reduction, arrays, 20, 50)
        exact = 50 * np.exp(-(np.float64(np.float32(distance)) ** 2))
        assert np.abs(sums - exact).max() <= 1e-5 * exact + 50 * np.finfo(np.float32).tiny


@pytest.mark.parametrize(("dtype", "step"), [("float32", 40), ("float64", 300)])
@pytest.mark.parametrize("n_weights", [1, 20])
def test_the_reference_moves_after_blocks_that_still_count(dtype, step, n_weights):
    """Values just below where it would move, in a block before the one in which it does."""
    x, y, w = variable(0, 1, "i"), variable(1, 1, "j"), variable(2, n_weights, "j")
    rng = np.random.default_rng(2)
    for n_i, n_j in [(20, 1000), (2, 20_000)]:
        values = np.full((n_j, 1), step - 1.0)
        values[: n_j // 8] = 0
        values[n_j // 2 :: 7] = step + 1
        arrays = [np.zeros((n_i, 1)), values, 1 + rng.random((n_j, n_weights))]
        arrays = [array.astype(dtype) for array in arrays]
        for name, weight in [("logsumexp", None), ("logsumexp", w), ("sumsoftmaxweight", w)]:
            compare(PairReduction(make("add", x, y), name, weight, dtype=dtype), arrays, n_i, n_j)
