// LINES of float16 and bfloat16, in lanes of float32: a scan along contiguous memory, in tiles of kTile elements.
//
//   y[t] = a[t] * y[t-1] + x[t]
//
// Bytes an element: one read of x (and of the gates), one write of y. A tile is turned so that each lane holds a run of
// kRun steps (scan/half_tiles.hpp). Two steps at a time are combined, and then the run: its state from nothing, and the
// product of its gates, both exactly one number a lane. These are scanned across the lanes in float64, which gives the
// state before each run; from there the run is walked again, two steps at a time, and the steps in between are filled in.
//
// Rounding, in units of 2^-24 of S, the scan of the sizes: float32 data is rounded to within
//   gates: 4 for a run's state (a product of two gates is exact), 1 for the state before it, 4 for the steps from there: 9;
//   gamma: 8 for a run's state (a power is rounded, too), 3 for a state from the one before the run, 2 for one between: 13;
// and 1e-6, which is promised, is 16.7 of them. What goes from run to run is float64, so that these do not add up.
//
// Float32 overflows where float64 did not, and a product of two gates of bfloat16 vanishes: such a tile is scanned by
// the kernels of scan/lines.cpp, as is the rest of a line and one that is shorter than a tile. What overflows or is not
// finite is seen in the state after the tile or in the last state of a run, because nothing in a tile is ever dropped.
//
// Called by line_scan (scan/lines.cpp).

#include "scan/half_tiles.hpp"

namespace upsweep {
namespace {

#if defined(UPSWEEP_HALF_TILES)

// States up to here are far from float32's end, also after a tile of float16 under a gamma up to one.
constexpr double kLargestSingle = 0x1p120;
constexpr int kTogether = 4;   // tiles in flight: the way through one takes longer than its arithmetic
// Bounds within which gamma^kRun is a normal float32.
constexpr double kHalfGammaLow = 0x1p-15, kHalfGammaHigh = 0x1p15;

// States before the runs of a tile, from those after them in its first and its second half.
template <bool Reverse>
inline WidePair shift_runs(Vec first, Vec second, Vec carry, Vec middle) {
  const Vec before_first = shift<1, Reverse>(first, carry), before_second = shift<1, Reverse>(second, middle);
  return Reverse ? WidePair{before_second, before_first} : WidePair{before_first, before_second};
}

// The last state of a tile whose last steps are these.
template <bool Reverse>
inline double last_state(Singles last_steps) { return (double)last_steps[lane_of_run(Reverse ? 0 : kFloatLanes - 1)]; }

// y as it is written: the states, or those before them.
template <class T, bool Reverse, Written What>
inline __attribute__((always_inline)) void write_tile(T* out, const Singles* states, Singles before,
                                                      const uint8_t* reset, Store how) {
  Singles steps[kRun];
  for (int k = 0; k < kRun; ++k)
    steps[step_at<Reverse>(k)] = What == Written::kStates ? states[k] : k ? states[k - 1] : before;
  HalfTile tile = from_runs<T>(steps);
  if (What == Written::kStatesBefore && reset) drop(tile, reset);
  store_tile(out, tile, how);
}

// Some of a line's steps, in float64.
template <class T, bool Reverse>
[[gnu::noinline]] double scan_wide(LineArgs args, LineScan* wide, int64_t step, int64_t n, double carry) {
  args.x = &element_at<Reverse>((const T*)args.x, step);
  if (args.gates) args.gates = &element_at<Reverse>((const T*)args.gates, step);
  if (args.reset) args.reset = &element_at<Reverse>(args.reset, step);
  if (args.out) args.out = &element_at<Reverse>((T*)args.out, step);
  args.n = n, args.carry = carry, args.first = args.first && step == 0;
  return scan_one_line(wide, args);
}

// Tiles of a line, kTogether at a time, and what is left of it. `kind` has, of a tile,
//   start(step): what does not need the state before it,
//   advance(started, carry): the state in the middle of it, and that after it, as float64,
//   finish(started, before, first, y): the states of all steps from those before the runs; false if they may be wrong.
template <class T, bool Reverse, Written What, class Kind>
inline __attribute__((always_inline)) double scan_tiles(const LineArgs& args, LineScan* wide, Store how,
                                                        const Kind& kind) {
  T* const out = (T*)args.out;
  Vec carry = broadcast(args.first ? kind.no_state() : args.carry);
  double last = carry[0];   // the last state that was written, to the bit
  auto scan = [&]<int N>(std::integral_constant<int, N>, int64_t step) __attribute__((always_inline)) {
    if (__builtin_expect(!(__builtin_fabs(carry[0]) <= kLargestSingle), 0)) {
      last = scan_wide<T, Reverse>(args, wide, step, N * kTile, carry[0]);
      carry = broadcast(last);
      return;
    }
    typename Kind::Started started[N];
    Vec before[N + 1], middle[N];
    // Unrolled, or they would be kept in memory.
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) started[k] = kind.start(step + k * kTile);
    before[0] = carry;
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) kind.advance(started[k], before[k], &middle[k], &before[k + 1]);
    carry = before[N];
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) {
      const int64_t at = step + k * kTile;
      Singles y[kRun];
      Singles state = narrow_runs(kind.before_runs(started[k], before[k], middle[k]));
      const bool fine = kind.finish(started[k], state, y) && __builtin_fabs(before[k + 1][0]) <= kLargestSingle;
      if (__builtin_expect(!fine, 0)) {
        last = scan_wide<T, Reverse>(args, wide, at, (N - k) * kTile, before[k][0]);
        carry = broadcast(last);
        return;
      }
      last = last_state<Reverse>(y[kRun - 1]);
      // No state before the first step is zero, and not the minus zero that stands for it.
      if (What == Written::kStatesBefore && args.first && at == 0) state = state + 0.0f;
      if constexpr (What != Written::kNothing) {
        const uint8_t* reset = args.reset ? tile_at<Reverse>(args.reset, at) : nullptr;
        write_tile<T, Reverse, What>(tile_at<Reverse>(out, at), y, state, reset, how);
      }
    }
  };
  int64_t step = 0;
  for (; step + kTogether * kTile <= args.n; step += kTogether * kTile) scan(std::integral_constant<int, kTogether>{}, step);
  for (; step + kTile <= args.n; step += kTile) scan(std::integral_constant<int, 1>{}, step);
  return step < args.n ? scan_wide<T, Reverse>(args, wide, step, args.n - step, carry[0]) : last;
}

