// Sizes that were measured, not derived, in one place. Measured on an H200 (132 processors), CUDA 13.0.
#pragma once

#include <cstdint>

namespace upsweep {

struct LineTuning {
  static constexpr int kWarps = 4;            // of a block
  // Vectors of 16 bytes that a lane holds of each array, without gates and with them, for vectors of 2, 4 and 8
  // elements (kVec / 4).
  static constexpr int kSegments[2][3] = {{4, 4, 2}, {4, 2, 2}};
  static constexpr int kBlocks = 5;           // a processor, which bounds the registers of a thread
  static constexpr int kShortWarps = 4;       // of a block of short lines
  static constexpr int kShortLines = 2;       // that a group of lanes works on at a time
  static constexpr int kShortBlocks = 5;
};

struct SplitTuning {
  static constexpr int kWarps = 8;
  // More in flight than LineTuning has: a tile lives long, since it waits for others.
  static constexpr int kSegments[2][3] = {{4, 4, 2}, {2, 2, 1}};
  static constexpr int kBlocks = 3;
  // Lines are split over blocks below this many of them a processor: fewer cannot keep the memory busy.
  static constexpr int kLinesPerProcessor = 4;
  static constexpr int kGroupTiles = 128;     // tiles of a line whose steps are folded at once
};

struct ColumnTuning {
  static constexpr int kWarps = 8;
  static constexpr int kSteps = 8;            // that a thread holds of its column
  static constexpr int kBlocks = 3;           // a processor
  // Columns are split over blocks below this many blocks of them a processor.
  static constexpr int kBlocksPerProcessor = 2;
  static constexpr int kSplitSteps = 16;
  static constexpr int kSplitBlocks = 2;
};

}  // namespace upsweep
