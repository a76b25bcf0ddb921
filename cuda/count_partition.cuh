// Counts of more bins than tables hold: keys are put into parts by their high bits, then each part is counted in a table.
//
//   1. count_tables counts how many keys each part gets        reads the keys
//   2. plan_parts   where each part begins; the work list of 4
//   3. scatter_keys the low bits of the keys, part by part      reads the keys, writes 2 bytes each
//   4. count_parts  a table for each piece of a part            reads 2 bytes a key, adds 8 a bin
//
// For keys of 8 bytes that is 20 bytes each, where a read alone is 8.
//
// Speed may not depend on the keys: in 3, the rank of a key among those of its warp that go to the same part comes from
// one vote for each bit of the part's number, and only one lane for each part adds to a counter; in 4, a part of many keys
// is cut into pieces for many blocks.
#pragma once

#include "count_tables.cuh"

namespace upsweep {

constexpr int kScatterThreads = 512;
constexpr int kScatterKeys = 16;               // of a thread
constexpr int kScatterTile = kScatterThreads * kScatterKeys;
constexpr int kPlanThreads = 1024;

// Exclusive prefix of one number a thread, over a block of whole warps; *total is the sum.
template <class N, int kThreads>
__device__ inline N prefix_of_block(N v, N* total) {
  __shared__ N sums[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  N inclusive = v;
  for (int by = 1; by < 32; by *= 2) {
    const N other = __shfl_up_sync(~0u, inclusive, by);
    if (lane >= by) inclusive += other;
  }
  __syncthreads();   // whoever called this before has read the sums
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  N before = 0, all = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before += sums[i];
    all += sums[i];
  }
  *total = all;
  return before + inclusive - v;
}

// One block.
__global__ void __launch_bounds__(kPlanThreads) plan_parts(const Parts parts) {
  constexpr int kEach = kMostParts / kPlanThreads;
  unsigned long long size[kEach], keys = 0, pieces = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t part = threadIdx.x * kEach + i;
    size[i] = part < parts.n_parts ? parts.sizes[part] : 0;
    keys += size[i];
    pieces += (size[i] + kPieceKeys - 1) / kPieceKeys;
  }
  unsigned long long total, n_pieces;
  unsigned long long begin = prefix_of_block<unsigned long long, kPlanThreads>(keys, &total);
  unsigned long long piece = prefix_of_block<unsigned long long, kPlanThreads>(pieces, &n_pieces);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t part = threadIdx.x * kEach + i;
    if (part >= parts.n_parts) break;
    parts.begins[part] = parts.cursors[part] = begin;
    begin += size[i];
    const uint32_t of_part = static_cast<uint32_t>((size[i] + kPieceKeys - 1) / kPieceKeys);
    for (uint32_t number = 0; number < of_part; ++number) parts.pieces[piece++] = {part, number};
  }
  if (threadIdx.x == 0) *parts.n_pieces = n_pieces;
}

// The lanes of the warp whose `number` is the same, by its lowest bits.
template <int n>
__device__ inline void peers_of(const uint32_t (&number)[n], int bits, uint32_t (&peers)[n]) {
#pragma unroll
  for (int k = 0; k < n; ++k) peers[k] = ~0u;
  for (int bit = 0; bit < bits; ++bit) {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const bool set = number[k] >> bit & 1;
      const uint32_t votes = __ballot_sync(~0u, set);
      peers[k] &= set ? votes : ~votes;
    }
  }
}

// Bytes of a block that scatters: counters and places of all parts and of the keys outside, and the tile in order.
inline int64_t scatter_bytes(uint32_t n_parts) {
  return (int64_t(n_parts) + 1 + 3) / 4 * 4 * 12 + kScatterTile * 4;
}

