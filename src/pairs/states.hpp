// States of rows: how they begin, what becomes of them when their columns are done.
//
// A tile's state is in slots of one vector each, kSlotBytes a lane apart whatever their type; their order is written down
// in python/upsweep/_compiler/llvm/pairs/reducers.py. Taken from a lane, a state is numbers and indices, float64 and int64, in the
// same order: so states are combined and become results. That of the k least is in candidates.hpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "pairs/pairs.hpp"

namespace upsweep {
namespace {

constexpr int64_t kSlotBytes = 8;

inline int64_t n_numbers(const PairKernel& kernel) {
  switch (kernel.kind) {
    case kPairSum: return kernel.dim;
    case kPairLogSumExp:
    case kPairSoftmax: return 1 + kernel.n_sums;
    case kPairBest: return kernel.dim;
    default: return kernel.dim * kernel.k;
  }
}
inline int64_t n_indices(const PairKernel& kernel) {
  if (kernel.kind == kPairSmallest) return kernel.dim * kernel.k;
  return kernel.kind == kPairBest && kernel.indexed ? kernel.dim : 0;
}
inline int64_t n_slots(const PairKernel& kernel) { return n_numbers(kernel) + n_indices(kernel); }

// Numbers of 32 or 64 bits and integers as wide, sums of 32 or 64 bits.
template <class Number, class Accumulator>
struct States {
  using Index = std::conditional_t<sizeof(Number) == 4, int32_t, int64_t>;

  const PairKernel& kernel;
  const int64_t slot_bytes = kSlotBytes * kernel.lanes;

  template <class T>
  T* slot(void* state, int64_t n) const { return reinterpret_cast<T*>(static_cast<char*>(state) + n * slot_bytes); }

  template <class T>
  void fill(void* state, int64_t first, int64_t last, T value) const {
    for (int64_t n = first; n < last; ++n)
      for (int32_t lane = 0; lane < kernel.lanes; ++lane) slot<T>(state, n)[lane] = value;
  }

  void begin(void* state) const {
    const int64_t numbers = n_numbers(kernel), all = n_slots(kernel);
    switch (kernel.kind) {
      case kPairSum: return fill<Accumulator>(state, 0, numbers, 0);
      case kPairLogSumExp:
      case kPairSoftmax:
        fill<Number>(state, 0, 1, std::numeric_limits<Number>::lowest());
        return fill<Accumulator>(state, 1, numbers, 0);
      default:
        const Number endless = std::numeric_limits<Number>::infinity();
        fill<Number>(state, 0, numbers, kernel.largest ? -endless : endless);
        return fill<Index>(state, numbers, all, -1);
    }
  }

