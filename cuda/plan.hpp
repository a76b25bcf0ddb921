// From a scan to the kernel that runs it: axes merged, regime chosen. Pure host code.
#pragma once

#include "scan_problem.hpp"
#include "upsweep_cuda.h"

namespace upsweep {

constexpr int64_t kCounterBytes = 256;   // of a workspace: the counter, alone in its line

enum Regime : int32_t { kNothing, kShortLines, kLines, kSplitLines, kColumns, kSplitColumns, kWindow, kPackedLines, kClusterLines };

// One launch's worth, and how often it is repeated over the axes that it leaves out.
struct Plan {
  Problem problem;
  Regime regime;
  bool typed;                      // x, gates and out have one real dtype (and lie contiguous, for lines)
  bool reverse;                    // of typed lines: memory runs against scan order
  bool gated;
  bool aligned;                    // typed lines: all of them begin on a vector's boundary, in every array
  bool simple;                     // lines that StagedEnds<true> may take
  int32_t width;                   // lanes of a short line
  int32_t warps;                   // of a block that walks along a line, or holds a part of it
  int32_t each;                    // packed lines of a warp
  bool long_runs;                  // split lines whose lanes take SplitTuning::kRunVectors vectors each
  int64_t tile, tiles;             // steps of a tile, tiles of a line
  int64_t blocks;                  // of 32 columns
  int64_t window, segments;        // steps that a result sums; segments of a line, of `segment` steps each
  int32_t segment;                 // 0: each result on its own
  int64_t aside;                   // of the workspace, where results wait that are to replace x; 0: none do
  int64_t workspace_bytes;
  int32_t n_outer;
  int64_t outer_shape[UPSWEEP_MAX_DIMS];
  int64_t outer_strides[7][UPSWEEP_MAX_DIMS];   // of x, gates, reset, out, gamma, initial, final_state
  int64_t n_launches;
};

// What a plan depends on.
struct Machine {
  int n_processors;
  bool clusters;                   // blocks of a cluster reach each other's shared memory
};

// nullptr, or what is wrong with the scan.
const char* make_plan(const upsweep_scan& scan, Machine machine, Plan* plan);

struct BackwardPlan {
  Problem problem;                 // x, gates, out (g, gates, gx): only `data`, which is the lowest address
  const char* y;
  char* g_gates;
  bool here;                       // the kernel is for these lines
  bool reverse;                    // of the pass that is made: the other way round than the scan's
  int32_t each;                    // packed lines of a warp; 0: a block walks along a line
  int32_t warps;                   // of such a block
  int64_t tiles;                   // of a line
};

// nullptr, or what is wrong with the request.
const char* make_backward_plan(const upsweep_lines_backward& lines, int n_processors, BackwardPlan* plan);

int64_t dtype_size(int32_t dtype);

// vec: elements of a lane; times: as Powers has it.
GammaPowers powers_of(double gamma, int vec, int times);

}  // namespace upsweep
