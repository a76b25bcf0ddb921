#include <algorithm>
#include <cstdlib>

#include "plan/scan.hpp"
#include "plan/tuning.hpp"

namespace upsweep {
namespace {

// Lines whose elements are neighbours, of one real dtype in x and out.
bool has_window_lines(const Plan& plan, int32_t accumulator) {
  const Problem& p = plan.problem;
  const int64_t item = dtype_size(p.x.dtype);
  if (plan.window < WindowTuning::kDirect && p.length < WindowTuning::kDirectLine) return false;
  return accumulator == UPSWEEP_REAL && is_typed(p.x.dtype) && p.out.dtype == p.x.dtype && !p.reset.data &&
         std::llabs(p.x.time_stride) == item && std::llabs(p.out.time_stride) == item && p.length <= kMostSteps;
}

WindowShape window_shape(const Problem& p, int64_t window, bool aligned) {
  const int64_t item = dtype_size(p.x.dtype), positions = p.length + (aligned ? 0 : 16 / item - 1);
  constexpr int64_t kRun = WindowShape::kRun, kBlock = WindowShape::kBlock, kUnit = WindowShape::kUnit;
  constexpr int64_t kBlockRuns = kBlock / kRun;
  WindowShape s = {};
  s.window = static_cast<int32_t>(window);
  s.units = static_cast<int32_t>(std::min(WindowTuning::kTileBytes / item / kUnit, (positions + kUnit - 1) / kUnit));
  const int64_t tile = s.units * kUnit;
  s.tiles = (positions + tile - 1) / tile;
  const int64_t before = std::max(window - kRun, int64_t(0));   // steps of a run's windows before the run
  s.runs = static_cast<int32_t>(before / kRun);
  s.tail = static_cast<int32_t>(before % kRun);
  const int64_t shared = std::max(s.runs - (kBlockRuns - 1), int64_t(0));
  s.blocks = static_cast<int32_t>(shared / kBlockRuns);
  s.rest = static_cast<int32_t>(shared % kBlockRuns);
  // The last block of a tile has all of the tile's others among its whole blocks.
  s.common = static_cast<int32_t>(std::max((s.blocks * kBlock - (tile - kBlock)) / kUnit, int64_t(0)));
  s.lead = static_cast<int32_t>((window + kBlock - 1) / kBlock * kBlock);
  s.own_at = static_cast<int32_t>(s.lead - s.common * kUnit);
  s.elements = static_cast<uint32_t>(s.own_at + tile);
  s.back = static_cast<int32_t>(window - 1 - s.common * kUnit);
  s.oldest_block = static_cast<int32_t>((s.own_at + s.common * kUnit) / kBlock - s.blocks);
  return s;
}

void plan_window_lines(Plan& plan) {
  const Problem& p = plan.problem;
  const WindowShape& shape = plan.shape;
  plan.typed = true;
  plan.tile = shape.units * WindowShape::kUnit;
  plan.tiles = shape.tiles;
  if (shape.common) plan.workspace_bytes = kCounterBytes + p.lines * shape.tiles * (shape.units + 1) * 8;
  plan.invalid_bytes = plan.workspace_bytes;
  if (p.x.data == p.out.data) {
    plan.aside = plan.workspace_bytes ? (plan.workspace_bytes + 15) / 16 * 16 : kCounterBytes;
    plan.workspace_bytes = plan.aside + p.lines * p.length * dtype_size(p.x.dtype);
  }
}

}  // namespace

void plan_window(Plan& plan, int32_t accumulator) {
  const Problem& p = plan.problem;
  plan.regime = kWindow;
  plan.typed = plan.reverse = false;
  if (has_window_lines(plan, accumulator)) {
    const int64_t item = dtype_size(p.x.dtype);
    const bool copied = p.x.data == p.out.data;   // to lines without gaps
    plan.aligned = copied ? p.length * item % 16 == 0 : is_aligned(p.x, p, item) && plan.outer.keeps_vectors(kX);
    plan.shape = window_shape(p, plan.window, plan.aligned);
    if (p.lines * plan.shape.tiles < INT32_MAX) return plan_window_lines(plan);
  }
  plan.tile = int64_t(WindowTuning::kThreads) * WindowTuning::kLaneSteps;
  plan.tiles = (p.length + plan.tile - 1) / plan.tile;
  const int64_t size = accumulator == UPSWEEP_REAL ? 8 : 16;   // of a state
  if (plan.window >= WindowTuning::kDirect) {
    plan.segment = WindowTuning::kSegment;
    while (plan.segment > plan.window) plan.segment /= 2;
    plan.segments = (p.length + plan.segment - 1) / plan.segment;
    plan.workspace_bytes = kCounterBytes + p.lines * plan.segments * (2 * size + 8);   // sizeof(WindowStep)
  }
  if (p.x.data == p.out.data) {
    plan.aside = plan.workspace_bytes ? plan.workspace_bytes : kCounterBytes;
    plan.workspace_bytes = plan.aside + p.lines * p.length * size;
  }
}

}  // namespace upsweep
