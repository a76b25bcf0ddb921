// Plans: which rows and columns each task of a reduction over pairs takes.
//
// Called by bindings/_pairs.pyx, once for each set of ranges. Tasks are cut at places that sizes alone decide: rows into vectors,
// and where that makes few tasks of many columns, the columns into pieces.
#include <algorithm>
#include <cmath>

#include "pairs/pairs.hpp"
#include "common/tuning.hpp"

namespace upsweep {
namespace {

using namespace pair_tuning;

constexpr int64_t kEnoughTasks = 64;          // below this many, columns are cut too
constexpr int64_t kLeastPiece = 1 << 13;      // columns of a piece
constexpr int64_t kMostPiece = 1 << 30;       // columns of one call: float32 has indices of 32 bits

int64_t n_of(const PairPlan& plan, const PairBlock& block) {
  int64_t n = 0;
  for (int64_t i = block.first; i < block.last; ++i) n += plan.intervals[i].end - plan.intervals[i].begin;
  return n;
}

// The cost of everything with lanes of rows, and with lanes of columns.
void compare_lanes(const PairKernel& kernel, const std::vector<PairBlock>& blocks, PairPlan& plan) {
  const double lanes = kernel.lanes;
  double as_rows = 0, as_columns = 0;
  for (const PairBlock& block : blocks) {
    const double n_rows = (double)(block.end - block.begin), vectors = std::ceil(n_rows / lanes);
    for (int64_t i = block.first; i < block.last; ++i) {
      const double n = (double)(plan.intervals[i].end - plan.intervals[i].begin);
      as_rows += vectors * n;
      as_columns += kColumnsPenalty * n_rows * std::ceil(n / lanes);
    }
  }
  plan.lanes_are_columns = as_columns < as_rows;
}

void cut(const PairKernel& kernel, const std::vector<PairBlock>& blocks, PairPlan& plan) {
  const int64_t step = plan.lanes_are_columns ? 1 : kernel.lanes;
  const double per_column = kernel.cost / (plan.lanes_are_columns ? kernel.lanes : 1);
  int64_t n_tasks = 0, n_most = 0;
  for (const PairBlock& block : blocks) n_tasks += (block.end - block.begin + step - 1) / step;
  // Pieces only where the whole would otherwise be a few tasks, or one outweighs all others.
  double total = 0;
  for (const PairBlock& block : blocks) {
    const int64_t n = n_of(plan, block);
    n_most = std::max(n_most, n);
    total += (double)n * (double)((block.end - block.begin + step - 1) / step);
  }
  int64_t piece = kMostPiece;
  if (n_tasks < kEnoughTasks || (double)n_most > total / kEnoughTasks) {
    piece = std::clamp((int64_t)(total / kEnoughTasks), kLeastPiece, kMostPiece);
    piece = (piece + kPieceUnit - 1) / kPieceUnit * kPieceUnit;
  }
  plan.tasks.reserve((size_t)n_tasks);
  double group_cost = 0;
  plan.groups.push_back(0);
  for (const PairBlock& block : blocks) {
    const int64_t n = n_of(plan, block), pieces = std::max<int64_t>(1, (n + piece - 1) / piece);
    for (int64_t row = block.begin; row < block.end; row += step) {
      const int32_t n_rows = (int32_t)std::min(step, block.end - row);
      if (pieces > 1) {
        plan.gathers.push_back((int64_t)plan.tasks.size());
        plan.n_pieces.push_back(pieces);
      }
      int64_t interval = block.first, skip = 0;
      for (int64_t p = 0; p < pieces; ++p) {
        const int64_t length = std::min(piece, n - p * piece);
        plan.tasks.push_back({row, interval, skip, length, pieces > 1 ? plan.n_partials : -1, block.first, n_rows});
        if (pieces > 1) plan.n_partials += step;
        for (int64_t left = length; left > 0;) {   // to where the next piece begins
          const int64_t available = plan.intervals[interval].end - plan.intervals[interval].begin - skip;
          if (left < available) {
            skip += left;
            left = 0;
          } else {
            left -= available;
            ++interval;
            skip = 0;
          }
        }
        const double cost = (double)length * per_column + kTaskCost + kIntervalCost * (double)(block.last - block.first);
        plan.cost += cost;
        group_cost += cost;
        if (group_cost >= kGroupCost) {
          plan.groups.push_back((int64_t)plan.tasks.size());
          group_cost = 0;
        }
      }
    }
  }
  if (plan.groups.back() != (int64_t)plan.tasks.size()) plan.groups.push_back((int64_t)plan.tasks.size());
}

}  // namespace

void make_dense_plan(const PairKernel& kernel, int64_t n_rows, int64_t n_columns, PairPlan& plan) {
  plan.intervals.push_back({0, n_columns});
  const std::vector<PairBlock> blocks{{0, n_rows, 0, n_columns > 0 ? 1 : 0}};
  plan.covers = n_columns > 0;
  if (n_columns == 0 || n_rows == 0) return;
  compare_lanes(kernel, blocks, plan);
  cut(kernel, blocks, plan);
}

void make_plan(const PairKernel& kernel, int64_t n_rows, int64_t n_columns, const int64_t* blocks, const int64_t* slices,
               const int64_t* columns, int64_t n_blocks, PairPlan& plan) {
  (void)n_columns;
  std::vector<PairBlock> nonempty;
  nonempty.reserve((size_t)n_blocks);
  int64_t covered = 0;
  for (int64_t b = 0; b < n_blocks; ++b) {
    const int64_t begin = blocks[2 * b], end = blocks[2 * b + 1];
    const int64_t first = (int64_t)plan.intervals.size();
    for (int64_t s = b ? slices[b - 1] : 0; s < slices[b]; ++s)
      if (columns[2 * s] < columns[2 * s + 1]) plan.intervals.push_back({columns[2 * s], columns[2 * s + 1]});
    const int64_t last = (int64_t)plan.intervals.size();
    if (begin >= end || first == last) continue;
    // In rising order, so that of columns that are as good the first that is met has the smallest index.
    std::stable_sort(plan.intervals.begin() + first, plan.intervals.end(),
                     [](const PairInterval& a, const PairInterval& b) { return a.begin < b.begin; });
    nonempty.push_back({begin, end, first, last});
    covered += end - begin;
  }
  plan.covers = covered == n_rows;
  compare_lanes(kernel, nonempty, plan);
  cut(kernel, nonempty, plan);
}

}  // namespace upsweep
