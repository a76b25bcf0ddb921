// Linear filters with constant coefficients, of any order, each line by itself:
//
//   y[t] = b[0] x[t] + ... + b[order] x[t-order] - a[1] y[t-1] - ... - a[order] y[t-order]
//
// Sums run from the oldest input to the latest, and then over the outputs. Terms whose coefficient is 0 are left out.
#pragma once

#include <cstdint>

#include "common/gather.hpp"

namespace upsweep {

// What a filter is computed in.
enum FilterType : int32_t { kFilterReal, kFilterComplex, kFilterLong, kFilterLongComplex };

struct FilterProblem {
  int64_t outer, length, inner;       // of x and y, filtered along the second axis
  const char* x;
  int64_t x_strides[3];               // bytes
  int32_t type;
  // Of kFilterReal and kFilterComplex: the types of x and y, which are converted. Else both are of the type computed in.
  int32_t x_dtype, x_swapped, y_dtype;
  char* y;                            // this and the states in C order
  // Transposed direct form II, (outer, order, inner); nullptr: zeros, not asked for. As b and a of the type computed in.
  const void* initial;
  void* final_state;
  int64_t order;
  const void *b, *a;                  // order + 1 coefficients each; a[0] is 1
  int32_t n_threads;
};

void run_filter(const FilterProblem& problem);

}  // namespace upsweep
