"""What Linux' control groups leave to this process, in a container for example: cores and memory.

The limits of a group hold for all groups in it, so the least from the process' group up to the root counts.
Version 2 has one tree of groups, version 1 one for each controller; a machine may have both. In a container the
root is that of the container, and the path in ``/proc/self/cgroup`` may be the one outside: a file that is missing
sets no limit. `upsweep._backends.cpu` takes the least.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_TREES = "/sys/fs/cgroup"
_GROUPS_OF_PROCESS = "/proc/self/cgroup"


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # outside Linux, a controller that is switched off, the root of version 2
        return ""


def _groups(controller: str) -> Iterator[str]:
    """The folders of the groups that limit this process."""
    for line in _read(_GROUPS_OF_PROCESS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = f"{_TREES}/{controller}" if controllers else _TREES
        while path.strip("/"):
            yield tree + path
            path = os.path.dirname(path)
        yield tree


def cores() -> list[int]:
    """The number of cores, rounded up, whose time each group allows; groups without a limit are left out."""
    limits = []
    for group in _groups("cpu"):
        quota = _read(f"{group}/cpu.max")
        quota = quota or _read(f"{group}/cpu.cfs_quota_us") + _read(f"{group}/cpu.cfs_period_us")
        words = quota.split()  # microseconds of all cores in each period; "max" or -1 is no limit
        if len(words) == 2 and words[0].isdigit():
            limits.append(-(-int(words[0]) // int(words[1])))
    return limits


def memory() -> list[int]:
    """The bytes of memory that each group allows; groups without a limit are left out."""
    files = "memory.max", "memory.limit_in_bytes"
    texts = [_read(f"{group}/{file}") for group in _groups("memory") for file in files]
    return [int(text) for text in texts if text.strip().isdigit()]
