// Histograms: the bin of an element is its rank among thresholds, in a type that holds the element exactly.
//
//   slot(x) = how many k in [0, m) there are with x >= E[k]       (E does not decrease; NaN: 0)
//   slot s in 1 .. n_bins counts in bin s - 1; slot 0 and slots beyond are left out
//
// E is such that this is numpy's bin, or torch's, to the last bit: the caller computes it
// (python/upsweep/_core/bin_thresholds.py) or, for bins of one width, the device (bincount/uniform.cuh).
// Where E is nearly even, a guess
//
//   r(x) = min(max(int((x - origin) * scale + 0.5), 0), m - 1)
//
// finds the slot with one look: slot = r + (x >= E[r]). r does not decrease, so that r(E[k]) == k for all k proves
// that the slot is r or r + 1 for all x. The device looks whether it is so; if not, E is searched.
//
// Moves the bytes of the elements: they are counted in tables as keys are (bincount/tables.cuh). Where the bins are more
// than tables hold, or have weights, `rank_keys` writes each element's bin as a key of 4 bytes, for the count of
// keys.
#pragma once

#include <type_traits>

#include "bincount/tables.cuh"
#include "common/elements.cuh"

namespace upsweep {

// Bits of an element, and the type K that it is compared in.
template <class Bits, class K_, bool kIsSigned = false>
struct IntegerElement {
  using Raw = Bits;
  using K = K_;
  static __device__ K value(KeyWord<Bits> bits) {
    if constexpr (kIsSigned) return static_cast<K>(static_cast<typename std::make_signed<Bits>::type>(bits));
    else return static_cast<K>(bits);
  }
};
struct BoolElement {
  using Raw = uint8_t;
  using K = float;
  static __device__ float value(uint32_t bits) { return bits ? 1.0f : 0.0f; }
};
struct Float16Element {
  using Raw = uint16_t;
  using K = float;
  static __device__ float value(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }
};
struct BFloat16Element {
  using Raw = uint16_t;
  using K = float;
  static __device__ float value(uint32_t bits) { return __uint_as_float(bits << 16); }
};
struct Float32Element {
  using Raw = uint32_t;
  using K = float;
  static __device__ float value(uint32_t bits) { return __uint_as_float(bits); }
};
struct Float64Element {
  using Raw = uint64_t;
  using K = double;
  static __device__ double value(uint64_t bits) { return __longlong_as_double(static_cast<long long>(bits)); }
};

// The guess, in float32 for elements that are compared in it; every operation is monotone.
__device__ inline int estimate(float x, float origin, float scale, float last) {
  return static_cast<int>(fminf(fmaxf(fmaf(x - origin, scale, 0.5f), 0.0f), last));
}
__device__ inline int estimate(double x, double origin, double scale, double last) {
  return static_cast<int>(fmin(fmax(fma(x - origin, scale, 0.5), 0.0), last));
}
template <class K>
using GuessOf = typename std::conditional<std::is_same<K, float>::value, float, double>::type;

template <class K>
struct Ranks {
  using Real = GuessOf<K>;
  const K* thresholds;
  int n;
  bool guessed;
  Real origin, scale, last;
  __device__ Ranks(const RankProblem& p, const K* thresholds_)
      : thresholds(thresholds_), n(static_cast<int>(p.n_thresholds)), guessed(n > 0 && p.guess_fails && *p.guess_fails == 0),
        origin(static_cast<Real>(p.origin)), scale(static_cast<Real>(p.scale)), last(static_cast<Real>(n - 1)) {}
  __device__ int estimate_of(K x) const { return estimate(static_cast<Real>(x), origin, scale, last); }
  __device__ int slot(K x) const {
    if (guessed) {
      const int r = estimate_of(x);
      return r + (x >= thresholds[r]);
    }
    int below = 0;   // this many are known to be <= x
    for (int size = n; size > 0;) {
      const int half = (size + 1) / 2;
      if (x >= thresholds[below + half - 1]) below += half;
      size -= half;
    }
    return below;
  }
};

// p.guess_fails: how often the guess of a threshold is not its own number.
template <class K>
__global__ void __launch_bounds__(kTableThreads) check_guess(const RankProblem p) {
  const K* const thresholds = static_cast<const K*>(p.thresholds);
  Ranks<K> ranks(p, thresholds);
  const int step = gridDim.x * blockDim.x;
  for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < ranks.n; k += step)
    if (ranks.estimate_of(thresholds[k]) != k) atomicAdd(p.guess_fails, 1);
}

