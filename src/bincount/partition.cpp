// PARTITION: counts, or sums of single weights, of one row in more bins than the cache holds.
//
// Bytes a key: its own size and its weight's read once; 2 (of 2^27 bins and more 4) and the weight's 8 written to a
// workspace and read again, most of it in the cache. The bins are cut into buckets that fit the cache. Chunk by
// chunk of the keys: each worker deals its part of the chunk out to the buckets, as the low bits of keys, in order;
// then workers claim buckets and apply what all workers dealt to them, in the workers' order. So each bin is added to
// in the keys' order: float sums have numpy's bits.
//
// A bucket that many keys fell into (skewed keys) would keep one worker busy alone: its counts are taken by several, in
// tables of their own. Its float sums stay with one worker, whose order is the promise.
//
// Called by the driver for more bins than its tables have.

#include "bincount/partition.hpp"

#include <atomic>

#include "bincount/sums.hpp"

namespace upsweep {
namespace {

constexpr int kRunBits = 9;                        // entries of a run, the piece of a bucket that lies contiguous
constexpr int64_t kRun = 1 << kRunBits;
constexpr int kBucketBits = 8;                     // of the number of buckets, while 16 low bits are enough
constexpr int kMostBucketBits = 11;
constexpr int64_t kWorkspace = 512 << 10;          // bytes a worker has at least, for a chunk
constexpr int64_t kShareOfResult = 2;              // and all together this part of the result, if that is more
constexpr int64_t kMostWorkspace = 64 << 20;       // of a worker

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct Nothing {};   // in the place of weights

struct Layout {
  int low_bits;
  int64_t n_buckets;   // and one more, of keys outside
  int64_t n_bins;

  explicit Layout(int64_t n_bins) : n_bins(n_bins) {
    const int bits = std::bit_width((uint64_t)n_bins - 1);
    low_bits = std::clamp(bits - kBucketBits, kFewestLowBits, kMostLowBits);
    if (bits - low_bits > kMostBucketBits) low_bits = bits - kMostBucketBits;
    n_buckets = (n_bins + (INT64_C(1) << low_bits) - 1) >> low_bits;
  }
};

// What a worker has distributed of its part of a chunk.
template <class Low, class Sum>
struct Dealt {
  Scratch<Low> lows;
  Scratch<Sum> terms, buffer;    // weights, and a block of them as it is read
  Scratch<int32_t> next;         // run after a run
  Scratch<int32_t> first;        // run of each bucket
  Scratch<int64_t> cursor;       // next entry of each bucket
  int32_t n_runs = 0;

