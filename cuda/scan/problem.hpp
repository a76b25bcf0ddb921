// A scan as the kernels see it: axes merged, views with at most kDims of them, passed to a launch by value.
#pragma once

#include <cstdint>

#include "plan/tuning.hpp"

namespace upsweep {

constexpr int kMostSteps = 1 << 30;   // of a line that one block walks along
constexpr int kStridedElements = 8;   // that a lane takes of a line of any dtype and any strides
constexpr int kSubrunElements = 16;    // that are taken in float32 before a float64 is formed
// Neighbours on a line that a lane takes one after the other where lines are staged, for an element of `item` bytes.
constexpr int lane_elements(int64_t item) { return item == 2 ? 32 : item == 4 ? 16 : 8; }
// Vectors of a lane where the lanes of a cluster hold a line.
constexpr int cluster_vectors(int64_t item, bool gated) { return item == 2 || gated ? 2 : 4; }
// The same of tiles of the persistent scan: with gates half as many, so that all stages fit.
constexpr int persistent_elements(int64_t item, bool gated) { return lane_elements(item) / (gated ? 2 : 1); }
// Steps of a thread where columns are split.
constexpr int split_column_steps(int64_t item, bool gated) {
  const int64_t steps = ColumnTuning::kSplitBytes / (item * (gated ? 2 : 1));
  return static_cast<int>(steps < ColumnTuning::kMostSplitSteps ? steps : ColumnTuning::kMostSplitSteps);
}
constexpr int kDims = 6;   // axes besides the scan's that one launch takes; api/scan.cu loops over what is left

// A strided array. data is the first element in scan order, so that a reversed scan has negative strides.
struct View {
  char* data;
  int32_t dtype;
  int64_t time_stride;           // bytes
  int64_t strides[kDims];        // bytes; the last axis is the innermost
};

struct Problem {
  int64_t length, lines;
  int32_t n_dims;
  int32_t exclusive;
  int32_t writes;                // out is written; if not, its view is only a layout
  int64_t shape[kDims];
  View x, gates, reset, out, gamma, initial, final_state;
  double gamma_re, gamma_im;
};

// How windows along contiguous lines are cut (scan/window_lines.cuh): the steps of a tile, after those before it that are
// read. Indices are those of elements in shared memory.
struct WindowShape {
  static constexpr int kRun = 8, kBlock = 64, kUnit = 256;   // steps of a lane, of 8 runs, of a warp
  int64_t tiles;                   // of a line
  int32_t window;                  // steps that a result sums
  int32_t units;                   // of a tile
  int32_t runs, tail;              // whole runs in a window before a lane's run, and steps before those
  int32_t blocks, rest;            // whole blocks among the runs that 8 neighbouring runs have in common, and runs before those
  int32_t common;                  // units that all windows of a tile have in common and that are not read; 0: near
  int32_t lead;                    // steps before the tile of which the first ones are read: all but those units
  int32_t own_at;                  // of the tile's first element
  uint32_t elements;
  int32_t back;                    // from an element to the oldest of its run's last window
  int32_t oldest_block;            // of the whole blocks of the tile's first one
};

// How lines are cut that the shared memory of all processors holds (scan/resident_lines.cuh).
struct ResidentShape {
  int32_t parts;                   // of a line, a block each
  int32_t part_vectors;            // vectors of a part, of whole runs
  int32_t pieces, slots;           // of a part; of these in shared memory
};

// gamma's powers where it is one number for all lines; in this order (scan/tile.cuh).
struct GammaPowers {
  double gamma;
  double doubled[5];               // gamma^(a lane's elements << i)
  double group;                    // of 32 lanes
  double sub;                      // of a sub-run
  double before_lane[32];
  double most;                     // the highest that anything is multiplied by
};
constexpr int kGammaPowers = 40;   // of these; `most` is only looked at

// Where lines or columns are split over blocks, which wait for each other. All ones once wait_for_workspace() returns.
struct Workspace {
  uint32_t* counter;               // hands out the tiles in increasing order; the first to come finds ~0
  // What each tile does to a state, then the states after each (scan/look_back.cuh); of resident lines what each part adds.
  unsigned long long* tile_words;
};

}  // namespace upsweep
