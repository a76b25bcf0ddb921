// The launches of counts, compiled in bincount/launch.cu, bincount/sums.cu and bincount/ranks.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "plan/bincount.hpp"

namespace upsweep {

cudaError_t launch_count(const CountPlan& plan, void* workspace, cudaStream_t stream);
cudaError_t launch_sums(const SumPlan& plan, void* workspace, cudaStream_t stream);
// After all launches of a count.
cudaError_t launch_find_outside(const CountPlan& plan, cudaStream_t stream);
// Sets all bins to 0.
cudaError_t launch_clear(const CountPlan& plan, cudaStream_t stream);
// The first writes what is true of no keys; the second what is found.
cudaError_t launch_begin_range(const CountPlan& plan, unsigned long long* range, cudaStream_t stream);
cudaError_t launch_key_range(const CountPlan& plan, unsigned long long* range, cudaStream_t stream);

// The thresholds of bins of one width.
cudaError_t launch_uniform_thresholds(const HistogramPlan& plan, const UniformProblem& uniform, cudaStream_t stream);
// Before `launch_rank_keys`: whether the guess is right is left in `ranks.guess_fails`.
cudaError_t launch_check_guess(const HistogramPlan& plan, const RankProblem& ranks, cudaStream_t stream);
cudaError_t launch_count_ranks(const HistogramPlan& plan, const RankProblem& ranks, cudaStream_t stream);
cudaError_t launch_rank_keys(const HistogramPlan& plan, const RankProblem& ranks, int32_t* bins, cudaStream_t stream);
// out = counts, rounded to float32 or float64.
cudaError_t launch_convert_counts(const int64_t* counts, int64_t n, char* out, int64_t stride, int32_t dtype,
                                  cudaStream_t stream);
cudaError_t launch_begin_value_range(long long* range, cudaStream_t stream);
cudaError_t launch_value_range(const CountPlan& plan, int32_t dtype, long long* range, cudaStream_t stream);

}  // namespace upsweep
