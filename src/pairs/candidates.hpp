// The k least values of rows: in lists in order, for small k, or in lists of candidates; and the sample that begins them.
//
// A tile puts a value below the k-th least of its row into the row's list in order, which takes k steps (Smallest in
// python/upsweep/_compiler/llvm/pairs/reducers.py), for all lanes at once. For more values than some it appends them to a list
// of candidates (Candidates there). Between its calls, lists of 2 k and more are sorted and cut to the k least, the last of which
// is the new threshold: a selection drops half of a list, so that a candidate costs the same for any k.
//
// How many values are below depends on the order of the columns: of n columns in random order k (1 + log(n / k)), of
// values that fall from column to column all. Therefore a sample of m columns comes first. Its value of rank
// k m / n, and some more ranks so that it is hardly ever too low, is the first threshold, which in any order
// about k + 4 sqrt(k n / m) columns reach. A row of which fewer than k do is reduced again, with the k-th least of the
// sample, which is never too low.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "common/buffer.hpp"
#include "common/tuning.hpp"
#include "pairs/pack.hpp"
#include "pairs/states.hpp"

namespace upsweep {
namespace {

using namespace pair_tuning;

constexpr int64_t kLeastSample = 16;

// Above x, also where subnormal numbers are zero.
template <class Number>
Number above(Number x) {
  const Number next = std::nextafter(x, std::numeric_limits<Number>::infinity());
  constexpr Number least = std::numeric_limits<Number>::min();
  return next > -least && next < least ? least : next;
}

// Lists in order, in a tile's state: k values and their indices for each component.
template <class Number>
class SortedLists {
 public:
  using Index = typename States<Number, Number>::Index;

  void resize(const PairKernel& kernel) {
    dim = kernel.dim, k = kernel.k, lanes = kernel.lanes;
    slots.resize((size_t)(2 * dim * k * lanes * kSlotBytes));
  }
  void* state() { return slots.data(); }
  int64_t next_columns() const { return std::numeric_limits<int64_t>::max(); }
  void select_full() {}

  void begin(int64_t used_rank, int64_t n_used_rows) {
    rank = used_rank, n_rows = n_used_rows;
    for (int64_t n = 0; n < dim; ++n)
      for (int64_t row = 0; row < lanes; ++row) fill(n, row, std::numeric_limits<Number>::quiet_NaN(), kEmpty);
  }

  // Lists that take what is not above the value of that rank.
  void begin_below(int64_t) {
    for (int64_t n = 0; n < dim; ++n)
      for (int64_t row = 0; row < lanes; ++row) {
        const Number limit = value(n * k + rank - 1)[row];
        if (limit < std::numeric_limits<Number>::infinity()) fill(n, row, above(limit), kLimit);
        else fill(n, row, std::numeric_limits<Number>::quiet_NaN(), kEmpty);
      }
  }

  // Whether no limit was too low.
  bool finish() {
    bool complete = true;
    for (int64_t n = 0; n < dim; ++n)
      for (int64_t row = 0; row < n_rows; ++row) complete &= index((n + 1) * k - 1)[row] != kLimit;
    return complete;
  }

  void take(int64_t row, int64_t base, double* numbers, int64_t* indices) {
    for (int64_t i = 0; i < dim * k; ++i) {
      numbers[i] = (double)value(i)[row];
      indices[i] = index(i)[row] < 0 ? -1 : index(i)[row] + base;
    }
  }

 private:
  static constexpr Index kEmpty = -1, kLimit = -2;   // places without a value; below a limit no NaN takes one
  int64_t dim = 0, k = 0, lanes = 0, rank = 0, n_rows = 0;
  Buffer<char> slots;

  Number* value(int64_t i) { return reinterpret_cast<Number*>(slots.data() + i * lanes * kSlotBytes); }
  Index* index(int64_t i) { return reinterpret_cast<Index*>(slots.data() + (dim * k + i) * lanes * kSlotBytes); }
  void fill(int64_t n, int64_t row, Number number, Index place) {
    for (int64_t i = n * k; i < (n + 1) * k; ++i) value(i)[row] = number, index(i)[row] = place;
  }
};

template <class Number>
class CandidateLists {
 public:
  using Index = typename States<Number, Number>::Index;
  using Rank = std::conditional_t<sizeof(Number) == 4, int32_t, int64_t>;
  struct Candidate {
    Number value;
    Index index;
  };

