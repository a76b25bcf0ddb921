// From the plan of sums to their launches.
#include "count_sums.cuh"

#include <algorithm>

#include "count_launch.hpp"

namespace upsweep {
namespace {

template <class Raw, class Sum, class Weight>
cudaError_t launch_kernel(const SumPlan& plan, const SumShape& shape, Sum* partial, cudaStream_t stream) {
  const uint32_t blocks = static_cast<uint32_t>(plan.blocks), threads = plan.warps * 32;
  if (plan.regime == kSumGlobal) {
    sum_global<Raw, Sum, Weight><<<blocks, threads, 0, stream>>>(plan.problem, shape, partial);
    return cudaGetLastError();
  }
  auto* const kernel = sum_tables<Raw, Sum, Weight>;
  const int bytes = static_cast<int>((shape.bins + 15) / 16 * 16 * plan.warps * 8);
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<blocks, threads, bytes, stream>>>(plan.problem, shape, partial);
  return cudaGetLastError();
}

template <class Raw, class Sum>
cudaError_t launch_weights(const SumPlan& plan, const SumShape& shape, Sum* partial, cudaStream_t stream) {
  if constexpr (std::is_same<Sum, double>::value) {
    if (plan.problem.weight_dtype == UPSWEEP_FLOAT32)
      return launch_kernel<Raw, Sum, float>(plan, shape, partial, stream);
    if (plan.problem.weight_dtype == UPSWEEP_FLOAT64)
      return launch_kernel<Raw, Sum, double>(plan, shape, partial, stream);
  }
  return launch_kernel<Raw, Sum, void>(plan, shape, partial, stream);
}

template <class Sum>
cudaError_t launch_keys(const SumPlan& plan, const SumShape& shape, Sum* partial, cudaStream_t stream) {
  switch (plan.count.key_bytes) {
    case 1: return launch_weights<uint8_t>(plan, shape, partial, stream);
    case 2: return launch_weights<uint16_t>(plan, shape, partial, stream);
    case 4: return launch_weights<uint32_t>(plan, shape, partial, stream);
    default: return launch_weights<uint64_t>(plan, shape, partial, stream);
  }
}

template <class Sum>
cudaError_t launch_passes(const SumPlan& plan, void* workspace, cudaStream_t stream) {
  Sum* const partial = static_cast<Sum*>(workspace);
  const int64_t rows = plan.problem.count.rows, n_bins = plan.problem.count.n_bins;
  constexpr int64_t kMostBlocks = 1 << 16;
  for (int64_t first = 0; first < n_bins; first += plan.bins) {
    const SumShape shape = {first, std::min(plan.bins, n_bins - first), plan.splits};
    const bool tables = plan.regime == kSumTables;
    if (!tables || plan.problem.count.length == 0) {
      const cudaError_t error = cudaMemsetAsync(workspace, 0, plan.workspace_bytes, stream);
      if (error != cudaSuccess) return error;
    }
    cudaError_t error =
        plan.problem.count.length ? launch_keys<Sum>(plan, shape, partial, stream) : cudaSuccess;
    if (error != cudaSuccess) return error;
    const int64_t blocks = std::min((rows * shape.bins + kSumThreads - 1) / kSumThreads, kMostBlocks);
    combine_sums<Sum><<<static_cast<uint32_t>(blocks), kSumThreads, 0, stream>>>(
        plan.problem, shape, tables ? plan.splits : 1, partial);
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_sums(const SumPlan& plan, void* workspace, cudaStream_t stream) {
  return plan.accumulator == UPSWEEP_INTEGER ? launch_passes<uint64_t>(plan, workspace, stream)
                                             : launch_passes<double>(plan, workspace, stream);
}

}  // namespace upsweep
