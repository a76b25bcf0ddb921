"""
Zonal statistics
================

Mean and spread of a map in each of its zones. Counts, sums and sums of squares come from one pass over the
labels; the mean of the map is subtracted before, so that the squares do not cancel.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep
from upsweep import Vi, Vj

rng = np.random.default_rng(7)
y, x = np.mgrid[0:1:200j, 0:1:200j]
heights = np.sin(9 * x) * np.cos(7 * y) + rng.normal(0, 0.2, x.shape)
centres = rng.random((40, 2))
cells = np.stack([x.ravel(), y.ravel()], axis=1)
zones = Vi(cells).sqdist(Vj(centres)).argmin(axis=1)[:, 0]  # the nearest centre

values = heights.ravel()
centre = values.mean()
centred = values - centre  # else the difference below cancels where heights are large
moments = upsweep.bincount(zones, np.stack([np.ones_like(values), centred, centred**2], axis=1), length=40)
counts, sums, squares = moments.T
means, spread = centre + sums / counts, np.sqrt(squares / counts - (sums / counts) ** 2)
np.testing.assert_allclose(means[3], values[zones == 3].mean())
np.testing.assert_allclose(spread[3], values[zones == 3].std())

fig, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for each, picture, title in zip(
    axes, (heights, means[zones], spread[zones]), ("heights", "mean", "standard deviation")
):
    each.imshow(picture.reshape(x.shape), origin="lower")
    each.set_title(title)
    each.set_axis_off()