  // A list for each component and lane, or, where lanes are columns, for each component. It has room for full(k)
  // candidates and the columns of a call.
  void resize(const PairKernel& kernel, bool one_list, int64_t most_columns) {
    dim = kernel.dim;
    lanes = kernel.lanes;
    n_rows = one_list ? 1 : lanes;
    block = dim > 3 ? 1 << 8 : 1 << 12;
    constexpr int64_t line = 64 / (int64_t)sizeof(Candidate);
    capacity = (std::min(full(kernel.k) + block, most_columns) / line | 1) * line + 2 * line;   // an odd number of lines:
                                                                                    // lists begin in different sets
    memory.reserve(capacity * dim * n_rows);
    sorted.reserve(capacity);
    slots.resize((size_t)(3 * dim * lanes * kSlotBytes));
  }

  void* state() { return slots.data(); }

  // Empty lists for the `rank` least values of some rows; other lanes accept nothing.
  void begin(int64_t rank, int64_t n_used_rows) {
    constexpr Number endless = std::numeric_limits<Number>::infinity(), nan = std::numeric_limits<Number>::quiet_NaN();
    k = rank;
    n_used = n_used_rows;
    next = std::min(2 * full(k), block);   // all of them become candidates
    for (int64_t n = 0; n < dim; ++n)
      for (int64_t row = 0; row < n_rows; ++row) {
        end_of(n, row) = first_of(n, row);
        accept_below(n, row, row < n_used ? nan : -endless, row < n_used);
      }
  }

  // The same after the lists of a sample were finished: they accept what is not above the last of them.
  void begin_below(int64_t rank) {
    for (int64_t n = 0; n < dim; ++n)
      for (int64_t row = 0; row < n_used; ++row) {
        const bool has_last = count_of(n, row) == k;
        const Number last = first_of(n, row)[k - 1].value;
        end_of(n, row) = first_of(n, row);
        if (has_last && last < std::numeric_limits<Number>::infinity()) accept_below(n, row, above(last), false);
        else accept_below(n, row, std::numeric_limits<Number>::quiet_NaN(), true);
      }
    k = rank;
    next = std::min(std::max<int64_t>(full(k), 128), block);
  }

  // Columns of the next call: few where every one is a candidate.
  int64_t next_columns() { return std::exchange(next, std::min(2 * next, block)); }

  void select_full() {
    for (int64_t n = 0; n < dim; ++n)
      for (int64_t row = 0; row < n_used; ++row)
        if (count_of(n, row) >= full(k)) select(n, row);
  }

  // Sorts the lists. Whether none was cut below its k least values.
  bool finish() {
    bool complete = true;
    for (int64_t n = 0; n < dim; ++n)
      for (int64_t row = 0; row < n_used; ++row) {
        complete &= count_of(n, row) >= k || std::isnan(threshold(n, row));
        select(n, row);
      }
    return complete;
  }

  // One row's state; places without a value have the index -1.
  void take(int64_t row, int64_t base, double* numbers, int64_t* indices) {
    for (int64_t n = 0; n < dim; ++n) {
      const Candidate* const list = first_of(n, row);
      const int64_t count = std::min(count_of(n, row), k);
      for (int64_t i = 0; i < count; ++i) {
        numbers[n * k + i] = (double)list[i].value;
        indices[n * k + i] = list[i].index + base;
      }
      std::fill(numbers + n * k + count, numbers + (n + 1) * k, std::numeric_limits<double>::quiet_NaN());
      std::fill(indices + n * k + count, indices + (n + 1) * k, -1);
    }
  }

 private:
  static constexpr int64_t kFew = 40;   // sorted by insertion
  int64_t dim = 0, lanes = 0, n_rows = 0, n_used = 0, k = 0, block = 0, next = 0, capacity = 0;
  Unwritten<Candidate> memory, sorted;
  Buffer<char> slots;

  static int64_t full(int64_t k) { return 2 * k + 8; }

  // The state of the tile: for each component a slot of thresholds, then of whether NaN is wanted, then of where lists end.
  template <class T>
  T* slot(int64_t n) { return reinterpret_cast<T*>(slots.data() + n * lanes * kSlotBytes); }
  Number threshold(int64_t n, int64_t row) { return slot<Number>(n)[row]; }
  Candidate*& end_of(int64_t n, int64_t row) { return slot<Candidate*>(2 * dim + n)[row]; }
  Candidate* first_of(int64_t n, int64_t row) { return memory.data() + (n * n_rows + row) * capacity; }
  int64_t count_of(int64_t n, int64_t row) { return end_of(n, row) - first_of(n, row); }

  void accept_below(int64_t n, int64_t row, Number limit, bool nan_too) {
    const int64_t last = n_rows == 1 ? lanes : row + 1;   // lanes of columns share the list
    std::fill(slot<Number>(n) + row, slot<Number>(n) + last, limit);
    std::fill(slot<Index>(dim + n) + row, slot<Index>(dim + n) + last, nan_too ? -1 : 0);
  }

