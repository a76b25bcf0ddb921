"""Counts of keys (`bincount`): cases, keys of every distribution, error.

A count reads its keys (and weights) once and writes its bins: its speed is a fraction of that of a copy of as
many bytes. On the CPU the thresholds apply to np.bincount's time. On CUDA the distribution of the keys should
hardly matter, so the time of uniform keys over that of others has a threshold as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import upsweep
from upsweep.bench import timing

from upsweep_bench import case as base
from upsweep_bench.case import PeerThresholds, Source, as_numpy, ordered

__all__ = ["DISTRIBUTIONS", "Arrays", "Case", "cases", "make_keys", "within"]

ITEMSIZES = {"int64": 8, "int32": 4, "uint16": 2, "uint8": 1, "float32": 4, "float64": 8}
DISTRIBUTIONS = ("all equal", "two values", "sorted", "Zipf", "multiples of 32", "low bins")

N_CUDA, QUICK_N_CUDA = 1 << 27, 1 << 24
N_CPU, QUICK_N_CPU = 20_000_000, 1_000_000
_PEERS = ("torch.bincount", "scatter_add_", "cupy", "cupy with CUB")
_COPY = 4.27e12  # bytes a second that a copy moves on the GPU that the times below are for


@dataclass(frozen=True)
class Case(base.OneDimensional):
    """One call to time. Metrics besides `base.Case`'s: "of uniform", the time of uniform keys over that of these;
    "of free", the time without `deterministic` over that with it.
    """

    n: int
    n_bins: int
    dtype: str = "int64"
    distribution: str = "uniform"
    weights: str | None = None
    deterministic: bool = False
    threshold: float | None = None
    metric: str = "of copy"
    peers: PeerThresholds = ()
    device: str = "cpu"

    @property
    def name(self) -> str:
        words = ["bincount", f"{self.n:,}", f"in {self.n_bins:,} bins"]
        words += [f"{self.weights} weights"] * (self.weights is not None) + [self.distribution]
        return " ".join(words + ["deterministic"] * self.deterministic)

    @property
    def n_bytes(self) -> int:
        each = ITEMSIZES[self.dtype] + (ITEMSIZES[self.weights] if self.weights else 0)
        return self.n * each + self.n_bins * (ITEMSIZES[self.weights] if self.weights else 8)

    def arrays(self, count: int | None = None, device: str | None = None) -> Arrays:
        return Arrays(self, count, device)

    def function(self, arrays: Arrays) -> Callable[..., Any]:
        if not self.on_cuda:
            return upsweep.bincount
        options: dict[str, Any] = {"deterministic": True} if self.deterministic else {}
        return lambda x, weights: upsweep.bincount(x, weights, length=self.n_bins, invalid="drop", **options)

    def versus(self, arrays: Arrays) -> tuple[base.Arrays, Callable[..., Any]] | None:
        if self.pass_name is not None:
            return None
        other = replace(self, distribution="uniform", deterministic=False)
        same = other.distribution == self.distribution
        inputs = arrays if same else other.arrays(device=arrays.source.device)
        return inputs, other.function(inputs)

    @property
    def versus_label(self) -> str:
        return {"of uniform": "uniform keys", "of free": "in any order"}[self.metric]


def make_keys(case: Case, source: Source, n: int | None = None) -> Any:
    """Keys of the case's distribution, in [0, n_bins) as far as their dtype reaches."""
    n = case.n if n is None else n
    top = min(case.n_bins, int(np.iinfo(case.dtype).max) + 1)
    if case.distribution == "all equal":
        return source.cast(source.positions(n) * 0 + top // 2, case.dtype)
    if case.distribution == "two values":
        return source.integers(n, 2, case.dtype) * (top - 1)
    if case.distribution == "sorted":
        return source.cast(source.positions(n) * top // n, case.dtype)
    if case.distribution == "Zipf":  # the k-th key comes up about 1/k times as often as the first
        ranks = source.uniform((n,), "float64", high=math.log(top + 1))
        return source.cast((source.xp.exp(ranks) - 1).clip(0, top - 1), case.dtype)
    if case.distribution.startswith("multiples of"):
        step = int(case.distribution.split()[-1])
        return source.integers(n, max(1, (top + step - 1) // step), case.dtype) * step
    return source.integers(n, min(top, 32_768) if case.distribution == "low bins" else top, case.dtype)


class Arrays(base.Arrays):
    """Keys and weights, all positive so that errors of sums can be relative."""

    def __init__(self, case: Case, count: int | None = None, device: str | None = None) -> None:
        self.case, self.source = case, Source(case, device)

        def weights() -> Any:
            return self.source.uniform((case.n,), case.weights, 0.5, 1.5) if case.weights else None

        n_sets = self.source.n_sets(case, count)
        self.inputs = [(make_keys(case, self.source), weights()) for _ in range(n_sets)]

    def error(self, answer: Any) -> float:
        keys, weights = self.inputs[0]
        expected = self._expected(keys, weights)
        answer = self.source.cast(answer, "float64") if type(answer) is type(keys) else as_numpy(answer)
        if not self.case.on_cuda:  # where the largest key decides how many bins there are
            answer = np.pad(answer, (0, max(0, self.case.n_bins - len(answer))))
        if tuple(answer.shape) != tuple(expected.shape):
            return math.inf
        return float((abs(answer - expected) / expected.clip(1)).max())

    def _expected(self, keys: Any, weights: Any) -> Any:
        """The counts or sums in float64; on a device counts come from a binary search in the sorted keys."""
        n_bins = self.case.n_bins
        if self.source.is_numpy:
            return np.bincount(keys, weights, n_bins).astype(np.float64)
        torch = self.source.xp
        if weights is None:
            ends = torch.arange(n_bins + 1, device=keys.device)
            return torch.searchsorted(keys.sort().values.long(), ends).diff().double()
        sums = torch.zeros(n_bins, dtype=torch.float64, device=keys.device)
        return sums.index_put_((keys.long(),), weights.double(), accumulate=True)

    def allowed(self) -> float:
        # CUDA sums are rounded to float32 once; numpy, the CPU's reference, adds in another order.
        return 0.0 if self.case.weights is None else 2.0**-24 if self.case.on_cuda else 1e-9

    def passes(self, n_threads: int) -> tuple[dict[str, Callable[[], object]], float]:
        keys = self.inputs[0][0]
        return timing.copiers(keys, np.zeros_like(keys), n_threads), self.case.n_bytes / (2 * keys.nbytes)


# ---- cases -----------------------------------------------------------------------------------------------------


def cases(quick: bool = False, device: str = "cpu") -> list[Case]:
    """Every case; with `quick` fewer keys, no more bins than keys, and no series over their number."""
    if device == "cpu":
        return list(_cpu_cases(QUICK_N_CPU if quick else N_CPU, quick))
    n = QUICK_N_CUDA if quick else N_CUDA
    every = [*_counts(n), *_sums(n), *([] if quick else _lengths())]
    return [replace(case, device="cuda") for case in every if not quick or case.n_bins < 10_000_000]


def _cpu_cases(n: int, quick: bool) -> Iterator[Case]:
    def case(dtype: str, n_bins: int, keys: str, threshold: float, weights: str | None = None) -> Case:
        peers = (("numpy", threshold), ("torch.bincount", None), ("numba", None))
        return Case(n, n_bins, dtype, keys, weights, peers=peers)

    for keys in ("uniform", "Zipf", "sorted", "all equal"):
        for n_bins in (2, 256, 10_000):
            yield case("int64", n_bins, keys, 2.8 if keys in ("uniform", "Zipf") else 4.0)
        for n_bins in (256, 10_000):
            yield case("int32", n_bins, keys, 7.0)
        yield case("uint8", 256, keys, 8.0)
        yield case("uint16", 256, keys, 8.0)
        for n_bins in (256, 10_000):
            yield case("int64", n_bins, keys, 2.3, "float64")
            yield case("int64", n_bins, keys, 5.0, "float32")
    if quick:
        return
    yield case("uint16", 60_000, "uniform", 8.0)
    for weights in (None, "float64"):  # bins 4 KiB apart
        for n_bins in (10_000, 1_000_000):
            yield case("int64", n_bins, "multiples of 512", 1.0, weights)
    for n_bins, threshold in ((1_000_000, 3.0), (16_000_000, 3.5)):
        for keys in ("uniform", "Zipf", "sorted", "all equal"):
            yield case("int64", n_bins, keys, threshold if keys == "uniform" else 1.0)
        yield case("int64", n_bins, "uniform", 1.0, "float64")


def within(seconds: float, dtype: str, n_bins: int = 0) -> float:
    """The fraction of a copy's speed that this time for `N_CUDA` keys is."""
    return (N_CUDA * ITEMSIZES[dtype] + n_bins * 8) / _COPY / seconds


_TIMES = {
    "int64": {2: 0.26e-3, 256: 0.26e-3, 257: 0.26e-3, 4096: 0.26e-3, 6143: 0.29e-3, 12_287: 0.29e-3,
              50_000: 0.29e-3, 65_536: 0.40e-3, 1_000_000: 0.6e-3, 100_000_000: 3e-3},
    "int32": {256: 0.16e-3, 4096: 0.16e-3},
    "uint8": {2: 0.055e-3, 256: 0.055e-3},
}  # fmt: skip


def _counts(n: int) -> Iterator[Case]:
    for dtype, times in _TIMES.items():
        for n_bins, seconds in times.items():
            # The times are for the largest n: where bins are many, their own bytes matter too.
            threshold = None if n < N_CUDA and n_bins > 50_000 else within(seconds, dtype, n_bins)
            yield Case(n, n_bins, dtype, threshold=threshold, peers=ordered(_PEERS))
    for n_bins in _TIMES["int64"]:
        for keys in DISTRIBUTIONS:
            peers = ordered(_PEERS) if keys == "all equal" else ()
            yield Case(n, n_bins, distribution=keys, threshold=1 / 1.5, metric="of uniform", peers=peers)


def _sums(n: int) -> Iterator[Case]:
    for n_bins in (2, 256, 4096, 12_287, 65_536, 1_000_000):
        threshold = 0.6 if n_bins <= 4096 else None
        yield Case(n, n_bins, weights="float32", threshold=threshold, peers=ordered(_PEERS))
        for keys in DISTRIBUTIONS[:4]:  # atomic additions to one bin wait for each other: up to 3 times the time
            yield Case(n, n_bins, "int64", keys, "float32", threshold=1 / 3, metric="of uniform")
    for n_bins in (256, 4096):  # a fixed order may take twice the time
        yield Case(n, n_bins, weights="float32", deterministic=True, threshold=1 / 2, metric="of free")


def _lengths() -> Iterator[Case]:
    for n_bins in (256, 4096, 1_000_000):
        for n in (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000):
            yield Case(n, n_bins, peers=ordered(("torch.bincount", "cupy")))