  void allocate(int64_t n_keys, int64_t n_buckets) {
    const int64_t n_runs = n_keys / kRun + n_buckets + 1;
    lows = new_large_scratch<Low>(n_runs * kRun);
    if constexpr (!std::is_same_v<Sum, Nothing>) {
      terms = new_large_scratch<Sum>(n_runs * kRun);
      buffer = new_scratch<Sum>(kBlock);
    }
    next = new_scratch<int32_t>(n_runs);
    first = new_scratch<int32_t>(n_buckets);
    cursor = new_scratch<int64_t>(n_buckets);
  }
  void clear(int64_t n_buckets) {
    n_runs = (int32_t)n_buckets;
    for (int64_t bucket = 0; bucket < n_buckets; ++bucket)
      first[bucket] = (int32_t)bucket, cursor[bucket] = bucket * kRun;
  }
  int64_t append(int64_t bucket, Low low) {
    const int64_t at = cursor[bucket]++;
    lows[at] = low;
    if (__builtin_expect(((at + 1) & (kRun - 1)) == 0, 0)) new_run(bucket, at >> kRunBits);
    return at;
  }
  // Entries of one bucket contiguous: write(number of the key, entry).
  template <class Write>
  void append_block(int64_t bucket, int64_t n, Write write) {
    for (int64_t done = 0; done < n;) {
      const int64_t first = cursor[bucket], some = std::min(n - done, kRun - (first & (kRun - 1)));
      for (int64_t k = 0; k < some; ++k) write(done + k, first + k);
      done += some;
      cursor[bucket] = first + some;
      if (((first + some) & (kRun - 1)) == 0) new_run(bucket, first >> kRunBits);
    }
  }
  void new_run(int64_t bucket, int64_t run) {
    next[run] = n_runs;
    cursor[bucket] = (int64_t)n_runs++ << kRunBits;
  }
  // visit(first entry, number of entries) along a bucket, in order.
  template <class Visit>
  void each_run(int64_t bucket, Visit visit) const {
    const int64_t end = cursor[bucket];
    int32_t run = first[bucket];
    for (; run != end >> kRunBits; run = next[run]) visit((int64_t)run << kRunBits, kRun);
    if (end & (kRun - 1)) visit((int64_t)run << kRunBits, end & (kRun - 1));
  }
  int64_t size(int64_t bucket) const {
    int64_t n = 0;
    each_run(bucket, [&](int64_t, int64_t entries) { n += entries; });
    return n;
  }
};

template <class Low, class Sum, class Result>
class Partition {
 public:
  Partition(const CountProblem& p, int64_t row, Result* result, int64_t result_stride, int64_t n_bins, int n_threads)
      : p(p), row(row_of(p, row)), row_number(row), result(result), result_stride(result_stride), layout(n_bins),
        n_threads(n_threads) {
    constexpr int64_t kEntry = sizeof(Low) + (kWeighted ? sizeof(Sum) : 0);
    const int64_t share = n_bins * (int64_t)sizeof(Result) / kShareOfResult / n_threads;
    const int64_t bytes = std::min(std::max(kWorkspace, share), kMostWorkspace);
    part = round_up(std::min(bytes / kEntry, (p.n + n_threads - 1) / n_threads), kBlock);
    dealt.resize(n_threads);
    for (auto& each : dealt) each.allocate(part, layout.n_buckets + 1);
    if (kPrivate && n_threads > 1) {
      own.resize(n_threads);
      for (auto& table : own) table = new_scratch<uint32_t>(INT64_C(1) << layout.low_bits);
      locks = std::vector<std::atomic<uint8_t>>(layout.n_buckets);
    }
    items.reserve(layout.n_buckets + 2 * n_threads * n_threads);
  }

  template <class Key>
  void run() {
    for (int64_t start = 0; start < p.n; start += part * n_threads) {
      for_tasks(n_threads, n_threads, false, [&](int64_t worker, int) {
        const int64_t from = std::min(p.n, start + worker * part), to = std::min(p.n, from + part);
        dealt[worker].clear(layout.n_buckets + 1);
        deal<Key>(dealt[worker], from, to);
      });
      plan(std::min(p.n - start, part * n_threads));
      for_tasks((int64_t)items.size(), n_threads, false, [&](int64_t item, int thread) {
        const Item& todo = items[item];
        if (todo.source >= 0) return apply_private(todo, thread);
        if (result_stride == 1) fetch(todo.bucket);
        for (const auto& each : dealt) apply(each, todo.bucket);
      });
    }
  }

 private:
  static constexpr bool kWeighted = !std::is_same_v<Sum, Nothing>;
  static constexpr bool kPrivate = !kWeighted && sizeof(Low) == 2;
  struct Item {
    int64_t bucket;
    int source;        // -1: what all workers dealt
  };

  template <class Key>
  void deal(Dealt<Low, Sum>& to, int64_t from, int64_t end) {
    const uint64_t valid = valid_bins(p.key_dtype, layout.n_bins);
    each_block<Key>(row, from, end, [&](const char* keys, int64_t first, int64_t n) {
      const Bits2<Key> bits = bits_of<Key>(keys, n);
      const Sum* terms = nullptr;
      if constexpr (kWeighted) {
        terms = weights_of<Sum>(p, row_number).read(first, n, to.buffer.get());
      } else if (bits.any == bits.all) {   // chunks are distributed before any bucket is applied
        if (bits.any < valid) __atomic_fetch_add(result + bits.any * result_stride, n, __ATOMIC_RELAXED);
        return true;
      }
      if (bits.any < valid && ((bits.any ^ bits.all) >> layout.low_bits) == 0)
        deal_together<Key>(to, (int64_t)(bits.any >> layout.low_bits), keys, n, terms);
      else
        deal_block<Key>(to, keys, n, terms, valid, (uint64_t)layout.n_buckets << layout.low_bits, layout.low_bits);
      return true;
    });
  }

