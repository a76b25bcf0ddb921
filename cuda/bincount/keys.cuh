// How keys are read: 16 bytes at a time where they are contiguous, else one at a time.
//
// A key is looked at as an unsigned number of its own width: one of a negative key is beyond every limit.
#pragma once

#include <cstdint>
#include <type_traits>

#include "bincount/problem.hpp"

namespace upsweep {

// Read once, so that they need not stay in the first-level cache; the second level keeps them for a neighbour.
__device__ inline uint4 load_vector(const uint4* from) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

// Offset of a row in bytes.
__device__ inline int64_t row_offset(const CountProblem& p, int64_t row, const int64_t (&strides)[kDims]) {
  if (p.n_dims == 0) return 0;
  int64_t offset = 0;
#pragma unroll 1
  for (int dim = p.n_dims - 1; dim > 0; --dim) {
    const int64_t above = row / p.shape[dim];
    offset += (row - above * p.shape[dim]) * strides[dim];
    row = above;
  }
  return offset + row * strides[0];
}

// A key in a register: what is shorter than 32 bits has them all the same.
template <class Raw>
using KeyWord = typename std::conditional<sizeof(Raw) == 8, uint64_t, uint32_t>::type;

template <class Raw>
__device__ inline uint64_t key_of(KeyWord<Raw> raw, int32_t is_bool) {
  if constexpr (sizeof(Raw) == 1) return is_bool ? raw != 0 : raw;
  else return raw;
}

template <class Raw>
struct KeyVector {
  static constexpr int kKeys = 16 / sizeof(Raw);
  uint4 word;
  __device__ KeyWord<Raw> key(int i) const {
    const uint32_t parts[4] = {word.x, word.y, word.z, word.w};
    if constexpr (sizeof(Raw) == 8) return parts[2 * i] | static_cast<uint64_t>(parts[2 * i + 1]) << 32;
    else if constexpr (sizeof(Raw) == 4) return parts[i];
    else if constexpr (sizeof(Raw) == 2) return parts[i / 2] >> 16 * (i % 2) & 0xffff;
    else return __byte_perm(parts[i / 4], 0, 0x4440 + i % 4);
  }
  __device__ void load(const char* body, int64_t at, int64_t) {
    word = load_vector(reinterpret_cast<const uint4*>(body) + at);
  }
};

template <class Raw>
struct KeyScalar {
  static constexpr int kKeys = 1;
  Raw raw;
  __device__ KeyWord<Raw> key(int) const { return raw; }
  __device__ void load(const char* body, int64_t at, int64_t stride) {
    raw = __ldg(reinterpret_cast<const Raw*>(body + at * stride));
  }
};

// Calls use(key, valid, index) for this block's share of `n` keys, in all lanes of a warp together: `valid` is false
// where a lane has none. Each thread has kLoads loads on their way at a time. kAhead: the next ones are asked for
// before this round's keys are used. To keep an H200's memory busy a processor needs 25 KB on their way.
template <class Raw, bool kVectors, int kLoads, bool kAhead, class Use>
__device__ inline void for_each_key(const char* keys, int64_t stride, int64_t n, int64_t split, int64_t splits,
                                    Use use) {
  using Load = typename std::conditional<kVectors, KeyVector<Raw>, KeyScalar<Raw>>::type;
  constexpr int kKeys = Load::kKeys;
  const int threads = blockDim.x, thread = threadIdx.x;
  int64_t head = 0;
  if constexpr (kVectors) {
    head = (16 - reinterpret_cast<uintptr_t>(keys) % 16) % 16 / sizeof(Raw);
    if (head > n) head = n;
  }
  const char* const body = keys + head * sizeof(Raw);   // strided keys have no head
  const int64_t vectors = (n - head) / kKeys;
  const int64_t tile = int64_t(threads) * kLoads, rounds = vectors / (tile * splits);

  Load now[kLoads];
  const auto load = [&](Load (&to)[kLoads], int64_t round) {
    const int64_t at = (round * splits + split) * tile + thread;
#pragma unroll
    for (int k = 0; k < kLoads; ++k) to[k].load(body, at + k * threads, stride);
  };
  const auto use_all = [&](const Load (&of)[kLoads], int64_t round) {
    const int64_t at = (round * splits + split) * tile + thread;
#pragma unroll
    for (int k = 0; k < kLoads; ++k)
#pragma unroll
      for (int i = 0; i < kKeys; ++i) use(of[k].key(i), true, head + (at + k * threads) * kKeys + i);
  };
  if constexpr (kAhead) {
    if (rounds) load(now, 0);
    for (int64_t round = 0; round < rounds; ++round) {
      Load next[kLoads];
      if (round + 1 < rounds) load(next, round + 1);
      use_all(now, round);
#pragma unroll
      for (int k = 0; k < kLoads; ++k) now[k] = next[k];
    }
  } else {
    for (int64_t round = 0; round < rounds; ++round) {
      load(now, round);
      use_all(now, round);
    }
  }

  // What is left, less than a tile for each block, is distributed in finer pieces.
  const int64_t begin = rounds * tile * splits + split * threads + thread;
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int64_t at = begin + k * splits * threads;
    if (at < vectors) now[k].load(body, at, stride);
  }
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int64_t at = begin + k * splits * threads;
    if (at - thread >= vectors) break;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) use(now[k].key(i), at < vectors, head + at * kKeys + i);
  }
  if (kVectors && split == 0 && thread < 32) {   // fewer than 16 keys at either end
    const int64_t tail = head + vectors * kKeys;
    const Raw* const all = reinterpret_cast<const Raw*>(keys);
    use(thread < head ? all[thread] : KeyWord<Raw>(0), thread < head, static_cast<int64_t>(thread));
    const bool valid = tail + thread < n;
    use(valid ? all[tail + thread] : KeyWord<Raw>(0), valid, tail + thread);
  }
}

}  // namespace upsweep
