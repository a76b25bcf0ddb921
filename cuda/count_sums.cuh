// Sums of weights for each key: out[bin] += the weights of a row's keys that are `bin`.
//
// Moves the bytes of the keys and the weights, and 8 a bin and block twice. Called by count_sums.cu.
//
// There are no additions of 64 bits in shared memory that are not loops, so that nothing may queue there. Lanes of a warp
// that have one key add up theirs by shuffles first, in as many steps as their number has bits. Then each warp adds to a
// table of its own, where nothing is atomic; which key a lane gets follows from the shape alone, and the tables of warps,
// then those of blocks are added in their order: the bits are the same on each run. Where so few tables would fit that
// their warps could not keep the memory busy, several warps share one, and the order is lost.
#pragma once

#include "count_keys.cuh"
#include "count_peers.cuh"
#include "elements.cuh"

namespace upsweep {

constexpr int kSumThreads = 512;     // at most: as many warps as have a table
constexpr int kSumKeys = 8;          // of a lane on their way from memory, while as many are added

// Weights of one dtype, or of any.
template <class Sum, class Weight>
struct WeightOf {
  using Raw = Weight;
  static __device__ Raw load(const char* at, int32_t) { return __ldg(reinterpret_cast<const Weight*>(at)); }
};
template <class Sum>
struct WeightOf<Sum, void> {
  using Raw = Sum;
  static __device__ Raw load(const char* at, int32_t dtype) { return Any<Sum>::load(at, dtype); }
};

__device__ inline void add_atomically(double* at, double v) { atomicAdd(at, v); }
__device__ inline void add_atomically(uint64_t* at, uint64_t v) {
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(v));
}

// Neighbouring bins fill the banks; which counters of other groups meet there is hashed.
__device__ inline uint32_t sum_slot(uint32_t bin) { return bin ^ ((bin >> 4) * 0x9e3779b9u >> 28); }

// The keys and weights of a lane: element `from + k * 32` of a row for each k.
template <class Raw, class Sum, class Weight>
struct Pairs {
  using Load = WeightOf<Sum, Weight>;
  uint64_t key[kSumKeys];          // all ones: none
  typename Load::Raw weight[kSumKeys];

  __device__ void load(const SumProblem& p, const char* keys, const char* weights, int64_t from, int64_t end) {
#pragma unroll
    for (int k = 0; k < kSumKeys; ++k) {
      const int64_t at = from + k * 32;
      key[k] = ~0ull;
      weight[k] = 0;
      if (at >= end) continue;
      const Raw raw = __ldg(reinterpret_cast<const Raw*>(keys + at * p.count.key_stride));
      // A key of 64 bits that is all ones is outside as well.
      key[k] = sizeof(Raw) == 1 && p.count.is_bool ? raw != 0 : raw;
      weight[k] = Load::load(weights + at * p.weight_stride, p.weight_dtype);
    }
  }
};

// How many of a lane's keys are outside. Lanes beyond the end have none.
template <class P>
__device__ inline uint32_t count_outside(const P& pairs, uint64_t limit, int64_t from, int64_t end) {
  uint32_t outside = 0;
#pragma unroll
  for (int k = 0; k < kSumKeys; ++k) outside += from + k * 32 < end && pairs.key[k] >= limit;
  return outside;
}

// Calls add(keys, values) for the pairs of this warp, `warp` of `warps`, in [begin, end) of a row, kSumKeys for each
// lane, in all lanes together; a lane without a pair has a key of all ones. Returns how many keys of this lane are
// outside.
template <class Raw, class Sum, class Weight, class Add>
__device__ inline uint32_t for_each_pair(const SumProblem& p, int64_t row, int64_t begin, int64_t end, int warp,
                                         int warps, Add add) {
  const char* const keys = p.count.keys + row_offset(p.count, row, p.count.key_strides);
  const char* const weights = p.weights + row_offset(p.count, row, p.weight_strides);
  const int64_t step = int64_t(warps) * 32 * kSumKeys, lane = threadIdx.x % 32;
  Pairs<Raw, Sum, Weight> now, next;
  uint32_t outside = 0;
  int64_t first = begin + int64_t(warp) * 32 * kSumKeys;
  if (first < end) now.load(p, keys, weights, first + lane, end);
  for (; first < end; first += step) {
    if (first + step < end) next.load(p, keys, weights, first + step + lane, end);
    outside += count_outside(now, p.count.limit, first + lane, end);
    add(now.key, now.weight);
    now = next;
  }
  return outside;
}

