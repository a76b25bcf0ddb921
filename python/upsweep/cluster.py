"""Clusters of points that lie together in memory: what block-sparse reductions over pairs are cut along.

The seven functions that KeOps has, with its signatures and shapes, for points of any dimension; and clusters of
equal sizes. Arrays of numpy, torch and cupy stay where they are; those of dask are computed. The usual order of
things:

    labels = grid_cluster(x, size)                        a cell for each point
    x, labels = sort_clusters(x, labels)
    ranges, centroids, weights = cluster_ranges_centroids(x, labels)    ranges[k] are the rows of cluster k
    keep = ((centroids[:, None] - centroids) ** 2).sum(-1) < radius**2
    from_matrix(ranges, ranges, keep)                     `ranges` of a reduction
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep._core.cluster import ArrayOps
from upsweep._utils.integers import as_size

__all__ = [
    "balanced_clusters", "cluster_centroids", "cluster_ranges", "cluster_ranges_centroids", "from_matrix",
    "grid_cluster", "sort_clusters", "swap_axes",
]  # fmt: skip


def _array_ops(*values: Any) -> Any:
    """Return the operations of the library of these arrays."""
    if _arrays.any_torch(*values):
        return handlers("torch").cluster.TensorOps(next(value for value in values if _arrays.any_torch(value)))
    cupy = sys.modules.get("cupy")
    return ArrayOps(np if cupy is None or not any(isinstance(value, cupy.ndarray) for value in values) else cupy)


def grid_cluster(x: Any, size: Any) -> Any:
    """Label points by the cubic cell they lie in.

    Parameters
    ----------
    x : (M, D) array of numpy, torch or cupy
        Points.
    size : float or (D,) array
        Edge lengths of the cells, positive. Cells begin at multiples of it; for tensors, as in KeOps, at the least
        coordinates.

    Returns
    -------
    labels : (M,) array of int64
        Equal for two points if and only if they share a cell, at any number of cells. Numbered from 0 without
        gaps, in the lexicographic order of the cells.

    Raises
    ------
    ValueError
        `x` is not of two axes, or not finite; `size` is not positive, or neither one number nor one an axis.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep.cluster import grid_cluster
    >>> grid_cluster(np.array([[0.0], [0.1], [0.9], [0.05], [0.5]]), 0.2)
    array([0, 0, 2, 0, 1])
    """
    ops = _array_ops(x, size)
    points = ops.points(x, "x")
    return ops.labels_of_cells(ops.cells(points, size))


def balanced_clusters(x: Any, size: int, *, method: str = "leaves") -> Any:
    """Label points so that all clusters have the same number of points, within one, and at most `size`.

    Parameters
    ----------
    x : (M, D) array of numpy, torch or cupy
        Points.
    size : int
        The most points in a cluster.
    method : {"leaves", "morton"}
        "leaves": halve along the widest coordinate until a part is small enough: compact clusters. "morton": cut
        the Morton (Z) curve through the points, which is faster.

    Returns
    -------
    labels : (M,) array of int64
        From 0 without gaps; neighbours have close labels.

    Raises
    ------
    ValueError
        `x` is not of two axes, or not finite; `size` is less than 1; no such method.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep.cluster import balanced_clusters
    >>> balanced_clusters(np.array([[0.0], [5.0], [0.4], [0.3], [2.0], [9.0]]), 3)
    array([0, 1, 0, 0, 1, 1])
    """
    ops = _array_ops(x)
    points = ops.points(x, "x")
    size = as_size(size, "size", 1, unit="point in a cluster")
    if method not in ("leaves", "morton"):
        raise ValueError(f"method: expected 'leaves' or 'morton', got {method!r}")
    n_points = points.shape[0]
    n_clusters = -(-n_points // size)
    order = ops.leaf_order(points, n_clusters) if method == "leaves" else ops.morton_order(points)
    # Cluster k has the points from k*M/C to (k+1)*M/C of the order.
    labels = ops.zeros(n_points)
    labels[order] = ops.arange(n_points) * n_clusters // max(n_points, 1)
    return labels


def sort_clusters(x: Any, lab: Any, *, return_permutation: bool = False) -> Any:
    """Sort points by their labels, so that each cluster lies together; points of a cluster keep their order.

    Parameters
    ----------
    x : (M, ...) array, or a tuple or list of such arrays
        Points, and whatever else belongs to them.
    lab : (M,) integer array
        Labels.
    return_permutation : bool
        Return also how to get from one order to the other.

    Returns
    -------
    x_sorted : as `x`
    lab_sorted : (M,) array
    permutation, inverse : (M,) arrays of int64
        Only with `return_permutation`: ``x_sorted = x[permutation]`` and ``x = x_sorted[inverse]``.

    Raises
    ------
    ValueError
        An array has not as many rows as there are labels.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep.cluster import sort_clusters
    >>> x_sorted, lab_sorted = sort_clusters(np.array([[0.0], [5.0], [0.4]]), np.array([0, 2, 0]))
    >>> x_sorted[:, 0], lab_sorted
    (array([0. , 0.4, 5. ]), array([0, 0, 2]))
    """
    arrays = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    ops = _array_ops(lab, *arrays)
    labels = ops.labels(lab)
    for place, array in enumerate(arrays):
        if len(array.shape) == 0 or array.shape[0] != labels.shape[0]:
            what = f"x[{place}]" if isinstance(x, (tuple, list)) else "x"
            raise ValueError(f"{what}: expected {labels.shape[0]} rows, as lab has, got {tuple(array.shape)}")
    order = ops.stable_order(labels)
    moved = [array[order] for array in arrays]
    x_sorted = tuple(moved) if isinstance(x, tuple) else moved if isinstance(x, list) else moved[0]
    if not return_permutation:
        return x_sorted, labels[order]
    inverse = ops.zeros(labels.shape[0])
    inverse[order] = ops.arange(labels.shape[0])
    return x_sorted, labels[order], order, inverse


def cluster_ranges(lab: Any, Nlab: Any = None, *, check: bool = True) -> Any:
    """The rows of each cluster of points that are sorted by label.

    Parameters
    ----------
    lab : (M,) integer array
        Labels, sorted as `sort_clusters` returns them.
    Nlab : (C,) array, optional
        How many points each label has, if that is known; `lab` may be None then.
    check : bool
        Whether to raise for labels that are not sorted: the ranges are no rows of points in another order. False
        where the points are sorted afterwards, as in scripts of KeOps.

    Returns
    -------
    ranges : (C, 2) array of int64
        ``[start, end)`` of each label, exact at any number of points.

    Raises
    ------
    TypeError
        `lab` is of no integers.
    ValueError
        Labels are not sorted, or negative.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep.cluster import cluster_ranges
    >>> cluster_ranges(np.array([0, 0, 0, 1, 2]))
    array([[0, 3],
           [3, 4],
           [4, 5]])
    """
    ops = _array_ops(lab, Nlab)
    labels = None if lab is None and Nlab is not None else ops.labels(lab)
    counts = ops.count(labels) if Nlab is None else ops.integers(Nlab)
    if check and labels is not None:
        ops.check_sorted(labels)
    ends = ops.cumulative_sum(counts)
    return ops.stack(ends - counts, ends)


def cluster_centroids(x: Any, lab: Any, Nlab: Any = None, weights: Any = None, weights_c: Any = None) -> Any:
    """The mean of the points of each cluster, weighted if weights are given.

    Parameters
    ----------
    x : (M, D) array
        Points.
    lab : (M,) integer array
        Labels.
    Nlab : (C,) array, optional
        How many points each label has, if that is known.
    weights : (M,) array, optional
        Of the points.
    weights_c : (C,) array, optional
        The sum of each cluster's weights, if that is known.

    Returns
    -------
    centroids : (C, D) array of x's dtype
        Summed in float64. NaN for a label that no point has.

    Raises
    ------
    TypeError
        `lab` is of no integers.
    ValueError
        Not one label or weight for each point; fewer totals than labels.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep.cluster import cluster_centroids
    >>> x = np.array([[0.0], [1.0], [4.0], [5.0], [6.0]])
    >>> cluster_centroids(x, np.array([0, 0, 1, 1, 1]), weights=np.array([0.5, 0.5, 2.0, 1.0, 1.0]))
    array([[0.5 ],
           [4.75]])
    """
    ops = _array_ops(x, lab, weights)
    points, labels = ops.points(x, "x"), ops.labels(lab)
    if points.shape[0] != labels.shape[0]:
        raise ValueError(f"lab: expected {points.shape[0]} labels, as x has rows, got {labels.shape[0]}")
    weights = _as_weights(ops, weights, labels.shape[0])
    if weights is None:
        totals = ops.count(labels) if Nlab is None else ops.at_labels(Nlab, labels, "Nlab")
        sums = ops.sum_by_label(labels, points, totals.shape[0])
    else:
        if weights_c is None:
            weights_c = ops.sum_by_label(labels, weights.reshape(-1, 1), None)
        totals = ops.at_labels(weights_c, labels, "weights_c")
        sums = ops.sum_by_label(labels, points, totals.shape[0], weights.reshape(-1))
    return ops.quotient(sums, totals, points)


def _as_weights(ops: Any, weights: Any, n_points: int) -> Any:
    """The weights as an array of the points' library, or None."""
    if weights is None:
        return None
    weights = ops.array(weights)
    if tuple(weights.reshape(-1).shape) != (n_points,):
        raise ValueError(f"weights: expected one for each of {n_points} points, got shape {tuple(weights.shape)}")
    return weights


