"""
A Kalman filter
===============

The local-level model: a level that wanders, measured with noise. The filter's state is a pair, the mean and
its variance.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

rng = np.random.default_rng(3)
wander, noise = 0.1, 1.0
level = upsweep.cumulative_sum(rng.normal(0, wander, 500))
measured = level + rng.normal(0, noise, 500)


def kalman(state, z):
    mean, variance = state
    variance = variance + wander**2
    gain = variance / (variance + noise**2)
    mean = mean + gain * (z - mean)
    variance = (1 - gain) * variance
    return mean, variance


mean, variance = upsweep.scan(kalman, (0.0, 10.0), measured)
np.testing.assert_array_less(np.mean((mean - level) ** 2), np.mean((measured - level) ** 2) / 4)

plt.figure(figsize=(8, 3.5), layout="constrained")
plt.plot(measured, ".", color="0.8", label="measured")
plt.plot(level, "k", label="level")
plt.plot(mean, label="filtered")
plt.fill_between(np.arange(500), mean - 2 * variance**0.5, mean + 2 * variance**0.5, alpha=0.3)
plt.legend()
