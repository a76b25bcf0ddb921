"""Formulas, data and comparisons for the tests of reductions over pairs, on the CPU and on devices."""

import contextlib
from dataclasses import replace

import numpy as np
from upsweep._backends.cpu import pairs
from upsweep._backends.cuda import pairs_launch
from upsweep._backends.cuda.memory import DeviceMemory
from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.reduction import REDUCTIONS, PairReduction, outputs
from upsweep._compiler.formulas.reference import pair_reduction
from upsweep.pairs.block_intervals import BlockIntervals

ALL = REDUCTIONS
TOLERANCE = {"float32": 5e-6, "float64": 5e-13}  # of a value and what it is relative to together

# ---- of x_i, y_j, b_j and a parameter --------------------------------------------------------------------------


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


# ---- of x_i, y_j and b_j alone ---------------------------------------------------------------------------------


def gaussian(dim=3, scale=0.7):
    x, y, b = variable(0, dim, "i"), variable(1, dim, "j"), variable(2, 1, "j")
    return make("mul", make("exp", make("mul", constant(-scale), make("sqdist", x, y))), b)


def distance(dim=3):
    return make("neg", make("sqdist", variable(0, dim, "i"), variable(1, dim, "j")))


def of_name(name, dtype="float32"):
    """A reduction of this name, of a Gaussian or of distances in three dimensions; its arrays: x, y, b."""
    weight = variable(2, 1, "j") if name == "sumsoftmaxweight" else None
    accumulated = "float32" if dtype in ("float16", "bfloat16") else "float64"
    formula = gaussian() if name == "sum" else distance()
    return PairReduction(formula, name, weight, "i", 3 if "kmin" in name else 0, dtype, accumulated)


def random_arrays(n_i, n_j, dims=(3, 3, 1), dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, dim)).astype(dtype) for n, dim in zip((n_i, n_j, n_j), dims)]


def named_formulas():
    """Of x, y, b, a parameter p, and one more row u: what kernels treat differently."""
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


# ---- ranges ----------------------------------------------------------------------------------------------------


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
    return BlockIntervals(np.array(blocks), np.array(slices), np.array(columns, dtype=int).reshape(-1, 2))


def some_ranges(rng, n_rows, n_columns, n_blocks, empty=True):
    edges = np.sort(rng.choice(np.arange(1, n_rows), 2 * n_blocks - 1, replace=False))
    edges = np.concatenate([[0], edges])[: 2 * n_blocks].reshape(-1, 2)
    counts = rng.integers(0 if empty else 1, 5, n_blocks)
    starts = rng.integers(0, n_columns, counts.sum())
    ends = np.minimum(starts + rng.integers(0, n_columns, counts.sum()), n_columns)
    return BlockIntervals(edges, np.cumsum(counts), np.stack([starts, ends], axis=1))


def join(parts, n_rows, n_columns):
    """One set of pairs of all batch entries: the inverse of `BlockIntervals.split`."""
    return BlockIntervals.from_counts(
        np.concatenate([part.blocks + k * n_rows for k, part in enumerate(parts)]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.columns + k * n_columns for k, part in enumerate(parts)]),
    )


# ---- comparisons -----------------------------------------------------------------------------------------------


def compare(
    actual, reduction, arrays, n_i, n_j, batch=(), ranges=None, tolerance=1e-5, *, least=1.0, traded=0.0
):  # fmt: skip
    """Compare results with the reference in float64: sums relative to those of absolute values, at least `least`.

    `traded`: the share of places that may differ, as numbers that float32 cannot tell apart may trade places.
    """
    wide = [array.astype(np.float64) for array in arrays]
    expected = pair_reduction(reduction, wide, n_i, n_j, batch, ranges)
    size = None
    if reduction.reduction == "sum":
        absolute = replace(reduction, formula=make("abs", reduction.formula))
        (size,) = pair_reduction(absolute, wide, n_i, n_j, batch, ranges)
        size = np.where(np.isfinite(size), np.maximum(size, least), 1.0)
    assert len(actual) == len(expected)
    for part, exact in zip(actual, expected):
        assert part.shape == exact.shape
        if exact.dtype == np.int64:
            assert part.dtype == np.int64
            assert (part != exact).sum() <= traded * part.size
            continue
        assert part.dtype == np.dtype(reduction.dtype)
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(part[~finite], exact[~finite])
        exact = np.where(finite, exact, 0)
        off = np.abs(np.where(finite, part, 0) - exact)
        allowed = np.abs(exact) + (1.0 if size is None else size)
        assert (off <= tolerance * allowed).all(), (off / allowed).max()


