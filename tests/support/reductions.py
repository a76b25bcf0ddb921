"""Reductions by the kernels of cuda/: on a device, or compiled by the C++ compiler for the host.

On the host everything is tested but nvcc and the launches: threads are fibers, blocks run one after the other.
"""

import contextlib
import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
from host_device import described
from numpy.lib.array_utils import byte_bounds
from upsweep._backends.cuda import abi, aggregate_launch, staging

SOURCES = Path(__file__).parents[2] / "cuda"
SUPPORT = Path(__file__).parent
# Chunks of several turns each have to come up in lines that fibers can walk along.
SMALLER = {
    "kChunks = 16384": "kChunks = 100",
    "kFewChunks = 8": "kFewChunks = 2",
    "kColumnThreads = 1 << 18": "kColumnThreads = 64",
    "kColumnSteps = 128": "kColumnSteps = 24",
    "kWarpChunks = 512": "kWarpChunks = 20",
}
UNIT = """
#include "cuda_on_host.hpp"
#include "plan/scan.cpp"
#include "plan/reduce.cpp"
#include "instances/reduce_any.cu"
#include "instances/reduce_float32.cu"
#include "instances/reduce_float64.cu"
#include "instances/reduce_bfloat16.cu"
#include "instances/reduce_float16.cu"
#include "api/reduce.cu"
#include <cstdarg>
#include <cstdio>
static char last_error[512];
namespace upsweep {
int32_t fail(int32_t status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}
int32_t cuda_failed(const char* what, cudaError_t) { return fail(UPSWEEP_CUDA_ERROR, "%s", what); }
}  // namespace upsweep
UPSWEEP_EXPORT const char* upsweep_cuda_last_error(void) { return last_error; }
"""


def _for_the_host(text):
    text = re.sub(r"asm volatile\([^;]*\);", ";", text)
    text = re.sub(r"#include <cuda_\w+\.h>", "", text)
    for measured, smaller in SMALLER.items():
        text = text.replace(measured, smaller)
    # A kernel's name may have arguments of its own in angles; what it takes is one structure.
    return re.sub(r"(\w+<[^;{}]*>)<<<(\w+), (\w+), 0, stream>>>\(r\);", r"launch_on_host(\1, \2, \3, r);", text)


def compile_library(folder):
    """The library in `folder`, with the functions of the C interface that reduce."""
    for source in SOURCES.rglob("*.*"):
        if source.suffix in (".cuh", ".hpp", ".h", ".cu", ".cpp"):
            target = folder / source.relative_to(SOURCES)
            target.parent.mkdir(exist_ok=True)
            target.write_text(_for_the_host(source.read_text()))
    for source in ("on_host.hpp", "cuda_on_host.hpp"):
        (folder / source).write_text((SUPPORT / source).read_text())
    (folder / "unit.cpp").write_text(UNIT)
    library = folder / "reduce.so"
    command = ["g++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off", "-fno-gnu-unique"]
    command += [f"-I{folder}", f"-I{folder / 'include'}"]
    done = subprocess.run([*command, folder / "unit.cpp", "-o", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return HostLibrary(library)


class HostLibrary:
    """Stands in for `_cuda.library.Library`, as far as reductions need it."""

    def __init__(self, path):
        loaded = ctypes.CDLL(str(path))
        self.last_error = loaded.upsweep_cuda_last_error
        self.last_error.restype = ctypes.c_char_p
        for name in ("plan_reduce", "reduce"):
            function = getattr(loaded, f"upsweep_cuda_{name}")
            function.restype, function.argtypes = abi.FUNCTIONS[f"upsweep_cuda_{name}"][:2]
            function.errcheck = self._check
            setattr(self, name, function)

    def _check(self, status, function, arguments):
        if status:
            raise ValueError(self.last_error().decode())
        return status


class OnHost:
    """Arrays where they are."""

    def __init__(self):
        self.kept = []

    def send(self, array):
        return described(array)

    def fetch(self, there, array):
        pass

    def allocate(self, n_bytes):
        self.kept.append(np.full(-(-n_bytes // 8), np.nan))
        return self.kept[-1].ctypes.data, None

    def close(self):
        pass


class DeviceView:
    """The memory that arrays lie in, with its strides and its place within 16 bytes, on the first device."""

    def __init__(self):
        self.memory = staging.Memory(0)

    def send(self, array):
        there = described(array)
        if array.size == 0:
            return there
        low, high = byte_bounds(array)
        begin = self.memory.allocate(high - low + 16)[0] + low % 16
        self.memory.library.copy_to_device(0, 0, begin, low, high - low)
        return there._replace(pointer=begin + there.pointer - low)

    def fetch(self, there, array):
        if array.size:
            self.memory.library.copy_to_host(0, 0, array.ctypes.data, there.pointer, array.nbytes)

    def allocate(self, n_bytes):
        return self.memory.allocate(n_bytes)

    def close(self):
        self.memory.close()


def reduce(
    place, x, gates=None, gamma=None, reset=None, *, initial=None, axis=-1, reverse=False, only_value=False
):
    """(multiplier, value, dropped) by the kernels of a place; what is to be written is poisoned before."""
    axis %= x.ndim
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    factor = gamma if gates is None else gates
    complex_factor = factor is not None and np.iscomplexobj(factor)
    if x.dtype.kind in "biu":
        dtypes = [np.uint64 if x.dtype.kind == "u" else np.int64] * 2
    else:
        wide = np.complex128 if np.iscomplexobj(x) or complex_factor else np.float64
        dtypes = [np.complex128 if complex_factor else np.float64, wide]
    found = [np.full(shape, 77, dtype) for dtype in dtypes] + [np.ones(shape, bool)]
    with contextlib.closing(place()) as memory:
        given = [memory.send(a) if isinstance(a, np.ndarray) else a for a in (x, gates, gamma, reset, initial)]
        there = [memory.send(array) for array in found]
        multiplier, value, dropped = there
        aggregate_launch.reduce(
            *given[:4], None if only_value else multiplier, value, None if only_value else dropped,
            initial=given[4], axis=axis, reverse=reverse, device=0, stream=0, allocate=memory.allocate,
        )  # fmt: skip
        for made, array in zip(there, found):
            memory.fetch(made, array)
    return tuple(found)
