// From a plan to a launch, for one dtype. Included by each instances/scan_<dtype>.cu.
#pragma once

#include <algorithm>
#include <iterator>

#include "scan/backward_lines.cuh"
#include "scan/launch.hpp"
#include "scan/block_lines.cuh"
#include "scan/cluster_lines.cuh"
#include "scan/columns.cuh"
#include "scan/held_columns.cuh"
#include "scan/lines.cuh"
#include "scan/persistent_lines.cuh"
#include "scan/resident_lines.cuh"
#include "scan/split_columns.cuh"
#include "scan/wide_columns.cuh"

namespace upsweep {

// Lines and blocks of columns are taken in turn by at most this many blocks.
constexpr int64_t kMostBlocks = INT32_MAX;

// Blocks for `n` pieces of work, of which one block takes up to `most`, one after the other, so that the next piece is
// fetched while this one is scanned; but several times as many blocks as are resident, since some processors are faster.
inline int64_t blocks_of(int64_t n, int64_t most, int64_t resident) {
  const int64_t each = std::max(int64_t(1), std::min(most, n / (LineTuning::kWaves * resident)));
  return std::min((n + each - 1) / each, kMostBlocks);
}

// Blocks of a walk along lines, of `tiles` tiles each.
struct WalkBlocks {
  int64_t walking, singles;
  WalkBlocks(int64_t lines, int64_t tiles, int64_t resident)
      : singles(std::min(lines, LineTuning::kSingleWaves * resident)) {
    const int64_t most = LineTuning::kTiles / std::max(tiles, int64_t(1));
    walking = std::min(blocks_of(lines - singles, most, resident), kMostBlocks - singles);
  }
  uint32_t all() const { return static_cast<uint32_t>(walking + singles); }
};

template <class Line, bool kGated, bool kResets>
cudaError_t launch_short_lines(const Plan& plan, cudaStream_t stream, int n_processors) {
  constexpr int kThreads = LineTuning::kShortWarps * 32;
  const int64_t lines_each = kThreads / plan.width;
  const int64_t blocks = std::min((plan.problem.lines + lines_each - 1) / lines_each, int64_t(n_processors) * 64);
  scan_short_lines<Line, kGated, kResets><<<blocks, kThreads, 0, stream>>>(plan.problem, plan.width);
  return cudaGetLastError();
}

template <class T, bool kReverse, bool kGated>
cudaError_t launch_block_lines(const Plan& plan, cudaStream_t stream) {
  const BlockLaunch<T, kReverse, kGated> launch(plan);
  if (!launch.kernel) return cudaErrorInvalidConfiguration;
  launch.kernel<<<launch.blocks, launch.threads, 0, stream>>>(BlockLines(plan), plan.problem);
  return cudaGetLastError();
}

template <class T, bool kReverse, bool kGated>
cudaError_t launch_packed_lines(const Plan& plan, cudaStream_t stream, int n_processors) {
  const Problem& p = plan.problem;
  constexpr int kWarps = LineTuning::kWarps;
  constexpr int kShared = kWarps * 2 * kStageVectors<Staged<T, kReverse>, kGated> * 16;
  const int64_t lines_each = int64_t(kWarps) * plan.each;
  const int64_t blocks = blocks_of((p.lines + lines_each - 1) / lines_each, LineTuning::kTiles,
                                   int64_t(n_processors) * LineTuning::kPackedBlocks);
  const GammaPowers powers = kGated ? GammaPowers() : powers_of(p.gamma_re, kLaneElements<T>, 1);
  scan_packed_lines<T, kReverse, kGated><<<blocks, kWarps * 32, kShared, stream>>>(p, powers, plan.each);
  return cudaGetLastError();
}

template <class Line, bool kGated, bool kResets>
cudaError_t launch_lines(const Plan& plan, cudaStream_t stream, int n_processors) {
  const Problem& p = plan.problem;
  constexpr int kStage = kStageVectors<Line, kGated> * 16;   // bytes of a warp
  const GammaPowers powers = kGated ? GammaPowers() : powers_of(p.gamma_re, Line::kVec, LineTuning::kWarps);
  const int64_t resident = int64_t(n_processors) * LineTuning::kBlocks * LineTuning::kWarps / plan.warps;
  const WalkBlocks blocks(p.lines, plan.tiles, resident);
  scan_lines<Line, kGated, kResets>
      <<<blocks.all(), plan.warps * 32, plan.warps * 2 * kStage, stream>>>(p, powers, blocks.walking);
  return cudaGetLastError();
}

// Launches a kernel that calls wait_for_workspace() before it touches the workspace, or results of a kernel launched
// since the workspace was filled. together: all blocks at once.
template <class... Parameters, class... Arguments>
cudaError_t launch_after_fill(const Plan& plan, bool together, void (*kernel)(Parameters...), int64_t blocks, int threads,
                              int shared, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<uint32_t>(blocks));
  launch.blockDim = dim3(static_cast<uint32_t>(threads));
  launch.dynamicSmemBytes = static_cast<size_t>(shared);
  launch.stream = stream;
  launch.attrs = attributes;
  if (plan.starts_early) {
    attributes[launch.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[launch.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (together) {
    attributes[launch.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[launch.numAttrs++].val.cooperative = 1;
  }
  return cudaLaunchKernelEx(&launch, kernel, Parameters(arguments)...);
}

template <class Line, bool kGated, bool kResets>
cudaError_t launch_split_lines(const Plan& plan, const Workspace& w, cudaStream_t stream) {
  const Problem& p = plan.problem;
  constexpr int kWarps = SplitTuning::kWarps, kShared = kWarps * kStageVectors<Line, kGated> * 16;
  const GammaPowers powers =
      kGated ? GammaPowers() : powers_of(p.gamma_re, Line::kVec, kWarps * static_cast<int>(kFamily));
  return launch_after_fill(plan, false, scan_split_lines<Line, kGated, kResets>, p.lines * plan.tiles, kWarps * 32, kShared,
                           stream, p, powers, w, plan.tiles);
}

// Beyond 48 KiB, with what the kernel has of its own, it has to be asked for.
template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  if (bytes <= 36 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <class T, bool kReverse, bool kGated>
cudaError_t launch_cluster_lines(const Plan& plan, cudaStream_t stream) {
  auto* const kernel = scan_cluster_lines<T, kReverse, kGated>;
  const Problem& p = plan.problem;
  const int n_blocks = static_cast<int>(plan.tiles);
  int log2_blocks = 0;
  while (1 << log2_blocks < n_blocks) ++log2_blocks;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<uint32_t>(n_blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<uint32_t>(p.lines * n_blocks));
  launch.blockDim = dim3(static_cast<uint32_t>(plan.warps * 32));
  launch.stream = stream;
  launch.attrs = &cluster;
  launch.numAttrs = n_blocks > 1;
  if (n_blocks > ClusterTuning::kPortableBlocks) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  return cudaLaunchKernelEx(&launch, kernel, p, log2_blocks);
}

template <class T, bool kReverse, bool kGated>
cudaError_t launch_persistent(const Plan& plan, const Workspace& w, cudaStream_t stream) {
  using Shape = PersistentShape<T, kGated>;
  const Problem& p = plan.problem;
  const int64_t blocks = std::min(plan.blocks, p.lines * plan.tiles);
  // All that is multiplied together: the lanes of a tile's warps.
  GammaPowers powers = {};
  double tile_factor = 1;
  if (!kGated) {
    powers = powers_of(p.gamma_re, Shape::kRun, Shape::kWarps * static_cast<int>(blocks));
    tile_factor = powers_of(p.gamma_re, Shape::kRun, Shape::kWarps).most;
  }
  auto* const kernel = scan_persistent<T, kReverse, kGated>;
  const cudaError_t error = allow_shared(kernel, Shape::kShared);
  if (error != cudaSuccess) return error;
  return launch_after_fill(plan, true, kernel, blocks, (Shape::kWarps + 2) * 32, Shape::kShared, stream, p, powers, w,
                           static_cast<uint32_t>(plan.tiles), tile_factor);
}

template <class T, bool kReverse>
cudaError_t launch_resident_lines(const Plan& plan, const Workspace& w, cudaStream_t stream) {
  using Tuning = ResidentTuning;
  const ResidentShape& shape = plan.resident;
  const int shared = shape.slots * Tuning::kThreads * Tuning::kRun * 16 + shape.pieces * Tuning::kThreads * 8;
  auto* const kernel = scan_resident_lines<T, kReverse>;
  const cudaError_t error = allow_shared(kernel, shared);
  if (error != cudaSuccess) return error;
  return launch_after_fill(plan, plan.tiles > 1, kernel, plan.problem.lines * plan.tiles, Tuning::kThreads, shared, stream,
                           plan.problem, shape, resident_powers<T>(plan), w);
}

// Bytes of shared memory; 0 stages: as many as a block that walks has.
template <class Element, bool kGated, int kSteps>
constexpr int column_stages(int stages) {
  if constexpr (kStagesColumns<Element>) {
    using Stage = ColumnStage<typename Element::Raw, kGated, kSteps>;
    return ColumnTuning::kWarps * (stages ? stages : Stage::kStages) * Stage::kAllVectors * 16;
  } else {
    return 0;
  }
}

template <class Element, bool kGated, bool kResets>
cudaError_t launch_columns(const Plan& plan, const Workspace& w, cudaStream_t stream) {
  constexpr int kThreads = ColumnTuning::kWarps * 32;
  constexpr int kWalking = column_stages<Element, kGated, ColumnTuning::kSteps>(0);
  constexpr int kSplit = column_stages<Element, kGated, kSplitSteps<Element, kGated>>(1);
  const cudaError_t error = plan.regime == kColumns ? allow_shared(scan_columns<Element, kGated, kResets>, kWalking)
                                                    : allow_shared(scan_split_columns<Element, kGated, kResets>, kSplit);
  if (error != cudaSuccess) return error;
  if (plan.regime == kSplitColumns)
    return launch_after_fill(plan, false, scan_split_columns<Element, kGated, kResets>, plan.blocks * plan.tiles, kThreads,
                             kSplit, stream, plan.problem, w, plan.blocks, plan.tiles, plan.width, plan.aligned);
  scan_columns<Element, kGated, kResets>
      <<<std::min(plan.blocks, kMostBlocks), kThreads, kWalking, stream>>>(plan.problem, plan.blocks, plan.aligned);
  return cudaGetLastError();
}

template <class T, int kShape>
cudaError_t launch_held_columns(const Plan& plan, cudaStream_t stream) {
  constexpr HeldTuning::Shape shape = HeldTuning::kShapes[kShape];
  if (plan.each == shape.run && plan.warps == shape.warps) {
    const HeldPowers powers(plan.problem.gamma_re, shape.run);
    scan_held_columns<T, shape.run, shape.warps>
        <<<plan.blocks, shape.warps * 32, 0, stream>>>(plan.problem, powers);
    return cudaGetLastError();
  }
  if constexpr (kShape > 0) return launch_held_columns<T, kShape - 1>(plan, stream);
  else return cudaErrorInvalidConfiguration;
}

inline bool is_columns(const Plan& plan) { return plan.regime == kColumns || plan.regime == kSplitColumns; }

template <class T, bool kReverse, bool kGated, bool kResets>
cudaError_t launch_typed_lines(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  if (plan.regime == kLines) {
    if constexpr (!kResets) {
      using Simple = Staged<T, kReverse, kLaneElements<T>, true>;
      if (plan.simple) return launch_lines<Simple, kGated, kResets>(plan, stream, n_processors);
    }
    return launch_lines<Staged<T, kReverse>, kGated, kResets>(plan, stream, n_processors);
  }
  if (plan.regime == kSplitLines) {
    if constexpr (sizeof(T) >= 4 && !kResets) {
      constexpr int kRun = SplitTuning::kRunVectors[kGated] * 16 / sizeof(T);
      if (plan.long_runs) return launch_split_lines<Staged<T, kReverse, kRun>, kGated, kResets>(plan, w, stream);
    }
    return launch_split_lines<Staged<T, kReverse>, kGated, kResets>(plan, w, stream);
  }
  if constexpr (!kResets) {
    if (plan.regime == kPersistentLines) return launch_persistent<T, kReverse, kGated>(plan, w, stream);
    if constexpr (!kGated && sizeof(T) <= 4)
      if (plan.regime == kResidentLines) return launch_resident_lines<T, kReverse>(plan, w, stream);
    if (plan.regime == kBlockLines) return launch_block_lines<T, kReverse, kGated>(plan, stream);
    if (plan.regime == kClusterLines) return launch_cluster_lines<T, kReverse, kGated>(plan, stream);
    if (plan.regime == kPackedLines) return launch_packed_lines<T, kReverse, kGated>(plan, stream, n_processors);
  }
  return launch_short_lines<Contiguous<T, kReverse>, kGated, kResets>(plan, stream, n_processors);
}

template <class T, bool kGated, bool kResets>
cudaError_t launch_typed_with(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  if (is_columns(plan)) return launch_columns<Typed<T>, kGated, kResets>(plan, w, stream);
  if constexpr (!kResets) {
    if (plan.regime == kWideColumns) {
      scan_wide_columns<T, kGated><<<plan.blocks, WideTuning::kThreads, 0, stream>>>(plan.problem);
      return cudaGetLastError();
    }
    if constexpr (!kGated && sizeof(T) <= 4)
      if (plan.regime == kHeldColumns)
        return launch_held_columns<T, std::size(HeldTuning::kShapes) - 1>(plan, stream);
  }
  return plan.reverse ? launch_typed_lines<T, true, kGated, kResets>(plan, w, stream, n_processors)
                      : launch_typed_lines<T, false, kGated, kResets>(plan, w, stream, n_processors);
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

template <class T, bool kReverse>
cudaError_t launch_backward_lines(const BackwardPlan& plan, cudaStream_t stream, int n_processors) {
  constexpr int kShared = 2 * StagedBackward<T, kReverse>::kStage * 16;   // bytes of a warp
  BackwardProblem p = {};
  p.scan = plan.problem;
  p.y = plan.y;
  p.g_gates = plan.g_gates;
  if (plan.each) {
    constexpr int kWarps = BackwardTuning::kWarps;
    const int64_t lines_each = int64_t(kWarps) * plan.each;
    const int64_t blocks = blocks_of((p.scan.lines + lines_each - 1) / lines_each, LineTuning::kTiles,
                                     int64_t(n_processors) * BackwardTuning::kBlocks);
    backward_packed_lines<T, kReverse><<<blocks, kWarps * 32, kWarps * kShared, stream>>>(p, plan.each);
    return cudaGetLastError();
  }
  const int64_t resident = int64_t(n_processors) * BackwardTuning::kBlocks * BackwardTuning::kWarps / plan.warps;
  const WalkBlocks blocks(p.scan.lines, plan.tiles, resident);
  backward_lines<T, kReverse><<<blocks.all(), plan.warps * 32, plan.warps * kShared, stream>>>(p, blocks.walking);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_backward(const BackwardPlan& plan, cudaStream_t stream, int n_processors) {
  return plan.reverse ? launch_backward_lines<T, true>(plan, stream, n_processors)
                      : launch_backward_lines<T, false>(plan, stream, n_processors);
}

template <class S, bool kGated>
cudaError_t launch_any_with(const Plan& plan, const Workspace& w, cudaStream_t stream, int n_processors) {
  if (is_columns(plan)) return launch_columns<Any<S>, kGated, true>(plan, w, stream);
  switch (plan.regime) {
    case kShortLines: return launch_short_lines<Strided<S>, kGated, true>(plan, stream, n_processors);
    case kLines: return launch_lines<Strided<S>, kGated, true>(plan, stream, n_processors);
    default: return launch_split_lines<Strided<S>, kGated, true>(plan, w, stream);
  }
}

}  // namespace upsweep
