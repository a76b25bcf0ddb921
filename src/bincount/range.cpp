// Which bins there are, and what is outside of them: all keys are read once, in the order in which they lie.
//
// Called by the driver where the number of bins has to be known before counting, and by whoever words an error.

#include "bincount/range.hpp"

#include <vector>

#include "bincount/keys.hpp"

namespace upsweep {
namespace {

constexpr int64_t kPiece = 1 << 16;   // keys of a task

// All keys as runs of equally spaced ones, whatever axes they are along: the longest runs that there are, since
// the order does not matter.
struct Runs {
  int64_t length, stride, n_runs = 1;
  int n_dims = 0;
  int64_t dims[kMaxRowDims + 1], strides[kMaxRowDims + 1];   // from the outermost in memory to the innermost

  explicit Runs(const CountProblem& p) {
    int64_t size[kMaxRowDims + 1], step[kMaxRowDims + 1];
    int n = 0;
    auto insert = [&](int64_t length, int64_t stride) {
      if (length == 1) return;
      int at = n++;
      for (; at > 0 && std::abs(step[at - 1]) < std::abs(stride); --at)
        size[at] = size[at - 1], step[at] = step[at - 1];
      size[at] = length, step[at] = stride;
    };
    for (int dim = 0; dim < p.n_dims; ++dim) insert(p.dims[dim], p.key_row_strides[dim]);
    insert(p.n, p.key_stride);
    for (int dim = 0; dim < n; ++dim) {
      if (n_dims > 0 && strides[n_dims - 1] == size[dim] * step[dim]) {
        dims[n_dims - 1] *= size[dim], strides[n_dims - 1] = step[dim];
      } else {
        dims[n_dims] = size[dim], strides[n_dims++] = step[dim];
      }
    }
    length = n_dims ? dims[--n_dims] : 1;
    stride = n_dims || n ? strides[n_dims] : 0;
    for (int dim = 0; dim < n_dims; ++dim) n_runs *= dims[dim];
  }
  int64_t offset(int64_t number) const {
    int64_t sum = 0;
    for (int dim = n_dims - 1; dim >= 0; --dim) sum += number % dims[dim] * strides[dim], number /= dims[dim];
    return sum;
  }
};

// visit(keys, n, task) for every key, in blocks that are contiguous and native; tasks are numbered from 0.
template <class Key, class Visit>
void each_key(const CountProblem& p, const Runs& runs, int64_t n_tasks, int64_t pieces, int64_t group, Visit visit) {
  const int64_t bytes = runs.n_runs * runs.length * (int64_t)sizeof(Key);
  for_tasks(n_tasks, threads_worth(p.n_threads, bytes, n_tasks), false, [&](int64_t task, int) {
    const int64_t first_run = task / pieces * group, end = std::min(runs.n_runs, first_run + group);
    const int64_t piece = (runs.length + pieces - 1) / pieces;
    const int64_t from = std::min(runs.length, task % pieces * piece), to = std::min(runs.length, from + piece);
    for (int64_t run = first_run; run < end; ++run)
      each_block<Key>(Row{p.keys + runs.offset(run), runs.stride, p.key_swapped != 0}, from, to,
                      [&](const char* keys, int64_t, int64_t n) { return visit(keys, n, task), true; });
  });
}

// fold(visit, n_tasks) with each_key bound to how this call is cut.
template <class Key, class Each, class Fold>
Each over_tasks(const CountProblem& p, Each nothing, Fold fold) {
  if (p.n == 0 || p.n_rows == 0) return nothing;
  const Runs runs(p);
  const int64_t pieces = (runs.length + kPiece - 1) / kPiece;
  const int64_t group = pieces > 1 ? 1 : std::max<int64_t>(1, kPiece / runs.length);
  const int64_t n_tasks = (runs.n_runs + group - 1) / group * pieces;
  std::vector<Each> result(n_tasks, nothing);
  each_key<Key>(p, runs, n_tasks, pieces, group,
                [&](const char* keys, int64_t n, int64_t task) { fold(result[task], keys, n); });
  for (int64_t task = 1; task < n_tasks; ++task) result[0].join(result[task]);
  return result[0];
}

struct AnyRange : KeyRange {
  void join(const AnyRange& other) {
    largest = std::max(largest, other.largest), any |= other.any, negative |= other.negative;
    any_bits |= other.any_bits, all_bits &= other.all_bits;
  }
};
template <class Key>
AnyRange range_of(const CountProblem& p) {
  return over_tasks<Key>(p, AnyRange{}, [](AnyRange& range, const char* keys, int64_t n) {
    const Bits2<Key> bits = bits_of<Key>(keys, n);
    range.any_bits |= bits.any, range.all_bits &= bits.all;
    const bool negative = std::is_signed_v<Key> && (Key)bits.any < Key(0);
    range.negative |= negative;
    if (!negative && range.any && bits.any <= range.largest) return;   // no key is more than the bits of all
    // A maximum of 64-bit keys takes several times as long as differences, of which a negative one has the top bit.
    if constexpr (sizeof(Key) == 8)
      if (range.any && bits.any >> 63 == 0 && !is_any_above<Key>(keys, n, range.largest)) return;
    const Key largest = largest_of<Key>(keys, n);
    if (largest >= Key(0)) range.any = true, range.largest = std::max(range.largest, (uint64_t)largest);
  });
}

struct Number {
  int64_t value = 0;
  void join(const Number& other) { value += other.value; }
};
template <class Key>
int64_t n_outside(const CountProblem& p, int64_t n_bins) {
  const uint64_t valid = valid_bins(p.key_dtype, n_bins);
  return over_tasks<Key>(p, Number{}, [&](Number& result, const char* keys, int64_t n) {
    int64_t outside = 0;
    for (int64_t at = 0; at < n; ++at) outside += key_at<Key>(keys, at) >= valid;
    result.value += outside;
  }).value;
}

template <class Key>
int64_t find_outside(const CountProblem& p, int64_t n_bins) {
  const uint64_t valid = valid_bins(p.key_dtype, n_bins);
  int64_t result = -1;
  for (int64_t row = 0; row < p.n_rows && result < 0; ++row)
    each_block<Key>(row_of(p, row), 0, p.n, [&](const char* keys, int64_t first, int64_t n) {
      if (largest_unsigned<Key>(keys, n) < valid) return true;
      for (int64_t at = 0; at < n && result < 0; ++at)
        if (key_at<Key>(keys, at) >= valid) result = row * p.n + first + at;
      return result < 0;
    });
  return result;
}

}  // namespace

KeyRange range_of_keys(const CountProblem& problem) {
  return with_key_type(problem.key_dtype, [&](auto key) -> KeyRange { return range_of<decltype(key)>(problem); });
}
int64_t first_outside(const CountProblem& problem, int64_t n_bins) {
  return with_key_width(problem.key_dtype, [&](auto key) { return find_outside<decltype(key)>(problem, n_bins); });
}
int64_t count_outside(const CountProblem& problem, int64_t n_bins) {
  return with_key_width(problem.key_dtype, [&](auto key) { return n_outside<decltype(key)>(problem, n_bins); });
}

}  // namespace upsweep
