// Counts and sums in more bins than the cache holds.
#pragma once

#include "bincount/tables.hpp"

namespace upsweep {

// One row; keys outside the bins are left out. Memory is had before anything is written.
void count_partitioned(const CountProblem& p, int64_t row, int64_t* counts, int64_t n_bins, bool overwrite,
                       int n_threads);
// Single weights; result_stride: from one bin's number to the next.
template <class Sum>
void sum_partitioned(const CountProblem& p, int64_t row, Sum* sums, int64_t result_stride, int64_t n_bins,
                     bool overwrite, int n_threads);

}  // namespace upsweep
