// The scan problem as the drivers see it, and the kernels that they call.
//
//   y[t] = a[t] * y[t-1] + x[t]      along one axis, independently for every other index
//
// a is one number for each line (gamma), an array (gates), or 1. Reversal is a negative time stride: below
// this point every scan runs forward in "scan order".
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/gather.hpp"

namespace upsweep {

constexpr int kMaxDims = 64;   // numpy's limit

// What a state is held in: double for every real type, a pair of them for complex, 64 bits for integers.
enum Accumulator : int32_t { kReal, kComplex, kInteger };

// A strided array; strides in bytes. data == nullptr: the argument was not given.
struct Array {
  char* data = nullptr;
  int32_t dtype = kDouble;
  int32_t swapped = 0;                // bytes in the other order
  int64_t time_stride = 0;
  int64_t column_stride = 0;
  int64_t batch_strides[kMaxDims] = {};
};

struct ScanProblem {
  int64_t length = 0;
  int64_t columns = 1;                // the innermost of the other axes
  int32_t n_batch = 0;                // what is left of them, outermost first
  int64_t batch_shape[kMaxDims] = {};

  Array x, gates, out;
  Array reset;                        // one byte an element
  Array gamma;                        // no time axis; absent with gates: a is 1
  Array initial, final_state;         // no time axis
  Array multiplier;                   // product of all gates, factor's type; asked for by *_carry, which write no out

