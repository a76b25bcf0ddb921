"""The kernel of resident lines (cuda/scan/resident_lines.cuh), compiled by the C++ compiler for the host.

Threads are fibers; all blocks run at the same time and wait for each other. Only nvcc and launches are not tested.
"""

from column_scans import COMMON, compile_scans

# A device of six processors, and pieces of 5 KiB of which three are held.
SMALLER = {
    "kThreads = 512": "kThreads = 64",
    "kMostSlots = 5": "kMostSlots = 3",
    "kLeastVectors = 2560": "kLeastVectors = 1",
}
UNIT = (
    COMMON
    + """
#include "scan_plan.hpp"
#include "scan/resident_lines.cuh"

namespace upsweep {
struct Call {
    Problem p;
    ResidentShape shape;
    ResidentPowers powers;
    Workspace w;
};
template <class T, bool kReverse>
void scan_block(Call c) { scan_resident_lines<T, kReverse>(c.p, c.shape, c.powers, c.w); }

template <class T>
void launch(const Plan& plan, const Workspace& w) {
    const Call call = {plan.problem, plan.resident, resident_powers<T>(plan), w};
    const auto kernel = plan.reverse ? scan_block<T, true> : scan_block<T, false>;
    const unsigned n_blocks = unsigned(plan.problem.lines * plan.tiles);
    fibers::Launch<Call>::run(kernel, call, n_blocks, ResidentTuning::kThreads, n_blocks);
}
}  // namespace upsweep

using namespace upsweep;
static const Machine machine = {6, 1, 227 * 1024};
extern "C" const char* upsweep_cuda_last_error() { return "no plan of resident lines"; }
extern "C" int upsweep_cuda_plan_scan(const upsweep_scan* scan, int, upsweep_plan* result) {
    Plan plan;
    if (make_plan(*scan, machine, &plan) || plan.regime != kResidentLines) return UPSWEEP_INVALID;
    *result = {plan.regime, plan.typed, plan.problem.lines, plan.tile, 1, plan.workspace_bytes};
    return 0;
}
extern "C" int upsweep_cuda_scan(const upsweep_scan* scan) {
    Plan plan;
    if (make_plan(*scan, machine, &plan) || plan.regime != kResidentLines) return UPSWEEP_INVALID;
    std::memset(scan->workspace, 0xff, plan.invalid_bytes);
    char* const words = static_cast<char*>(scan->workspace) + kCounterBytes;
    const Workspace w = {static_cast<uint32_t*>(scan->workspace), reinterpret_cast<unsigned long long*>(words)};
    if (plan.problem.x.dtype == UPSWEEP_FLOAT16) launch<__half>(plan, w);
    else if (plan.problem.x.dtype == UPSWEEP_BFLOAT16) launch<__nv_bfloat16>(plan, w);
    else launch<float>(plan, w);
    return 0;
}
"""
)


def compile_library(folder):
    """Compile the kernels of this module."""
    return compile_scans(folder, UNIT, SMALLER)
