// The launches of counts, compiled in count_launch.cu and count_sums.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "count_plan.hpp"

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

}  // namespace upsweep
