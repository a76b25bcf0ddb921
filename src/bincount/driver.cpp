// Which way a count goes, by its shape, its bins and (of counts, whose bits cannot differ) its threads.
//
//   TABLES      (bincount/tables.cpp)     one row of counts in up to kTableBins bins
//   BYTES       (bincount/bytes.cpp)      one row of counts in up to kByteBins bins
//   SUMS        (bincount/sums.cpp)       one row of weights, up to kSumNumbers numbers
//   PARTITION   (bincount/partition.cpp)  one row, more bins
//   ROWS        (bincount/rows.cpp)       several rows; long ones one after the other, as above
//   in order    (bincount/sums.cpp)       few keys: numpy's own loop
//
// One row of keys that share low bits is counted without them, in the bins that have the same bits.
//
// TABLES and SUMS find out the number of bins on the way. What the keys of a few places say tells whether it is worth
// trying; for the other ways all keys are looked at before.

#include "bincount/bytes.hpp"
#include "bincount/partition.hpp"
#include "bincount/range.hpp"
#include "bincount/rows.hpp"

namespace upsweep {
namespace {

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

// What some of the keys need: a number of bins, which bits differ, and how many are equal to one of the two before
// them, which an addition would wait for. Where keys are sorted the largest is at an end.
struct Sample {
  int64_t n_bins;
  uint64_t differing;
  double repeats;
};
template <class Key>
Sample sample_keys(const CountProblem& p, int64_t row) {
  const Row keys = row_of(p, row);
  uint64_t largest = 0;
  int64_t n_repeats = 0, n_sampled = 1;
  Bits2<Key> all;
  Unsigned<Key> buffer[kPlaceKeys];
  for (int place = 0; place < kPlaces; ++place) {
    const int64_t n = std::min(kPlaceKeys, p.n), first = (p.n - n) / (kPlaces - 1) * place;
    const char* block = read_block<Key>(keys, place == kPlaces - 1 ? p.n - n : first, n, buffer);
    const Key info = largest_of<Key>(block, n);
    const Bits2<Key> bits = bits_of<Key>(block, n);
    if (info > Key(0)) largest = std::max(largest, (uint64_t)info);
    all.any |= bits.any, all.all &= bits.all;
    for (int64_t at = 2; at < n; ++at) {
      const Unsigned<Key> bin = key_at<Key>(block, at);
      n_repeats += bin == key_at<Key>(block, at - 1) || bin == key_at<Key>(block, at - 2), ++n_sampled;
    }
  }
  return {(int64_t)std::min<uint64_t>(largest, INT64_MAX - 1) + 1, (uint64_t)(all.any ^ all.all),
          (double)n_repeats / (double)n_sampled};
}

Sample sample_of(const CountProblem& p, int64_t row) {
  return with_key_type(p.key_dtype, [&](auto key) { return sample_keys<decltype(key)>(p, row); });
}

// How many low bits do not differ; 0 where all keys are equal.
inline int n_shared_bits(uint64_t differing) { return differing ? std::countr_zero(differing) : 0; }

// Whether no key can be outside of the bins known beforehand, as pixels of 8 bits in 256 bins. Of one row the keys are
// read all the same: they may share low bits.
bool fit_by_type(const CountProblem& p) {
  const int64_t n_bins = p.n_bins >= 0 ? p.n_bins : p.n_bins_least;
  return p.n_rows > 1 && (p.key_dtype == kUInt8 ? n_bins >= 1 << 8 : p.key_dtype == kUInt16 && n_bins >= 1 << 16);
}

BinInfo bins_of_range(const CountProblem& p) {
  const KeyRange range = range_of_keys(p);
  const bool too_large = range.any && range.largest >= (uint64_t)INT64_MAX;
  BinInfo info;
  info.n_bins = p.n_bins >= 0 ? p.n_bins : too_large ? INT64_MAX
               : std::max(p.n_bins_least, range.any ? (int64_t)range.largest + 1 : 0);
  if (const int shift = n_shared_bits(range.any_bits ^ range.all_bits);
      shift >= kSharedBits && p.n_rows == 1 && info.n_bins > kSpreadBins) {
    info.shift = shift;
    info.shared = (int64_t)(range.all_bits & ((UINT64_C(1) << shift) - 1));
  }
  info.outside = !p.drop && (range.negative || (p.n_bins >= 0 && range.any && range.largest >= (uint64_t)p.n_bins));
  return info;
}

int n_tables_for(int64_t n_bins, int64_t n, const Sample& sample) {
  if (n_bins > kNarrowBins || n_bins * kKeysOfANarrow > n) return 0;
  return sample.repeats > kRepeatsOfCounts ? kMostTables : 1;
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
    const Sample sample = sample_of(p, 0);
    const int64_t estimate = p.n_bins >= 0 ? p.n_bins : sample.n_bins;
    if (n_shared_bits(sample.differing) >= kSharedBits && estimate > kSpreadBins) return info = bins_of_range(p);
    const int64_t width = width_of(p);
    tables = std::make_unique<Tables>();
    Outcome outcome = Outcome::kTooMany;
    int64_t n_bins = 0;
    if (p.summand == kOnes) {
      const int n_tables = n_tables_for(estimate, p.n, sample);
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
        outcome = sums.sum(p, 0, p.n_bins, estimate, sample.repeats > kRepeatsOfSums, threads_for(p, p.n * width));
        n_bins = sums.n_bins();
      };
      p.summand == kReals ? sum(tables->reals) : sum(tables->integers);
    }
    if (outcome == Outcome::kOutside) info.outside = 1;
    if (outcome == Outcome::kCounted && p.n_bins < 0) info.n_bins = std::max(p.n_bins_least, n_bins);
    if (outcome != Outcome::kTooMany) return info;
    tables.reset();
  }
  if (must_look && !fit_by_type(p)) info = bins_of_range(p);
  return info;
}