// ---- constant gamma --------------------------------------------------------------------------------------------------

struct HalfPowers {
  double gamma = __builtin_nan("");
  Singles steps[kRun / 2];   // gamma^2, ^4, ^6, ^8
  Singles one;               // gamma
  Powers runs;               // of gamma^kRun
  double no_state;           // gamma * no_state + x is x
};

template <bool Reverse>
const HalfPowers& half_powers_of(double gamma) {
  thread_local HalfPowers cached_powers;
  HalfPowers* powers = &cached_powers;
  asm("" : "+r"(powers));   // see powers_of
  if (__builtin_expect(std::memcmp(&powers->gamma, &gamma, sizeof(double)) != 0, 0)) {
    powers->gamma = gamma;
    powers->one = singles(gamma);
    double power = 1.0;
    for (int k = 0; k < kRun / 2; ++k) powers->steps[k] = singles(power *= gamma * gamma);
    fill_powers<Reverse>(powers->runs, power);
    powers->no_state = gamma < 0.0 ? 0.0 : -0.0;
  }
  return *powers;
}

template <class T, bool Reverse>
struct Constant {
  const LineArgs& args;
  const HalfPowers& powers;

  struct Started {
    Singles tokens[kRun / 2];   // of the even steps
    Singles own[kRun / 2];      // states of the odd steps, from nothing
    Vec first, second;          // states after the runs, from nothing before the first (second) half of them
  };
  double no_state() const { return powers.no_state; }

