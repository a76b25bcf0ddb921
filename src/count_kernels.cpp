// Counts of integer keys, first version: numpy's results, on several threads.
//
// Bytes a key: its own size, read twice (range, then count), and its weight's. Everything is read block by block, in
// place where it is contiguous and native, else through a buffer on the stack. The ways, by the number of bins:
//
//   in_tables   Each thread counts a contiguous part of the keys into a table of its own; kTables of them in turn while
//               they fit the cache, because an increment of the bin just incremented waits for the store before it.
//   in_bytes    Tables of 32-bit counters would exceed kTableBytes, those of bytes do not: one that wraps around adds
//               its 256 to the result.
//   in_ranges   The result exceeds the cache. Each thread reads all keys and counts those in its own range of the bins,
//               straight into the result, in the keys' order.
//   in_order    Few keys, one thread, or a result between these: straight into it.
//
// Sums of weights are taken over at most kMaxChunks fixed chunks and the chunks' tables added in order, or straight
// in the keys' order: numpy's own bits up to kChunk keys, and the same bits for any number of threads.

#include "count.hpp"

#include <cstring>
#include <type_traits>
#include <vector>

#include "parallel.hpp"

namespace upsweep {
namespace {

constexpr int64_t kChunk = 1 << 17;
constexpr int64_t kMaxChunks = 16;
constexpr int64_t kBlock = 1024;                   // keys, and weights, of a buffer
constexpr int kTables = 4;
constexpr int64_t kTableBytes = 1 << 20;           // of all tables of a thread
constexpr int64_t kManyBins = kTableBytes / 2 / (kTables * sizeof(uint32_t));   // kTables of them fit half the L2
constexpr int64_t kMaxRanges = 8;                  // all keys are read for each
constexpr int64_t kRangesBytes = 16 << 20;         // below, two threads gained nothing (Zen 5, 32 MiB of L3)
constexpr int64_t kPartKeys = INT64_C(1) << 31;    // as many as a counter of 32 bits can take

// ---- blocks of keys and weights ------------------------------------------------------------------------------------

template <class Key>
inline Key key_at(const char* keys, int64_t at) {
  Key key;
  std::memcpy(&key, keys + at * sizeof(Key), sizeof(Key));
  return key;
}

// visit(keys, first, n) for keys [from, to): native and side by side.
template <class Key, class Visit>
inline void each_block(const CountProblem& p, int64_t from, int64_t to, Visit visit) {
  if (p.stride == sizeof(Key) && !p.key_swapped) return visit(p.keys + from * p.stride, from, to - from);
  Key buffer[kBlock];
  for (int64_t first = from; first < to; first += kBlock) {
    const int64_t n = std::min(kBlock, to - first);
    const char* source = p.keys + first * p.stride;
    for (int64_t k = 0; k < n; ++k) {
      unsigned char bytes[sizeof(Key)];
      std::memcpy(bytes, source + k * p.stride, sizeof(Key));
      if (p.key_swapped) std::reverse(bytes, bytes + sizeof(Key));
      std::memcpy(buffer + k, bytes, sizeof(Key));
    }
    visit((const char*)buffer, first, n);
  }
}

// visit(weights, first, n) likewise.
template <class Visit>
inline void each_weights(const CountProblem& p, int64_t from, int64_t to, Visit visit) {
  const char* source = p.weights + from * p.weight_stride;
  const bool in_place = p.weight_dtype == kDouble && !p.weight_swapped && p.weight_stride == sizeof(double) &&
                        (uintptr_t)source % alignof(double) == 0;
  if (in_place) return visit((const double*)source, from, to - from);
  double buffer[kBlock];
  for (int64_t first = from; first < to; first += kBlock) {
    const int64_t n = std::min(kBlock, to - first);
    gather(p.weights + first * p.weight_stride, p.weight_stride, n, p.weight_dtype, p.weight_swapped, buffer);
    visit((const double*)buffer, first, n);
  }
}

// A negative key is a bin behind all others.
template <class Key>
inline uint64_t bin_at(const char* keys, int64_t at) { return (uint64_t)(int64_t)key_at<Key>(keys, at); }

// ---- range ---------------------------------------------------------------------------------------------------------

template <class Key>
KeyRange range_of(const CountProblem& p) {
  const int64_t n_tasks = (p.n + kChunk - 1) / kChunk;
  std::vector<KeyRange> found(n_tasks, KeyRange{0, 0, -1});
  const int n_threads = threads_worth(p.n_threads, p.n * (int64_t)sizeof(Key), n_tasks);
  for_tasks(n_tasks, n_threads, false, [&](int64_t task, int) {
    KeyRange& range = found[task];
    each_block<Key>(p, task * kChunk, std::min(p.n, (task + 1) * kChunk), [&](const char* keys, int64_t from, int64_t n) {
      Key low = key_at<Key>(keys, 0), high = low;
      for (int64_t at = 0; at < n; ++at) {
        const Key key = key_at<Key>(keys, at);
        low = std::min(low, key), high = std::max(high, key);
      }
      if (high >= Key(0)) range.any = 1, range.max = std::max(range.max, (uint64_t)high);
      if (low < Key(0))
        for (int64_t at = 0; range.first_negative < 0; ++at)
          if (key_at<Key>(keys, at) < Key(0)) range.first_negative = from + at;
    });
  });
  KeyRange all{0, 0, -1};
  for (const KeyRange& range : found) {
    all.max = std::max(all.max, range.max), all.any |= range.any;
    if (all.first_negative < 0) all.first_negative = range.first_negative;
  }
  return all;
}

// ---- straight into the result --------------------------------------------------------------------------------------

template <class T>
inline void zero_if_asked(const CountProblem& p, T* result) {
  if (p.overwrite) std::fill_n(result, p.n_bins, T(0));
}

template <class Key>
void count_in_order(const CountProblem& p) {
  zero_if_asked(p, p.counts);
  each_block<Key>(p, 0, p.n, [&](const char* keys, int64_t, int64_t n) {
    for (int64_t at = 0; at < n; ++at) {
      const uint64_t bin = bin_at<Key>(keys, at);
      if (bin < (uint64_t)p.n_bins) ++p.counts[bin];
    }
  });
}
template <class Key>
void sum_in_order(const CountProblem& p) {
  zero_if_asked(p, p.sums);
  each_block<Key>(p, 0, p.n, [&](const char* keys, int64_t from, int64_t n_keys) {
    each_weights(p, from, from + n_keys, [&](const double* weights, int64_t first, int64_t n) {
      for (int64_t at = 0; at < n; ++at) {
        const uint64_t bin = bin_at<Key>(keys, first - from + at);
        if (bin < (uint64_t)p.n_bins) p.sums[bin] += weights[at];
      }
    });
  });
}

// Which keys of a block are in [low, low + size): their positions to `where`, without a branch for each.
template <class Key>
inline int select_range(const char* keys, int64_t n, uint64_t low, uint64_t size, int32_t* where) {
  int found = 0;
  for (int64_t at = 0; at < n; ++at) {
    where[found] = (int32_t)at;
    found += bin_at<Key>(keys, at) - low < size;
  }
  return found;
}

template <class Key>
void in_ranges(const CountProblem& p, int n_threads) {
  if (p.weights) zero_if_asked(p, p.sums);
  else zero_if_asked(p, p.counts);
  for_tasks(n_threads, n_threads, false, [&](int64_t range, int) {
    const uint64_t low = p.n_bins / n_threads * range;
    const uint64_t size = (range == n_threads - 1 ? p.n_bins : p.n_bins / n_threads * (range + 1)) - low;
    int32_t where[kBlock];
    for (int64_t block = 0; block < p.n; block += kBlock)
      each_block<Key>(p, block, std::min(p.n, block + kBlock), [&](const char* keys, int64_t from, int64_t n) {
        const int found = select_range<Key>(keys, n, low, size, where);
        if (!p.weights) {
          for (int k = 0; k < found; ++k) ++p.counts[bin_at<Key>(keys, where[k])];
        } else if (found) {
          each_weights(p, from, from + n, [&](const double* weights, int64_t, int64_t) {
            for (int k = 0; k < found; ++k) p.sums[bin_at<Key>(keys, where[k])] += weights[where[k]];
          });
        }
      });
  });
}

// ---- tables --------------------------------------------------------------------------------------------------------

// A key outside the bins goes to the bin behind the last one.
template <class Key>
inline uint64_t bin_or_last(const CountProblem& p, const char* keys, int64_t at) {
  return std::min(bin_at<Key>(keys, at), (uint64_t)p.n_bins);
}

template <class Key>
void count_in_tables(const CountProblem& p, int n_threads, int n_tables) {
  const int64_t bins = p.n_bins + 1;
  std::vector<std::vector<uint32_t>> tables(n_threads);
  for (auto& table : tables) table.assign(bins * n_tables, 0);
  zero_if_asked(p, p.counts);
  for (int64_t first = 0; first < p.n; first += kPartKeys * n_threads) {
    const int64_t n = std::min(p.n - first, kPartKeys * n_threads), part = (n + n_threads - 1) / n_threads;
    for_tasks(n_threads, n_threads, false, [&](int64_t task, int) {
      uint32_t* table = tables[task].data();
      const int64_t from = first + std::min(n, task * part), to = first + std::min(n, (task + 1) * part);
      each_block<Key>(p, from, to, [&](const char* keys, int64_t, int64_t n_keys) {
        int64_t at = 0;
        if (n_tables == kTables)
          for (; at + kTables <= n_keys; at += kTables)
            for (int k = 0; k < kTables; ++k) ++table[k * bins + bin_or_last<Key>(p, keys, at + k)];
        for (; at < n_keys; ++at) ++table[bin_or_last<Key>(p, keys, at)];
      });
    });
    for (auto& table : tables) {
      for (int k = 0; k < n_tables; ++k)
        for (int64_t bin = 0; bin < p.n_bins; ++bin) p.counts[bin] += table[k * bins + bin];
      if (first + n < p.n) std::fill(table.begin(), table.end(), 0);
    }
  }
}

template <class Key>
void count_in_bytes(const CountProblem& p, int n_threads) {
  const int64_t part = (p.n + n_threads - 1) / n_threads;
  std::vector<std::vector<uint8_t>> tables(n_threads);
  for (auto& table : tables) table.assign(p.n_bins + 1, 0);
  zero_if_asked(p, p.counts);
  for_tasks(n_threads, n_threads, false, [&](int64_t task, int) {
    uint8_t* table = tables[task].data();
    const int64_t from = std::min(p.n, task * part), to = std::min(p.n, from + part);
    each_block<Key>(p, from, to, [&](const char* keys, int64_t, int64_t n) {
      for (int64_t at = 0; at < n; ++at) {
        const uint64_t bin = bin_or_last<Key>(p, keys, at);
        if (++table[bin] == 0 && bin < (uint64_t)p.n_bins) __atomic_fetch_add(p.counts + bin, 256, __ATOMIC_RELAXED);
      }
    });
  });
  for (const auto& table : tables)
    for (int64_t bin = 0; bin < p.n_bins; ++bin) p.counts[bin] += table[bin];
}

// One table a thread: it waits until the chunk before its own has been added.
template <class Key>
void sum_in_tables(const CountProblem& p, int n_threads, int64_t n_chunks) {
  const int64_t bins = p.n_bins + 1, chunk = (p.n + n_chunks - 1) / n_chunks;
  std::vector<std::vector<double>> tables(n_threads);
  for (auto& table : tables) table.assign(bins, 0.0);
  std::atomic<uint8_t> added[kMaxChunks] = {};
  zero_if_asked(p, p.sums);
  for_tasks(n_chunks, n_threads, false, [&](int64_t part, int thread) {
    double* table = tables[thread].data();
    const int64_t start = std::min(p.n, part * chunk), end = std::min(p.n, (part + 1) * chunk);
    each_block<Key>(p, start, end, [&](const char* keys, int64_t from, int64_t n_keys) {
      each_weights(p, from, from + n_keys, [&](const double* weights, int64_t first, int64_t n) {
        for (int64_t at = 0; at < n; ++at) table[bin_or_last<Key>(p, keys, first - from + at)] += weights[at];
      });
    });
    if (part > 0) wait_for(added[part - 1]);
    for (int64_t bin = 0; bin < p.n_bins; ++bin) p.sums[bin] += table[bin];
    publish(added[part]);
    std::fill_n(table, bins, 0.0);
  });
}

// ---- which way -----------------------------------------------------------------------------------------------------

// How many ranges the bins are cut into, 1: none.
inline int ranges_worth(const CountProblem& p, int64_t bytes) {
  return p.n_bins * (int64_t)sizeof(int64_t) < kRangesBytes ? 1 : threads_worth(p.n_threads, bytes, kMaxRanges);
}

template <class Key>
void count_keys(const CountProblem& p) {
  const int64_t bins = p.n_bins + 1;
  const int n_threads = threads_worth(p.n_threads, p.n * (int64_t)sizeof(Key), INT64_MAX);
  if (bins <= kManyBins) return count_in_tables<Key>(p, n_threads, kTables);
  if (bins <= kTableBytes) {
    // More threads than this would spend longer on adding their tables than on the keys.
    const int with_tables = (int)std::min<int64_t>(n_threads, p.n / bins);
    if (with_tables <= 1) return count_in_order<Key>(p);
    if (bins * (int64_t)sizeof(uint32_t) <= kTableBytes) return count_in_tables<Key>(p, with_tables, 1);
    return count_in_bytes<Key>(p, with_tables);
  }
  const int n_ranges = ranges_worth(p, p.n * (int64_t)sizeof(Key));
  n_ranges > 1 ? in_ranges<Key>(p, n_ranges) : count_in_order<Key>(p);
}

template <class Key>
void sum_weights(const CountProblem& p) {
  // Whether there are chunks, and how many, depends on shape alone.
  const int64_t n_chunks = std::min((p.n + kChunk - 1) / kChunk, kMaxChunks);
  const int64_t bytes = p.n * ((int64_t)sizeof(Key) + dtype_size(p.weight_dtype));
  if (p.n_bins < kTableBytes / (int64_t)sizeof(double) && n_chunks > 1)
    return sum_in_tables<Key>(p, threads_worth(p.n_threads, bytes, n_chunks), n_chunks);
  const int n_ranges = ranges_worth(p, bytes);
  n_ranges > 1 ? in_ranges<Key>(p, n_ranges) : sum_in_order<Key>(p);
}

template <class Visit>
auto with_key_type(int32_t dtype, Visit visit) {
  switch (dtype) {
    case kInt8: return visit(int8_t{});
    case kUInt8: return visit(uint8_t{});
    case kInt16: return visit(int16_t{});
    case kUInt16: return visit(uint16_t{});
    case kInt32: return visit(int32_t{});
    case kUInt32: return visit(uint32_t{});
    case kUInt64: return visit(uint64_t{});
    default: return visit(int64_t{});
  }
}

}  // namespace

KeyRange key_range(const CountProblem& problem) {
  return with_key_type(problem.key_dtype, [&](auto key) { return range_of<decltype(key)>(problem); });
}

void run_count(const CountProblem& problem) {
  with_key_type(problem.key_dtype, [&](auto key) {
    using Key = decltype(key);
    problem.weights ? sum_weights<Key>(problem) : count_keys<Key>(problem);
  });
}

}  // namespace upsweep
