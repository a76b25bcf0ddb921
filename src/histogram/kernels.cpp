// Histograms: counts and sums by rank among thresholds (histogram/histogram.hpp).
//
// Bytes an element: its own, and its weight's, read once; the extremes read it once more. Called by bindings/_histograms.pyx.
//
// Blocks of kBlock elements stay in the L1 cache. One loop finds the rank of each, another counts: no branch depends on
// the data but one for a group of keys near thresholds, so that distributions take the same time, or nearly.
//
//   Uniform   two lines, (x - origin) * scale, a little apart: where they have one integer part, that is the rank. A
//             group of keys that has others is compared with the thresholds.
//   Tree      any other thresholds: the leaves of a static B-tree, whose nodes are cache lines. A level takes a key
//             the comparison with a line and the count of its bits, 6 instructions (AVX-512) to 15 (SSE4.2), and 17
//             or 9 children lie below a node: 5 levels (float), 6 (double) for 100,000 thresholds, however they are
//             spaced. Eight keys go down together: a level waits 20 cycles for its load, comparison and count.
//   Bisect    few keys, which are not worth that anything is prepared for them.
//
// Each thread has tables of 32-bit counters (64-bit sums) of its own, kTables in turn while they fit the cache, because
// an increment of the slot just incremented waits for the store before it. Sums are taken over fixed chunks and the
// chunks' tables added in order: the same bits for any number of threads.

#include <cmath>
#include <memory>
#include <vector>

#include "common/buffer.hpp"
#include "common/tuning.hpp"
#include "histogram/keys.hpp"
#include "common/parallel.hpp"

namespace upsweep {
namespace {

using namespace histogram_tuning;

constexpr int64_t kSumChunk = 1 << 17;            // and of one that sums, at least
constexpr int64_t kMaxSumChunks = 64;
constexpr int kTables = 4;
constexpr int64_t kBytesOfWork = 4;               // an element costs a thread what reading four bytes would, or more
constexpr int64_t kFull = INT64_C(1) << 31;       // elements after which counters of 32 bits are emptied
constexpr int64_t kMostExact = 1 << 23;           // ranks that a float holds, and their halves
constexpr int64_t kGroup = 64;                    // keys that are looked at again if one is near a threshold
constexpr int64_t kMergeSlots = 1 << 14;          // a task's share when tables are added
constexpr int64_t kPollBlocks = 64;

// ---- ranks ---------------------------------------------------------------------------------------------------------

// What places on a line are calculated in.
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

// Nodes of a tree hold uint64_t as int64_t in the same order, which all instruction sets compare.
template <class Key>
using NodeKey = std::conditional_t<std::is_same_v<Key, uint64_t>, int64_t, Key>;
template <class Key>
inline NodeKey<Key> to_node_key(Key key) {
  if constexpr (std::is_same_v<Key, uint64_t>) return (int64_t)(key ^ UINT64_C(1) << 63);
  else return key;
}

// Comparisons with the keys of a node, a cache line in increasing order: as many bits as the keys that are at most this
// key, times kBits. A NaN is at least none.
#if defined(__AVX512F__)
template <class T>
constexpr int kBits = 1;
inline uint64_t count_bits(uint64_t mask) {
  asm("" : "+r"(mask));   // of a narrow type the compiler would extend both mask and count
  return _mm_popcnt_u64(mask);
}
inline uint64_t bits_at_most(const float* node, float key) {
  return count_bits(_mm512_cmp_ps_mask(_mm512_load_ps(node), _mm512_set1_ps(key), _CMP_LE_OQ));
}
inline uint64_t bits_at_most(const double* node, double key) {
  return count_bits(_mm512_cmp_pd_mask(_mm512_load_pd(node), _mm512_set1_pd(key), _CMP_LE_OQ));
}
inline uint64_t bits_at_most(const int64_t* node, int64_t key) {
  return count_bits(_mm512_cmple_epi64_mask(_mm512_load_si512(node), _mm512_set1_epi64(key)));
}
#elif defined(__SSE4_2__)
#if defined(__AVX2__)
constexpr int kVector = 32;
typedef __m256i NodeMask;
inline uint32_t pack_masks(const NodeMask* masks) {
  return (uint32_t)_mm256_movemask_epi8(_mm256_packs_epi32(masks[0], masks[1]));
}
#else
constexpr int kVector = 16;
typedef __m128i NodeMask;
inline uint32_t pack_masks(const NodeMask* masks) {
  const NodeMask low = _mm_packs_epi32(masks[0], masks[1]), high = _mm_packs_epi32(masks[2], masks[3]);
  return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(low, high));
}
#endif
template <class T>
constexpr int kBits = kVector * (int)sizeof(T) / 64;   // masks are packed to a vector of bytes, whose bits are moved
template <class T>
inline uint64_t bits_at_most(const T* node, T key) {
  typedef T Keys __attribute__((vector_size(kVector)));
  constexpr bool kIntegers = std::is_integral_v<T>;   // there is only "greater than" for vectors of these
  NodeMask masks[64 / kVector];
  for (int part = 0; part < 64 / kVector; ++part) {
    const Keys keys = ((const Keys*)node)[part];
    masks[part] = kIntegers ? (NodeMask)(keys > key) : (NodeMask)(keys <= key);
  }
  const uint64_t count = _mm_popcnt_u64(pack_masks(masks));
  return kIntegers ? kVector - count : count;
}
#else
template <class T>
constexpr int kBits = 1;
template <class T>
inline uint64_t bits_at_most(const T* node, T key) {
  uint64_t count = 0;
  for (int k = 0; k < (int)(64 / sizeof(T)); ++k) count += node[k] <= key;
  return count;
}
#endif

// A vector of nodes would be taken apart for the next load.
inline void keep_scalar(uint64_t& number) { asm("" : "+r"(number)); }

// A static B-tree. A node's keys are the first thresholds below its children but the first child.
template <class Key>
class Tree {
  typedef NodeKey<Key> Number;
  static constexpr int64_t kNode = 64 / sizeof(Key), kChildren = kNode + 1;
  static constexpr int kMostLevels = 12;
#if defined(__AVX512F__)
  static constexpr int kTogether = 16;
#else
  static constexpr int kTogether = 8;   // as many as there are registers for
#endif
  struct Level {
    int64_t begin, n_nodes;
  };
  Buffer<Number> numbers;
  Level levels[kMostLevels];   // from the leaves to the root
  int n_levels = 0;

