// From a plan to a launch, for one dtype. Included by each launch_<dtype>.cu.
#pragma once

#include <algorithm>

#include "launch.hpp"
#include "scan_columns.cuh"
#include "scan_lines.cuh"

namespace upsweep {

// Lines and blocks of columns are taken in turn by at most this many blocks.
constexpr int64_t kMostBlocks = INT32_MAX;

template <class Line, bool kGated, bool kResets>
cudaError_t launch_lines(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  const Problem& p = plan.problem;
  if (plan.regime == kShortLines) {
    constexpr int kThreads = LineTuning::kShortWarps * 32;
    const int64_t lines_each = int64_t(kThreads) / plan.width * LineTuning::kShortLines;
    const int64_t blocks = std::min((p.lines + lines_each - 1) / lines_each, int64_t(n_processors) * 64);
    scan_short_lines<Line, kGated, kResets><<<blocks, kThreads, 0, stream>>>(p, plan.width);
  } else if (plan.regime == kLines) {
    constexpr int kThreads = LineTuning::kWarps * 32;
    constexpr int kSegments = LineTuning::kSegments[kGated][Line::kVec / 4];
    constexpr int kNarrow = LineTuning::kNarrow[kGated][Line::kVec / 4];
    const int64_t blocks = std::min(p.lines, kMostBlocks);
    if (plan.narrow) scan_lines<Line, kGated, kResets, kNarrow><<<blocks, kThreads, 0, stream>>>(p);
    else scan_lines<Line, kGated, kResets, kSegments><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    constexpr int kThreads = SplitTuning::kWarps * 32;
    scan_split_lines<Line, kGated, kResets><<<p.lines * plan.tiles, kThreads, 0, stream>>>(p, w, plan.tiles);
  }
  return cudaGetLastError();
}

template <class Element, bool kGated, bool kResets>
cudaError_t launch_columns(const Plan& plan, const Workspace& w, cudaStream_t stream) {
  constexpr int kThreads = ColumnTuning::kWarps * 32;
  if (plan.regime == kColumns)
    scan_columns<Element, kGated, kResets>
        <<<std::min(plan.blocks, kMostBlocks), kThreads, 0, stream>>>(plan.problem, plan.blocks);
  else
    scan_split_columns<Element, kGated, kResets>
        <<<plan.blocks * plan.tiles, kThreads, 0, stream>>>(plan.problem, w, plan.blocks, plan.tiles);
  return cudaGetLastError();
}

inline bool is_columns(const Plan& plan) { return plan.regime == kColumns || plan.regime == kSplitColumns; }

template <class T, bool kGated, bool kResets>
cudaError_t launch_typed_with(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  if (is_columns(plan)) return launch_columns<Typed<T>, kGated, kResets>(plan, w, stream);
  // Lines with resets are not worth kernels of their own for the aligned case.
  constexpr bool kAligned = !kResets;
  if (plan.aligned)
    return plan.reverse ? launch_lines<Contiguous<T, true, kAligned>, kGated, kResets>(plan, w, stream, n_processors)
                        : launch_lines<Contiguous<T, false, kAligned>, kGated, kResets>(plan, w, stream, n_processors);
  return plan.reverse ? launch_lines<Contiguous<T, true, false>, kGated, kResets>(plan, w, stream, n_processors)
                      : launch_lines<Contiguous<T, false, false>, kGated, kResets>(plan, w, stream, n_processors);
}

template <class T>
cudaError_t launch_typed(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  const bool resets = plan.problem.reset.data;
  if (plan.gated)
    return resets ? launch_typed_with<T, true, true>(plan, w, stream, n_processors)
                  : launch_typed_with<T, true, false>(plan, w, stream, n_processors);
  return resets ? launch_typed_with<T, false, true>(plan, w, stream, n_processors)
                : launch_typed_with<T, false, false>(plan, w, stream, n_processors);
}

template <class S, bool kGated>
cudaError_t launch_any_with(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  return is_columns(plan) ? launch_columns<Any<S>, kGated, true>(plan, w, stream)
                          : launch_lines<Strided<S>, kGated, true>(plan, w, stream, n_processors);
}

}  // namespace upsweep
