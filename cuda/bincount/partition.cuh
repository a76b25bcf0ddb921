// Counts of more bins than tables hold: keys are put into parts by their high bits, then each part is counted in a
// table. Where parts are few, chunks.cuh does it in one pass.
//
//   1. count_tables how many keys each part gets                reads the keys
//   2. plan_parts   where each part begins
//   3. scatter_keys the low bits of the keys, part by part      reads the keys, writes 2 bytes each
//   4. count_parts  a table for each part                       reads 2 bytes a key, adds 8 a bin
//
// For keys of 8 bytes that is 20 bytes each, where a read alone is 8.
//
// Speed may not depend on the keys: in 3, the rank of a key among those of its warp that go to the same part comes
// from one vote for each bit of the part's number, and only one lane for each part adds to a counter; in 4, each block has
// as many keys as the others, whatever their parts are.
#pragma once

#include "bincount/count_parts.cuh"
#include "bincount/key_tiles.cuh"
#include "bincount/peers.cuh"

namespace upsweep {

// Blocks of few threads where there are few parts: while one waits for memory or for its own threads, others run.
// Where parts are many, what each costs a block is shared by more keys.
constexpr int kFewParts = 256, kFewThreads = 256, kManyThreads = 512;
constexpr int kPlanThreads = 1024;
constexpr int kScatterKeys = 16;               // of a thread

// One block.
__global__ void __launch_bounds__(kPlanThreads) plan_parts(const Parts parts) {
  constexpr int kEach = kMostParts / kPlanThreads;
  unsigned long long vectors[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t part = threadIdx.x * kEach + i;
    vectors[i] = part < parts.n_parts ? (parts.sizes[part] + kVectorKeys - 1) / kVectorKeys : 0;
    sum += vectors[i];
  }
  unsigned long long total;
  unsigned long long begin = prefix_of_block<unsigned long long, kPlanThreads>(sum, &total);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t part = threadIdx.x * kEach + i;
    if (part >= parts.n_parts) break;
    parts.begins[part] = parts.cursors[part] = begin * kVectorKeys;
    begin += vectors[i];
  }
}

// Bytes of a block that scatters: where all parts and the keys outside are, the tile in order, and of a block of few
// threads the next tile. Others have no room for it.
inline int64_t scatter_bytes(uint32_t n_parts, int threads, int64_t key_bytes) {
  const int64_t of_key = 4 + (threads == kFewThreads ? key_bytes : 0);
  return (int64_t(n_parts) + 1 + 3) / 4 * 4 * 12 + int64_t(threads) * kScatterKeys * of_key;
}

template <class Raw, bool kVectors, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    scatter_keys(const CountProblem p, const Parts parts, int bits) {
  extern __shared__ uint4 scatter_memory[];
  using Tile = KeyTiles<Raw, kVectors, kThreads, kScatterKeys, kThreads == kFewThreads>;
  constexpr int kGroup = 4;   // keys whose votes and counters are on their way together; more do not fit the registers
  const uint32_t padded = (parts.n_parts + 1 + 3) / 4 * 4;
  int64_t* const shift = reinterpret_cast<int64_t*>(scatter_memory);    // from a place in the tile to one in memory
  uint32_t* const places = reinterpret_cast<uint32_t*>(shift + padded);  // counters, then the first place of each part
  uint32_t* const sorted = places + padded;                              // low bits of the key | its part << 16
  const Tile keys(p, reinterpret_cast<uint4*>(sorted + kThreads * kScatterKeys));
  const int thread = threadIdx.x, lane = thread % 32;
  const int64_t tiles = keys.tiles();
  if (blockIdx.x < tiles) keys.fetch(blockIdx.x);

  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    for (uint32_t part = thread; part < padded; part += kThreads) places[part] = 0;
    uint32_t key[kScatterKeys], rank[kScatterKeys];
    keys.take(tile, key);
    if (tile + gridDim.x < tiles) keys.fetch(tile + gridDim.x);
    __syncthreads();

#pragma unroll
    for (int group = 0; group < kScatterKeys; group += kGroup) {
      uint32_t part[kGroup], peers[kGroup];
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        const uint32_t of = key[group + k];
        part[k] = of == ~0u ? parts.n_parts : of >> kPartBits;
      }
      peers_of(part, bits, peers);
#pragma unroll
      for (int k = 0; k < kGroup; ++k)
        rank[group + k] = __ffs(peers[k]) - 1 == lane ? atomicAdd(&places[part[k]], __popc(peers[k])) : 0;
#pragma unroll
      for (int k = 0; k < kGroup; ++k)
        rank[group + k] =
            __shfl_sync(~0u, rank[group + k], __ffs(peers[k]) - 1) + __popc(peers[k] & ((1u << lane) - 1));
    }
    __syncthreads();

    // Each thread has neighbouring parts, so that the prefix over threads is that over parts.
    const uint32_t each = (padded + kThreads - 1) / kThreads, first = thread * each;
    const uint32_t last = first + each < padded ? first + each : padded;
    uint32_t keys_of_thread = 0;
    for (uint32_t part = first; part < last; ++part) keys_of_thread += places[part];
    uint32_t total;
    uint32_t place = prefix_of_block<uint32_t, kThreads>(keys_of_thread, &total);
    constexpr uint32_t kTogether = 4;   // places in memory that are asked for at a time
    for (uint32_t part = first; part < last; part += kTogether) {
      uint32_t size[kTogether];
      unsigned long long to[kTogether];
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) {
        size[k] = part + k < last ? places[part + k] : 0;
        if (size[k] && part + k < parts.n_parts)
          to[k] = atomicAdd(&parts.cursors[part + k], static_cast<unsigned long long>(size[k]));
      }
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) {
        if (part + k >= last) break;
        places[part + k] = place;
        if (size[k] && part + k < parts.n_parts) shift[part + k] = static_cast<int64_t>(to[k]) - place;
        place += size[k];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kScatterKeys; ++k) {
      const uint32_t part = key[k] == ~0u ? parts.n_parts : key[k] >> kPartBits;
      sorted[places[part] + rank[k]] = part << 16 | (key[k] & (kPartBins - 1));
    }
    __syncthreads();
    const uint32_t inside = places[parts.n_parts];   // what is outside comes last
#pragma unroll 4
    for (uint32_t at = thread; at < inside; at += kThreads) {
      const uint32_t one = sorted[at];
      parts.keys[shift[one >> 16] + at] = static_cast<uint16_t>(one);
    }
    __syncthreads();
  }
}

}  // namespace upsweep