  // Numbers by value: a store to a cursor might else be one to them.
  template <class Key>
  static void deal_block(Dealt<Low, Sum>& to, const char* keys, int64_t n, [[maybe_unused]] const Sum* terms,
                         uint64_t valid, uint64_t outside, int low_bits) {
    const uint64_t low_mask = (UINT64_C(1) << low_bits) - 1;
    for (int64_t at = 0; at < n; ++at) {
      const uint64_t key = index_at<Key>(keys, at), bin = key < valid ? key : outside;
      const int64_t entry = to.append((int64_t)(bin >> low_bits), (Low)(bin & low_mask));
      if constexpr (kWeighted) to.terms[entry] = terms[at];
      else (void)entry;
    }
  }

  template <class Key>
  void deal_together(Dealt<Low, Sum>& to, int64_t bucket, const char* keys, int64_t n,
                     [[maybe_unused]] const Sum* terms) const {
    const uint64_t low_mask = (UINT64_C(1) << layout.low_bits) - 1;
    const uint64_t last = (uint64_t)(layout.n_bins - 1 - (bucket << layout.low_bits));   // of the bucket's bins, or more
    to.append_block(bucket, n, [&](int64_t at, int64_t entry) {
      to.lows[entry] = (Low)std::min(key_at<Key>(keys, at) & low_mask, last);
      if constexpr (kWeighted) to.terms[entry] = terms[at];
    });
  }

  // Every bucket is an item; the largest ones come first, of counts in parts.
  void plan(int64_t n) {
    items.clear();
    if (n_threads > 1) {
      const int64_t large = std::max<int64_t>(n / (2 * n_threads), INT64_C(1) << layout.low_bits);
      for (int64_t bucket = 0; bucket < layout.n_buckets; ++bucket) {
        int64_t size = 0;
        for (const auto& each : dealt) size += each.size(bucket);
        if (size < large) continue;
        if (kPrivate)
          for (int source = 0; source < n_threads; ++source) items.push_back({bucket, source});
        else
          items.push_back({bucket, -1});
      }
    }
    const size_t n_large = items.size();
    size_t seen = 0;
    for (int64_t bucket = 0; bucket < layout.n_buckets; ++bucket) {
      if (seen < n_large && items[seen].bucket == bucket) {
        while (seen < n_large && items[seen].bucket == bucket) ++seen;
        continue;
      }
      items.push_back({bucket, -1});
    }
  }

  // A bucket's part of the result comes in order, ahead of keys that would wait for it one by one.
  void fetch(int64_t bucket) const {
    int64_t size = 0;
    for (const auto& each : dealt) size += each.size(bucket);
    const int64_t first = bucket << layout.low_bits;
    const int64_t end = std::min(layout.n_bins, first + (INT64_C(1) << layout.low_bits));
    if (size * kWorthFetching < end - first) return;
    for (int64_t bin = first; bin < end; bin += 64 / (int64_t)sizeof(Result)) __builtin_prefetch(result + bin, 1);
  }

  void apply(const Dealt<Low, Sum>& from, int64_t bucket) {
    Result* const to = result + (bucket << layout.low_bits) * result_stride;
    const Low* const lows = from.lows.get();
    from.each_run(bucket, [&](int64_t first, int64_t n) {
      const Bits2<Low> bits = bits_of<Low>((const char*)(lows + first), n);
      if (bits.any == bits.all) {   // through memory, each addition would wait for the store before it
        Result number = to[bits.any * result_stride];
        if constexpr (kWeighted) for (int64_t at = first; at < first + n; ++at) number += from.terms[at];
        else number += n;
        to[bits.any * result_stride] = number;
      } else if constexpr (kWeighted) {
        const Sum* const terms = from.terms.get();
        for (int64_t at = first; at < first + n; ++at) to[lows[at] * result_stride] += terms[at];
      } else {
        for (int64_t at = first; at < first + n; ++at) ++to[lows[at]];
      }
    });
  }

