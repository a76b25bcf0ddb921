"""Counts: times, ratios to numpy, peak memory."""

from functools import cache

import numpy as np
import upsweep
from upsweep.bench.harness import measure

N_KEYS = 10_000_000
# name: dtype of the keys, bins, dtype of the weights
CASES = {
    "int64, 256 bins": ("int64", 256, None),
    "int32, 256 bins": ("int32", 256, None),
    "uint8, 256 bins": ("uint8", 256, None),
    "int64, 10,000 bins": ("int64", 10_000, None),
    "int64, 1,000,000 bins": ("int64", 1_000_000, None),
    "int64, 256 bins, float32 weights": ("int64", 256, "float32"),
    "int64, 256 bins, float64 weights": ("int64", 256, "float64"),
}
SMALL = np.arange(128) % 10


@cache
def inputs(case: str) -> tuple[np.ndarray, np.ndarray | None]:
    dtype, n_bins, weights = CASES[case]
    rng = np.random.default_rng(0)
    # In their own dtype at once: a conversion would be the peak of the memory.
    keys = rng.integers(0, n_bins, N_KEYS, dtype)
    return keys, None if weights is None else rng.random(N_KEYS, weights)


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


def time_small_call() -> None:
    upsweep.bincount(SMALL)
