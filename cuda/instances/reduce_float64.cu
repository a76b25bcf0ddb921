#include "reduce/launch.cuh"

namespace upsweep {

cudaError_t reduce_float64(const ReducePlan& plan, cudaStream_t stream) { return launch_reduce_typed<double>(plan, stream); }

}  // namespace upsweep
