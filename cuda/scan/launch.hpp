// The kernels of each dtype, compiled in files of their own: launch_<dtype>.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "plan/scan.hpp"

namespace upsweep {

typedef cudaError_t Launch(const Plan& plan, const Workspace& workspace, cudaStream_t stream, int n_processors);

Launch launch_float16, launch_bfloat16, launch_float32, launch_float64;   // typed plans
Launch launch_any_real, launch_any_complex, launch_any_integer;          // the others
Launch launch_window_lines, launch_window_real, launch_window_complex;   // windows: typed plans, the others

typedef cudaError_t LaunchBackward(const BackwardPlan& plan, cudaStream_t stream, int n_processors);

LaunchBackward launch_backward_float16, launch_backward_bfloat16, launch_backward_float32, launch_backward_float64;

// Fills a workspace with ones. Kernels that launch_after_fill launches start meanwhile (compute capability 9.0 and newer).
cudaError_t fill_workspace(void* workspace, int64_t bytes, cudaStream_t stream);

// Whether this library holds code for the current device.
cudaError_t probe_kernel(cudaFuncAttributes* attributes);
// How many blocks of the current device a cluster of cluster lines can have: 1 where the code in use has no clusters,
// whatever the device can do.
cudaError_t probe_clusters(int* n_blocks);

}  // namespace upsweep
