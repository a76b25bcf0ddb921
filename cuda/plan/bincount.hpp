// From a count to the kernels that run it: axes merged, regime chosen. Pure host code.
#pragma once

#include "bincount/problem.hpp"
#include "upsweep_cuda.h"

namespace upsweep {

enum CountRegime : int32_t { kCountNothing, kCountTables, kCountGlobal, kCountParts, kCountRows };

// What a device has. Zeros: not looked at.
struct DeviceLimits {
  int processors;
  int block_shared, processor_shared;   // bytes of shared memory that a block may ask for; that a processor has
};

struct CountPlan {
  CountProblem problem;
  CountRegime regime;
  int32_t key_bytes;
  bool is_signed;
  bool vectors;                         // keys are contiguous
  TableShape table;
  int64_t n_parts;
  bool chunked;                         // parts in chunks, which one pass writes
  int64_t scatter_warps, part_blocks;
  int32_t blocks_per_processor;         // with a table
  int64_t blocks;                       // of the launch
  int64_t splits;                       // of a row, without tables
  int64_t workspace_bytes;
  // What one launch does not take: axes that are looped over.
  int32_t n_outer;
  int64_t n_launches;
  int64_t outer_shape[UPSWEEP_MAX_DIMS];
  int64_t outer_strides[3][UPSWEEP_MAX_DIMS];   // of keys, out and weights
  int64_t weight_strides[kDims];
};

enum SumRegime : int32_t { kSumNothing, kSumOwnTables, kSumReplicas, kSumGlobal, kSumParts };

// Sums of weights; one column of them a launch.
struct SumPlan {
  CountPlan count;                      // of the keys; its regime is not used
  SumProblem problem;
  SumRegime regime;
  int32_t accumulator;                  // upsweep_accumulator: real or integer
  SumShape shape;
  int32_t warps;                        // of a block
  int64_t blocks;
  int64_t sums_bytes;                   // of the workspace before the chunks of parts
  int64_t n_columns, weights_column_stride, out_column_stride;
  int64_t workspace_bytes;
};

// A histogram: its elements' bins found and counted in one kernel, or found first and then counted as keys.
struct HistogramPlan {
  CountPlan elements;
  int32_t dtype;
  int32_t threshold_bytes;
  bool fused;
  bool has_weights;
  CountPlan count;                      // of the bins as keys, where they are found first
  SumPlan sums;
  int64_t n_thresholds;
  bool direct;                          // counts are added to `out`; else to int64, which are converted
  // In the workspace: thresholds that the device computes, int64 counts, whether the guess fails, bins as
  // keys, the workspace of their count.
  int64_t thresholds_at, counts_at, guess_at, keys_at, inner_at;
  int64_t workspace_bytes;
};

const char* make_histogram_plan(const upsweep_histogram& histogram, const DeviceLimits& limits, HistogramPlan* plan);
// Least and largest element, of `keys` alone.
const char* make_value_range_plan(const upsweep_count& count, const DeviceLimits& limits, CountPlan* plan);

// nullptr, or what is wrong with the request.
const char* make_sum_plan(const upsweep_count& count, const DeviceLimits& limits, SumPlan* plan);
const char* make_count_plan(const upsweep_count& count, const DeviceLimits& limits, CountPlan* plan);
// Of `keys` alone.
const char* make_range_plan(const upsweep_count& count, const DeviceLimits& limits, CountPlan* plan);

}  // namespace upsweep
