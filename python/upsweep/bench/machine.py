"""What was measured on: the machine and the versions. No names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import upsweep

__all__ = ["describe", "text"]

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _caches() -> list[str]:
    """Such as ``L2 1024K``; of the first core."""
    found = []
    for index in sorted(_CPU.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return found


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """The machine and the versions, for the table's head and for JSON."""
    return {"cpu": _cpu_model(), "cores": _cores(), "caches": _caches(), **upsweep.show_config()}


def text(described: dict[str, Any]) -> str:
    """Two lines of it."""
    caches = ", ".join(described["caches"]) or "caches unknown"
    versions = ", ".join(f"{name} {described[name]}" for name in ("python", "numpy"))
    return (
        f"{described['cpu']}, {described['cores']} cores, {caches}\n"
        f"upsweep {described['version']} ({described['isa']}, OpenMP {described['openmp']}), {versions}"
    )
