"""A stand-in for `driver.Device`: kernels generated at run time are compiled for the host and run there.

Tests then cover all but NVRTC, the driver and the few functions of kernels/device.cuh: lowering, code generation,
the kernels' logic, the plans and the structure of their arguments.
"""

import ctypes
import functools
import hashlib
import math
import os
import re
import shlex
import shutil
import struct
import subprocess
import weakref
from pathlib import Path

import numpy as np
import pytest
from upsweep._backends.cuda import driver, pairs_launch, user_scan_launch
from upsweep._backends.cuda.descriptor import ArrayDescriptor
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.pairs.render import kernel_text
from upsweep._compiler.cuda.scans import render
from upsweep._compiler.formulas.reduction import outputs
from upsweep._user_scan.cached_calls import compiled_scans
from upsweep._utils.lru_cache import LRUCache

COMPILER = os.environ.get("CXX", "g++")
has_compiler = shutil.which(COMPILER) is not None
needs_compiler = pytest.mark.skipif(not has_compiler, reason="no C++ compiler")
PREAMBLE = Path(__file__).parent / "on_host.hpp"
WGMMA = PREAMBLE.with_name("wgmma_on_host.hpp")
LAUNCHER = """
extern "C" void launch_{0}(const Call* call, unsigned n_blocks, unsigned n_threads, unsigned at_once) {{
    fibers::Launch<Call>::run({0}, *call, n_blocks, n_threads, at_once);
}}
"""
SIZE = """
extern "C" long long size_of_call() { return sizeof(Call); }
"""


