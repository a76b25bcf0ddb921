// Tiles of windows along lines (scan/window_lines.cuh) in shared memory: their layout, how they are fetched, how results
// are stored.
//
// A tile lies behind the steps before it that its windows reach, in scan order, from a vector's boundary of x on.
#pragma once

#include "common/staged_line.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

constexpr int kWindowPowers = 6;       // of gamma, in shared memory

// A tile and the steps before it in shared memory: elements as they are in memory but in scan order, and aggregates.
template <class T>
struct WindowTile {
  static constexpr int kRun = WindowShape::kRun, kBlock = WindowShape::kBlock, kUnit = WindowShape::kUnit;
  static constexpr int kPer = 16 / sizeof(T), kRunVectors = kRun / kPer, kUnitVectors = kUnit / kPer;
  using Local = decltype(local_of(T()));

  uint4* vectors;
  double* runs;                        // aggregates
  double* tails;                       // of the last `shape.tail` steps of runs
  double* before;                      // of the tile's own runs: of what precedes them in all their windows
  double* blocks;                      // aggregates
  double *powers, *sums;               // of gamma; of warps
  uint4* results;                      // of this warp

  // A slot after each eight is empty, so that lanes that read runs, or blocks of runs, do so from different banks.
  static __host__ __device__ constexpr uint32_t slot(uint32_t i) { return i + i / 8; }
  static __host__ __device__ constexpr uint32_t vector_slots(uint32_t elements) { return slot(elements / kPer) + 1; }
  static int bytes(const WindowShape& shape, int warps) {
    const int doubles = 2 * slot(shape.elements / kRun) + slot(shape.units * kUnit / kRun) + shape.elements / kBlock;
    return 16 * (vector_slots(shape.elements) + warps * vector_slots(kUnit)) + 8 * (doubles + kWindowPowers + warps);
  }

  __device__ WindowTile(const WindowShape& shape) : vectors(staging) {
    const int warps = blockDim.x / 32;
    uint4* const all_results = vectors + vector_slots(shape.elements);
    results = all_results + threadIdx.x / 32 * vector_slots(kUnit);
    runs = reinterpret_cast<double*>(all_results + warps * vector_slots(kUnit));
    tails = runs + slot(shape.elements / kRun);
    before = tails + slot(shape.elements / kRun);
    blocks = before + slot(shape.units * kUnit / kRun);
    powers = blocks + shape.elements / kBlock;
    sums = powers + kWindowPowers;
  }

  // A run that begins at a vector.
  template <class Number>
  static __device__ void read(const uint4* from, Number (&x)[kRun]) {
    union { uint4 vector[kRunVectors]; T part[kRun]; } u;
#pragma unroll
    for (int j = 0; j < kRunVectors; ++j) u.vector[j] = from[j];
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = local_of(u.part[i]);
  }
  // A run that begins `ahead` bytes, the same for all lanes, after a vector, which is the `index`-th of eight.
  template <class Number>
  static __device__ void read_unaligned(const uint4* from, uint32_t index, uint32_t ahead, Number (&x)[kRun]) {
    constexpr int kWords = 4 * kRunVectors;
    union { uint4 vector[kRunVectors + 1]; uint32_t word[kWords + 4]; T part[kRun]; } u;
#pragma unroll
    for (int j = 0; j < kRunVectors; ++j) u.vector[j] = from[j + (index + j) / 8];
    if (ahead) {
      u.vector[kRunVectors] = from[kRunVectors + (index + kRunVectors) / 8];
      if (ahead & 8)
#pragma unroll
        for (int k = 0; k < kWords + 2; ++k) u.word[k] = u.word[k + 2];
      if (sizeof(T) <= 4 && ahead & 4)
#pragma unroll
        for (int k = 0; k < kWords + 1; ++k) u.word[k] = u.word[k + 1];
      if (sizeof(T) == 2 && ahead & 2)
#pragma unroll
        for (int k = 0; k < kWords; ++k) u.word[k] = __funnelshift_l(u.word[k], u.word[k + 1], 16);
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = local_of(u.part[i]);
  }
};

// A line in memory, from the tile's first position on. Positions count in scan order; those of a line begin where a vector
// of x does, up to a vector early.
template <class T>
struct WindowView {
  static constexpr int kPer = 16 / sizeof(T);
  T* data;                             // at position 0
  int first, end;                      // of the line: positions
  bool reversed;

