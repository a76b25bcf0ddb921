#include "reduce/launch.cuh"

namespace upsweep {

cudaError_t reduce_float32(const ReducePlan& plan, cudaStream_t stream) { return launch_reduce_typed<float>(plan, stream); }

}  // namespace upsweep
