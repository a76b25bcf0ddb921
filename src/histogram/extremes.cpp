// The least and the largest element, for ranges that are those of the data.
//
// Bytes an element: its own, read once.

#include <vector>

#include "histogram/keys.hpp"
#include "common/parallel.hpp"

namespace upsweep {
namespace {

template <class Key>
struct LowHigh {
  typedef std::numeric_limits<Key> Limits;
  Key low = Limits::has_infinity ? Limits::infinity() : Limits::max();
  Key high = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  int32_t any_nan = 0;

  void take(const LowHigh& other) {
    low = std::min(low, other.low), high = std::max(high, other.high), any_nan |= other.any_nan;
  }
};

// One run for each lane of a vector: the compiler may not reorder what a NaN would be lost in.
template <class Key>
LowHigh<Key> extremes_of(const Key* keys, int64_t n) {
  constexpr int kRuns = 256 / sizeof(Key);
  using Flag = std::conditional_t<sizeof(Key) == 4, int32_t, int64_t>;
  Key low[kRuns], high[kRuns];
  Flag nan[kRuns] = {};
  LowHigh<Key> all;
  for (int run = 0; run < kRuns; ++run) low[run] = all.low, high[run] = all.high;
  int64_t k = 0;
  for (; k + kRuns <= n; k += kRuns)
    for (int run = 0; run < kRuns; ++run) {
      const Key key = keys[k + run];
      low[run] = key < low[run] ? key : low[run];
      high[run] = key > high[run] ? key : high[run];
      nan[run] |= key != key;
    }
  for (; k < n; ++k) {
    all.low = std::min(all.low, keys[k]), all.high = std::max(all.high, keys[k]);
    all.any_nan |= keys[k] != keys[k];
  }
  for (int run = 0; run < kRuns; ++run)
    all.low = std::min(all.low, low[run]), all.high = std::max(all.high, high[run]), all.any_nan |= nan[run] != 0;
  return all;
}

template <class Key>
LowHigh<Key> extremes_of(const HistogramProblem& p) {
  const int64_t n_tasks = (p.n + kChunk - 1) / kChunk;
  const int n_threads = threads_worth(p.n_threads, p.n * dtype_size(p.dtype), n_tasks);
  std::vector<LowHigh<Key>> extremes(n_threads);
  for_tasks(n_tasks, n_threads, false, [&](int64_t task, int thread) {
    alignas(64) Key buffer[kBlock];
    LowHigh<Key> own = extremes[thread];
    const int64_t end = std::min(p.n, (task + 1) * kChunk);
    for (int64_t from = task * kChunk; from < end; from += kBlock) {
      const int64_t n = std::min(kBlock, end - from);
      own.take(extremes_of(read_keys(p, from, n, buffer), n));
    }
    extremes[thread] = own;
  });
  LowHigh<Key> all;
  for (const auto& one : extremes) all.take(one);
  return all;
}

}  // namespace

Extremes find_extremes(const HistogramProblem& problem) {
  return with_key_type(problem.dtype, [&](auto key) {
    using Key = decltype(key);
    const LowHigh<Key> extremes = extremes_of<Key>(problem);
    return Extremes{(double)extremes.low, (double)extremes.high, (int64_t)extremes.low, (int64_t)extremes.high,
                    (uint64_t)extremes.low, (uint64_t)extremes.high, extremes.any_nan};
  });
}

}  // namespace upsweep
