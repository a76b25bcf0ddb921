// Histograms: counts and sums by rank among thresholds (histogram/histogram.hpp).
//
// Bytes an element: its own, and its weight's, read once; the extremes read it once more. Called by bindings/_histograms.pyx.
//
// Blocks of kBlock elements stay in the L1 cache. A vectorised loop guesses the rank of each, another counts: no branch
// depends on the data but one for a group of keys near thresholds, so that distributions take the same time, or nearly.
// The guess never falls as x grows: what it is at the thresholds says how far it may be off, and is looked at first.
//
//   Uniform   two lines, (x - origin) * scale, a little apart: where they have one integer part, that is the rank. A
//             group of keys that has others is compared with the thresholds.
//   Line      a table of cells of equal width holds the rank at which each begins; bisection among as many thresholds
//             as the fullest cell has follows.
//   Leading   the same, cells being the leading bits of a floating number: for edges that grow with their distance.
//
// Each thread has tables of 32-bit counters (64-bit sums) of its own, kTables in turn while they fit the cache, because
// an increment of the slot just incremented waits for the store before it. Sums are taken over fixed chunks and the
// chunks' tables added in order: the same bits for any number of threads.

#include <cmath>
#include <memory>
#include <vector>

#include "common/buffer.hpp"
#include "histogram/keys.hpp"
#include "common/parallel.hpp"

namespace upsweep {
namespace {

constexpr int64_t kSumChunk = 1 << 17;            // and of one that sums, at least
constexpr int64_t kMaxSumChunks = 64;
constexpr int kTables = 4;
constexpr int64_t kTableBytes = 512 << 10;        // of all tables in turn: half of an L2 cache
constexpr int64_t kBytesOfWork = 4;               // an element costs a thread what reading four bytes would, or more
constexpr int64_t kFull = INT64_C(1) << 31;       // elements after which counters of 32 bits are emptied
constexpr int64_t kFewCells = 64;                 // of a grid
constexpr int64_t kCellsInReach = 1 << 14;        // 64 KiB
constexpr int64_t kMostCells = 1 << 18;           // 1 MiB
constexpr int64_t kMostExact = 1 << 23;           // ranks that a float holds, and their halves
constexpr int64_t kGroup = 64;                    // keys that are looked at again if one is near a threshold
constexpr int64_t kMergeSlots = 1 << 14;          // a task's share when tables are added
constexpr int64_t kPollBlocks = 64;

// ---- guesses -------------------------------------------------------------------------------------------------------

// What guesses are calculated in.
template <class Key>
using Real = std::conditional_t<std::is_same_v<Key, float>, float, double>;
// (key - origin) * scale + shift, held between 0 and `top`; 0 for a NaN. It never falls as the key grows.
template <class Key>
struct Line {
  Real<Key> origin, scale, shift, top;

  inline int32_t operator()(Key key) const {
    Real<Key> place = ((Real<Key>)key - origin) * scale + shift;
    place = place > 0 ? place : 0;
    return (int32_t)(place < top ? place : top);
  }
};

// The leading bits of a floating key's pattern: cells as fine as the numbers are. A NaN is in the first.
template <class Key>
struct Leading {
  Key low, high;
  Pattern<Key> base;
  int shift;

  // Patterns in the order of the numbers; adding 0 makes one of the two zeros.
  static inline Pattern<Key> ordered(Key key) {
    constexpr int kSign = 8 * sizeof(Key) - 1;
    Pattern<Key> bits;
    const Key number = key + Key(0);
    std::memcpy(&bits, &number, sizeof(Key));
    return bits ^ ((Pattern<Key>(0) - (bits >> kSign)) | Pattern<Key>(1) << kSign);
  }
  inline int32_t operator()(Key key) const {
    key = key > low ? key : low;
    key = key < high ? key : high;
    return (int32_t)((ordered(key) - base) >> shift);
  }
};

// Loads by index from a table, one by one: as vectors (gathers) they took three times as long on Zen 5.
inline void keep_scalar(int32_t& number) { asm("" : "+r"(number)); }

enum class Way { kUniform, kLine, kLeading };

template <class Key>
struct Ranks {
  int64_t m;
  Buffer<Key> thresholds;           // and the last one repeated, for comparisons behind it
  Way way = Way::kLine;
  Line<Key> line{};
  Real<Key> slack = 0;              // kUniform: twice of what a place may be off
  Leading<Key> leading{};
  int steps = 0;                    // comparisons after the guess: bisection among the thresholds of a cell
  std::vector<int32_t> cells;       // ranks at which the cells begin

