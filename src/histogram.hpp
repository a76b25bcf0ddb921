// Counting numbers in bins, or summing their weights. A bin is a rank among thresholds, whatever the rule that made them:
//
//   slot(x) = how many of the thresholds E[0] <= ... <= E[m-1] are at most x
//
// Slot 0 is below the first edge, slot k holds bin k-1, slot m is above the last edge where E[m-1] is that; a NaN is in
// slot 0. Each rule of the public functions (numpy's for uniform bins with its roundings, given edges, torch's) puts an
// element into a bin that never falls as the element grows, so it has such thresholds: the least numbers that reach each
// bin. upsweep/_thresholds.py finds them with numpy's own arithmetic; here nothing is rounded that decides.
//
// Thresholds have the type of keys, to which elements are converted without loss before they are compared:
//
//   float     bool, integers of 8 and 16 bits, float16, bfloat16, float32
//   double    integers of 32 bits, float64
//   int64_t   int64
//   uint64_t  uint64
#pragma once

#include <cstdint>

#include "gather.hpp"

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
