"""Counts and sums of weights by the kernels of cuda/bincount, compiled by the C++ compiler for the host.

Threads are fibers and blocks run one after the other. Only nvcc, the few lines of inline assembly and the checks
of `api/bincount.cu` are not tested.
"""

import re

import numpy as np
from host_device import describe
from reductions import HostLibrary, compile_unit
from upsweep._backends.cuda import abi, bincount_launch

# Smaller limits, so that counts that fibers can process in time take every algorithm, and several rounds of each.
SMALLER = {
    "kWholeWords = 56 * 1024": "kWholeWords = 2048",
    "kHalfWords = 28 * 1024": "kHalfWords = 1024",
    "kHalfBins = 14 * 1024": "kHalfBins = 512",
    "kPartKeys = 1 << 21": "kPartKeys = 1 << 12",
    "constexpr int kPartBits = 15": "constexpr int kPartBits = 10",
    "kSumPartBits = 14": "kSumPartBits = 11",
    "kPieceKeys = 1 << 26": "kPieceKeys = 1 << 12",
    "kPartShared = 148": "kPartShared = 132",
    "kPartShared = 168": "kPartShared = 132",
    "kFewParts = 256": "kFewParts = 66",
    "4 * blocks * n_parts": "blocks * n_parts / 16",
    "kRowsPerProcessor = 16": "kRowsPerProcessor = 8",
    "kWarpKeys = 256": "kWarpKeys = 64",
    "kEntries = 4096": "kEntries = 64",
    "20;   // the highest 12 bits": "26;",
}
REPLACED = {
    r'asm\("ld\.global.*?\);': "v = *from;",
    r'asm volatile\("\{\.reg.*?\);': "if (inside) ++*reinterpret_cast<uint32_t*>(lane_address + first(bin) * 4);",
    r'asm volatile\("cp\.async\.ca.*?\);': "std::memcpy(to, from, kBytes);",
    r'asm volatile\("cp\.async\.cg.*?\);': "std::memcpy(__builtin_assume_aligned(to, 16), from, 16);",
    r"asm volatile\(.*?\);": ";",
    r"uint32_t multiplier, lane_address;": "uint32_t multiplier; uintptr_t lane_address;",
    r"static_cast<uint32_t>\(__cvta_generic_to_shared\(table \+ lane\)\)": "uintptr_t(table + lane)",
    r"#include <cuda_\w+\.h>": "",
    r"extern __shared__ uint4 (\w+)\[\];": r"uint4* const \1 = reinterpret_cast<uint4*>(shared_memory());",
    r"(\w+(?:<[\w, ()]*>)?)\s*<<<(.+?), ([^,]+), \w+, stream>>>\(([^;]*)\);": r"launch_on_host(\1, \2, \3, \4);",
}
UNIT = """
#include "cuda_on_host.hpp"
static uintptr_t __cvta_generic_to_shared(const void* at) { return uintptr_t(at); }
#include "scan_plan.hpp"
#include "plan/bincount.cpp"
#include "bincount/launch.cu"
#include "bincount/sums.cu"

using namespace upsweep;
constexpr DeviceLimits kLimits = {2, 136 * 1024, 228 * 1024};
static const char* wrong;
extern "C" const char* upsweep_cuda_last_error() { return wrong; }
extern "C" int upsweep_cuda_plan_count(const upsweep_count* count, int, upsweep_count_plan* result) {
    CountPlan plan;
    SumPlan sums;
    wrong = count->weights.data ? make_sum_plan(*count, kLimits, &sums) : make_count_plan(*count, kLimits, &plan);
    if (wrong) return UPSWEEP_INVALID;
    if (count->weights.data)
        *result = {sums.regime, 1 << sums.shape.replicas_log2, int(sums.shape.shares), 0, sums.shape.splits, 1,
                   sums.workspace_bytes};
    else
        *result = {plan.regime, 1 << plan.table.replicas_log2, plan.table.shares, plan.vectors, plan.splits,
                   plan.n_launches, plan.workspace_bytes};
    return 0;
}
extern "C" int upsweep_cuda_count(const upsweep_count* count) {
    if (count->dropped) *static_cast<int64_t*>(count->dropped) = 0;
    if (count->weights.data) {
        SumPlan plan;
        make_sum_plan(*count, kLimits, &plan);
        return launch_sums(plan, count->workspace, nullptr);
    }
    CountPlan plan;
    make_count_plan(*count, kLimits, &plan);
    if (!count->accumulate && plan.regime != kCountRows) launch_clear(plan, nullptr);
    return plan.regime ? launch_count(plan, count->workspace, nullptr) : 0;
}
"""


def _for_the_host(text):
    for pattern, replacement in REPLACED.items():
        text = re.sub(pattern, replacement, text, flags=re.S)
    for measured, smaller in SMALLER.items():
        text = text.replace(measured, smaller)
    return text


def compile_library(folder):
    """Compile a library with the functions of the C interface that counts need."""
    return HostLibrary(compile_unit(folder, UNIT, _for_the_host), ("plan_count", "count"))


def count(library, keys, n_bins, weights=None, *, out=None, dtype=None, **options):
    """Return the regime, the bins (77 before) and how many keys are outside, along the last axis of `keys`."""
    if out is None:
        out = np.full((*keys.shape[:-1], n_bins), 77, dtype or np.int64)
    dropped = np.full(1, -77, np.int64)
    request = bincount_launch.describe(
        describe(keys), describe(out), None if weights is None else describe(weights), axis=keys.ndim - 1,
        device=0, stream=0, dropped=dropped.ctypes.data, **options,
    )  # fmt: skip
    plan = abi.ask(library.plan_count, request, 0, answer=abi.CountPlan())
    workspace = np.full(plan.workspace_bytes // 8 + 32, 0xABCD_EF01_2345_6789, np.uint64)
    request.workspace_bytes = plan.workspace_bytes
    request.workspace = -(-workspace.ctypes.data // 256) * 256 if plan.workspace_bytes else None
    end = workspace[-1]
    library.count(request)
    assert workspace[-1] == end
    return plan.regime, out, int(dropped[0])
