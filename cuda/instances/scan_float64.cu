#include "scan/launch.cuh"

namespace upsweep {

cudaError_t launch_float64(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return launch_typed<double>(plan, w, stream, n_processors);
}

cudaError_t launch_backward_float64(const BackwardPlan& plan, cudaStream_t stream, int n_processors) {
  return launch_backward<double>(plan, stream, n_processors);
}

// By the kernel of cluster lines with the most registers and threads.
cudaError_t probe_clusters(int* n_blocks) {
  auto* const kernel = scan_cluster_lines<double, false, true>;
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
  launch.blockDim = dim3(ClusterTuning::kWarps * 32);
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
