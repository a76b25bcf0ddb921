// Counting integer keys along an axis:  result[row, key, :] += 1, or += weights[row, t, :].
//
// A call has two halves, so that bad keys are known before anything is written: `scan_keys` finds out which bins there
// are, and counts on the way what fits private tables; `write` adds that, or counts the rest, into the result.
#pragma once

#include <cstdint>
#include <memory>

#include "common/gather.hpp"

namespace upsweep {

enum { kMaxRowDims = 64 };

enum Summand : int32_t {
  kOnes,       // counts, in int64
  kReals,      // weights in float64; a complex one is two of them
  kIntegers,   // weights modulo 2^64
};

struct CountProblem {
  const char* keys = nullptr;
  int64_t key_stride = 0;             // bytes, as all strides
  int32_t key_dtype = kInt64;         // an integer; bool counts as kUInt8
  int32_t key_swapped = 0;            // bytes in the other order
  int32_t key_shift = 0;              // low bits that all keys share: bins are counted without them
  int64_t n = 0;                      // keys of a row

  int32_t summand = kOnes;
  const char* weights = nullptr;
  int64_t weight_stride = 0;          // from key to key
  int64_t sum_stride = 0;             // from one of a key's weights to the next
  int64_t n_sums = 1;                 // weights of a key
  int32_t weight_dtype = kDouble;
  int32_t weight_swapped = 0;

  int64_t n_rows = 1;                 // the product of dims
  int32_t n_dims = 0;
  int64_t dims[kMaxRowDims], key_row_strides[kMaxRowDims], weight_row_strides[kMaxRowDims];

  int64_t n_bins = -1;                // of a row; -1: of the largest key, and at least n_bins_least
  int64_t n_bins_least = 0;
  int32_t drop = 0;                   // leave out what is outside the bins
  int32_t n_threads = 1;
};

struct BinInfo {
  int64_t n_bins = 0;                 // INT64_MAX: too many to be counted in int64
  int32_t outside = 0;                // there are keys outside the bins, and they are not to be dropped
  int32_t shift = 0;                  // keys differ above so many low bits,
  int64_t shared = 0;                 // which are these
};

struct Tables;

class Counter {
 public:
  explicit Counter(const CountProblem& problem);
  ~Counter();
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  BinInfo scan_keys();
  // result: (n_rows, n_bins, n_sums) contiguous, int64, float64 (complex: pairs) or uint64 as the summand says.
  // overwrite: it may hold anything before; else it is added to. Without memory for what it takes it throws before
  // it writes.
  void write(void* result, bool overwrite);

 private:
  const CountProblem problem;
  BinInfo info;
  std::unique_ptr<Tables> tables;     // what `look` has counted
};

// The first key, in C order of (rows, n), that is negative or n_bins and more, -1: none; and how many there are.
int64_t first_outside(const CountProblem& problem, int64_t n_bins);
int64_t count_outside(const CountProblem& problem, int64_t n_bins);

// numpy's own case: one row of few native keys contiguous. The number of bins is -1 where one is negative.
int64_t bins_of_few(const char* keys, int32_t dtype, int64_t n);
void count_few(const char* keys, int32_t dtype, int64_t n, int64_t* counts, int64_t n_bins);
void sum_few(const char* keys, int32_t dtype, int64_t n, const double* weights, double* sums, int64_t n_bins);

}  // namespace upsweep
