#include "scan/launch.cuh"

namespace upsweep {

cudaError_t launch_bfloat16(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return launch_typed<__nv_bfloat16>(plan, w, stream, n_processors);
}

cudaError_t launch_backward_bfloat16(const BackwardPlan& plan, cudaStream_t stream, int n_processors) {
  return launch_backward<__nv_bfloat16>(plan, stream, n_processors);
}

}  // namespace upsweep
