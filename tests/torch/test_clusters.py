"""Clusters of tensors, against those of arrays."""

import numpy as np
import pytest
from tensors import torch
from upsweep import cluster


@pytest.fixture
def x():
    return torch.randn(300, 3, generator=torch.Generator().manual_seed(0))


def test_cells_begin_at_the_least_coordinates(x):
    labels = cluster.grid_cluster(x, 0.7)
    assert labels.dtype == torch.int64
    np.testing.assert_array_equal(labels, cluster.grid_cluster((x - x.min(0).values).numpy(), 0.7))


def test_the_whole_way_is_numpys(x):
    weights = torch.rand(300, generator=torch.Generator().manual_seed(1))
    x, lab = cluster.sort_clusters(x, cluster.grid_cluster(x, 1.0))
    ours = cluster.cluster_ranges_centroids(x, lab, weights)
    expected = cluster.cluster_ranges_centroids(x.numpy(), lab.numpy(), weights.numpy())
    assert [part.dtype for part in ours] == [torch.int64, torch.float32, torch.float32]
    for result, other in zip(ours, expected):
        np.testing.assert_allclose(result, other, rtol=1e-6)
    keep = ((ours[1][:, None] - ours[1]) ** 2).sum(-1) < 4
    tensors = cluster.from_matrix(ours[0], ours[0], keep)
    arrays = cluster.from_matrix(expected[0], expected[0], keep.numpy())
    for result, other in zip(tensors, arrays):
        assert isinstance(result, torch.Tensor)
        np.testing.assert_array_equal(result, other)
    for result, other in zip(
        cluster.sort_clusters(x, lab, return_permutation=True),
        cluster.sort_clusters(x.numpy(), lab.numpy(), return_permutation=True),
    ):
        np.testing.assert_array_equal(result, other)


@pytest.mark.parametrize("method", ["leaves", "morton"])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_balanced_clusters_are_numpys(x, method, size):
    ours = cluster.balanced_clusters(x, size, method=method)
    reference_result = cluster.balanced_clusters(x.numpy(), size, method=method)
    if method == "morton":  # leaves have the same points, in any order inside
        np.testing.assert_array_equal(ours, reference_result)
    assert np.bincount(ours).max() <= size
    np.testing.assert_array_equal(np.bincount(ours), np.bincount(reference_result))
    middle = [np.abs(x.numpy()[ours.numpy() == label]).sum() for label in range(3) if label in ours]
    expected = [
        np.abs(x.numpy()[reference_result == label]).sum() for label in range(3) if label in reference_result
    ]
    np.testing.assert_allclose(middle, expected, rtol=1e-5)


def test_arrays_beside_tensors_are_refused(x):
    with pytest.raises(TypeError, match="lab: expected a tensor"):
        cluster.cluster_centroids(x, np.zeros(300, int))


def test_sizes_and_weights_fit_the_points():
    x = torch.zeros(5, 3)
    with pytest.raises(ValueError, match="size: expected a number, or one for each of 3 axes"):
        cluster.grid_cluster(x, [0.1, 0.2])
    with pytest.raises(ValueError, match="weights: expected one for each of 5 points"):
        cluster.cluster_centroids(x, torch.zeros(5, dtype=torch.int64), weights=torch.ones(4))
    result = cluster.from_matrix([[0, 2]], [[0, 4]], torch.tensor([[True]]))
    assert [part.tolist() for part in result] == [[[0, 2]], [1], [[0, 4]], [[0, 4]], [1], [[0, 2]]]


def test_clusters_of_tensors_have_a_weight():
    """KeOps' default for tensors; its functions of arrays have none."""
    x, lab = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 1, 1])
    _, centroids, totals = cluster.cluster_ranges_centroids(x, lab, torch.tensor([0.0, 1.0, 1.0]))
    assert centroids.tolist() == [[1.0], [4.0]] and totals[0] == np.float32(1e-9)
    _, _, totals = cluster.cluster_ranges_centroids(x, lab, torch.tensor([0.0, 1.0, 1.0]), 0.5)
    assert totals.tolist() == [0.5, 2.0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
def test_labels_of_any_integers(x, dtype):
    lab = torch.arange(300) // 43
    for function in (cluster.cluster_ranges, lambda labels: cluster.cluster_centroids(x, labels)):
        assert torch.equal(function(lab.to(dtype)), function(lab))
    with pytest.raises(ValueError, match="Nlab: expected one for each of 7 labels, got 2"):
        cluster.cluster_centroids(x, lab.to(dtype), torch.ones(2, dtype=torch.int64))
