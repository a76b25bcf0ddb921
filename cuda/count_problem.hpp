// A count as the kernels see it: axes merged, sizes checked, passed to a launch by value.
#pragma once

#include <cstdint>

#include "scan_problem.hpp"

namespace upsweep {

// Rows of keys and, for each, a line of bins. Strides are in bytes.
struct CountProblem {
  const char* keys;
  char* out;                           // int64
  unsigned long long* dropped;         // nullptr: not asked for
  unsigned long long* first;
  int64_t length, rows, n_bins;
  int64_t first_position;              // of this launch's first key among all
  // Keys below it are counted: n_bins, or how many values a key of a signed dtype has from 0 on. Read as unsigned, a
  // negative key lies beyond it.
  uint64_t limit;
  int64_t key_stride, bin_stride;
  int32_t is_bool;                     // whatever is not 0 is 1
  int32_t n_dims;
  int64_t shape[kDims];
  int64_t key_strides[kDims], out_strides[kDims];
};

// How a block's table in shared memory lies.
struct TableShape {
  uint32_t bins;                       // of one share; a multiple of 32
  int32_t replicas_log2;               // of each counter, for lanes that are so far apart
  int32_t shares;                      // the bins are cut into so many; each is counted by blocks of its own
  int64_t splits;                      // blocks that share a row
};

}  // namespace upsweep