// Contiguous elements. The thresholds come after the table in shared memory; each block checks the guess by them.
template <class Element>
__global__ void __launch_bounds__(kTableThreads, 1) count_ranks(const CountProblem p, const TableShape shape,
                                                                const RankProblem r) {
  using K = typename Element::K;
  extern __shared__ uint4 table_memory[];
  uint32_t* const table = reinterpret_cast<uint32_t*>(table_memory);
  const TableSlots<false> slots(table, shape.replicas_log2, blockIdx.x);
  const uint32_t words = shape.bins << slots.replicas_log2;
  K* const thresholds = reinterpret_cast<K*>(table + words);
  Ranks<K> ranks(r, thresholds);
  bool fails = ranks.n == 0;
  for (int k = threadIdx.x; k < ranks.n; k += blockDim.x) {
    const K threshold = static_cast<const K*>(r.thresholds)[k];
    thresholds[k] = threshold;
    fails |= ranks.estimate_of(threshold) != k;
  }
  ranks.guessed = !__syncthreads_or(fails);
  clear_table(table, words);
  const uint32_t n_bins = static_cast<uint32_t>(p.n_bins);
  // A block has a few splits where they would otherwise overflow its counters; it counts them one after the other.
  unsigned long long counted = 0;
  for (int64_t split = blockIdx.x; split < shape.splits; split += gridDim.x) {
    for_each_key<typename Element::Raw, true, 4, true>(
        p.keys, p.key_stride, p.length, split, shape.splits,
        [&](KeyWord<typename Element::Raw> raw, bool valid, int64_t) {
          const uint32_t bin = static_cast<uint32_t>(ranks.slot(Element::value(raw)) - 1);
          slots.increment(bin, valid && bin < n_bins);
        });
    __syncthreads();
    const uint64_t turn = static_cast<uint64_t>(split);
    if (r.out_dtype == UPSWEEP_FLOAT32)
      counted += add_table<float>(p, table, slots, shape.bins, p.out, 0, turn, false);
    else if (r.out_dtype == UPSWEEP_FLOAT64)
      counted += add_table<double>(p, table, slots, shape.bins, p.out, 0, turn, false);
    else counted += add_table<unsigned long long>(p, table, slots, shape.bins, p.out, 0, turn, false);
    __syncthreads();
    if (split + gridDim.x < shape.splits) clear_table(table, words);
  }
  add_dropped(p, counted);
}

// The bin of each element, in C order; -1: left out.
template <class Element>
__global__ void __launch_bounds__(kTableThreads) rank_keys(const CountProblem p, const RankProblem r, int32_t* bins) {
  using K = typename Element::K;
  const Ranks<K> ranks(r, static_cast<const K*>(r.thresholds));
  const int64_t n = p.rows * p.length, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t row = i / p.length;
    const char* const at = p.keys + row_offset(p, row, p.key_strides) + (i - row * p.length) * p.key_stride;
    const int64_t slot = ranks.slot(Element::value(*reinterpret_cast<const typename Element::Raw*>(at)));
    bins[p.first_position + i] = slot <= p.n_bins ? static_cast<int32_t>(slot - 1) : -1;
  }
}

template <class Out>
__global__ void __launch_bounds__(kTableThreads) convert_counts(const int64_t* counts, int64_t n, char* out,
                                                                int64_t stride) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t k = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; k < n; k += step)
    *reinterpret_cast<Out*>(out + k * stride) = static_cast<Out>(counts[k]);
}

// ---- the least and the largest element ----------------------------------------------------------------------------

// As 64 bits that are ordered as signed integers: floats as float64, uint64 less 2^63.
__device__ inline long long ordered(double v) {
  const long long bits = __double_as_longlong(v);
  return bits ^ (bits >> 63 & 0x7fffffffffffffffll);
}
__device__ inline long long ordered(int64_t v) { return v; }
__device__ inline long long ordered(uint64_t v) { return static_cast<long long>(v ^ 1ull << 63); }

// range[0], range[1]: least and largest, ordered; of no elements the largest and least there are. range[2]: the
// position of the first that is not finite, or -1.
__global__ void begin_value_range(long long* range) {
  range[0] = 0x7fffffffffffffffll;
  range[1] = -0x7fffffffffffffffll - 1;
  range[2] = -1;
}

template <class Element, bool kVectors>
__global__ void __launch_bounds__(kTableThreads, 1) find_value_range(const CountProblem p, long long* range,
                                                                     int64_t splits) {
  using K = typename Element::K;
  using Wide = typename std::conditional<std::is_same<K, float>::value, double, K>::type;
  constexpr bool kFloats = !std::is_integral<K>::value;
  K least = 0, largest = 0;
  bool some = false;
  unsigned long long first = ~0ull;
  for (int64_t unit = blockIdx.x; unit < p.rows * splits; unit += gridDim.x) {
    const int64_t row = unit / splits, split = unit - row * splits;
    for_each_key<typename Element::Raw, kVectors, 4, false>(
        p.keys + row_offset(p, row, p.key_strides), p.key_stride, p.length, split, splits,
        [&](KeyWord<typename Element::Raw> raw, bool valid, int64_t index) {
          const K x = Element::value(raw);
          if (!valid) return;
          if (!some) least = largest = x;
          some = true;
          if (x < least) least = x;
          if (x > largest) largest = x;
          if constexpr (kFloats)
            if (!(x - x == 0)) {
              const unsigned long long position = p.first_position + row * p.length + index;
              if (position < first) first = position;
            }
        });
  }
  // One atomic operation for each warp: those of all threads, on one address, would take longer than all of the above.
  long long low = 0x7fffffffffffffffll, high = -low - 1;
  if (some) {
    low = ordered(static_cast<Wide>(least));
    high = ordered(static_cast<Wide>(largest));
  }
  for (int by = 16; by; by /= 2) {
    const long long other_low = __shfl_xor_sync(~0u, low, by), other_high = __shfl_xor_sync(~0u, high, by);
    if (other_low < low) low = other_low;
    if (other_high > high) high = other_high;
  }
  if (threadIdx.x % 32 == 0) {   // most warps find that others have found as much
    if (low < *static_cast<volatile long long*>(range)) atomicMin(range, low);
    if (high > *static_cast<volatile long long*>(range + 1)) atomicMax(range + 1, high);
  }
  if (first != ~0ull) atomicMin(reinterpret_cast<unsigned long long*>(range + 2), first);
}

}  // namespace upsweep
