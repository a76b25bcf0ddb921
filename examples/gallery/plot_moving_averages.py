"""
Moving averages
===============

Three ways to smooth a noisy series with gaps: a moving mean, an exponentially weighted mean by steps, and one
by time.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

rng = np.random.default_rng(1)
days = np.sort(rng.choice(np.arange(400), 300, replace=False))
times = np.datetime64("2026-01-01") + days
signal = np.sin(days / 40) + rng.normal(0, 0.4, days.size)
signal[40:60] = np.nan

# %%
# ``window=`` sums the last steps; a moving mean divides by the number of values in the window. ``ewm_mean``
# has pandas' keywords, and skips missing values.

known = ~np.isnan(signal)
window = 20
mean = upsweep.discounted_cumsum(np.where(known, signal, 0.0), 1.0, window=window)
with np.errstate(invalid="ignore"):
    mean /= upsweep.discounted_cumsum(known.astype(float), 1.0, window=window)
by_step = upsweep.ewm_mean(signal, halflife=7)
by_time = upsweep.ewm_mean(signal, halflife="7D", times=times)

plt.figure(figsize=(8, 3.5), layout="constrained")
plt.plot(times, signal, ".", color="0.7", label="measured")
for line, label in (
    (mean, f"mean of the last {window}"),
    (by_step, "half-life of 7 steps"),
    (by_time, "half-life of 7 days"),
):
    plt.plot(times, line, label=label)
plt.legend()
