// Scans by compiled steps: state[t] = f(state[t-1], x[t]), out[t] = g(state[t-1], x[t]), for every column.
//
// f and g come as one compiled function (python/upsweep/_compiler/llvm/scans/kernel.py), which takes some columns past some
// steps. Here are layouts, threads, and time in parallel. Every input and every output is moved once, unless time is
// parallel: then inputs are read twice, the second time from the cache.
//
// Columns are many: each goes through time on its own, in vectors of columns. Operands whose columns are neighbours
// are read and written in place, others through tiles of some steps of some columns.
//
// Columns are few, and what many steps do to a state can be combined: a column's time is cut into blocks, a block into
// chunks, which the vectors' lanes hold. Chunks are reduced, the states before them follow in order, and with these they
// are columns like others. Blocks are claimed in increasing order, so that waiting for the one before cannot deadlock.
#pragma once

#include <cstdint>
#include <vector>

namespace upsweep {

constexpr int kMostColumnDims = 32;
constexpr int kMostCombined = 4;     // states, where time is parallel

// What a compiled function reads and writes: the numbers of its first column at the first step, and the way to the next.
struct Stream {
  char* base;
  int64_t time_stride;   // bytes
};

// States are state[s * state_stride + column]; they are read first and written last. Columns of streams are neighbours,
// but for those inputs that are the same for all.
using Steps = void (*)(const Stream* streams, const void* params, void* state, int64_t state_stride, int64_t n_steps,
                       int64_t n_columns);
// A square of `lanes` numbers a side, turned.
using Turn = void (*)(const char* from, int64_t from_stride, char* to, int64_t to_stride);

enum OperandType : int32_t {
  kFloat32, kFloat64, kInt8, kInt16, kInt32, kInt64, kUInt8, kUInt16, kUInt32, kUInt64
};

// What chunks, contiguous, do to a state that begins at zero: _compiler/llvm/scans/chunk_aggregates.py. The first stream
// is a vector's lowest address; `powers` are of M, rests[s * n_chunks + chunk] the result.
using Sums = void (*)(const Stream* streams, const void* params, const void* powers, void* rests, int64_t n_chunks,
                      int64_t n_vectors);

struct ScanOperand {
  char* data = nullptr;
  int64_t time_stride = 0;                        // bytes, from a step to the next in the scan's order
  int64_t strides[kMostColumnDims] = {};          // bytes
  int32_t type = kFloat32;
  int32_t shared = 0;                             // an input of which all columns of the innermost dim have the same
  int32_t integer = 0;                            // computed with as an integer, whose 64 bits are in a kernel's number
};

struct StepsKernel {
  Steps steps = nullptr;
  Turn turn = nullptr;
  int32_t bits = 32, lanes = 1, group = 1;        // of the numbers; in a vector; columns that are taken at once,
  int32_t tiled = 1;                              // and through tiles, of rows in memory that are best few
  int32_t n_states = 0;
  std::vector<char> params;
};

struct SumsKernel {
  Sums sums = nullptr;                            // of kAffine that does not vary; none of others
  int32_t vectors_at_once = 1;
  std::vector<char> params;
};

// What many steps do to states, in numbers: of kAffine a matrix and a vector, then s -> matrix s + vector. Of the
// others, with one state, a shift and a bound: s -> max(s + shift, bound), min, or the logarithm of the sum of exp.
// kWinner: the states after the steps, from the worst; the better of two by the first of them is taken. kIntegers: as
// kAffine, of integers modulo 2^64, in the bits of the numbers; its matrix always varies.
enum CarryKind : int32_t { kAffine, kMaxPlus, kMinPlus, kLogAddExp, kMostWins, kLeastWins, kIntegers };

struct TimeParallel {
  StepsKernel reduce;                             // its states: the matrix or shift, if it varies, then the rest
  SumsKernel sums;
  int32_t kind = kAffine, varies = 0;
  int32_t decides = 0, keeps_ties = 1;            // of two states, which is compared, and whether the earlier one stays
  std::vector<double> matrix;                     // of one step, if it does not vary; or the shift
  std::vector<double> start;                      // of the reduction's states
};

struct UserScan {
  StepsKernel kernel;
  std::vector<ScanOperand> inputs, outputs;
  int32_t n_dims = 0;
  int64_t dims[kMostColumnDims] = {};
  int64_t length = 0, n_columns = 0;
  void* state = nullptr;                          // before and after, (states, columns)
  double cost = 1;                                // of a step of a vector, in vectors of memory
  int64_t n_threads = 1;
};

void scan_columns(const UserScan& scan);
void scan_in_chunks(const UserScan& scan, const TimeParallel& parallel);

}  // namespace upsweep
