// Counts straight into memory, few keys into many bins: out[bin] += how many lanes of a warp have this key.
//
// Moves the bytes of the keys, and 32 a key and different bin in the second-level cache. A warp adds what its lanes
// have in common at once, or equal keys would queue at one address: 31 of 32 such additions are left out.
#pragma once

#include "bincount/keys.cuh"

namespace upsweep {

constexpr int kGlobalThreads = 512;

template <class Raw, bool kVectors>
__global__ void __launch_bounds__(kGlobalThreads, 2) count_global(const CountProblem p, int64_t splits) {
  unsigned long long outside = 0;
  const int lane = threadIdx.x % 32;
  for (int64_t unit = blockIdx.x; unit < p.rows * splits; unit += gridDim.x) {
    const int64_t row = unit / splits, split = unit - row * splits;
    char* const out = p.out + row_offset(p, row, p.out_strides);
    for_each_key<Raw, kVectors, 4, false>(
        p.keys + row_offset(p, row, p.key_strides), p.key_stride, p.length, split, splits,
        [&](KeyWord<Raw> raw, bool valid, int64_t) {
          const uint64_t key = key_of<Raw>(raw, p.is_bool);
          const bool inside = valid && key < p.limit;
          outside += valid && !inside;
          const uint32_t peers = __match_any_sync(~0u, inside ? static_cast<unsigned long long>(key) : ~0ull);
          if (inside && __ffs(peers) - 1 == lane)
            atomicAdd(reinterpret_cast<unsigned long long*>(out + key * p.bin_stride),
                      static_cast<unsigned long long>(__popc(peers)));
        });
  }
  if (p.dropped) {
    for (int by = 16; by; by /= 2) outside += __shfl_down_sync(~0u, outside, by);
    if (lane == 0 && outside) atomicAdd(p.dropped, outside);
  }
}

// The position of the first key that was not counted. All are looked at only if there is one.
template <class Raw>
__global__ void __launch_bounds__(kGlobalThreads) find_outside(const CountProblem p) {
  if (*p.dropped == 0) return;
  unsigned long long first = ~0ull;
  const int64_t n = p.rows * p.length, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t row = i / p.length;
    const char* const at = p.keys + row_offset(p, row, p.key_strides) + (i - row * p.length) * p.key_stride;
    if (key_of<Raw>(*reinterpret_cast<const Raw*>(at), p.is_bool) >= p.limit) {
      first = p.first_position + i;
      break;
    }
  }
  if (first != ~0ull) atomicMin(p.first, first);
}

}  // namespace upsweep
