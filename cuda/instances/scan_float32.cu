#include "scan/launch.cuh"

namespace upsweep {

cudaError_t launch_float32(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return launch_typed<float>(plan, w, stream, n_processors);
}

cudaError_t launch_backward_float32(const BackwardPlan& plan, cudaStream_t stream, int n_processors) {
  return launch_backward<float>(plan, stream, n_processors);
}

}  // namespace upsweep
