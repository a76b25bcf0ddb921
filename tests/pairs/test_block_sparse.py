"""Reductions over some of the pairs: against numpy with a mask, on every reduction, both axes, batches."""

import numpy as np
import pytest
from pair_cases import join
from upsweep import BlockRanges, Genred, LazyTensor, Vi, Vj, reference
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep.cluster import cluster_ranges, from_matrix, grid_cluster, sort_clusters

M, N, D = 40, 30, 2


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


X, Y, B = data(M, D), data(N, D, seed=1), data(N, 2, seed=2)
SQUARES = ((X[:, None] - Y) ** 2).sum(-1)


def random_ranges(seed):
    """KeOps' six arrays: some rows in no block, some blocks without columns, blocks in any order."""
    rng = np.random.default_rng(seed)
    cuts_i, cuts_j = (np.sort(rng.choice(n + 1, 8, replace=False)) for n in (M, N))
    r_i, r_j = (np.stack([cuts[:-1], cuts[1:]], 1) for cuts in (cuts_i, cuts_j))
    r_i = rng.permutation(np.delete(r_i, 3, axis=0))
    return from_matrix(r_i, rng.permutation(r_j), rng.random((6, 7)) < 0.4)


def masked(values, mask, neutral):
    return np.where(mask.reshape(*mask.shape, *[1] * (values.ndim - 2)), values, neutral)


