"""
A Gaussian process
==================

Mean and uncertainty of a function from a few measurements. Each column of the right-hand side of ``solve`` is
one system.
"""

import matplotlib.pyplot as plt
import numpy as np
from upsweep import Vi, Vj

rng = np.random.default_rng(14)
x = np.sort(rng.uniform(0, 10, (30, 1)), axis=0)
y = np.sin(x) * x / 4 + rng.normal(0, 0.1, x.shape)
line = np.linspace(-1, 11, 200)[:, None]


def kernel(a, b):
    return (-Vi(a).sqdist(Vj(b)) / 2).exp()


# %%
# The covariance between the measurements and the line, one column for each point of the line, is a product
# with the identity.

covariance = kernel(x, line) @ np.eye(200)
solved = kernel(x, x).solve(Vi(np.hstack([y, covariance])), alpha=0.1**2, eps=1e-10)
mean = covariance.T @ solved[:, 0]
deviation = np.sqrt(np.maximum(1 - (covariance * solved[:, 1:]).sum(axis=0), 0))

plt.figure(figsize=(8, 3), layout="constrained")
plt.plot(x, y, "k.", label="measured")
plt.plot(line[:, 0], mean, label="mean")
plt.fill_between(line[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.3, label="95 %")
plt.legend()
