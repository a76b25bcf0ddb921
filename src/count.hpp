// Counting integer keys:  counts[key] += 1, or += weight.
#pragma once

#include <cstdint>

#include "gather.hpp"

namespace upsweep {

struct CountProblem {
  const char* keys = nullptr;
  int64_t stride = 0;                 // bytes, as all strides
  int64_t n = 0;
  int32_t key_dtype = kInt64;         // an integer; bool counts as kUInt8
  int32_t key_swapped = 0;            // bytes in the other order
  int32_t n_threads = 1;

  const char* weights = nullptr;      // any real type; nullptr: count
  int64_t weight_stride = 0;
  int32_t weight_dtype = kDouble;
  int32_t weight_swapped = 0;

  int64_t n_bins = 0;
  int32_t overwrite = 0;              // zero the result first; it is untouched until all memory has been had
  int64_t* counts = nullptr;          // added to; keys outside the bins are left out
  double* sums = nullptr;
};

struct KeyRange {
  uint64_t max;                       // of the keys that are not negative
  int32_t any;                        // whether there are such keys
  int64_t first_negative;             // its position, -1: none
};

KeyRange key_range(const CountProblem& problem);
void run_count(const CountProblem& problem);

}  // namespace upsweep
