// Tiles of keys that a block puts in order by their parts, kKeys a thread. Used by partition.cuh and chunks.cuh.
#pragma once

#include <type_traits>

#include "bincount/keys.cuh"
#include "common/async_copy.cuh"

namespace upsweep {

// The keys of a thread: 16 bytes at a time; kStaged: copied into shared memory while the tile before is on its way
// out.
template <class Raw, int kThreads, int kKeys, bool kStaged>
struct KeyTile {
  static constexpr int kVec = 16 / sizeof(Raw), kLoads = kKeys / kVec;
  const CountProblem& p;
  uint4* const stage;
  const int64_t lead;      // keys between the boundary of a vector and the first key
  const char* const base;  // that boundary

  __device__ KeyTile(const CountProblem& p_, uint4* stage_)
      : p(p_), stage(stage_), lead(reinterpret_cast<uintptr_t>(p_.keys) % 16 / sizeof(Raw)),
        base(p_.keys - lead * static_cast<int64_t>(sizeof(Raw))) {}
  __device__ int64_t tiles() const {
    return (p.length + lead + kThreads * kKeys - 1) / (kThreads * kKeys);
  }
  __device__ int64_t first_of(int64_t tile, int load) const {
    return (tile * kLoads + load) * kThreads * kVec + int64_t(threadIdx.x) * kVec - lead;
  }
  __device__ bool is_whole(int64_t first) const { return first >= 0 && first + kVec <= p.length; }
  // All vectors of the tile are whole: the same for all threads, and so for all tiles but the first and the last.
  __device__ bool is_inside(int64_t tile) const {
    constexpr int64_t kTile = int64_t(kThreads) * kKeys;
    return tile * kTile >= lead && (tile + 1) * kTile - lead <= p.length;
  }
  __device__ const char* place_of(int64_t tile) const {
    return base + (tile * kLoads * kThreads + threadIdx.x) * 16;
  }
  __device__ void fetch(int64_t tile) const {
    if constexpr (kStaged) {
      const char* const from = place_of(tile);
      if (is_inside(tile)) {
#pragma unroll
        for (int load = 0; load < kLoads; ++load)
          copy_async_16(&stage[load * kThreads + threadIdx.x], from + load * kThreads * 16);
      } else {
#pragma unroll 1
        for (int load = 0; load < kLoads; ++load)
          if (is_whole(first_of(tile, load)))
            copy_async_16(&stage[load * kThreads + threadIdx.x], from + load * kThreads * 16);
      }
      commit_copies();
    }
  }
  // Keys outside are all ones.
  __device__ void take(int64_t tile, uint32_t (&key)[kKeys]) const {
    if constexpr (kStaged) wait_for_copies<0>();
    if (is_inside(tile)) {
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        KeyVector<Raw> v;
        if constexpr (kStaged) v.word = stage[load * kThreads + threadIdx.x];
        else v.load(place_of(tile), load * kThreads, 0);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const uint64_t k = v.key(i);
          key[load * kVec + i] = k < p.limit ? static_cast<uint32_t>(k) : ~0u;
        }
      }
      return;
    }
    const Raw* const all = reinterpret_cast<const Raw*>(p.keys);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int64_t at = first_of(tile, i / kVec) + i % kVec;
      uint64_t k = ~0ull;
      if (at >= 0 && at < p.length) k = all[at];
      key[i] = k < p.limit ? static_cast<uint32_t>(k) : ~0u;
    }
  }
};

// Keys of any stride.
template <class Raw, int kThreads, int kKeys>
struct StridedKeyTile {
  const CountProblem& p;
  __device__ StridedKeyTile(const CountProblem& p_, uint4*) : p(p_) {}
  __device__ int64_t tiles() const { return (p.length + kThreads * kKeys - 1) / (kThreads * kKeys); }
  __device__ void fetch(int64_t) const {}
  __device__ void take(int64_t tile, uint32_t (&key)[kKeys]) const {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int64_t at = (tile * kKeys + i) * kThreads + threadIdx.x;
      uint64_t k = ~0ull;
      if (at < p.length) k = *reinterpret_cast<const Raw*>(p.keys + at * p.key_stride);
      key[i] = k < p.limit ? static_cast<uint32_t>(k) : ~0u;
    }
  }
};

template <class Raw, bool kVectors, int kThreads, int kKeys, bool kStaged>
using KeyTiles = typename std::conditional<kVectors, KeyTile<Raw, kThreads, kKeys, kStaged>,
                                           StridedKeyTile<Raw, kThreads, kKeys>>::type;

}  // namespace upsweep