def cluster_ranges_centroids(
    x: Any, lab: Any, weights: Any = None, min_weight: float | None = None, *, check: bool = True
) -> tuple[Any, Any, Any]:
    """The rows of each cluster, its centroid, and its weight, of points that are sorted by label.

    Parameters
    ----------
    x : (M, D) array
        Points, sorted by `sort_clusters`.
    lab : (M,) integer array
        Their labels.
    weights : (M,) array, optional
        Of the points; 1 without them.
    min_weight : float, optional
        Lesser weights are raised to it, so that no cluster is without weight. As in KeOps 1e-9 for tensors, and by
        default nothing for other arrays.
    check : bool
        As of `cluster_ranges`.

    Returns
    -------
    ranges : (C, 2) array of int64
    centroids : (C, D) array of x's dtype
    weights_c : (C,) array
        The sum of each cluster's weights, or its number of points: float64; of tensors the weights' dtype, or x's.

    Raises
    ------
    TypeError
        `lab` is of no integers.
    ValueError
        Labels are not sorted, or negative; not one label or weight for each point.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep.cluster import cluster_ranges_centroids
    >>> x, lab = np.array([[0.0], [0.5], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1, 1])
    >>> ranges, centroids, weights_c = cluster_ranges_centroids(x, lab)
    >>> ranges.tolist(), centroids.tolist(), weights_c
    ([[0, 2], [2, 5]], [[0.25], [2.0]], array([2., 3.]))
    """
    ops = _array_ops(x, lab, weights)
    labels = ops.labels(lab)
    weights = _as_weights(ops, weights, labels.shape[0])
    counts = ops.count(labels)
    ranges = cluster_ranges(lab, counts, check=check)
    if weights is None:
        return ranges, cluster_centroids(x, lab, counts), ops.floats(counts, x)
    least = ops.MIN_WEIGHT if min_weight is None else min_weight
    if least is not None:
        weights = ops.at_least(weights, least)
    totals = ops.sum_by_label(labels, weights.reshape(-1, 1), None).reshape(-1)
    centroids = cluster_centroids(x, lab, counts, weights=weights, weights_c=totals)
    return ranges, centroids, ops.floats(totals, weights)


