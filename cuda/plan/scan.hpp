// From a scan to the kernel that runs it. Pure host code.
#pragma once

#include "plan/layout.hpp"

namespace upsweep {

constexpr int64_t kCounterBytes = 256;   // of a workspace: the counter, alone in its line

enum Regime : int32_t {
  kNothing, kShortLines, kLines, kSplitLines, kColumns, kSplitColumns, kWindow, kPackedLines, kClusterLines, kPersistentLines,
  kHeldColumns, kWideColumns, kResidentLines, kBlockLines
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

// nullptr, or what is wrong with the scan's own fields.
const char* check_scan(const upsweep_scan& scan);

// Parts of make_plan, each in the file of its name: scans down columns, along lines, and with `window=`.
void plan_columns(Plan& plan, int32_t accumulator, Machine machine);
void plan_lines(Plan& plan, int32_t accumulator, Machine machine);
void plan_window(Plan& plan, int32_t accumulator);

// Bytes of a counter in a line of its own, and of the tile states (scan/look_back.cuh, scan/split_columns.cuh) of tiles and
// groups of `lanes` lines each.
int64_t workspace_of(int64_t tiles, int64_t groups, int64_t lanes, int32_t accumulator);

// vec: elements of a lane; times: as Powers has it.
GammaPowers powers_of(double gamma, int vec, int times);

}  // namespace upsweep
