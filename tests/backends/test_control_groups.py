"""Hazard: more threads, or more memory, than a container gives. Files of both versions of control groups."""

import os

import pytest
import upsweep
from upsweep._backends import cpu
from upsweep._backends.cpu import control_groups

GIB = 2**30
UNLIMITED = "9223372036854771712"  # version 1 rounds the largest int64 to whole pages


@pytest.fixture
def limits(tmp_path, monkeypatch):
    """Write files of control groups; return the limits of cores and of memory."""
    monkeypatch.setattr(control_groups, "_TREES", str(tmp_path))
    monkeypatch.setattr(control_groups, "_GROUPS_OF_PROCESS", str(tmp_path / "self"))

    def limits(groups, files):
        (tmp_path / "self").write_text(groups)
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text + "\n")
        return sorted(control_groups.cores()), sorted(control_groups.memory())

    return limits


V1 = "5:memory:/box/a\n4:cpu,cpuacct:/box/a\n1:name=systemd:/box\n"
BOTH = V1 + "0::/\n"


@pytest.mark.parametrize(
    "groups, files, expected",
    [
        # A container of version 2 sees its own group as the root.
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": f"{GIB}"}, ([2], [GIB])),
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, ([], [])),
        ("0::/\n", {}, ([], [])),
        # A service: the limits of all groups above it hold too. A name may contain anything but a line's end.
        (
            "0::/a slice/b:c\n",
            {
                "a slice/b:c/cpu.max": "800000 100000", "a slice/cpu.max": "50000 25000", "cpu.max": "max 100000",
                "a slice/b:c/memory.max": "max", "a slice/memory.max": f"{3 * GIB}", "other/cpu.max": "1 1",
            },
            ([2, 8], [3 * GIB]),
        ),
        # Version 1: one tree for each controller, here with the limits of a group and of the one above.
        (
            V1,
            {
                "cpu/box/a/cpu.cfs_quota_us": "-1", "cpu/box/a/cpu.cfs_period_us": "100000",
                "cpu/box/cpu.cfs_quota_us": "250000", "cpu/box/cpu.cfs_period_us": "100000",
                "memory/box/a/memory.limit_in_bytes": f"{GIB}", "memory/memory.limit_in_bytes": UNLIMITED,
            },
            ([3], [GIB, int(UNLIMITED)]),
        ),
        # A container of version 1: the paths are those outside, the files those of the container.
        (
            BOTH,
            {
                "cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": f"{2 * GIB}",
            },
            ([4], [2 * GIB]),
        ),
    ],
)  # fmt: skip
def test_the_limits_of_all_groups_of_the_process(limits, groups, files, expected):
    assert limits(groups, files) == expected


def test_threads_keep_to_the_least_limit(limits, monkeypatch, n_threads_restored):
    monkeypatch.setattr(cpu._machine, "max_threads", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    for quota, expected in ("max", 16), ("2400000", 16), ("350000", 4), ("100000", 1), ("5000", 1):
        limits("0::/\n", {"cpu.max": f"{quota} 100000"})
        upsweep.set_num_threads(None)
        assert upsweep.get_num_threads() == expected, quota


def test_the_least_memory(limits):
    machine = cpu.memory_limit()
    limits("0::/\n", {"memory.max": "1048576"})
    assert cpu.memory_limit() == 1048576
    limits("0::/\n", {"memory.max": UNLIMITED})
    assert machine <= cpu.memory_limit() < int(UNLIMITED)


def test_without_the_files_there_is_no_limit(monkeypatch):
    monkeypatch.setattr(control_groups, "_GROUPS_OF_PROCESS", "/nowhere")
    assert control_groups.cores() == control_groups.memory() == []
