// Keys, and their weights, put into parts by their high bits in one pass: blocks append them to chunks of memory, and each
// part has a list of its chunks. Called by bincount/launch.cu and sums.cu where there are few parts; count_parts.cuh counts
// them, sum_parts.cuh adds them up.
//
// Reads the keys once and writes 2 bytes each, and 4 for a weight. A block sorts a tile of keys by parts in shared memory and writes the low
// bits of each part's keys 16 bytes at a time; what fills no 16 bytes waits for the next tile. A block has a chunk of its own
// for each part and takes the next one where it is full, so that it waits for no other block.
//
// Speed may not depend on the keys. Their ranks come from additions in shared memory, to a counter for each part and lane:
// no two lanes of a warp add to one word, or to one bank. Keys of a part lie in the order of lanes, and the lanes of a warp
// would write equal keys to one bank: 16-byte vectors are permuted within groups of 8.
#pragma once

#include "bincount/count_parts.cuh"
#include "bincount/key_tiles.cuh"

namespace upsweep {

constexpr int kChunkThreads = kChunkWarps * 32, kChunkBlocks = 2;   // a processor
static_assert(kChunkThreads * kChunkBlocks == 1024, "as many as CountPlan::scatter_warps");
// Keys of a thread; with weights two blocks a processor have room for half as many.
template <bool kWeights>
constexpr int kChunkKeys = kWeights ? 8 : 16;

// Where what a part has of a tile goes: vectors below `turn` to before + their number in the tile, the others to after +
// that; those from `end` on are not full.
struct PartOfTile {
  uint32_t end, turn, before, after;
};
// The chunk that a part is written to, its number in the list, its vectors; all keys of the part.
struct PartState {
  uint32_t chunk, entry, vectors, keys;
};

// kSets: sets of 32 parts, the last of which are the keys outside.
template <int kSets, bool kWeights>
struct ChunkMemory {
  static constexpr int kParts = 32 * kSets, kTile = kChunkThreads * kChunkKeys<kWeights>;
  static constexpr int kVectors = (kTile / kVectorKeys + 2 * kParts + 7) / 8 * 8;   // with what is carried, and ends
  PartOfTile segments[kParts];
  PartState states[kParts];
  uint4 tails[kParts];                 // keys that fill no vector
  uint4 sorted[kVectors];
  uint32_t counters[kParts * 32];      // by part and lane; then the first place of each
  uint32_t first_vector[kParts], sizes[kParts];
  // Of weights: those of the next tile, 32 bytes for each vector, those of the tails.
  float weights[kWeights ? kTile : 4];
  uint4 sorted_weights[kWeights ? 2 * kVectors : 1], tail_weights[kWeights ? 2 * kParts : 1];
  __device__ uint4* stage() { return reinterpret_cast<uint4*>(this + 1); }
  static constexpr int bytes(int key_bytes) { return static_cast<int>(sizeof(ChunkMemory)) + kTile * key_bytes; }
};

__device__ inline uint32_t permute_vector(uint32_t vector) { return vector ^ ((vector >> 3 ^ vector >> 6) & 7); }

// Whole vectors of keys have their weights copied as those are: kVec floats that lie at a multiple of kVec * 4 bytes.
template <class Tile>
__device__ inline void fetch_weights(const Tile& keys, const float* weights, int64_t tile, float* to) {
  constexpr int kVec = Tile::kVec;
#pragma unroll
  for (int load = 0; load < Tile::kLoads; ++load) {
    const int64_t first = keys.first_of(tile, load);
    float* const of_load = to + (load * kChunkThreads + threadIdx.x) * kVec;
    if (keys.is_whole(first) && reinterpret_cast<uintptr_t>(weights + first) % (kVec * 4) == 0) {
      copy_async<kVec * 4>(of_load, weights + first);
    } else {
      for (int i = 0; i < kVec; ++i)
        if (first + i >= 0 && first + i < keys.p.length) of_load[i] = weights[first + i];
    }
  }
  commit_copies();
}

// kWeights: float32, as contiguous as the keys.
template <class Raw, bool kVectors, int kSets, bool kWeights>
__global__ void __launch_bounds__(kChunkThreads, kChunkBlocks)
    scatter_to_chunks(const CountProblem p, const float* weights, const Chunks chunks) {
  extern __shared__ uint4 chunk_memory[];
  using Memory = ChunkMemory<kSets, kWeights>;
  constexpr int kKeys = kChunkKeys<kWeights>, kBits = kWeights ? kSumPartBits : kPartBits;
  using Tile = KeyTiles<Raw, kVectors, kChunkThreads, kKeys, true>;
  static_assert(kVectors || !kWeights, "weights are contiguous");
  constexpr int kParts = Memory::kParts;
  constexpr int kSharers = kChunkThreads / kParts, kEach = 32 / kSharers;   // threads of a part's counters; counters each
  using Own = typename std::conditional<kEach % 4 == 0, uint4, uint2>::type;   // that are read at a time
  constexpr int kOwn = sizeof(Own) / 4;
  constexpr uint32_t kOutside = Memory::kVectors * kVectorKeys;
  Memory& memory = *reinterpret_cast<Memory*>(chunk_memory);
  Own* const own_counters = reinterpret_cast<Own*>(memory.counters + threadIdx.x * kEach);
  const Tile keys(p, memory.stage());
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const uint32_t n_parts = chunks.n_parts, capacity = 1u << chunks.vectors_log2;
  uint4 *const vectors = reinterpret_cast<uint4*>(chunks.keys), *const weight_vectors = reinterpret_cast<uint4*>(chunks.weights);
  const int64_t tiles = keys.tiles();
  uint32_t carry[kSets] = {};   // keys in the tail of part set * 32 + lane; the same in all warps
  if (warp == 0)
#pragma unroll
    for (int s = 0; s < kSets; ++s) memory.states[s * 32 + lane] = {0, 0, capacity, 0};
  const auto fetch = [&](int64_t tile) {
    if constexpr (kWeights) fetch_weights(keys, weights, tile, memory.weights);
    keys.fetch(tile);
  };
  if (blockIdx.x < tiles) fetch(blockIdx.x);

  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
#pragma unroll
    for (int i = 0; i < kEach / kOwn; ++i) own_counters[i] = Own{};
    uint32_t key[kKeys], rank[kKeys];
    float weight[kWeights ? kKeys : 1];
    keys.take(tile, key);
    if constexpr (kWeights) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i)
        weight[i] = memory.weights[(i / Tile::kVec * kChunkThreads + thread) * Tile::kVec + i % Tile::kVec];
    }
    if (tile + gridDim.x < tiles) fetch(tile + gridDim.x);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kKeys; ++k)
      rank[k] = atomicAdd(&memory.counters[(key[k] == ~0u ? n_parts : key[k] >> kBits) * 32 + lane], 1u);
    __syncthreads();

    // Keys before those of each counter, within its part.
    uint32_t counter[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; i += kOwn) {
      const Own own = own_counters[i / kOwn];
      uint32_t counts[4] = {own.x, own.y};
      if constexpr (kOwn == 4) counts[2] = own.z, counts[3] = own.w;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        counter[i + j] = sum;
        sum += counts[j];
      }
    }
    uint32_t before = sum;
