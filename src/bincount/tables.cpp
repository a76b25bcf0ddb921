// TABLES: counts of one row, on several threads.
//
// Bytes a key: its own size, read once. Operations: a load of the key, and a load, an addition and a store of a count;
// processors of today take at least two loads and one store a cycle. Keys in the first two caches take 1.4 cycles (Zen 4).
//
// A worker claims pieces of the row and counts them block by block, each key masked to an entry. The same read says
// whether all keys of the block are inside the tables; where they are not, which is rare, the block is counted back
// and looked at. That is 1.6 to 2 times as fast as a look at each block before it is counted, since the processor
// then waits for memory in the look and for the table in the count (Zen 4, AVX2). Counts have 16 bits while a
// piece is counted, so that 16,384 bins fit the first cache. Where keys repeat, consecutive ones go to N tables in
// turn: an increment of the bin just incremented waits for the store before it. A block of equal keys is one
// addition. Entries are zeroed when keys first need them, so that the number of bins need not be known; it is the
// last one that is not 0.
//
// Called by the driver for up to kTableBins bins.

#include "bincount/tables.hpp"

namespace upsweep {
namespace {

constexpr int64_t kPiece = 63 * kBlock;            // keys that a worker claims: 16 bits hold their counts
constexpr int64_t kWide = INT64_C(1) << 31;        // keys after which 32 bits are emptied
constexpr int64_t kMergeWorth = 1 << 16;           // additions that are worth another thread
constexpr int64_t kFirstEntries = 256;             // that are initialised at once

// Adds Step, 1 or -1, to the count of each key; whether all keys are below `ready`.
template <int N, int Step, class Key, class Count>
inline bool count_block(const char* keys, int64_t n, Count* tables, int64_t stride, uint64_t ready) {
  uint64_t bits = 0;
  each_key_of_block<Key>(keys, n, [&](int64_t at, int turn) {
    const uint64_t key = index_at<Key>(keys, at);
    if constexpr (sizeof(Key) > 1) bits |= key;   // 8 bits are all inside
    tables[turn % N * stride + (int64_t)(key & (ready - 1))] += (Count)Step;
  });
  return bits < ready;
}

// What is outside goes to the entry behind the last.
template <class Key, class Count>
inline void count_some(const char* keys, int64_t n, Count* table, uint64_t limit) {
  for (int64_t at = 0; at < n; ++at) ++table[std::min<uint64_t>(index_at<Key>(keys, at), limit)];
}

}  // namespace

template <int N>
void CountTables::prepare(Worker& worker, uint64_t bins) const {
  const uint64_t target = std::bit_ceil(bins);
  std::fill(worker.table.get() + worker.ready, worker.table.get() + target, 0u);
  for (int table = 0; table < N; ++table)
    std::fill(worker.narrow.get() + table * stride + worker.ready, worker.narrow.get() + table * stride + target, 0);
  worker.ready = target;
}

// Adds up the worker's tables.
template <int N>
void CountTables::fold(Worker& worker) const {
  uint32_t* const sums = worker.table.get();
  for (int table = 0; table < N; ++table) {
    uint16_t* const from = worker.narrow.get() + table * stride;
    for (uint64_t bin = 0; bin < worker.ready; ++bin) sums[bin] += from[bin];
    std::fill_n(from, worker.ready, 0);
  }
  if (worker.n_counted >= kWide) {
    for (uint64_t bin = 0; bin < worker.ready; ++bin) worker.wide[bin] += sums[bin], sums[bin] = 0;
    worker.n_counted = 0;
  }
}

template <class Key, int N>
void CountTables::count_piece(Worker& worker, const Row& row, int64_t from, int64_t to, StopAt& stop) const {
  constexpr int kTables = std::max(N, 1);
  auto* const tables = [&] {
    if constexpr (N > 0) return worker.narrow.get();
    else return worker.table.get();
  }();
  each_block<Key, false>(row, from, to, [&](const char* keys, int64_t, int64_t n) {
    if (!worker.careful && !may_be_equal<Key>(keys, n)) {
      if (count_block<kTables, 1, Key>(keys, n, tables, stride, worker.ready)) return true;
      count_block<kTables, -1, Key>(keys, n, tables, stride, worker.ready);
    }
    fetch_ahead(keys, n * (int64_t)sizeof(Key));
    const Bits2<Key> bits = bits_of<Key>(keys, n);
    worker.careful = bits.any >= (uint64_t)limit;
    if (worker.careful) {
      if (stop.template should_stop<Key>(keys, n, limit)) return false;
      prepare<N>(worker, limit);
      count_some<Key>(keys, n, tables, limit);
      return true;
    }
    if (bits.any >= worker.ready) prepare<N>(worker, (uint64_t)bits.any + 1);
    if (bits.any == bits.all) tables[bits.any] += n;
    else count_block<kTables, 1, Key>(keys, n, tables, stride, worker.ready);
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
  stride = limit + kSlack;
  workers.clear();
  workers.resize(n_threads);
  for (Worker& worker : workers) {
    worker.table = new_scratch<uint32_t>(stride);
    worker.narrow = new_scratch<uint16_t>(N * stride);
    worker.table[limit] = 0;
    if (N > 0) worker.narrow[limit] = 0;
    if (p.n >= kWide) worker.wide.resize(limit);
  }

  const uint64_t valid = valid_bins(p.key_dtype, n_bins < 0 ? INT64_MAX : n_bins);
  n_valid = (int64_t)std::min<uint64_t>(valid, limit);
  StopAt stop{valid, p.drop == 0, n_bins >= 0};
  const Row keys = row_of(p, row);
  const int64_t n_pieces = (p.n + kPiece - 1) / kPiece;
  std::atomic<int64_t> next{0};
  std::atomic<bool> outside{false};
  for_tasks(n_threads, n_threads, false, [&](int64_t task, int) {
    Worker& worker = workers[task];
    prepare<N>(worker, std::min<uint64_t>(limit, kFirstEntries));
    for (int64_t piece; !stop.set() && (piece = next.fetch_add(1, std::memory_order_relaxed)) < n_pieces;) {
      count_piece<Key, N>(worker, keys, piece * kPiece, std::min(p.n, (piece + 1) * kPiece), stop);
      fold<N>(worker);
      poll();
    }
    const bool has_wide = !worker.wide.empty();
    int64_t bin = (int64_t)worker.ready;
    while (bin > 0 && worker.table[bin - 1] == 0 && (!has_wide || worker.wide[bin - 1] == 0)) {
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
      while (bin > 0 && worker.table[bin - 1] == 0 && (worker.wide.empty() || worker.wide[bin - 1] == 0)) --bin;
    top = std::max(top, bin);
  }
  return Outcome::kCounted;
}

Outcome CountTables::count(const CountProblem& p, int64_t row, int64_t n_bins, int n_tables, int n_threads) {
  return with_key_width(p.key_dtype, [&](auto key) {
    using Key = decltype(key);
    switch (n_tables) {
      case 0: return run<Key, 0>(p, row, n_bins, n_threads);
      case 1: return run<Key, 1>(p, row, n_bins, n_threads);
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
      const uint32_t* table = worker.table.get();
      for (int64_t bin = from; bin < end; ++bin) counts[bin] += table[bin];
      if (!worker.wide.empty())
        for (int64_t bin = from; bin < end; ++bin) counts[bin] += (int64_t)worker.wide[bin];
    }
  });
}

}  // namespace upsweep
