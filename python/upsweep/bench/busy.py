"""How much of this process' cores other processes took meanwhile: what makes a benchmark worthless."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["Watch"]


def _busy_seconds() -> float | None:
    """What all processes have used of the cores that this one may run on; None outside Linux."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        wanted = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    ticks = 0
    for line in lines:
        name, *counts = line.split()
        if name in wanted:
            user, nice, system, _idle, _waiting, *interrupts = map(int, counts[:8])
            ticks += user + nice + system + sum(interrupts)  # interrupts and what the hypervisor took
    return ticks / os.sysconf("SC_CLK_TCK")


class Watch:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._busy, self._own, self._wall = _busy_seconds(), time.process_time(), time.monotonic()

    def share_of_others(self) -> float:
        """The cores' time that others took, as a share of one core's; 0 where it cannot be known."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return 0.0
        others = (busy - self._busy) - (time.process_time() - self._own)
        return max(0.0, others / max(time.monotonic() - self._wall, 1e-9))
