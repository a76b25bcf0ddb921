"""Counts: times, ratios to numpy, peak memory."""

from functools import cache

import numpy as np
import upsweep
from upsweep.bench.timing import measure
from upsweep_bench.case import Source
from upsweep_bench.counts import Case, make_keys

N_KEYS = 10_000_000
# name: dtype of the keys, bins, dtype of the weights, distribution
CASES = {
    "int64, 256 bins": ("int64", 256, None, "uniform"),
    "int64, 256 bins, all equal": ("int64", 256, None, "all equal"),
    "int64, 10,000 bins, sorted": ("int64", 10_000, None, "sorted"),
    "int64, 10,000 bins, Zipf": ("int64", 10_000, None, "Zipf"),
    "int32, 256 bins": ("int32", 256, None, "uniform"),
    "uint8, 256 bins": ("uint8", 256, None, "uniform"),
    "uint16, 60,000 bins": ("uint16", 60_000, None, "uniform"),
    "int64, 10,000 bins": ("int64", 10_000, None, "uniform"),
    "int64, 1,000,000 bins": ("int64", 1_000_000, None, "uniform"),
    "int64, 16,000,000 bins": ("int64", 16_000_000, None, "uniform"),
    "int64, 256 bins, float32 weights": ("int64", 256, "float32", "uniform"),
    "int64, 256 bins, float64 weights": ("int64", 256, "float64", "uniform"),
    "int64, 1,000,000 bins, float64 weights": ("int64", 1_000_000, "float64", "uniform"),
}
SMALL = np.arange(128) % 10
SMALL_WEIGHTS = np.ones(128)


@cache
def inputs(case: str) -> tuple[np.ndarray, np.ndarray | None]:
    dtype, n_bins, weights, distribution = CASES[case]
    # In parts, so that temporaries do not set the peak of the memory.
    part = N_KEYS // 100
    keys = np.empty(N_KEYS, dtype)
    for start in range(0, N_KEYS, part):
        case_ = Case(part, n_bins, dtype, distribution)
        keys[start : start + part] = make_keys(case_, Source(case_, "numpy", seed=start))
    if distribution == "sorted":
        keys.sort()
    return keys, None if weights is None else np.random.default_rng(0).random(N_KEYS, weights)


class Bincount:
    params = (tuple(CASES),)
    param_names = ("case",)
    number = 1
    repeat = (3, 12, 0.2)
    rounds = 1
    warmup_time = 0.01

    def time_bincount(self, case: str) -> None:
        upsweep.bincount(*inputs(case))

    def track_ratio_to_numpy(self, case: str) -> float:
        """np.bincount's time over upsweep's, measured in turns."""
        keys, weights = inputs(case)
        methods = {"np": lambda: np.bincount(keys, weights), "ours": lambda: upsweep.bincount(keys, weights)}
        samples = measure(methods, rounds=3, burst=2)
        return samples.best("np") / samples.best("ours")

    track_ratio_to_numpy.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks

    def peakmem_inputs(self, case: str) -> None:
        inputs(case)

    def peakmem_bincount(self, case: str) -> None:
        upsweep.bincount(*inputs(case))


class Batches:
    """Counts of each row: (rows, keys), the axis, bins."""

    params = (((1_000_000, 32), (32, 1_000_000), (16, 500_000)), (0, 1))
    param_names = ("shape", "axis")
    number = 1
    repeat = (3, 12, 0.2)
    rounds = 1
    warmup_time = 0.01

    def time_batch(self, shape: tuple[int, int], axis: int) -> None:
        upsweep.bincount(batch(shape), axis=axis)


@cache
def batch(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 10, shape)


def time_small_call() -> None:
    upsweep.bincount(SMALL)


def time_small_call_with_weights() -> None:
    upsweep.bincount(SMALL, SMALL_WEIGHTS)
