#include "plan/bincount.hpp"

#include <algorithm>
#include <cstring>

#include "plan/scan.hpp"
#include "plan/tuning.hpp"

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

// largest: the last dtype that keys may have.
const char* describe_keys(const upsweep_count& count, CountPlan* result, int32_t largest = UPSWEEP_UINT64) {
  CountPlan& plan = *result;
  std::memset(&plan, 0, sizeof plan);
  if (count.length < 0) return "length is negative";
  if (count.n_batch < 0 || count.n_batch > UPSWEEP_MAX_DIMS) return "n_batch is out of range";
  if (count.keys.dtype < UPSWEEP_BOOL || count.keys.dtype > largest)
    return largest == UPSWEEP_UINT64 ? "dtype of keys is no integer" : "dtype of elements is not real";
  CountProblem& p = plan.problem;
  p.rows = 1;
  for (int dim = 0; dim < count.n_batch; ++dim) {
    if (count.batch_shape[dim] < 0) return "batch_shape is negative";
    p.rows *= count.batch_shape[dim];
  }
  if (!count.keys.data && p.rows * count.length) return "keys have to be given";
  CountAxis axes[UPSWEEP_MAX_DIMS];
  const int n = p.rows ? merge_batch(count, axes) : 0;
  const int n_merged = std::min(n, kDims);
  plan.n_outer = n - n_merged;
  plan.n_launches = 1;
  for (int dim = 0; dim < plan.n_outer; ++dim) {
    plan.outer_shape[dim] = axes[dim].size;
    plan.n_launches *= axes[dim].size;
    for (int i = 0; i < kCountArrays; ++i) plan.outer_strides[i][dim] = axes[dim].strides[i];
    p.rows /= axes[dim].size;
  }
  p.n_dims = n_merged;
  for (int dim = 0; dim < n_merged; ++dim) {
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

const char* describe_count(const upsweep_count& count, CountPlan* result, int32_t largest = UPSWEEP_UINT64) {
  if (const char* wrong = describe_keys(count, result, largest)) return wrong;
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
  if (p.length < CountTuning::kPartKeys || p.length > CountTuning::kMostPartKeys) return false;
  if (n_parts > kMostParts || plan.key_bytes < 4) return false;
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
  plan.n_parts = n_parts;
  plan.part_blocks = limits.processors;
  plan.scatter_warps = 32 * limits.processors;
  plan.chunked = n_parts <= kMostChunkedParts;
  if (plan.chunked) {
    Chunks chunks;
    plan.workspace_bytes = lay_out_chunks(n_parts, p.length, plan.scatter_warps / kChunkWarps, false, nullptr, &chunks);
    return true;
  }
  if (!plan_tables(plan, limits, n_parts)) return false;
  plan.table.shift = kPartBits;
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
  if (p.rows >= int64_t(CountTuning::kRowsPerProcessor) * limits.processors && p.n_bins <= CountTuning::kRowBins &&
      p.length < INT32_MAX) {
    plan.regime = kCountRows;
    p.accumulate = count.accumulate;
    plan.table.bins = static_cast<uint32_t>(ceil_div(bins, 32) * 32);
    plan.splits = 1;
    const int64_t warps = CountTuning::kRowWarps;
    plan.blocks = std::min(ceil_div(p.rows, warps), int64_t(limits.processors) * 64);
    return nullptr;
  }
  if (!few && plan_tables(plan, limits, bins)) {
    plan.regime = kCountTables;
    // A launch less than clearing the bins and adding to them.
    plan.table.stores = !count.accumulate && !p.is_bool && plan.table.splits == 1 &&
                        p.limit >= static_cast<uint64_t>(p.n_bins) &&
                        int64_t(plan.table.bins) * plan.table.shares >= p.n_bins;
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
  SumShape& shape = plan.shape;
  const int64_t table_words = (limits.block_shared - 1024) / 8;   // of 8 bytes
  const int64_t own_bins = table_words / Tuning::kLeastTables / 16 * 16, whole_bins = table_words / 16 * 16;
  // The order of integers does not matter, nor does that of floats unless it is to.
  const bool ordered = !integer && count.deterministic;
  const bool few = length < bins / CountTuning::kFewKeysPerBins;
  const int64_t n_parts = ceil_div(std::max(int64_t(1), std::min(bins, static_cast<int64_t>(p.count.limit))),
                                   int64_t(1) << kSumPartBits);
  const bool parted = !integer && !few && bins > whole_bins && n_parts <= kMostChunkedParts && rows == 1 &&
                      length >= CountTuning::kPartKeys && plan.count.key_bytes >= 4 && plan.count.vectors &&
                      count.weights.dtype == UPSWEEP_FLOAT32 && p.weight_stride == 4 &&
                      limits.block_shared >= Tuning::kPartShared;
  if (ordered) {
    plan.regime = kSumOwnTables;
    shape.shares = ceil_div(bins, own_bins);
  } else if (parted) {
    plan.regime = kSumParts;
    shape.shares = 1;
  } else if (bins <= Tuning::kMostShares * whole_bins && !few) {
    plan.regime = kSumReplicas;
    shape.shares = ceil_div(bins, whole_bins);
  } else {
    plan.regime = kSumGlobal;
    shape.shares = 1;
  }
  shape.bins = ceil_div(bins, shape.shares);
  while (shape.bins >> shape.bits) ++shape.bits;
  const int64_t padded = ceil_div(shape.bins, 16) * 16;
  plan.warps = plan.regime == kSumReplicas ? Tuning::kReplicaWarps : Tuning::kWarps;
  // Short rows take smaller blocks, and more of them.
  while (plan.warps > 1 && length <= int64_t(plan.warps / 2) * Tuning::kWarpKeys) plan.warps /= 2;
  const int64_t most_warps = plan.regime == kSumReplicas ? Tuning::kReplicaWarps : Tuning::kWarps;
  const int64_t blocks_each = most_warps / plan.warps, words = (limits.processor_shared / blocks_each - 1024) / 8;
  const int64_t budget = std::max(padded, std::min(table_words, words));
  if (plan.regime == kSumReplicas)
    while (shape.replicas_log2 < 5 && padded << (shape.replicas_log2 + 1) <= budget) ++shape.replicas_log2;
  shape.tables = static_cast<int32_t>(
      std::min(int64_t(plan.warps), std::max(int64_t(1), budget / (padded << shape.replicas_log2))));
  if (plan.regime == kSumOwnTables) plan.warps = shape.tables;
  const int64_t resident = limits.processors * blocks_each;
  const int64_t fill = ceil_div(std::max(int64_t(1), resident / shape.shares), rows);
  const int64_t tile = int64_t(plan.warps) * Tuning::kWarpKeys;
  shape.splits = std::max(int64_t(1), std::min(fill, ceil_div(length, tile)));
  plan.blocks = std::min(rows * shape.splits * shape.shares, resident);
  plan.workspace_bytes = rows * (plan.regime >= kSumGlobal ? 1 : shape.splits) * bins * 8;
  if (plan.regime == kSumParts) {
    plan.count.n_parts = n_parts;
    plan.count.scatter_warps = 32 * limits.processors;
    plan.count.part_blocks = limits.processors;
    plan.sums_bytes = ceil_div(plan.workspace_bytes, 256) * 256;
    Chunks chunks;
    plan.workspace_bytes = plan.sums_bytes + lay_out_chunks(n_parts, std::min(length, Tuning::kPieceKeys),
                                                            plan.count.scatter_warps / kChunkWarps, true, nullptr, &chunks);
  }
  return nullptr;
}

namespace {

const char* plan_range(CountPlan& plan, const DeviceLimits& limits, int64_t threads, int64_t blocks) {
  if (plan.problem.rows == 0 || plan.problem.length == 0) return nullptr;
  const int64_t resident = int64_t(limits.processors) * blocks;
  plan.splits = splits_of(plan, resident, threads);
  plan.blocks = std::min(plan.problem.rows * plan.splits, resident);
  return nullptr;
}

// The weights of all elements have one stride.
bool flatten(const upsweep_count& count, upsweep_array* weights) {
  *weights = count.weights;
  int64_t stride = 0, elements = 1;
  bool some = false;
  for (int dim = count.n_batch; dim >= 0; --dim) {   // the innermost axis is the elements' own
    const bool last = dim == count.n_batch;
    const int64_t size = last ? count.length : count.batch_shape[dim];
    if (size != 1) {
      const int64_t of = last ? count.weights.time_stride : count.weights.batch_strides[dim];
      if (!some) stride = of;
      else if (of != stride * elements) return false;
      some = true;
    }
    elements *= size;
  }
  weights->time_stride = stride;
  return true;
}

const char* check_uniform(const upsweep_histogram& histogram) {
  const int32_t dtype = histogram.count.keys.dtype;
  if (histogram.rule != UPSWEEP_HISTC && histogram.rule != UPSWEEP_HISTOGRAM) return "rule is out of range";
  if (histogram.count.n_bins < 1) return "uniform bins have to be at least one";
  if (!(histogram.first < histogram.last)) return "uniform bins have to begin below their end";
  if (histogram.rule == UPSWEEP_HISTC)
    return dtype == UPSWEEP_FLOAT32 || dtype == UPSWEEP_FLOAT64 ? nullptr : "elements have to be float32 or float64";
  if (dtype == UPSWEEP_INT64 || dtype == UPSWEEP_UINT64) return "elements have to be compared as floats";
  if (!histogram.edges) return "edges have to be given";
  for (const int32_t of : {histogram.edge_dtype, histogram.step_dtype})
    if (of != UPSWEEP_FLOAT32 && of != UPSWEEP_FLOAT64) return "edges and their step have to be float32 or float64";
  return nullptr;
}

}  // namespace

const char* make_range_plan(const upsweep_count& count, const DeviceLimits& limits, CountPlan* result) {
  if (const char* wrong = describe_keys(count, result)) return wrong;
  constexpr int kRangeBlocks = 4;   // of 512 threads
  return plan_range(*result, limits, 512, kRangeBlocks);
}

const char* make_value_range_plan(const upsweep_count& count, const DeviceLimits& limits, CountPlan* result) {
  if (const char* wrong = describe_keys(count, result, UPSWEEP_FLOAT64)) return wrong;
  return plan_range(*result, limits, CountTuning::kThreads, 1);
}

const char* make_histogram_plan(const upsweep_histogram& histogram, const DeviceLimits& limits,
                                HistogramPlan* result) {
  const upsweep_count& count = histogram.count;
  HistogramPlan& plan = *result;
  std::memset(&plan, 0, sizeof plan);
  if (const char* wrong = describe_count(count, &plan.elements, UPSWEEP_FLOAT64)) return wrong;
  if (count.n_bins >= INT32_MAX) return "n_bins is out of range";
  const int32_t dtype = count.keys.dtype;
  const bool uniform = histogram.rule != UPSWEEP_THRESHOLDS;
  if (uniform) {
    if (const char* wrong = check_uniform(histogram)) return wrong;
  } else {
    if (histogram.n_thresholds < 0 || histogram.n_thresholds > INT32_MAX) return "n_thresholds is out of range";
    if (!histogram.thresholds && histogram.n_thresholds) return "thresholds have to be given";
  }
  plan.n_thresholds = uniform ? count.n_bins + 1 : histogram.n_thresholds;
  CountProblem& p = plan.elements.problem;
  p.limit = static_cast<uint64_t>(p.n_bins);   // of bins, not of what a signed element may be
  plan.dtype = dtype;
  plan.has_weights = count.weights.data;
  plan.threshold_bytes = plan.elements.key_bytes < 4 || dtype == UPSWEEP_FLOAT32 ? 4 : 8;
  const int32_t out = count.out.dtype;
  if (!plan.has_weights && out != UPSWEEP_INT64 &&
      ((out != UPSWEEP_FLOAT32 && out != UPSWEEP_FLOAT64) || count.accumulate))
    return "out of a count has to be int64, or float32 or float64 that is not added to";
  const int64_t n = plan.elements.n_launches * p.rows * p.length;
  const auto take = [&](int64_t bytes) {
    const int64_t at = plan.workspace_bytes;
    plan.workspace_bytes += ceil_div(bytes, 256) * 256;
    return at;
  };
  if (uniform) plan.thresholds_at = take(plan.n_thresholds * plan.threshold_bytes);

  CountPlan& elements = plan.elements;
  const int64_t words = (std::min(limits.block_shared, limits.processor_shared - 1024) - 1024) / 4 -
                        plan.n_thresholds * plan.threshold_bytes / 4;
  const int64_t bins = ceil_div(p.n_bins, 32) * 32;
  plan.fused = !plan.has_weights && p.rows == 1 && elements.n_outer == 0 && elements.vectors && p.n_bins && bins <= words;
  // All sums of ones up to here are exact, in any order. Only the kernel of uniform bins clears counts of 4 bytes.
  const int64_t exact = out == UPSWEEP_FLOAT64 ? int64_t(1) << 53 : uniform ? 1 << 24 : -1;
  plan.direct = plan.has_weights || out == UPSWEEP_INT64 || (plan.fused && n <= exact);
  if (!plan.direct) plan.counts_at = take(p.n_bins * 8);
  if (plan.fused) {
    TableShape& table = elements.table;
    table.bins = static_cast<uint32_t>(bins);
    while (table.replicas_log2 < 4 && bins << (table.replicas_log2 + 1) <= words) ++table.replicas_log2;
    table.splits = std::max(splits_of(elements, limits.processors, CountTuning::kThreads),
                            ceil_div(p.length, int64_t(1) << 31));   // a counter has 32 bits
    elements.blocks = std::min(table.splits, int64_t(limits.processors));
    return nullptr;
  }

  upsweep_count inner = count;
  if (plan.has_weights && !flatten(count, &inner.weights))
    return "weights of a histogram have to lie one stride apart";
  inner.n_batch = 0;
  inner.length = n;
  if (!plan.direct) {
    inner.out.dtype = UPSWEEP_INT64;
    inner.out.time_stride = 8;
  }
  inner.keys = {};
  inner.keys.data = const_cast<char*>(p.keys);   // not read by a plan
  inner.keys.dtype = UPSWEEP_INT32;
  inner.keys.time_stride = 4;
  inner.first_outside = nullptr;
  if (const char* wrong = plan.has_weights ? make_sum_plan(inner, limits, &plan.sums)
                                            : make_count_plan(inner, limits, &plan.count))
    return wrong;
  plan.guess_at = take(sizeof(int32_t));
  plan.keys_at = take(n * 4);
  plan.inner_at = take(plan.has_weights ? plan.sums.workspace_bytes : plan.count.workspace_bytes);
  return nullptr;
}

}  // namespace upsweep