 public:
  void fill(const Key* thresholds, int64_t m) {
    typedef std::numeric_limits<Number> Limits;
    const Number filling = kIntegers ? Limits::max() : Limits::quiet_NaN();
    int64_t begin = 0;
    for (int64_t n = (m + kNode - 1) / kNode; n_levels == 0 || levels[n_levels - 1].n_nodes > 1;
         n = (n + kChildren - 1) / kChildren) {
      levels[n_levels++] = {begin, n};
      begin += n * kNode;
    }
    numbers.assign(begin, filling);
    for (int64_t k = 0; k < m; ++k) numbers[k] = to_node_key(thresholds[k]);
    int64_t child_span = kNode;   // thresholds below a child
    for (int level = 1; level < n_levels; ++level, child_span *= kChildren) {
      Number* to = numbers.data() + levels[level].begin;
      for (int64_t at = child_span, child = 1; at < m; at += child_span, ++child)
        if (child % kChildren != 0) *to++ = to_node_key(thresholds[at]);
    }
  }

  // The ranks of n keys, of m thresholds.
  void find(const Key* keys, int64_t n, int64_t m, int32_t* ranks) const {
    int64_t first = 0;
    for (; first + kTogether <= n; first += kTogether) find_together<kTogether>(keys + first, m, ranks + first);
    for (; first < n; ++first) find_together<1>(keys + first, m, ranks + first);
  }

 private:
  // The largest integer may be at least the filling: the key before it is searched, and the rank corrected.
  static constexpr bool kIntegers = std::is_integral_v<Number>;

