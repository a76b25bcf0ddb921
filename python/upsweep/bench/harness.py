"""Timing, and the yardsticks: interleaved samples, and copies of the same bytes in the same run.

A shared machine drifts by tens of percent between seconds. So the methods that are compared take turns: in each
round every method makes a burst of a few calls, and the burst's fastest counts (the first call of a burst finds
the caches as the method before it left them). The figures are ratios of the fastest samples over all rounds;
the median of the rounds' own ratios is kept beside them, for the JSON.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep import _cpu

__all__ = ["Samples", "adders", "copiers", "measure", "microseconds"]

Array = NDArray[Any]
Call = Callable[[], object]

_BURST = 3
_baseline: Any = importlib.import_module(f"upsweep._cpu._isa.{_cpu.level}._baseline")


@dataclass
class Samples:
    """Seconds of each method, one sample a round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def best(self, name: str) -> float:
        return min(self.seconds[name])

    def fastest(self, prefix: str) -> str:
        """The name, of those that begin with `prefix`, with the fastest sample."""
        return min((name for name in self.seconds if name.startswith(prefix)), key=self.best)

    def median_ratio(self, prefix: str, name: str) -> float:
        """The median over rounds of (fastest of the prefix' methods) / (method)."""
        others = [times for other, times in self.seconds.items() if other.startswith(prefix)]
        rounds = zip(zip(*others), self.seconds[name])
        return statistics.median(min(yardsticks) / mine for yardsticks, mine in rounds)


def _sample(call: Call, burst: int) -> float:
    times = []
    for _ in range(burst):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(methods: Mapping[str, Call], rounds: int, burst: int = _BURST) -> Samples:
    """Time the methods in turn, `rounds` times, after one call of each that is not counted."""
    for call in methods.values():
        call()
    samples = Samples({name: [] for name in methods})
    for _ in range(rounds):
        for name, call in methods.items():
            samples.seconds[name].append(_sample(call, burst))
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
    return {
        f"copy {kind}": lambda kind=kind: _baseline.copy(source, target, n_threads, kind)
        for kind in ("memcpy", "plain", "stream")
    }


def adders(a: Array, b: Array, target: Array, n_threads: int) -> dict[str, Call]:
    """Every way of a + b -> target, under names that begin with "add"; bytes are what counts, not numbers."""
    if a.dtype not in (np.float32, np.float64):
        a, b, target = (array.reshape(-1).view(np.float32) for array in (a, b, target))
    return {
        f"add {kind}": lambda kind=kind: _baseline.add(a, b, target, n_threads, kind) for kind in ("plain", "stream")
    }
