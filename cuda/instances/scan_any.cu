// Any dtype, any strides: an element at a time, its dtype looked at when it is loaded.
#include "scan/launch.cuh"

namespace upsweep {
cudaError_t launch_any_real(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return plan.gated ? launch_any_with<double, true>(plan, w, stream, n_processors)
                    : launch_any_with<double, false>(plan, w, stream, n_processors);
}

cudaError_t launch_any_complex(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return plan.gated ? launch_any_with<Complex, true>(plan, w, stream, n_processors)
                    : launch_any_with<Complex, false>(plan, w, stream, n_processors);
}

// Integers only ever add up.
cudaError_t launch_any_integer(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return launch_any_with<uint64_t, false>(plan, w, stream, n_processors);
}

cudaError_t probe_kernel(cudaFuncAttributes* attributes) {
  return cudaFuncGetAttributes(attributes, scan_short_lines<Strided<uint64_t>, false, true>);
}

}  // namespace upsweep
