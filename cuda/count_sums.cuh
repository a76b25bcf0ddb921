// Sums of weights for each key: out[bin] += the weights of a row's keys that are `bin`.
//
// Moves the bytes of the keys and the weights, and 8 a bin and block twice. Called by count_sums.cu.
//
// Nothing in the table's way is atomic: there are no additions of 64 bits in shared memory that are not loops. Each warp has a
// table of its own, and of its lanes that have one key the first adds first, then the next: a large group is added up
// by shuffles before, so that equal keys take few turns. Which key a lane gets follows from the shape alone, and the
// tables of warps, then those of blocks are added in their order: the bits are the same on each run.
#pragma once

#include "count_keys.cuh"
#include "elements.cuh"

namespace upsweep {

constexpr int kSumThreads = 512;     // at most: as many warps as have a table
constexpr int kSumKeys = 8;          // of a lane on their way from memory, while as many are added
constexpr int kLargeGroup = 8;       // lanes with one key that are added up by shuffles

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

// A lane's part in the sums of a warp: what it has to add, and when.
template <class Sum>
struct Turn {
  Sum value;
  int turn;   // -1: nothing is left for this lane
};

// `peers`: the lanes with this lane's key; valid: it has one.
template <class Sum>
__device__ inline Turn<Sum> take_turns(uint32_t peers, bool valid, Sum value) {
  const int lane = threadIdx.x % 32;
  const uint32_t before = peers & ((1u << lane) - 1);
  Turn<Sum> result = {value, valid ? __popc(before) : -1};
  uint32_t large = __ballot_sync(~0u, valid && before == 0 && __popc(peers) >= kLargeGroup);
  while (large) {   // at most 32 / kLargeGroup times
    const int first = __ffs(large) - 1;
    large &= large - 1;
    const bool member = __shfl_sync(~0u, peers, first) >> lane & 1;
    Sum sum = member ? value : Sum(0);
    for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
    if (member) result = {sum, lane == first ? 0 : -1};
  }
  return result;
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

// Calls add(key, value) for the pairs of this warp, `warp` of `warps`, in [begin, end) of a row, in all lanes together; a
// lane without a pair has a key of all ones. Returns how many keys of this lane are outside.
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
#pragma unroll
    for (int k = 0; k < kSumKeys; ++k) {
      if (first + k * 32 >= end) break;
      add(now.key[k], static_cast<Sum>(now.weight[k]));
    }
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

// partial: a table of each split of each row.
template <class Raw, class Sum, class Weight>
__global__ void __launch_bounds__(kSumThreads, 1) sum_tables(const SumProblem p, const SumShape shape, Sum* partial) {
  extern __shared__ uint4 sum_memory[];
  const uint32_t bins = static_cast<uint32_t>(shape.bins), padded = (bins + 15) / 16 * 16;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  Sum* const tables = reinterpret_cast<Sum*>(sum_memory);
  Sum* const table = tables + warp * padded;
  const int64_t each = keys_of_split(p.count.length, shape.splits);
  const uint64_t end_bin = shape.first_bin + bins < p.count.limit ? shape.first_bin + bins : p.count.limit;
  for (int64_t unit = blockIdx.x; unit < p.count.rows * shape.splits; unit += gridDim.x) {
    const int64_t row = unit / shape.splits, begin = (unit - row * shape.splits) * each;
    const int64_t end = begin + each < p.count.length ? begin + each : p.count.length;
    for (uint32_t i = threadIdx.x; i < warps * padded; i += blockDim.x) tables[i] = 0;
    __syncthreads();
    const uint32_t outside =
        for_each_pair<Raw, Sum, Weight>(p, row, begin, end, warp, warps, [&](uint64_t key, Sum value) {
          const bool inside = key >= static_cast<uint64_t>(shape.first_bin) && key < end_bin;
          const uint32_t bin = inside ? static_cast<uint32_t>(key - shape.first_bin) : ~0u;
          const Turn<Sum> mine = take_turns(__match_any_sync(~0u, bin), inside, value);
          Sum* const at = table + (inside ? sum_slot(bin) : 0);
          for (int turn = 0; __any_sync(~0u, mine.turn >= turn); ++turn) {
            if (mine.turn == turn) *at += mine.value;
            __syncwarp();
          }
        });
    if (p.count.dropped && shape.first_bin == 0) add_outside(p.count, outside);
    __syncthreads();
    for (uint32_t bin = threadIdx.x; bin < bins; bin += blockDim.x) {
      Sum sum = 0;
      for (int i = 0; i < warps; ++i) sum += tables[i * padded + sum_slot(bin)];
      partial[unit * bins + bin] = sum;
    }
    __syncthreads();
  }
}

// More bins than tables hold, in an order that may be another one on each run: sums[row * bins + bin], which begin at 0.
template <class Raw, class Sum, class Weight>
__global__ void __launch_bounds__(kSumThreads, 1) sum_global(const SumProblem p, const SumShape shape, Sum* sums) {
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int64_t each = keys_of_split(p.count.length, shape.splits);
  for (int64_t unit = blockIdx.x; unit < p.count.rows * shape.splits; unit += gridDim.x) {
    const int64_t row = unit / shape.splits, begin = (unit - row * shape.splits) * each;
    const int64_t end = begin + each < p.count.length ? begin + each : p.count.length;
    const uint32_t outside =
        for_each_pair<Raw, Sum, Weight>(p, row, begin, end, warp, warps, [&](uint64_t key, Sum value) {
          const bool inside = key < p.count.limit;
          const uint32_t peers = __match_any_sync(~0u, inside ? static_cast<unsigned long long>(key) : ~0ull);
          const Turn<Sum> mine = take_turns(peers, inside, value);
          if (mine.turn < 0) return;
          if constexpr (std::is_same<Sum, double>::value) atomicAdd(&sums[row * shape.bins + key], mine.value);
          else atomicAdd(reinterpret_cast<unsigned long long*>(&sums[row * shape.bins + key]),
                         static_cast<unsigned long long>(mine.value));
        });
    if (p.count.dropped) add_outside(p.count, outside);
  }
}

// The tables of `splits` blocks, added up in order, as out has them.
template <class Sum>
__global__ void __launch_bounds__(kSumThreads) combine_sums(const SumProblem p, const SumShape shape, int64_t splits,
                                                             const Sum* partial) {
  const int64_t n = p.count.rows * shape.bins, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t row = i / shape.bins, bin = i - row * shape.bins;
    char* const at = p.count.out + row_offset(p.count, row, p.count.out_strides) + (shape.first_bin + bin) * p.count.bin_stride;
    Sum sum = p.accumulate ? Any<Sum>::load(at, p.out_dtype) : Sum(0);
    const Sum* from = partial + row * splits * shape.bins + bin;
#pragma unroll 8
    for (int64_t split = 0; split < splits; ++split) sum += from[split * shape.bins];
    Any<Sum>::store(at, p.out_dtype, sum);
  }
}

}  // namespace upsweep