  void apply_private(const Item& item, int thread) {
    if constexpr (kPrivate) {
      const int64_t bins = std::min(INT64_C(1) << layout.low_bits, layout.n_bins - (item.bucket << layout.low_bits));
      uint32_t* const table = own[thread].get();
      std::fill_n(table, bins, 0u);
      const Low* const lows = dealt[item.source].lows.get();
      dealt[item.source].each_run(item.bucket, [&](int64_t first, int64_t n) {
        for (int64_t at = first; at < first + n; ++at) ++table[lows[at]];
      });
      std::atomic<uint8_t>& lock = locks[item.bucket];
      for (uint8_t open = 0; !lock.compare_exchange_weak(open, 1, std::memory_order_acquire); open = 0) {}
      Result* const to = result + (item.bucket << layout.low_bits);
      for (int64_t bin = 0; bin < bins; ++bin) to[bin] += table[bin];
      lock.store(0, std::memory_order_release);
    } else {
      (void)item, (void)thread;
    }
  }

  const CountProblem& p;
  const Row row;
  const int64_t row_number;
  Result* const result;
  const int64_t result_stride;
  const Layout layout;
  const int n_threads;
  int64_t part = 0;                           // keys of a chunk that a worker deals
  std::vector<Dealt<Low, Sum>> dealt;         // by each worker
  std::vector<Scratch<uint32_t>> own;         // tables for buckets that many keys fell into
  std::vector<std::atomic<uint8_t>> locks;    // of a bucket's part of the result
  std::vector<Item> items;
};

template <class Low, class Sum, class Result>
void partition(const CountProblem& p, int64_t row, Result* result, int64_t result_stride, int64_t n_bins,
               bool overwrite, int n_threads) {
  Partition<Low, Sum, Result> work(p, row, result, result_stride, n_bins, n_threads);
  if (overwrite) {
    const int64_t part = (n_bins + n_threads - 1) / n_threads;
    for_tasks(n_threads, n_threads, false, [&](int64_t worker, int) {
      const int64_t from = std::min(n_bins, worker * part), to = std::min(n_bins, from + part);
      for (int64_t bin = from; bin < to; ++bin) result[bin * result_stride] = Result(0);
    });
  }
  with_key_width(p.key_dtype, [&](auto key) { work.template run<decltype(key)>(); });
}

template <class Sum, class Result>
void partition_any(const CountProblem& p, int64_t row, Result* result, int64_t result_stride, int64_t n_bins,
                   bool overwrite, int n_threads) {
  if (Layout(n_bins).low_bits <= 16)
    partition<uint16_t, Sum, Result>(p, row, result, result_stride, n_bins, overwrite, n_threads);
  else
    partition<uint32_t, Sum, Result>(p, row, result, result_stride, n_bins, overwrite, n_threads);
}

}  // namespace

void count_partitioned(const CountProblem& p, int64_t row, int64_t* counts, int64_t n_bins, bool overwrite,
                       int n_threads) {
  partition_any<Nothing>(p, row, counts, 1, n_bins, overwrite, n_threads);
}

template <class Sum>
void sum_partitioned(const CountProblem& p, int64_t row, Sum* sums, int64_t result_stride, int64_t n_bins,
                     bool overwrite, int n_threads) {
  partition_any<Sum>(p, row, sums, result_stride, n_bins, overwrite, n_threads);
}
template void sum_partitioned(const CountProblem&, int64_t, double*, int64_t, int64_t, bool, int);
template void sum_partitioned(const CountProblem&, int64_t, uint64_t*, int64_t, int64_t, bool, int);

}  // namespace upsweep
