// From the plan of sums to their launches.
#include "bincount/sums.cuh"

#include <algorithm>

#include "bincount/launch.hpp"

namespace upsweep {
namespace {

template <class Raw, class Sum, class Weight>
cudaError_t launch_kernel(const SumPlan& plan, Sum* partial, cudaStream_t stream) {
  const bool global = plan.regime == kSumGlobal;
  auto* const kernel = global                          ? sum_global<Raw, Sum, Weight>
                       : plan.regime == kSumOwnTables ? sum_own_tables<Raw, Sum, Weight>
                                                      : sum_replicas<Raw, Sum, Weight>;
  const int bytes = global ? OftenKeys<Sum>::kEntries * 16
                           : static_cast<int>(((plan.shape.bins + 15) / 16 * 16 << plan.shape.replicas_log2) *
                                              plan.shape.tables * 8);
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<uint32_t>(plan.blocks), plan.warps * 32, bytes, stream>>>(plan.problem, plan.shape, partial);
  return cudaGetLastError();
}

template <class Raw, class Sum>
cudaError_t launch_weights(const SumPlan& plan, Sum* partial, cudaStream_t stream) {
  if constexpr (std::is_same<Sum, double>::value) {
    if (plan.problem.weight_dtype == UPSWEEP_FLOAT32)
      return launch_kernel<Raw, Sum, float>(plan, partial, stream);
    if (plan.problem.weight_dtype == UPSWEEP_FLOAT64)
      return launch_kernel<Raw, Sum, double>(plan, partial, stream);
  }
  return launch_kernel<Raw, Sum, void>(plan, partial, stream);
}

template <class Sum>
cudaError_t launch_keys(const SumPlan& plan, Sum* partial, cudaStream_t stream) {
  switch (plan.count.key_bytes) {
    case 1: return launch_weights<uint8_t>(plan, partial, stream);
    case 2: return launch_weights<uint16_t>(plan, partial, stream);
    case 4: return launch_weights<uint32_t>(plan, partial, stream);
    default: return launch_weights<uint64_t>(plan, partial, stream);
  }
}

template <class Sum>
cudaError_t launch_and_combine(const SumPlan& plan, void* workspace, cudaStream_t stream) {
  Sum* const partial = static_cast<Sum*>(workspace);
  const CountProblem& p = plan.problem.count;
  cudaError_t error = cudaSuccess;
  if (plan.regime == kSumGlobal || p.length == 0)
    error = cudaMemsetAsync(workspace, 0, plan.workspace_bytes, stream);
  if (error == cudaSuccess && p.length) error = launch_keys<Sum>(plan, partial, stream);
  if (error != cudaSuccess) return error;
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t blocks = std::min((p.rows * p.n_bins + kSumThreads - 1) / kSumThreads, kMostBlocks);
  combine_sums<Sum><<<static_cast<uint32_t>(blocks), kSumThreads, 0, stream>>>(
      plan.problem, plan.regime == kSumGlobal ? 1 : plan.shape.splits, partial);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_sums(const SumPlan& plan, void* workspace, cudaStream_t stream) {
  return plan.accumulator == UPSWEEP_INTEGER ? launch_and_combine<uint64_t>(plan, workspace, stream)
                                             : launch_and_combine<double>(plan, workspace, stream);
}

}  // namespace upsweep
