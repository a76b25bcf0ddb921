"""Aggregates by the kernels of cuda/reduce: on a device, or compiled by the C++ compiler for the host.

On the host, threads are fibers and blocks run one after the other; only nvcc and the launches are not tested.
"""

import contextlib
import ctypes
import re
from pathlib import Path

import numpy as np
from host_device import compile_cpp, describe
from numpy.lib.array_utils import byte_bounds
from upsweep._backends.cuda import abi, scan_launch
from upsweep._backends.cuda.memory import DeviceMemory
from upsweep._compiler.cuda.pairs.render import kernel_text

SOURCES = Path(__file__).parents[2] / "cuda"
SUPPORT = Path(__file__).parent
# Smaller limits, so that lines that fibers can process in time have several chunks of several rounds each.
SMALLER = {
    "kChunks = 16384": "kChunks = 100",
    "kFewChunks = 8": "kFewChunks = 2",
    "kColumnThreads = 1 << 18": "kColumnThreads = 64",
    "kColumnSteps = 128": "kColumnSteps = 24",
    "kWarpChunks = 512": "kWarpChunks = 20",
}
UNIT = """
#include "cuda_on_host.hpp"
#include "scan_plan.hpp"
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
    # A kernel's name may have template arguments; the kernel takes one structure.
    return re.sub(r"(\w+<[^;{}]*>)<<<(\w+), (\w+), 0, stream>>>\(r\);", r"launch_on_host(\1, \2, \3, r);", text)


def compile_unit(folder, unit, translate):
    """Compile a translation unit that includes files of cuda/, translated to C++; return the library's path."""
    for source in SOURCES.rglob("*.*"):
        if source.suffix in (".cuh", ".hpp", ".h", ".cu", ".cpp"):
            target = folder / source.relative_to(SOURCES)
            target.parent.mkdir(exist_ok=True)
            target.write_text(translate(source.read_text()))
    for source in ("on_host.hpp", "cuda_on_host.hpp", "scan_plan.hpp"):
        (folder / source).write_text((SUPPORT / source).read_text())
    (folder / "all_states.cuh").write_text(kernel_text("all_states"))
    (folder / "unit.cpp").write_text(unit)
    library = folder / "unit.so"
    flags = ["-std=c++20", "-O1", "-shared", "-ffp-contract=off", f"-I{folder}", f"-I{folder / 'include'}"]
    compile_cpp(*flags, folder / "unit.cpp", "-o", library)
    return library


def compile_library(folder):
    """Compile a library with the reduction functions of the C interface in `folder`."""
    return HostLibrary(compile_unit(folder, UNIT, _for_the_host))


class HostLibrary:
    """Stands in for `library.Library`, with the functions of these names."""

    def __init__(self, path, names=("plan_reduce", "reduce")):
        self.loaded = loaded = ctypes.CDLL(str(path))
        self.last_error = loaded.upsweep_cuda_last_error
        self.last_error.restype = ctypes.c_char_p
        for name in names:
            function = getattr(loaded, f"upsweep_cuda_{name}")
            function.restype, function.argtypes = abi.FUNCTIONS[f"upsweep_cuda_{name}"][:2]
            function.errcheck = self._check
            setattr(self, name, function)

    def _check(self, status, function, arguments):
        if status:
            raise ValueError(self.last_error().decode())
        return status


class HostArrays:
    """Arrays in host memory, for the host library."""

    def __init__(self):
        self.workspaces = []

    def send(self, array):
        return describe(array)

    def fetch(self, source, array):
        pass

    def allocate(self, n_bytes):
        self.workspaces.append(np.full(-(-n_bytes // 8), np.nan))
        return self.workspaces[-1].ctypes.data, None

    def close(self):
        pass


class DeviceArrays:
    """Copies on the first device, with the strides of the host arrays and their alignment to 16 bytes."""

    def __init__(self):
        self.memory = DeviceMemory(0)
        self.allocate, self.close = self.memory.allocate, self.memory.close

    def send(self, array):
        target = describe(array)
        if array.size == 0:
            return target
        low, high = byte_bounds(array)
        begin = self.memory.allocate(high - low + 16)[0] + low % 16
        self.memory.library.copy_to_device(0, 0, begin, low, high - low)
        return target._replace(pointer=begin + target.pointer - low)

    def fetch(self, source, array):
        if array.size:
            self.memory.library.copy_to_host(0, 0, array.ctypes.data, source.pointer, array.nbytes)


def reduce(
    place, x, gates=None, gamma=None, reset=None, *, initial=None, axis=-1, reverse=False, only_value=False
):
    """Return (multiplier, value, dropped), computed in `place`; the results hold 77 before."""
    axis %= x.ndim
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    factor = gamma if gates is None else gates
    complex_factor = factor is not None and np.iscomplexobj(factor)
    if x.dtype.kind in "biu":
        dtypes = [np.uint64 if x.dtype.kind == "u" else np.int64] * 2
    else:
        wide = np.complex128 if np.iscomplexobj(x) or complex_factor else np.float64
        dtypes = [np.complex128 if complex_factor else np.float64, wide]
    results = [np.full(shape, 77, dtype) for dtype in dtypes] + [np.ones(shape, bool)]
    with contextlib.closing(place()) as memory:
        x, gates, gamma, reset, initial = (
            memory.send(a) if isinstance(a, np.ndarray) else a for a in (x, gates, gamma, reset, initial)
        )
        multiplier, value, dropped = targets = [memory.send(array) for array in results]
        scan_launch.reduce(
            x, gates, gamma, initial, reset, None if only_value else multiplier, value,
            None if only_value else dropped, axis=axis, reverse=reverse, device=0, stream=0,
            allocate=memory.allocate,
        )  # fmt: skip
        for target, array in zip(targets, results):
            memory.fetch(target, array)
    return tuple(results)
