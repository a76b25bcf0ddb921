"""
k-means
=======

Assignment is a reduction over pairs, the new centres are sums by label. No array of points times centres is
stored.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep
from upsweep import Vi, Vj

rng = np.random.default_rng(10)
points = np.concatenate([rng.normal(centre, 0.08, (2_000, 2)) for centre in rng.random((12, 2))])
centres = points[rng.choice(len(points), 12, replace=False)]

for _ in range(25):
    labels = Vi(points).sqdist(Vj(centres)).argmin(axis=1)[:, 0]
    counts = upsweep.bincount(labels, length=12)
    centres = upsweep.bincount(labels, points, length=12) / np.maximum(counts, 1)[:, None]

plt.figure(figsize=(5, 5), layout="constrained")
plt.scatter(*points.T, c=labels, s=1, cmap="tab20")
plt.plot(*centres.T, "k+", markersize=12)
plt.axis("equal")