  __device__ WindowView(const Problem& p, const LineIndex& line, const View& view, int begin, int phase) {
    const int64_t t = begin - phase;
    reversed = view.time_stride < 0;
    data = reinterpret_cast<T*>(line.in(view)) + (reversed ? -t : t);
    first = static_cast<int>(max(-t, -int64_t(kMostSteps)));
    end = static_cast<int>(min(p.length - t, int64_t(kMostSteps)));
  }
  static __device__ int phase_of(const LineIndex& line, const View& view) {
    const int offset = reinterpret_cast<uintptr_t>(line.in(view)) / sizeof(T) % kPer;
    return view.time_stride < 0 ? kPer - 1 - offset : offset;
  }
  __device__ bool has_vector(int position) const { return position >= first && position + kPer <= end; }
  __device__ uint4* vector(int position) const {
    return reinterpret_cast<uint4*>(reversed ? data - (position + kPer - 1) : data + position);
  }
  __device__ T* element(int position) const { return data + (reversed ? -position : position); }
  // In scan order if it is in that of memory, and back.
  __device__ uint4 turned(uint4 vector) const {
    if (!reversed) return vector;
    union { uint4 word; T part[kPer]; } from, to;
    from.word = vector;
#pragma unroll
    for (int e = 0; e < kPer; ++e) to.part[e] = from.part[kPer - 1 - e];
    return to.word;
  }
};

// From a position on to `count` elements of shared memory, whole vectors; elements outside of the line add nothing.
template <class T>
__device__ inline void fetch_steps(const WindowView<T>& x, int position, int count, uint4* to) {
  using Tile = WindowTile<T>;
  constexpr int kPer = Tile::kPer;
  const int n = count / kPer, stride = blockDim.x;
  const int first = min(max(x.first - position + kPer - 1, 0) / kPer, n);
  const int end = max(min(max(x.end - position, 0) / kPer, n), first);
  int v = first + threadIdx.x;
  uint4* slot = to + Tile::slot(v);
  const uint4* from = x.vector(position + v * kPer);
#pragma unroll 4
  for (; v < end; v += stride) {
    copy_async_16(slot, from);
    slot += stride + stride / 8;
    from += x.reversed ? -stride : stride;
  }
  commit_copies();
  if (first > 0 || end < n)
#pragma unroll 1
    for (v = threadIdx.x; v < n; v += stride) {
      if (v >= first && v < end) continue;
      const int at = position + v * kPer;
      union { uint4 word; T part[kPer]; } u;
#pragma unroll
      for (int e = 0; e < kPer; ++e)
        u.part[e] = at + e >= x.first && at + e < x.end ? *x.element(at + e) : from_double<T>(-0.0);
      to[Tile::slot(v)] = u.word;
    }
  if (!x.reversed) return;
  wait_for_copies<0>();
#pragma unroll 1
  for (v = first + threadIdx.x; v < end; v += stride) to[Tile::slot(v)] = x.turned(to[Tile::slot(v)]);
}

// A warp's unit from where its lanes have left the results.
template <class T>
__device__ inline void store_unit(const WindowTile<T>& tile, const WindowView<T>& out, bool aligned, int position) {
  using Tile = WindowTile<T>;
  constexpr int kPer = Tile::kPer, kStores = (Tile::kUnitVectors + 31) / 32;
  const uint32_t lane = threadIdx.x % 32;
  const uint4* const from = tile.results + Tile::slot(lane);
  if (!aligned || position < out.first || position + Tile::kUnit > out.end) {
#pragma unroll 1
    for (int i = lane; i < Tile::kUnit; i += 32)
      if (position + i >= out.first && position + i < out.end)
        *out.element(position + i) = reinterpret_cast<const T*>(&tile.results[Tile::slot(i / kPer)])[i % kPer];
  } else if (out.reversed) {
#pragma unroll
    for (int k = 0; k < kStores; ++k)
      __stcs(out.vector(position + (k * 32 + lane) * kPer), out.turned(from[Tile::slot(k * 32)]));
  } else {
    uint4* const to = reinterpret_cast<uint4*>(out.data + position) + lane;
#pragma unroll
    for (int k = 0; k < kStores; ++k) __stcs(to + k * 32, from[Tile::slot(k * 32)]);
  }
}

// Results that replace x are computed from a copy, each line's elements in scan order.
template <class T>
void take_copy(Problem& p, char* copy) {
  p.x.data = copy;
  p.x.time_stride = sizeof(T);
  int64_t stride = p.length * sizeof(T);
  for (int dim = p.n_dims - 1; dim >= 0; stride *= p.shape[dim--]) p.x.strides[dim] = stride;
}
template <class T>
__global__ void __launch_bounds__(WindowTuning::kThreads) copy_window_lines(const __grid_constant__ Problem p, T* to) {
  const int64_t n = p.lines * p.length, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t line = i / p.length, t = i - line * p.length;
    to[i] = *reinterpret_cast<const T*>(LineIndex(p, line).in(p.x) + t * p.x.time_stride);
  }
}

}  // namespace upsweep
