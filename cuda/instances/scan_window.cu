// Windows: along contiguous lines of one real dtype, and of any dtype and any strides.
#include "scan/launch.cuh"
#include "scan/window.cuh"
#include "scan/window_lines.cuh"

namespace upsweep {
namespace {

template <class S>
cudaError_t launch_any(const Plan& plan, const Workspace& w, cudaStream_t stream) {
  const Problem& p = plan.problem;
  constexpr int64_t kThreads = WindowTuning::kThreads;
  const auto blocks_of = [](int64_t n, int64_t each) {
    return static_cast<uint32_t>(std::min((n + each - 1) / each, kMostBlocks));
  };
  char* const workspace = reinterpret_cast<char*>(w.tile_words) - kCounterBytes;
  const WindowResults<S> results = {plan.aside ? reinterpret_cast<S*>(workspace + plan.aside) : nullptr};
  if (plan.segment) {
    WindowStep<S>* const steps = reinterpret_cast<WindowStep<S>*>(w.tile_words);
    reduce_window_segments<S>
        <<<blocks_of(p.lines * plan.segments * plan.segment, plan.tile), kThreads, 0, stream>>>(
            p, steps, plan.segments, plan.segment);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    scan_window<S><<<blocks_of(p.lines * plan.tiles, 1), kThreads, 0, stream>>>(
        p, results, steps, plan.tiles, plan.segments, plan.segment, plan.window);
  } else {
    scan_window_in_order<S><<<blocks_of(p.lines * p.length, kThreads), kThreads, 0, stream>>>(p, results, plan.window);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || !plan.aside) return error;
  bring_results<S><<<blocks_of(p.lines * p.length, kThreads), kThreads, 0, stream>>>(p, results);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_window_along(const Plan& plan, const Workspace& w, cudaStream_t stream) {
  Problem p = plan.problem;
  const WindowShape& shape = plan.shape;
  if (plan.aside) {                    // windows would find results in the place of elements
    T* const copy = reinterpret_cast<T*>(reinterpret_cast<char*>(w.counter) + plan.aside);
    const int64_t blocks = (p.lines * p.length + WindowTuning::kThreads - 1) / WindowTuning::kThreads;
    copy_window_lines<<<std::min(blocks, kMostBlocks), WindowTuning::kThreads, 0, stream>>>(p, copy);
    take_copy<T>(p, reinterpret_cast<char*>(copy));
  }
  const int warps = std::min(WindowTuning::kThreads / 32, shape.units);
  const int shared = WindowTile<T>::bytes(shape, warps);
  const cudaError_t error = allow_shared(scan_window_lines<T>, shared);
  if (error != cudaSuccess) return error;
  return launch_after_fill(plan, false, scan_window_lines<T>, p.lines * shape.tiles, warps * 32, shared, stream, p, shape, w);
}

}  // namespace

cudaError_t launch_window_real(const Plan& plan, const Workspace& w, cudaStream_t stream, int) {
  return launch_any<double>(plan, w, stream);
}

cudaError_t launch_window_complex(const Plan& plan, const Workspace& w, cudaStream_t stream, int) {
  return launch_any<Complex>(plan, w, stream);
}

cudaError_t launch_window_lines(const Plan& plan, const Workspace& w, cudaStream_t stream, int) {
  switch (plan.problem.x.dtype) {
    case UPSWEEP_FLOAT16: return launch_window_along<__half>(plan, w, stream);
    case UPSWEEP_BFLOAT16: return launch_window_along<__nv_bfloat16>(plan, w, stream);
    case UPSWEEP_FLOAT32: return launch_window_along<float>(plan, w, stream);
    default: return launch_window_along<double>(plan, w, stream);
  }
}

}  // namespace upsweep
