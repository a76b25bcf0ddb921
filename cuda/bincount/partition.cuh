// Counts of more bins than tables hold: keys are put into parts by their high bits, then each part is counted in a
// table.
//
//   1. count_tables counts how many keys each part gets        reads the keys
//   2. plan_parts   where each part begins; the work list of 4
//   3. scatter_keys the low bits of the keys, part by part      reads the keys, writes 2 bytes each
//   4. count_parts  a table for each piece of a part            reads 2 bytes a key, writes 8 a bin
//
// For keys of 8 bytes that is 20 bytes each, where a read alone is 8.
//
// Speed may not depend on the keys: in 3, the rank of a key among those of its warp that go to the same part comes
// from one vote for each bit of the part's number, and only one lane for each part adds to a counter; in 4, a part of
// many keys is cut into pieces for many blocks, which add to bins that `clear_parts` has cleared.
#pragma once

#include "common/async_copy.cuh"
#include "bincount/peers.cuh"
#include "bincount/tables.cuh"

namespace upsweep {

constexpr int kScatterKeys = 16;               // of a thread
// Blocks of few threads where there are few parts: while one waits for memory or for its own threads, others run.
// Where parts are many, what each costs a block is shared by more keys.
constexpr int kFewParts = 256, kFewThreads = 256, kManyThreads = 512;
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

// Pieces of a part of so many keys; the bins of a part without any are written too.
__device__ inline uint32_t pieces_of(unsigned long long size) {
  return size ? static_cast<uint32_t>((size + kPieceKeys - 1) / kPieceKeys) : 1;
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
    pieces += part < parts.n_parts ? pieces_of(size[i]) : 0;
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
    for (uint32_t number = 0; number < pieces_of(size[i]); ++number) parts.pieces[piece++] = {part, number};
  }
  if (threadIdx.x == 0) *parts.n_pieces = n_pieces;
}

// Bytes of a block that scatters: where all parts and the keys outside are, the tile in order, and of a block of few
// threads the next tile. Others have no room for it.
inline int64_t scatter_bytes(uint32_t n_parts, int threads, int64_t key_bytes) {
  const int64_t of_key = 4 + (threads == kFewThreads ? key_bytes : 0);
  return (int64_t(n_parts) + 1 + 3) / 4 * 4 * 12 + int64_t(threads) * kScatterKeys * of_key;
}

// The keys of a thread: 16 bytes at a time; kStaged: copied into shared memory while the tile before is on its way
// out.
template <class Raw, int kThreads, bool kStaged>
struct KeyTile {
  static constexpr int kVec = 16 / sizeof(Raw), kLoads = kScatterKeys / kVec;
  const CountProblem& p;
  uint4* const stage;
  const int64_t lead;      // keys between the boundary of a vector and the first key
  const char* const base;  // that boundary

  __device__ KeyTile(const CountProblem& p_, uint4* stage_)
      : p(p_), stage(stage_), lead(reinterpret_cast<uintptr_t>(p_.keys) % 16 / sizeof(Raw)),
        base(p_.keys - lead * static_cast<int64_t>(sizeof(Raw))) {}
  __device__ int64_t tiles() const {
    return (p.length + lead + kThreads * kScatterKeys - 1) / (kThreads * kScatterKeys);
  }
  __device__ int64_t first_of(int64_t tile, int load) const {
    return (tile * kLoads + load) * kThreads * kVec + int64_t(threadIdx.x) * kVec - lead;
  }
  __device__ bool is_whole(int64_t first) const { return first >= 0 && first + kVec <= p.length; }
  // All vectors of the tile are whole: the same for all threads, and so for all tiles but the first and the last.
  __device__ bool is_inside(int64_t tile) const {
    constexpr int64_t kTile = int64_t(kThreads) * kScatterKeys;
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
  __device__ void take(int64_t tile, uint32_t (&key)[kScatterKeys]) const {
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
    for (int i = 0; i < kScatterKeys; ++i) {
      const int64_t at = first_of(tile, i / kVec) + i % kVec;
      uint64_t k = ~0ull;
      if (at >= 0 && at < p.length) k = all[at];
      key[i] = k < p.limit ? static_cast<uint32_t>(k) : ~0u;
    }
  }
};

// Keys of any stride.
template <class Raw, int kThreads>
struct StridedKeyTile {
  const CountProblem& p;
  __device__ StridedKeyTile(const CountProblem& p_, uint4*) : p(p_) {}
  __device__ int64_t tiles() const { return (p.length + kThreads * kScatterKeys - 1) / (kThreads * kScatterKeys); }
  __device__ void fetch(int64_t) const {}
  __device__ void take(int64_t tile, uint32_t (&key)[kScatterKeys]) const {
#pragma unroll
    for (int i = 0; i < kScatterKeys; ++i) {
      const int64_t at = (tile * kScatterKeys + i) * kThreads + threadIdx.x;
      uint64_t k = ~0ull;
      if (at < p.length) k = *reinterpret_cast<const Raw*>(p.keys + at * p.key_stride);
      key[i] = k < p.limit ? static_cast<uint32_t>(k) : ~0u;
    }
  }
};

template <class Raw, bool kVectors, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    scatter_keys(const CountProblem p, const Parts parts, int bits) {
  extern __shared__ uint4 scatter_memory[];
  using Tile = typename std::conditional<kVectors, KeyTile<Raw, kThreads, kThreads == kFewThreads>,
                                         StridedKeyTile<Raw, kThreads>>::type;
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

// The bins that several pieces add to.
__global__ void __launch_bounds__(kTableThreads) clear_parts(const CountProblem p, const Parts parts) {
  for (uint32_t part = blockIdx.x; part < parts.n_parts; part += gridDim.x) {
    if (pieces_of(parts.sizes[part]) == 1) continue;
    const int64_t first_bin = int64_t(part) << kPartBits;
    for (uint32_t bin = threadIdx.x; bin < kPartBins && first_bin + bin < p.n_bins; bin += kTableThreads)
      *reinterpret_cast<int64_t*>(p.out + (first_bin + bin) * p.bin_stride) = 0;
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
    const int64_t first_bin = int64_t(piece.part) << kPartBits;
    const bool alone = pieces_of(static_cast<unsigned long long>(size)) == 1;
    // Pieces of one part begin elsewhere, so that they do not all add to the same bins at once.
    for (uint32_t k = 0; k < kPartBins; k += kTableThreads) {
      const uint32_t bin = (k + piece.number * kTableThreads + threadIdx.x) % kPartBins;
      if (first_bin + bin >= p.n_bins) continue;
      const unsigned long long sum = table[slots.first(bin)];
      unsigned long long* const at =
          reinterpret_cast<unsigned long long*>(p.out + (first_bin + bin) * p.bin_stride);
      if (alone && !p.accumulate) *at = sum;
      else if (sum && alone) *at += sum;
      else if (sum) atomicAdd(at, sum);
    }
    __syncthreads();
  }
}

}  // namespace upsweep
