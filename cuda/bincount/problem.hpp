// A count as the kernels see it: axes merged, sizes checked, passed to a launch by value.
#pragma once

#include <cstdint>

#include "scan/problem.hpp"

namespace upsweep {

// Rows of keys and, for each, a line of bins. Strides are in bytes.
struct CountProblem {
  const char* keys;
  char* out;                           // int64
  unsigned long long* dropped;         // nullptr: not asked for
  unsigned long long* first;
  int64_t length, rows, n_bins;
  int64_t first_position;              // of this launch's first key among all
  // Keys below it are counted: n_bins, or how many values a key of a signed dtype has from 0 on. Read as unsigned, a
  // negative key lies beyond it.
  uint64_t limit;
  int64_t key_stride, bin_stride;
  int32_t is_bool;                     // whatever is not 0 is 1
  int32_t accumulate;                  // add to out, where a kernel is the only one to write
  int32_t n_dims;
  int64_t shape[kDims];
  int64_t key_strides[kDims], out_strides[kDims];
};

// How a block's table in shared memory lies.
struct TableShape {
  uint32_t bins;                       // of one share; a multiple of 32
  int32_t replicas_log2;               // of each counter, for lanes that are so far apart
  int32_t shares;                      // the bins are cut into so many; each is counted by blocks of its own
  int64_t splits;                      // blocks that share a row
  int32_t shift;                       // a counter is for as many keys as so many low bits have values
  int32_t stores;                      // each bin is in the table of one block only, which writes it
};

// Beside the keys: a weight for each. out has any dtype.
struct SumProblem {
  CountProblem count;                  // its out and bin_stride are those of the sums
  const char* weights;
  int32_t weight_dtype, out_dtype;
  int32_t accumulate;
  int64_t weight_stride;
  int64_t weight_strides[kDims];
};

// How sums are shared out to blocks. Bins are cut into shares as those of a table of counters.
struct SumShape {
  int64_t bins;                        // of one share
  int64_t shares;
  int64_t splits;                      // blocks that share a row
  int32_t tables;                      // of a block
  int32_t replicas_log2;               // of each sum in a table that warps share
  int32_t bits;                        // of the number of a bin, up to `bins`
};

// Elements that are put into bins by their ranks among thresholds (bincount/ranks.cuh).
struct RankProblem {
  const void* thresholds;
  int64_t n_thresholds;
  double origin, scale;
  int32_t* guess_fails;                // in the workspace: how often the guess of a threshold is not its own number
  int32_t out_dtype;                   // of counts
};

// Bins of one width, whose thresholds the device computes (bincount/uniform.cuh).
struct UniformProblem {
  int32_t rule, edge_dtype, step_dtype;
  double first, last, step;
  int64_t n_bins;
  void* thresholds;                    // n_bins + 1, of the type that elements are compared in
  void* edges;                         // as many, of edge_dtype; rule UPSWEEP_HISTOGRAM
  char* counts;                        // to be cleared, or nullptr
  int64_t count_stride;
  int32_t count_bytes;                 // of one: 4 or 8
};

// Keys in parts by their high bits: in one piece each (bincount/partition.cuh), or in chunks (bincount/chunks.cuh).
constexpr int kPartBits = 15;                  // of a key, that stay within its part
constexpr uint32_t kPartBins = 1u << kPartBits;
constexpr int64_t kMostParts = 4096;
constexpr int kVectorKeys = 8;                 // low bits of keys in 16 bytes
constexpr int kGroupVectorsLog2 = 5;           // of what a warp reads at once
constexpr int kSumPartBits = 14;               // where sums of weights lie in a table
constexpr int64_t kMostChunkedParts = 63;      // and one for the keys outside
constexpr int kMostChunkVectorsLog2 = 8;
constexpr int kChunkWarps = 16;                // of a block that writes keys to chunks

// Lies in the workspace, in this order.
struct Parts {
  uint32_t n_parts;
  unsigned long long* sizes;           // keys of each part
  unsigned long long* begins;          // multiples of kVectorKeys
  unsigned long long* cursors;         // where the next keys of each part go
  uint16_t* keys;                      // the low bits of all keys, part by part
};

struct Chunk {
  uint32_t number, keys;
};

// Lies in the workspace, in this order; the first two are cleared before.
struct Chunks {
  uint32_t n_parts;
  int32_t vectors_log2;                // of a chunk
  uint32_t most;                       // chunks of a part
  uint32_t* n_chunks;                  // that are taken
  uint32_t* of_part;                   // so many of them by each part
  Chunk* list;                         // [part][most]
  uint16_t* keys;                      // [chunk][key]
  float* weights;                      // the same
};

// Hands out the memory of a workspace in multiples of 256 bytes, or counts its bytes if it has no address yet.
struct Workspace256 {
  char* base;
  int64_t bytes;
  template <class T>
  T* take(int64_t n) {
    char* const at = base + bytes;
    bytes += (n * int64_t(sizeof(T)) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
};

// Bytes of the workspace; sets the pointers into it.
inline int64_t lay_out_parts(int64_t n_parts, int64_t n_keys, void* workspace, Parts* parts) {
  Workspace256 memory = {static_cast<char*>(workspace), 0};
  parts->n_parts = static_cast<uint32_t>(n_parts);
  parts->sizes = memory.take<unsigned long long>(n_parts);
  parts->begins = memory.take<unsigned long long>(n_parts);
  parts->cursors = memory.take<unsigned long long>(n_parts);
  parts->keys = memory.take<uint16_t>(n_keys + n_parts * kVectorKeys);
  return memory.bytes;
}

// The same. Each of `blocks` leaves one chunk of each part unfinished. Chunks are as short as it takes to lose no more than a
// quarter of the keys' memory to them.
inline int64_t lay_out_chunks(int64_t n_parts, int64_t n_keys, int64_t blocks, bool weights, void* workspace,
                              Chunks* chunks) {
  Workspace256 memory = {static_cast<char*>(workspace), 0};
  int log2 = kGroupVectorsLog2;
  while (log2 < kMostChunkVectorsLog2 && 4 * blocks * n_parts * (kVectorKeys << (log2 + 1)) <= n_keys) ++log2;
  const int64_t finished = n_keys / (kVectorKeys << log2);
  chunks->n_parts = static_cast<uint32_t>(n_parts);
  chunks->vectors_log2 = log2;
  chunks->most = static_cast<uint32_t>(finished + blocks);
  chunks->n_chunks = memory.take<uint32_t>(1 + n_parts);
  chunks->of_part = chunks->n_chunks + 1;
  chunks->list = memory.take<Chunk>(n_parts * chunks->most);
  const int64_t room = (finished + n_parts * blocks) * (kVectorKeys << log2);
  chunks->keys = memory.take<uint16_t>(room);
  chunks->weights = memory.take<float>(weights ? room : 0);
  return memory.bytes;
}

}  // namespace upsweep
