"""
Kernel ridge regression
=======================

The weights of the kernels solve a linear system whose matrix is a formula. ``solve`` runs conjugate
gradients, or factorises where that is faster.
"""

import matplotlib.pyplot as plt
import numpy as np
from upsweep import Vi, Vj

rng = np.random.default_rng(13)
x = np.sort(rng.uniform(0, 10, (400, 1)), axis=0)
y = np.sin(x) + 0.5 * np.sin(4 * x) + rng.normal(0, 0.3, x.shape)


def kernel(a, b):
    return (-Vi(a).sqdist(Vj(b)) / (2 * 0.3**2)).exp()


weights = kernel(x, x).solve(Vi(y), alpha=1.0)
line = np.linspace(0, 10, 500)[:, None]
fitted = kernel(line, x) @ weights

plt.figure(figsize=(8, 3), layout="constrained")
plt.plot(x, y, ".", color="0.7")
plt.plot(line, np.sin(line) + 0.5 * np.sin(4 * line), "k:", label="true")
plt.plot(line, fitted, label="fitted")
plt.legend()