// Keys of each of `splits` blocks, in whole lines of memory.
__device__ inline int64_t keys_of_split(int64_t length, int64_t splits) {
  return ((length + splits - 1) / splits + 127) / 128 * 128;
}

__device__ inline void add_outside(const CountProblem& p, uint32_t outside) {
  unsigned long long sum = outside;
  for (int by = 16; by; by /= 2) sum += __shfl_down_sync(~0u, sum, by);
  if (threadIdx.x % 32 == 0 && sum) atomicAdd(p.dropped, sum);
}

// partial: the sums of all bins by each split of each row. kOwn: each warp has a table.
template <class Raw, class Sum, class Weight, bool kOwn>
__global__ void __launch_bounds__(kSumThreads, 1) sum_tables(const SumProblem p, const SumShape shape, Sum* partial) {
  extern __shared__ uint4 sum_memory[];
  const uint32_t padded = (shape.bins + 15) / 16 * 16;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  Sum* const tables = reinterpret_cast<Sum*>(sum_memory);
  Sum* const table = tables + (kOwn ? warp : warp % shape.tables) * padded;
  const int64_t each = keys_of_split(p.count.length, shape.splits);
  for (int64_t unit = blockIdx.x; unit < p.count.rows * shape.splits * shape.shares; unit += gridDim.x) {
    // Blocks that read the same keys run at the same time, and all but the first find them in the second-level cache.
    const int64_t part = unit / shape.shares, row = part / shape.splits, begin = (part - row * shape.splits) * each;
    const int64_t end = begin + each < p.count.length ? begin + each : p.count.length;
    const int64_t first_bin = (unit - part * shape.shares) * shape.bins;
    const int64_t last_bin = first_bin + shape.bins < p.count.n_bins ? first_bin + shape.bins : p.count.n_bins;
    const uint64_t end_bin = static_cast<uint64_t>(last_bin) < p.count.limit ? last_bin : p.count.limit;
    for (uint32_t i = threadIdx.x; i < shape.tables * padded; i += blockDim.x) tables[i] = 0;
    __syncthreads();
    const uint32_t outside = for_each_pair<Raw, Sum, Weight>(
        p, row, begin, end, warp, warps, [&](const uint64_t (&key)[kSumKeys], const auto (&weight)[kSumKeys]) {
          uint32_t bin[kSumKeys], peers[kSumKeys];
#pragma unroll
          for (int k = 0; k < kSumKeys; ++k)   // one more than there are: none
            bin[k] = key[k] >= static_cast<uint64_t>(first_bin) && key[k] < end_bin
                         ? static_cast<uint32_t>(key[k] - first_bin)
                         : static_cast<uint32_t>(shape.bins);
          peers_of(bin, shape.bits, peers);
#pragma unroll
          for (int k = 0; k < kSumKeys; ++k) {
            const bool inside = bin[k] < shape.bins;
            const Sum sum = merge_peers(inside ? peers[k] : 0, static_cast<Sum>(weight[k]));
            if (inside && __ffs(peers[k]) - 1 == lane) {
              Sum* const at = table + sum_slot(bin[k]);
              if constexpr (kOwn) *at += sum;
              else add_atomically(at, sum);
            }
            __syncwarp();
          }
        });
    if (p.count.dropped && first_bin == 0) add_outside(p.count, outside);
    __syncthreads();
    for (int64_t bin = threadIdx.x; first_bin + bin < last_bin; bin += blockDim.x) {
      Sum sum = 0;
      for (int i = 0; i < shape.tables; ++i) sum += tables[i * padded + sum_slot(static_cast<uint32_t>(bin))];
      partial[part * p.count.n_bins + first_bin + bin] = sum;
    }
    __syncthreads();
  }
}

