// The largest key, and the position of the first negative one. Moves the bytes of the keys once.
#pragma once

#include "bincount/keys.cuh"

namespace upsweep {

constexpr int kRangeThreads = 512;

// range[0]: the largest key, as 64 bits of its own kind; -1, or 0 of unsigned ones, if there is none.
// range[1]: the position of the first negative key; -1 if there is none.
template <bool kSigned>
__global__ void begin_key_range(unsigned long long* range) {
  range[0] = kSigned ? ~0ull : 0;
  range[1] = ~0ull;
}

template <class Raw, bool kSigned, bool kVectors>
__global__ void __launch_bounds__(kRangeThreads, 2) find_key_range(const CountProblem p, unsigned long long* range,
                                                                   int64_t splits) {
  using Key = typename std::conditional<kSigned, typename std::make_signed<Raw>::type, Raw>::type;
  using Wide = typename std::conditional<kSigned, long long, unsigned long long>::type;
  Key largest = kSigned ? Key(-1) : Key(0);
  unsigned long long first = ~0ull;
  for (int64_t unit = blockIdx.x; unit < p.rows * splits; unit += gridDim.x) {
    const int64_t row = unit / splits, split = unit - row * splits;
    for_each_key<Raw, kVectors, 4, false>(
        p.keys + row_offset(p, row, p.key_strides), p.key_stride, p.length, split, splits,
        [&](KeyWord<Raw> raw, bool valid, int64_t index) {
          const Key key = static_cast<Key>(raw);
          if (!valid) return;
          if (key > largest) largest = key;
          if constexpr (kSigned)
            if (key < 0) {
              const unsigned long long position = p.first_position + row * p.length + index;
              if (position < first) first = position;
            }
        });
  }
  Wide wide = largest;
  if (sizeof(Raw) == 1 && p.is_bool && wide > 1) wide = 1;
  for (int by = 16; by; by /= 2) {
    const Wide other = __shfl_down_sync(~0u, wide, by);
    if (other > wide) wide = other;
  }
  // Most warps find that another one has found as much already.
  if (threadIdx.x % 32 == 0 && wide > *reinterpret_cast<volatile Wide*>(range))
    atomicMax(reinterpret_cast<Wide*>(range), wide);
  if (kSigned && first != ~0ull) atomicMin(range + 1, first);
}

}  // namespace upsweep