  Ranks(const Key* edges, int64_t n_thresholds, int64_t n_keys) : m(n_thresholds), thresholds(edges, edges + m) {
    if (!try_uniform()) choose_cells(n_keys);
    thresholds.resize(m + (INT64_C(1) << steps), edges[m - 1]);
  }

  // A line that maps the thresholds' span to [0, size], plus `shift`; false where there is none.
  bool span(double size, double shift, double top) {
    const double low = (double)thresholds[0], high = (double)thresholds[m - 1], width = high - low;
    if (!(width > 0) || !std::isfinite(low) || !std::isfinite(width)) return false;
    line = Line<Key>{(Real<Key>)low, (Real<Key>)(size / width), (Real<Key>)shift, (Real<Key>)top};
    return std::isfinite(line.scale) && std::isfinite(line.origin);
  }

  // Two lines around the ranks, `slack` apart. Neither ever falls, so the lower is at most the rank of any x if it is
  // at most k below E[k], for which k at E[k] suffices; and the upper at least the rank if it is k + 1 at each E[k].
  bool try_uniform() {
    if (m < 2 || m > kMostExact || !span((double)(m - 1), 1, (double)m)) return false;
    Real<Key> off = 0;
    for (int64_t k = 0; k < m; ++k)
      off = std::max(off, std::abs(((Real<Key>)thresholds[k] - line.origin) * line.scale - (Real<Key>)k));
    // Enough for what the additions round; whether it is is looked at below. Slack of one would allow for three ranks.
    off = Real<Key>(1.5) * off + (Real<Key>)m * std::numeric_limits<Real<Key>>::epsilon();
    if (!(off < Real<Key>(0.5))) return false;
    slack = 2 * off, line.shift = 1 - off;
    const Line<Key> upper = above();
    for (int64_t k = 0; k < m; ++k)
      if (line(thresholds[k]) > k || upper(thresholds[k]) <= k) return false;
    way = Way::kUniform;
    return true;
  }
  Line<Key> above() const {
    Line<Key> upper = line;
    upper.shift += slack;
    return upper;
  }

  // The ranks at which cells begin; returns the steps of bisection in the fullest.
  template <class Cell>
  int fill(Cell cell_of, int64_t n_cells) {
    cells.assign(n_cells + 1, 0);
    for (int64_t k = 0; k < m; ++k) ++cells[cell_of(thresholds[k]) + 1];
    const int most = *std::max_element(cells.begin(), cells.end());
    for (int64_t cell = 0; cell < n_cells; ++cell) cells[cell + 1] += cells[cell];
    int needed = 1;
    while (INT64_C(1) << needed <= most) ++needed;
    return needed;
  }

  // Cells of equal width, or of equal numbers of floating numbers; as few as hold one threshold each, or nearly. One
  // cell to begin with.
  void choose_cells(int64_t n_keys) {
    line = Line<Key>{0, 0, 0, 0};
    steps = fill(line, 1);
    std::vector<int32_t> best_cells = cells;
    Line<Key> best_line = line;
    const int64_t most_cells = std::min(std::max(kMostCells, 8 * m), n_keys / 4);
    for (int64_t n_cells = kFewCells; n_cells <= most_cells; n_cells *= 4) {
      if (n_cells < m || steps == 1 || (steps == 2 && n_cells > kCellsInReach)) continue;
      if (span((double)n_cells, 0, (double)(n_cells - 1))) {
        const int needed = fill(line, n_cells);
        if (needed < steps) steps = needed, way = Way::kLine, best_line = line, best_cells.swap(cells);
      }
      if constexpr (std::is_floating_point_v<Key>) {
        Leading<Key> bits{thresholds[0], thresholds[m - 1], Leading<Key>::ordered(thresholds[0]), 0};
        const Pattern<Key> widest = Leading<Key>::ordered(bits.high) - bits.base;
        while (widest >> bits.shift >= (Pattern<Key>)n_cells) ++bits.shift;
        const int needed = fill(bits, n_cells);
        if (needed < steps) steps = needed, way = Way::kLeading, leading = bits, best_cells.swap(cells);
      }
    }
    cells.swap(best_cells);
    line = best_line;
  }

  void find_on_line(const Key* keys, int64_t n, int32_t* ranks) const {
    const Line<Key> lower = line, upper = above();
    const Key* at = thresholds.data();
    const int32_t most = (int32_t)m;
    auto find_group = [=](const Key* group, int64_t count, int32_t* ranks_of_keys) {
      int32_t unsure = 0;
      for (int64_t k = 0; k < count; ++k) {
        ranks_of_keys[k] = lower(group[k]);
        unsure |= ranks_of_keys[k] ^ upper(group[k]);
      }
      if (unsure)
        for (int64_t k = 0; k < count; ++k) ranks_of_keys[k] = std::min(ranks_of_keys[k] + (group[k] >= at[ranks_of_keys[k]]), most);
    };
    int64_t first = 0;
    for (; first + kGroup <= n; first += kGroup) find_group(keys + first, kGroup, ranks + first);
    find_group(keys + first, n - first, ranks + first);
  }