template <class Raw, bool kVectors>
__global__ void __launch_bounds__(kScatterThreads, 2) scatter_keys(const CountProblem p, const Parts parts, int bits) {
  extern __shared__ uint4 scatter_memory[];
  constexpr int kKeys = kVectors ? 16 / sizeof(Raw) : 1;   // of a load
  constexpr int kGroup = 4;   // keys whose votes and counters are on their way together; more do not fit the registers
  const uint32_t padded = (parts.n_parts + 1 + 3) / 4 * 4;
  int64_t* const shift = reinterpret_cast<int64_t*>(scatter_memory);    // from a place in the tile to one in memory
  uint32_t* const places = reinterpret_cast<uint32_t*>(shift + padded);  // counters, then the first place of each part
  uint32_t* const sorted = places + padded;                              // low bits of the key | its part << 16
  const int thread = threadIdx.x, lane = thread % 32;
  // Vectors begin on their boundary, up to a vector before the first key.
  const int64_t lead = kVectors ? reinterpret_cast<uintptr_t>(p.keys) % 16 / sizeof(Raw) : 0;
  const int64_t tiles = (p.length + lead + kScatterTile - 1) / kScatterTile;
  const char* const base = p.keys - lead * static_cast<int64_t>(sizeof(Raw));

  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    for (uint32_t part = thread; part < padded; part += kScatterThreads) places[part] = 0;
    uint32_t key[kScatterKeys];   // all ones: none
#pragma unroll
    for (int load = 0; load < kScatterKeys / kKeys; ++load) {
      const int64_t at = tile * kScatterTile + (int64_t(load) * kScatterThreads + thread) * kKeys - lead;
      if constexpr (kVectors) {
        KeyVector<Raw> v;
        const bool whole = at >= 0 && at + kKeys <= p.length;
        if (whole) v.load(base, (at + lead) / kKeys, 0);
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
          uint64_t k = ~0ull;
          if (whole) k = v.key(i);
          else if (at + i >= 0 && at + i < p.length) k = reinterpret_cast<const Raw*>(p.keys)[at + i];
          key[load * kKeys + i] = k < p.limit ? static_cast<uint32_t>(k) : ~0u;
        }
      } else {
        uint64_t k = ~0ull;
        if (at < p.length) k = *reinterpret_cast<const Raw*>(p.keys + at * p.key_stride);
        key[load] = k < p.limit ? static_cast<uint32_t>(k) : ~0u;
      }
    }
    __syncthreads();

    uint32_t rank[kScatterKeys];
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
        rank[group + k] = __shfl_sync(~0u, rank[group + k], __ffs(peers[k]) - 1) +
                                 __popc(peers[k] & ((1u << lane) - 1));
    }
    __syncthreads();

    // Each thread has neighbouring parts, so that the prefix over threads is that over parts.
    const uint32_t each = (padded + kScatterThreads - 1) / kScatterThreads, first = thread * each;
    uint32_t keys_of_thread = 0;
    for (uint32_t part = first; part < first + each && part < padded; ++part) keys_of_thread += places[part];
    uint32_t total;
    uint32_t place = prefix_of_block<uint32_t, kScatterThreads>(keys_of_thread, &total);
    for (uint32_t part = first; part < first + each && part < padded; ++part) {
      const uint32_t size = places[part];
      places[part] = place;
      if (size && part < parts.n_parts)
        shift[part] = static_cast<int64_t>(atomicAdd(&parts.cursors[part], static_cast<unsigned long long>(size))) - place;
      place += size;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kScatterKeys; ++k) {
      const uint32_t part = key[k] == ~0u ? parts.n_parts : key[k] >> kPartBits;
      sorted[places[part] + rank[k]] = part << 16 | (key[k] & (kPartBins - 1));
    }
    __syncthreads();
    const uint32_t inside = places[parts.n_parts];   // what is outside comes last
    for (uint32_t at = thread; at < inside; at += kScatterThreads) {
      const uint32_t one = sorted[at];
      parts.keys[shift[one >> 16] + at] = static_cast<uint16_t>(one);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kTableThreads, 1) count_parts(const CountProblem p, const Parts parts) {
  extern __shared__ uint4 table_memory[];
  uint32_t* const table = reinterpret_cast<uint32_t*>(table_memory);
  const TableSlots<false> slots(table, 0, blockIdx.x);
  const unsigned long long n_pieces = *parts.n_pieces;
  for (unsigned long long i = blockIdx.x; i < n_pieces; i += gridDim.x) {
    const Piece piece = parts.pieces[i];
    const int64_t size = static_cast<int64_t>(parts.sizes[piece.part]), from = piece.number * kPieceKeys;
    const uint16_t* const keys = parts.keys + parts.begins[piece.part] + from;
    clear_table(table, kPartBins);
    for_each_key<uint16_t, true, 4, true>(
        reinterpret_cast<const char*>(keys), 2, size - from < kPieceKeys ? size - from : kPieceKeys, 0, 1,
        [&](uint32_t key, bool valid, int64_t) { slots.increment(key, valid); });
    __syncthreads();
    const uint64_t first_bin = uint64_t(piece.part) << kPartBits;
    // Pieces of one part begin elsewhere, so that they do not all add to the same bins at once.
    for (uint32_t k = 0; k < kPartBins; k += kTableThreads) {
      const uint32_t bin = (k + piece.number * kTableThreads + threadIdx.x) % kPartBins;
      const uint32_t sum = table[slots.first(bin)];
      if (sum)
        atomicAdd(reinterpret_cast<unsigned long long*>(p.out + (first_bin + bin) * p.bin_stride),
                  static_cast<unsigned long long>(sum));
    }
    __syncthreads();
  }
}

}  // namespace upsweep
