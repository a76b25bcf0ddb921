// From the plan of sums to their launches.
#include "bincount/sums.cuh"

#include <algorithm>

#include "bincount/chunks.cuh"
#include "bincount/sum_parts.cuh"

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

template <class Raw, int kSets>
cudaError_t launch_parts(const SumPlan& plan, char* workspace, cudaStream_t stream) {
  const uint32_t blocks = static_cast<uint32_t>(plan.count.scatter_warps / kChunkWarps);
  const int64_t length = plan.problem.count.length;
  double* const sums = reinterpret_cast<double*>(workspace);
  auto* const scatter = scatter_to_chunks<Raw, true, kSets, true>;
  constexpr int kBytes = ChunkMemory<kSets, true>::bytes(sizeof(Raw)), kTableBytes = sizeof(SumPartMemory);
  cudaError_t error = cudaFuncSetAttribute(scatter, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(sum_parts, cudaFuncAttributeMaxDynamicSharedMemorySize, kTableBytes);
  Chunks chunks;                       // the same for all pieces, as the plan made room for the longest
  lay_out_chunks(plan.count.n_parts, std::min(length, SumTuning::kPieceKeys), blocks, true, workspace + plan.sums_bytes,
                 &chunks);
  for (int64_t first = 0; first < length && error == cudaSuccess; first += SumTuning::kPieceKeys) {
    CountProblem p = plan.problem.count;
    p.keys += first * p.key_stride;
    p.length = std::min(length - first, SumTuning::kPieceKeys);
    const float* const weights = reinterpret_cast<const float*>(plan.problem.weights) + first;
    error = cudaMemsetAsync(chunks.n_chunks, 0, (1 + plan.count.n_parts) * 4, stream);
    if (error != cudaSuccess) return error;
    scatter<<<blocks, kChunkThreads, kBytes, stream>>>(p, weights, chunks);
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    sum_parts<<<static_cast<uint32_t>(plan.count.part_blocks), kTableThreads, kTableBytes, stream>>>(p.n_bins, chunks, sums);
    error = cudaGetLastError();
  }
  return error;
}

template <class Raw>
cudaError_t launch_any_parts(const SumPlan& plan, void* workspace, cudaStream_t stream) {
  char* const memory = static_cast<char*>(workspace);
  return plan.count.n_parts < 32 ? launch_parts<Raw, 1>(plan, memory, stream) : launch_parts<Raw, 2>(plan, memory, stream);
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
  const bool parts = plan.regime == kSumParts;
  if (plan.regime >= kSumGlobal || p.length == 0)
    error = cudaMemsetAsync(workspace, 0, parts ? plan.sums_bytes : plan.workspace_bytes, stream);
  if (error == cudaSuccess && parts)
    error = plan.count.key_bytes == 4 ? launch_any_parts<uint32_t>(plan, workspace, stream)
                                      : launch_any_parts<uint64_t>(plan, workspace, stream);
  else if (error == cudaSuccess && p.length)
    error = launch_keys<Sum>(plan, partial, stream);
  if (error != cudaSuccess) return error;
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t blocks = std::min((p.rows * p.n_bins + kSumThreads - 1) / kSumThreads, kMostBlocks);
  combine_sums<Sum><<<static_cast<uint32_t>(blocks), kSumThreads, 0, stream>>>(
      plan.problem, plan.regime >= kSumGlobal ? 1 : plan.shape.splits, partial);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_sums(const SumPlan& plan, void* workspace, cudaStream_t stream) {
  return plan.accumulator == UPSWEEP_INTEGER ? launch_and_combine<uint64_t>(plan, workspace, stream)
                                             : launch_and_combine<double>(plan, workspace, stream);
}

}  // namespace upsweep