EXPECTED = {
    "sum": lambda mask, axis: masked(SQUARES, mask, 0).sum(axis),
    "min": lambda mask, axis: masked(SQUARES, mask, np.inf).min(axis),
    "max": lambda mask, axis: masked(SQUARES, mask, -np.inf).max(axis),
    "argmin": lambda mask, axis: np.where(mask.any(axis), masked(SQUARES, mask, np.inf).argmin(axis), -1),
    "argmax": lambda mask, axis: np.where(mask.any(axis), masked(SQUARES, mask, -np.inf).argmax(axis), -1),
    "logsumexp": lambda mask, axis: np.log(masked(np.exp(SQUARES), mask, 0).sum(axis)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", EXPECTED)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_every_reduction(op, axis, seed):
    ranges = random_ranges(seed)
    mask = BlockRanges(ranges, (M, N)).to_mask() > 0
    assert not mask.any(axis).all(), "some rows should have nothing"
    result = getattr(Vi(X).sqdist(Vj(Y)), op)(axis=axis, ranges=ranges)
    np.testing.assert_allclose(result[:, 0], EXPECTED[op](mask, axis), rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_the_k_least(axis, seed):
    ranges = random_ranges(seed)
    values = masked(SQUARES, BlockRanges(ranges, (M, N)).to_mask() > 0, np.inf)
    values = values if axis == 1 else values.T
    order = values.argsort(1, kind="stable")[:, :5]
    least = np.take_along_axis(values, order, 1)
    actual, places = Vi(X).sqdist(Vj(Y)).Kmin_argKmin(5, axis=axis, ranges=ranges)
    np.testing.assert_allclose(actual, least)
    np.testing.assert_array_equal(places, np.where(np.isinf(least), -1, order))
    assert places.dtype == np.int64


@pytest.mark.parametrize("axis", [0, 1])
def test_exponential_sums_with_weights(axis):
    ranges = random_ranges(4)
    mask = BlockRanges(ranges, (M, N)).to_mask() > 0
    terms = masked(np.exp(-SQUARES), mask, 0)
    lazy, weight = -Vi(X).sqdist(Vj(Y)), Vj(B**2) * Vi(X)[0] ** 2
    weights = B[None] ** 2 * X[:, None, :1] ** 2
    sums = (terms[..., None] * weights).sum(axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(lazy.logsumexp(axis=axis, weight=weight, ranges=ranges), np.log(sums))
        soft = np.where(mask.any(axis)[:, None], sums / terms.sum(axis)[:, None], 0)
    np.testing.assert_allclose(lazy.sumsoftmaxweight(weight, axis=axis, ranges=ranges), soft)


def test_columns_that_are_listed_twice_count_twice():
    ranges = ([[0, 4], [4, M]], [2, 3], [[0, 20], [10, N], [3, 5]])
    counts = BlockRanges(ranges, (M, N)).to_mask()
    lazy = Vi(X).sqdist(Vj(Y))
    np.testing.assert_allclose(lazy.sum(axis=1, ranges=ranges)[:, 0], (SQUARES * counts).sum(1))
    np.testing.assert_allclose(lazy.sum(axis=0, ranges=ranges)[:, 0], (SQUARES * counts).sum(0))


def test_ranges_of_the_expression_hold_for_its_products_and_transposes():
    ranges = BlockRanges(random_ranges(5), (M, N))
    mask = ranges.to_mask()
    K = (-Vi(X).sqdist(Vj(Y))).exp()
    K.ranges = ranges
    kernel = np.exp(-SQUARES) * mask
    np.testing.assert_allclose(K @ B, kernel @ B)
    np.testing.assert_allclose(K.T @ X, kernel.T @ X)
    np.testing.assert_allclose((K * 2.0 + 1.0).sum(axis=1)[:, 0], ((2 * np.exp(-SQUARES) + 1) * mask).sum(1))
    K.ranges = tuple(ranges)
    np.testing.assert_allclose(K.T @ X, kernel.T @ X)
    other = Vi(X).sqdist(Vj(Y))
    other.ranges = random_ranges(6)
    with pytest.raises(ValueError, match="ranges: the operands have different ones"):
        K + other


@pytest.mark.parametrize("axis", [0, 1])
def test_one_triple_for_all_entries_of_a_batch(axis):
    x, y = data(2, 3, M, D), data(3, N, D, seed=1)
    ranges = random_ranges(7)
    mask = BlockRanges(ranges, (M, N)).to_mask()
    result = Genred("SqDist(x, y)", ["x = Vi(2)", "y = Vj(2)"], axis=axis)(x, y, ranges=ranges)
    squares = ((x[..., :, None, :] - y[:, None]) ** 2).sum(-1) * mask
    np.testing.assert_allclose(result[..., 0], squares.sum(3 if axis == 1 else 2))


@pytest.mark.parametrize("axis", [0, 1])
def test_indices_that_run_through_a_batch(axis):
    x, y = data(3, M, D), data(3, N, D, seed=1)
    parts = [BlockRanges(random_ranges(seed), (M, N)) for seed in (8, 9, 10)]
    rows, columns = ([part.intervals(kind, M, N) for part in parts] for kind in ("i", "j"))
    ranges = (*join(rows, M, N), *join(columns, N, M))
    lazy = LazyTensor(x[:, :, None]).sqdist(LazyTensor(y[:, None]))
    squares = ((x[:, :, None] - y[:, None]) ** 2).sum(-1) * np.stack([part.to_mask() for part in parts])
    np.testing.assert_allclose(lazy.sum(axis=axis + 1, ranges=ranges)[..., 0], squares.sum(axis + 1))


def test_one_tuple_serves_reductions_of_several_sizes():
    ranges = ([[0, 4]], [1], [[1, 5]], [[1, 5]], [1], [[0, 4]])
    for m, n in ((4, 5), (10, 5), (4, 20)):
        result = Vi(X[:m]).sqdist(Vj(Y[:n])).sum(axis=1, ranges=ranges)
        np.testing.assert_allclose(result[:, 0], np.r_[SQUARES[:4, 1:5].sum(1), np.zeros(m - 4)])


def test_one_tuple_serves_batches_of_several_sizes():
    ranges = ([[0, 4], [4, 8]], [1, 2], [[0, 3], [5, 10]])  # of the first two entries, of 4 rows and 5 columns
    for entries in (2, 3):
        x, y = data(entries, 4, D), data(entries, 5, D, seed=1)
        mask = np.zeros((entries, 4, 5))
        mask[0, :, :3] = mask[1] = 1
        squares = ((x[:, :, None] - y[:, None]) ** 2).sum(-1) * mask
        lazy = LazyTensor(x[:, :, None]).sqdist(LazyTensor(y[:, None]))
        np.testing.assert_allclose(lazy.sum(axis=2, ranges=ranges)[..., 0], squares.sum(2))


def test_bounds_are_those_of_the_arrays():
    with pytest.raises(ValueError, match=r"redranges_j\[0\], of block 0, is \[1, 31\), which is out of bounds"):
        Vi(X).sqdist(Vj(Y)).sum(axis=1, ranges=([[0, 4]], [1], [[1, 31]]))
    with pytest.raises(ValueError, match="list different pairs"):
        Vi(X).sqdist(Vj(Y)).sum(axis=0, ranges=([[0, 4]], [1], [[1, 3]], [[1, 4]], [1], [[0, 4]]))


def test_no_rows_and_no_columns():
    empty = np.zeros((0, 2), int), np.zeros(0, int), np.zeros((0, 2), int)
    for m, n in ((0, 5), (5, 0), (0, 0)):
        result = Vi(X[:m]).sqdist(Vj(Y[:n])).min(axis=1, ranges=(*empty, *empty))
        np.testing.assert_array_equal(result, np.full((m, 1), np.inf))


def test_clusters_in_their_own_order_and_back():
    """Points that are not sorted: what KeOps answers wrongly without a word if the order is not undone."""
    labels = grid_cluster(X, 1.0)
    x, lab, order, inverse = sort_clusters(X, labels, return_permutation=True)
    r = cluster_ranges(lab)
    ranges = from_matrix(r, r, np.eye(len(r), dtype=bool))
    result = Vi(x).sqdist(Vj(x)).sum(axis=1, ranges=ranges)[inverse]
    same = labels[:, None] == labels
    np.testing.assert_allclose(result[:, 0], (((X[:, None] - X) ** 2).sum(-1) * same).sum(1))
    assert (order[inverse] == np.arange(M)).all()


def test_indices_beyond_float32_are_exact():
    """A float32 holds integers to 2**24 only."""
    n = 2**24 + 5
    y = np.zeros((n, 1), np.float32)
    y[-2] = -1
    assert Vi(np.zeros((1, 1), np.float32)).sqdist(Vj(y)).argmax(axis=1)[0, 0] == n - 2


def test_the_reference_agrees():
    """The CPU executor against the reference implementation, both in float64."""
    from upsweep._compiler.formulas.nodes import make, variable

    formula = make("mul", make("sqdist", variable(0, D, "i"), variable(1, D, "j")), variable(2, 2, "j"))
    ranges = BlockRanges(random_ranges(11), (M, N))
    for name in ("sum", "min", "argmax", "min_argmin"):
        for axis, rows in ((1, "i"), (0, "j")):
            reduction = PairReduction(formula, name, rows=rows, dtype="float64")
            triple = ranges.intervals(rows, M, N)
            expected = reference.pair_reduction(reduction, [X, Y, B], M, N, (), triple)
            named = {"sum": "Sum", "min": "Min", "argmax": "ArgMax", "min_argmin": "Min_ArgMin"}[name]
            lazy = Vi(X).sqdist(Vj(Y)) * Vj(B)
            actual = lazy.reduction(named, axis=axis, ranges=ranges)
            for own, other in zip(actual if isinstance(actual, tuple) else (actual,), expected):
                np.testing.assert_allclose(own, other, rtol=1e-13)