// Sums of the keys that come often, in shared memory: whoever comes first has the entry.
template <class Sum>
struct OftenKeys {
  static constexpr int kEntries = 4096;
  Sum* sums;
  unsigned long long* keys;   // all ones: free
  __device__ int entry(uint64_t key) const {
    return static_cast<uint32_t>(key) * 0x9e3779b9u >> 20;   // the highest 12 bits
  }
};

// More bins than tables hold, in an order that may be another one on each run: sums[row * n_bins + bin], which begin at 0.
template <class Raw, class Sum, class Weight>
__global__ void __launch_bounds__(kSumThreads, 1) sum_global(const SumProblem p, const SumShape shape, Sum* sums) {
  using Often = OftenKeys<Sum>;
  extern __shared__ uint4 sum_memory[];
  Often often = {reinterpret_cast<Sum*>(sum_memory),
                 reinterpret_cast<unsigned long long*>(reinterpret_cast<Sum*>(sum_memory) + Often::kEntries)};
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int64_t each = keys_of_split(p.count.length, shape.splits);
  for (int64_t unit = blockIdx.x; unit < p.count.rows * shape.splits; unit += gridDim.x) {
    const int64_t row = unit / shape.splits, begin = (unit - row * shape.splits) * each;
    const int64_t end = begin + each < p.count.length ? begin + each : p.count.length;
    for (int i = threadIdx.x; i < Often::kEntries; i += blockDim.x) {
      often.sums[i] = 0;
      often.keys[i] = ~0ull;
    }
    __syncthreads();
    Sum* const of_row = sums + row * p.count.n_bins;
    const uint32_t outside = for_each_pair<Raw, Sum, Weight>(
        p, row, begin, end, warp, warps, [&](const uint64_t (&key)[kSumKeys], const auto (&weight)[kSumKeys]) {
#pragma unroll
          for (int k = 0; k < kSumKeys; ++k) {
            const bool inside = key[k] < p.count.limit;
            const uint32_t peers = __match_any_sync(~0u, inside ? static_cast<unsigned long long>(key[k]) : ~0ull);
            const Sum sum = merge_peers(inside ? peers : 0, static_cast<Sum>(weight[k]));
            if (!inside || __ffs(peers) - 1 != lane) continue;
            const int entry = often.entry(key[k]);
            unsigned long long there = often.keys[entry];
            if (there == ~0ull) {
              there = atomicCAS(&often.keys[entry], ~0ull, static_cast<unsigned long long>(key[k]));
              if (there == ~0ull) there = key[k];
            }
            add_atomically(there == key[k] ? &often.sums[entry] : &of_row[key[k]], sum);
          }
        });
    if (p.count.dropped) add_outside(p.count, outside);
    __syncthreads();
    for (int i = threadIdx.x; i < Often::kEntries; i += blockDim.x)
      if (often.keys[i] != ~0ull) add_atomically(&of_row[often.keys[i]], often.sums[i]);
    __syncthreads();
  }
}

// The tables of `splits` blocks, added up in order, as out has them.
template <class Sum>
__global__ void __launch_bounds__(kSumThreads) combine_sums(const SumProblem p, int64_t splits, const Sum* partial) {
  const int64_t n_bins = p.count.n_bins, n = p.count.rows * n_bins, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t row = i / n_bins, bin = i - row * n_bins;
    char* const at = p.count.out + row_offset(p.count, row, p.count.out_strides) + bin * p.count.bin_stride;
    Sum sum = p.accumulate ? Any<Sum>::load(at, p.out_dtype) : Sum(0);
    const Sum* from = partial + row * splits * n_bins + bin;
#pragma unroll 8
    for (int64_t split = 0; split < splits; ++split) sum += from[split * n_bins];
    Any<Sum>::store(at, p.out_dtype, sum);
  }
}

}  // namespace upsweep
