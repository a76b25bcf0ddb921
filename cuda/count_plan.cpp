#include "count_plan.hpp"

#include <algorithm>
#include <cstring>

#include "plan.hpp"
#include "tuning.hpp"

namespace upsweep {
namespace {

constexpr int kCountArrays = 3;   // keys, out, weights

struct CountAxis {
  int64_t size;
  int64_t strides[kCountArrays];
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Axes of size 1 left out, neighbours that lie one in the other taken as one.
int merge_batch(const upsweep_count& count, CountAxis* axes) {
  int n = 0;
  for (int dim = 0; dim < count.n_batch; ++dim) {
    if (count.batch_shape[dim] == 1) continue;
    const CountAxis axis = {count.batch_shape[dim], {count.keys.batch_strides[dim], count.out.batch_strides[dim],
                                                       count.weights.batch_strides[dim]}};
    bool inside = n > 0;
    for (int i = 0; inside && i < kCountArrays; ++i) inside = axes[n - 1].strides[i] == axis.strides[i] * axis.size;
    if (inside) axes[n - 1] = {axes[n - 1].size * axis.size, {axis.strides[0], axis.strides[1], axis.strides[2]}};
    else axes[n++] = axis;
  }
  return n;
}

const char* describe_keys(const upsweep_count& count, CountPlan* result) {
  CountPlan& plan = *result;
  std::memset(&plan, 0, sizeof plan);
  if (count.length < 0) return "length is negative";
  if (count.n_batch < 0 || count.n_batch > UPSWEEP_MAX_DIMS) return "n_batch is out of range";
  if (count.keys.dtype < UPSWEEP_BOOL || count.keys.dtype > UPSWEEP_UINT64) return "dtype of keys is no integer";
  CountProblem& p = plan.problem;
  p.rows = 1;
  for (int dim = 0; dim < count.n_batch; ++dim) {
    if (count.batch_shape[dim] < 0) return "batch_shape is negative";
    p.rows *= count.batch_shape[dim];
  }
  if (!count.keys.data && p.rows * count.length) return "keys have to be given";
  CountAxis axes[UPSWEEP_MAX_DIMS];
  const int n = p.rows ? merge_batch(count, axes) : 0;
  const int kept = std::min(n, kDims);
  plan.n_outer = n - kept;
  plan.n_launches = 1;
  for (int dim = 0; dim < plan.n_outer; ++dim) {
    plan.outer_shape[dim] = axes[dim].size;
    plan.n_launches *= axes[dim].size;
    for (int i = 0; i < kCountArrays; ++i) plan.outer_strides[i][dim] = axes[dim].strides[i];
    p.rows /= axes[dim].size;
  }
  p.n_dims = kept;
  for (int dim = 0; dim < kept; ++dim) {
    p.shape[dim] = axes[plan.n_outer + dim].size;
    p.key_strides[dim] = axes[plan.n_outer + dim].strides[0];
    p.out_strides[dim] = axes[plan.n_outer + dim].strides[1];
    plan.weight_strides[dim] = axes[plan.n_outer + dim].strides[2];
  }
  p.keys = static_cast<const char*>(count.keys.data);
  p.key_stride = count.keys.time_stride;
  p.length = count.length;
  p.is_bool = count.keys.dtype == UPSWEEP_BOOL;
  plan.key_bytes = static_cast<int32_t>(dtype_size(count.keys.dtype));
  plan.is_signed = count.keys.dtype == UPSWEEP_INT8 || count.keys.dtype == UPSWEEP_INT16 ||
                   count.keys.dtype == UPSWEEP_INT32 || count.keys.dtype == UPSWEEP_INT64;
  plan.vectors = p.key_stride == plan.key_bytes;
  return nullptr;
}

const char* describe_count(const upsweep_count& count, CountPlan* result) {
  if (const char* wrong = describe_keys(count, result)) return wrong;
  CountProblem& p = result->problem;
  if (count.n_bins < 0) return "n_bins is negative";
  if (!count.out.data && p.rows * count.n_bins) return "out has to be given";
  if (count.first_outside && !count.dropped) return "first_outside goes with dropped";
  p.out = static_cast<char*>(count.out.data);
  p.bin_stride = count.out.time_stride;
  p.n_bins = count.n_bins;
  p.dropped = static_cast<unsigned long long*>(count.dropped);
  p.first = static_cast<unsigned long long*>(count.first_outside);
  p.limit = static_cast<uint64_t>(count.n_bins);
  if (result->is_signed) p.limit = std::min(p.limit, uint64_t(1) << (8 * result->key_bytes - 1));
  return nullptr;
}

// Blocks that share each row, of so many that are to run: no more than have a load each for all their threads.
int64_t splits_of(const CountPlan& plan, int64_t resident, int64_t threads) {
  const CountProblem& p = plan.problem;
  const int64_t loads = ceil_div(p.length * (plan.vectors ? plan.key_bytes : 1), plan.vectors ? 16 : 1);
  const int64_t fill = ceil_div(resident, p.rows);
  return std::max(int64_t(1), std::min(fill, ceil_div(loads, threads)));
}

// Whether there are tables for so many bins.
bool plan_tables(CountPlan& plan, const DeviceLimits& limits, int64_t bins) {
  using Tuning = CountTuning;
  const CountProblem& p = plan.problem;
  // Beside its table a block has 1 KiB that the system takes and a little of its own.
  const int64_t processor_words = (limits.processor_shared - 2048) / 4, block_words = (limits.block_shared - 1024) / 4;
  const int64_t whole = std::min({int64_t(Tuning::kWholeWords), processor_words, block_words}) / 32 * 32;
  const int64_t half = std::min({int64_t(Tuning::kHalfWords), processor_words / 2 - 256, block_words}) / 32 * 32;
  TableShape& table = plan.table;
  if (plan.key_bytes == 1) {
    if (half < 256 * 32) return false;
    plan.blocks_per_processor = 2;
    table = {256, 5, 1, 1, 0};
  } else {
    const int64_t most_shares = plan.key_bytes == 8 ? Tuning::kWideShares : Tuning::kNarrowShares;
    table.shares = static_cast<int32_t>(ceil_div(bins, whole));
    if (ceil_div(bins, whole) > most_shares) return false;
    table.bins = static_cast<uint32_t>(ceil_div(ceil_div(bins, table.shares), 32) * 32);
    const bool two = table.bins <= half && table.bins <= Tuning::kHalfBins;
    plan.blocks_per_processor = two ? 2 : 1;
    for (const int64_t words = two ? half : whole;
         table.replicas_log2 < 5 && int64_t(table.bins) << (table.replicas_log2 + 1) <= words;)
      ++table.replicas_log2;
  }
  const int64_t resident = int64_t(limits.processors) * plan.blocks_per_processor / table.shares;
  table.splits = splits_of(plan, resident, Tuning::kThreads);
  // Each block adds all its bins to memory: where keys are few, so are the blocks. A counter has 32 bits.
  table.splits = std::min(table.splits, std::max(int64_t(1), 4 * p.length / table.bins));
  table.splits = std::max(table.splits, ceil_div(p.length, int64_t(1) << 31));
  const int64_t units = p.rows * table.splits * table.shares;
  plan.blocks = std::min(units, int64_t(limits.processors) * plan.blocks_per_processor);
  return true;
}

// Many keys and more bins than tables hold: whether they are put into parts first.
bool plan_parts_of(CountPlan& plan, const DeviceLimits& limits, int64_t bins) {
  CountProblem& p = plan.problem;
  const int64_t n_parts = ceil_div(bins, kPartBins);
  if (p.length < CountTuning::kPartKeys || n_parts > kMostParts || plan.key_bytes < 4) return false;
  if (limits.block_shared < CountTuning::kPartShared) return false;
  // One row at a time: each has keys enough for all blocks.
  for (int dim = 0; dim < p.n_dims; ++dim) {
    plan.outer_shape[plan.n_outer] = p.shape[dim];
    plan.outer_strides[0][plan.n_outer] = p.key_strides[dim];
    plan.outer_strides[1][plan.n_outer++] = p.out_strides[dim];
    plan.n_launches *= p.shape[dim];
  }
  p.n_dims = 0;
  p.rows = 1;
  if (!plan_tables(plan, limits, n_parts)) return false;
  plan.table.shift = kPartBits;
  plan.n_parts = n_parts;
  plan.scatter_blocks = 2 * limits.processors;
  plan.part_blocks = limits.processors;
  Parts parts;
  plan.workspace_bytes = lay_out_parts(n_parts, p.length, nullptr, &parts);
  return true;
}

}  // namespace

const char* make_count_plan(const upsweep_count& count, const DeviceLimits& limits, CountPlan* result) {
  if (const char* wrong = describe_count(count, result)) return wrong;
  if (count.out.dtype != UPSWEEP_INT64) return "out of a count has to be int64";
  CountPlan& plan = *result;
  CountProblem& p = plan.problem;
  if (p.rows == 0 || p.length == 0) return nullptr;   // kCountNothing; out may have to be cleared all the same
  const bool few = p.length < p.n_bins / CountTuning::kFewKeysPerBins;
  const int64_t bins = std::max(int64_t(1), std::min(p.n_bins, static_cast<int64_t>(p.limit)));
  if (!few && plan_tables(plan, limits, bins)) {
    plan.regime = kCountTables;
    return nullptr;
  }
  if (!few && plan_parts_of(plan, limits, bins)) {
    plan.regime = kCountParts;
    return nullptr;
  }
  plan.regime = kCountGlobal;
  constexpr int kGlobalBlocks = 4;   // of 512 threads
  plan.splits = splits_of(plan, int64_t(limits.processors) * kGlobalBlocks, 512);
  plan.blocks = std::min(p.rows * plan.splits, int64_t(limits.processors) * kGlobalBlocks);
  return nullptr;
}

const char* make_sum_plan(const upsweep_count& count, const DeviceLimits& limits, SumPlan* result) {
  SumPlan& plan = *result;
  std::memset(&plan, 0, sizeof plan);
  if (const char* wrong = describe_count(count, &plan.count)) return wrong;
  const int32_t out = count.out.dtype;
  const bool integer = out == UPSWEEP_INT64;
  if (!integer && out != UPSWEEP_FLOAT32 && out != UPSWEEP_FLOAT64)
    return "out of sums has to be int64, float32 or float64";
  if (count.weights.dtype < UPSWEEP_BOOL || count.weights.dtype > UPSWEEP_FLOAT64) return "weights have to be real";
  if (integer && count.weights.dtype > UPSWEEP_UINT64) return "out of sums of floats has to be float32 or float64";
  if (count.n_columns < 0) return "n_columns is negative";
  SumProblem& p = plan.problem;
  p.count = plan.count.problem;
  p.weights = static_cast<const char*>(count.weights.data);
  p.weight_dtype = count.weights.dtype;
  p.out_dtype = out;
  p.accumulate = count.accumulate;
  p.weight_stride = count.weights.time_stride;
  std::copy(plan.count.weight_strides, plan.count.weight_strides + kDims, p.weight_strides);
  plan.accumulator = integer ? UPSWEEP_INTEGER : UPSWEEP_REAL;
  plan.n_columns = count.n_columns;
  plan.weights_column_stride = count.weights_column_stride;
  plan.out_column_stride = count.out_column_stride;
  const int64_t rows = p.count.rows, length = p.count.length, bins = p.count.n_bins;
  if (rows == 0 || bins == 0 || plan.n_columns == 0) return nullptr;

  using Tuning = SumTuning;
  const int64_t table_words = (limits.block_shared - 1024) / 8;   // of 8 bytes
  plan.passes = ceil_div(bins, table_words / Tuning::kLeastTables / 16 * 16);
  // The order of integers does not matter, nor does that of floats unless it is to.
  const bool ordered = !integer && count.deterministic;
  const bool few = length < bins / CountTuning::kFewKeysPerBins;
  int64_t resident = limits.processors;
  if ((plan.passes <= Tuning::kMostPasses && !few) || ordered) {
    plan.regime = kSumTables;
    plan.bins = ceil_div(bins, plan.passes);
    plan.warps = static_cast<int32_t>(std::min(int64_t(Tuning::kWarps), table_words / (ceil_div(plan.bins, 16) * 16)));
  } else {
    plan.regime = kSumGlobal;
    plan.passes = 1;
    plan.bins = bins;
    plan.warps = Tuning::kWarps;
  }
  const int64_t fill = ceil_div(resident, rows), tile = int64_t(plan.warps) * Tuning::kWarpKeys;
  plan.splits = std::max(int64_t(1), std::min(fill, ceil_div(length, tile)));
  plan.blocks = std::min(rows * plan.splits, resident);
  plan.workspace_bytes = rows * (plan.regime == kSumTables ? plan.splits : 1) * plan.bins * 8;
  return nullptr;
}

const char* make_range_plan(const upsweep_count& count, const DeviceLimits& limits, CountPlan* result) {
  if (const char* wrong = describe_keys(count, result)) return wrong;
  CountPlan& plan = *result;
  if (plan.problem.rows == 0 || plan.problem.length == 0) return nullptr;
  constexpr int kRangeBlocks = 4;   // of 512 threads
  plan.splits = splits_of(plan, int64_t(limits.processors) * kRangeBlocks, 512);
  plan.blocks = std::min(plan.problem.rows * plan.splits, int64_t(limits.processors) * kRangeBlocks);
  return nullptr;
}

}  // namespace upsweep