#pragma unroll
    for (int by = 1; by < kSharers; by *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, before, by, kSharers);
      if (thread % kSharers >= by) before += other;
    }
    if (thread % kSharers == kSharers - 1) memory.sizes[thread / kSharers] = before;
    before -= sum;
    __syncthreads();

    // By each warp alike: where each part's vectors begin.
    uint32_t total[kSets], start[kSets], n_vectors = 0;
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      const uint32_t part = s * 32 + lane;
      total[s] = part < n_parts ? carry[s] + memory.sizes[part] : 0;
      const uint32_t of_part = (total[s] + kVectorKeys - 1) / kVectorKeys;
      uint32_t inclusive = of_part;
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, inclusive, by);
        if (lane >= by) inclusive += other;
      }
      start[s] = n_vectors + inclusive - of_part;
      n_vectors += __shfl_sync(~0u, inclusive, 31);
      const uint32_t place = part < n_parts ? start[s] * kVectorKeys + carry[s] : kOutside;
      const uint32_t of_counters = __shfl_sync(~0u, place, thread / kSharers % 32);
      if (thread / kSharers / 32 == s) before += of_counters;
    }
#pragma unroll
    for (int i = 0; i < kEach; i += kOwn) {
      Own own;
      own.x = counter[i] + before, own.y = counter[i + 1] + before;
      if constexpr (kOwn == 4) own.z = counter[i + 2] + before, own.w = counter[i + 3] + before;
      own_counters[i / kOwn] = own;
    }
    uint32_t need[kSets], chunk[kSets], entry[kSets];   // chunks; the first one, its number in the list
    if (warp == 0) {
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        const uint32_t part = s * 32 + lane, full = total[s] / kVectorKeys;
        const uint32_t room = capacity - memory.states[part].vectors;
        memory.first_vector[part] = start[s];
        if (carry[s]) {
          const uint32_t to = permute_vector(start[s]);
          memory.sorted[to] = memory.tails[part];
          if constexpr (kWeights)
            for (int i = 0; i < 2; ++i) memory.sorted_weights[2 * to + i] = memory.tail_weights[2 * part + i];
        }
        need[s] = full > room ? (full - room + capacity - 1) >> chunks.vectors_log2 : 0;
        if (need[s]) {   // the answers are on their way while keys are put in order
          chunk[s] = atomicAdd(chunks.n_chunks, need[s]);
          entry[s] = atomicAdd(&chunks.of_part[part], need[s]);
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSets; ++s) carry[s] = total[s] % kVectorKeys;
    __syncthreads();

#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const uint32_t place = memory.counters[(key[k] == ~0u ? n_parts : key[k] >> kBits) * 32 + lane] + rank[k];
      const uint32_t permuted = permute_vector(place / kVectorKeys) * kVectorKeys + place % kVectorKeys;
      if (permuted >= kOutside) continue;
      reinterpret_cast<uint16_t*>(memory.sorted)[permuted] = static_cast<uint16_t>(key[k] & ((1u << kBits) - 1));
      if constexpr (kWeights) reinterpret_cast<float*>(memory.sorted_weights)[permuted] = weight[k];
    }
    if (warp == 0) {
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        const uint32_t part = s * 32 + lane, full = total[s] / kVectorKeys;
        PartState state = memory.states[part];
        PartOfTile segment = {start[s] + full, ~0u, (state.chunk << chunks.vectors_log2) + state.vectors - start[s], 0};
        if (need[s]) {
          const uint32_t room = capacity - state.vectors;
          Chunk* const list = chunks.list + int64_t(part) * chunks.most + entry[s];
          for (uint32_t i = 0; i < need[s]; ++i) list[i] = {chunk[s] + i, capacity * kVectorKeys};
          segment.turn = start[s] + room;
          segment.after = (chunk[s] << chunks.vectors_log2) - segment.turn;
          state.chunk = chunk[s] + need[s] - 1;
          state.entry = entry[s] + need[s] - 1;
          state.vectors = full - room - ((need[s] - 1) << chunks.vectors_log2);
        } else {
          state.vectors += full;
        }
        if (part < n_parts) state.keys += memory.sizes[part];
        memory.states[part] = state;
        memory.segments[part] = segment;
      }
    }
    __syncthreads();
    if (warp == 0)
