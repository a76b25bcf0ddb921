// Sizes that were measured, not derived, in one place, with the processor and the month of the measurement. A result
// may depend on a size, never on the processor it runs on: no size is chosen at run time by what a processor reports.
//
//   processor                        L1d, ways     L2 a core    L3 of a group of cores   widest instructions
//   Zen 3 (EPYC 7003)                32 KiB, 8     512 KiB      32 MiB of 8              AVX2
//   Zen 4 (EPYC 9004)                32 KiB, 8     1 MiB        32 MiB of 8              AVX-512, 256 bits at a time
//   Zen 5 (EPYC 9005)                48 KiB, 12    1 MiB        32 MiB of 8              AVX-512
//   Sapphire Rapids (Xeon 8400)      48 KiB, 12    2 MiB        60 to 105 MiB of all     AVX-512
//
// All of them: lines of 64 bytes; 64 sets in the L1, so that addresses 4 KiB apart share a set.
#pragma once

#include <cstdint>

namespace upsweep {

constexpr int64_t kWorthAThread = 128 << 10;     // of input below which a thread costs more than it saves; Zen 5, 2026-11
constexpr double kThreadCost = 150000;           // the same of compiled tiles of pairs; Zen 5, 2026-11

// Scans by known recurrences; Zen 5, 2026-11, where nothing else is said.
namespace scan_tuning {
constexpr int64_t kBlockBytes = 256 << 10;       // of input: half of the smallest L2
constexpr int64_t kTaskBytes = 64 << 10;
constexpr int64_t kTileElements = 2048;          // of a buffer: 16 KiB of doubles, so that three of them fit the larger L1
constexpr int64_t kMaxStripLanes = 2048;         // their states stay in the L1, what is kept of each in the L2
// Outputs from this size on go past the cache: with its input, one fills 32 MiB. Of 16 to 512 MiB of float32, the time
// over that through the cache: Zen 4 0.5 to 0.9 in columns, 0.8 to 1.1 in lines; Xeon with 2 MiB of L2 and 1 to 16
// threads 0.6 to 1.1; Zen 5 0.7 for 1024 x 4096 along axis 0. What the system reports as the last level is no guide:
// inside a virtual machine it is the whole host's.
constexpr int64_t kStreamBytes = 16 << 20;
constexpr int64_t kMinStreamRow = 1024;          // bytes; of shorter ones the ends count; Zen 3 and Zen 5, 2026-11
constexpr int64_t kMaxCollectedRow = 4096;       // bytes of a row in a buffer, from which it goes past the cache; Zen 4, 2026-11
constexpr int64_t kCollectedBytes = 4 << 10;     // of that buffer, while 4 rows fit: reads and writes of memory take turns
constexpr int64_t kAhead = 4096;                 // bytes of a row of columns
constexpr int64_t kFewestIntegerColumns = 8;     // that are summed row by row; fewer one after the other; Zen 4, 2026-11
constexpr int64_t kFewGatheredColumns = 8;       // below which they go through the buffer as lines; Zen 4, 2026-11
}  // namespace scan_tuning

// Sums of windows; Zen 5, and columns on Zen 4, 2026-11.
namespace window_tuning {
constexpr int64_t kDirect = 64;                  // up to here K multiply-adds cost less than the set-up of a block
// Blocks in vectors: from here on they are worth their set-up (in lines of fewer than kShort elements, from kDirect
// on), and up to here their sums are read faster than elements are summed twice.
constexpr int64_t kFewest = 24, kMost = 1 << 17, kShort = 256;
constexpr int64_t kSegmentBytes = 256 << 10;
constexpr int64_t kRowBytes = 1 << 20;           // of a block of columns, at most: an L2
// Steps of columns: rows lie on pages of their own, where no hardware prefetcher looks.
constexpr int kAhead = 8;
}  // namespace window_tuning

// User-defined scans; Zen 5, 2026-11.
namespace user_scan_tuning {
constexpr int64_t kStripBytes = 8 << 10;         // of a row of columns that a task takes
constexpr int64_t kBlockBytes = 256 << 10;       // of a block's inputs and outputs: they stay in the cache from pass to pass
// Of an operand's line: what is read or written has gone from the caches before.
constexpr int64_t kBeyondCaches = 8 << 20;
constexpr int64_t kTileSteps = 64;               // of operands that go through tiles; of these far ahead, memory is fetched
constexpr int64_t kTileBytes = 8 << 10;          // fewer where nothing is fetched, so that all stay in the first cache
constexpr int64_t kRunSteps = 8;                 // with the states in registers; the rows of so many steps are open at once,
constexpr int64_t kRunBytes = 16 << 10;          // or of more, where rows are short
}  // namespace user_scan_tuning

// Counts and sums by key; Zen 5, 2026-11; where keys share bits or are counted in 16-bit numbers Zen 4, 2026-11.
namespace count_tuning {
constexpr int64_t kFewKeys = 4096;               // of which a row is counted in order
// 26 us of counting. A worker that is awake costs less than a microsecond (gcc's OpenMP), but where other work has its
// core the call waits for it.
constexpr int64_t kKeysWorthAThread = 1 << 16;
constexpr int64_t kTableBytes = 1 << 20;         // of a worker's 16-bit tables, or of its 32-bit table
constexpr int64_t kSlack = 80;                   // between tables: powers of two apart they would share a cache's sets
constexpr int64_t kNarrowBins = 16384;           // that are counted in 16-bit numbers: they fill an L1
constexpr int64_t kKeysOfANarrow = 4;            // keys a bin that are worth such tables
constexpr double kRepeatsOfCounts = 0.08;        // of the keys, from which on more tables gain: as in 25 bins
constexpr double kRepeatsOfSums = 0.7;           // where more tables also read more lines at a time
constexpr int64_t kAheadBytes = 2048;            // of keys that are asked for before they are counted
constexpr int64_t kBytesOfAll = 1 << 24;         // of byte tables that exceed the second cache, of all workers,
constexpr int64_t kKeysOfAByte = 4;              // keys a bin that are worth such tables
constexpr int kWorkersOfBytes = 4;               // whose tables are then at most as large as the result
constexpr int64_t kPartitionWorth = 1 << 19;     // keys
constexpr int64_t kPartitionBins = 1 << 22;      // of which one thread gains by it, of counts: they are in no cache
constexpr int kWorkersOfSums = 4;                // that gain by it, of weights,
constexpr int64_t kSumBins = 3 << 20;            // in fewer bins than these; 2^20 bins: 34 ms of one, 56 of two
constexpr int64_t kFewerThanBins = 4;            // bins a key of which only some of a bucket's cache lines are needed
constexpr int kFewestLowBits = 12;               // a bucket's counts fill the first cache
constexpr int kMostLowBits = 16;                 // and half the second
constexpr int64_t kWorthFetching = 32;           // bins a key, of a bucket whose lines are most of them needed
constexpr int64_t kAhead = 32;                   // keys: their bins are on the way while those before are added to
constexpr int64_t kCached = 1 << 17;             // numbers of a result that is not worth asking for
// Keys that share low bits are counted without them: their bins would be far apart and, 4 KiB apart, take one place in
// the first cache (Zen 4: 6 to 20 ns a key). In fewer bins than these all stay in that cache.
constexpr int64_t kSpreadBins = 4096;
constexpr int kSharedBits = 4;
}  // namespace count_tuning

namespace histogram_tuning {
constexpr int64_t kTableBytes = 512 << 10;       // of all tables in turn: half of an L2; Zen 5, 2026-11
// Thresholds a key that take as long as it takes to bisect them; Zen 4, 2026-11.
constexpr int64_t kKeysWorthATree = 32;
}  // namespace histogram_tuning

// Costs in instructions; Zen 5, 2026-11, and of lists of candidates Zen 4, 2026-11.
namespace pair_tuning {
constexpr double kGroupCost = 40000;             // that are worth a claim
constexpr double kTaskCost = 150;                // of a task besides its columns: packing, states
constexpr double kIntervalCost = 60;             // of an interval: the call, its last columns one by one
constexpr double kColumnsPenalty = 1.15;         // a vector of columns takes more loads than a spread number
constexpr int64_t kFewColumns = 128;             // times k: of fewer, lists in order insert them all in twice the usual time
// Of a larger sample: found by measuring k = 1 to 1000 in random and falling order.
constexpr double kWorth = 0.4;
}  // namespace pair_tuning

}  // namespace upsweep
