// Which way a count goes, by its shape, its bins and (of counts, whose bits cannot differ) its threads.
//
//   TABLES      (bincount/tables.cpp)     one row of counts in up to kTableBins bins
//   BYTES       (bincount/bytes.cpp)      one row of counts in up to kByteBins bins
//   SUMS        (bincount/sums.cpp)       one row of weights, up to kSumNumbers numbers
//   PARTITION   (bincount/partition.cpp)  one row, more bins
//   ROWS        (bincount/rows.cpp)       several rows; long ones one after the other, as above
//   in order    (bincount/sums.cpp)       few keys: numpy's own loop
//
// TABLES and SUMS find out the number of bins on the way. What the keys of a few places say tells whether it is worth
// trying; for the other ways all keys are looked at before.

#include "bincount/bytes.hpp"
#include "bincount/partition.hpp"
#include "bincount/range.hpp"
#include "bincount/rows.hpp"

namespace upsweep {
namespace {

constexpr int64_t kFewKeys = 4096;             // of which a row is counted in order
// 26 us of counting. A worker that is awake costs less than a microsecond (Zen 5, gcc's OpenMP), but where other
// work has its core the call waits for it.
constexpr int64_t kKeysWorthAThread = 1 << 16;
constexpr int64_t kPartitionWorth = 1 << 19;   // keys
constexpr int64_t kPartitionBins = 1 << 22;    // of which one thread gains by it, of counts: they are in no cache
constexpr int kWorkersOfSums = 4;              // that gain by it, of weights,
constexpr int64_t kSumBins = 3 << 20;          // in fewer bins than these; 2^20 bins: 34 ms of one, 56 of two (Zen 5)
constexpr int64_t kFewerThanBins = 4;          // bins a key of which only some of a bucket's cache lines are needed
// Measured on Zen 5 (48 KiB and 1 MiB of cache): more tables do not wait for each other, but leave the first cache.
constexpr int64_t kManyTables = 2048;          // bins of which 8 tables are the fastest
constexpr int64_t kSomeTables = 16384;         // and 4
constexpr int64_t kBytesOfAll = 1 << 24;       // of byte tables that exceed the second cache, of all workers,
constexpr int64_t kKeysOfAByte = 4;            // keys a bin that are worth such tables
constexpr int kWorkersOfBytes = 4;             // whose tables are then at most as large as the result
constexpr int kPlaces = 16;                    // at which the keys are looked at first
constexpr int64_t kPlaceKeys = 64;

int threads_for(const CountProblem& p, int64_t n_keys) {
  return threads_worth(p.n_threads, n_keys / kKeysWorthAThread * kWorthAThread, INT64_MAX);
}

int64_t width_of(const CountProblem& p) {
  return p.summand == kOnes ? 1 : p.n_sums * (is_complex(p.weight_dtype) ? 2 : 1);
}

bool in_bytes(int64_t n_bins, int64_t n, int n_threads) {
  const bool fits = n_bins <= kTableBytes || (n_threads <= kWorkersOfBytes && n_bins <= kBytesOfAll / n_threads);
  return n_bins < kByteBins && n_bins * kKeysOfAByte <= n && fits;
}

bool is_partition_worth(const CountProblem& p, int64_t n_bins, int n_threads) {
  if (p.n < kPartitionWorth || p.n < n_bins / kFewerThanBins) return false;
  // Weights are distributed with their keys, so that three workers take as long as one that adds them in a cache.
  if (p.summand != kOnes && n_threads < kWorkersOfSums && n_bins < kSumBins) return false;
  return n_threads > 1 || (p.summand == kOnes && n_bins >= kPartitionBins && p.n >= n_bins / 2);
}

// The number of bins that some of the keys need. Where keys are sorted the largest is at an end.
template <class Key>
int64_t guess_bins(const CountProblem& p, int64_t row) {
  const Row keys = row_of(p, row);
  uint64_t largest = 0;
  Unsigned<Key> buffer[kPlaceKeys];
  for (int place = 0; place < kPlaces; ++place) {
    const int64_t n = std::min(kPlaceKeys, p.n), first = (p.n - n) / (kPlaces - 1) * place;
    const Key info = largest_of<Key>(read_block<Key>(keys, place == kPlaces - 1 ? p.n - n : first, n, buffer), n);
    if (info > Key(0)) largest = std::max(largest, (uint64_t)info);
  }
  return (int64_t)std::min<uint64_t>(largest, INT64_MAX - 1) + 1;
}

BinInfo bins_of_range(const CountProblem& p) {
  const KeyRange range = range_of_keys(p);
  const bool too_large = range.any && range.largest >= (uint64_t)INT64_MAX;
  BinInfo info;
  info.n_bins = p.n_bins >= 0 ? p.n_bins : too_large ? INT64_MAX
               : std::max(p.n_bins_least, range.any ? (int64_t)range.largest + 1 : 0);
  info.outside = !p.drop && (range.negative || (p.n_bins >= 0 && range.any && range.largest >= (uint64_t)p.n_bins));
  return info;
}

int n_tables_for(int64_t n_bins, int64_t n) {
  if (n_bins <= kManyTables && n_bins * 8 <= n) return 8;
  if (n_bins <= kSomeTables && n_bins * 4 <= n) return 4;
  return 1;
}

}  // namespace

// What `look` has counted.
struct Tables {
  CountTables counts;
  CountBytes bytes;
  bool in_bytes = false;
  SumTables<double> reals;
  SumTables<uint64_t> integers;
};

Counter::Counter(const CountProblem& problem_) : problem(problem_) {}
Counter::~Counter() = default;

BinInfo Counter::scan_keys() {
  const CountProblem& p = problem;
  info.n_bins = p.n_bins >= 0 ? p.n_bins : p.n_bins_least;
  if (p.n == 0 || p.n_rows == 0) return info;
  const bool must_look = p.n_bins < 0 || !p.drop;
  if (p.n_rows == 1 && p.n_bins != 0 && (p.summand == kOnes ? p.n > kFewKeys : p.n > kSumChunk)) {
    const int64_t estimate =
        p.n_bins >= 0 ? p.n_bins
                      : with_key_type(p.key_dtype, [&](auto key) { return guess_bins<decltype(key)>(p, 0); });
    const int64_t width = width_of(p);
    tables = std::make_unique<Tables>();
    Outcome outcome = Outcome::kTooMany;
    int64_t n_bins = 0;
    if (p.summand == kOnes) {
      const int n_tables = n_tables_for(estimate, p.n);
      const int n_threads = (int)std::min<int64_t>(threads_for(p, p.n), std::max<int64_t>(1, p.n / estimate));
      if (estimate <= CountTables::capacity(n_tables) && estimate <= p.n) {
        outcome = tables->counts.count(p, 0, p.n_bins, n_tables, n_threads);
        n_bins = tables->counts.n_bins();
      } else if (in_bytes(estimate, p.n, n_threads)) {
        tables->in_bytes = true;
        outcome = tables->bytes.count(p, 0, p.n_bins, n_threads);
        n_bins = tables->bytes.n_bins();
      }
    } else if (estimate < kSumNumbers / width && estimate <= p.n) {
      auto sum = [&](auto& sums) {
        outcome = sums.sum(p, 0, p.n_bins, estimate, threads_for(p, p.n * width));
        n_bins = sums.n_bins();
      };
      p.summand == kReals ? sum(tables->reals) : sum(tables->integers);
    }
    if (outcome == Outcome::kOutside) info.outside = 1;
    if (outcome == Outcome::kCounted && p.n_bins < 0) info.n_bins = std::max(p.n_bins_least, n_bins);
    if (outcome != Outcome::kTooMany) return info;
    tables.reset();
  }
  if (must_look) info = bins_of_range(p);
  return info;
}

namespace {

// One row, of which nothing has been counted yet.
void write_row(const CountProblem& p, int64_t row, int64_t* counts, int64_t n_bins, bool overwrite) {
  const int n_threads = threads_for(p, p.n);
  if (p.n <= kFewKeys) return count_in_order(p, row, counts, n_bins, overwrite);
  CountProblem lenient = p;   // whatever was to be raised has been
  lenient.drop = 1;
  const int n_tables = n_tables_for(n_bins, p.n);
  const int with_tables = (int)std::min<int64_t>(n_threads, std::max<int64_t>(1, p.n / (n_bins + 1)));
  if (n_bins <= CountTables::capacity(n_tables) && (n_tables > 1 || with_tables > 1)) {
    CountTables tables;
    tables.count(lenient, row, n_bins, n_tables, with_tables);
    return tables.write(counts, n_bins, overwrite, n_threads);
  }
  if (n_bins > kTableBins && in_bytes(n_bins, p.n, with_tables)) {
    CountBytes tables;
    tables.count(lenient, row, n_bins, with_tables);
    return tables.write(counts, n_bins, overwrite, with_tables);
  }
  if (n_bins > kTableBins && is_partition_worth(p, n_bins, n_threads))
    return count_partitioned(p, row, counts, n_bins, overwrite, n_threads);
  count_in_order(p, row, counts, n_bins, overwrite);
}

template <class Sum>
void sum_row(const CountProblem& p, int64_t row, Sum* sums, int64_t stride, int64_t n_bins, bool overwrite) {
  const int64_t width = width_of(p);
  if (p.n <= kSumChunk) return sum_in_order(p, row, sums, stride, n_bins, overwrite);
  if (n_bins < kSumNumbers / width && n_bins <= p.n) {
    CountProblem lenient = p;
    lenient.drop = 1;
    SumTables<Sum> tables;
    tables.sum(lenient, row, n_bins, n_bins, threads_for(p, p.n * width));
    return tables.write(sums, stride, n_bins, overwrite);
  }
  if (width == 1) {   // either way in the keys' order
    const int n_threads = threads_for(p, p.n);
    if (!is_partition_worth(p, n_bins, n_threads)) return sum_in_order(p, row, sums, stride, n_bins, overwrite);
    return sum_partitioned(p, row, sums, stride, n_bins, overwrite, n_threads);
  }
  // Several numbers in many bins: one after the other. A complex one is two real ones.
  CountProblem part = p;
  part.n_sums = 1;
  const bool pairs = is_complex(p.weight_dtype);
  if (pairs) part.weight_dtype = p.weight_dtype == kComplexFloat ? kFloat : kDouble;
  for (int64_t k = 0; k < p.n_sums; ++k)
    for (int64_t half = 0; half < (pairs ? 2 : 1); ++half) {
      part.weights = p.weights + k * p.sum_stride + half * dtype_size(part.weight_dtype);
      sum_row(part, row, sums + (pairs ? 2 * k + half : k), stride, n_bins, overwrite);
    }
}

template <class Sum>
void sum_all(const CountProblem& p, Sum* sums, int64_t n_bins, bool overwrite) {
  const int64_t width = width_of(p);
  if (p.n_rows > 1 && p.n <= kSumChunk)
    return count_rows(p, sums, n_bins, overwrite, threads_for(p, p.n_rows * (p.n + n_bins) * width));
  for (int64_t row = 0; row < p.n_rows; ++row)
    sum_row(p, row, sums + row * n_bins * width, width, n_bins, overwrite);
}

void count_all(const CountProblem& p, int64_t* counts, int64_t n_bins, bool overwrite) {
  const int n_threads = threads_for(p, p.n_rows * (p.n + n_bins));
  const bool long_rows = p.n >= 4 * kKeysWorthAThread && (p.n_rows < 4 * n_threads || n_bins > kTableBins);
  if (p.n_rows > 1 && !long_rows) return count_rows(p, counts, n_bins, overwrite, n_threads);
  for (int64_t row = 0; row < p.n_rows; ++row) write_row(p, row, counts + row * n_bins, n_bins, overwrite);
}

}  // namespace

void Counter::write(void* result, bool overwrite) {
  const CountProblem& p = problem;
  const int64_t n_bins = info.n_bins;
  if (p.n == 0 || p.n_rows == 0 || n_bins == 0) {
    if (overwrite) std::memset(result, 0, p.n_rows * n_bins * width_of(p) * sizeof(int64_t));
    return;
  }
  if (p.summand == kOnes) {
    if (tables && tables->in_bytes) return tables->bytes.write((int64_t*)result, n_bins, overwrite, p.n_threads);
    if (tables) return tables->counts.write((int64_t*)result, n_bins, overwrite, p.n_threads);
    return count_all(p, (int64_t*)result, n_bins, overwrite);
  }
  if (p.summand == kReals) {
    if (tables) return tables->reals.write((double*)result, width_of(p), n_bins, overwrite);
    return sum_all(p, (double*)result, n_bins, overwrite);
  }
  if (tables) return tables->integers.write((uint64_t*)result, width_of(p), n_bins, overwrite);
  sum_all(p, (uint64_t*)result, n_bins, overwrite);
}

// ---- numpy's own case ----------------------------------------------------------------------------------------------

int64_t bins_of_few(const char* keys, int32_t dtype, int64_t n) {
  return with_key_type(dtype, [&](auto key) {
    using Key = decltype(key);
    const uint64_t largest = n ? largest_unsigned<Key>(keys, n) : 0;
    return n == 0 ? 0 : largest >= valid_bins<Key>(INT64_MAX) ? INT64_C(-1) : (int64_t)largest + 1;
  });
}
void count_few(const char* keys, int32_t dtype, int64_t n, int64_t* counts, int64_t n_bins) {
  with_key_type(dtype, [&](auto key) {
    for (int64_t at = 0; at < n; ++at)
      if (const uint64_t bin = index_at<decltype(key)>(keys, at); bin < (uint64_t)n_bins) ++counts[bin];
  });
}
void sum_few(const char* keys, int32_t dtype, int64_t n, const double* weights, double* sums, int64_t n_bins) {
  with_key_type(dtype, [&](auto key) {
    for (int64_t at = 0; at < n; ++at)
      if (const uint64_t bin = index_at<decltype(key)>(keys, at); bin < (uint64_t)n_bins) sums[bin] += weights[at];
  });
}

}  // namespace upsweep
