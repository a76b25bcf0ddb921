// Sums of the weights of parts in a table in shared memory: sums[first bin of the part + low bits] += weight.
//
// Reads 6 bytes a key and adds 8 a bin and block. Launched after chunks.cuh by bincount/sums.cu, where bins are more
// than one table holds: additions in memory, one for each key, would take longer than to put the keys into parts.
#pragma once

#include "bincount/count_parts.cuh"
#include "bincount/sums.cuh"

namespace upsweep {

constexpr uint32_t kSumPartBins = 1u << kSumPartBits;

// A table of sums, and replicas for the lanes of those bins that many keys of a part have: additions of several lanes or warps
// to one sum would be loops that hinder each other.
struct SumPartMemory {
  static constexpr uint32_t kOften = 64;             // bins with replicas, at most
  static constexpr uint32_t kSamples = 32 * kGroupKeys;
  static constexpr uint32_t kLeast = kSamples / 256; // of the samples that a bin with replicas has
  double sums[kSumPartBins];                         // before, the samples are counted in them
  double replicas[kOften * 32];
  uint8_t number[kSumPartBins];                      // of the replicas of a bin and 1, or 0
  uint32_t bins[kOften], n_often;
};

// Clears the sums, and chooses the bins with replicas from the first keys.
__device__ inline void begin_sums(SumPartMemory& memory, const Chunks& chunks, uint32_t part, uint32_t first, uint32_t last) {
  uint32_t* const counts = reinterpret_cast<uint32_t*>(memory.sums);
  for (uint32_t i = threadIdx.x; i < kSumPartBins; i += kTableThreads) {
    counts[i] = 0;
    memory.number[i] = 0;
  }
  for (uint32_t i = threadIdx.x; i < SumPartMemory::kOften * 32; i += kTableThreads) memory.replicas[i] = 0;
  if (threadIdx.x == 0) memory.n_often = 0;
  __syncthreads();
  for_each_vector<false>(chunks, part, first, last < first + 32 ? last : first + 32, [&](const LaneVector<false>& of) {
#pragma unroll
    for (uint32_t i = 0; i < kVectorKeys; ++i)
      if (i < of.keys) atomicAdd(&counts[of.low.key(i)], 1u);
  });
  __syncthreads();
  for (uint32_t bin = threadIdx.x; bin < kSumPartBins; bin += kTableThreads) {
    if (counts[bin] < SumPartMemory::kLeast) continue;
    const uint32_t number = atomicAdd(&memory.n_often, 1u);
    if (number >= SumPartMemory::kOften) continue;
    memory.number[bin] = static_cast<uint8_t>(number + 1);
    memory.bins[number] = bin;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kSumPartBins; i += kTableThreads) memory.sums[i] = 0;
  __syncthreads();
}

template <bool kOften>
__device__ inline void add_part(SumPartMemory& memory, const Chunks& chunks, uint32_t part, uint32_t first, uint32_t last) {
  const uint32_t lane = threadIdx.x % 32;
  for_each_vector<true>(chunks, part, first, last, [&](const LaneVector<true>& of) {
    uint32_t bin[kVectorKeys];
    bool left[kVectorKeys];
    double weight[kVectorKeys];
#pragma unroll
    for (uint32_t i = 0; i < kVectorKeys; ++i) {
      left[i] = i < of.keys;
      bin[i] = left[i] ? of.low.key(i) : ~0u;
      weight[i] = of.weight(i);
    }
    const auto add = [&](uint32_t of_bin, double sum) {
      double* to = memory.sums + replica_slot(of_bin, 0);
      if constexpr (kOften)
        if (const uint32_t number = memory.number[of_bin]) to = memory.replicas + (number - 1) * 32 + lane;
      add_atomically(to, sum);
    };
    add_large_groups(bin, weight, left, add, add);
  });
}

__global__ void __launch_bounds__(kTableThreads, 1) sum_parts(int64_t n_bins, const Chunks chunks, double* sums) {
  extern __shared__ uint4 sum_memory[];
  SumPartMemory& memory = *reinterpret_cast<SumPartMemory*>(sum_memory);
  for_each_part<kMostChunkedParts + 1>(chunks, [&](uint32_t part, uint32_t first, uint32_t last) {
    begin_sums(memory, chunks, part, first, last);
    const uint32_t n_often = memory.n_often < SumPartMemory::kOften ? memory.n_often : SumPartMemory::kOften;
    if (n_often) add_part<true>(memory, chunks, part, first, last);
    else add_part<false>(memory, chunks, part, first, last);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_often * 32; i += kTableThreads)   // a warp for each bin
      add_atomically(memory.sums + replica_slot(memory.bins[i / 32], 0), memory.replicas[i]);
    __syncthreads();
    for (uint32_t k = 0; k < kSumPartBins; k += kTableThreads) {   // blocks begin at other bins
      const uint32_t bin = (k + blockIdx.x * kTableThreads + threadIdx.x) % kSumPartBins;
      const int64_t at = int64_t(part) * kSumPartBins + bin;
      const double sum = memory.sums[replica_slot(bin, 0)];
      if (at < n_bins && sum != 0) add_atomically(sums + at, sum);
    }
    __syncthreads();
  });
}

}  // namespace upsweep
