"""
A block-sparse kernel on a map
==============================

A narrow Gaussian vanishes for far points. Points are sorted into cells, and only near cells meet: the result
is the same, the work a tenth.
"""

import matplotlib.pyplot as plt
import numpy as np
from upsweep import BlockRanges, Vi, Vj
from upsweep.cluster import cluster_ranges, grid_cluster, sort_clusters

rng = np.random.default_rng(16)
centres = rng.random((60, 2))
points = (centres[rng.integers(60, size=8_000)] + rng.normal(0, 0.03, (8_000, 2))).clip(0, 1)
points, cells = sort_clusters(points, grid_cluster(points, 0.05))
near = BlockRanges.from_radius(points, points, 0.15, cluster_ranges(cells))
print(near)

kernel = (-Vi(points).sqdist(Vj(points)) / (2 * 0.025**2)).exp()
density = kernel.sum(axis=1, ranges=near)
np.testing.assert_allclose(density, kernel.sum(axis=1), rtol=1e-4)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.scatter(*points.T, c=cells % 20, s=1, cmap="tab20")
left.set_title("cells")
right.scatter(*points.T, c=density[:, 0], s=1)
right.set_title("density")
for axes in (left, right):
    axes.set_aspect("equal")
    axes.set_axis_off()
