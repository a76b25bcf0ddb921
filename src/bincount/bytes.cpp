// BYTES: counts of one row in tables of bytes, for bins whose 32-bit tables would exceed the second cache.
//
// Bytes a key: its own size, read once. As TABLES, but one table a worker; a byte that wraps around is noted in a
// table of 32-bit numbers, of which only the pages that are written to are ever had.
//
// Called by the driver for up to kByteBins bins.

#include "bincount/bytes.hpp"

namespace upsweep {
namespace {

constexpr int64_t kPiece = 1 << 16;    // keys that a worker claims
constexpr int64_t kPageBins = 1024;    // whose wraps fill a page

// Everything by value: a store to a byte might else be one to any of it.
// Adds Step, 1 or -1, to the count of each key; whether all keys are below `bins`. Checked: those that are not go to
// that entry; else they are masked to any below the next power of two.
template <class Key, int Step, bool Checked>
inline bool count_block(const char* keys, int64_t n, uint8_t* bytes, uint32_t* wraps, uint8_t* wrapped, uint64_t bins) {
  const uint64_t mask = std::bit_ceil(bins) - 1, last = bins - 1;
  uint64_t beyond = 0;   // the top bit, of keys beyond the last
  each_key_of_block<Key>(keys, n, [&](int64_t at, int) {
    const uint64_t key = index_at<Key>(keys, at), bin = Checked ? std::min(key, bins) : key & mask;
    beyond |= key | (last - key);
    const uint8_t before = bytes[bin];
    bytes[bin] = (uint8_t)(before + Step);
    if (__builtin_expect(before == (Step > 0 ? 255 : 0), 0)) wraps[bin] += Step, wrapped[bin / kPageBins] = 1;
  });
  return beyond >> 63 == 0;
}

inline void add_equal(int64_t n, uint64_t bin, uint8_t* bytes, uint32_t* wraps, uint8_t* wrapped) {
  const uint64_t sum = bytes[bin] + (uint64_t)n;
  bytes[bin] = (uint8_t)sum;
  if (sum >> 8) wraps[bin] += (uint32_t)(sum >> 8), wrapped[bin / kPageBins] = 1;
}

}  // namespace

template <class Key>
void CountBytes::count_piece(Worker& worker, const Row& row, int64_t from, int64_t to, StopAt& stop) const {
  uint8_t* const bytes = worker.bytes.get();
  uint8_t* const wrapped = worker.wrapped.data();
  uint32_t* const wraps = worker.wraps.get();
  uint64_t bins = std::min<uint64_t>(worker.ready, limit);   // that are ready; the entry of keys outside is none of them
  auto prepare = [&](uint64_t n_entries) {
    const uint64_t target = std::bit_ceil(n_entries);
    std::fill(bytes + worker.ready, bytes + target, 0);
    worker.ready = target;
    bins = std::min<uint64_t>(target, limit);
  };
  if (worker.ready == 0) prepare(1);
  each_block<Key, false>(row, from, to, [&](const char* keys, int64_t, int64_t n) {
    if (!worker.careful && !may_be_equal<Key>(keys, n)) {
      if (count_block<Key, 1, false>(keys, n, bytes, wraps, wrapped, bins)) return true;
      count_block<Key, -1, false>(keys, n, bytes, wraps, wrapped, bins);
    }
    fetch_ahead(keys, n * (int64_t)sizeof(Key));
    const Bits2<Key> bits = bits_of<Key>(keys, n);
    const uint64_t largest = bits.any >= (uint64_t)limit ? largest_unsigned<Key>(keys, n) : bits.any;
    worker.careful = largest >= (uint64_t)limit;
    if (worker.careful) {
      if (stop.template should_stop<Key>(keys, n, limit)) return false;
      prepare(limit + 1);
      count_block<Key, 1, true>(keys, n, bytes, wraps, wrapped, limit);
      return true;
    }
    if (largest >= worker.ready) prepare(largest + 1);
    if (bits.any == bits.all) add_equal(n, largest, bytes, wraps, wrapped);
    else count_block<Key, 1, false>(keys, n, bytes, wraps, wrapped, bins);
    return true;
  });
}

template <class Key>
Outcome CountBytes::run(const CountProblem& p, int64_t row, int64_t n_bins, int n_threads) {
  const uint64_t valid = valid_bins(p.key_dtype, n_bins < 0 ? INT64_MAX : n_bins);
  limit = (int64_t)std::min<uint64_t>(n_bins < 0 ? kByteBins - 1 : n_bins, valid);
  const int64_t n_entries = (int64_t)std::bit_ceil((uint64_t)limit + 1);   // any key can be masked to one
  workers.clear();
  workers.resize(n_threads);
  for (Worker& worker : workers) {
    worker.bytes = new_scratch<uint8_t>(n_entries);
    worker.wrapped.assign(n_entries / kPageBins + 1, 0);
    worker.wraps.reset((uint32_t*)std::calloc(n_entries, sizeof(uint32_t)));
    if (!worker.wraps) throw std::bad_alloc();
  }
  StopAt stop{valid, p.drop == 0, n_bins >= 0};
  const Row keys = row_of(p, row);
  const int64_t n_pieces = (p.n + kPiece - 1) / kPiece;
  std::atomic<int64_t> next{0};
  for_tasks(n_threads, n_threads, false, [&](int64_t task, int) {
    Worker& worker = workers[task];
    for (int64_t piece; !stop.set() && (piece = next.fetch_add(1, std::memory_order_relaxed)) < n_pieces;)
      count_piece<Key>(worker, keys, piece * kPiece, std::min(p.n, (piece + 1) * kPiece), stop);
    worker.top = std::min<int64_t>(limit, worker.ready);
    auto is_empty = [&](int64_t bin) {
      return worker.bytes[bin] == 0 && (!worker.wrapped[bin / kPageBins] || worker.wraps[bin] == 0);
    };
    while (n_bins < 0 && worker.top > 0 && is_empty(worker.top - 1)) --worker.top;
  });
  if (stop.too_many) return Outcome::kTooMany;
  if (stop.outside) return Outcome::kOutside;
  top = 0;
  for (const Worker& worker : workers) top = std::max(top, worker.top);
  return Outcome::kCounted;
}

Outcome CountBytes::count(const CountProblem& p, int64_t row, int64_t n_bins, int n_threads) {
  return with_key_width(p.key_dtype, [&](auto key) { return run<decltype(key)>(p, row, n_bins, n_threads); });
}

void CountBytes::write(int64_t* counts, int64_t n_bins, bool overwrite, int n_threads) const {
  const int64_t share = ((n_bins + n_threads - 1) / n_threads + kPageBins - 1) / kPageBins * kPageBins;
  for_tasks(n_threads, n_threads, false, [&](int64_t task, int) {
    const int64_t from = std::min(n_bins, task * share), to = std::min(n_bins, from + share);
    if (overwrite) std::fill(counts + from, counts + to, 0);
    for (const Worker& worker : workers) {
      const int64_t end = std::min<int64_t>(to, std::min<int64_t>(worker.ready, limit));
      const uint8_t* const bytes = worker.bytes.get();
      for (int64_t bin = from; bin < end; ++bin) counts[bin] += bytes[bin];
      for (int64_t page = from / kPageBins; page * kPageBins < end; ++page)
        if (worker.wrapped[page])
          for (int64_t bin = page * kPageBins; bin < std::min(end, (page + 1) * kPageBins); ++bin)
            counts[bin] += (int64_t)worker.wraps[bin] * 256;
    }
  });
}

}  // namespace upsweep
