// Counting numbers in bins, or summing their weights. A bin is a rank among thresholds, whatever rule made them:
//
//   slot(x) = how many of the thresholds E[0] <= ... <= E[m-1] are at most x
//
// Slot 0 is below the first edge, slot k holds bin k-1, slot m is above the last edge where E[m-1] is that; a NaN is in
// slot 0. Each rule of the public functions puts an element into a bin that never falls as the element grows, so it has
// such thresholds: the least numbers that reach each bin. upsweep/_core/bin_thresholds.py finds them; nothing that decides is rounded
// after that. The rules, of n bins from `first` to `last`:
//
//   uniform   numpy's. B is the dtype of the edges: result_type(first, last, x), float64 for integers, where Python's
//             numbers promote weakly. The width is last - first in their own type, F the type of B / width.
//               place = (B(x) - B(first)) [in B] / width [in F] * n [in F], cut to an integer; n is n - 1;
//               less one if B(x) < edges[place]; then one more if B(x) >= edges[place + 1], unless in the last bin.
//             Elements outside of [first, last], compared in result_type(x, first) and integers exactly, are left out.
//   edges     x is compared in C = result_type(x, edges): at least the lower edge, below the upper; the last bin has
//             its upper edge.
//   histc     torch's: (x - min) * n / (max - min), each operation rounded to x's dtype, cut to an integer; from n on
//             n - 1. For integers the exact quotient.
//
// Thresholds have the type of keys, to which elements are converted without loss before they are compared:
//
//   float     bool, integers of 8 and 16 bits, float16, bfloat16, float32
//   double    integers of 32 bits, float64
//   int64_t   int64
//   uint64_t  uint64
#pragma once

#include <cstdint>

#include "common/gather.hpp"

namespace upsweep {

constexpr int kMaxAxes = 64;   // numpy's own limit

struct HistogramProblem {
  int32_t dtype = kDouble;
  int32_t swapped = 0;                // bytes in the other order
  int32_t n_threads = 1;
  int32_t n_axes = 0;                 // of x and weights alike, slowest first
  int64_t n = 1;                      // elements: the product of the shape
  int64_t shape[kMaxAxes];
  int64_t strides[kMaxAxes];          // bytes, as all strides
  const char* x = nullptr;

  const char* weights = nullptr;      // real numbers; nullptr: count
  int64_t weight_strides[kMaxAxes];
  int32_t weight_dtype = kDouble;
  int32_t weight_swapped = 0;

  const void* thresholds = nullptr;   // of the keys' type, sorted, no NaN
  int64_t n_thresholds = 0;           // m, at least 1
  int64_t* counts = nullptr;          // m + 1 slots, added to; or the sums of weights that are integers, modulo 2^64
  double* sums = nullptr;             // or those of others
};

// The key that an element of this dtype becomes: kFloat, kDouble, kInt64 or kUInt64.
int32_t key_type(int32_t dtype);

struct Extremes {
  double low, high;                   // of keys of float or double; +inf, -inf where all are NaN
  int64_t low_signed, high_signed;    // of int64_t
  uint64_t low_unsigned, high_unsigned;
  int32_t any_nan;
};

Extremes find_extremes(const HistogramProblem& problem);   // at least one element
void run_histogram(const HistogramProblem& problem);

// The least numbers for which (x - low) * n_bins / (high - low), cut to an integer, reaches 0 to n_bins - 1, each
// operation rounded; then the next one above high. For low < high whose difference is finite.
void find_linear_thresholds(float low, float high, int64_t n_bins, float* thresholds);
void find_linear_thresholds(double low, double high, int64_t n_bins, double* thresholds);

}  // namespace upsweep
