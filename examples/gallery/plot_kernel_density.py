"""
Kernel density
==============

A Gaussian for each of 20,000 points, summed at each pixel of a map: 400 million pairs, of which none is
stored.
"""

import matplotlib.pyplot as plt
import numpy as np
from upsweep import Vi, Vj

rng = np.random.default_rng(11)
angle = rng.uniform(0, 2 * np.pi, 20_000)
points = np.stack([np.cos(angle), np.sin(2 * angle)], axis=1) + rng.normal(0, 0.1, (20_000, 2))
points = points.astype(np.float32)

y, x = np.mgrid[-1.6:1.6:60j, -1.6:1.6:60j].astype(np.float32)
pixels = np.stack([x.ravel(), y.ravel()], axis=1)
bandwidth = 0.07
density = (-Vi(pixels).sqdist(Vj(points)) / (2 * bandwidth**2)).exp().sum(axis=1)
density /= len(points) * 2 * np.pi * bandwidth**2
print("integral:", round(float(density.sum() * (x[0, 1] - x[0, 0]) * (y[1, 0] - y[0, 0])), 3))

plt.figure(figsize=(5, 4.5), layout="constrained")
plt.pcolormesh(x, y, density.reshape(x.shape))
plt.plot(*points[::40].T, "w.", markersize=1)
plt.colorbar()
