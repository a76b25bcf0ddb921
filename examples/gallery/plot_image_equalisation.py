"""
Equalising an image
===================

The histogram of an image, its cumulative sum, and the grey levels that make it flat: two calls and a look-up.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

y, x = np.mgrid[-1:1:300j, -1:1:400j]
scene = np.exp(-4 * (x**2 + y**2)) + 0.1 * np.sin(25 * x) * np.cos(25 * y)
image = np.clip(90 + 50 * scene, 0, 255).astype(np.uint8)  # dull: few grey levels

counts = upsweep.bincount(image.ravel(), minlength=256)
ranks = upsweep.cumulative_sum(counts)
levels = (255 * (ranks - counts[image.min()]) / (image.size - counts[image.min()])).clip(0, 255).astype(np.uint8)
equalised = levels[image]

fig, axes = plt.subplots(2, 2, figsize=(8, 5), layout="constrained", height_ratios=[3, 1])
for column, picture in enumerate((image, equalised)):
    axes[0, column].imshow(picture, cmap="gray", vmin=0, vmax=255)
    axes[0, column].set_axis_off()
    axes[1, column].bar(np.arange(256), upsweep.bincount(picture.ravel(), minlength=256), width=1)
