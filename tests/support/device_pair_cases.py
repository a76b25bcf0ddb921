"""Formulas, points and ranges of reductions over pairs, for tests of the kernels of devices."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from upsweep._expr.nodes import constant, make, variable
from upsweep._expr.reduction import PairReduction
from upsweep._expr.twin import pair_reduction


def gaussian(dim=3, scale=0.7):
    x, y, b = variable(0, dim, "i"), variable(1, dim, "j"), variable(2, 1, "j")
    return make("mul", make("exp", make("mul", constant(-scale), make("sqdist", x, y))), b)


def distance(dim=3):
    return make("neg", make("sqdist", variable(0, dim, "i"), variable(1, dim, "j")))


def random_arrays(n_i, n_j, dims=(3, 3, 1), dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, dim)).astype(dtype) for n, dim in zip((n_i, n_j, n_j), dims)]


class Triple(NamedTuple):
    blocks: np.ndarray
    slices: np.ndarray
    columns: np.ndarray


def of_name(name, dtype="float32"):
    """A reduction of this name, of a Gaussian or of distances in three dimensions; its arrays: x, y, b."""
    weight = variable(2, 1, "j") if name == "sumsoftmaxweight" else None
    accumulated = "float32" if dtype in ("float16", "bfloat16") else "float64"
    formula = gaussian() if name == "sum" else distance()
    return PairReduction(formula, name, weight, "i", 3 if "kmin" in name else 0, dtype, accumulated)


def compare(found, reduction, arrays, n_i, n_j, batch=(), ranges=None, tolerance=1e-5):
    """Hold results against the naive twin, sums relative to those of absolute values; indices are the same."""
    expected = pair_reduction(reduction, arrays, n_i, n_j, batch, ranges)
    scale = 1.0
    if reduction.reduction == "sum":
        absolute = replace(reduction, formula=make("abs", reduction.formula))
        (scale,) = pair_reduction(absolute, arrays, n_i, n_j, batch, ranges)
        scale = np.where(np.isfinite(scale), np.maximum(scale, 1.0), 1.0)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.shape == other.shape
        if one.dtype == np.int64:
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(
                one.astype(np.float64) / scale, other / scale, rtol=tolerance, atol=tolerance
            )


def formulas():
    x, y, b, p = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "j"), variable(3, 1, "p")
    u = variable(4, 3, "i")
    square = make("sqdist", x, y)
    e = make("exp", make("neg", make("mul", square, p)))
    yield "parameter", make("mul", e, b)
    yield "parameter upwards", make("exp", make("div", make("mul", constant(0.1), square), p))
    yield "parameter's gradient", make("mul", make("mul", u, e), make("sub", x, y))
    yield "two parameters", make("add", e, make("exp", make("div", make("neg", make("sqdist", u, y)), p)))
    yield (
        "gradient",
        make("mul", make("mul", make("scalprod", u, y), make("exp", make("neg", square))), make("sub", x, y)),
    )
    yield "gradient of a row", make("mul", u, make("mul", make("exp", make("neg", square)), make("sub", x, y)))
    yield (
        "two scales",
        make("add", make("exp", make("neg", square)), make("exp", make("mul", constant(-3.0), square))),
    )
    yield "used twice", make("mul", square, make("exp", make("neg", square)))
    yield "of rows alone", make("exp", x)
    yield "of columns alone", y
    yield "constant", constant(2.0)
    yield "parameter alone", p
    yield (
        "divided",
        make(
            "div", make("exp", make("neg", make("div", square, p))), make("add", constant(1.0), make("square", u))
        ),
    )
    yield "shifted", make("exp", make("sub", b, make("add", square, make("elem", u, static=(0,)))))
    yield "choice", make("ifelse", make("sub", x, y), make("sin", x), make("cos", make("mul", y, p)))
    yield "laplacian", make("exp", make("neg", make("sqrt", square)))
    yield "cauchy", make("inverse", make("add", constant(1.0), square))
    yield "angle", make("atan2", x, y)


def some_ranges(rng, n_rows, n_columns, n_blocks, empty=True):
    edges = np.sort(rng.choice(np.arange(1, n_rows), 2 * n_blocks - 1, replace=False))
    edges = np.concatenate([[0], edges])[: 2 * n_blocks].reshape(-1, 2)
    counts = rng.integers(0 if empty else 1, 5, n_blocks)
    starts = rng.integers(0, n_columns, counts.sum())
    ends = np.minimum(starts + rng.integers(0, n_columns, counts.sum()), n_columns)
    return Triple(edges, np.cumsum(counts), np.stack([starts, ends], axis=1))
