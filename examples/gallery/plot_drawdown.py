"""
Drawdown
========

The loss since the last peak, for a hundred portfolios at once. A running maximum is a scan that is parallel
in time.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

steps = np.random.default_rng(4).normal(0.0003, 0.01, (2500, 100))
wealth = np.exp(upsweep.cumulative_sum(steps, axis=0))
peaks = upsweep.scan(lambda peak, x: np.maximum(peak, x), -np.inf, wealth)
np.testing.assert_array_equal(peaks, np.maximum.accumulate(wealth))
drawdown = wealth / peaks - 1

# %%
# The longest time under water counts the steps since the last peak, and begins again at each.

under_water = upsweep.cumulative_sum(np.ones_like(wealth), axis=0, reset=wealth == peaks) - 1

fig, (above, below) = plt.subplots(2, figsize=(8, 4.5), layout="constrained")
above.plot(wealth[:, 0], label="wealth")
above.plot(peaks[:, 0], ":", color="k", label="peak")
above.fill_between(np.arange(2500), wealth[:, 0], peaks[:, 0], alpha=0.3, label="drawdown")
above.legend()
below.plot(-drawdown.min(axis=0), under_water.max(axis=0), ".")
below.set(xlabel="largest drawdown", ylabel="longest time under water")