  int32_t accumulator = kReal;
  int32_t exclusive = 0;              // y[t] is the state before step t
  int32_t flush = 0;                  // subnormals count as zero
  int32_t n_threads = 1;
  int64_t window = 0;                 // 0: none
};

// Whether what the states are multiplied by is real: then it is held in a double, also under complex states.
inline bool has_real_factor(const ScanProblem& p) { return (p.gates.data ? p.gates : p.gamma).dtype < kComplexFloat; }

// ---- one line in contiguous memory ------------------------------------------------------------------------

struct LineArgs {
  const void* x;                      // scan order's first element; a reversed line runs downwards from it
  const void* gates;                  // nullptr: gamma
  const uint8_t* reset;               // nullptr: none
  void* out;                          // nullptr: only the final state is wanted
  int64_t n;
  double gamma;
  double carry;                       // the state before the first step; not read when first
  bool first;                         // there is no state before the first step
  bool exclusive;
  int32_t stream;                     // write past the cache where alignment allows
  int64_t ahead;                      // steps from here to those that this worker reads next, 0: unknown
};

// What a block does to the state before it: state -> multiplier * state + value.
struct Reduced {
  double multiplier, value;
  double min_gate, max_gate;          // of |a|; tell a product that underflowed from one that is zero
  double growth, reach;               // no state of the block is larger than growth * |state before| + reach
  bool in_order;                      // gates whose products may leave the range of a double in between
};

// States below this stay finite in whatever order a block is summed, its rounding included. Above it, only the plain
// loop tells which of them overflow on the way, and never come back.
constexpr double kLargestState = 0x1p1020;
// Above all tokens that are narrower than a double: no number of them adds up to kLargestState.
constexpr double kNarrowToken = 0x1p128;

// DBL_MIN, and the bounds within which a product of kLanes gates stays normal.
constexpr double kSmallest = 0x1p-1022;
constexpr double kGateLow = 0x1p-127, kGateHigh = 0x1p127;

// Lines of the same kind, bytes from one to the next: a short line costs less than the call that scans it.
struct Lines {
  int64_t n;
  int64_t x_stride, gates_stride, reset_stride, out_stride;
  double* carry;                      // one a line: the state before its first step, then after its last
};

typedef void LineScan(const LineArgs& first_line, const Lines&);   // LineArgs::carry is not read
typedef Reduced LineReduce(const LineArgs&);
// gate_dtype is dtype or kDouble.
LineScan* line_scan(int32_t dtype, int32_t gate_dtype, bool reverse);
LineReduce* line_reduce(int32_t dtype, int32_t gate_dtype, bool reverse);
// Those in float64 throughout; and those of float16 and bfloat16 with gates of the same type, in lanes of float32 where
// the numbers allow it. nullptr: there is none for this type, or for this instruction set.
LineScan* wide_line_scan(int32_t dtype, int32_t gate_dtype, bool reverse);
LineScan* half_line_scan(int32_t dtype, bool reverse);
LineReduce* wide_line_reduce(int32_t dtype, int32_t gate_dtype, bool reverse);
LineReduce* half_line_reduce(int32_t dtype, bool reverse);

// One line; returns the state after its last step.
inline double scan_one_line(LineScan* scan, const LineArgs& args) {
  double carry = args.carry;
  scan(args, {1, 0, 0, 0, 0, &carry});
  return carry;
}

// ---- windows of one line in contiguous memory -------------------------------------------------------------------

// A block of n_vectors vectors, the line's last one of fewer; its windows reach into the block before.
struct WindowArgs {
  const void* x;                      // scan order's first element of the block
  void* out;                          // nullptr: only what the next block needs is wanted
  int64_t n, n_vectors;
  int n_rest;                         // elements of a window beyond n_vectors vectors
  double gamma;
  const double* powers;               // gamma^(k * kLanes), k up to n_vectors
  double *sums, *rests;               // n_vectors vectors each, from block to block
  bool first;                         // the line's first block
  bool stream;
};
struct WindowResult {
  bool finite;                        // all that was written
  double largest;                     // of the finite float64 elements
};
typedef WindowResult LineWindow(const WindowArgs&);
LineWindow* line_window(int32_t dtype, bool reverse);

// A block of at most kWindowColumns neighbouring columns: `window` steps, the last block of all perhaps fewer.
constexpr int kWindowColumns = 32;
struct ColumnWindowArgs {
  const char* x;                      // the block's first step
  const uint8_t* reset;               // nullptr: none
  char* out;                          // nullptr: only what the next block needs is wanted; may be x
  int64_t x_stride, reset_stride, out_stride;   // from step to step, bytes
  bool reset_shared;                  // one reset for all columns of a step
  int64_t n, window, n_columns;
  const double* powers;               // gamma^k, normal numbers, k up to window
  double* rows;                       // window rows of kWindowColumns: from block to block
  bool first;                         // no block is before this one
};
typedef double ColumnWindow(const ColumnWindowArgs&);   // returns the largest finite token, of float64
ColumnWindow* column_window(int32_t dtype);

// ---- neighbouring lines, contiguous across ------------------------------------------------------------------

struct ColumnArgs {
  const char *x, *gates;              // gates nullptr: gamma
  const uint8_t* reset;
  char* out;
  int64_t x_stride, gates_stride, reset_stride, out_stride;   // from step to step, bytes
  bool gates_shared, reset_shared;    // one gate, one reset for all columns of a step
  int64_t n_steps, n_columns;
  const double* gamma;                // one a column
  double* carry;                      // one a column: state before, then after
  bool first, exclusive;
  int32_t stream;
};

struct ColumnKernels {
  void (*scan)(const ColumnArgs&);
  void (*reduce)(const ColumnArgs&, Reduced*);   // carry is not touched
};
ColumnKernels column_kernels(int32_t dtype, int32_t gate_dtype);

// ---- integers -----------------------------------------------------------------------------------------------------

// Lanes of integers, contiguous in time or, with `across`, from lane to lane.
struct IntegerArgs {
  const char* x;
  const uint8_t* reset;
  char* out;                          // nullptr: only the states are wanted
  int64_t x_stride, reset_stride, out_stride;                  // from step to step, bytes
  int64_t x_lane_stride, reset_lane_stride, out_lane_stride;
  int64_t n_steps, n_lanes;
  uint64_t* state;                    // one a lane: before, then after; 0 where there is none before
  bool across, exclusive;
};
typedef void IntegerScan(const IntegerArgs&);
// out_dtype is an integer of 4 or 8 bytes.
IntegerScan* integer_scan(int32_t dtype, int32_t out_dtype);

// ---- drivers --------------------------------------------------------------------------------------------------

// Runs the problem; everything has been checked. Touches no Python object.
void run_scan(const ScanProblem& problem);
void run_window(const ScanProblem& problem);

// Sorts and merges the axes of `problem` as numpy strides give them: n_dims other axes in batch_shape and
// batch_strides, columns still 1. Afterwards columns is the innermost axis.
void collapse_axes(ScanProblem& problem);

}  // namespace upsweep
