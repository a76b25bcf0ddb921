// From a reduction to the kernels that make it. Pure host code.
#pragma once

#include "plan/scan.hpp"
#include "reduce/problem.hpp"

namespace upsweep {

struct ReducePlan {
  Reduction reduction;
  Regime regime;                   // kNothing, kShortLines, kLines or kColumns
  int32_t accumulator;
  bool typed;                      // x and gates have one real dtype (and lie contiguous, for lines)
  bool gated;
  bool vectors;                    // typed columns: a thread takes a vector of them
  bool complex_factors;            // where states are complex
  int64_t values_at, marks_at;     // of the workspace, in bytes
  int64_t workspace_bytes;         // 0 where each line is one chunk
  int64_t tile;                    // steps of a chunk
  Outer outer;                     // of the scan's arrays, multiplier, dropped
};

// nullptr, or what is wrong with the reduction. It depends on no device.
const char* make_reduce_plan(const upsweep_reduction& reduction, ReducePlan* plan);
// Tells the kernels where the effects of chunks go.
void place_workspace(ReducePlan& plan, void* workspace);

}  // namespace upsweep
