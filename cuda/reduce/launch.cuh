// From the plan of a reduction to a launch, for one dtype. Included by each reduce_<dtype>.cu.
#pragma once

#include <algorithm>

#include "reduce/columns.cuh"
#include "reduce/launch.hpp"
#include "reduce/lines.cuh"

namespace upsweep {

// Blocks for `n` pieces of work; more than a launch takes go on with what is left.
inline uint32_t reduce_blocks(int64_t n, int64_t each) {
  return static_cast<uint32_t>(std::min((n + each - 1) / each, int64_t(INT32_MAX)));
}

template <class Line, bool kGated, bool kResets>
cudaError_t launch_reduce_lines(const ReducePlan& plan, cudaStream_t stream) {
  const Reduction& r = plan.reduction;
  constexpr int kThreads = ReduceTuning::kThreads, kWarps = kThreads / 32;
  if (plan.regime == kShortLines) {
    const uint32_t blocks = reduce_blocks(r.scan.lines, int64_t(kWarps) * kShortVectorsOf<Line> * (32 / r.lanes));
    reduce_short_lines<Line, kGated, kResets><<<blocks, kThreads, 0, stream>>>(r);
  } else {
    const uint32_t blocks = reduce_blocks(r.scan.lines * r.chunks, kWarps);
    reduce_lines<Line, kGated, kResets><<<blocks, kThreads, 0, stream>>>(r);
  }
  return cudaGetLastError();
}

template <class Columns, bool kGated, bool kResets>
cudaError_t launch_reduce_columns(const ReducePlan& plan, cudaStream_t stream) {
  const Reduction& r = plan.reduction;
  constexpr int kThreads = ReduceTuning::kThreads;
  const uint32_t blocks = reduce_blocks(r.scan.lines / Columns::kPer * r.chunks, kThreads);
  reduce_columns<Columns, kGated, kResets><<<blocks, kThreads, 0, stream>>>(r);
  return cudaGetLastError();
}

template <class T, bool kGated, bool kResets>
cudaError_t launch_reduce_typed_with(const ReducePlan& plan, cudaStream_t stream) {
  if (plan.regime != kColumns) return launch_reduce_lines<VectorLine<T>, kGated, kResets>(plan, stream);
  return plan.vectors ? launch_reduce_columns<TypedColumns<T, 16 / sizeof(T)>, kGated, kResets>(plan, stream)
                      : launch_reduce_columns<TypedColumns<T, 1>, kGated, kResets>(plan, stream);
}

template <class T>
cudaError_t launch_reduce_typed(const ReducePlan& plan, cudaStream_t stream) {
  const bool resets = plan.reduction.scan.reset.data;
  if (plan.gated)
    return resets ? launch_reduce_typed_with<T, true, true>(plan, stream)
                  : launch_reduce_typed_with<T, true, false>(plan, stream);
  return resets ? launch_reduce_typed_with<T, false, true>(plan, stream)
                : launch_reduce_typed_with<T, false, false>(plan, stream);
}

template <class F, class S, bool kGated>
cudaError_t launch_reduce_any(const ReducePlan& plan, cudaStream_t stream) {
  return plan.regime == kColumns ? launch_reduce_columns<AnyColumns<F, S>, kGated, true>(plan, stream)
                                 : launch_reduce_lines<AnyLine<F, S>, kGated, true>(plan, stream);
}

}  // namespace upsweep
