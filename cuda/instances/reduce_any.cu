// Reductions of any dtype and any strides, an element at a time; and the chunks of all reductions put together.
#include "reduce/join.cuh"
#include "reduce/launch.cuh"

namespace upsweep {
namespace {

template <class F, class S>
cudaError_t launch_join(const ReducePlan& plan, cudaStream_t stream) {
  const Reduction& r = plan.reduction;
  const auto threads_of = [&](int threads, int most) {
    while (threads < most && int64_t(threads) * ReduceTuning::kFewChunks < r.chunks) threads *= 2;
    return threads;
  };
  if (r.chunks <= ReduceTuning::kFewChunks) {
    constexpr int kThreads = ReduceTuning::kThreads;
    const uint32_t blocks = reduce_blocks(r.scan.lines, kThreads);
    join_in_threads<F, S><<<blocks, kThreads, 0, stream>>>(r);
  } else if (r.chunk_step != 1 && r.chunks <= ReduceTuning::kWarpChunks) {
    const int threads = 32 * threads_of(2, ReduceTuning::kJoiningWarps);
    const uint32_t blocks = reduce_blocks(r.scan.lines, 32);
    join_in_warps<F, S><<<blocks, threads, 0, stream>>>(r);
  } else {
    const int threads = threads_of(32, ReduceTuning::kMostJoiners);
    const uint32_t blocks = reduce_blocks(r.scan.lines, 1);
    join_in_blocks<F, S><<<blocks, threads, 0, stream>>>(r);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t reduce_any_real(const ReducePlan& plan, cudaStream_t stream) {
  return plan.gated ? launch_reduce_any<double, double, true>(plan, stream)
                    : launch_reduce_any<double, double, false>(plan, stream);
}

cudaError_t reduce_any_complex(const ReducePlan& plan, cudaStream_t stream) {
  if (plan.complex_factors)
    return plan.gated ? launch_reduce_any<Complex, Complex, true>(plan, stream)
                      : launch_reduce_any<Complex, Complex, false>(plan, stream);
  return plan.gated ? launch_reduce_any<double, Complex, true>(plan, stream)
                    : launch_reduce_any<double, Complex, false>(plan, stream);
}

cudaError_t reduce_any_integer(const ReducePlan& plan, cudaStream_t stream) {
  return launch_reduce_any<uint64_t, uint64_t, false>(plan, stream);
}

cudaError_t join_chunks(const ReducePlan& plan, cudaStream_t stream) {
  switch (plan.accumulator) {
    case UPSWEEP_INTEGER: return launch_join<uint64_t, uint64_t>(plan, stream);
    case UPSWEEP_COMPLEX:
      return plan.complex_factors ? launch_join<Complex, Complex>(plan, stream)
                                  : launch_join<double, Complex>(plan, stream);
    default: return launch_join<double, double>(plan, stream);
  }
}

}  // namespace upsweep