  // kSteps 0: as many as there are.
  template <int kSteps>
  void bisect_cells(const Key* keys, int64_t n, int32_t* ranks) const {
    const Key* at = thresholds.data();
    const int32_t* begin = cells.data();
    const int32_t most = (int32_t)m;
    const int count = kSteps ? kSteps : steps;
    for (int64_t k = 0; k < n; ++k) {
      int32_t rank = begin[ranks[k]];
      for (int step = count - 1; step >= 0; --step) {
        rank += (int32_t)(keys[k] >= at[rank + (INT32_C(1) << step) - 1]) << step;
        keep_scalar(rank);
      }
      ranks[k] = std::min(rank, most);
    }
  }
  template <class Cell>
  void find_in_cells(Cell cell_of, const Key* keys, int64_t n, int32_t* ranks) const {
    for (int64_t k = 0; k < n; ++k) ranks[k] = cell_of(keys[k]);
    switch (steps) {
      case 1: return bisect_cells<1>(keys, n, ranks);
      case 2: return bisect_cells<2>(keys, n, ranks);
      case 3: return bisect_cells<3>(keys, n, ranks);
      default: return bisect_cells<0>(keys, n, ranks);
    }
  }

  // The ranks of n keys.
  void find(const Key* keys, int64_t n, int32_t* ranks) const {
    switch (way) {
      case Way::kUniform: return find_on_line(keys, n, ranks);
      case Way::kLine: return find_in_cells(line, keys, n, ranks);
      case Way::kLeading:
        if constexpr (std::is_floating_point_v<Key>) return find_in_cells(leading, keys, n, ranks);
        return;
    }
  }
};

// ---- counts --------------------------------------------------------------------------------------------------------

// visit(k, turn, slot) for the keys of a block, in order.
template <class Key, class Visit>
inline void each_slot(const Ranks<Key>& ranks, const Key* keys, int64_t n, Visit visit) {
  int32_t ranks_of_keys[kBlock];
  ranks.find(keys, n, ranks_of_keys);
  int64_t k = 0;
  for (; k + kTables <= n; k += kTables)
    for (int turn = 0; turn < kTables; ++turn) visit(k + turn, turn, (int64_t)ranks_of_keys[k + turn]);
  for (; k < n; ++k) visit(k, 0, (int64_t)ranks_of_keys[k]);
}

// result[slot] += what the tables hold there, which is then 0.
template <class Entry, class Result>
void add_tables(Entry* tables, int64_t n_tables, int64_t stride, int64_t from, int64_t to, Result* result) {
  for (int64_t table = 0; table < n_tables; ++table) {
    Entry* entries = tables + table * stride;
    for (int64_t slot = from; slot < to; ++slot) result[slot] += entries[slot], entries[slot] = 0;
  }
}

// Tables of one thread begin on cache lines of their own.
template <class Entry>
int64_t table_stride(int64_t n_slots) {
  constexpr int64_t kLine = 64 / sizeof(Entry);
  return (n_slots + kLine - 1) / kLine * kLine;
}

template <class Key>
void count_in_order(const HistogramProblem& p, const Ranks<Key>& ranks) {
  alignas(64) Key buffer[kBlock];
  for (int64_t from = 0; from < p.n; from += kBlock) {
    const int64_t n = std::min(kBlock, p.n - from);
    each_slot(ranks, read_keys(p, from, n, buffer), n, [&](int64_t, int, int64_t slot) { ++p.counts[slot]; });
  }
}

template <class Key>
void count_in_tables(const HistogramProblem& p, const Ranks<Key>& ranks) {
  const int64_t n_slots = p.n_thresholds + 1, stride = table_stride<uint32_t>(n_slots);
  const int64_t n_tasks = (p.n + kChunk - 1) / kChunk;
  const int n_tables = stride * kTables * (int64_t)sizeof(uint32_t) <= kTableBytes ? kTables : 1;
  // More threads than this would spend longer on their tables than on elements.
  const int64_t worth = std::max<int64_t>(1, p.n / (n_slots * n_tables));
  const int n_threads = threads_worth(std::min<int64_t>(p.n_threads, worth), p.n * kBytesOfWork, n_tasks);
  const int64_t own = n_tables * stride;
  Buffer<uint32_t> tables(n_threads * own);
  std::vector<int64_t> held(n_threads, 0);
  for_tasks(n_tasks, n_threads, false, [&](int64_t task, int thread) {
    alignas(64) Key buffer[kBlock];
    uint32_t* table = tables.data() + thread * own;
    const int64_t start = task * kChunk, end = std::min(p.n, start + kChunk), turn_stride = n_tables > 1 ? stride : 0;
    for (int64_t from = start; from < end; from += kBlock) {
      const int64_t n = std::min(kBlock, end - from);
      each_slot(ranks, read_keys(p, from, n, buffer), n,
                [=](int64_t, int turn, int64_t slot) { ++table[turn * turn_stride + slot]; });
    }
    held[thread] += end - start;
    if (held[thread] < kFull) return;
    held[thread] = 0;
    for (int64_t entry = 0; entry < own; ++entry) {
      if (entry % stride < n_slots) __atomic_fetch_add(p.counts + entry % stride, table[entry], __ATOMIC_RELAXED);
      table[entry] = 0;
    }
  });
  const int64_t n_merges = (n_slots + kMergeSlots - 1) / kMergeSlots;
  for_tasks(n_merges, (int)std::min<int64_t>(n_threads, n_merges), false, [&](int64_t merge, int) {
    const int64_t from = merge * kMergeSlots, to = std::min(n_slots, from + kMergeSlots);
    add_tables(tables.data(), n_threads * n_tables, stride, from, to, p.counts);
  });
}

// ---- sums ----------------------------------------------------------------------------------------------------------

// How many chunks there are depends on n and the number of slots alone. A thread adds its table when the chunk before
// has been added.
template <class Key, class Sum>
void sum_in_tables(const HistogramProblem& p, const Ranks<Key>& ranks, Sum* sums) {
  const int64_t n_slots = p.n_thresholds + 1, stride = table_stride<Sum>(n_slots);
  const int n_tables = stride * kTables * (int64_t)sizeof(Sum) <= kTableBytes ? kTables : 1;
  const int64_t worth = std::max<int64_t>(1, p.n / (n_slots * n_tables));
  const int64_t n_chunks = std::min({(p.n + kSumChunk - 1) / kSumChunk, kMaxSumChunks, worth});
  const int64_t chunk = (p.n + n_chunks - 1) / n_chunks;
  const int n_threads = threads_worth(p.n_threads, p.n * kBytesOfWork, n_chunks);
  const int64_t own = n_tables * stride;
  Buffer<Sum> tables(n_threads * own);
  std::vector<std::atomic<uint8_t>> added(n_chunks);
  for_tasks(n_chunks, n_threads, false, [&](int64_t task, int thread) {
    alignas(64) Key key_buffer[kBlock];
    alignas(64) Sum weight_buffer[kBlock];
    Sum* table = tables.data() + thread * own;
    const int64_t start = std::min(p.n, task * chunk), end = std::min(p.n, start + chunk);
    const int64_t turn_stride = n_tables > 1 ? stride : 0;
    for (int64_t from = start; from < end; from += kBlock) {
      const int64_t n = std::min(kBlock, end - from);
      const Sum* weights = read_weights(p, from, n, weight_buffer);
      each_slot(ranks, read_keys(p, from, n, key_buffer), n,
                [=](int64_t k, int turn, int64_t slot) { table[turn * turn_stride + slot] += weights[k]; });
      if ((from - start) / kBlock % kPollBlocks == kPollBlocks - 1) poll();
    }
    if (task > 0) wait_for(added[task - 1]);
    add_tables(table, n_tables, stride, 0, n_slots, sums);
    publish(added[task]);
  });
}

}  // namespace

int32_t key_type(int32_t dtype) {
  switch (dtype) {
    case kInt64: return kInt64;
    case kUInt64: return kUInt64;
    case kInt32: case kUInt32: case kDouble: return kDouble;
    default: return kFloat;
  }
}

void run_histogram(const HistogramProblem& problem) {
  with_key_type(problem.dtype, [&](auto key) {
    using Key = decltype(key);
    const Ranks<Key> ranks((const Key*)problem.thresholds, problem.n_thresholds, problem.n);
    if (problem.sums) return sum_in_tables(problem, ranks, problem.sums);
    if (problem.weights) return sum_in_tables(problem, ranks, (uint64_t*)problem.counts);
    if (problem.n <= std::max(kBlock, problem.n_thresholds)) return count_in_order(problem, ranks);
    count_in_tables(problem, ranks);
  });
}

}  // namespace upsweep
