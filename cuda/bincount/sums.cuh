// Sums of weights for each key: out[bin] += the weights of a row's keys that are `bin`.
//
// Moves the bytes of the keys and the weights, and 8 a bin and block twice. Called by bincount/sums.cu.
//
// There are no additions of 64 bits in shared memory that are not loops: read, add, exchange if it is still the same.
// So nothing may queue there. Two ways, where bins are few (sum_parts.cuh has that of many bins, `sum_global` here the
// last resort):
//
// - own tables, where the bits have to be the same on each run: lanes of a warp that have one key add up theirs by
//   shuffles, in as many steps as their number has bits; then the warp adds to a table of its own, where nothing is
//   atomic. Which key a lane gets follows from the shape alone, and the tables of warps, then those of blocks are
//   added in their order. Few tables fit, though, and as few warps run.
// - replicas: all warps of a processor share a table, which has up to 32 replicas for lanes, and several for
//   warps where they fit. Only where many lanes of a warp have one key they add up theirs first, and not even then
//   where there are so few bins that nearly every lane has a replica of its own.
#pragma once

#include "bincount/keys.cuh"
#include "bincount/peers.cuh"
#include "common/elements.cuh"

namespace upsweep {

constexpr int kSumThreads = 512;     // at most: as many warps as have a table
constexpr int kSumKeys = 8;          // of a lane on their way from memory, while as many are added
constexpr int kReplicaThreads = 1024;
constexpr int kReplicaKeys = 4;
constexpr int kLargeGroup = 8;       // lanes with one key that add up theirs before they go to a replica
constexpr int kFewWarps = 5;         // with a table in common do not meet often, where each lane has its replica

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

// The keys and weights of a lane: elements 32 apart.
template <class Raw, class Sum, class Weight, int n>
struct Pairs {
  using Load = WeightOf<Sum, Weight>;
  uint64_t key[n];                 // all ones: none; a key of 64 bits that is all ones is outside as well
  typename Load::Raw weight[n];

  // `left`: so many elements there are from the first on.
  __device__ void load(const SumProblem& p, const char* key_at, const char* weight_at, int64_t left) {
    const int64_t key_step = 32 * p.count.key_stride, weight_step = 32 * p.weight_stride;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      key[k] = ~0ull;
      weight[k] = 0;
      if (k * 32 < left) {
        const Raw raw = __ldg(reinterpret_cast<const Raw*>(key_at));
        key[k] = sizeof(Raw) == 1 && p.count.is_bool ? raw != 0 : raw;
        weight[k] = Load::load(weight_at, p.weight_dtype);
      }
      key_at += key_step;
      weight_at += weight_step;
    }
  }
};

