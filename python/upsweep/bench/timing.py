"""Timing of interleaved methods, and the copies that results are compared with.

A shared machine drifts by tens of percent between seconds. The methods that are compared therefore alternate: in
each round every method runs a burst of a few calls, and the fastest call of the burst is the sample (the first
call finds the caches as the previous method left them). Results are ratios of samples of one run.

Where other processes used much of the cores, there are more rounds, so that the fastest samples come from quiet
moments. If no batch of rounds was quiet, `Samples.quiet` is false: two threads on one core give samples of whole
time slices, whose ratios mean nothing.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from upsweep._backends import cpu

__all__ = ["Call", "Samples", "baseline", "copiers", "event_seconds", "measure", "sample"]

Array = NDArray[Any]
Call = Callable[[], object]

if TYPE_CHECKING:
    from upsweep._backends.cpu._isa import _baseline as baseline
else:
    baseline = importlib.import_module(f"upsweep._backends.cpu._isa.{cpu.level}._baseline")

_BURST = 3
_BATCHES = 3  # of rounds, until one is quiet
_QUIET = 0.15  # of a core; what other processes may use of a quiet machine
_AHEAD = 200_000  # clock cycles that a CUDA stream waits, about 0.1 ms, while the host launches the first calls
_COPIES: tuple[Literal["memcpy", "plain", "stream"], ...] = ("memcpy", "plain", "stream")


def _used_seconds() -> float | None:
    """CPU seconds that all processes have used on the cores this process may run on; None outside Linux."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    ticks = 0
    for line in lines:
        name, *counts = line.split()
        if name in cores:
            user, nice, system, _idle, _waiting, *interrupts = map(int, counts[:8])
            ticks += user + nice + system + sum(interrupts)  # interrupts include the hypervisor's steal time
    return ticks / os.sysconf("SC_CLK_TCK")


class ContentionWatch:
    """Measures the CPU time of other processes from its construction on."""

    def __init__(self) -> None:
        self._used, self._own, self._wall = _used_seconds(), time.process_time(), time.monotonic()

    def share_of_others(self) -> float:
        """CPU time of other processes as a share of one core's; 0 where it is unknown."""
        used = _used_seconds()
        if used is None or self._used is None:
            return 0.0
        others = (used - self._used) - (time.process_time() - self._own)
        return max(0.0, others / max(time.monotonic() - self._wall, 1e-9))


@dataclass
class Samples:
    """Seconds of each method, one sample a round; the share of a core that other processes used."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    others: float = 0.0

    @property
    def quiet(self) -> bool:
        return self.others <= _QUIET

    def best(self, name: str) -> float:
        return min(self.seconds[name])

    def merge(self, prefix: str) -> None:
        """Replace the methods ``"prefix ..."`` by one, `prefix`, with the fastest of them in each round."""
        variants = [name for name in self.seconds if name.startswith(f"{prefix} ")]
        if variants:
            self.seconds[prefix] = [min(times) for times in zip(*map(self.seconds.pop, variants))]


def sample(call: Call, burst: int = _BURST) -> float:
    """The seconds of the fastest of `burst` consecutive calls."""
    best = float("inf")
    for _ in range(burst):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def measure(methods: Mapping[str, Call], rounds: int, burst: int = _BURST) -> Samples:
    """Time the methods in turn, `rounds` times, after one call of each that does not count."""
    for call in methods.values():
        call()
    samples = Samples({name: [] for name in methods}, others=float("inf"))
    for _ in range(_BATCHES):
        watch = ContentionWatch()
        for _ in range(rounds):
            for name, call in methods.items():
                samples.seconds[name].append(sample(call, burst))
        samples.others = min(samples.others, watch.share_of_others())
        if samples.quiet:
            break
    return samples


def event_seconds(run: Call) -> float:
    """Seconds between CUDA events before and after `run`, which launches work on torch's current stream.

    The stream waits a little first, so that the host is ahead of it when the first event is recorded.
    """
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_AHEAD)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def copiers(source: Array, target: Array, n_threads: int) -> dict[str, Call]:
    """Every way of copying the bytes of `source`, under names that begin with "copy"."""
    return {f"copy {kind}": partial(baseline.copy, source, target, n_threads, kind) for kind in _COPIES}
