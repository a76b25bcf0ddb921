"""The kernels of split, held and wide columns (cuda/scan), compiled by the C++ compiler for the host.

Threads are fibers; two blocks run at the same time and wait for each other. Only nvcc and launches are not tested.
"""

import re

from reductions import HostLibrary, compile_unit

# Smaller tiles, groups and families, so that a few thousand steps have several families.
SMALLER = {
    "kSplitBytes = 128": "kSplitBytes = 32",
    "kGroup = 16": "kGroup = 8",
    "kNarrowTiles = 264": "kNarrowTiles = 4",
    "kLines = 32768": "kLines = 256",
}
# The inline assembly that this kernel executes.
REPLACED = {
    r'asm volatile\("st\.relaxed.*?\);': "__atomic_store_n(to, w, __ATOMIC_RELAXED);",
    r'asm volatile\("ld\.relaxed.*?\);': "w = __atomic_load_n(from, __ATOMIC_RELAXED);",
    r'asm volatile\("cp\.async\.cg.*?\);': "std::memcpy(__builtin_assume_aligned(to, 16), from, 16);",
    r'asm\("createpolicy.*?\);': "",
    r'asm volatile\("cp\.async\.ca.*?\);': "std::memcpy(to, from, kBytes);",
    r"asm volatile\(.*?\);": ";",
    r"#include <cuda_\w+\.h>": "",
    r"extern __shared__ uint4 staging\[\];": "static thread_local uint4 staging[1 << 13];",
}
# What scans need of CUDA beside it.
COMMON = """
#include "cuda_on_host.hpp"
#define __host__
static uintptr_t __cvta_generic_to_shared(const void* at) { return uintptr_t(at); }
static void __nanosleep(unsigned) { back_off(); }
"""
UNIT = (
    COMMON
    + """#include "scan_plan.hpp"
#include "scan/held_columns.cuh"
#include "scan/split_columns.cuh"
#include "scan/wide_columns.cuh"

namespace upsweep {
struct Call {
    Problem p;
    Workspace w;
    int64_t blocks, tiles;
    int width;
    bool aligned;
};
template <class Element, bool kGated, bool kResets>
void run_block(Call c) {
    scan_split_columns<Element, kGated, kResets>(c.p, c.w, c.blocks, c.tiles, c.width, c.aligned);
}
template <class Element, bool kGated, bool kResets>
void launch(const Plan& plan, const Call& call) {
    const unsigned n_blocks = unsigned(plan.blocks * plan.tiles), n_threads = ColumnTuning::kWarps * 32;
    fibers::Launch<Call>::run(run_block<Element, kGated, kResets>, call, n_blocks, n_threads, 2);
}
template <class T, bool kGated>
void run_wide(Call c) {
    scan_wide_columns<T, kGated>(c.p);
}
template <class T, int kShape>
void run_held(Call c) {
    constexpr HeldTuning::Shape shape = HeldTuning::kShapes[kShape];
    scan_held_columns<T, shape.run, shape.warps>(c.p, HeldPowers(c.p.gamma_re, shape.run));
}
template <class T, int kShape = 0>
void launch_held(const Plan& plan, const Call& call) {
    constexpr HeldTuning::Shape shape = HeldTuning::kShapes[kShape];
    if (plan.each == shape.run && plan.warps == shape.warps)
        return fibers::Launch<Call>::run(run_held<T, kShape>, call, unsigned(plan.blocks), shape.warps * 32, 2);
    if constexpr (kShape + 1 < sizeof(HeldTuning::kShapes) / sizeof(shape)) launch_held<T, kShape + 1>(plan, call);
}
template <class Element, bool kGated>
void launch_any(const Plan& plan, const Call& call) {
    if constexpr (kStagesColumns<Element>) {
        using T = typename Element::Raw;
        if (plan.regime == kHeldColumns) return launch_held<T>(plan, call);
        const unsigned n_blocks = unsigned(plan.blocks), n_threads = WideTuning::kThreads;
        if (plan.regime == kWideColumns)
            return fibers::Launch<Call>::run(run_wide<T, kGated>, call, n_blocks, n_threads, 2);
    }
    if constexpr (!kStagesColumns<Element>) launch<Element, kGated, true>(plan, call);
    else if (plan.problem.reset.data) launch<Element, kGated, true>(plan, call);
    else launch<Element, kGated, false>(plan, call);
}
template <class Element>
void launch_of(const Plan& plan, const Call& call) {
    if (plan.gated) launch_any<Element, true>(plan, call);
    else launch_any<Element, false>(plan, call);
}
}  // namespace upsweep

using namespace upsweep;
extern "C" const char* upsweep_cuda_last_error() { return "no plan of split columns"; }
extern "C" int upsweep_cuda_plan_scan(const upsweep_scan* scan, int, upsweep_plan* result) {
    Plan plan;
    if (make_plan(*scan, {132, 16, 227 * 1024}, &plan)) return UPSWEEP_INVALID;
    if (plan.regime != kSplitColumns && plan.regime != kHeldColumns && plan.regime != kWideColumns)
        return UPSWEEP_INVALID;
    *result = {plan.regime, plan.typed, plan.problem.lines, plan.tile, 1, plan.workspace_bytes};
    return 0;
}
extern "C" int upsweep_cuda_scan(const upsweep_scan* scan) {
    Plan plan;
    make_plan(*scan, {132, 16, 227 * 1024}, &plan);
    std::memset(scan->workspace, 0xff, scan->workspace_bytes);
    char* const words = static_cast<char*>(scan->workspace) + kCounterBytes;
    const Workspace w = {static_cast<uint32_t*>(scan->workspace), reinterpret_cast<unsigned long long*>(words)};
    const Call call = {plan.problem, w, plan.blocks, plan.tiles, plan.width, plan.aligned};
    if (scan->accumulator == UPSWEEP_INTEGER) launch_any<Any<uint64_t>, false>(plan, call);
    else if (scan->accumulator == UPSWEEP_COMPLEX) launch_of<Any<Complex>>(plan, call);
    else if (!plan.typed) launch_of<Any<double>>(plan, call);
    else if (plan.problem.x.dtype == UPSWEEP_FLOAT16) launch_of<Typed<__half>>(plan, call);
    else if (plan.problem.x.dtype == UPSWEEP_BFLOAT16) launch_of<Typed<__nv_bfloat16>>(plan, call);
    else if (plan.problem.x.dtype == UPSWEEP_FLOAT32) launch_of<Typed<float>>(plan, call);
    else launch_of<Typed<double>>(plan, call);
    return 0;
}
"""
)


def for_the_host(text, smaller):
    for pattern, replacement in REPLACED.items():
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    for measured, small in smaller.items():
        text = text.replace(measured, small)
    return text


def compile_scans(folder, unit, smaller):
    """Compile a library with the functions of the C interface that a scan needs."""
    return HostLibrary(compile_unit(folder, unit, lambda text: for_the_host(text, smaller)), ("plan_scan", "scan"))


def compile_library(folder):
    """Compile the kernels of this module."""
    return compile_scans(folder, UNIT, SMALLER)