// Calls add(keys, values) for the pairs of this warp, `warp` of `warps`, in [begin, end) of a row, n for each lane,
// in all lanes together; a lane without a pair has a key of all ones. Returns how many keys of this lane are outside,
// if somebody asks for it.
template <class Raw, class Sum, class Weight, int n, class Add>
__device__ inline uint32_t for_each_pair(const SumProblem& p, int64_t row, int64_t begin, int64_t end, int warp,
                                         int warps, Add add) {
  const int64_t lane_first = begin + int64_t(warp) * 32 * n + threadIdx.x % 32, step = int64_t(warps) * 32 * n;
  const char* keys = p.count.keys + row_offset(p.count, row, p.count.key_strides) + lane_first * p.count.key_stride;
  const char* weights = p.weights + row_offset(p.count, row, p.weight_strides) + lane_first * p.weight_stride;
  Pairs<Raw, Sum, Weight, n> now, next;
  uint32_t outside = 0;
  // The same for all lanes of a warp: how many its first lane has left, and the others at most one step less.
  int64_t left = end - lane_first;
  int64_t warp_left = left + threadIdx.x % 32;
  if (warp_left > 0) now.load(p, keys, weights, left);
  for (; warp_left > 0; warp_left -= step, left -= step) {
    keys += step * p.count.key_stride;
    weights += step * p.weight_stride;
    if (warp_left > step) next.load(p, keys, weights, left - step);
    if (p.count.dropped) {
#pragma unroll
      for (int k = 0; k < n; ++k) outside += k * 32 < left && now.key[k] >= p.count.limit;
    }
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

// partial: the sums of all bins by each split of each row.
template <class Raw, class Sum, class Weight>
__global__ void __launch_bounds__(kSumThreads, 1)
    sum_own_tables(const SumProblem p, const SumShape shape, Sum* partial) {
  extern __shared__ uint4 sum_memory[];
  const uint32_t padded = (shape.bins + 15) / 16 * 16;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  Sum* const tables = reinterpret_cast<Sum*>(sum_memory);
  Sum* const table = tables + warp * padded;
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
    const uint32_t outside = for_each_pair<Raw, Sum, Weight, kSumKeys>(
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
            if (inside && __ffs(peers[k]) - 1 == lane) table[sum_slot(bin[k])] += sum;
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

// Where the replicas of a sum begin: bins that would meet in a bank are spread as in TableSlots; there are 16 banks
// of 8 bytes.
__device__ inline uint32_t replica_slot(uint32_t bin, int replicas_log2) {
  if (replicas_log2 >= 4) return bin << replicas_log2;
  return (bin ^ ((bin >> (4 - replicas_log2)) * 0x9e3779b9u >> (28 + replicas_log2))) << replicas_log2;
}

// Adds up the values of lanes that have one bin, where there are at least kLargeGroup of them, and calls
// add_group(bin, sum) in one of them; add(bin, value) in the lanes of other bins that are `left`. In all lanes together.
template <int n, class Sum, class AddGroup, class Add>
__device__ inline void add_large_groups(const uint32_t (&bin)[n], const Sum (&value)[n], bool (&left)[n],
                                        AddGroup add_group, Add add) {
  const int lane = threadIdx.x % 32;
  uint32_t like_first[n];
#pragma unroll
  for (int k = 0; k < n; ++k) like_first[k] = __shfl_sync(~0u, bin[k], 0);
#pragma unroll
  for (int k = 0; k < n; ++k) like_first[k] = __ballot_sync(~0u, bin[k] == like_first[k]);
#pragma unroll
  for (int k = 0; k < n; ++k) {
    uint32_t group = like_first[k];
    while (__popc(group) >= kLargeGroup) {   // at most 32 / kLargeGroup times: the same for all lanes
      const bool member = group >> lane & 1;
      Sum sum = member && left[k] ? value[k] : Sum(0);
      for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
      if (lane == __ffs(group) - 1 && left[k]) add_group(bin[k], sum);
      if (member) left[k] = false;
      const uint32_t rest = __ballot_sync(~0u, left[k]);
      if (rest == 0) break;
      const uint32_t next = __shfl_sync(~0u, bin[k], __ffs(rest) - 1);
      group = __ballot_sync(~0u, left[k] && bin[k] == next);
    }
    if (left[k]) add(bin[k], value[k]);
  }
}

template <class Raw, class Sum, class Weight>
__global__ void __launch_bounds__(kReplicaThreads, 1)
    sum_replicas(const SumProblem p, const SumShape shape, Sum* partial) {
  extern __shared__ uint4 sum_memory[];
  const int replicas_log2 = shape.replicas_log2;
  const uint32_t words = (shape.bins + 15) / 16 * 16 << replicas_log2;   // of a table
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const uint32_t mask = (1u << replicas_log2) - 1;
  const bool merges = replicas_log2 < 5 || shape.tables * kFewWarps < warps;
  Sum* const tables = reinterpret_cast<Sum*>(sum_memory);
  Sum* const table = tables + warp % shape.tables * words;
  Sum* const of_lane = table + (lane & mask);
  Sum* const of_warp = table + (warp / shape.tables & mask);   // merged sums: warps keep out of each other's way
  const int64_t each = keys_of_split(p.count.length, shape.splits);
  for (int64_t unit = blockIdx.x; unit < p.count.rows * shape.splits * shape.shares; unit += gridDim.x) {
    const int64_t part = unit / shape.shares, row = part / shape.splits, begin = (part - row * shape.splits) * each;
    const int64_t end = begin + each < p.count.length ? begin + each : p.count.length;
    const int64_t first_bin = (unit - part * shape.shares) * shape.bins;
    const int64_t last_bin = first_bin + shape.bins < p.count.n_bins ? first_bin + shape.bins : p.count.n_bins;
    const uint64_t end_bin = static_cast<uint64_t>(last_bin) < p.count.limit ? last_bin : p.count.limit;
    const uint64_t size = end_bin > static_cast<uint64_t>(first_bin) ? end_bin - first_bin : 0;
    for (uint32_t i = threadIdx.x; i < shape.tables * words; i += blockDim.x) tables[i] = 0;
    __syncthreads();
    const uint32_t outside = for_each_pair<Raw, Sum, Weight, kReplicaKeys>(
        p, row, begin, end, warp, warps, [&](const uint64_t (&key)[kReplicaKeys], const auto (&weight)[kReplicaKeys]) {
          uint32_t bin[kReplicaKeys];
          bool left[kReplicaKeys];
#pragma unroll
          for (int k = 0; k < kReplicaKeys; ++k) {
            const uint64_t beyond = key[k] - static_cast<uint64_t>(first_bin);
            left[k] = beyond < size;
            bin[k] = left[k] ? static_cast<uint32_t>(beyond) : ~0u;
          }
          if (!merges) {
#pragma unroll
            for (int k = 0; k < kReplicaKeys; ++k)
              if (left[k]) add_atomically(of_lane + replica_slot(bin[k], replicas_log2), static_cast<Sum>(weight[k]));
            return;
          }
          Sum value[kReplicaKeys];
#pragma unroll
          for (int k = 0; k < kReplicaKeys; ++k) value[k] = static_cast<Sum>(weight[k]);
          add_large_groups(
              bin, value, left,
              [&](uint32_t of, Sum sum) { add_atomically(of_warp + replica_slot(of, replicas_log2), sum); },
              [&](uint32_t of, Sum sum) { add_atomically(of_lane + replica_slot(of, replicas_log2), sum); });
        });
    if (p.count.dropped && first_bin == 0) add_outside(p.count, outside);
    __syncthreads();
    for (int64_t bin = threadIdx.x; first_bin + bin < last_bin; bin += blockDim.x) {
      const uint32_t slot = replica_slot(static_cast<uint32_t>(bin), replicas_log2);
      Sum sum = 0;
      for (int i = 0; i < shape.tables; ++i)
        for (uint32_t k = 0; k <= mask; ++k) sum += tables[i * words + slot + (k + lane & mask)];
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

// More bins than tables hold, in an order that may be another one on each run: sums[row * n_bins + bin], which begin
// at 0.
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
    const uint32_t outside = for_each_pair<Raw, Sum, Weight, kSumKeys>(
        p, row, begin, end, warp, warps, [&](const uint64_t (&key)[kSumKeys], const auto (&weight)[kSumKeys]) {
#pragma unroll
          for (int k = 0; k < kSumKeys; ++k) {
            const bool inside = key[k] < p.count.limit;
            const uint32_t peers = __match_any_sync(~0u, inside ? static_cast<unsigned long long>(key[k]) : ~0ull);
            const Sum sum = merge_peers(inside ? peers : 0, static_cast<Sum>(weight[k]));
            if (!inside || __ffs(peers) - 1 != lane) continue;
            const int entry = often.entry(key[k]);
            unsigned long long owner = often.keys[entry];
            if (owner == ~0ull) {
              owner = atomicCAS(&often.keys[entry], ~0ull, static_cast<unsigned long long>(key[k]));
              if (owner == ~0ull) owner = key[k];
            }
            add_atomically(owner == key[k] ? &often.sums[entry] : &of_row[key[k]], sum);
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
