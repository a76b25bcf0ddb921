// WINDOW, exactly in the plain loop's order: what remains where its sums may leave the range of a double on the way.
//
//   y[t] = x[t] + gamma * (x[t-1] + gamma * (...)), K elements or back to the last reset, the oldest first
//
// A tree over the elements knows of each run of kLeaf * 2^k steps what it does to the state before it, and which states
// get through without an overflow. A window is its oldest element, taken through the runs that make it up: in one step
// where nothing overflows or vanishes, else through the run's halves, and in the end through single elements. So it costs
// two leaves and about four runs for each doubling of K, unless states stay at the end of the range for long. Once
// infinite, a state stays so until an infinity of the other sign or a NaN comes: each run knows whether it holds one.
//
// Called by scan/window.cpp, for as many steps at a time as a window is long.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "scan/strips.hpp"

namespace upsweep {
namespace {

inline bool finite(double v) { return is_finite(v); }
inline bool finite(Complex v) { return is_finite(v.re) && is_finite(v.im); }
// A norm: of a sum and of a product it is at most the sum and the product of theirs.
inline double size_of(double v) { return std::fabs(v); }
inline double size_of(Complex v) { return std::fabs(v.re) + std::fabs(v.im); }
// Whatever is done to it, it stays as it is.
inline bool lost(double v) { return v != v; }
inline bool lost(Complex v) { return v.re != v.re && v.im != v.im; }

// Of all powers of gamma up to this one, the largest norm.
inline double growth_of(double gamma, int64_t exponent) {
  return std::max(1.0, std::pow(std::fabs(gamma), (double)exponent));
}
inline double growth_of(Complex gamma, int64_t exponent) {
  return 2.0 * std::max(1.0, std::pow(std::hypot(gamma.re, gamma.im), (double)exponent));
}

template <class Acc>
Acc power(Acc base, int64_t exponent) {
  if constexpr (std::is_same_v<Acc, double>) return std::pow(base, (double)exponent);
  Acc result = Unit<Acc>::one;
  for (; exponent > 0; exponent >>= 1, base = multiply_add(base, base, Unit<Acc>::zero))
    if (exponent & 1) result = multiply_add(result, base, Unit<Acc>::zero);
  return result;
}

template <class Acc>
class WindowTree {
 public:
  // read(from, n, to) gathers elements; begin <= from. They may be overwritten from the last window on downwards.
  template <class Read>
  void build(Acc gamma_, int64_t begin_, int64_t end, Read read) {
    gamma = gamma_, begin = begin_, last = end;
    for (Leaf& leaf : leaves) leaf.index = -1;
    int64_t n_runs = (end - begin) / kLeaf;
    levels.clear();
    for (int64_t steps = kLeaf; n_runs > 0; n_runs /= 2, steps *= 2) {
      Level level{power(gamma, steps), growth_of(gamma, steps), std::vector<Run>(n_runs)};
      for (int64_t k = 0; k < n_runs; ++k)
        level.runs[k] = levels.empty() ? run_of(k, leaf(k, kOther, read))
                                       : join(levels.back(), levels.back().runs[2 * k], levels.back().runs[2 * k + 1]);
      levels.push_back(std::move(level));
    }
  }

  // The window of elements from `from` to `to`, both included.
  template <class Read>
  Acc sum(int64_t from, int64_t to, Read read) {
    int64_t step = from - begin;
    const int64_t end = to - begin + 1;
    Acc state = leaf(step / kLeaf, kOldest, read)[step % kLeaf];
    for (++step; step < end && !lost(state);) {
      int level = step % kLeaf ? -1 : largest_run(step, end);
      while (level >= 0 && !pass(levels[level], step >> (level + kLeafBits), step, &state)) --level;
      if (level >= 0) {
        step += kLeaf << level;
        continue;
      }
      const int64_t index = step / kLeaf, stop = std::min(end, (index + 1) * kLeaf);
      const Acc* x = leaf(index, stop == end ? kNewest : step == from - begin + 1 ? kOldest : kOther, read);
      for (; step < stop; ++step) state = multiply_add(gamma, state, x[step % kLeaf]);
    }
    return state;
  }

 private:
  static constexpr int kLeafBits = 5;
  static constexpr int64_t kLeaf = 1 << kLeafBits;
  static constexpr double kHighest = 0x1.ffffp1023;   // of a state that rounding, step by step, does not overflow

  // What some steps do to a state of zero, and from which states on to which none on the way overflows: of real ones
  // by value, of complex ones by norm.
  struct Run {
    Acc value;
    double lowest, highest;
    bool rises, falls, has_nan;   // holds an infinity that adds to a positive state, to a negative one
  };
  struct Level {
    Acc multiplier;
    double growth;
    std::vector<Run> runs;
  };
  // Elements in use: a window's first, its last, and others.
  enum Slot { kOldest, kNewest, kOther, kSlots };
  struct Leaf {
    int64_t index = -1;
    Acc x[kLeaf];
  };

