"""Clusters: KeOps' seven functions in any dimension and at any size of the grid, and clusters of equal sizes."""

import numpy as np
import pytest
from upsweep.cluster import (
    balanced_clusters,
    cluster_centroids,
    cluster_ranges,
    cluster_ranges_centroids,
    from_matrix,
    grid_cluster,
    sort_clusters,
    swap_axes,
)


def points(n, dim, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(dtype)


def naive_labels(x, size):
    cells = [tuple(row) for row in np.floor(x / size).astype(int)]
    names = {cell: label for label, cell in enumerate(sorted(set(cells)))}
    return np.array([names[cell] for cell in cells], dtype=int)


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 7, 30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cells_of_any_dimension(dim, dtype):
    x = points(200, dim, dtype=dtype)
    np.testing.assert_array_equal(grid_cluster(x, 0.5), naive_labels(x, dtype(0.5)))


def test_cells_have_a_length_along_each_axis():
    x = points(100, 2)
    size = np.array([0.1, 2.0])
    np.testing.assert_array_equal(grid_cluster(x, size), naive_labels(x, size))


def test_more_than_1024_cells_an_axis_do_not_merge():
    x = np.array([[0.5, 1024.5], [1.5, 0.5], [0.5, 1025.5], [1.5, 1.5]])
    np.testing.assert_array_equal(grid_cluster(x, 1.0), [0, 2, 1, 3])


def test_grids_beyond_64_bits():
    x = 1e15 * np.random.default_rng(0).integers(-1, 2, (60, 4))  # 81 cells: some have several points
    np.testing.assert_array_equal(grid_cluster(x, 1.0), naive_labels(x, 1.0))


@pytest.mark.parametrize("shape", [(0, 3), (5, 0), (1, 1)])
def test_few_points_and_no_coordinates(shape):
    labels = grid_cluster(np.zeros(shape), 1.0)
    np.testing.assert_array_equal(labels, np.zeros(shape[0]))
    np.testing.assert_array_equal(balanced_clusters(np.zeros(shape), 10), np.zeros(shape[0]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_what_lies_in_no_cell_is_refused(bad):
    with pytest.raises(ValueError, match="x: expected finite"):
        grid_cluster(np.array([[0.0], [bad]]), 1.0)


@pytest.mark.parametrize("size", [0.0, -1.0, np.nan])
def test_sizes_of_cells_are_positive(size):
    with pytest.raises(ValueError, match="size: expected positive"):
        grid_cluster(np.zeros((3, 2)), size)


def test_points_have_two_axes():
    with pytest.raises(ValueError, match="x: expected points in two axes"):
        grid_cluster(np.zeros(3), 1.0)


def test_sorting_is_stable_and_can_be_undone():
    lab = np.random.default_rng(0).integers(0, 5, 1000)
    x, weight = np.arange(1000.0)[:, None], np.arange(1000)
    (x_sorted, w_sorted), lab_sorted, order, inverse = sort_clusters((x, weight), lab, return_permutation=True)
    np.testing.assert_array_equal(lab_sorted, np.sort(lab))
    for label in range(5):
        np.testing.assert_array_equal(w_sorted[lab_sorted == label], np.flatnonzero(lab == label))
    np.testing.assert_array_equal(x[order], x_sorted)
    np.testing.assert_array_equal(x_sorted[inverse], x)


def test_sorting_keeps_the_kind_of_sequence():
    x, lab = np.zeros((3, 2)), np.array([1, 0, 1])
    assert isinstance(sort_clusters((x, x), lab)[0], tuple)
    assert isinstance(sort_clusters([x, x], lab)[0], list)
    assert isinstance(sort_clusters(x, lab)[0], np.ndarray)
    with pytest.raises(ValueError, match=r"x\[1\]: expected 3 rows"):
        sort_clusters((x, x[:2]), lab)


def test_ranges_are_exact_integers():
    counts = np.array([2**24 + 1, 1, 0, 3])
    np.testing.assert_array_equal(
        cluster_ranges(None, counts),
        [[0, 2**24 + 1], [2**24 + 1, 2**24 + 2], [2**24 + 2] * 2, [2**24 + 2, 2**24 + 5]],
    )
    assert cluster_ranges(np.array([0, 0, 1, 2], np.uint8)).dtype == np.int64


@pytest.mark.parametrize("weighted", [False, True])
def test_centroids(weighted):
    x, lab = points(500, 3, dtype=np.float32), np.sort(np.random.default_rng(1).integers(0, 7, 500))
    weights = np.random.default_rng(2).random(500).astype(np.float32) if weighted else None
    ranges, centroids, totals = cluster_ranges_centroids(x, lab, weights)
    assert centroids.dtype == np.float32
    assert totals.dtype == np.float64
    for label in range(7):
        own = lab == label
        w = np.ones(own.sum()) if weights is None else weights[own]
        np.testing.assert_allclose(centroids[label], np.average(x[own], axis=0, weights=w), rtol=1e-5)
        np.testing.assert_allclose(totals[label], w.sum(dtype=float))
        assert ranges[label, 1] - ranges[label, 0] == own.sum()
    np.testing.assert_array_equal(cluster_centroids(x, lab, weights=weights), centroids)


def test_a_label_without_points_has_no_centroid():
    centroids = cluster_centroids(np.array([[1.0], [3.0]]), np.array([0, 2]))
    np.testing.assert_array_equal(centroids, [[1.0], [np.nan], [3.0]])


def test_a_matrix_of_clusters_becomes_ranges():
    rng = np.random.default_rng(3)
    ends_i, ends_j = np.cumsum(rng.integers(1, 9, 6)), np.cumsum(rng.integers(1, 9, 4))
    r_i, r_j = (np.stack([np.r_[0, ends[:-1]], ends], 1) for ends in (ends_i, ends_j))
    keep = rng.random((6, 4)) < 0.4
    ranges = from_matrix(r_i, r_j, keep)
    dense = np.repeat(np.repeat(keep, np.diff(r_i)[:, 0], 0), np.diff(r_j)[:, 0], 1)
    for (blocks, slices, columns), mask in ((ranges[:3], dense), (ranges[3:], dense.T)):
        seen, begin = np.zeros_like(mask), 0
        for (first, last), end in zip(blocks, slices):
            for start, stop in columns[begin:end]:
                seen[first:last, start:stop] = True
            begin = end
        np.testing.assert_array_equal(seen, mask)
    assert swap_axes(ranges)[0] is ranges[3] and swap_axes(None) is None
    with pytest.raises(ValueError, match=r"keep: expected shape \(6, 4\)"):
        from_matrix(r_i, r_j, keep.T)


@pytest.mark.parametrize("method", ["leaves", "morton"])
@pytest.mark.parametrize("n, size", [(1000, 32), (1000, 1), (31, 32), (97, 10)])
def test_balanced_clusters_are_of_equal_sizes(method, n, size):
    labels = balanced_clusters(points(n, 3), size, method=method)
    counts = np.bincount(labels)
    assert counts.max() <= size
    assert counts.max() - counts.min() <= 1
    assert len(counts) == -(-n // size)


def test_unsigned_points_are_ordered_as_signed_ones():
    rng = np.random.default_rng(0)
    points = rng.integers(0, [1, 200, 30], (500, 3))  # the axis without extent comes last
    expected, got = (balanced_clusters(points.astype(dtype), 50, method="morton") for dtype in ("int64", "uint64"))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("method, dim", [("leaves", 2), ("morton", 2), ("leaves", 80), ("morton", 80)])
def test_balanced_clusters_are_close(method, dim):
    x = points(4000, 2)
    spread = np.zeros((4000, dim))
    spread[:, :2] = x
    labels = balanced_clusters(spread, 40, method=method)
    # A Z curve jumps now and then, so not the mean.
    inside = np.median([x[labels == label].var(axis=0).sum() for label in range(labels.max() + 1)])
    assert inside < 0.03 * x.var(axis=0).sum()


def test_balanced_clusters_check_their_arguments():
    with pytest.raises(ValueError, match="size: expected at least 1"):
        balanced_clusters(points(5, 2), 0)
    with pytest.raises(ValueError, match="method: expected 'leaves' or 'morton', got 'kmeans'"):
        balanced_clusters(points(5, 2), 2, method="kmeans")
    with pytest.raises(ValueError, match="x: expected finite"):
        balanced_clusters(np.array([[np.nan], [0.0]]), 1)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_ranges_are_of_sorted_points(dtype):
    lab = np.array([0, 2, 1, 1], dtype)
    x = points(4, 2)
    for call in (lambda **keywords: cluster_ranges(lab, **keywords), lambda **keywords: cluster_ranges(
        lab, np.array([1, 2, 1]), **keywords), lambda **keywords: cluster_ranges_centroids(x, lab, **keywords)[0],
        lambda **keywords: cluster_ranges_centroids(x, lab, np.ones(4), **keywords)[0]):  # fmt: skip
        with pytest.raises(ValueError, match=r"lab: expected sorted labels, got 1 after 2 at 2; .*sort_clusters"):
            call()
        assert call(check=False).tolist() == cluster_ranges(np.sort(lab)).tolist()


@pytest.mark.parametrize("bad", [[[0, 2], [5, 2]], [[-1, 2], [2, 5]]])
def test_clusters_of_a_matrix_are_intervals(bad):
    good, keep = [[0, 2], [2, 5]], np.ones((2, 2))
    for arguments, name in (((bad, good), "ranges_i"), ((good, bad), "ranges_j")):
        with pytest.raises(ValueError, match=rf"{name}: expected \[start, end\) of clusters, .* for cluster"):
            from_matrix(*arguments, keep)
    with pytest.raises(ValueError, match=r"ranges_i: expected shape \(C, 2\).*got \(2,\)"):
        from_matrix([0, 2], good, keep)


def test_labels_are_integers_from_0():
    with pytest.raises(TypeError, match="lab: expected integers, got dtype float64"):
        cluster_ranges(np.zeros(3))
    with pytest.raises(ValueError, match="lab: labels have to be 0 or more, got -1"):
        cluster_ranges(np.array([0, -1]))


def test_sizes_and_weights_fit_the_points():
    x, lab = points(5, 3), np.zeros(5, int)
    for call, message in (
        (lambda: grid_cluster(x, [0.1, 0.2]), "size: expected a number, or one for each of 3 axes"),
        (lambda: grid_cluster(x, "a"), "size: expected a number"),
        (lambda: cluster_centroids(x, lab, weights=np.ones(4)), "weights: expected one for each of 5 points"),
        (lambda: cluster_ranges_centroids(x, lab, np.ones(6)), "weights: expected one for each of 5 points"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_lists_are_arrays():
    actual = from_matrix([[0, 2], [2, 5]], [[0, 4]], [[True], [False]])
    assert [part.tolist() for part in actual] == [
        [[0, 2], [2, 5]], [1, 1], [[0, 4]], [[0, 4]], [1], [[0, 2]],
    ]  # fmt: skip
    np.testing.assert_array_equal(balanced_clusters(points(7, 2), np.int64(3)), balanced_clusters(points(7, 2), 3))


def test_weights_may_have_a_floor():
    x, lab, weights = np.array([[1.0], [3.0]]), np.array([0, 1]), np.array([0.0, 1.0])
    assert np.isnan(cluster_ranges_centroids(x, lab, weights)[1][0, 0])
    _, centroids, totals = cluster_ranges_centroids(x, lab, weights, min_weight=0.25)
    assert centroids.tolist() == [[1.0], [3.0]] and totals.tolist() == [0.25, 1.0]


def test_known_totals_are_of_all_labels():
    x, lab = points(4, 2), np.array([0, 1, 2, 2])
    with pytest.raises(ValueError, match="Nlab: expected one for each of 3 labels, got 2"):
        cluster_centroids(x, lab, np.array([1, 1]))
    with pytest.raises(ValueError, match="weights_c: expected one for each of 3 labels, got 2"):
        cluster_centroids(x, lab, weights=np.ones(4), weights_c=np.ones(2))
