// Any dtype, any strides: an element at a time, its dtype looked at when it is loaded.
#include "scan/launch.cuh"

namespace upsweep {
namespace {

__global__ void fill_words(Word* words, int64_t n) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    words[i] = kInvalid;
}

}  // namespace

cudaError_t fill_workspace(void* workspace, int64_t bytes, cudaStream_t stream) {
  constexpr int64_t kThreads = 256, kBlocks = 64;
  const int64_t n = (bytes + 7) / 8, blocks = std::min((n + kThreads - 1) / kThreads, kBlocks);
  fill_words<<<blocks, kThreads, 0, stream>>>(static_cast<Word*>(workspace), n);
  return cudaGetLastError();
}

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
