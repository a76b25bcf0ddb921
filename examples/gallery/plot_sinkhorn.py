"""
Optimal transport
=================

Sinkhorn's iterations in logarithms: two log-sum-exp reductions over pairs for each step, without a transport
matrix.
"""

import matplotlib.pyplot as plt
import numpy as np
from upsweep import Vi, Vj

rng = np.random.default_rng(15)
angle = rng.uniform(0, 2 * np.pi, (600, 1))
source = np.hstack([np.cos(angle), np.sin(angle)]) + rng.normal(0, 0.05, (600, 2))
target = rng.uniform(-0.6, 0.6, (600, 2)) + [2.5, 0]
blur, log_weight = 0.1, -np.log(600)


def cost(a, b):
    return Vi(a).sqdist(Vj(b)) / 2


f = g = np.zeros((600, 1))
for epsilon in [*np.geomspace(4.0, blur**2, 12), *[blur**2] * 30]:
    f = -epsilon * ((Vj(g) - cost(source, target)) / epsilon + log_weight).logsumexp(axis=1)
    g = -epsilon * ((Vj(f) - cost(target, source)) / epsilon + log_weight).logsumexp(axis=1)
print("transport cost:", round(float(f.mean() + g.mean()), 3))

# %%
# Each point moves to the mean of where its mass goes.

plan = (Vi(f) + Vj(g) - cost(source, target)) / blur**2
moved = plan.sumsoftmaxweight(Vj(target), axis=1)

plt.figure(figsize=(7, 4), layout="constrained")
plt.plot(*source.T, ".", label="source")
plt.plot(*target.T, ".", label="target")
plt.quiver(
    *source[::6].T, *(moved - source)[::6].T, angles="xy", scale_units="xy", scale=1, width=0.002, color="0.5"
)
plt.axis("equal")
plt.legend()
