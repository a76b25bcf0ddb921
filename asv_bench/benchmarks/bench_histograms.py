"""Histograms: times, ratios to numpy and to a copy, small calls."""

from functools import cache

import numpy as np
import upsweep
from upsweep.bench.timing import copiers, measure

from . import attributes

N = 10_000_000
# name: dtype, bins (a number, or the edges), whether there are weights
CASES = {
    "float32, 100 bins": ("float32", 100, False),
    "float64, 100 bins": ("float64", 100, False),
    "int32, 100 bins": ("int32", 100, False),
    "float32, 10,000 bins": ("float32", 10_000, False),
    "float32, 100 given edges": ("float32", np.linspace(0, 1, 101) ** 2, False),
    "float32, 100 bins, weights": ("float32", 100, True),
}
SMALL = np.random.default_rng(0).random(100)


@cache
def inputs(case: str) -> tuple[np.ndarray, np.ndarray | None]:
    dtype, _, weighted = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1000, N, dtype) if dtype == "int32" else rng.random(N, dtype)
    return x, rng.random(N) if weighted else None


class Histogram:
    params = (tuple(CASES),)
    param_names = ("case",)
    number = 1
    repeat = (3, 12, 0.2)
    rounds = 1
    warmup_time = 0.01

    def time_histogram(self, case: str) -> None:
        x, weights = inputs(case)
        upsweep.histogram(x, CASES[case][1], weights=weights)

    def track_ratio_to_numpy(self, case: str) -> float:
        """np.histogram's time over upsweep's, measured in turns."""
        x, weights = inputs(case)
        bins = CASES[case][1]
        methods = {
            "np": lambda: np.histogram(x, bins, weights=weights),
            "ours": lambda: upsweep.histogram(x, bins, weights=weights),
        }
        samples = measure(methods, rounds=2, burst=2)
        return samples.best("np") / samples.best("ours")

    track_ratio_to_numpy.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks

    @attributes(unit="of copy", version="28011ce195c0eaadb73668a1c91c9a450cb6b704b9896f2cf0a0e023cfeace98")
    def track_of_copy(self, case: str) -> float:
        """The time of the fastest copy of x over that of a histogram of a known range."""
        x, weights = inputs(case)
        bins = CASES[case][1]
        limits = None if np.ndim(bins) else (0, 1) if x.dtype.kind == "f" else (0, 1000)
        copies = copiers(x, np.empty_like(x), upsweep.get_num_threads())
        ours = {"ours": lambda: upsweep.histogram(x, bins, limits, weights=weights)}
        samples = measure({**copies, **ours}, rounds=3, burst=2)
        return min(map(samples.best, copies)) / samples.best("ours")

    def peakmem_inputs(self, case: str) -> None:
        inputs(case)

    def peakmem_histogram(self, case: str) -> None:
        x, weights = inputs(case)
        upsweep.histogram(x, CASES[case][1], weights=weights)


def time_small_histogram() -> None:
    upsweep.histogram(SMALL, 10)


def time_small_histc() -> None:
    upsweep.histc(SMALL, 10, 0, 1)
