#include "scan/launch.cuh"

namespace upsweep {

cudaError_t launch_float16(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return launch_typed<__half>(plan, w, stream, n_processors);
}

cudaError_t launch_backward_float16(const BackwardPlan& plan, cudaStream_t stream, int n_processors) {
  return launch_backward<__half>(plan, stream, n_processors);
}

}  // namespace upsweep