def from_matrix(ranges_i: Any, ranges_j: Any, keep: Any) -> tuple[Any, ...]:
    """Turn a matrix of clusters that see each other into the `ranges` of a reduction.

    Parameters
    ----------
    ranges_i : (Mc, 2) integer array
        ``[start, end)`` of the clusters of rows.
    ranges_j : (Nc, 2) integer array
        ``[start, end)`` of the clusters of columns.
    keep : (Mc, Nc) bool array
        Which pairs of clusters are reduced over.

    Returns
    -------
    ranges_i, slices_i, redranges_j, ranges_j, slices_j, redranges_i : arrays
        Block k of rows, ``ranges_i[k]``, sees the columns
        ``redranges_j[slices_i[k - 1]:slices_i[k]]`` (from 0 for the first block); the last three say the same of
        blocks of columns, for reductions over rows.

    Raises
    ------
    ValueError
        `keep` has not one row a cluster of rows and one column a cluster of columns; a cluster is no
        ``[start, end)``.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep.cluster import from_matrix
    >>> r_i, r_j = np.array([[2, 5], [7, 12]]), np.array([[1, 4], [4, 9], [20, 30]])
    >>> keep = np.array([[True, True, False], [False, True, False]])
    >>> _, slices_i, redranges_j, _, slices_j, redranges_i = from_matrix(r_i, r_j, keep)
    >>> slices_i, redranges_j.tolist(), slices_j, redranges_i.tolist()
    (array([2, 3]), [[1, 4], [4, 9], [4, 9]], array([1, 3, 3]), [[2, 5], [2, 5], [7, 12]])
    """
    ops = _array_ops(ranges_i, ranges_j, keep)
    ranges_i, ranges_j = ops.ranges(ranges_i, "ranges_i"), ops.ranges(ranges_j, "ranges_j")
    keep = ops.array(keep)
    if tuple(keep.shape) != (ranges_i.shape[0], ranges_j.shape[0]):
        raise ValueError(
            f"keep: expected shape {(ranges_i.shape[0], ranges_j.shape[0])}, a row for each of ranges_i and a "
            f"column for each of ranges_j, got {tuple(keep.shape)}"
        )
    slices_i, columns = ops.rows_of_matrix(keep)
    slices_j, rows = ops.rows_of_matrix(keep.T)
    return ranges_i, slices_i, ranges_j[columns], ranges_j, slices_j, ranges_i[rows]


def swap_axes(ranges: Any) -> Any:
    """The `ranges` of the transposed reduction: the last three of the tuple first; None for None.

    Parameters
    ----------
    ranges : tuple of six arrays, BlockRanges or None
        Of a reduction.

    Returns
    -------
    tuple of six arrays, or None

    Raises
    ------
    ValueError
        There are not six.

    Examples
    --------
    >>> from upsweep.cluster import swap_axes
    >>> swap_axes((1, 2, 3, 4, 5, 6))
    (4, 5, 6, 1, 2, 3)
    """
    if ranges is None:
        return None
    if len(ranges) != 6:
        raise ValueError(f"ranges: expected six arrays, got {len(ranges)}")
    return (*ranges[3:6], *ranges[0:3])