def launchers(text):
    """Return the source of a host function for each kernel of a text."""
    names = re.findall(
        r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(const __grid_constant__ Call", text
    )
    return "".join(map(LAUNCHER.format, names)) + SIZE


def build(folder, text, *flags):
    """Compile the kernels of a text for the host; `folder` caches libraries of the same flags."""
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    if not path.exists():
        header = folder / PREAMBLE.name
        if not header.exists():  # compiled once, since it takes longer than a kernel
            header.write_text(PREAMBLE.read_text())
            compile_cpp("-x", "c++-header", header, "-o", f"{header}.gch", *flags)
        source = path.with_suffix(".cpp")
        kernels = text.replace(kernel_text("device"), "").replace(kernel_text("wgmma"), WGMMA.read_text())
        source.write_text(f'#include "{header.name}"\n{kernels}{launchers(kernels)}')
        compile_cpp("-shared", source, "-o", path, *flags)
    return path


def compile_cpp(*arguments):
    flags = shlex.split(os.environ.get("CXXFLAGS", ""))
    flags += ["-U_FORTIFY_SOURCE"]  # fortified, a jump from the stack of one fiber to that of another is an error
    if (
        "clang" not in _version()
    ):  # without the flag, static variables of inline functions would be another library's
        flags += ["-fno-gnu-unique"]
    command = [COMPILER, "-std=c++20", "-fPIC", "-w", *flags, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


@functools.cache
def _version():
    return subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout


class HostFunction:
    at_once = 1  # blocks that run at the same time

    def __init__(self, library, name, n_slots, device=None):
        self.device = device
        self.launcher, self.n_slots = getattr(library, f"launch_{name}"), n_slots
        self.launcher.restype, self.launcher.argtypes = None, (ctypes.c_void_p, *[ctypes.c_uint] * 3)
        self.size = library.size_of_call
        self.size.restype = ctypes.c_int64
        self.launches, self.shared_bytes = 0, 0

    def use_shared(self, n_bytes):
        self.shared_bytes = n_bytes

    def blocks_at_once(self, n_threads):
        return self.n_slots

    def launch(self, n_blocks, n_threads, stream, structure, shared_bytes=0, together=False):
        assert ctypes.sizeof(structure) == self.size()
        assert not together or n_blocks <= self.device.n_processors
        self.launches += 1
        self.launcher(ctypes.addressof(structure), n_blocks, n_threads, n_blocks if together else self.at_once)


class HostModule:
    def __init__(self, path, device):
        self.library, self.device = ctypes.CDLL(str(path)), device

    def function(self, name):
        return HostFunction(self.library, name, self.device.n_slots, self.device)


class HostMemory:
    def __init__(self, data):
        self.data = ctypes.create_string_buffer(data, len(data) + 8)
        # A pointer of numbers of 8 bytes has to be a multiple of them.
        self.pointer = -(-ctypes.addressof(self.data) // 8) * 8
        ctypes.memmove(self.pointer, data, len(data))


class HostDevice:
    """Stands in for `driver.Device`."""

    def __init__(self, folder, n_slots):
        self.folder, self.n_slots, self.ordinal, self.capability = folder, n_slots, 0, 90
        self.n_processors, self.shared_bytes = n_slots, 227 * 1024

    def load(self, text):
        return HostModule(build(self.folder, text.decode(), "-O1", "-ffp-contract=fast"), self)

    def memory(self, data):
        return HostMemory(data)

    def fill(self, pointer, word, n, stream):
        ctypes.memmove(pointer, struct.pack("I", word) * n, 4 * n)


def install(monkeypatch, folder, n_slots=8):
    """Let pairs and user-defined scans run on the host; `n_slots` of the device decide how columns are split."""
    device = HostDevice(folder, n_slots)
    monkeypatch.setattr(driver, "device", lambda ordinal: device)
    monkeypatch.setattr(nvrtc, "fetch_or_compile", lambda text, options, capability: text.encode())
    # Threads that wait for each other are slow on the host: a few of them have several chunks each.
    monkeypatch.setattr(render, "JOINERS", (16,))
    # Empty caches for the time of the test: a real device must not find functions of the host.
    monkeypatch.setattr(pairs_launch, "_prepared", LRUCache(64))
    monkeypatch.setattr(user_scan_launch, "_kernels", LRUCache(user_scan_launch.MAX_KERNELS))
    monkeypatch.setattr(compiled_scans, "_functions", weakref.WeakKeyDictionary())
    return device


def refuse_order(monkeypatch):
    """Let a kernel end the process where a thread goes through chunks or tiles in order."""
    compiled, in_order = nvrtc.fetch_or_compile, re.compile(r"void (?:scan_in_order|go_through)\([^{]*{")
    trap = lambda text: in_order.sub(lambda match: match[0] + "__builtin_trap();", text)  # noqa: E731
    monkeypatch.setattr(nvrtc, "fetch_or_compile", lambda text, *args: compiled(trap(text), *args))


def describe(array):
    """Describe an array in host memory."""
    address = array.__array_interface__["data"][0]
    return ArrayDescriptor(address, array.shape, array.strides, array.dtype.name)


def run(reduction, arrays, n_i, n_j, batch=(), ranges=None):
    """Return the results of a reduction as numpy arrays, which hold -77 before."""
    rows = n_i if reduction.rows == "i" else n_j
    results = []
    for dim, kind in outputs(reduction):
        dtype = np.int64 if kind == "index" else arrays[0].dtype
        results.append(np.full((*batch, rows, dim), -77, dtype))
    memory = []

    def allocate(n_bytes):
        memory.append(np.full(math.ceil(n_bytes / 8), np.nan))
        return memory[-1].ctypes.data, None

    pairs_launch.run(
        reduction, [describe(array) for array in arrays], [describe(result) for result in results],
        n_i, n_j, batch, ranges, device=0, stream=0, allocate=allocate,
    )  # fmt: skip
    return results


class HostPlace:
    """The arrays of `device_scan_cases`, in host memory."""

    def __init__(self):
        self.references = []

    def send(self, array):
        self.references.append(array)
        return describe(array)

    def poisoned(self, like, shape, dtype):
        if like is None or like.shape != shape or 0 in like.strides:
            result = np.full(shape, 77, dtype)
        else:
            result = np.full_like(like, 77, dtype=dtype)
        return describe(result), result

    def fetch(self, array, result):
        return result

    def allocate(self, n_bytes):
        self.references.append(np.full(math.ceil(n_bytes / 8), np.nan))
        return self.references[-1].ctypes.data, None
