// Counts of many rows with few bins: a warp counts a row in a table of its own and writes the row's bins.
//
// Moves the bytes of the keys and 8 a bin, or 16 where they are added to what is there. Nothing waits for another
// warp.
// Called by bincount/launch.cu.
#pragma once

#include "bincount/tables.cuh"

namespace upsweep {

constexpr int kRowThreads = 256;
constexpr int kRowLoads = 4;   // of a lane on their way

template <class Raw>
__global__ void __launch_bounds__(kRowThreads) count_rows(const CountProblem p, uint32_t bins) {
  extern __shared__ uint4 table_memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t* const table = reinterpret_cast<uint32_t*>(table_memory) + warp * bins;
  const TableSlots<false> slots(table, 0, blockIdx.x);
  const int64_t warps = int64_t(gridDim.x) * (kRowThreads / 32);
  unsigned long long outside = 0;
  for (int64_t row = int64_t(blockIdx.x) * (kRowThreads / 32) + warp; row < p.rows; row += warps) {
    for (uint32_t i = lane; i < bins; i += 32) table[i] = 0;
    __syncwarp();
    const char* const keys = p.keys + row_offset(p, row, p.key_strides);
    for (int64_t first = lane; first < p.length; first += 32 * kRowLoads) {
      Raw raw[kRowLoads];
#pragma unroll
      for (int k = 0; k < kRowLoads; ++k)
        if (first + k * 32 < p.length)
          raw[k] = __ldg(reinterpret_cast<const Raw*>(keys + (first + k * 32) * p.key_stride));
#pragma unroll
      for (int k = 0; k < kRowLoads; ++k) {
        if (first + k * 32 >= p.length) break;
        const uint64_t key = key_of<Raw>(raw[k], p.is_bool);
        const bool inside = key < p.limit;
        slots.increment(static_cast<uint32_t>(key), inside);
        outside += !inside;
      }
    }
    __syncwarp();
    char* const out = p.out + row_offset(p, row, p.out_strides);
    for (int64_t bin = lane; bin < p.n_bins; bin += 32) {
      int64_t* const at = reinterpret_cast<int64_t*>(out + bin * p.bin_stride);
      // The table ends where a key of the dtype may.
      const int64_t count = static_cast<uint64_t>(bin) < p.limit ? table[slots.first(static_cast<uint32_t>(bin))] : 0;
      *at = p.accumulate ? *at + count : count;
    }
    __syncwarp();
  }
  if (!p.dropped) return;
  for (int by = 16; by; by /= 2) outside += __shfl_down_sync(~0u, outside, by);
  if (lane == 0 && outside) atomicAdd(p.dropped, outside);
}

}  // namespace upsweep
