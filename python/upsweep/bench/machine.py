"""Describes the machine and the versions that a benchmark ran on, without names of hosts, users or folders."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

import upsweep

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _caches() -> list[str]:
    """The caches of the first core, such as ``L2 1024K``."""
    sizes = []
    for index in sorted(_CPU.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            sizes.append(f"L{level} {size}")
    return sizes


def describe() -> dict[str, Any]:
    """The machine and the versions, for the table's head and for JSON."""
    config = upsweep.show_config()
    # The folder of the CUDA library and the loader's message about it are private.
    config["cuda_library"] = config["cuda_library"] and Path(config["cuda_library"]).name
    if isinstance(config["cuda_architectures"], str):
        config["cuda_architectures"] = "does not load"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"cpu": _cpu_model(), "cores": cores, "caches": _caches(), **config}


def describe_cuda() -> dict[str, Any]:
    """The machine, the versions and the current CUDA device as torch describes it."""
    import torch

    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        **describe(), "gpu": device.name, "gpu_processors": device.multi_processor_count,
        "gpu_memory": f"{device.total_memory / 2**30:.0f} GiB",
        "gpu_l2": f"{device.L2_cache_size / 2**20:.0f} MiB",
        "compute_capability": f"{device.major}.{device.minor}", "torch": torch.__version__,
        "cuda": torch.version.cuda, "cuda_driver": _driver_version(),
    }  # fmt: skip


def _driver_version() -> str:
    """The newest CUDA version that the driver supports, which not all versions of torch tell."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def text(described: dict[str, Any]) -> str:
    """The description in two lines, after one more for a GPU."""
    words = "{cpu}, {cores} cores, {caches}\nupsweep {version} ({isa}, OpenMP {openmp}), "
    words += "python {python}, numpy {numpy}"
    if "gpu" in described:
        gpu = "{gpu}, {gpu_processors} processors, {gpu_memory}, L2 {gpu_l2}; torch {torch}, CUDA {cuda}, "
        words = gpu + "driver for CUDA {cuda_driver}\n" + words
    return words.format_map({**described, "caches": ", ".join(described["caches"]) or "caches unknown"})
