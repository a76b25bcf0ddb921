#include "reduce/launch.cuh"

namespace upsweep {

cudaError_t reduce_bfloat16(const ReducePlan& plan, cudaStream_t stream) { return launch_reduce_typed<__nv_bfloat16>(plan, stream); }

}  // namespace upsweep
