"""
A file larger than memory, with dask
====================================

A year of a sensor in a zarr file, smoothed and counted in blocks. The calls are those for arrays; dask runs
them when a result is asked for.
"""

import tempfile

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import upsweep

folder = tempfile.TemporaryDirectory()
minutes = da.arange(365 * 1440, chunks=50_000)
daily = da.sin(minutes * (2 * np.pi / 1440)) + minutes / 400_000
noise = da.random.default_rng(18).normal(0, 0.5, minutes.shape[0], chunks=50_000)
(daily + noise).to_zarr(f"{folder.name}/sensor.zarr")

# %%
# Nothing is read here but the sizes of the blocks:

signal = da.from_zarr(f"{folder.name}/sensor.zarr")
smooth = upsweep.ewm_mean(signal, halflife=4320)
counts, edges = upsweep.histogram(signal, bins=60, range=(-3, 4))

# %%
# One pass over the file for both results:

smooth, counts = da.compute(smooth[::720], counts)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", width_ratios=[2, 1])
left.plot(np.arange(smooth.size) / 2, smooth)
left.set(xlabel="day", title="smoothed over three days")
right.stairs(counts, edges, fill=True)
right.set_title("all values")
folder.cleanup()
