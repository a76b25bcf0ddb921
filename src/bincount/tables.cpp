// TABLES: counts of one row, on several threads.
//
// Bytes a key: its own size, read once. A worker claims pieces of the row and looks at them in blocks: the bits that
// are set in any key tell at once whether all of them are inside its tables, and these are then counted from the
// first cache, unchecked. Consecutive keys go to N tables in turn, because an increment of the bin just incremented
// waits for the store before it; a block of equal keys is one addition. Entries are zeroed when keys first need
// them, so that the number of bins need not be known; it is the last one that is not 0.
//
// Called by the driver for up to kTableBins bins.

#include "bincount/tables.hpp"

namespace upsweep {
namespace {

constexpr int64_t kPiece = 1 << 16;                // keys that a worker claims
constexpr int64_t kWide = INT64_C(1) << 31;        // keys after which 32 bits are emptied
constexpr int64_t kMergeWorth = 1 << 16;           // additions that are worth another thread
constexpr int kMostTables = 8;
constexpr int64_t kCopied = 512;                   // keys: with the tables of few bins they stay in the first cache

template <int N, class Key>
inline void count_block(const char* keys, int64_t n, uint32_t* tables, int64_t stride, Unsigned<Key> mask) {
  constexpr int kStep = 8;
  int64_t at = 0;
  for (; at + kStep <= n; at += kStep) {
    Unsigned<Key> step[kStep];
    std::memcpy(step, keys + at * (int64_t)sizeof(Key), sizeof step);
    for (int k = 0; k < kStep; ++k) ++tables[k % N * stride + (step[k] & mask)];
  }
  for (; at < n; ++at) ++tables[key_at<Key>(keys, at) & mask];
}

// What is outside goes to the entry behind the last.
template <int N, class Key>
inline void count_some(const char* keys, int64_t n, uint32_t* tables, int64_t stride, uint64_t limit) {
  for (int64_t at = 0; at < n; ++at)
    ++tables[at % N * stride + (int64_t)std::min<uint64_t>(index_at<Key>(keys, at), limit)];
}

}  // namespace

template <int N>
void CountTables::prepare(Worker& worker, uint64_t bins) const {
  const uint64_t target = std::min<uint64_t>(limit, std::bit_ceil(bins));
  for (int table = 0; table < N; ++table)
    std::fill(worker.tables.get() + table * stride + worker.ready, worker.tables.get() + table * stride + target, 0u);
  worker.ready = target;
}

// Adds up the worker's tables in the first one.
template <int N>
void CountTables::fold(Worker& worker) const {
  uint32_t* tables = worker.tables.get();
  for (int table = 1; table < N; ++table) {
    uint32_t* from = tables + table * stride;
    for (uint64_t bin = 0; bin < worker.ready; ++bin) tables[bin] += from[bin], from[bin] = 0;
  }
  if (worker.n_counted >= kWide) {
    for (uint64_t bin = 0; bin < worker.ready; ++bin) worker.wide[bin] += tables[bin], tables[bin] = 0;
    worker.n_counted = 0;
  }
}

template <class Key, int N, class Stop>
void CountTables::count_piece(Worker& worker, const Row& row, int64_t from, int64_t to, Stop& stop) const {
  uint32_t* tables = worker.tables.get();
  // Keys of a block of which `bits` are known, or a copy of such: then no mask is needed.
  auto count = [&](const char* keys, int64_t n, const Bits2<Key>& bits, auto is_copy) {
    if (bits.any >= worker.ready) {
      if (bits.any >= (uint64_t)limit) {
        if (stop.template should_stop<Key>(keys, n, limit)) return false;
        prepare<N>(worker, limit);
        count_some<N, Key>(keys, n, tables, stride, limit);
        return true;
      }
      prepare<N>(worker, (uint64_t)bits.any + 1);
    }
    const Unsigned<Key> mask = is_copy ? ~Unsigned<Key>(0) : (Unsigned<Key>)(std::bit_ceil(worker.ready) - 1);
    if (bits.any == bits.all) tables[bits.any] += (uint32_t)n;
    else count_block<N, Key>(keys, n, tables, stride, mask);
    return true;
  };
  each_block<Key>(row, from, to, [&](const char* keys, int64_t, int64_t n) {
    if constexpr (sizeof(Key) == 1) {   // all that there can be
      count_block<N, Key>(keys, n, tables, stride, 0xff);
    } else if constexpr (N < kMostTables) {   // tables fill the cache, and stores to a copy would wait for theirs
      return count(keys, n, bits_of<Key>(keys, n), std::false_type());
    } else {
      Unsigned<Key> copy[kCopied];
      for (int64_t first = 0; first < n; first += kCopied) {
        const int64_t some = std::min(kCopied, n - first);
        const Bits2<Key> bits = copy_block<Key>(keys + first * (int64_t)sizeof(Key), some, copy);
        if (!count((const char*)copy, some, bits, std::true_type())) return false;
      }
    }
    return true;
  });
  worker.n_counted += to - from;
}

template <class Key, int N>
Outcome CountTables::run(const CountProblem& p, int64_t row, int64_t n_bins, int n_threads) {
  // Of 8-bit keys every one has an entry; so has, of 16-bit keys, every one where tables are that large.
  const uint64_t kinds = sizeof(Key) < 4 ? UINT64_C(1) << 8 * std::min<size_t>(sizeof(Key), 3) : UINT64_MAX;
  limit = std::min<uint64_t>(kinds, capacity(N));
  if (n_bins >= 0) limit = std::min<uint64_t>(limit, sizeof(Key) == 1 ? kinds : std::bit_ceil((uint64_t)n_bins + 1));
  stride = (int64_t)std::bit_ceil((uint64_t)limit) + kSlack;
  workers.clear();
  workers.resize(n_threads);
  for (Worker& worker : workers) {
    worker.tables = new_scratch<uint32_t>(N * stride);
    if (p.n >= kWide) worker.wide.resize(limit);
  }

  const uint64_t valid = valid_bins<Key>(n_bins < 0 ? INT64_MAX : n_bins);
  n_valid = (int64_t)std::min<uint64_t>(valid, limit);
  StopAt stop{valid, p.drop == 0, n_bins >= 0};
  const Row keys = row_of(p, row);
  const int64_t n_pieces = (p.n + kPiece - 1) / kPiece;
  std::atomic<int64_t> next{0};
  std::atomic<bool> outside{false};
  for_tasks(n_threads, n_threads, false, [&](int64_t task, int) {
    Worker& worker = workers[task];
    for (int table = 0; table < N; ++table) worker.tables[table * stride + limit] = 0;
    if constexpr (sizeof(Key) == 1) prepare<N>(worker, limit);
    for (int64_t piece; !stop.set() && (piece = next.fetch_add(1, std::memory_order_relaxed)) < n_pieces;) {
      count_piece<Key, N>(worker, keys, piece * kPiece, std::min(p.n, (piece + 1) * kPiece), stop);
      if (worker.n_counted >= kWide) fold<N>(worker);
    }
    fold<N>(worker);
    const bool has_wide = !worker.wide.empty();
    int64_t bin = (int64_t)worker.ready;
    while (bin > 0 && worker.tables[bin - 1] == 0 && (!has_wide || worker.wide[bin - 1] == 0)) {
      if ((uint64_t)bin > valid) { --bin; continue; }
      if (n_bins >= 0) break;   // nobody asks
      --bin;
    }
    if ((uint64_t)bin > valid) outside.store(true, std::memory_order_relaxed);
    worker.top = bin;
  });
  if (stop.too_many) return Outcome::kTooMany;
  if (p.drop == 0 && (stop.outside || outside)) return Outcome::kOutside;
  top = 0;
  for (Worker& worker : workers) {
    int64_t bin = std::min<uint64_t>(worker.top, valid);   // of dropped keys there may be entries behind
    if (n_bins < 0)
      while (bin > 0 && worker.tables[bin - 1] == 0 && (worker.wide.empty() || worker.wide[bin - 1] == 0)) --bin;
    top = std::max(top, bin);
  }
  return Outcome::kCounted;
}

Outcome CountTables::count(const CountProblem& p, int64_t row, int64_t n_bins, int n_tables, int n_threads) {
  return with_key_type(p.key_dtype, [&](auto key) {
    using Key = decltype(key);
    switch (n_tables) {
      case 1: return run<Key, 1>(p, row, n_bins, n_threads);
      case 4: return run<Key, 4>(p, row, n_bins, n_threads);
      default: return run<Key, kMostTables>(p, row, n_bins, n_threads);
    }
  });
}

void CountTables::write(int64_t* counts, int64_t n_bins, bool overwrite, int n_threads) const {
  const int64_t n_workers = (int64_t)workers.size();
  const int64_t target = std::max<int64_t>(1, n_bins * n_workers / kMergeWorth);
  const int n_parts = (int)std::min<int64_t>(n_threads, target);
  for_tasks(n_parts, n_parts, false, [&](int64_t part, int) {
    const int64_t from = n_bins / n_parts * part, to = part == n_parts - 1 ? n_bins : n_bins / n_parts * (part + 1);
    if (overwrite) std::fill(counts + from, counts + to, 0);
    for (const Worker& worker : workers) {
      const int64_t end = std::min({to, (int64_t)worker.ready, n_valid});
      const uint32_t* table = worker.tables.get();
      for (int64_t bin = from; bin < end; ++bin) counts[bin] += table[bin];
      if (!worker.wide.empty())
        for (int64_t bin = from; bin < end; ++bin) counts[bin] += (int64_t)worker.wide[bin];
    }
  });
}

}  // namespace upsweep
