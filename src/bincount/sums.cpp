// SUMS: of one row's weights for each key, on several threads.
//
// Bytes a key: its own size and its weights', read once. The row is cut into chunks whose number follows from its
// length; each is summed in the keys' order, in a table of its own, and the tables are added in the chunks' order. So
// the bits do not depend on the number of threads. Keys are masked to a bin as they are added, and the same read says
// whether they were inside; where a block's were not, which is rare, its chunk is summed again in a larger table.
// Where keys repeat, a worker takes several chunks at the same time: an addition to the bin just added to waits for
// the one before, and meanwhile those of the other chunks go on.
//
// Called by the driver for up to kSumNumbers numbers, and for rows of at most one chunk in their own order.

#include "bincount/sums.hpp"

namespace upsweep {

template <class Sum>
struct SumTables<Sum>::Chunk {
  int64_t from, to;
};

template <class Sum>
struct SumTables<Sum>::Worker {
  Scratch<Sum> tables;     // one for each chunk that it takes at a time
  int n_tables = 1;
  Scratch<Sum> buffer;     // of weights
  int64_t ready = 0;       // bins of the tables that are initialised
  uint64_t top = 0;        // 1 more than the largest key that was met, while bins are unknown
  bool careful = false;    // there were keys outside: blocks are looked at before they are summed
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

// Initialises bins, and some more.
template <class Sum>
void SumTables<Sum>::grow(Worker& worker, uint64_t bins) const {
  const int64_t target = std::min<int64_t>(limit + 1, std::bit_ceil(bins));
  for (int table = 0; table < worker.n_tables; ++table) {
    Sum* to = worker.tables.get() + table * stride;
    std::fill(to + worker.ready * width, to + target * width, Sum(0));
  }
  worker.ready = target;
}

// Initialises what a block's keys need; false: it cannot be summed. Keys outside go to the bin behind the last.
template <class Sum>
template <class Key>
bool SumTables<Sum>::prepare(Worker& worker, const char* keys, int64_t n, Stop& stop, bool* checked) const {
  if (n <= 0) return true;
  // Of 64-bit keys a maximum takes AVX2 several times as long as their bits, which are at least as large.
  const uint64_t bits = bits_of<Key>(keys, n).any;
  if (bits < worker.top) return true;
  const bool has_top_bit = bits >> (8 * sizeof(Key) - 1);
  uint64_t largest = has_top_bit ? largest_unsigned<Key>(keys, n) : largest_of<std::make_signed_t<Key>>(keys, n);
  if (largest >= stop.valid) {
    if (stop.raise) return stop.outside.store(true, std::memory_order_relaxed), false;
    largest = 0;
    for (int64_t at = 0; at < n && !stop.known; ++at) {
      const uint64_t key = key_at<Key>(keys, at);
      if (key < stop.valid) largest = std::max(largest, key + 1);
    }
    if (largest > (uint64_t)limit) return stop.too_many.store(true, std::memory_order_relaxed), false;
    worker.top = std::max(worker.top, largest);
    largest = limit, *checked = true;
  } else {
    if (largest >= (uint64_t)limit) return stop.too_many.store(true, std::memory_order_relaxed), false;
    worker.top = std::max(worker.top, largest + 1);
  }
  if (largest >= (uint64_t)worker.ready) grow(worker, largest + 1);
  return true;
}

namespace {

template <class Key>
inline uint64_t bin_of(const char* keys, int64_t at, uint64_t limit) {
  return std::min<uint64_t>(index_at<Key>(keys, at), limit);
}

// n steps of each of N chunks, each into a table of its own; whether all keys were up to the last. Checked: others go to
// the bin behind it; else they are masked to any.
template <class Key, int N, bool Checked, class Term, class Sum>
inline bool add_steps(const char* const* keys, const Term* const* terms, int64_t from, int64_t to, Sum* tables,
                      int64_t stride, uint64_t mask, uint64_t last) {
  uint64_t beyond = 0;   // the top bit, of keys beyond the last
  for (int64_t at = from; at < to; ++at)
    for (int k = 0; k < N; ++k) {
      const uint64_t key = index_at<Key>(keys[k], at);
      if constexpr (!Checked) beyond |= key | (last - key);
      tables[k * stride + (int64_t)(Checked ? std::min(key, last + 1) : key & mask)] += (Sum)terms[k][at];
    }
  return beyond >> 63 == 0;
}

}  // namespace

// N chunks of single weights, in step. Term: Sum, or what lies in memory and is converted as it is added.
template <class Sum>
template <class Key, class Term, int N>
void SumTables<Sum>::sum_side_by_side(Worker& worker, const Row& keys, const Weights<Sum>& weights,
                                      const Chunk* chunks, Stop& stop) const {
  Unsigned<Key> key_buffers[N][kBlock];
  Sum* const tables = worker.tables.get();
  const int64_t length = chunks[0].to - chunks[0].from;   // the last ones may be shorter
  for (int64_t start = 0; start < length && !stop.set(); start += kBlock) {
    poll_blocks(start / kBlock);
    const char* blocks[N];
    const Term* terms[N];
    int64_t n[N];
    for (int k = 0; k < N; ++k) {
      const int64_t first = chunks[k].from + start;
      n[k] = std::max<int64_t>(0, std::min(kBlock, chunks[k].to - first));
      if (n[k] == 0) continue;
      blocks[k] = read_block<Key, false>(keys, first, n[k], key_buffers[k]);
      if constexpr (std::is_same_v<Term, Sum>) terms[k] = weights.read(first, n[k], worker.buffer.get() + k * kBlock);
      else terms[k] = (const Term*)(weights.data + first * weights.stride);
    }
    auto add = [&](auto checked, uint64_t bins) {
      const uint64_t mask = std::bit_ceil((uint64_t)worker.ready) - 1;
      const int64_t all = n[N - 1];
      bool inside = add_steps<Key, N, checked.value>(blocks, terms, 0, all, tables, stride, mask, bins - 1);
      for (int k = 0; k < N - 1; ++k)
        inside &= add_steps<Key, 1, checked.value>(blocks + k, terms + k, all, n[k], tables + k * stride, stride, mask,
                                                   bins - 1);
      return inside;
    };
    const int64_t ready = worker.ready;
    const uint64_t bins = std::min<uint64_t>(ready, stop.known ? (uint64_t)limit : worker.top);
    if (!worker.careful && bins > 0 && add(std::false_type(), bins)) continue;
    bool checked = false;
    for (int k = 0; k < N; ++k)
      if (!prepare<Key>(worker, blocks[k], n[k], stop, &checked)) return;
    if (worker.careful || bins == 0) {
      checked ? add(std::true_type(), limit) : add(std::false_type(), worker.ready);
    } else if (checked || worker.ready > ready) {   // some went to the wrong bin
      worker.careful = checked;
      for (int k = 0; k < N; ++k) std::fill_n(tables + k * stride, worker.ready, Sum(0));
      start = -kBlock;
    }
  }
}

// One chunk of several weights a key.
template <class Sum>
template <class Key>
void SumTables<Sum>::sum_chunk(Worker& worker, const Row& keys, const Weights<Sum>& weights, const Chunk& chunk,
                               int table, Stop& stop) const {
  Unsigned<Key> key_buffer[kBlock];
  Sum* const sums = worker.tables.get() + table * stride;
  const int64_t block_size = std::max<int64_t>(1, kBlock / width);
  for (int64_t first = chunk.from; first < chunk.to && !stop.set(); first += block_size) {
    const int64_t n = std::min(block_size, chunk.to - first);
    const char* block = read_block<Key>(keys, first, n, key_buffer);
    bool checked = false;
    if (!prepare<Key>(worker, block, n, stop, &checked)) return;
    const Sum* terms = weights.read(first, n, worker.buffer.get());
    for (int64_t at = 0; at < n; ++at) {
      Sum* to = sums + bin_of<Key>(block, at, limit) * width;
      for (int64_t k = 0; k < width; ++k) to[k] += terms[at * width + k];
    }
    poll_blocks((first - chunk.from) / block_size);
  }
}

template <class Sum>
template <class Key, int N>
Outcome SumTables<Sum>::run(const CountProblem& p, int64_t row, int64_t n_bins, int64_t estimate, int n_threads) {
  const Weights<Sum> weights = weights_of<Sum>(p, row);
  const Row keys = row_of(p, row);
  width = weights.n_sums;
  const uint64_t valid = valid_bins(p.key_dtype, n_bins < 0 ? INT64_MAX : n_bins);
  limit = (int64_t)std::min<uint64_t>(n_bins < 0 ? numbers(N) / width - 1 : n_bins, valid);
  stride = (int64_t)std::bit_ceil((uint64_t)limit + 1) * width + kSlack / 2;   // any key can be masked to a bin
  const int64_t n_chunks = n_chunks_of(p.n), chunk = (p.n + n_chunks - 1) / n_chunks;
  const int64_t n_tasks = (n_chunks + N - 1) / N;
  n_threads = (int)std::min<int64_t>(n_threads, n_tasks);
  std::vector<Worker> workers(n_threads);
  for (Worker& worker : workers) {
    worker.n_tables = N;
    worker.tables = new_scratch<Sum>(N * stride);
    worker.buffer = new_scratch<Sum>(std::max(N * kBlock, width));
  }
  total = new_scratch<Sum>(stride);
  Stop stop{valid, p.drop == 0, n_bins >= 0};
  std::vector<std::atomic<uint8_t>> added(n_tasks);
  const bool floats = std::is_same_v<Sum, double> && weights.dtype == kFloat && !weights.swapped &&
                      weights.stride == sizeof(float) && (uintptr_t)weights.data % alignof(float) == 0;
  for_tasks(n_tasks, n_threads, false, [&](int64_t task, int thread) {
    Worker& worker = workers[thread];
    Chunk chunks[N];
    for (int k = 0; k < N; ++k)
      chunks[k] = {std::min(p.n, (N * task + k) * chunk), std::min(p.n, (N * task + k + 1) * chunk)};
    if (worker.ready == 0) grow(worker, estimate);
    if (width > 1) {
      for (int k = 0; k < N; ++k) sum_chunk<Key>(worker, keys, weights, chunks[k], k, stop);
    } else if (floats) {
      sum_side_by_side<Key, float, N>(worker, keys, weights, chunks, stop);
    } else {
      sum_side_by_side<Key, Sum, N>(worker, keys, weights, chunks, stop);
    }
    if (task > 0) wait_for(added[task - 1]);
    if (!stop.set()) {
      const int64_t bins = std::min(worker.ready, limit);
      if (bins > ready) std::fill(total.get() + ready * width, total.get() + bins * width, Sum(0)), ready = bins;
      for (int k = 0; k < N && chunks[k].from < chunks[k].to; ++k) {
        const Sum* from = worker.tables.get() + k * stride;
        for (int64_t number = 0; number < bins * width; ++number) total[number] += from[number];
      }
    }
    publish(added[task]);
    for (int k = 0; k < N; ++k) std::fill_n(worker.tables.get() + k * stride, worker.ready * width, Sum(0));
  });
  if (stop.too_many) return Outcome::kTooMany;
  if (stop.outside) return Outcome::kOutside;
  for (const Worker& worker : workers) top = std::max(top, (int64_t)worker.top);
  return Outcome::kCounted;
}

template <class Sum>
Outcome SumTables<Sum>::sum(const CountProblem& p, int64_t row, int64_t n_bins, int64_t estimate, bool repeating,
                            int n_threads) {
  ready = top = 0;
  const int64_t width = weights_of<Sum>(p, row).n_sums, n_chunks = n_chunks_of(p.n);
  // How many chunks a worker takes changes no bit. Where keys hardly repeat it is one: a line is read faster than four.
  int side_by_side = 1;
  for (int n : {2, 4})
    if (repeating && n_chunks >= n * n_threads && (estimate + 2) * width <= numbers(n)) side_by_side = n;
  return with_key_width(p.key_dtype, [&](auto key) {
    using Key = decltype(key);
    if (side_by_side == 4) return run<Key, 4>(p, row, n_bins, estimate, n_threads);
    if (side_by_side == 2) return run<Key, 2>(p, row, n_bins, estimate, n_threads);
    return run<Key, 1>(p, row, n_bins, estimate, n_threads);
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

namespace {

constexpr uint64_t kNear = 8 * kBlock;   // bins between a block's first key and its last, where keys are sorted

// visit(bin, number of the key) for the keys of a block that are inside; ahead(bin) some time before.
template <class Key, class Ahead, class Visit>
inline void each_bin(const char* keys, int64_t n, uint64_t valid, Ahead ahead, Visit visit) {
  auto visit_key = [&](int64_t at) {
    if (const uint64_t bin = index_at<Key>(keys, at); bin < valid) visit(bin, at);
  };
  int64_t at = 0;
  for (; at + kAhead < n; ++at) ahead(key_at<Key>(keys, at + kAhead)), visit_key(at);
  for (; at < n; ++at) visit_key(at);
}

// The same with or without asking ahead.
template <class Key, class T, class Visit>
inline void each_bin(const char* keys, int64_t n, uint64_t valid, const T* result, bool large, Visit visit) {
  // The bins of sorted keys come in order: the processor asks for them.
  const uint64_t first = key_at<Key>(keys, 0), last = key_at<Key>(keys, n - 1);
  if (large && std::max(first, last) - std::min(first, last) >= kNear) each_bin<Key>(keys, n, valid, [=](uint64_t bin) { __builtin_prefetch(result + bin, 1); }, visit);
  else each_bin<Key>(keys, n, valid, [](uint64_t) {}, visit);
}

}  // namespace

void count_in_order(const CountProblem& p, int64_t row, int64_t* counts, int64_t n_bins, bool overwrite) {
  if (overwrite) std::fill_n(counts, n_bins, 0);
  with_key_width(p.key_dtype, [&](auto key) {
    using Key = decltype(key);
    const uint64_t valid = valid_bins(p.key_dtype, n_bins);
    const bool large = n_bins > kCached;
    each_block<Key, false>(row_of(p, row), 0, p.n, [=](const char* keys, int64_t, int64_t n) {
      each_bin<Key>(keys, n, valid, counts, large, [=](uint64_t bin, int64_t) { ++counts[bin]; });
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
  with_key_width(p.key_dtype, [&](auto key) {
    using Key = decltype(key);
    const uint64_t valid = valid_bins(p.key_dtype, n_bins);
    const bool large = n_bins > kCached;
    const Row keys = row_of(p, row);
    Unsigned<Key> key_buffer[kBlock];
    for (int64_t first = 0; first < p.n; first += block_size) {
      const int64_t n = std::min(block_size, p.n - first);
      const char* block = read_block<Key, false>(keys, first, n, key_buffer);
      const Sum* terms = weights.read(first, n, buffer.get());
      poll_blocks(first / block_size);
      if (result_stride == 1) {
        each_bin<Key>(block, n, valid, sums, large, [=](uint64_t bin, int64_t at) { sums[bin] += terms[at]; });
        continue;
      }
      each_bin<Key>(block, n, valid, sums, false, [=](uint64_t bin, int64_t at) {
        Sum* to = sums + (int64_t)bin * result_stride;
        for (int64_t k = 0; k < width; ++k) to[k] += terms[at * width + k];
      });
    }
  });
}
template void sum_in_order(const CountProblem&, int64_t, double*, int64_t, int64_t, bool);
template void sum_in_order(const CountProblem&, int64_t, uint64_t*, int64_t, int64_t, bool);

}  // namespace upsweep