  Acc gamma{};
  int64_t begin = 0, last = 0;
  std::vector<Level> levels;
  Leaf leaves[kSlots];

  template <class Read>
  const Acc* leaf(int64_t index, Slot slot, Read read) {
    Leaf& leaf = leaves[slot];
    if (leaf.index != index) {
      leaf.index = index;
      const int64_t from = begin + index * kLeaf;
      read(from, std::min(kLeaf, last - from), leaf.x);
    }
    return leaf.x;
  }

  int largest_run(int64_t step, int64_t end) const {
    int level = -1;
    for (int64_t steps = kLeaf; level + 1 < (int)levels.size() && step % steps == 0 && step + steps <= end; steps *= 2)
      ++level;
    return level;
  }

  // Under a negative gamma every other state has its sign turned, and with it what an infinity does.
  static bool turned(double factor, int64_t step) { return std::signbit(factor) && (step & 1); }

  static double place_of(double state) { return state; }
  static double place_of(Complex state) { return size_of(state); }
  static void leave_none(Run& run) { run.lowest = 1.0, run.highest = -1.0; }

  // Keeps the states for which factor * state + value is within the bounds.
  static void confine(Run& run, double factor, double value, double lowest, double highest) {
    if (!(lowest <= value && value <= highest)) return leave_none(run);
    if (factor == 0.0) return;
    const double one = (lowest - value) / factor, other = (highest - value) / factor;
    run.lowest = std::max(run.lowest, std::min(one, other));
    run.highest = std::min(run.highest, std::max(one, other));
  }

  Run run_of(int64_t index, const Acc* x) const {
    Run run{Unit<Acc>::zero, -__builtin_inf(), __builtin_inf(), false, false, false};
    Acc factor = Unit<Acc>::one;
    double reach = 0.0;
    for (int64_t k = 0; k < kLeaf; ++k) {
      run.value = k ? multiply_add(gamma, run.value, x[k]) : x[k];
      if constexpr (std::is_same_v<Acc, double>) {
        factor *= gamma;
        confine(run, factor, run.value, -kHighest, kHighest);
        if (!is_finite(x[k])) {
          const bool up = std::signbit(x[k]) == turned(gamma, index * kLeaf + k);
          if (x[k] != x[k]) run.has_nan = true;
          else (up ? run.rises : run.falls) = true;
        }
      } else {
        reach = std::max(reach, finite(run.value) ? size_of(run.value) : __builtin_inf());
      }
    }
    if constexpr (std::is_same_v<Acc, Complex>) run.highest = (kHighest - reach) / growth_of(gamma, kLeaf);
    return run;
  }

  // Two neighbours, `before` and `after`, of this level.
  Run join(const Level& level, const Run& before, const Run& after) const {
    Run run{before.value, before.lowest, before.highest, before.rises || after.rises, before.falls || after.falls,
            before.has_nan || after.has_nan};
    if (!passes(before, Unit<Acc>::zero) || !pass_finite(level, after, &run.value)) {
      leave_none(run);
    } else if constexpr (std::is_same_v<Acc, double>) {
      confine(run, level.multiplier, before.value, after.lowest, after.highest);
    } else {
      run.highest = std::min(run.highest, (after.highest - size_of(before.value)) / level.growth);
    }
    return run;
  }

  static bool passes(const Run& run, Acc state) {
    return run.lowest <= place_of(state) && place_of(state) <= run.highest;
  }
  // state -> the state after the run, or false: it is not safe to take it in one step.
  bool pass_finite(const Level& level, const Run& run, Acc* state) const {
    const double size = size_of(*state);
    if (!passes(run, *state) || !finite(gamma)) return false;
    if (size == 0.0 || size_of(gamma) == 0.0) {
      *state = run.value;   // whatever the multiplier
    } else if (!(size_of(level.multiplier) < kSmallest)) {
      // The multiplier may have overflowed where its product with a small state does not, and, without a fused
      // multiply-add, the product where the sum does not.
      const Acc after = multiply_add(level.multiplier, *state, run.value);
      if (!finite(after)) return false;
      *state = after;
    } else {
      // What the power lost by vanishing has to be too small to be seen.
      if (size * kSmallest > std::max(kSmallest, size_of(run.value) * 0x1p-60)) return false;
      *state = run.value;
    }
    return true;
  }
  bool pass(const Level& level, int64_t index, int64_t step, Acc* state) const {
    const Run& run = level.runs[index];
    if (finite(*state)) return pass_finite(level, run, state);
    if constexpr (std::is_same_v<Acc, double>) {
      // An infinity; before the first step's own turn.
      const bool up = std::signbit(*state) == turned(gamma, step - 1);
      if (!(std::fabs(gamma) > 0.0) || run.has_nan || (up ? run.falls : run.rises)) *state = __builtin_nan("");
      // All runs are of an even number of steps, so that the sign is what it was.
      return true;
    }
    return false;
  }
};

}  // namespace
}  // namespace upsweep
