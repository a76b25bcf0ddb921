"""Contention: how much CPU time other processes used on this process' cores while a benchmark ran."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["ContentionWatch"]


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
