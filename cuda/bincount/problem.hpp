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

// Keys in parts by their high bits (bincount/partition.cuh).
constexpr int kPartBits = 15;                  // of a key, that stay within its part
constexpr uint32_t kPartBins = 1u << kPartBits;
constexpr int64_t kMostParts = 4096;
constexpr int64_t kPieceKeys = 1 << 17;        // of a part, for one block

struct Piece {
  uint32_t part, number;
};

// Lies in the workspace, in this order.
struct Parts {
  uint32_t n_parts;
  unsigned long long* sizes;           // keys of each part
  unsigned long long* begins;
  unsigned long long* cursors;         // where the next keys of each part go
  unsigned long long* n_pieces;
  Piece* pieces;
  uint16_t* keys;                      // the low bits of all keys, part by part
};

// Bytes of the workspace; sets the pointers into it.
inline int64_t lay_out_parts(int64_t n_parts, int64_t n_keys, void* workspace, Parts* parts) {
  char* const base = static_cast<char*>(workspace);
  int64_t bytes = 0;
  const auto take = [&](int64_t size) {
    char* const at = base + bytes;
    bytes += (size + 255) / 256 * 256;
    return at;
  };
  parts->n_parts = static_cast<uint32_t>(n_parts);
  parts->sizes = reinterpret_cast<unsigned long long*>(take(n_parts * 8));
  parts->begins = reinterpret_cast<unsigned long long*>(take(n_parts * 8));
  parts->cursors = reinterpret_cast<unsigned long long*>(take(n_parts * 8));
  parts->n_pieces = reinterpret_cast<unsigned long long*>(take(8));
  parts->pieces = reinterpret_cast<Piece*>(take((n_parts + n_keys / kPieceKeys) * int64_t(sizeof(Piece))));
  parts->keys = reinterpret_cast<uint16_t*>(take(n_keys * 2));
  return bytes;
}

}  // namespace upsweep
