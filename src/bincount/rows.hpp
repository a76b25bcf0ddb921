// Counts and sums of many rows.
#pragma once

#include "bincount/sums.hpp"

namespace upsweep {

// Rows that are not worth several threads each: workers take whole ones, which are counted straight into the result.
// Keys outside the bins are left out. T: int64_t for counts, else the sums' type.
template <class T>
void count_rows(const CountProblem& p, T* result, int64_t n_bins, bool overwrite, int n_threads);

}  // namespace upsweep
