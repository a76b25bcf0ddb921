// Sizes that were measured, not derived, in one place. Measured on an H200 (132 processors), CUDA 13.0.
#pragma once

#include <cstdint>

namespace upsweep {

struct LineTuning {
  static constexpr int kWarps = 4;            // of a block, at most
  static constexpr int kBlocks = 5;           // a processor, which bounds the registers of a thread
  static constexpr int kPackedBlocks = 7;
  static constexpr int kTiles = 8;            // that a block of short lines takes one after the other
  static constexpr int kWaves = 4;            // blocks beside those that are resident, at least so many times
  // The last lines, so many times as blocks are resident, have a block each: all end at about the same time.
  static constexpr int64_t kSingleWaves = 2;
  static constexpr int kShortWarps = 4;       // of a block of short lines
  static constexpr int kShortBlocks = 6;
};

struct SplitTuning {
  static constexpr int kWarps = 4;
  static constexpr int kBlocks = 5;
  // Vectors of a lane, by [gated], where there are tiles enough of that size for each processor.
  static constexpr int kRunVectors[2] = {16, 8};
  static constexpr int kTilesPerProcessor = 4;
  // Lines are split over blocks below this many of them a processor: fewer cannot keep the memory busy.
  static constexpr int kLinesPerProcessor = 2;
};

// Lines of whole vectors and nothing else, one or two of them a lane.
struct BlockTuning {
  static constexpr int kThreads[2] = {256, 512};   // of a line that has a block, at most, by the vectors of a lane
  static constexpr int kGroupThreads = 128;        // of a block where a line takes at most a warp
  // Threads that a processor holds, which bounds the registers of each; the second: with gates and two vectors a lane.
  static constexpr int kResidentThreads[2] = {1536, 1024};
  // Vectors of a line with gates, at most: of others and of float64, where there are many lines of float32, or x has more
  // than kBytes. Longer ones are faster by blocks that prefetch.
  static constexpr int64_t kGatedVectors[2] = {512, 128}, kBytes = 8 << 20;
  static constexpr int kDoubleVectors = 256;       // of a line of float64 with gates, up to which a lane has one
  // A block iterates over the tiles of a longer line. Its warps, at least, and at most without and with gates: as many as
  // a processor holds if each line has a block, and it holds kWalkResident of the largest blocks.
  static constexpr int kLeastWarps = 4, kMostWarps[2] = {16, 8}, kWalkResident[2] = {2, 3};
  static constexpr int64_t kGatedBytes = 64 << 20;   // of x, with gates, up to which blocks iterate
};

// Lines of at most as many elements as a cluster, or one block, holds in registers.
struct ClusterTuning {
  static constexpr int kBlocks = 16;          // of a cluster, where a device has room for it
  static constexpr int kPortableBlocks = 8;   // what every device with clusters can have
  static constexpr int kWarps = 16;           // of a block, at most
  static constexpr int kResident = 2;         // blocks of so many warps a processor, which bounds the registers of a thread
  static constexpr int kLines = 16;           // that a cluster has each, at most
  // Lines that a block has each, with gates: of at least so many warps, and so many bytes of x in all, by the size of an
  // element: 2, 4, 8. More are faster by blocks that walk along a line and prefetch; sums too, unless their lines
  // would be split.
  static constexpr int kLeastWarps = 2;
  static constexpr int64_t kBytes[3] = {2 << 20, 8 << 20, 2 << 20};
};

// Few lines with tiles enough for every processor, one block on each.
struct PersistentTuning {
  static constexpr int kLines = 8;            // at most: tiles of more lines wait less for each other
  static constexpr int kWarps = 16;           // of a block that scan
  static constexpr int kStages = 6;           // tiles of 32 KB in shared memory; one less of 16-bit elements
  static constexpr int kAhead = 3;            // tiles that are reduced before they are scanned
  static constexpr int kMostBlocks = 160;     // five for each lane of the warp that folds
  static constexpr int kTilesPerProcessor = 8;
  static constexpr int kSharedBytes = 227 * 1024;
};

// Few lines, of one factor, that the shared memory of all processors holds, or most of them: a block on each.
struct ResidentTuning {
  static constexpr int kThreads = 512;
  static constexpr int kRun = 5;              // vectors of a lane's run, an odd number
  static constexpr int kMostPieces = 7;       // of a part, of a run a lane each: with more, too many do not fit
  static constexpr int kMostSlots = 5;        // pieces in shared memory, of 40 KB
  static constexpr int kMostParts = 160;      // of a line: five for each lane of the warp that adds them up
  static constexpr int kSharedBytes = 227 * 1024 - 2048;   // for all pieces; the kernel has more of its own
  static constexpr int64_t kLeastVectors = 2560;   // of a part: with less of it to do, the exchange is what takes long
};

// Three arrays are staged: 12 KB a warp.
struct BackwardTuning {
  static constexpr int kWarps = 2;            // of a block, at most: shared memory that needs no leave
  static constexpr int kBlocks = 8;           // a processor
};

struct ColumnTuning {
  static constexpr int kWarps = 8;
  static constexpr int kSteps = 8;            // that a thread holds of its column
  static constexpr int kBlocks = 3;           // a processor
  // Columns are split over blocks below this many blocks of them a processor.
  static constexpr int kBlocksPerProcessor = 2;
  static constexpr int kSplitBlocks = 4;      // a processor
  static constexpr int kAnySplitBlocks = 3;   // of kernels of any dtype
  // Of a thread's elements of its column, where columns are split, and steps at most: 32 KiB a block, so that the blocks
  // that are resident have enough on their way while they wait for states. In kernels of any dtype in registers.
  static constexpr int kSplitBytes = 128;
  static constexpr int kMostSplitSteps = 32;
  static constexpr int kAnySplitSteps = 8;
  // Blocks of 8 or 16 columns have longer tiles, if there are so many of them: two a processor.
  static constexpr int64_t kNarrowTiles = 264;
  // Tiles of a group, groups of a family. A tile reads the steps of half of each on average, and a family of 256 tiles
  // takes longer to read and write than to pass a state on.
  static constexpr int kGroup = 16;
};

// Columns that one block holds, all steps of them.
struct HeldTuning {
  static constexpr int kColumns = 8;          // of a block: 32 bytes of float32 of each step, the least that is read
  // Steps of a thread and warps of a block, the first one that holds all steps.
  struct Shape {
    int run, warps;
  };
  static constexpr Shape kShapes[] = {{8, 8}, {16, 8}, {16, 16}, {32, 16}};
  static constexpr int64_t kBlocks = 1 << 13;   // at most
};

// Columns of which a thread walks along each few.
struct WideTuning {
  static constexpr int kColumns = 2;          // of a thread
  static constexpr int kThreads = 64;         // of a block
  // Of a thread's elements on their way, and steps at most.
  static constexpr int kBytes = 256, kMostSteps = 32;
  static constexpr int64_t kLines = 32768;    // columns that fill the device: half as many are as fast in blocks of 32
};
// Steps of them on their way, for an element of `item` bytes.
constexpr int wide_steps(int64_t item, bool gated) {
  const int64_t steps = WideTuning::kBytes / (WideTuning::kColumns * item * (gated ? 2 : 1));
  return static_cast<int>(steps < WideTuning::kMostSteps ? steps : WideTuning::kMostSteps);
}

// Of what blocks of steps do to a state: nothing is written, and nobody waits for anyone.
struct ReduceTuning {
  static constexpr int kThreads = 128;        // of a block
  static constexpr int kBlocks = 5;           // a processor, which bounds the registers of a thread
  // Of a lane, on their way, by [gated]: vectors of each array along lines, steps down columns.
  static constexpr int kVectors[2] = {8, 4};
  static constexpr int kSteps[2] = {8, 4};
  static constexpr int kAnyVectors = 2;
  static constexpr int kShortVectors = 4;     // each of another line
  // Lines are cut into about so many chunks in all, unless there are so many lines. A chunk is so many times as long
  // as what its warp has on its way, at most.
  static constexpr int64_t kChunks = 16384;
  static constexpr int64_t kLines = 4096;
  static constexpr int64_t kTimes = 32;
  // Columns are cut into about so many threads' work, of at least so many steps each.
  static constexpr int64_t kColumnThreads = 1 << 18;
  static constexpr int64_t kColumnSteps = 128;
  static constexpr int64_t kColumnChunks = 1 << 15;   // of a column, at most
  // Chunks that one thread joins. Where there are more of a column, so many warps share them, up to so many; else the
  // threads of a block for each line.
  static constexpr int64_t kFewChunks = 8;
  static constexpr int kJoiningWarps = 16;
  static constexpr int64_t kWarpChunks = 512;
  static constexpr int kMostJoiners = 1024;
};

struct WindowTuning {
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 4;           // a processor, of windows along typed lines: bounds the registers
  static constexpr int64_t kTileBytes = 16384;   // of those
  static constexpr int kLaneSteps = 8;
  static constexpr int kSegment = 256;        // at most; a warp's lanes' steps
  static constexpr int kDirect = 16;          // windows below it are summed element by element,
  static constexpr int kDirectLine = 48;      // along contiguous lines only if the lines are shorter than this
};

struct CountTuning {
  static constexpr int kThreads = 1024;       // of a block with a table
  // Words of the table of a block that shares its processor with another one, or has it to itself, of an H200.
  static constexpr int kHalfWords = 28 * 1024;
  static constexpr int kWholeWords = 56 * 1024;
  // Above so many bins two tables a processor cost more to add up than two blocks gain.
  static constexpr int kHalfBins = 14 * 1024;
  // So many rows with so few bins are counted by a warp each.
  static constexpr int kRowsPerProcessor = 16;
  static constexpr int kRowBins = 1024;
  static constexpr int kRowWarps = 8;         // of a block
  // Times that keys of 8 bytes, and shorter ones, are read at most, for tables that share the bins.
  static constexpr int kWideShares = 2;
  static constexpr int kNarrowShares = 4;
  // Keys of a row from which on it pays to put them into parts, and bytes of shared memory that it takes.
  static constexpr int64_t kPartKeys = 1 << 21;
  static constexpr int64_t kMostPartKeys = int64_t(1) << 34;   // 16 bytes of their low bits have a number of 32 bits
  static constexpr int kPartShared = 148 * 1024;
  // Keys are added in memory one by one where there are so many times as many bins: to clear a table and add it up
  // would cost more.
  static constexpr int kFewKeysPerBins = 8;
};

struct SumTuning {
  static constexpr int kWarps = 16;           // of a block, at most: 128 registers a thread hold what is on its way
  static constexpr int kReplicaWarps = 32;    // of a block whose warps share tables
  static constexpr int kWarpKeys = 256;       // that a warp is to have at least
  static constexpr int kLeastTables = 5;      // of a block, one for each warp: fewer warps leave the memory idle
  static constexpr int kMostShares = 3;       // times that keys and weights are read, for tables that share the bins
  static constexpr int kPartShared = 168 * 1024;
  static constexpr int64_t kPieceKeys = 1 << 26;   // that are put into parts together: 6 to 8 bytes of the workspace each
};

}  // namespace upsweep
