// LINES of float16 and bfloat16 with gates, in lanes of float32: what a block does to the state before it.
//
//   state -> multiplier * state + value
//
// Bytes an element: one read of x and of the gates. The runs of a tile (scan/half_tiles.hpp) are what single steps are in
// scan/reduce_lines.cpp, whose kernel does the same in float64 throughout: with a lane for every element, not one for kRun.
//
// Only where no gate is above one, so that the states need no bound but the number of tokens, all products of two gates
// are exact, and the result is finite; else the block is reduced in float64. A constant gamma always is: there that
// kernel takes a third of the time of the scan that follows.
//
// Called by line_reduce (scan/reduce_lines.cpp).

#include "scan/half_tiles.hpp"

namespace upsweep {
namespace {

#if defined(UPSWEEP_HALF_TILES)

constexpr int kGroup = kLanes / 2;   // tiles that are combined until a lane holds a run of kLanes runs

template <class T>
constexpr uint16_t kOneBits = std::is_same_v<T, Half> ? 0x3c00 : 0x3f80;

template <class T, bool Reverse>
struct HalfReduction {
  const LineArgs args;
  Halves most = {}, least = Halves{} + (uint16_t)0xffff, least_but_zero = Halves{} + (uint16_t)0xffff;   // of the gates

  inline __attribute__((always_inline)) Runs tile_runs(int64_t step) {
    const T *x = (const T*)args.x, *a = (const T*)args.gates;
    HalfTile gates = load_tile(tile_at<Reverse>(a, step));
    if (args.first && step == 0) drop_first<Reverse>(gates);
    for (const Halves& part : gates.part) most = larger(sizes(part), most);   // as given, also where they are dropped
    if (args.reset) drop(gates, tile_at<Reverse>(args.reset, step));
    for (const Halves& part : gates.part) {
      least = smaller(sizes(part), least);
      if (std::is_same_v<T, BFloat>) least_but_zero = smaller(but_zero(sizes(part)), least_but_zero);
    }
    const Pairs pairs = pairs_of<T, Reverse>(load_tile(tile_at<Reverse>(x, step)), gates);
    const WideRuns runs = runs_of(pairs.products, pairs.values);
    const Runs low{runs.a.low, runs.v.low}, high{runs.a.high, runs.v.high};
    return combine_runs<Reverse, true>(Reverse ? high : low, Reverse ? low : high);
  }

  template <int N>
  inline __attribute__((always_inline)) Runs group(std::integral_constant<int, N>, int64_t step) {
    if constexpr (N == 1) {
      return tile_runs(step);
    } else {
      const std::integral_constant<int, N / 2> half;
      const Runs before = group(half, step);
      return combine_runs<Reverse, false>(before, group(half, step + N / 2 * kTile));
    }
  }

  // False: the block has to be reduced in float64.
  bool run(Reduced* result) {
    Vec value = broadcast(-0.0), product = broadcast(1.0);
    for (int64_t step = 0; step < args.n; step += kGroup * kTile) {
      Runs runs = group(std::integral_constant<int, kGroup>{}, step);
      scan_vector<Reverse>(runs.a, runs.v);
      const Vec last = splat_last<Reverse>(runs.a);
      value = fma(last, value, splat_last<Reverse>(runs.v));
      product = product * last;
      if (any_above(most, kOneBits<T>) || may_vanish<T>(least_but_zero)) return false;
    }
    const double smallest = any_below(least, 1) ? 0.0 : kSmallest;
    const bool finite = is_finite(value[0]) && is_finite(product[0]);
    *result = {product[0], value[0], smallest, 1.0, 1.0, (double)args.n * kNarrowToken, !finite};
    // Under gates up to one, sums of float16 are far from float32's end: a token was not finite.
    return finite || std::is_same_v<T, Half>;
  }
};

template <class T, bool Reverse>
Reduced reduce_half_line(const LineArgs& args) {
  Reduced result;
  if (args.gates && args.n > 0 && args.n % (kGroup * kTile) == 0 && HalfReduction<T, Reverse>{args}.run(&result))
    return result;
  constexpr int32_t dtype = std::is_same_v<T, Half> ? kHalf : kBFloat;
  return wide_line_reduce(dtype, dtype, Reverse)(args);
}

#endif

}  // namespace

LineReduce* half_line_reduce(int32_t dtype, bool reverse) {
#if defined(UPSWEEP_HALF_TILES)
  if (dtype == kHalf) return reverse ? reduce_half_line<Half, true> : reduce_half_line<Half, false>;
  if (dtype == kBFloat) return reverse ? reduce_half_line<BFloat, true> : reduce_half_line<BFloat, false>;
#endif
  (void)dtype, (void)reverse;
  return nullptr;
}

}  // namespace upsweep
