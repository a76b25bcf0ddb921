// Launches of histograms, for each dtype of their elements.
#include "bincount/ranks.cuh"

#include <algorithm>

#include "bincount/launch.hpp"
#include "bincount/uniform.cuh"

namespace upsweep {
namespace {

// Calls call(an element type).
template <class Call>
cudaError_t with_element(int32_t dtype, Call call) {
  switch (dtype) {
    case UPSWEEP_BOOL: return call(BoolElement());
    case UPSWEEP_INT8: return call(IntegerElement<uint8_t, float, true>());
    case UPSWEEP_UINT8: return call(IntegerElement<uint8_t, float>());
    case UPSWEEP_INT16: return call(IntegerElement<uint16_t, float, true>());
    case UPSWEEP_UINT16: return call(IntegerElement<uint16_t, float>());
    case UPSWEEP_INT32: return call(IntegerElement<uint32_t, double, true>());
    case UPSWEEP_UINT32: return call(IntegerElement<uint32_t, double>());
    case UPSWEEP_INT64: return call(IntegerElement<uint64_t, int64_t, true>());
    case UPSWEEP_UINT64: return call(IntegerElement<uint64_t, uint64_t>());
    case UPSWEEP_FLOAT16: return call(Float16Element());
    case UPSWEEP_BFLOAT16: return call(BFloat16Element());
    case UPSWEEP_FLOAT32: return call(Float32Element());
    default: return call(Float64Element());
  }
}

constexpr int64_t kMostBlocks = 4096;
constexpr int kSharedByDefault = 47 * 1024;   // bytes that a kernel may ask for at a launch, besides a little of its own

uint32_t blocks_for(int64_t n) {
  return static_cast<uint32_t>(std::min((n + kTableThreads - 1) / kTableThreads, kMostBlocks));
}

}  // namespace

cudaError_t launch_uniform_thresholds(const HistogramPlan& plan, const UniformProblem& uniform, cudaStream_t stream) {
  const int64_t blocks = (uniform.n_bins + kUniformThreads) / kUniformThreads;
  auto* const kernel = plan.threshold_bytes == 4 ? make_uniform_thresholds<float> : make_uniform_thresholds<double>;
  kernel<<<static_cast<uint32_t>(std::min(blocks, kMostBlocks)), kUniformThreads, 0, stream>>>(uniform);
  return cudaGetLastError();
}

cudaError_t launch_check_guess(const HistogramPlan& plan, const RankProblem& ranks, cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(ranks.guess_fails, 0, sizeof(int32_t), stream);
  if (error != cudaSuccess || ranks.n_thresholds == 0) return error;
  return with_element(plan.dtype, [&](auto element) {
    check_guess<typename decltype(element)::K>
        <<<blocks_for(ranks.n_thresholds), kTableThreads, 0, stream>>>(ranks);
    return cudaGetLastError();
  });
}

cudaError_t launch_count_ranks(const HistogramPlan& plan, const RankProblem& ranks, cudaStream_t stream) {
  return with_element(plan.dtype, [&](auto element) {
    const TableShape& table = plan.elements.table;
    const int bytes =
        static_cast<int>((table.bins << table.replicas_log2) * 4 + ranks.n_thresholds * plan.threshold_bytes);
    auto* const kernel = count_ranks<decltype(element)>;
    if (bytes > kSharedByDefault) {
      const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      if (error != cudaSuccess) return error;
    }
    kernel<<<static_cast<uint32_t>(plan.elements.blocks), kTableThreads, bytes, stream>>>(plan.elements.problem, table,
                                                                                          ranks);
    return cudaGetLastError();
  });
}

cudaError_t launch_rank_keys(const HistogramPlan& plan, const RankProblem& ranks, int32_t* bins, cudaStream_t stream) {
  return with_element(plan.dtype, [&](auto element) {
    const CountProblem& p = plan.elements.problem;
    rank_keys<decltype(element)><<<blocks_for(p.rows * p.length), kTableThreads, 0, stream>>>(p, ranks, bins);
    return cudaGetLastError();
  });
}

cudaError_t launch_convert_counts(const int64_t* counts, int64_t n, char* out, int64_t stride, int32_t dtype,
                                  cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  auto* const kernel = dtype == UPSWEEP_FLOAT32 ? convert_counts<float> : convert_counts<double>;
  kernel<<<blocks_for(n), kTableThreads, 0, stream>>>(counts, n, out, stride);
  return cudaGetLastError();
}

cudaError_t launch_begin_value_range(long long* range, cudaStream_t stream) {
  begin_value_range<<<1, 1, 0, stream>>>(range);
  return cudaGetLastError();
}

cudaError_t launch_value_range(const CountPlan& plan, int32_t dtype, long long* range, cudaStream_t stream) {
  return with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    const uint32_t blocks = static_cast<uint32_t>(plan.blocks);
    if (plan.vectors)
      find_value_range<Element, true><<<blocks, kTableThreads, 0, stream>>>(plan.problem, range, plan.splits);
    else
      find_value_range<Element, false><<<blocks, kTableThreads, 0, stream>>>(plan.problem, range, plan.splits);
    return cudaGetLastError();
  });
}

}  // namespace upsweep