namespace {

// One row, of which nothing has been counted yet.
void write_row(const CountProblem& p, int64_t row, int64_t* counts, int64_t n_bins, bool overwrite) {
  const int n_threads = threads_for(p, p.n);
  if (p.n <= kFewKeys) return count_in_order(p, row, counts, n_bins, overwrite);
  CountProblem lenient = p;   // whatever was to be raised has been
  lenient.drop = 1;
  const int n_tables = n_tables_for(n_bins, p.n, sample_of(p, row));
  const int with_tables = (int)std::min<int64_t>(n_threads, std::max<int64_t>(1, p.n / (n_bins + 1)));
  if (n_bins <= CountTables::capacity(n_tables) && (n_tables > 0 || with_tables > 1)) {
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
  const int64_t width = width_of(p), all_bins = p.key_shift ? p.n_bins : n_bins;   // the bits depend on all
  if (p.n <= kSumChunk) return sum_in_order(p, row, sums, stride, n_bins, overwrite);
  if (all_bins < kSumNumbers / width && all_bins <= p.n) {
    CountProblem lenient = p;
    lenient.drop = 1;
    SumTables<Sum> tables;
    const bool repeating = sample_of(p, row).repeats > kRepeatsOfSums;
    tables.sum(lenient, row, n_bins, n_bins, repeating, threads_for(p, p.n * width));
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

// What count_all and sum_all do, for keys that share low bits: in a table of the bins that have the same.
template <class Result, class Count>
void in_shared_bins(const CountProblem& p, const BinInfo& info, Result* result, bool overwrite, Count count) {
  const int64_t width = width_of(p), step = (INT64_C(1) << info.shift) * width;
  const int64_t n_bins = info.shared < info.n_bins ? ((info.n_bins - 1 - info.shared) >> info.shift) + 1 : 0;
  CountProblem compact = p;
  compact.key_shift = info.shift;
  compact.n_bins = info.n_bins;
  compact.drop = 1;
  const Scratch<Result> table = new_large_scratch<Result>(n_bins * width);
  Result* const first = result + info.shared * width;
  if (overwrite) std::fill_n(table.get(), n_bins * width, Result(0));
  for (int64_t bin = 0; bin < n_bins && !overwrite; ++bin)
    std::copy_n(first + bin * step, width, table.get() + bin * width);
  if (n_bins > 0) count(compact, table.get(), n_bins, false);
  if (overwrite) std::fill_n(result, info.n_bins * width, Result(0));   // what may throw has been done
  for (int64_t bin = 0; bin < n_bins; ++bin) std::copy_n(table.get() + bin * width, width, first + bin * step);
}

}  // namespace

void Counter::write(void* result, bool overwrite) {
  const CountProblem& p = problem;
  const int64_t n_bins = info.n_bins;
  if (info.shift) {
    if (p.summand == kOnes) return in_shared_bins(p, info, (int64_t*)result, overwrite, count_all);
    if (p.summand == kReals) return in_shared_bins(p, info, (double*)result, overwrite, sum_all<double>);
    return in_shared_bins(p, info, (uint64_t*)result, overwrite, sum_all<uint64_t>);
  }
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
  return with_key_width(dtype, [&](auto key) {
    using Key = decltype(key);
    const uint64_t largest = n ? largest_unsigned<Key>(keys, n) : 0;
    return n == 0 ? 0 : largest >= valid_bins(dtype, INT64_MAX) ? INT64_C(-1) : (int64_t)largest + 1;
  });
}
void count_few(const char* keys, int32_t dtype, int64_t n, int64_t* counts, int64_t n_bins) {
  with_key_width(dtype, [&](auto key) {
    for (int64_t at = 0; at < n; ++at)
      if (const uint64_t bin = index_at<decltype(key)>(keys, at); bin < (uint64_t)n_bins) ++counts[bin];
  });
}
void sum_few(const char* keys, int32_t dtype, int64_t n, const double* weights, double* sums, int64_t n_bins) {
  with_key_width(dtype, [&](auto key) {
    for (int64_t at = 0; at < n; ++at)
      if (const uint64_t bin = index_at<decltype(key)>(keys, at); bin < (uint64_t)n_bins) sums[bin] += weights[at];
  });
}

}  // namespace upsweep