  inline __attribute__((always_inline)) Started start(int64_t step) const {
    const T* x = (const T*)args.x;
    if (args.ahead) prefetch_half_tile<Reverse>(x, step + args.ahead);
    Singles steps[kRun];
    to_runs<T>(load_tile(tile_at<Reverse>(x, step)), steps);
    Started s;
    for (int k = 0; k < kRun / 2; ++k) {
      s.tokens[k] = steps[step_at<Reverse>(2 * k)];
      s.own[k] = fma(powers.one, s.tokens[k], steps[step_at<Reverse>(2 * k + 1)]);
    }
    for (int k = 1; k < kRun / 2; ++k) s.own[k] = fma(powers.steps[0], s.own[k - 1], s.own[k]);
    const WidePair values = wide_runs(s.own[kRun / 2 - 1]);
    s.first = scan_vector<Reverse>(Reverse ? values.high : values.low, powers.runs);
    s.second = scan_vector<Reverse>(Reverse ? values.low : values.high, powers.runs);
    return s;
  }

  inline __attribute__((always_inline)) void advance(const Started& s, Vec carry, Vec* middle, Vec* after) const {
    const Vec &half = powers.runs.vectors[1], &whole = powers.runs.vectors[2];
    const Vec last_of_first = splat_last<Reverse>(s.first);
    *middle = fma(half, carry, last_of_first);
    *after = fma(whole, carry, fma(half, last_of_first, splat_last<Reverse>(s.second)));
  }

  inline __attribute__((always_inline)) WidePair before_runs(const Started& s, Vec carry, Vec middle) const {
    return shift_runs<Reverse>(fma(powers.runs.lanes, carry, s.first), fma(powers.runs.lanes, middle, s.second), carry, middle);
  }

  inline __attribute__((always_inline)) bool finish(const Started& s, Singles before, Singles* y) const {
    for (int k = 0; k < kRun / 2; ++k) y[2 * k + 1] = fma(powers.steps[k], before, s.own[k]);
    for (int k = 0; k < kRun / 2; ++k) y[2 * k] = fma(powers.one, k ? y[2 * k - 1] : before, s.tokens[k]);
    // Not float16 under a gamma up to one: no state is then much larger than the one before the tile.
    if (std::is_same_v<T, Half> && __builtin_fabs(args.gamma) <= 1.0) return true;
    Singles sum = y[1];
    for (int k = 1; k < kRun / 2; ++k) sum = fma(y[2 * k + 1], Singles{}, sum);
    return !any_not_finite(sum);
  }
};

// ---- gates, and resets ------------------------------------------------------------------------------------------------

template <class T>
inline bool may_vanish(const HalfTile& gates) {
  Halves least = but_zero(sizes(gates.part[0]));
  for (int i = 1; i < kRegisters; ++i) least = smaller(but_zero(sizes(gates.part[i])), least);
  return may_vanish<T>(least);
}

template <class T, bool Reverse>
struct Gated {
  const LineArgs& args;

  struct Started {
    Singles tokens[kRun / 2], gates[kRun / 2];        // of the even steps
    Singles products[kRun / 2], values[kRun / 2];     // of two steps, the state from nothing
    Vec first_a, first_v, second_a, second_v;         // of all runs up to each, in the first and the second half of them
    bool fine;
  };
  double no_state() const { return -0.0; }

  inline __attribute__((always_inline)) Started start(int64_t step) const {
    const T *x = (const T*)args.x, *a = (const T*)args.gates;
    if (args.ahead) {
      prefetch_half_tile<Reverse>(x, step + args.ahead);
      prefetch_half_tile<Reverse>(a, step + args.ahead);
    }
    HalfTile tile = load_tile(tile_at<Reverse>(a, step));
    if (args.reset) drop(tile, tile_at<Reverse>(args.reset, step));
    if (args.first && step == 0) drop_first<Reverse>(tile);
    Started s;
    s.fine = !may_vanish<T>(tile);
    const Pairs pairs = pairs_of<T, Reverse>(load_tile(tile_at<Reverse>(x, step)), tile);
    for (int k = 0; k < kRun / 2; ++k) {
      s.tokens[k] = pairs.tokens[k], s.gates[k] = pairs.gates[k];
      s.products[k] = pairs.products[k], s.values[k] = pairs.values[k];
    }
    const WideRuns runs = runs_of(s.products, s.values);
    s.first_a = Reverse ? runs.a.high : runs.a.low, s.first_v = Reverse ? runs.v.high : runs.v.low;
    s.second_a = Reverse ? runs.a.low : runs.a.high, s.second_v = Reverse ? runs.v.low : runs.v.high;
    scan_vector<Reverse>(s.first_a, s.first_v);
    scan_vector<Reverse>(s.second_a, s.second_v);
    return s;
  }

