"""Timing, and the yardsticks: interleaved samples, and copies of the same bytes in the same run.

A shared machine drifts by tens of percent between seconds. So the methods that are compared take turns: in
each round every method makes a burst of a few calls, and the burst's fastest counts (the first call finds the
caches as the method before it left them). The figures are ratios of the fastest samples over all rounds; the
median of the rounds' own ratios is kept beside them, for the JSON.

Where other processes took much of the cores meanwhile, there are more rounds, so that the fastest samples
come from quiet moments. If no batch of rounds was quiet, the row says so and is not held against its bar: two
threads on one core have samples of whole time slices, whose ratios say nothing.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from upsweep._backends import cpu
from upsweep.bench.busy import Watch

__all__ = ["Call", "Samples", "adders", "copiers", "measure", "microseconds", "sample"]

Array = NDArray[Any]
Call = Callable[[], object]

if TYPE_CHECKING:
    from upsweep._backends.cpu._isa import _baseline
else:
    _baseline = importlib.import_module(f"upsweep._backends.cpu._isa.{cpu.level}._baseline")

_BURST = 3
_BATCHES = 3  # of rounds, until one is quiet
_QUIET = 0.15  # of a core; what others may take of a quiet machine
_COPIES: tuple[Literal["memcpy", "plain", "stream"], ...] = ("memcpy", "plain", "stream")
_ADDS: tuple[Literal["plain", "stream"], ...] = ("plain", "stream")


@dataclass
class Samples:
    """Seconds of each method, one sample a round; the share of a core that others took, at the quietest."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    others: float = 0.0

    @property
    def quiet(self) -> bool:
        return self.others <= _QUIET

    def best(self, name: str) -> float:
        return min(self.seconds[name])

    def fastest(self, prefix: str) -> str:
        """The name, of those that begin with `prefix`, with the fastest sample."""
        return min((name for name in self.seconds if name.startswith(prefix)), key=self.best)

    def median_ratio(self, prefix: str, name: str) -> float:
        """The median over rounds of (fastest of the prefix' methods) / (method)."""
        others = [times for other, times in self.seconds.items() if other.startswith(prefix)]
        ratios = [min(theirs) / mine for mine, *theirs in zip(self.seconds[name], *others)]
        return float(statistics.median(ratios))


def sample(call: Call, burst: int = _BURST) -> float:
    """The seconds of the fastest of `burst` calls in a row."""
    best = float("inf")
    for _ in range(burst):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def measure(methods: Mapping[str, Call], rounds: int, burst: int = _BURST) -> Samples:
    """Time the methods in turn, `rounds` times, after one call of each that is not counted."""
    for call in methods.values():
        call()
    samples = Samples({name: [] for name in methods}, others=float("inf"))
    for _ in range(_BATCHES):
        watch = Watch()
        for _ in range(rounds):
            for name, call in methods.items():
                samples.seconds[name].append(sample(call, burst))
        samples.others = min(samples.others, watch.share_of_others())
        if samples.quiet:
            break
    return samples


def microseconds(methods: Mapping[str, Call], rounds: int, loops: int = 1000) -> dict[str, float]:
    """Time calls that take microseconds: the median over rounds of the mean over `loops` calls."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, call in methods.items():
            begin = time.perf_counter()
            for _ in range(loops):
                call()
            times[name].append((time.perf_counter() - begin) / loops * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def copiers(source: Array, target: Array, n_threads: int) -> dict[str, Call]:
    """Every way of copying the bytes of `source`, under names that begin with "copy"."""
    return {f"copy {kind}": partial(_baseline.copy, source, target, n_threads, kind) for kind in _COPIES}


def adders(a: Array, b: Array, target: Array, n_threads: int) -> dict[str, Call]:
    """Every way of a + b -> target, under names that begin with "add"; bytes are what counts, not numbers."""
    if a.dtype not in (np.float32, np.float64):
        a, b, target = (array.reshape(-1).view(np.float32) for array in (a, b, target))
    return {f"add {kind}": partial(_baseline.add, a, b, target, n_threads, kind) for kind in _ADDS}
