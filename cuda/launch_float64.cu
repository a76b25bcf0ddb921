#include "launch.cuh"

namespace upsweep {

cudaError_t launch_float64(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return launch_typed<double>(plan, w, stream, n_processors);
}

}  // namespace upsweep
