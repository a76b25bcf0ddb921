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

cudaError_t probe_clusters(int* n_blocks) {
  auto* const kernel = scan_short_lines<Strided<uint64_t>, false, true>;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  *n_blocks = 1;
  if (error != cudaSuccess || attributes.ptxVersion < 90) return error;
  *n_blocks = ClusterTuning::kPortableBlocks;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = ClusterTuning::kBlocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(ClusterTuning::kBlocks);
  launch.blockDim = dim3(LineTuning::kShortWarps * 32);
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  int resident = 0;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveClusters(&resident, kernel, &launch);
  if (error == cudaSuccess && resident > 0) *n_blocks = ClusterTuning::kBlocks;
  else cudaGetLastError();         // a device need not have room for such a cluster
  return cudaSuccess;
}

}  // namespace upsweep
