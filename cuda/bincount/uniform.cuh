// Thresholds of bins of one width, made on the device: nothing is computed on the host or copied for a new range.
//
//   histc      the least x with (x - first) * n / (last - first) >= k, each operation rounded (histogram/linear_threshold.hpp)
//   histogram  np.linspace's edges, k * step + first, each operation rounded in `step_dtype`, then to `edge_dtype`; a
//              threshold is the least key that is at least the edge. The last edge belongs to the last bin.
//
// The caller makes sure that these are numpy's bins (upsweep/_core/bin_thresholds.py). Writes a threshold, and an edge,
// for each bin and one more, and clears the bins. Called by bincount/ranks.cu before a histogram.
#pragma once

#include <cmath>

#include "bincount/problem.hpp"
#include "histogram/linear_threshold.hpp"
#include "upsweep_cuda.h"

namespace upsweep {

// Without contraction to one operation that rounds once.
template <class T>
UPSWEEP_HOST_DEVICE inline T multiply_then_add(T a, T b, T c) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 4) return __fadd_rn(__fmul_rn(a, b), c);
  else return __dadd_rn(__dmul_rn(a, b), c);
#else
  const volatile T product = a * b;
  return product + c;
#endif
}

UPSWEEP_HOST_DEVICE inline float next_above(float x) { return nextafterf(x, INFINITY); }
UPSWEEP_HOST_DEVICE inline double next_above(double x) { return nextafter(x, double(INFINITY)); }

template <class Edge>
UPSWEEP_HOST_DEVICE inline Edge edge_of(const UniformProblem& u, int64_t k) {
  if (k == u.n_bins) return static_cast<Edge>(u.last);
  if (u.step_dtype == UPSWEEP_FLOAT32)
    return static_cast<Edge>(multiply_then_add(static_cast<float>(k), static_cast<float>(u.step),
                                               static_cast<float>(u.first)));
  return static_cast<Edge>(multiply_then_add(static_cast<double>(k), u.step, u.first));
}

template <class K, class Edge>
UPSWEEP_HOST_DEVICE inline K threshold_of_edge(const UniformProblem& u, int64_t k) {
  Edge edge = edge_of<Edge>(u, k);
  static_cast<Edge*>(u.edges)[k] = edge;
  if (k == u.n_bins) edge = next_above(edge);
  const K key = static_cast<K>(edge);
  return static_cast<Edge>(key) < edge ? next_above(key) : key;
}

// Threshold k of the n_bins + 1; writes edge k where the rule has edges.
template <class K>
UPSWEEP_HOST_DEVICE inline K uniform_threshold(const UniformProblem& u, int64_t k) {
  if (u.rule == UPSWEEP_HISTC)
    return linear_threshold(static_cast<K>(u.first), static_cast<K>(u.last), u.n_bins, k);
  return u.edge_dtype == UPSWEEP_FLOAT32 ? threshold_of_edge<K, float>(u, k) : threshold_of_edge<K, double>(u, k);
}

constexpr int kUniformThreads = 128;   // a search takes its time: as many processors as possible share the thresholds

template <class K>
__global__ void __launch_bounds__(kUniformThreads) make_uniform_thresholds(const UniformProblem u) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t k = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; k <= u.n_bins; k += step) {
    static_cast<K*>(u.thresholds)[k] = uniform_threshold<K>(u, k);
    if (u.counts && k < u.n_bins) {
      char* const count = u.counts + k * u.count_stride;
      if (u.count_bytes == 4) *reinterpret_cast<uint32_t*>(count) = 0;
      else *reinterpret_cast<uint64_t*>(count) = 0;
    }
  }
}

}  // namespace upsweep
