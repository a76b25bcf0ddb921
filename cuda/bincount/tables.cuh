// Counts in shared memory: out[bin] += how many keys of a row are `bin`.
//
// Moves the bytes of the keys once for each share of the bins (all but the first time out of the second-level cache),
// and 8 bytes a bin and block. Called by bincount/launch.cu; as many bins as CountTuning says, or a few times as
// many in shares.
//
// Speed may not depend on the keys. An increment without a result is one instruction that takes equal addresses
// together (ATOMS.POPC.INC), so equal keys cost nothing. What is left are different addresses in one bank: a counter
// has up to 32 replicas, one for each bank, where they fit, so that the lanes of a warp never meet. Where fewer fit,
// groups of neighbouring counters are permuted by a hash of the group that is another one in each block: whichever
// keys meet in one block do not in the others.
#pragma once

#include <type_traits>

#include "bincount/keys.cuh"

namespace upsweep {

constexpr int kTableThreads = 1024;

// Where the counters lie, in words; kOwn: 32 replicas.
template <bool kOwn>
struct TableSlots {
  uint32_t multiplier, lane_address;
  int replicas_log2;
  __device__ TableSlots(const uint32_t* table, int replicas_log2_, uint32_t seed)
      : multiplier(seed * 0x9e3779b9u + 0x85ebca6bu | 1), replicas_log2(kOwn ? 5 : replicas_log2_) {
    const uint32_t lane = threadIdx.x & (1u << replicas_log2) - 1;
    lane_address = static_cast<uint32_t>(__cvta_generic_to_shared(table + lane));
  }
  // Where the replicas of a counter begin. A group holds 2^s counters, which fill the banks once.
  __device__ uint32_t first(uint32_t bin) const {
    if constexpr (kOwn) return bin * 32;
    const int s = 5 - replicas_log2;
    return (bin ^ (bin >> s) * multiplier >> (27 + replicas_log2)) << replicas_log2;
  }
  // Adds 1 for this lane. The one instruction for equal and different addresses is what `red` becomes.
  __device__ void increment(uint32_t bin, bool inside) const {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p red.shared.add.u32 [%0], 1;}"
                 ::"r"(lane_address + first(bin) * 4), "r"(static_cast<uint32_t>(inside)));
  }
};

// Adds up the numbers of all threads; the sum is in thread 0.
__device__ inline unsigned long long sum_of_block(unsigned long long v) {
  __shared__ unsigned long long sums[kTableThreads / 32];
  for (int by = 16; by; by /= 2) v += __shfl_down_sync(~0u, v, by);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  v = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0;
  for (int by = 16; by; by /= 2) v += __shfl_down_sync(~0u, v, by);
  return v;
}

__device__ inline void clear_table(uint32_t* table, uint32_t words) {
  for (uint32_t i = threadIdx.x; i < words / 4; i += blockDim.x)
    reinterpret_cast<uint4*>(table)[i] = uint4{0, 0, 0, 0};
  __syncthreads();
}

// Adds a table to the bins from `first_bin` on of `out`, of type Count, or with `stores` writes it to them; returns how
// many keys it holds. `turn`: where to begin, so that blocks do not all add to the same bins at once.
template <class Count, bool kOwn>
__device__ inline unsigned long long add_table(const CountProblem& p, const uint32_t* table,
                                               const TableSlots<kOwn>& slots, uint32_t bins, char* out,
                                               uint64_t first_bin, uint64_t turn, bool is_bool,
                                               bool stores = false) {
  unsigned long long counted = 0;
  const uint32_t steps = (bins + blockDim.x - 1) / blockDim.x;
  uint32_t step = static_cast<uint32_t>(turn % steps);
  // Replicas are taken in turn, for each lane another one first, so that the lanes do not meet in a bank.
  const uint32_t replicas = 1u << slots.replicas_log2, begin = threadIdx.x % 32 >> (5 - slots.replicas_log2);
  for (uint32_t i = 0; i < steps; ++i) {
    const uint32_t bin = step * blockDim.x + threadIdx.x;
    step = step + 1 == steps ? 0 : step + 1;
    if (bin >= bins) continue;
    unsigned long long sum = 0;
    const uint32_t first = slots.first(bin);
    for (uint32_t k = 0; k < replicas; ++k) sum += table[first + (k + begin & replicas - 1)];
    uint64_t at = first_bin + bin;
    if (is_bool && at > 1) at = 1;
    if (at >= p.limit) continue;
    Count* const target = reinterpret_cast<Count*>(out + at * p.bin_stride);
    if (stores) *target = static_cast<Count>(sum);
    else if (sum) atomicAdd(target, static_cast<Count>(sum));
    counted += sum;
  }
  return counted;
}

// By all blocks: what is dropped are all keys, less those that are in a table.
__device__ inline void add_dropped(const CountProblem& p, unsigned long long counted) {
  if (!p.dropped) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) counted -= p.rows * p.length;
  const unsigned long long sum = sum_of_block(counted);
  if (threadIdx.x == 0 && sum) atomicAdd(p.dropped, 0ull - sum);
}

// kOwn: each lane has replicas of its own, 32 of them.
template <class Raw, bool kVectors, bool kOwn, int kBlocks>
__global__ void __launch_bounds__(kTableThreads, kBlocks) count_tables(const CountProblem p, const TableShape shape) {
  extern __shared__ uint4 table_memory[];
  uint32_t* const table = reinterpret_cast<uint32_t*>(table_memory);
  const TableSlots<kOwn> slots(table, shape.replicas_log2, blockIdx.x);
  const uint32_t bins = shape.bins;
  unsigned long long counted = 0;
  const int64_t units = p.rows * shape.splits * shape.shares;
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    // Blocks that read the same keys have neighbouring numbers: they run at the same time, and the second finds them
    // in the second-level cache.
    const int64_t part = unit / shape.shares, row = part / shape.splits, split = part - row * shape.splits;
    const uint64_t first_bin = uint64_t(unit - part * shape.shares) * bins;
    const uint64_t end = p.limit > first_bin ? p.limit - first_bin : 0;
    const uint32_t most = bins << shape.shift, size = end < most ? static_cast<uint32_t>(end) : most;
    clear_table(table, bins << slots.replicas_log2);
    const char* const keys = p.keys + row_offset(p, row, p.key_strides);
    for_each_key<Raw, kVectors, kBlocks == 1 ? 4 : 2, kBlocks == 1>(
        keys, p.key_stride, p.length, split, shape.splits, [&](KeyWord<Raw> key, bool valid, int64_t) {
          if constexpr (sizeof(Raw) == 1) {   // the table has a counter for whatever 8 bits are
            slots.increment(key, valid);
          } else {
            const uint64_t beyond = uint64_t(key) - first_bin;
            slots.increment(static_cast<uint32_t>(beyond) >> shape.shift, valid && beyond < size);
          }
        });
    __syncthreads();
    counted += add_table<unsigned long long>(p, table, slots, bins, p.out + row_offset(p, row, p.out_strides),
                                             first_bin, static_cast<uint64_t>(part), sizeof(Raw) == 1 && p.is_bool,
                                             shape.stores);
    __syncthreads();
  }
  add_dropped(p, counted);
}

}  // namespace upsweep
