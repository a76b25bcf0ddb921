// SUMS: of one row's weights for each key, on several threads.
//
// Bytes a key: its own size and its weights', read once. The row is cut into chunks whose number follows from its
// length; each is summed in the keys' order, in a table of its own, and the tables are added in the chunks' order. So
// the bits do not depend on the number of threads. A worker takes two chunks side by side: an addition to the bin
// just added to waits for the one before, and meanwhile the other chunk's goes on.
//
// Called by the driver for up to kSumNumbers numbers, and for rows of at most one chunk in their own order.

#include "count_sums.hpp"

namespace upsweep {

template <class Sum>
struct SumTables<Sum>::Chunk {
  int64_t from, to;
};

template <class Sum>
struct SumTables<Sum>::Worker {
  Scratch<Sum> tables;     // two
  Scratch<Sum> buffer;     // of weights
  int64_t ready = 0;       // bins of the tables that are initialised
  uint64_t top = 0;
};

template <class Sum>
struct SumTables<Sum>::Stop {
  const uint64_t valid;
  const bool raise, known;
  std::atomic<bool> outside{false}, too_many{false};

  bool set() const {
    return outside.load(std::memory_order_relaxed) || too_many.load(std::memory_order_relaxed);
  }
};

// Initialises what a block's keys need; false: it cannot be summed. Keys outside go to the bin behind the last.
template <class Sum>
template <class Key>
bool SumTables<Sum>::prepare(Worker& worker, const char* keys, int64_t n, Stop& stop) const {
  if (n <= 0) return true;
  uint64_t largest = largest_unsigned<Key>(keys, n);
  if (largest >= stop.valid) {
    if (stop.raise) return stop.outside.store(true, std::memory_order_relaxed), false;
    largest = 0;
    for (int64_t at = 0; at < n; ++at) {
      const uint64_t key = key_at<Key>(keys, at);
      if (key < stop.valid) largest = std::max(largest, key + 1);
    }
    if (largest > (uint64_t)limit) return stop.too_many.store(true, std::memory_order_relaxed), false;
    worker.top = std::max(worker.top, largest);
    largest = limit;
  } else {
    if (largest >= (uint64_t)limit) return stop.too_many.store(true, std::memory_order_relaxed), false;
    worker.top = std::max(worker.top, largest + 1);
  }
  if (largest < (uint64_t)worker.ready) return true;
  const int64_t wanted = std::min<int64_t>(limit + 1, std::bit_ceil(largest + 1));
  for (int table = 0; table < 2; ++table) {
    Sum* to = worker.tables.get() + table * stride;
    std::fill(to + worker.ready * width, to + wanted * width, Sum(0));
  }
  worker.ready = wanted;
  return true;
}

namespace {

template <class Key>
inline uint64_t bin_of(const char* keys, int64_t at, uint64_t limit) {
  return std::min<uint64_t>(key_at<Key>(keys, at), limit);
}

}  // namespace

// Two chunks of single weights, in step.
template <class Sum>
template <class Key>
void SumTables<Sum>::sum_pair(Worker& worker, const Row& keys, const Weights<Sum>& weights, const Chunk* chunks,
                              Stop& stop) const {
  Unsigned<Key> key_buffers[2][kBlock];
  const int64_t length = std::max(chunks[0].to - chunks[0].from, chunks[1].to - chunks[1].from);
  Sum* const a = worker.tables.get();
  Sum* const b = a + stride;
  const uint64_t last = limit;
  for (int64_t start = 0; start < length && !stop.set(); start += kBlock) {
    const char* block[2];
    const Sum* terms[2];
    int64_t n[2];
    for (int k = 0; k < 2; ++k) {
      const int64_t first = chunks[k].from + start;
      n[k] = std::max<int64_t>(0, std::min(kBlock, chunks[k].to - first));
      if (n[k] == 0) continue;
      block[k] = read_block<Key>(keys, first, n[k], key_buffers[k]);
      terms[k] = weights.read(first, n[k], worker.buffer.get() + k * kBlock);
      if (!prepare<Key>(worker, block[k], n[k], stop)) return;
    }
    const int64_t both = std::min(n[0], n[1]);
    for (int64_t at = 0; at < both; ++at) {
      a[bin_of<Key>(block[0], at, last)] += terms[0][at];
      b[bin_of<Key>(block[1], at, last)] += terms[1][at];
    }
    for (int64_t at = both; at < n[0]; ++at) a[bin_of<Key>(block[0], at, last)] += terms[0][at];
    for (int64_t at = both; at < n[1]; ++at) b[bin_of<Key>(block[1], at, last)] += terms[1][at];
  }
}

// One chunk of several weights a key.
template <class Sum>
template <class Key>
void SumTables<Sum>::sum_chunk(Worker& worker, const Row& keys, const Weights<Sum>& weights, const Chunk& chunk,
                               int table, Stop& stop) const {
  Unsigned<Key> key_buffer[kBlock];
  Sum* const sums = worker.tables.get() + table * stride;
  const int64_t step = std::max<int64_t>(1, 2 * kBlock / width), block_size = std::min(kBlock, step);
  for (int64_t first = chunk.from; first < chunk.to && !stop.set(); first += block_size) {
    const int64_t n = std::min(block_size, chunk.to - first);
    const char* block = read_block<Key>(keys, first, n, key_buffer);
    if (!prepare<Key>(worker, block, n, stop)) return;
    const Sum* terms = weights.read(first, n, worker.buffer.get());
    for (int64_t at = 0; at < n; ++at) {
      Sum* to = sums + bin_of<Key>(block, at, limit) * width;
      for (int64_t k = 0; k < width; ++k) to[k] += terms[at * width + k];
    }
  }
}

template <class Sum>
template <class Key, bool Single>
Outcome SumTables<Sum>::run(const CountProblem& p, int64_t row, int64_t n_bins, int n_threads) {
  const Weights<Sum> weights = weights_of<Sum>(p, row);
  const Row keys = row_of(p, row);
  width = weights.n_sums;
  limit = (n_bins < 0 ? kSumNumbers / width - 1 : n_bins);
  stride = (limit + 1) * width + kSlack / 2;
  const int64_t n_chunks = n_chunks_of(p.n), chunk = (p.n + n_chunks - 1) / n_chunks, n_pairs = (n_chunks + 1) / 2;
  n_threads = (int)std::min<int64_t>(n_threads, n_pairs);
  std::vector<Worker> workers(n_threads);
  for (Worker& worker : workers) {
    worker.tables = new_scratch<Sum>(2 * stride);
    worker.buffer = new_scratch<Sum>(std::max(2 * kBlock, width));
  }
  total = new_scratch<Sum>(stride);
  Stop stop{valid_bins<Key>(n_bins < 0 ? INT64_MAX : n_bins), p.drop == 0, n_bins >= 0};
  std::vector<std::atomic<uint8_t>> added(n_pairs);
  for_tasks(n_pairs, n_threads, false, [&](int64_t pair, int thread) {
    Worker& worker = workers[thread];
    Chunk chunks[2];
    for (int k = 0; k < 2; ++k)
      chunks[k] = {std::min(p.n, (2 * pair + k) * chunk), std::min(p.n, (2 * pair + k + 1) * chunk)};
    if constexpr (Single) {
      sum_pair<Key>(worker, keys, weights, chunks, stop);
    } else {
      for (int k = 0; k < 2; ++k) sum_chunk<Key>(worker, keys, weights, chunks[k], k, stop);
    }
    if (pair > 0) wait_for(added[pair - 1]);
    if (!stop.set()) {
      const int64_t bins = std::min(worker.ready, limit);
      if (bins > ready) std::fill(total.get() + ready * width, total.get() + bins * width, Sum(0)), ready = bins;
      for (int table = 0; table < (chunks[1].from < chunks[1].to ? 2 : 1); ++table) {
        const Sum* from = worker.tables.get() + table * stride;
        for (int64_t k = 0; k < bins * width; ++k) total[k] += from[k];
      }
    }
    publish(added[pair]);
    std::fill_n(worker.tables.get(), worker.ready * width, Sum(0));
    std::fill_n(worker.tables.get() + stride, worker.ready * width, Sum(0));
  });
  if (stop.too_many) return Outcome::kTooMany;
  if (stop.outside) return Outcome::kOutside;
  for (const Worker& worker : workers) top = std::max(top, (int64_t)worker.top);
  return Outcome::kCounted;
}

template <class Sum>
Outcome SumTables<Sum>::sum(const CountProblem& p, int64_t row, int64_t n_bins, int n_threads) {
  ready = top = 0;
  const bool single = p.n_sums == 1 && !is_complex(p.weight_dtype);
  return with_key_type(p.key_dtype, [&](auto key) {
    using Key = decltype(key);
    return single ? run<Key, true>(p, row, n_bins, n_threads) : run<Key, false>(p, row, n_bins, n_threads);
  });
}

template <class Sum>
void SumTables<Sum>::write(Sum* sums, int64_t result_stride, int64_t n_bins, bool overwrite) const {
  const int64_t known = std::min(n_bins, ready);
  for (int64_t bin = 0; bin < known; ++bin) {
    Sum* to = sums + bin * result_stride;
    const Sum* from = total.get() + bin * width;
    for (int64_t k = 0; k < width; ++k) to[k] = overwrite ? from[k] : to[k] + from[k];
  }
  if (overwrite)
    for (int64_t bin = known; bin < n_bins; ++bin) std::fill_n(sums + bin * result_stride, width, Sum(0));
}

template class SumTables<double>;
template class SumTables<uint64_t>;

// ---- in order ------------------------------------------------------------------------------------------------------

void count_in_order(const CountProblem& p, int64_t row, int64_t* counts, int64_t n_bins, bool overwrite) {
  if (overwrite) std::fill_n(counts, n_bins, 0);
  with_key_type(p.key_dtype, [&](auto key) {
    using Key = decltype(key);
    const uint64_t valid = valid_bins<Key>(n_bins);
    each_block<Key>(row_of(p, row), 0, p.n, [&](const char* keys, int64_t, int64_t n) {
      for (int64_t at = 0; at < n; ++at)
        if (const uint64_t bin = key_at<Key>(keys, at); bin < valid) ++counts[bin];
      return true;
    });
  });
}

template <class Sum>
void sum_in_order(const CountProblem& p, int64_t row, Sum* sums, int64_t result_stride, int64_t n_bins,
                  bool overwrite) {
  const Weights<Sum> weights = weights_of<Sum>(p, row);
  const int64_t width = weights.n_sums, block_size = std::max<int64_t>(1, kBlock / width);
  const Scratch<Sum> buffer = new_scratch<Sum>(std::max(kBlock, width));
  if (overwrite)
    for (int64_t bin = 0; bin < n_bins; ++bin) std::fill_n(sums + bin * result_stride, width, Sum(0));
  with_key_type(p.key_dtype, [&](auto key) {
    using Key = decltype(key);
    const uint64_t valid = valid_bins<Key>(n_bins);
    const Row keys = row_of(p, row);
    Unsigned<Key> key_buffer[kBlock];
    for (int64_t first = 0; first < p.n; first += block_size) {
      const int64_t n = std::min(block_size, p.n - first);
      const char* block = read_block<Key>(keys, first, n, key_buffer);
      const Sum* terms = weights.read(first, n, buffer.get());
      for (int64_t at = 0; at < n; ++at) {
        const uint64_t bin = key_at<Key>(block, at);
        if (bin >= valid) continue;
        Sum* to = sums + (int64_t)bin * result_stride;
        for (int64_t k = 0; k < width; ++k) to[k] += terms[at * width + k];
      }
    }
  });
}
template void sum_in_order(const CountProblem&, int64_t, double*, int64_t, int64_t, bool);
template void sum_in_order(const CountProblem&, int64_t, uint64_t*, int64_t, int64_t, bool);

}  // namespace upsweep