  inline __attribute__((always_inline)) void advance(const Started& s, Vec carry, Vec* middle, Vec* after) const {
    *middle = fma(splat_last<Reverse>(s.first_a), carry, splat_last<Reverse>(s.first_v));
    *after = fma(splat_last<Reverse>(s.second_a), *middle, splat_last<Reverse>(s.second_v));
  }

  inline __attribute__((always_inline)) WidePair before_runs(const Started& s, Vec carry, Vec middle) const {
    return shift_runs<Reverse>(fma(s.first_a, carry, s.first_v), fma(s.second_a, middle, s.second_v), carry, middle);
  }

  inline __attribute__((always_inline)) bool finish(const Started& s, Singles before, Singles* y) const {
    for (int k = 0; k < kRun / 2; ++k) y[2 * k + 1] = fma(s.products[k], k ? y[2 * k - 1] : before, s.values[k]);
    for (int k = 0; k < kRun / 2; ++k) y[2 * k] = fma(s.gates[k], k ? y[2 * k - 1] : before, s.tokens[k]);
    return s.fine && !any_not_finite(y[kRun - 1]);
  }
};

// ---- all kinds --------------------------------------------------------------------------------------------------------

template <class T, bool Reverse, Written What>
void scan_lines_as(const LineArgs& args, const Lines& lines, LineScan* wide) {
  const void* lowest = args.out ? tile_at<Reverse>((T*)args.out, 0) : nullptr;
  const Store how = how_to_store<sizeof(Halves)>(lowest, lines.n > 1 ? lines.out_stride : 0, args.stream);
  if (args.gates) {
    for_lines(args, lines, [&](const LineArgs& line) __attribute__((always_inline)) {
      return scan_tiles<T, Reverse, What>(line, wide, how, Gated<T, Reverse>{line});
    });
  } else {
    const HalfPowers& powers = half_powers_of<Reverse>(args.gamma);
    for_lines(args, lines, [&](const LineArgs& line) __attribute__((always_inline)) {
      return scan_tiles<T, Reverse, What>(line, wide, how, Constant<T, Reverse>{line, powers});
    });
  }
}

template <class T, bool Reverse>
void scan_half_lines(const LineArgs& args, const Lines& lines) {
  constexpr int32_t dtype = std::is_same_v<T, Half> ? kHalf : kBFloat;
  LineScan* const wide = wide_line_scan(dtype, dtype, Reverse);
  const double size = __builtin_fabs(args.gamma);
  const bool in_range = args.gates || size == 0.0 || (size >= kHalfGammaLow && size <= kHalfGammaHigh);
  if (args.n < kTile || !in_range) return wide(args, lines);
  if (args.reset && !args.gates)
    return for_lines(args, lines, [&](const LineArgs& line) {
      return scan_between_resets<T, Reverse>(line, scan_half_lines<T, Reverse>, wide);
    });
  if (!args.out) return scan_lines_as<T, Reverse, Written::kNothing>(args, lines, wide);
  return args.exclusive ? scan_lines_as<T, Reverse, Written::kStatesBefore>(args, lines, wide)
                        : scan_lines_as<T, Reverse, Written::kStates>(args, lines, wide);
}

#endif

}  // namespace

LineScan* half_line_scan(int32_t dtype, bool reverse) {
#if defined(UPSWEEP_HALF_TILES)
  if (dtype == kHalf) return reverse ? scan_half_lines<Half, true> : scan_half_lines<Half, false>;
  if (dtype == kBFloat) return reverse ? scan_half_lines<BFloat, true> : scan_half_lines<BFloat, false>;
#endif
  (void)dtype, (void)reverse;
  return nullptr;
}

}  // namespace upsweep
