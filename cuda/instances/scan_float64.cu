#include "scan/launch.cuh"

namespace upsweep {

cudaError_t launch_float64(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return launch_typed<double>(plan, w, stream, n_processors);
}

cudaError_t launch_backward_float64(const BackwardPlan& plan, cudaStream_t stream, int n_processors) {
  return launch_backward<double>(plan, stream, n_processors);
}

}  // namespace upsweep
