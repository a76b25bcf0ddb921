#include <algorithm>
#include <cmath>

#include "plan/scan.hpp"
#include "plan/tuning.hpp"

namespace upsweep {
namespace {

// Columns of a block where they are split: no more lanes than columns where there are tiles enough all the same.
int32_t split_width(const Problem& p, int64_t columns, int64_t steps) {
  int32_t width = 8;
  while (width < 32 && (width < columns || p.lines / columns * (p.length * width / (32 * ColumnTuning::kWarps * steps)) <
                                               ColumnTuning::kNarrowTiles))
    width *= 2;
  return width;
}

// Whether columns are held whole, and by how many threads: with one factor of which no power overflows or vanishes, and
// elements whose sums stay finite in float64.
bool holds_columns(Plan& plan, int64_t columns, int64_t item) {
  const Problem& p = plan.problem;
  if (!plan.typed || item > 4 || plan.gated || p.reset.data || p.gamma.data || std::fabs(p.gamma_re) > 1) return false;
  for (const HeldTuning::Shape shape : HeldTuning::kShapes) {
    const int64_t steps = int64_t(shape.run) * shape.warps * (32 / HeldTuning::kColumns);
    if (p.length > steps) continue;
    if (!std::isnormal(std::pow(std::fabs(p.gamma_re), double(steps)))) return false;
    plan.regime = kHeldColumns;
    plan.each = shape.run;
    plan.warps = shape.warps;
    plan.blocks = p.lines / columns * ((columns + HeldTuning::kColumns - 1) / HeldTuning::kColumns);
    plan.tile = p.length;
    plan.tiles = 1;
    return plan.blocks <= HeldTuning::kBlocks && plan.blocks < INT32_MAX;
  }
  return false;
}

// Whether a thread walks along each few columns, of which all rows begin on a boundary of what it loads.
bool walks_columns(Plan& plan, int64_t columns, int64_t item) {
  const Problem& p = plan.problem;
  if (!plan.aligned || p.reset.data || p.lines < WideTuning::kLines || columns % WideTuning::kColumns) return false;
  if (!has_aligned_rows(p.out, p, item) || !plan.outer.keeps_vectors(kOut)) return false;
  const int64_t of_block = int64_t(WideTuning::kThreads) * WideTuning::kColumns;
  plan.regime = kWideColumns;
  plan.blocks = (p.lines + of_block - 1) / of_block;
  plan.tile = p.length;
  plan.tiles = 1;
  return plan.blocks < INT32_MAX;
}

// Columns of a block whose one tile holds them from the first to the last step, so that no tile waits for another one:
// 8 where all blocks run at the same time, else the least with which they do; 0 if there is none.
int32_t whole_width(const Problem& p, int64_t columns, int64_t steps, int n_processors) {
  if (p.length <= 4 * ColumnTuning::kWarps * ColumnTuning::kSteps) return 0;
  for (int32_t width = 8; width <= 32 && p.length <= ColumnTuning::kWarps * (32 / width) * steps; width *= 2)
    if (p.lines / columns * ((columns + width - 1) / width) <= int64_t(ColumnTuning::kSplitBlocks) * n_processors)
      return width;
  return 0;
}

}  // namespace

void plan_columns(Plan& plan, int32_t accumulator, Machine machine) {
  const Problem& p = plan.problem;
  const int n_processors = machine.n_processors;
  const int64_t item = dtype_size(p.x.dtype), columns = p.shape[p.n_dims - 1];
  plan.aligned = plan.typed && has_aligned_rows(p.x, p, item) && plan.outer.keeps_vectors(kX) &&
                 (!plan.gated || (has_aligned_rows(p.gates, p, item) && plan.outer.keeps_vectors(kGates)));
  if (walks_columns(plan, columns, item) || holds_columns(plan, columns, item)) return;
  plan.blocks = p.lines / columns * ((columns + 31) / 32);
  const int64_t split_steps = plan.typed ? split_column_steps(item, plan.gated) : ColumnTuning::kAnySplitSteps;
  const int32_t whole = whole_width(p, columns, split_steps, n_processors);
  plan.width = whole ? whole : split_width(p, columns, split_steps);
  const int64_t split_tile = ColumnTuning::kWarps * (32 / plan.width) * split_steps;
  const int64_t split_tiles = (p.length + split_tile - 1) / split_tile;
  const bool split = plan.blocks < int64_t(ColumnTuning::kBlocksPerProcessor) * n_processors &&
                     (whole || split_tiles > 2) && plan.blocks * split_tiles < INT32_MAX;
  if (whole && split) plan.blocks = p.lines / columns * ((columns + whole - 1) / whole);
  plan.regime = split ? kSplitColumns : kColumns;
  plan.tile = split ? split_tile : ColumnTuning::kWarps * ColumnTuning::kSteps;
  plan.tiles = (p.length + plan.tile - 1) / plan.tile;
  if (split && !whole)
    plan.workspace_bytes =
        workspace_of(plan.blocks * plan.tiles, plan.blocks * ((plan.tiles + ColumnTuning::kGroup - 1) / ColumnTuning::kGroup),
                     plan.width, accumulator);
}

}  // namespace upsweep
