// LINES: what a block of contiguous memory does to the state before it, without writing anything.
//
//   state -> multiplier * state + value
//
// Bytes an element: one read of x (and of the gates), which leaves them in the cache for the scan that follows. With a
// constant gamma each lane is a Horner scheme, one multiply-add for kLanes elements. With gates, kLanes vectors are
// combined pairwise until each lane holds a run of kLanes steps; that takes half the shuffles of a scan.
//
// No state in between is seen, so how large it may be is bounded: by the largest token, which is measured for float64
// only, and by how far gates above one make it grow.
//
// Called by the blocked driver (scan/driver.cpp).

#include "scan/lines.hpp"
#include "common/real_types.hpp"

namespace upsweep {
namespace {

template <class T, bool Reverse>
Reduced reduce_constant(const LineArgs& args_) {
  const LineArgs args = args_;
  const double gamma = args.gamma, size = __builtin_fabs(gamma);
  Reduced result{__builtin_pow(gamma, (double)args.n), 0.0, size, size, 1.0, 0.0, !gamma_in_range(args)};
  if (result.in_order) return result;
  const T* x = (const T*)args.x;
  Vec largest[kUnroll] = {};
  // Each lane is a Horner scheme of its own in gamma^(kUnroll * kLanes).
  constexpr int kTile = kUnroll * kLanes;
  const Powers& powers = powers_of<Reverse>(args);
  const Vec factor = powers.vectors[kUnroll];
  Vec sums[kUnroll];
  for (Vec& sum : sums) sum = broadcast(-0.0);
  int64_t step = 0;
  for (; step + kTile <= args.n; step += kTile)
    for (int k = 0; k < kUnroll; ++k) {
      const Vec token = load(vector_at<Reverse>(x, step + k * kLanes));
      sums[k] = fma(sums[k], factor, token);
      if constexpr (kMayOverflow<T>) largest[k] = max(abs(token), largest[k]);
    }
  Vec sum = sums[0];
  for (int k = 1; k < kUnroll; ++k) sum = fma(sum, powers.vectors[1], sums[k]);
  double value = sum[lane_of<Reverse>(0)];
  for (int k = 1; k < kLanes; ++k) value = fma(gamma, value, sum[lane_of<Reverse>(k)]);
  for (int k = 1; k < kUnroll; ++k) largest[0] = max(largest[k], largest[0]);
  double largest_token = kMayOverflow<T> ? largest_lane(largest[0]) : kNarrowToken;
  for (; step < args.n; ++step) {
    const double token = to_double(element_at<Reverse>(x, step));
    value = fma(gamma, value, token);
    if (__builtin_fabs(token) > largest_token) largest_token = __builtin_fabs(token);
  }
  result.value = value;
  if (size > 1.0) result.growth = __builtin_fabs(result.multiplier);
  result.reach = result.growth * (double)args.n * largest_token;
  return result;
}

constexpr int kRunVectors = kLanes;                       // combined at a time: a run of kLanes steps a lane
constexpr double kProductLow = 0x1p-15, kProductHigh = 0x1p15;   // kLanes^2 of them stay normal

// Whether a block with gates beyond those bounds may still be reduced by products: none grows, and what a
// product that vanished would have carried is too small to be seen in the value.
template <class T, class G, bool Reverse>
bool products_may_vanish(const LineArgs& args, const Reduced& result) {
  if (result.max_gate > kProductHigh) return false;
  Vec smallest = broadcast(kProductHigh), largest_token = {};
  for (int64_t step = 0; step < args.n; step += kLanes) {
    const int count = args.n - step < kLanes ? (int)(args.n - step) : kLanes;
    const bool whole = count == kLanes;
    Vec gate = whole ? load_gates<G, Reverse>(args, step) : load_gates_first<G, Reverse>(args, step, count);
    if (args.first && step == 0) gate = select(first_lanes<Reverse>(1), Vec{}, gate);
    const T* x = (const T*)args.x;
    const Vec token = abs(whole ? load(vector_at<Reverse>(x, step)) : load_first<Reverse>(x, step, count));
    const Vec size = abs(gate);
    smallest = select((Mask)(size < smallest) & (Mask)(size != 0.0), size, smallest);
    largest_token = max(token, largest_token);
  }
  double least = smallest[0];
  const double most = largest_lane(largest_token);
  for (int lane = 1; lane < kLanes; ++lane) least = smallest[lane] < least ? smallest[lane] : least;
  if (least >= kProductLow) return true;
  const double lost = (double)args.n * most * kSmallest, seen = __builtin_fabs(result.value) * 0x1p-60;
  return result.max_gate <= 1.0 && lost <= (seen > kSmallest ? seen : kSmallest);
}

// Of a block with a constant gamma, what follows its last reset is all that is left.
template <class T, bool Reverse>
Reduced reduce_after_reset(const LineArgs& args) {
  int64_t from = args.n;
  while (from > 0 && !element_at<Reverse>(args.reset, from - 1)) --from;
  LineArgs rest = args;
  rest.reset = nullptr;
  if (from == 0) return reduce_constant<T, Reverse>(rest);
  rest.x = &element_at<Reverse>((const T*)args.x, from - 1);
  rest.n = args.n - from + 1;
  Reduced result = reduce_constant<T, Reverse>(rest);
  result.multiplier = result.min_gate = 0.0;
  return result;
}

template <class T, class G, bool Reverse, Operands What>
Reduced reduce_gated_as(const LineArgs& args_) {
  const LineArgs args = args_;
  Reduced result{1.0, 0.0, 1.0, 1.0, 1.0, 0.0, !gamma_in_range(args)};
  if (result.in_order) return result;
  const T* x = (const T*)args.x;
  Vec smallest = broadcast(__builtin_inf()), largest = {}, largest_token = {};
  Vec product = broadcast(1.0), value = broadcast(-0.0);
  Vec growth = product, most_growth = product, most_value = {};   // growth: by any run of folds that ends here
  Mask dropped = {};
  int64_t step = 0;
  // The first gate of all multiplies nothing but what comes before the block, so it is no part of what is measured.
  double first_gate = 1.0;
  if (args.first && args.n > 0) {
    const bool dropped = args.reset && element_at<Reverse>(args.reset, 0);
    first_gate = dropped ? 0.0 : args.gates ? to_double(element_at<Reverse>((const G*)args.gates, 0)) : args.gamma;
    value = broadcast(as_operand(to_double(element_at<Reverse>(x, 0))));
    largest_token = abs(value);
    step = 1;
  }

  auto measure = [&](Vec a) __attribute__((always_inline)) {
    const Vec size = abs(a);
    smallest = min(size, smallest);
    largest = max(size, largest);
  };
  auto vector_runs = [&](int64_t at) __attribute__((always_inline)) {
    Vec a;
    if constexpr (What == Operands::kGatesAndResets) {
      // Measured as given: a gate that a reset makes zero is no reason to look at the products again.
      const Mask drop = load_mask(vector_at<Reverse>(args.reset, at));
      a = load(vector_at<Reverse>((const G*)args.gates, at));
      measure(a);
      a = select(drop, Vec{}, a);
      dropped |= drop;
    } else {
      a = load_gates<G, Reverse, What>(args, at);
      measure(a);
    }
    const Vec token = load(vector_at<Reverse>(x, at));
    if constexpr (kMayOverflow<T>) largest_token = max(abs(token), largest_token);
    return Runs{a, token};
  };
  auto fold = [&](Runs runs) __attribute__((always_inline)) {
    scan_vector<Reverse>(runs.a, runs.v);
    const Vec last = splat_last<Reverse>(runs.a);
    value = fma(last, value, splat_last<Reverse>(runs.v));
    product = product * last;
    growth = max(abs(growth * last), broadcast(1.0));
    most_growth = max(growth, most_growth);
    most_value = max(abs(value), most_value);
  };
  auto group = [&]<int N>(auto& self, std::integral_constant<int, N>, int64_t at) __attribute__((always_inline)) {
    if constexpr (N == 1) {
      return vector_runs(at);
    } else {
      const Runs before = self(self, std::integral_constant<int, N / 2>{}, at);
      return combine_runs<Reverse, N == 2>(before, self(self, std::integral_constant<int, N / 2>{}, at + N / 2 * kLanes));
    }
  };
  for (; step + kRunVectors * kLanes <= args.n; step += kRunVectors * kLanes)
    fold(group(group, std::integral_constant<int, kRunVectors>{}, step));
  for (; step + kLanes <= args.n; step += kLanes) fold(vector_runs(step));
  if (step < args.n) {
    // A zero step after the end with a gate of one leaves the state as it is.
    const int count = (int)(args.n - step);
    Vec a = load_gates_first<G, Reverse>(args, step, count);
    measure(a);
    const Vec token = load_first<Reverse>(x, step, count);
    largest_token = max(abs(token), largest_token);
    fold({a, token});
  }
  result.value = value[0];
  result.multiplier = product[0];
  result.min_gate = smallest[0];
  for (int lane = 0; lane < kLanes; ++lane) {
    result.min_gate = result.min_gate < smallest[lane] ? result.min_gate : smallest[lane];
    result.max_gate = lane && result.max_gate > largest[lane] ? result.max_gate : largest[lane];
  }
  if (result.min_gate < kProductLow || result.max_gate > kProductHigh)
    result.in_order = !products_may_vanish<T, G, Reverse>(args, result);
  // Between two folds, every gate may be the largest.
  constexpr int kFold = kRunVectors * kLanes;
  const double within = result.max_gate > 1.0 ? __builtin_pow(result.max_gate, kFold) : 1.0;
  result.growth = within * most_growth[0];
  result.reach = within * (most_value[0] + kFold * (kMayOverflow<T> ? largest_lane(largest_token) : kNarrowToken));
  result.multiplier *= first_gate;
  if (first_gate == 0.0 || any(dropped)) result.min_gate = 0.0;
  return result;
}

template <class T, class G, bool Reverse>
Reduced reduce_gated(const LineArgs& args) {
  if (!args.gates) return reduce_gated_as<T, G, Reverse, Operands::kUnknown>(args);
  return args.reset ? reduce_gated_as<T, G, Reverse, Operands::kGatesAndResets>(args)
                    : reduce_gated_as<T, G, Reverse, Operands::kGates>(args);
}

template <class T, bool Reverse>
Reduced reduce_line(const LineArgs& args) {
  if (args.gates) return reduce_gated<T, T, Reverse>(args);
  return args.reset ? reduce_after_reset<T, Reverse>(args) : reduce_constant<T, Reverse>(args);
}

}  // namespace

LineReduce* line_reduce(int32_t dtype, int32_t gate_dtype, bool reverse) {
  LineReduce* const half = gate_dtype == dtype ? half_line_reduce(dtype, reverse) : nullptr;
  return half ? half : wide_line_reduce(dtype, gate_dtype, reverse);
}

LineReduce* wide_line_reduce(int32_t dtype, int32_t gate_dtype, bool reverse) {
  return with_real_types(dtype, gate_dtype, [&](auto x, auto gate) -> LineReduce* {
    using T = decltype(x);
    using G = decltype(gate);
    if constexpr (std::is_same_v<T, G>) return reverse ? reduce_line<T, true> : reduce_line<T, false>;
    else return reverse ? reduce_gated<T, G, true> : reduce_gated<T, G, false>;
  });
}

}  // namespace upsweep
