// Counting integer keys:  counts[key] += 1, or += weight.
#pragma once

#include <cstdint>

namespace upsweep {

enum KeyType : int32_t { kKeyInt8, kKeyUInt8, kKeyInt16, kKeyUInt16, kKeyInt32, kKeyUInt32, kKeyInt64, kKeyUInt64 };

struct CountProblem {
  const char* keys = nullptr;
  int64_t stride = 0;                 // bytes
  int64_t n = 0;
  int32_t key_type = kKeyInt64;
  int32_t n_threads = 1;
  const double* weights = nullptr;    // contiguous; nullptr: count
  int64_t n_bins = 0;
  int64_t* counts = nullptr;          // added to
  double* sums = nullptr;
};

struct KeyRange {
  int64_t min;                        // of the keys as signed numbers; meaningless without keys
  uint64_t max;                       // of the keys that are not negative
  int64_t first_negative;             // its position, -1: none
};

KeyRange key_range(const CountProblem& problem);
// Returns the number of keys that were left out.
int64_t run_count(const CountProblem& problem);

}  // namespace upsweep
