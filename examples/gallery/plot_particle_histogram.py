"""
A histogram with errors
=======================

Weighted events of a signal over a background. The error of a bin is the root of its sum of squared weights,
so the weights and their squares are summed by the same keys.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

rng = np.random.default_rng(8)
masses = np.concatenate([rng.exponential(40, 200_000) + 60, rng.normal(125, 2.5, 3_000)])
weights = rng.uniform(0.5, 1.5, masses.size)
edges = np.linspace(100, 160, 61)

sums, _ = upsweep.histogram(masses, edges, weights=weights)
errors = np.sqrt(upsweep.histogram(masses, edges, weights=weights**2)[0])
np.testing.assert_allclose(sums, np.histogram(masses, edges, weights=weights)[0])

centres = (edges[1:] + edges[:-1]) / 2
outside = np.abs(centres - 125) > 8
background = np.exp(np.polyval(np.polyfit(centres[outside], np.log(sums[outside]), 2), centres))

fig, (above, below) = plt.subplots(2, sharex=True, figsize=(7, 4.5), layout="constrained", height_ratios=[2, 1])
above.errorbar(centres, sums, errors, fmt="k.", label="events")
above.plot(centres, background, label="background")
above.legend()
below.errorbar(centres, sums - background, errors, fmt="k.")
below.axhline(0, color="0.7")
below.set_xlabel("mass")
