// From the plan of a count to its launches.
#include "bincount/launch.hpp"

#include <algorithm>

#include "bincount/chunks.cuh"
#include "bincount/global.cuh"
#include "bincount/partition.cuh"
#include "bincount/range.cuh"
#include "bincount/rows.cuh"
#include "bincount/tables.cuh"

namespace upsweep {
namespace {

template <class Raw, bool kVectors, bool kOwn, int kBlocks>
cudaError_t launch_tables(const CountPlan& plan, cudaStream_t stream) {
  const int bytes = static_cast<int>(plan.table.bins << plan.table.replicas_log2) * 4;
  auto* const kernel = count_tables<Raw, kVectors, kOwn, kBlocks>;
  // Up to 48 KiB, with what the kernel has of its own, need not be asked for.
  const cudaError_t error =
      bytes <= 36 * 1024 ? cudaSuccess
                         : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<uint32_t>(plan.blocks), kTableThreads, bytes, stream>>>(plan.problem, plan.table);
  return cudaGetLastError();
}

template <class Raw, bool kVectors>
cudaError_t launch_any_table(const CountPlan& plan, cudaStream_t stream) {
  if constexpr (sizeof(Raw) == 1) return launch_tables<Raw, kVectors, true, 2>(plan, stream);
  else if (plan.blocks_per_processor == 1) return launch_tables<Raw, kVectors, false, 1>(plan, stream);
  else if (plan.table.replicas_log2 == 5) return launch_tables<Raw, kVectors, true, 2>(plan, stream);
  else return launch_tables<Raw, kVectors, false, 2>(plan, stream);
}

template <int kMost, class Source>
cudaError_t launch_count_parts(const CountPlan& plan, const Source& source, cudaStream_t stream) {
  constexpr int kTableBytes = kPartBins * 4;
  auto* const kernel = count_parts<Source, kMost>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTableBytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<uint32_t>(plan.part_blocks), kTableThreads, kTableBytes, stream>>>(plan.problem, source);
  return cudaGetLastError();
}

template <class Raw, bool kVectors, int kSets>
cudaError_t launch_chunks(const CountPlan& plan, void* workspace, cudaStream_t stream) {
  const uint32_t blocks = static_cast<uint32_t>(plan.scatter_warps / kChunkWarps);
  Chunks chunks;
  lay_out_chunks(plan.n_parts, plan.problem.length, blocks, false, workspace, &chunks);
  cudaError_t error = cudaMemsetAsync(chunks.n_chunks, 0, (1 + plan.n_parts) * 4, stream);
  if (error != cudaSuccess) return error;
  auto* const kernel = scatter_to_chunks<Raw, kVectors, kSets, false>;
  constexpr int kBytes = ChunkMemory<kSets, false>::bytes(kVectors ? sizeof(Raw) : 0);
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  kernel<<<blocks, kChunkThreads, kBytes, stream>>>(plan.problem, nullptr, chunks);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return launch_count_parts<kMostChunkedParts + 1>(plan, chunks, stream);
}

template <class Raw, bool kVectors>
cudaError_t launch_parts(const CountPlan& plan, void* workspace, cudaStream_t stream) {
  const CountProblem& p = plan.problem;
  Parts parts;
  lay_out_parts(plan.n_parts, p.length, workspace, &parts);
  cudaError_t error = cudaMemsetAsync(parts.sizes, 0, plan.n_parts * 8, stream);
  if (error != cudaSuccess) return error;
  CountPlan sizes = plan;
  sizes.problem.out = reinterpret_cast<char*>(parts.sizes);
  sizes.problem.bin_stride = 8;
  error = launch_any_table<Raw, kVectors>(sizes, stream);
  if (error != cudaSuccess) return error;
  plan_parts<<<1, kPlanThreads, 0, stream>>>(parts);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;

  int bits = 0;   // of the number of a part, that of what is outside included
  while (plan.n_parts >> bits) ++bits;
  const bool few = plan.n_parts <= kFewParts;
  auto* const scatter = few ? scatter_keys<Raw, kVectors, kFewThreads> : scatter_keys<Raw, kVectors, kManyThreads>;
  const int threads = few ? kFewThreads : kManyThreads;
  const int bytes = static_cast<int>(scatter_bytes(parts.n_parts, threads, kVectors ? sizeof(Raw) : 0));
  error = cudaFuncSetAttribute(scatter, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  scatter<<<static_cast<uint32_t>(plan.scatter_warps * 32 / threads), threads, bytes, stream>>>(p, parts, bits);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;

  return launch_count_parts<kMostParts>(plan, parts, stream);
}

template <class Raw, bool kVectors>
cudaError_t launch_of_keys(const CountPlan& plan, void* workspace, cudaStream_t stream) {
  if (plan.regime == kCountGlobal) {
    count_global<Raw, kVectors>
        <<<static_cast<uint32_t>(plan.blocks), kGlobalThreads, 0, stream>>>(plan.problem, plan.splits);
    return cudaGetLastError();
  }
  if (plan.regime == kCountRows) {
    const int bytes = static_cast<int>(plan.table.bins) * 4 * (kRowThreads / 32);
    count_rows<Raw><<<static_cast<uint32_t>(plan.blocks), kRowThreads, bytes, stream>>>(plan.problem, plan.table.bins);
    return cudaGetLastError();
  }
  if constexpr (sizeof(Raw) >= 4)
    if (plan.regime == kCountParts)
      return !plan.chunked        ? launch_parts<Raw, kVectors>(plan, workspace, stream)
             : plan.n_parts <= 31 ? launch_chunks<Raw, kVectors, 1>(plan, workspace, stream)
                                  : launch_chunks<Raw, kVectors, 2>(plan, workspace, stream);
  return launch_any_table<Raw, kVectors>(plan, stream);
}

template <class Raw, bool kSigned>
cudaError_t launch_range_of(const CountPlan& plan, unsigned long long* range, cudaStream_t stream) {
  const uint32_t blocks = static_cast<uint32_t>(plan.blocks);
  if (plan.vectors)
    find_key_range<Raw, kSigned, true><<<blocks, kRangeThreads, 0, stream>>>(plan.problem, range, plan.splits);
  else
    find_key_range<Raw, kSigned, false><<<blocks, kRangeThreads, 0, stream>>>(plan.problem, range, plan.splits);
  return cudaGetLastError();
}

// Calls call(a value of the width of the keys).
template <class Call>
cudaError_t with_width(const CountPlan& plan, Call call) {
  switch (plan.key_bytes) {
    case 1: return call(uint8_t());
    case 2: return call(uint16_t());
    case 4: return call(uint32_t());
    default: return call(uint64_t());
  }
}

__global__ void __launch_bounds__(kGlobalThreads) clear_bins(const CountProblem p) {
  const int64_t n = p.rows * p.n_bins, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t row = i / p.n_bins;
    char* const at = p.out + row_offset(p, row, p.out_strides) + (i - row * p.n_bins) * p.bin_stride;
    *reinterpret_cast<int64_t*>(at) = 0;
  }
}

constexpr int64_t kMostBlocks = 1 << 16;

uint32_t blocks_for(int64_t n) {
  return static_cast<uint32_t>(std::min((n + kGlobalThreads - 1) / kGlobalThreads, kMostBlocks));
}

}  // namespace

cudaError_t launch_count(const CountPlan& plan, void* workspace, cudaStream_t stream) {
  return with_width(plan, [&](auto raw) {
    using Raw = decltype(raw);
    return plan.vectors ? launch_of_keys<Raw, true>(plan, workspace, stream)
                        : launch_of_keys<Raw, false>(plan, workspace, stream);
  });
}

cudaError_t launch_find_outside(const CountPlan& plan, cudaStream_t stream) {
  return with_width(plan, [&](auto raw) {
    const uint32_t blocks = std::min(blocks_for(plan.problem.rows * plan.problem.length), 1024u);
    find_outside<decltype(raw)><<<blocks, kGlobalThreads, 0, stream>>>(plan.problem);
    return cudaGetLastError();
  });
}

cudaError_t launch_clear(const CountPlan& plan, cudaStream_t stream) {
  const CountProblem& p = plan.problem;
  const int64_t n = p.rows * p.n_bins;
  if (n == 0) return cudaSuccess;
  const bool together =
      p.bin_stride == 8 && (p.rows == 1 || (p.n_dims == 1 && p.out_strides[0] == p.n_bins * 8));
  if (together) return cudaMemsetAsync(p.out, 0, n * 8, stream);
  clear_bins<<<blocks_for(n), kGlobalThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_begin_range(const CountPlan& plan, unsigned long long* range, cudaStream_t stream) {
  if (plan.is_signed) begin_key_range<true><<<1, 1, 0, stream>>>(range);
  else begin_key_range<false><<<1, 1, 0, stream>>>(range);
  return cudaGetLastError();
}

cudaError_t launch_key_range(const CountPlan& plan, unsigned long long* range, cudaStream_t stream) {
  return with_width(plan, [&](auto raw) {
    using Raw = decltype(raw);
    return plan.is_signed ? launch_range_of<Raw, true>(plan, range, stream)
                          : launch_range_of<Raw, false>(plan, range, stream);
  });
}

}  // namespace upsweep