  template <int N>
  inline void find_together(const Key* keys, int64_t m, int32_t* ranks) const {
    constexpr uint64_t kBytes = kNode * sizeof(Number), kStep = kBytes / kBits<Number>;
    constexpr Number kMost = std::numeric_limits<Number>::max();
    uint64_t node[N] = {};   // its offset in bytes
    Number group[N];
    for (int k = 0; k < N; ++k) {
      group[k] = to_node_key(keys[k]);
      if constexpr (kIntegers) group[k] = std::min<Number>(group[k], kMost - 1);
    }
    for (int level = n_levels - 1; level > 0; --level) {
      const char* begin = (const char*)(numbers.data() + levels[level].begin);
      for (int k = 0; k < N; ++k) {
        node[k] = node[k] * kChildren + bits_at_most((const Number*)(begin + node[k]), group[k]) * kStep;
        keep_scalar(node[k]);
      }
    }
    for (int k = 0; k < N; ++k) {
      const Number* leaf = (const Number*)((const char*)numbers.data() + node[k]);
      uint64_t rank = node[k] / sizeof(Number) + bits_at_most(leaf, group[k]) / kBits<Number>;
      keep_scalar(rank);
      ranks[k] = (int32_t)(kIntegers && to_node_key(keys[k]) == kMost ? m : (int64_t)rank);
    }
  }
};

enum class Method { kUniform, kTree, kBisect };

template <class Key>
struct Ranks {
  const Key* at;
  int64_t m;
  Method method = Method::kUniform;
  Buffer<Key> padded;               // kUniform: the thresholds, and the last one repeated, for comparisons behind it
  Line<Key> line{};
  Real<Key> slack = 0;              // twice of what a place may be off
  Tree<Key> tree;

  Ranks(const Key* thresholds, int64_t n_thresholds, int64_t n_keys) : at(thresholds), m(n_thresholds) {
    if (n_keys * kKeysWorthATree < m) {
      method = Method::kBisect;
    } else if (!try_uniform()) {
      method = Method::kTree;
      tree.fill(at, m);
    }
  }

  // A line that maps the thresholds' span to [0, m - 1], plus 1; false where there is none.
  bool span() {
    const double low = (double)at[0], high = (double)at[m - 1], width = high - low;
    if (!(width > 0) || !std::isfinite(low) || !std::isfinite(width)) return false;
    line = Line<Key>{(Real<Key>)low, (Real<Key>)((double)(m - 1) / width), 1, (Real<Key>)m};
    return std::isfinite(line.scale) && std::isfinite(line.origin);
  }

  // Two lines around the ranks, `slack` apart. Neither ever falls, so the lower is at most the rank of any x if it is
  // at most k below E[k], for which k at E[k] suffices; and the upper at least the rank if it is k + 1 at each E[k].
  bool try_uniform() {
    if (m < 2 || m > kMostExact || !span()) return false;
    Real<Key> off = 0;
    for (int64_t k = 0; k < m; ++k)
      off = std::max(off, std::abs(((Real<Key>)at[k] - line.origin) * line.scale - (Real<Key>)k));
    // Enough for what the additions round; whether it is is looked at below. Slack of one would allow for three ranks.
    off = Real<Key>(1.5) * off + (Real<Key>)m * std::numeric_limits<Real<Key>>::epsilon();
    if (!(off < Real<Key>(0.5))) return false;
    slack = 2 * off, line.shift = 1 - off;
    const Line<Key> upper = above();
    for (int64_t k = 0; k < m; ++k)
      if (line(at[k]) > k || upper(at[k]) <= k) return false;
    padded.reserve(m + 1);
    padded.assign(at, at + m);
    padded.push_back(at[m - 1]);
    return true;
  }
  Line<Key> above() const {
    Line<Key> upper = line;
    upper.shift += slack;
    return upper;
  }

  void find_on_line(const Key* keys, int64_t n, int32_t* ranks) const {
    const Line<Key> lower = line, upper = above();
    const Key* edges = padded.data();
    const int32_t most = (int32_t)m;
    auto find_group = [=](const Key* group, int64_t count, int32_t* ranks_of_keys) {
      int32_t unsure = 0;
      for (int64_t k = 0; k < count; ++k) {
        ranks_of_keys[k] = lower(group[k]);
        unsure |= ranks_of_keys[k] ^ upper(group[k]);
      }
      if (unsure)
        for (int64_t k = 0; k < count; ++k) {
          const int32_t rank = ranks_of_keys[k];
          ranks_of_keys[k] = std::min(rank + (group[k] >= edges[rank]), most);
        }
    };
    int64_t first = 0;
    for (; first + kGroup <= n; first += kGroup) find_group(keys + first, kGroup, ranks + first);
    find_group(keys + first, n - first, ranks + first);
  }

  // The ranks of n keys.
  void find(const Key* keys, int64_t n, int32_t* ranks) const {
    switch (method) {
      case Method::kUniform: return find_on_line(keys, n, ranks);
      case Method::kTree: return tree.find(keys, n, m, ranks);
      case Method::kBisect:
        for (int64_t k = 0; k < n; ++k)
          ranks[k] = (int32_t)(std::partition_point(at, at + m, [=](Key edge) { return edge <= keys[k]; }) - at);
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