def check(reduction, arrays, n_i, n_j, batch=(), ranges=None, got=None):
    """Compare a reduction on the CPU with the reference; return its results."""
    if got is None:
        got = pairs.run(reduction, arrays, n_i, n_j, batch, ranges)
    traded = 0.02 if reduction.dtype == "float32" else 0.0
    compare(got, reduction, arrays, n_i, n_j, batch, ranges, TOLERANCE[reduction.dtype], least=0.0, traded=traded)
    return got


def run_on_device(reduction, arrays, n_i, n_j, batch=(), ranges=None):
    """The results of the CUDA kernels as numpy arrays."""
    rows = n_i if reduction.rows == "i" else n_j
    with contextlib.closing(DeviceMemory(0)) as memory:
        sent = [memory.to_device(array) for array in arrays]
        kinds = {"index": np.dtype(np.int64), "float": arrays[0].dtype}
        results = [np.full((*batch, rows, dim), -77, kinds[kind]) for dim, kind in outputs(reduction)]
        outs = [memory.to_device(result) for result in results]
        pairs_launch.run(
            reduction, sent, outs, n_i, n_j, batch, ranges, device=0, stream=0, allocate=memory.allocate
        )
        for out, result in zip(outs, results):
            memory.to_host(out, result)
    return results


def check_products_of_scales(run, dim, row_scale, column_scale):
    """Scalar products of vectors of these sizes, some of whose features and columns are much smaller.

    None may be subnormal: on a device those count as zero.
    """
    x, y, _ = random_arrays(20, 70, (dim, dim, 1))
    x, y = np.float32(row_scale) * x, np.float32(column_scale) * y
    x[:, ::3] *= np.float32(1e-3)
    y[3::5] *= np.float32(1e-6)
    product = make("scalprod", variable(0, dim, "i"), variable(1, dim, "j"))
    (actual,) = run(PairReduction(product, "kmin", k=70), [x, y], 20, 70)
    wide = x.astype(np.float64) @ y.T.astype(np.float64)
    order = np.argsort(wide, axis=1)
    # Each against the size of its own column: those of small ones are in the middle.
    size = np.linalg.norm(x.astype(np.float64), axis=1)[:, None] * np.linalg.norm(y.astype(np.float64), axis=1)
    off = np.abs(actual - np.take_along_axis(wide, order, 1))
    assert (off <= 3e-7 * np.take_along_axis(size, order, 1) + np.finfo(np.float32).tiny).all()


def check_neighbours_of_far_vectors(run, dim):
    """Who is nearest, beside columns that are far away, infinite or NaN."""
    x, y, _ = random_arrays(20, 70, (dim, dim, 1))
    y[[5, 17]] *= np.float32(1e9)
    y[33] = np.inf
    y[34, 7] = np.nan
    distance = make("sqdist", variable(0, dim, "i"), variable(1, dim, "j"))
    (actual,) = run(PairReduction(distance, "argkmin", k=3), [x, y], 20, 70)
    exact = ((x.astype(np.float64)[:, None] - y) ** 2).sum(-1)
    best = np.sort(np.where(np.isnan(exact), np.inf, exact), axis=1)[:, :3]
    assert (np.abs(np.take_along_axis(exact, actual, 1) - best) <= 1e-5 * best).all()


def same_bits(first, second):
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