  // One lane's state; indices count from the first column on, which has the index `base`.
  void take(void* state, int32_t lane, int64_t base, double* numbers, int64_t* indices) const {
    const int64_t n = n_numbers(kernel), all = n_slots(kernel);
    const bool sums = kernel.kind == kPairSum || kernel.kind == kPairLogSumExp || kernel.kind == kPairSoftmax;
    for (int64_t i = 0; i < n; ++i) {
      const bool accumulated = sums && (kernel.kind == kPairSum || i > 0);
      numbers[i] = accumulated ? (double)slot<Accumulator>(state, i)[lane] : (double)slot<Number>(state, i)[lane];
    }
    for (int64_t i = n; i < all; ++i) {
      const Index index = slot<Index>(state, i)[lane];
      indices[i - n] = index < 0 ? -1 : index + base;
    }
  }
};

// Whether (a, i) goes before (b, j) in a sort that has NaN last, then places that are empty, and the first of equals first.
inline bool goes_before(double a, int64_t i, double b, int64_t j) {
  if ((i < 0) != (j < 0)) return j < 0;
  if (std::isnan(a) != std::isnan(b)) return std::isnan(b);
  if (a < b || b < a) return a < b;
  return i < j;
}

inline void combine_best(const PairKernel& kernel, double* a, int64_t* i, const double* b, const int64_t* j) {
  for (int64_t n = 0; n < kernel.dim; ++n) {
    const double x = a[n], y = b[n];
    const bool earlier = kernel.indexed && j[n] >= 0 && (i[n] < 0 || j[n] < i[n]);
    bool takes;
    if (std::isnan(x) || std::isnan(y)) takes = std::isnan(y) && (!std::isnan(x) || earlier);
    else takes = (kernel.largest ? y > x : y < x) || (y == x && earlier);
    if (!takes) continue;
    a[n] = y;
    if (kernel.indexed) i[n] = j[n];
  }
}

// Two sorted lists of k each into the first; `room` is for k numbers and k indices.
inline void combine_smallest(const PairKernel& kernel, double* a, int64_t* i, const double* b, const int64_t* j,
                             double* room, int64_t* index_room) {
  for (int64_t n = 0; n < kernel.dim; ++n) {
    const int64_t at = n * kernel.k;
    int64_t left = 0, right = 0;
    for (int64_t k = 0; k < kernel.k; ++k) {
      const bool takes = goes_before(b[at + right], j[at + right], a[at + left], i[at + left]);
      room[k] = takes ? b[at + right] : a[at + left];
      index_room[k] = takes ? j[at + right++] : i[at + left++];
    }
    for (int64_t k = 0; k < kernel.k; ++k) {
      a[at + k] = room[k];
      i[at + k] = index_room[k];
    }
  }
}

// State a, of columns before those of b, becomes that of both.
inline void combine(const PairKernel& kernel, double* a, int64_t* i, const double* b, const int64_t* j, double* room,
                    int64_t* index_room) {
  const int64_t n = n_numbers(kernel);
  switch (kernel.kind) {
    case kPairSum:
      for (int64_t c = 0; c < n; ++c) a[c] += b[c];
      return;
    case kPairLogSumExp:
    case kPairSoftmax: {
      const double reference = std::fmax(a[0], b[0]);
      const double of_a = std::exp(a[0] - reference), of_b = std::exp(b[0] - reference);
      a[0] = reference;
      for (int64_t c = 1; c < n; ++c) a[c] = a[c] * of_a + b[c] * of_b;
      return;
    }
    case kPairBest: return combine_best(kernel, a, i, b, j);
    default: return combine_smallest(kernel, a, i, b, j, room, index_room);
  }
}

// A state as the row's results, which are there if they are wanted. `least` is the smallest index among its columns.
template <class Number>
void write(const PairKernel& kernel, const double* numbers, const int64_t* indices, int64_t least, Number* values,
           int64_t* places) {
  switch (kernel.kind) {
    case kPairSum:
      for (int64_t n = 0; n < kernel.dim; ++n) values[n] = (Number)numbers[n];
      return;
    case kPairLogSumExp:
      for (int64_t n = 0; n < kernel.n_sums; ++n) values[n] = (Number)(std::log(numbers[1 + n]) + numbers[0]);
      return;
    case kPairSoftmax:
      for (int64_t n = 1; n < kernel.n_sums; ++n) values[n - 1] = (Number)(numbers[1 + n] / numbers[1]);
      return;
    case kPairBest:
      for (int64_t n = 0; n < kernel.dim; ++n) {
        if (values) values[n] = (Number)numbers[n];
        // Where all are as bad as the beginning none was better than it.
        if (places) places[n] = indices[n] < 0 ? least : indices[n];
      }
      return;
    default:   // (k, dim)
      for (int64_t n = 0; n < kernel.dim; ++n)
        for (int64_t k = 0; k < kernel.k; ++k) {
          const int64_t from = n * kernel.k + k, to = k * kernel.dim + n;
          const bool empty = indices[from] < 0;
          if (values) values[to] = empty ? std::numeric_limits<Number>::infinity() : (Number)numbers[from];
          if (places) places[to] = empty ? -1 : indices[from];
        }
  }
}

inline int64_t n_written(const PairKernel& kernel) {
  switch (kernel.kind) {
    case kPairLogSumExp: return kernel.n_sums;
    case kPairSoftmax: return kernel.n_sums - 1;
    case kPairSmallest: return kernel.dim * kernel.k;
    default: return kernel.dim;
  }
}

// What a row has that reduces over nothing.
inline double value_of_nothing(const PairKernel& kernel) {
  const double endless = std::numeric_limits<double>::infinity();
  switch (kernel.kind) {
    case kPairLogSumExp: return -endless;
    case kPairBest: return kernel.largest ? -endless : endless;
    case kPairSmallest: return endless;
    default: return 0;
  }
}

}  // namespace
}  // namespace upsweep
