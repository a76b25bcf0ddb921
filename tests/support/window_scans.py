"""Windowed sums along lines (cuda/scan/window_lines.cuh), compiled by the C++ compiler for the host.

Threads are fibers; two blocks run at the same time and wait for each other. Only nvcc and launches are not tested.
"""

import numpy as np
from column_scans import COMMON, compile_scans
from host_device import describe
from upsweep._backends.cuda import scan_launch

# Smaller tiles: 1,024 steps of float32.
SIZES = {"kTileBytes = 16384": "kTileBytes = 4096"}
UNIT = (
    COMMON
    + """
#include "scan_plan.hpp"
#include "scan/window_lines.cuh"

namespace upsweep {
struct Call {
    Problem p;
    WindowShape shape;
    Workspace w;
};
template <class T>
void scan_block(Call c) { scan_window_lines<T>(c.p, c.shape, c.w); }
struct Copy {
    Problem p;
    char* to;
};
template <class T>
void copy_block(Copy c) { copy_window_lines<T>(c.p, reinterpret_cast<T*>(c.to)); }

template <class T>
void launch(const Plan& plan, const Workspace& w) {
    Call call = {plan.problem, plan.shape, w};
    if (plan.aside) {
        const Copy copy = {plan.problem, reinterpret_cast<char*>(w.counter) + plan.aside};
        fibers::Launch<Copy>::run(copy_block<T>, copy, 3, 64, 1);
        take_copy<T>(call.p, copy.to);
    }
    const int warps = std::min(WindowTuning::kThreads / 32, plan.shape.units);
    if (WindowTile<T>::bytes(plan.shape, warps) > 1 << 17) __builtin_trap();
    fibers::Launch<Call>::run(scan_block<T>, call, unsigned(plan.problem.lines * plan.tiles), warps * 32, 2);
}
}  // namespace upsweep

using namespace upsweep;
extern "C" const char* upsweep_cuda_last_error() { return "no plan of windows along lines"; }
extern "C" int upsweep_cuda_plan_scan(const upsweep_scan* scan, int, upsweep_plan* result) {
    Plan plan;
    if (make_plan(*scan, {132, 16, 227 * 1024}, &plan)) return UPSWEEP_INVALID;
    if (plan.regime != kWindow || !plan.typed) return UPSWEEP_INVALID;
    *result = {plan.regime, plan.typed, plan.problem.lines, plan.tile, 1, plan.workspace_bytes};
    return 0;
}
extern "C" int upsweep_cuda_scan(const upsweep_scan* scan) {
    Plan plan;
    make_plan(*scan, {132, 16, 227 * 1024}, &plan);
    std::memset(scan->workspace, 0xff, plan.invalid_bytes);
    char* const words = static_cast<char*>(scan->workspace) + kCounterBytes;
    const Workspace w = {static_cast<uint32_t*>(scan->workspace), reinterpret_cast<unsigned long long*>(words)};
    if (plan.problem.x.dtype == UPSWEEP_FLOAT16) launch<__half>(plan, w);
    else if (plan.problem.x.dtype == UPSWEEP_BFLOAT16) launch<__nv_bfloat16>(plan, w);
    else if (plan.problem.x.dtype == UPSWEEP_FLOAT32) launch<float>(plan, w);
    else launch<double>(plan, w);
    return 0;
}
"""
)


def compile_library(folder):
    """Compile the kernels of this module."""
    return compile_scans(folder, UNIT, SIZES)


def scan(x, gamma, window, *, out=None, reverse=False, axis=-1):
    """Return windowed sums; where nothing is written the result holds 77. gamma: a number, or one of each line."""
    out = np.full_like(x, 77) if out is None else out
    memory = []

    def allocate(n_bytes):
        memory.append(np.full(-(-n_bytes // 16) * 2 + 2, np.nan))
        return -(-memory[-1].ctypes.data // 16) * 16, None

    request = scan_launch.problem(
        describe(x), None, describe(gamma) if isinstance(gamma, np.ndarray) else gamma, None, None, describe(out),
        None, axis=axis % x.ndim, reverse=reverse, exclusive=False, device=0, stream=0, window=window,
    )  # fmt: skip
    scan_launch.run_scan(request, allocate)
    return out
