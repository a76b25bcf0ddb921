"""
Mean colour of each region
==========================

Weighted means by label, of three channels at once: ``weights`` of shape (n, 3) give three sums for each key.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

rng = np.random.default_rng(9)
y, x = np.mgrid[0:1:160j, 0:1:240j]
picture = np.stack([np.sin(5 * x + y), np.cos(4 * y - x), np.sin(6 * x * y)], axis=-1) / 2 + 0.5
picture = (picture + rng.normal(0, 0.15, picture.shape)).clip(0, 1)

# %%
# Regions are squares of different sizes; a pixel near the centre of the picture counts more.

labels = (x * 12).astype(int) * 8 + (y * 8).astype(int)
importance = np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
sums = upsweep.bincount(labels.ravel(), (picture * importance[..., None]).reshape(-1, 3))
means = sums / upsweep.bincount(labels.ravel(), importance.ravel())[:, None]

fig, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for each, shown in zip(axes, (picture, means[labels])):
    each.imshow(shown)
    each.set_axis_off()
