// Reductions over pairs: a_i = reduce over the columns j of row i of F(x_i, y_j, p), block by block of rows.
//
// F comes as a compiled tile (python/upsweep/_compiler/llvm/pairs/kernel.py), which takes the states of a vector of rows, or of one
// row, past a run of columns. Here are packing, the plan of tasks, threads, and what becomes of the states. A row's number
// per pair is read from cache: memory is touched once to pack it, and once to write the result.
//
// Which columns a task takes follows from sizes and ranges alone, never from the number of threads: so the bits do not.
#pragma once

#include <cstdint>
#include <vector>

namespace upsweep {

enum ReductionKind : int32_t { kPairSum, kPairLogSumExp, kPairSoftmax, kPairBest, kPairSmallest };

using Tile = void (*)(const void* rows, int64_t rows_stride, const void* columns, int64_t columns_stride,
                      const void* params, int64_t n_columns, int64_t first, void* state, void* workspace);

// Gives packed columns the numbers that depend on nothing but the column (python/upsweep/_compiler/llvm/pairs/column_values.py).
using Prepare = void (*)(void* columns, int64_t columns_stride, const void* params, int64_t n_columns);

constexpr int kMostBatchDims = 32;

// One variable of the formula, and its place in the packed record.
struct PairOperand {
  const char* data = nullptr;
  int64_t stride = 0, feature_stride = 0;        // bytes
  int64_t batch_strides[kMostBatchDims] = {};
  int64_t dim = 0, offset = 0;                   // numbers
};

// What a compiled reduction is; the same for every call.
struct PairKernel {
  Tile rows_tile = nullptr, columns_tile = nullptr;   // lanes are rows; lanes are columns
  Prepare prepare_records = nullptr, prepare_lanes = nullptr;
  int32_t kind = kPairSum, bits = 32, accumulator_bits = 64, lanes = 1;
  int32_t largest = 0, indexed = 0, n_sums = 0;       // of Best; of sums, how many are kept
  int32_t inserts = 0;                                // of Smallest: whether lanes of rows hold lists in order
  int64_t dim = 1, k = 1;                             // components of the formula; of Smallest
  int64_t row_width = 0, column_width = 0, param_width = 0;   // numbers of packed records
  int64_t workspace = 0;                              // bytes that a tile receives
  int64_t n_prepared = 0;                             // more numbers of each column, computed from those
  double cost = 20;                                   // instructions a vector of pairs takes, roughly
};

// Rows [begin, end) reduce over the columns of intervals [first, last).
struct PairBlock {
  int64_t begin, end, first, last;
};
constexpr int64_t kPieceUnit = 1 << 12;   // pieces are whole blocks of columns, of any kernel
struct PairInterval {
  int64_t begin, end;
};

// A run of columns for a vector of rows, or for a row: from `skip` columns into interval `first` on, `n_columns` of them.
struct PairTask {
  int64_t row, first, skip, n_columns;
  int64_t partial;   // where its state is kept until all of the row are there; -1: the result is written at once
  int64_t least;     // the interval of the row's smallest index
  int32_t n_rows;
};

// The tasks of one set of ranges, for one kernel's lanes.
struct PairPlan {
  std::vector<PairInterval> intervals;
  std::vector<PairTask> tasks;
  std::vector<int64_t> groups;     // tasks [groups[g], groups[g + 1]) are claimed together
  std::vector<int64_t> gathers;    // first tasks of those that are combined, with n_partials[...] after each other
  std::vector<int64_t> n_pieces;
  int64_t n_partials = 0;
  int32_t lanes_are_columns = 0, covers = 0;   // covers: every row gets a result
  double cost = 0;
};

struct PairProblem {
  const PairKernel* kernel = nullptr;
  std::vector<PairOperand> rows, columns, params;
  int64_t n_rows = 0, n_columns = 0;
  int32_t n_batch_dims = 0;
  int64_t batch[kMostBatchDims] = {};
  std::vector<const PairPlan*> plans;   // one for all batch entries, or one for each
  void* values = nullptr;               // (batch, rows, ...) of the kernel's type, in C order; null: not wanted
  int64_t* indices = nullptr;
  int64_t n_threads = 1;
};

void make_dense_plan(const PairKernel& kernel, int64_t n_rows, int64_t n_columns, PairPlan& plan);
// blocks (n_blocks, 2), slices (n_blocks), columns (n, 2), as in a triple of ranges.
void make_plan(const PairKernel& kernel, int64_t n_rows, int64_t n_columns, const int64_t* blocks, const int64_t* slices,
               const int64_t* columns, int64_t n_blocks, PairPlan& plan);
void reduce_pairs(const PairProblem& problem);

}  // namespace upsweep
