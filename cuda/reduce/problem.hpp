// A reduction as the kernels see it: what a block of steps does to the state before it, for each line.
#pragma once

#include "scan/problem.hpp"

namespace upsweep {

// Of a chunk: a reset drops the state before it; one of its factors is 0, if their product is.
constexpr uint8_t kDrops = 1, kHasZero = 2;

struct Reduction {
  Problem scan;                  // final_state: the value; out: only a layout
  View multiplier, dropped;
  // Chunks of a line: of so many vectors along lines, of so many steps down columns.
  int64_t chunk, chunks;
  int32_t per, item;             // elements of a vector, and their bytes where lines are read by vectors, else 0
  int32_t lanes;                 // of a short line
  // What each chunk does, where a line has several: of one line, and of the next.
  int64_t chunk_step, line_step;
  char *factors, *values;
  uint8_t* marks;                // kDrops, kHasZero
};

}  // namespace upsweep
