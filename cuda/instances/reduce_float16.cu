#include "reduce/launch.cuh"

namespace upsweep {

cudaError_t reduce_float16(const ReducePlan& plan, cudaStream_t stream) { return launch_reduce_typed<__half>(plan, stream); }

}  // namespace upsweep
