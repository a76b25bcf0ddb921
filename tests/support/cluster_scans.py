"""The kernels of cluster lines and block lines (cuda/scan), compiled by the C++ compiler for the host.

Threads are fibers. The blocks of a cluster run at the same time, each by a thread of the host, whose thread-local
variables are the block's shared memory: another block's lie as far from its thread's anchor.
"""

from column_scans import COMMON, compile_scans

# Fewer blocks in a cluster: each is a thread.
SMALLER = {
    "kBlocks = 16;          // of a cluster": "kBlocks = 4;           // of a cluster",
    '#include "common/cluster.cuh"': "",
}
UNIT = (
    COMMON
    + """
#define __builtin_assume(condition) ((condition) ? void() : __builtin_trap())
namespace clusters {
constexpr int MOST = 4096;
static unsigned n_blocks;
static std::atomic<char*> anchors[MOST];
static std::atomic<unsigned> arrived[MOST], opened[MOST];
static thread_local char anchor;
static thread_local unsigned before[1024];
}  // namespace clusters
namespace upsweep {
static void arrive_at_cluster() {
    using namespace clusters;
    const unsigned cluster = blockIdx.x / n_blocks;
    anchors[blockIdx.x] = &anchor;
    before[threadIdx.x] = opened[cluster];
    if (++arrived[cluster] == n_blocks * blockDim.x) arrived[cluster] = 0, ++opened[cluster];
}
static void arrive_relaxed() { arrive_at_cluster(); }
static void wait_for_cluster() {
    while (clusters::opened[blockIdx.x / clusters::n_blocks] == clusters::before[threadIdx.x]) back_off();
}
static void synchronise_cluster() {
    arrive_at_cluster();
    wait_for_cluster();
}
template <class T>
T* in_block(T* local, int block) {
    using namespace clusters;
    char* const other = anchors[blockIdx.x / n_blocks * n_blocks + block];
    return reinterpret_cast<T*>(other + (reinterpret_cast<char*>(local) - &anchor));
}
struct Arrivals {
    std::atomic<int> missing;
    void expect(int n_bytes) { missing = n_bytes; }
    void send(double* to, int block, double first, double second) {
        double* const there = in_block(to, block);
        there[0] = first, there[1] = second;
        in_block(this, block)->missing -= 16;
    }
    void wait() {
        while (missing) back_off();
    }
};
}  // namespace upsweep
#include "scan_plan.hpp"
#include "scan/block_lines.cuh"

namespace upsweep {
struct Call {
    Problem p;
    int log2_blocks;
};
struct Vectors {
    void (*kernel)(BlockLines, Problem);
    BlockLines lines;
    Problem p;
};
template <class T, bool kReverse, bool kGated>
void run_block(Call c) {
    scan_cluster_lines<T, kReverse, kGated>(c.p, c.log2_blocks);
}
static void run_vectors(Vectors c) { c.kernel(c.lines, c.p); }
template <class T, bool kReverse, bool kGated>
void launch_vectors(const Plan& plan) {
    const BlockLaunch<T, kReverse, kGated> launch(plan);
    const Vectors call = {launch.kernel, BlockLines(plan), plan.problem};
    fibers::Launch<Vectors>::run(run_vectors, call, unsigned(launch.blocks), launch.threads, 2);
}
template <class T>
void launch(const Plan& plan) {
    if (plan.regime == kBlockLines)
        return plan.reverse
            ? plan.gated ? launch_vectors<T, true, true>(plan) : launch_vectors<T, true, false>(plan)
            : plan.gated ? launch_vectors<T, false, true>(plan) : launch_vectors<T, false, false>(plan);
    const int n_blocks = int(plan.tiles);
    const Call call = {plan.problem, n_blocks == 1 ? 0 : 2};
    const auto kernel = plan.reverse ? plan.gated ? run_block<T, true, true> : run_block<T, true, false>
                                     : plan.gated ? run_block<T, false, true> : run_block<T, false, false>;
    clusters::n_blocks = n_blocks;
    fibers::Launch<Call>::run(kernel, call, unsigned(plan.problem.lines * n_blocks), plan.warps * 32, n_blocks);
}
}  // namespace upsweep

using namespace upsweep;
extern "C" int last_blocks, n_processors;
int last_blocks, n_processors = 132;
static bool make(const upsweep_scan& scan, Plan* plan) {
    if (make_plan(scan, {n_processors, ClusterTuning::kBlocks, 227 * 1024}, plan)) return false;
    return plan->regime == kClusterLines || plan->regime == kBlockLines;
}
extern "C" const char* upsweep_cuda_last_error() { return "no plan of cluster lines or block lines"; }
extern "C" int upsweep_cuda_plan_scan(const upsweep_scan* scan, int, upsweep_plan* result) {
    Plan plan;
    if (!make(*scan, &plan)) return UPSWEEP_INVALID;
    *result = {plan.regime, plan.typed, plan.problem.lines, plan.tile, 1, plan.workspace_bytes};
    return 0;
}
extern "C" int upsweep_cuda_scan(const upsweep_scan* scan) {
    Plan plan;
    if (!make(*scan, &plan)) return UPSWEEP_INVALID;
    last_blocks = int(plan.tiles);
    if (plan.problem.x.dtype == UPSWEEP_FLOAT16) launch<__half>(plan);
    else if (plan.problem.x.dtype == UPSWEEP_BFLOAT16) launch<__nv_bfloat16>(plan);
    else if (plan.problem.x.dtype == UPSWEEP_FLOAT32) launch<float>(plan);
    else launch<double>(plan);
    return 0;
}
"""
)


def compile_library(folder):
    """Compile the kernels of this module."""
    return compile_scans(folder, UNIT, SMALLER)