#pragma unroll
      for (int s = 0; s < kSets; ++s)
        if (carry[s]) {
          const uint32_t part = s * 32 + lane, from = permute_vector(start[s] + total[s] / kVectorKeys);
          memory.tails[part] = memory.sorted[from];
          if constexpr (kWeights)
            for (int i = 0; i < 2; ++i) memory.tail_weights[2 * part + i] = memory.sorted_weights[2 * from + i];
        }
    for (uint32_t vector = thread; vector < n_vectors; vector += kChunkThreads) {
      uint32_t part = 0;   // the last one that begins at or before the vector
#pragma unroll
      for (uint32_t step = kParts / 2; step; step /= 2)
        if (memory.first_vector[part + step] <= vector) part += step;
      const PartOfTile segment = memory.segments[part];
      if (vector >= segment.end) continue;
      const uint32_t to = (vector < segment.turn ? segment.before : segment.after) + vector;
      const uint32_t from = permute_vector(vector);
      vectors[to] = memory.sorted[from];
      if constexpr (kWeights)
        for (int64_t i = 0; i < 2; ++i) weight_vectors[2 * int64_t(to) + i] = memory.sorted_weights[2 * from + i];
    }
  }

  if (warp != 0) return;
  unsigned long long counted = 0;
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
    const uint32_t part = s * 32 + lane;
    if (part >= n_parts) continue;
    PartState state = memory.states[part];
    counted += state.keys;
    if (carry[s]) {
      if (state.vectors == capacity) {
        state.chunk = atomicAdd(chunks.n_chunks, 1u);
        state.entry = atomicAdd(&chunks.of_part[part], 1u);
        state.vectors = 0;
      }
      const uint32_t to = (state.chunk << chunks.vectors_log2) + state.vectors;
      vectors[to] = memory.tails[part];
      if constexpr (kWeights)
        for (int64_t i = 0; i < 2; ++i) weight_vectors[2 * int64_t(to) + i] = memory.tail_weights[2 * part + i];
    }
    if (state.keys)
      chunks.list[int64_t(part) * chunks.most + state.entry] = {state.chunk, state.vectors * kVectorKeys + carry[s]};
  }
  if (!p.dropped) return;
  if (blockIdx.x == 0 && lane == 0) counted -= p.length;
  for (int by = 16; by; by /= 2) counted += __shfl_down_sync(~0u, counted, by);
  if (lane == 0 && counted) atomicAdd(p.dropped, 0ull - counted);
}

}  // namespace upsweep
