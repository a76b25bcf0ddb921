"""Formulas, data and comparisons for the tests of reductions over pairs."""

import numpy as np
from upsweep._cpu import pairs
from upsweep._expr.nodes import make, variable
from upsweep._expr.reduction import REDUCTIONS, PairReduction
from upsweep._expr.twin import pair_reduction

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def formulas(dim=3):
    """x_i, y_j, b_j, p and the squared distance of the first two, scaled by p."""
    x, y, b, p = variable(0, dim, "i"), variable(1, dim, "j"), variable(2, 2, "j"), variable(3, 1, "p")
    return x, y, b, make("mul", make("sqdist", x, y), p)


def reduction_of(name, dtype="float32", dim=3, rows="i", k=4, weighted=False, **keywords):
    """One reduction of each name, over a formula that suits it."""
    x, y, b, distance = formulas(dim)
    settings = {"dtype": dtype, "rows": rows, "k": k if "kmin" in name else 0, **keywords}
    if name == "sum":
        return PairReduction(make("mul", make("exp", make("neg", distance)), b), name, **settings)
    if name == "logsumexp":
        return PairReduction(make("neg", distance), name, make("square", b) if weighted else None, **settings)
    if name == "sumsoftmaxweight":
        return PairReduction(make("neg", distance), name, make("concat", b, make("sub", x, y)), **settings)
    formula = distance if "kmin" in name else make("concat", make("sub", x, y), distance)
    return PairReduction(formula, name, **settings)


def data(n_i, n_j, dtype="float32", dim=3, batch=(), seed=0):
    """Arrays for those formulas."""
    rng = np.random.default_rng(seed)
    shapes = ((*batch, n_i, dim), (*batch, n_j, dim), (*batch, n_j, 2), (1,))
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    arrays[3] = np.full(1, 3.0 / dim, dtype)
    return arrays


def check(reduction, arrays, n_i, n_j, batch=(), ranges=None, got=None):
    """Compare a reduction on the CPU with its twin in float64; return what came."""
    if got is None:
        got = pairs.run(reduction, arrays, n_i, n_j, batch, ranges)
    wide = [array.astype(np.float64) for array in arrays]
    want = pair_reduction(reduction, wide, n_i, n_j, batch, ranges)
    tolerance = TOLERANCE[reduction.dtype]
    scale = 1.0
    if reduction.reduction == "sum":  # relative to the sum of the absolute values
        absolute = PairReduction(make("abs", reduction.formula), "sum", rows=reduction.rows, dtype="float64")
        scale = pair_reduction(absolute, wide, n_i, n_j, batch, ranges)[0]
    for part, exact in zip(got, want):
        assert part.shape == exact.shape
        if exact.dtype == np.int64:
            assert part.dtype == np.int64
            if reduction.dtype == "float64":
                np.testing.assert_array_equal(part, exact)
            else:  # numbers that float32 cannot tell apart may trade places
                assert (part != exact).sum() <= 0.02 * part.size
        else:
            assert part.dtype == np.dtype(reduction.dtype)
            finite = np.isfinite(exact)
            np.testing.assert_array_equal(part[~finite], exact[~finite])
            exact = np.where(finite, exact, 0)
            size = np.maximum(np.abs(exact), 1.0) if reduction.reduction != "sum" else scale
            off = np.abs(np.where(finite, part, 0) - exact)
            assert (off <= tolerance * size).all(), (off / size).max()
    return got


def same_bits(first, second):
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def random_ranges(n_rows, n_columns, n_blocks, rng, *, overlap=False, skip=0.0):
    """A triple: blocks of random sizes, each with some intervals, or none."""
    cuts = np.sort(rng.integers(0, n_rows + 1, 2 * n_blocks if skip else n_blocks - 1))
    edges = np.concatenate([[0], cuts, [n_rows]])
    blocks = np.stack([edges[:-1], edges[1:]], 1)[:: 2 if skip else 1]
    columns, slices = [], []
    for _ in blocks:
        n = rng.integers(0, 4)
        if overlap:
            starts = rng.integers(0, n_columns, n)
            columns += [(a, min(n_columns, a + rng.integers(0, n_columns))) for a in starts]
        else:
            ends = np.sort(rng.choice(n_columns + 1, 2 * n, replace=False))
            columns += [*ends.reshape(-1, 2)]
        slices.append(len(columns))
    return np.array(blocks), np.array(slices), np.array(columns, dtype=int).reshape(-1, 2)


ALL = REDUCTIONS
