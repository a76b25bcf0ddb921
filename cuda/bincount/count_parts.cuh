// Counts of the keys of parts, in a table in shared memory: out[first bin of the part + low bits] += 1.
//
// Reads 2 bytes a key and adds 8 a bin and block. Each block has as many groups of keys as the others, of one part or of
// several parts one after the other, so that it has one table at a time and adds as few of them to memory as possible.
// Launched after partition.cuh or chunks.cuh.
#pragma once

#include "bincount/tables.cuh"

namespace upsweep {

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

constexpr int kGroupVectors = 32, kGroupKeys = kGroupVectors * kVectorKeys;   // that a warp reads at once

struct KeyGroup {
  int64_t vector;      // the first one
  uint32_t keys;
};

// Keys in one piece for each part.
__device__ inline uint32_t groups_of(const Parts& parts, uint32_t part) {
  return static_cast<uint32_t>((parts.sizes[part] + kGroupKeys - 1) / kGroupKeys);
}
__device__ inline KeyGroup group_of(const Parts& parts, uint32_t part, uint32_t group) {
  const int64_t before = int64_t(group) * kGroupKeys, left = static_cast<int64_t>(parts.sizes[part]) - before;
  return {static_cast<int64_t>(parts.begins[part] + before) / kVectorKeys,
          static_cast<uint32_t>(left < kGroupKeys ? left : kGroupKeys)};
}

// Keys in chunks.
__device__ inline uint32_t groups_of(const Chunks& chunks, uint32_t part) {
  return chunks.of_part[part] << (chunks.vectors_log2 - kGroupVectorsLog2);
}
__device__ inline KeyGroup group_of(const Chunks& chunks, uint32_t part, uint32_t group) {
  const int log2 = chunks.vectors_log2 - kGroupVectorsLog2;
  const Chunk chunk = chunks.list[int64_t(part) * chunks.most + (group >> log2)];
  const uint32_t of_chunk = group & ((1u << log2) - 1), before = of_chunk * kGroupKeys;
  const uint32_t left = chunk.keys > before ? chunk.keys - before : 0;
  return {(int64_t(chunk.number) << chunks.vectors_log2) + of_chunk * kGroupVectors,
          left < kGroupKeys ? left : kGroupKeys};
}

// 8 keys of a lane, and their weights.
template <bool kWeights>
struct LaneVector {
  uint32_t keys;       // so many of them
  KeyVector<uint16_t> low;
  uint4 of_weights[kWeights ? 2 : 1];
  template <class Source>
  __device__ void load(const Source& source, int64_t vector) {
    if (!keys) return;
    low.load(reinterpret_cast<const char*>(source.keys), vector, 0);
    if constexpr (kWeights)
      for (int i = 0; i < 2; ++i)
        of_weights[i] = load_vector(reinterpret_cast<const uint4*>(source.weights) + 2 * vector + i);
  }
  __device__ float weight(int i) const {
    const uint4 four = of_weights[i / 4];
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
    return __int_as_float(static_cast<int>(words[i % 4]));
  }
};

// The groups `first` to `last` of a part, by a block: use(vector of the lane) in all lanes together.
template <bool kWeights, class Source, class Use>
__device__ inline void for_each_vector(const Source& source, uint32_t part, uint32_t first, uint32_t last, Use use) {
  constexpr uint32_t kLoads = kWeights ? 1 : 2, kRounds = 32 / kLoads;   // whose groups the lanes look up together
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const uint32_t rounds = (last - first + warps * kLoads - 1) / (warps * kLoads);
  KeyGroup of_lane;
  LaneVector<kWeights> now[kLoads], next[kLoads];
  const auto load = [&](LaneVector<kWeights> (&to)[kLoads], uint32_t round) {
    if (round % kRounds == 0) {
      const uint32_t group = first + ((round + lane / kLoads) * warps + warp) * kLoads + lane % kLoads;
      of_lane = group < last ? group_of(source, part, group) : KeyGroup{0, 0};
    }
#pragma unroll
    for (uint32_t k = 0; k < kLoads; ++k) {
      const int from = round % kRounds * kLoads + k;
      const int64_t vector = __shfl_sync(~0u, of_lane.vector, from);
      const uint32_t n = __shfl_sync(~0u, of_lane.keys, from);
      to[k].keys = n > lane * kVectorKeys ? n - lane * kVectorKeys : 0;
      to[k].load(source, vector + lane);
    }
  };
  if (rounds) load(now, 0);
  for (uint32_t round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) load(next, round + 1);
#pragma unroll
    for (uint32_t k = 0; k < kLoads; ++k) {
      use(now[k]);
      now[k] = next[k];
    }
  }
}

// A block's share of the groups of all parts: count(part, its first group, its last) for one part after the other.
template <int kMost, class Source, class Count>
__device__ inline void for_each_part(const Source& source, Count count) {
  __shared__ uint32_t ends[kMost];   // of the groups of each part
  constexpr int kEach = (kMost + kTableThreads - 1) / kTableThreads;
  uint32_t groups[kEach], sum = 0, total;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t part = threadIdx.x * kEach + i;
    groups[i] = part < source.n_parts ? groups_of(source, part) : 0;
    sum += groups[i];
  }
  uint32_t end = prefix_of_block<uint32_t, kTableThreads>(sum, &total);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t part = threadIdx.x * kEach + i;
    end += groups[i];
    if (part < kMost) ends[part] = end;
  }
  __syncthreads();
  uint32_t at = static_cast<uint32_t>(uint64_t(total) * blockIdx.x / gridDim.x);
  const uint32_t stop = static_cast<uint32_t>(uint64_t(total) * (blockIdx.x + 1) / gridDim.x);
  uint32_t part = 0;   // the first that ends after `at`
  for (uint32_t step = kMost / 2; step; step /= 2)
    if (ends[part + step - 1] <= at) part += step;
  for (; at < stop; ++part) {
    const uint32_t begin = part ? ends[part - 1] : 0, last = ends[part] < stop ? ends[part] : stop;
    if (last == at) continue;
    count(part, at - begin, last - begin);
    at = last;
  }
}

template <class Source, int kMost>
__global__ void __launch_bounds__(kTableThreads, 1) count_parts(const CountProblem p, const Source source) {
  extern __shared__ uint4 table_memory[];
  uint32_t* const table = reinterpret_cast<uint32_t*>(table_memory);
  const TableSlots<false> slots(table, 0, blockIdx.x);
  for_each_part<kMost>(source, [&](uint32_t part, uint32_t first, uint32_t last) {
    clear_table(table, kPartBins);
    for_each_vector<false>(source, part, first, last, [&](const LaneVector<false>& of) {
#pragma unroll
      for (uint32_t i = 0; i < kVectorKeys; ++i) slots.increment(of.low.key(i), i < of.keys);
    });
    __syncthreads();
    add_table<unsigned long long>(p, table, slots, kPartBins, p.out, uint64_t(part) << kPartBits, blockIdx.x, false);
    __syncthreads();
  });
}

}  // namespace upsweep
