"""
Nearest neighbours
==================

Classification by the votes of the 15 nearest points. ``argKmin`` returns their indices, in order.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep
from upsweep import Vi, Vj

rng = np.random.default_rng(12)
turn = np.sqrt(rng.random(900)) * 9
kind = np.arange(900) % 3
angle = turn + kind * 2 * np.pi / 3
points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) + rng.normal(0, 0.3, (900, 2))

y, x = np.mgrid[-10:10:90j, -10:10:90j]
pixels = np.stack([x.ravel(), y.ravel()], axis=1)
nearest = Vi(pixels).sqdist(Vj(points)).argKmin(15, axis=1)
votes = upsweep.bincount(kind[nearest], axis=1, length=3)

plt.figure(figsize=(5, 5), layout="constrained")
plt.imshow((votes / 15).reshape(90, 90, 3), extent=(-10, 10, -10, 10), origin="lower")
plt.scatter(*points.T, c=kind, cmap="gray", edgecolor="k", s=8, linewidth=0.3)