  // Integers in the order of the values: -0 equals 0, and NaN is last.
  static Rank rank_of(Number value) {
    if (std::isnan(value)) return std::numeric_limits<Rank>::max();
    const Rank bits = std::bit_cast<Rank>(value == 0 ? Number{0} : value);
    return bits < 0 ? bits ^ std::numeric_limits<Rank>::max() : bits;
  }

  // Cuts a list to its k least, in order. Of equal values the first stay: both sorts are stable.
  void select(int64_t n, int64_t row) {
    Candidate* const list = first_of(n, row);
    const int64_t count = count_of(n, row), n_least = std::min(k, count);
    const auto before = [](const Candidate& a, const Candidate& b) { return rank_of(a.value) < rank_of(b.value); };
    if (count > kFew) sort_bytes(list, count);
    else
      for (int64_t i = 1; i < count; ++i)
        std::rotate(std::upper_bound(list, list + i, list[i], before), list + i, list + i + 1);
    end_of(n, row) = list + n_least;
    if (n_least == k) accept_below(n, row, list[k - 1].value, false);
  }

  // By bytes of the ranks, from the last to the first. Those that all have in common take no pass.
  void sort_bytes(Candidate* list, int64_t count) {
    constexpr int kBytes = sizeof(Rank);
    const auto digit = [](Number value, int byte) {
      return (uint8_t)((rank_of(value) ^ std::numeric_limits<Rank>::min()) >> 8 * byte);
    };
    uint32_t places[kBytes][256] = {};
    for (int64_t i = 0; i < count; ++i)
      for (int byte = 0; byte < kBytes; ++byte) ++places[byte][digit(list[i].value, byte)];
    Candidate *from = list, *to = sorted.data();
    for (int byte = 0; byte < kBytes; ++byte) {
      uint32_t* const place = places[byte];
      if (place[digit(from[0].value, byte)] == count) continue;
      uint32_t total = 0;
      for (int value = 0; value < 256; ++value) total += std::exchange(place[value], total);
      for (int64_t i = 0; i < count; ++i) to[place[digit(from[i].value, byte)]++] = from[i];
      std::swap(from, to);
    }
    if (from != list) std::copy(from, from + count, list);
  }
};

// Columns that are spread over those of a task, in an order that is spread too, packed as these are.
template <class Number>
struct Sample {
  Buffer<Number> numbers;
  int64_t n = 0, stride = 0;
  int64_t entry = -1, first = -1, skip = -1, n_columns = -1;   // the task it was taken of: its neighbours have the same

  // 0 where a sample would hold too much of the columns. `cost` is that of a column, for `n_lists` rows.
  static int64_t size(int64_t n_columns, int64_t k, int64_t n_lists, double cost) {
    const double n = (double)n_columns;
    const double best = std::clamp(std::sqrt(n * (double)(n_lists * k) * kWorth / cost), n / 128, n / 16);
    const int64_t m = std::max((int64_t)best, kLeastSample);
    return 4 * m <= n_columns && 2 * rank(m, n_columns, k) <= m ? m : 0;
  }

  static int64_t rank(int64_t m, int64_t n_columns, int64_t k) {
    const double expected = (double)k * (double)m / (double)n_columns;   // of the k least, in the sample
    return std::min(k, (int64_t)(expected + 4 * std::sqrt(expected) + 1.5));
  }

  void take(const Packed<Number>& columns, const PairPlan& plan, const PairTask& task, int64_t e, int64_t m, int32_t lanes) {
    if (columns.entry_size == 0) e = 0;
    if (n == m && entry == e && first == task.first && skip == task.skip && n_columns == task.n_columns) return;
    n = m, entry = e, first = task.first, skip = task.skip, n_columns = task.n_columns;
    stride = columns.in_lanes ? m + lanes : 1;
    numbers.resize((size_t)(columns.width * (m + lanes)));
    const PairInterval* interval = plan.intervals.data() + task.first;
    int64_t before = -task.skip;          // columns of the task before the interval
    uint64_t random = 0;                  // against orders with a period
    int64_t step = (int64_t)(0.618 * (double)m), place = 0;
    while (std::gcd(step, m) > 1) ++step;
    for (int64_t i = 0; i < m; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const int64_t begin = i * n_columns / m, end = (i + 1) * n_columns / m;
      const int64_t column = begin + (int64_t)(random >> 33) % (end - begin);
      while (column - before >= interval->end - interval->begin) before += interval->end - interval->begin, ++interval;
      const Number* const from = columns.at(e, interval->begin + column - before);
      for (int64_t f = 0; f < columns.width; ++f)
        if (columns.in_lanes) numbers[(size_t)(f * stride + place)] = from[f * columns.stride];
        else numbers[(size_t)(place * columns.width + f)] = from[f];
      place = (place + step) % m;
    }
  }
};

}  // namespace
}  // namespace upsweep
