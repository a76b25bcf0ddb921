// Counts of integer keys, first version: numpy's results, on several threads.
//
// Bytes a key: its own size, read twice (range, then count). Each thread counts a contiguous part of the keys
// into a table of its own while the tables fit the cache; kTables of them in turn, because an increment of
// the bin just incremented waits for the store before it.
//
// Sums of weights are taken over fixed chunks of kChunk keys and the chunks' tables added in order: numpy's
// own bits up to kChunk keys, and the same bits for any number of threads.

#include "count.hpp"

#include <vector>

#include "parallel.hpp"

namespace upsweep {
namespace {

constexpr int64_t kChunk = 1 << 17;
constexpr int kTables = 4;
constexpr int64_t kPrivateBins = 1 << 15;   // 4 tables of 32-bit counters: 512 KiB
constexpr int64_t kMaxSumTables = 16;
constexpr int64_t kPartKeys = INT64_C(1) << 31;

template <class Key>
inline Key key_at(const CountProblem& p, int64_t at) {
  Key key;
  __builtin_memcpy(&key, p.keys + at * p.stride, sizeof(Key));
  return key;
}

template <class Key>
KeyRange range_of(const CountProblem& p) {
  const int64_t n_tasks = (p.n + kChunk - 1) / kChunk;
  std::vector<KeyRange> found(n_tasks, KeyRange{INT64_MAX, 0, -1});
  const int n_threads = threads_worth(p.n_threads, p.n * (int64_t)sizeof(Key), n_tasks);
  for_tasks(n_tasks, n_threads, false, [&](int64_t task, int) {
    const int64_t from = task * kChunk, to = std::min(p.n, from + kChunk);
    Key low = key_at<Key>(p, from), high = low;
    auto fold = [&](auto key_of) {
      for (int64_t at = from; at < to; ++at) {
        const Key key = key_of(at);
        low = std::min(low, key), high = std::max(high, key);
      }
    };
    if (p.stride == sizeof(Key)) fold([&](int64_t at) { Key key; __builtin_memcpy(&key, p.keys + at * sizeof(Key), sizeof(Key)); return key; });
    else fold([&](int64_t at) { return key_at<Key>(p, at); });
    KeyRange& range = found[task];
    range.max = high < Key(0) ? 0 : (uint64_t)high;
    range.min = low > (Key)INT64_MAX && low > Key(0) ? INT64_MAX : (int64_t)low;
    if (low < Key(0))
      for (int64_t at = from; at < to && range.first_negative < 0; ++at)
        if (key_at<Key>(p, at) < Key(0)) range.first_negative = at;
  });
  KeyRange all{INT64_MAX, 0, -1};
  for (const KeyRange& range : found) {
    all.min = std::min(all.min, range.min), all.max = std::max(all.max, range.max);
    if (all.first_negative < 0) all.first_negative = range.first_negative;
  }
  return all;
}

// A key outside the bins goes to the bin behind the last one.
template <class Key>
inline uint64_t bin_of(const CountProblem& p, int64_t at) {
  const uint64_t bin = (uint64_t)(int64_t)key_at<Key>(p, at);
  return bin < (uint64_t)p.n_bins ? bin : (uint64_t)p.n_bins;
}

template <class Key>
int64_t count_keys(const CountProblem& p) {
  const int64_t bins = p.n_bins + 1;
  const bool narrow = bins <= kPrivateBins;
  // Wide tables are one a thread, and only while merging them is cheap against the counting.
  int n_threads = threads_worth(p.n_threads, p.n * (int64_t)sizeof(Key), INT64_MAX);
  if (!narrow) n_threads = (int)std::max<int64_t>(1, std::min<int64_t>(n_threads, p.n / bins));
  // Counters of 32 bits hold what a part of 2^31 keys can add to them.
  const int64_t n_parts = std::max<int64_t>(n_threads, (p.n + kPartKeys - 1) / kPartKeys);
  if (!narrow && n_parts == 1) {   // straight into the result: a table of its own would cost more than few keys do
    int64_t left_out = 0;
    for (int64_t at = 0; at < p.n; ++at) {
      const uint64_t bin = bin_of<Key>(p, at);
      if (bin < (uint64_t)p.n_bins) ++p.counts[bin];
      else ++left_out;
    }
    return left_out;
  }
  const int n_tables = narrow ? kTables : 1;
  std::vector<std::vector<uint32_t>> tables(n_parts);
  for (auto& table : tables) table.assign(bins * n_tables, 0);
  for_tasks(n_parts, n_threads, false, [&](int64_t part, int) {
    uint32_t* table = tables[part].data();
    const int64_t begin = p.n / n_parts * part, end = part == n_parts - 1 ? p.n : begin + p.n / n_parts;
    int64_t at = begin;
    if (narrow)
      for (; at + kTables <= end; at += kTables)
        for (int k = 0; k < kTables; ++k) ++table[k * bins + bin_of<Key>(p, at + k)];
    for (; at < end; ++at) ++table[bin_of<Key>(p, at)];
  });
  int64_t left_out = 0;
  for (const auto& table : tables)
    for (int k = 0; k < n_tables; ++k) {
      const uint32_t* counts = table.data() + k * bins;
      for (int64_t bin = 0; bin < p.n_bins; ++bin) p.counts[bin] += counts[bin];
      left_out += counts[p.n_bins];
    }
  return left_out;
}

template <class Key>
int64_t sum_weights(const CountProblem& p) {
  const int64_t bins = p.n_bins + 1;
  // The number of tables depends on shape alone; more bins than keys in a chunk: one table, in order.
  int64_t n_chunks = std::min((p.n + kChunk - 1) / kChunk, kMaxSumTables);
  if (n_chunks < 1 || bins > kChunk) n_chunks = 1;
  const int64_t chunk = (p.n + n_chunks - 1) / n_chunks;
  std::vector<std::vector<double>> tables(n_chunks);
  std::vector<int64_t> left_out(n_chunks, 0);
  for (auto& table : tables) table.assign(bins, 0.0);
  const int n_threads = threads_worth(p.n_threads, p.n * (int64_t)(sizeof(Key) + sizeof(double)), n_chunks);
  for_tasks(n_chunks, n_threads, false, [&](int64_t part, int) {
    double* table = tables[part].data();
    int64_t outside = 0;
    for (int64_t at = part * chunk; at < std::min(p.n, (part + 1) * chunk); ++at) {
      const uint64_t bin = bin_of<Key>(p, at);
      table[bin] += p.weights[at];
      outside += bin == (uint64_t)p.n_bins;
    }
    left_out[part] = outside;
  });
  for (const auto& table : tables)
    for (int64_t bin = 0; bin < p.n_bins; ++bin) p.sums[bin] += table[bin];
  int64_t all = 0;
  for (int64_t outside : left_out) all += outside;
  return all;
}

template <class Visit>
auto with_key_type(int32_t type, Visit visit) {
  switch (type) {
    case kKeyInt8: return visit(int8_t{});
    case kKeyUInt8: return visit(uint8_t{});
    case kKeyInt16: return visit(int16_t{});
    case kKeyUInt16: return visit(uint16_t{});
    case kKeyInt32: return visit(int32_t{});
    case kKeyUInt32: return visit(uint32_t{});
    case kKeyUInt64: return visit(uint64_t{});
    default: return visit(int64_t{});
  }
}

}  // namespace

KeyRange key_range(const CountProblem& problem) {
  return with_key_type(problem.key_type, [&](auto key) { return range_of<decltype(key)>(problem); });
}

int64_t run_count(const CountProblem& problem) {
  return with_key_type(problem.key_type, [&](auto key) {
    using Key = decltype(key);
    return problem.weights ? sum_weights<Key>(problem) : count_keys<Key>(problem);
  });
}

}  // namespace upsweep
