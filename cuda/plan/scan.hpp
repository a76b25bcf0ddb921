// From a scan to the kernel that runs it: axes merged, regime chosen. Pure host code.
#pragma once

#include "scan/problem.hpp"
#include "upsweep_cuda.h"

namespace upsweep {

constexpr int64_t kCounterBytes = 256;   // of a workspace: the counter, alone in its line

enum Regime : int32_t {
  kNothing, kShortLines, kLines, kSplitLines, kColumns, kSplitColumns, kWindow, kPackedLines, kClusterLines, kPersistentLines,
  kHeldColumns, kWideColumns, kResidentLines, kBlockLines
};

// What a launch leaves out: axes that it is repeated over, and the bytes that arrays move along them.
constexpr int kMostArrays = 9;
struct Outer {
  int32_t n;
  int64_t shape[UPSWEEP_MAX_DIMS];
  int64_t strides[kMostArrays][UPSWEEP_MAX_DIMS];
  int64_t n_launches;

  // Whether an array lies as far from a vector's boundary in each launch.
  bool keeps_vectors(int array) const {
    for (int dim = 0; dim < n; ++dim)
      if (strides[array][dim] % 16) return false;
    return true;
  }
  // Whether two of them lie as far from each other's.
  bool move_alike(int a, int b) const {
    for (int dim = 0; dim < n; ++dim)
      if ((strides[a][dim] - strides[b][dim]) % 16) return false;
    return true;
  }
};

// One launch's worth, and how often it is repeated. outer: of x, gates, reset, out, gamma, initial, final_state.
struct Plan {
  Problem problem;
  Regime regime;
  bool typed;                      // x, gates and out have one real dtype (and lie contiguous, for lines)
  bool reverse;                    // of typed lines: memory runs against scan order
  bool gated;
  bool aligned;                    // typed lines: all of them begin on a vector's boundary, in every array
  bool simple;                     // lines that StagedEnds<true> may take
  int32_t width;                   // lanes of a short line, or of a block's; columns of a block, of split ones
  int32_t warps;                   // of a block that walks along a line, or holds a part of it, or columns
  int32_t each;                    // packed lines of a warp; vectors of a lane of block lines; steps of a thread that holds a
                                   // part of a column
  bool long_runs;                  // split lines whose lanes take SplitTuning::kRunVectors vectors each
  int64_t tile, tiles;             // steps of a tile, tiles of a line
  int64_t blocks;                  // of 32 columns, or fewer
  int64_t window, segments;        // steps that a result sums; segments of a line, of `segment` steps each
  int32_t segment;                 // 0: each result on its own
  int64_t aside;                   // of the workspace: results that are to replace x; typed: a copy of x; 0: none
  int64_t workspace_bytes, invalid_bytes;   // so many of its first bytes are set to 0xff before each launch
  bool starts_early;               // while a kernel sets them (launch_after_fill)
  WindowShape shape;               // of windows along typed lines
  ResidentShape resident;
  Outer outer;                     // the last: make_plan sets only what is before it to 0
};

// What a plan depends on.
struct Machine {
  int n_processors;
  int cluster_blocks;              // of the largest cluster, whose blocks reach each other's shared memory; 1: there are none
  int shared_bytes;                // that one block can have
};

// nullptr, or what is wrong with the scan.
const char* make_plan(const upsweep_scan& scan, Machine machine, Plan* plan);

struct BackwardPlan {
  Problem problem;                 // x, gates, out (g, gates, gx): only `data`, which is the lowest address
  const char* y;
  char* g_gates;
  bool supported;                       // the kernel is for these lines
  bool reverse;                    // of the pass that is made: the other way round than the scan's
  int32_t each;                    // packed lines of a warp; 0: a block walks along a line
  int32_t warps;                   // of such a block
  int64_t tiles;                   // of a line
};

// nullptr, or what is wrong with the request.
const char* make_backward_plan(const upsweep_lines_backward& lines, int n_processors, BackwardPlan* plan);

// Runs a launch, which returns a status, with the views at each index of the outer axes in turn.
template <int n, class Launch>
int32_t for_each_launch(const Outer& outer, View* const (&views)[n], Launch launch) {
  char* bases[n];
  for (int i = 0; i < n; ++i) bases[i] = views[i]->data;
  for (int64_t index = 0; index < outer.n_launches; ++index) {
    int64_t rest = index;
    for (int i = 0; i < n; ++i) views[i]->data = bases[i];
    for (int dim = outer.n - 1; dim >= 0; --dim) {
      const int64_t at = rest % outer.shape[dim];
      rest /= outer.shape[dim];
      for (int i = 0; i < n; ++i)
        if (bases[i]) views[i]->data += at * outer.strides[i][dim];
    }
    if (const int32_t status = launch()) return status;
  }
  return UPSWEEP_OK;
}

// What plans of scans and of reductions have in common. The scan's arrays come first, in the order of their views;
// the others have no axis of time, and `out` is at least a layout.
constexpr int kScanArrays = 7;
enum ArrayIndex { kX, kGates, kReset, kOut, kGamma, kInitial, kFinal };
void lay_out(const upsweep_scan& scan, const upsweep_array* const* arrays, View* const* views, int n_arrays, Problem* p,
             Outer* outer);
// nullptr, or what is wrong with the scan's own fields.
const char* check_scan(const upsweep_scan& scan);

int64_t dtype_size(int32_t dtype);
bool is_typed(int32_t dtype);                     // a real floating one
// Whether every line of contiguous elements begins, in scan order, on a vector's boundary.
bool is_aligned(const View& view, const Problem& p, int64_t item);
// Whether steps are further apart in memory than neighbours of the innermost axis, of which there are enough.
bool runs_down(const Problem& p);
// Whether the columns are neighbours, and the first one of each step begins on a vector's boundary.
bool has_aligned_rows(const View& view, const Problem& p, int64_t item);

// plan/scan_windows.cpp: the part of make_plan for `window=`.
void plan_window(Plan& plan, int32_t accumulator);

// vec: elements of a lane; times: as Powers has it.
GammaPowers powers_of(double gamma, int vec, int times);

}  // namespace upsweep
