// LINES: a scan along contiguous memory.
//
//   y[t] = a[t] * y[t-1] + x[t]
//
// Bytes an element: one read of x (and of the gates), one write of y. Arithmetic for kLanes elements: log2(kLanes)
// shifts and fused multiply-adds inside the vector, one more to add the carry, and one of latency from vector
// to vector; a plain loop would wait for a multiply-add at every element.
//
// Products of gates are what may go wrong: they overflow or vanish where the loop would not. So a tile whose
// states are not all finite, or whose gates leave [kGateLow, kGateHigh], is run again as the plain loop,
// which is also what defines the answer. A NaN or an infinity in the input always reaches the tile's last state,
// because nothing in the vector form is ever dropped (a dropped state is a product with zero); a state that overflows
// and comes back shows in its own lane only.
//
// Bound by its arithmetic where the memory keeps up: on a Zen 5, 85 instructions and 22 cycles for 32 float32 in the L1, of
// which 23 are multiply-adds, 16 shuffles and 8 conversions of two operations each. Twice as many vectors in flight are
// no faster, so neither would two lines at once be; with gates, which wait longer for each other, a tenth.
//
// With AVX2, of a vector of 4 elements: 5 multiply-adds, 3 shuffles (2 of them across the halves of the register) and 2
// conversions; with gates 9 multiplications and multiply-adds, 6 shuffles (4 across), 2 blends, 2 masks and 3 conversions.
// Their cycles, and those of an element that follow:
//
//                              shuffle, across   multiply-add   widen, narrow   sum   gates   limit
//   Zen 3, Zen 4               0.33, 0.5         0.5            0.5, 0.85       0.7   1.4     four pipes
//   Intel before Golden Cove   1, 1              0.5            0.5, 1          1.0   1.9     port of shuffles; three ports
//
// A Zen 4 takes 1.15 and 1.95, of float64 1.05 and 2.2: the operations of a tile wait for each other, and the schedulers
// hold fewer than two tiles. Tiles of eight vectors take 7 % less for a sum, and more with gates, for which there are not enough
// registers.
//
// Called by the drivers (scan/driver.cpp), for whole lines or for a block of one; by the kernels of float16 and bfloat16
// (scan/half_lines.cpp) for what those leave.

#include "scan/lines.hpp"
#include "common/real_types.hpp"

namespace upsweep {
namespace {

// y[t] = c before step t: the states one step later, the carry in front, nothing where the state was dropped.
template <bool Reverse>
inline Vec states_before(Vec states, Vec carry) { return shift<1, Reverse>(states, carry); }
template <bool Reverse>
inline Vec before_or_dropped(const LineArgs& args, int64_t step, Vec states, Vec carry) {
  const Vec before = states_before<Reverse>(states, carry);
  return args.reset ? select(load_mask(vector_at<Reverse>(args.reset, step)), Vec{}, before) : before;
}

// The state after one step of a vector; a variable index would send the vector through memory.
template <bool Reverse>
inline double state_at(Vec v, int step) {
  double state = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) state = lane == lane_of<Reverse>(step) ? v[lane] : state;
  return state;
}

// Whether every lane of N vectors is finite: 0 * x is not 0 otherwise.
template <int N>
inline bool all_finite(const Vec* v) {
  Vec sum = v[0] * broadcast(0.0);
  for (int k = 1; k < N; ++k) sum = fma(v[k], broadcast(0.0), sum);
  return !any((Mask)(sum != sum));
}

// ---- the plain loop -----------------------------------------------------------------------------------------------

// A call, with a copy of the arguments: the kernels keep theirs in registers.
template <class T, class G, bool Reverse>
[[gnu::noinline]] double scan_in_order(LineArgs args, int64_t from, int64_t to, double state, bool first) {
  const T* x = (const T*)args.x;
  const G* gates = (const G*)args.gates;
  T* out = (T*)args.out;
  for (int64_t step = from; step < to; ++step) {
    const bool dropped = first || (args.reset && element_at<Reverse>(args.reset, step));
    const double token = as_operand(to_double(element_at<Reverse>(x, step)));
    const double gate = gates ? to_double(element_at<Reverse>(gates, step)) : args.gamma;
    const double before = dropped ? 0.0 : state;
    state = dropped ? token : fma(gate, state, token);
    if (out) element_at<Reverse>(out, step) = from_double<T>(args.exclusive ? before : state);
    first = false;
  }
  return state;
}

// Steps that leave a state that is not finite as it is: a NaN up to a reset, an infinity also up to a gate of zero, a NaN
// or the other infinity. Its sign is all that goes from step to step, so that none waits for a multiply-add. Returns the
// first step that is not of this kind.
template <class T, class G, bool Reverse>
int64_t skip_not_finite(LineArgs args, int64_t step, double* state) {
  const T* x = (const T*)args.x;
  const G* gates = (const G*)args.gates;
  T* out = (T*)args.out;
  const double infinity = __builtin_inf();
  const bool is_nan = *state != *state;
  double now = *state;
  // Whether the state stays what it is in the next kLanes steps, its sign included.
  auto stays = [&] {
    if (args.reset && any(load_mask(vector_at<Reverse>(args.reset, step)))) return false;
    if (is_nan) return true;
    const Vec gate = gates ? load(vector_at<Reverse>(gates, step)) : broadcast(args.gamma);
    const Vec token = load(vector_at<Reverse>(x, step)) * broadcast(now < 0.0 ? -1.0 : 1.0);
    return !any((Mask)(gate > 0.0) == 0) && !any((Mask)(token > -infinity) == 0);
  };
  for (;;) {
    for (const Vec states = broadcast(now); step + kLanes <= args.n && stays(); step += kLanes)
      if (out) store(vector_at<Reverse>(out, step), states);
    for (int k = 0; k < kLanes; ++k, ++step) {
      *state = now;
      if (step == args.n || (args.reset && element_at<Reverse>(args.reset, step))) return step;
      if (!is_nan) {
        const double gate = gates ? to_double(element_at<Reverse>(gates, step)) : args.gamma;
        const double token = to_double(element_at<Reverse>(x, step)), after = gate < 0.0 ? -now : now;
        if (!(__builtin_fabs(gate) > 0.0) || !((after < 0.0 ? -token : token) > -infinity)) return step;
        now = after;
      }
      if (out) element_at<Reverse>(out, step) = from_double<T>(args.exclusive ? *state : now);
    }
  }
}

struct Redone {
  double state;
  int64_t step;
};

// The steps of a tile whose vector form may be wrong, and those after it that follow from a state that is not finite; in
// all a whole number of tiles, if the line is as long. A call marked as cold, around which alone registers are saved.
template <class T, class G, bool Reverse>
[[gnu::noinline, gnu::cold]] Redone scan_again(LineArgs args, int64_t from, int64_t to, double state, bool first) {
  int64_t step = from, tile = to - from;
  if (first || is_finite(state)) state = scan_in_order<T, G, Reverse>(args, from, step = to, state, first);
  if (is_finite(state)) return {state, step};
  step = skip_not_finite<T, G, Reverse>(args, step, &state);
  if (step > from) to = from + (step - from + tile - 1) / tile * tile;
  if (to > args.n) to = args.n;
  return {scan_in_order<T, G, Reverse>(args, step, to, state, false), to};
}

// ---- constant gamma -----------------------------------------------------------------------------------------------

// What has kernels of its own for each way to store and for each set of operands. The others look at both as they run,
// since every kernel takes seconds to compile: gates of another dtype, and what the tiles of half_lines.cpp leave.
template <class T, class G>
constexpr bool kIsMain = std::is_same_v<T, G> && sizeof(T) >= 4;

template <class T, bool Reverse, int N>
inline void store_tile(T* out, int64_t step, const Vec* v, Store how) {
  for (int k = 0; k < N; ++k) store(vector_at<Reverse>(out, step + k * kLanes), v[k], how);
}

// All whole vectors from `step` on, Together at a time where that is allowed, then fewer: tile(n) takes n of them
// further, or says false, and redo takes that many steps again.
// The loops around the tiles have no call in them, so that the compiler keeps what they share in registers.
template <int Together, class Tile, class Redo>
inline __attribute__((always_inline)) void scan_all(Tile tile, Redo redo, const int64_t n, const int64_t& step,
                                                    bool together) {
  auto scan = [&](auto vectors) __attribute__((always_inline)) {
    constexpr int kSteps = vectors() * kLanes;
    while (step + kSteps <= n) {
      while (__builtin_expect(tile(vectors), 1))
        if (step + kSteps > n) return;
      redo(kSteps);
    }
  };
  if (together) scan(std::integral_constant<int, Together>{});
  if constexpr (Together > kUnroll) scan(std::integral_constant<int, kUnroll>{});
  scan(std::integral_constant<int, 1>{});
}

// Streams: stores as `how` says; else through the cache.
template <class T, bool Reverse, bool Streams, Written What>
inline __attribute__((always_inline)) double scan_constant_line(const LineArgs& args, const Powers& powers, Store how) {
  if (!Streams) how = Store::kCached;
  // A state that overflows between two vectors and decays again would be seen in its own lane only. Floats
  // under a gamma up to one cannot get there.
  const bool may_overflow = sizeof(T) == 8 || __builtin_fabs(args.gamma) > 1.0;
  const T* x = (const T*)args.x;
  T* out = (T*)args.out;
  Vec states = {};   // of the last vector: the state returned is the last one written, to the bit
  // Without a state before it, the first step adds gamma * 0.
  Vec carry = args.first ? powers.zero : broadcast(args.carry);
  bool first = args.first;
  int64_t step = 0;

  auto tile = [&]<int N>(std::integral_constant<int, N>) __attribute__((always_inline)) {
    Vec v[N];
    if (args.ahead) prefetch_tile<Reverse, N>(x, step + args.ahead);
    for (int k = 0; k < N; ++k) v[k] = load(vector_at<Reverse>(x, step + k * kLanes));
    for (int k = 0; k < N; ++k) v[k] = scan_vector<Reverse>(v[k], powers);
    // Every vector's state from the tile's first, so that one multiply-add a tile is waited for, not one a vector.
    Vec before[N + 1], sum = splat_last<Reverse>(v[0]);
    before[0] = carry;
    for (int k = 1; k <= N; ++k) {
      before[k] = fma(powers.vectors[k], carry, sum);
      if (k < N) sum = fma(powers.vectors[1], sum, splat_last<Reverse>(v[k]));
    }
    for (int k = 0; k < N; ++k) v[k] = fma(powers.lanes, before[k], v[k]);
    const bool in_order = !is_finite(before[N][0]) || (may_overflow && !all_finite<N>(v));
    if (__builtin_expect(in_order, 0)) return false;
    states = v[N - 1];
    if constexpr (What == Written::kStatesBefore)
      for (int k = 0; k < N; ++k) v[k] = states_before<Reverse>(v[k], first && k == 0 ? Vec{} : before[k]);
    if constexpr (What != Written::kNothing) store_tile<T, Reverse, N>(out, step, v, how);
    carry = before[N];
    first = false;
    step += N * kLanes;
    return true;
  };
  auto redo = [&](int n) __attribute__((always_inline)) {
    const Redone redone = scan_again<T, T, Reverse>(args, step, step + n, carry[0], first);
    states = carry = broadcast(redone.state);
    first = false;
    step = redone.step;
  };
  scan_all<kUnroll>(tile, redo, args.n, step, true);

  const int rest = (int)(args.n - step);
  if (rest == 0) return step ? state_at<Reverse>(states, kLanes - 1) : args.carry;
  Vec v = fma(powers.lanes, carry, scan_vector<Reverse>(load_first<Reverse>(x, step, rest), powers));
  const double state = state_at<Reverse>(v, rest - 1);
  if (!is_finite(state) || (may_overflow && !all_finite<1>(&v)))
    return scan_again<T, T, Reverse>(args, step, args.n, carry[0], first).state;
  if (out) store_first<Reverse>(out, step, args.exclusive ? states_before<Reverse>(v, first ? Vec{} : carry) : v, rest);
  return state;
}

template <class T, bool Reverse, bool Streams, Written What>
void scan_constant_as(const LineArgs& args, const Lines& lines, Store how) {
  const Powers& powers = powers_of<Reverse>(args);
  for_lines(args, lines, [&](const LineArgs& line) __attribute__((always_inline)) {
    return scan_constant_line<T, Reverse, Streams, What>(line, powers, how);
  });
}

template <class T, bool Reverse, Written What>
void scan_constant_as(const LineArgs& args, const Lines& lines) {
  const Store how = how_to_store<T, Reverse>(args, lines);
  if constexpr (kIsMain<T, T>)
    if (how == Store::kCached) return scan_constant_as<T, Reverse, false, What>(args, lines, how);
  scan_constant_as<T, Reverse, true, What>(args, lines, how);
}

template <class T, class G, bool Reverse>
void scan_all_in_order(const LineArgs& args, const Lines& lines) {
  for_lines(args, lines, [](const LineArgs& line) {
    return scan_in_order<T, G, Reverse>(line, 0, line.n, line.carry, line.first);
  });
}

template <class T, bool Reverse>
void scan_constant(const LineArgs& args, const Lines& lines) {
  if (!gamma_in_range(args)) return scan_all_in_order<T, T, Reverse>(args, lines);
  if (!args.out) return scan_constant_as<T, Reverse, false, Written::kNothing>(args, lines, Store::kCached);
  return args.exclusive ? scan_constant_as<T, Reverse, Written::kStatesBefore>(args, lines)
                        : scan_constant_as<T, Reverse, Written::kStates>(args, lines);
}

// ---- gates or resets ----------------------------------------------------------------------------------------------

template <class T, class G, bool Reverse, bool Streams, Operands Has, Written What>
inline __attribute__((always_inline)) double scan_gated_line(const LineArgs& args, Store how) {
  if (!Streams) how = Store::kCached;
  const T* x = (const T*)args.x;
  T* out = (T*)args.out;
  Vec carry = broadcast(args.first ? -0.0 : args.carry), states = {};
  bool first = args.first;
  int64_t step = 0;

  auto tile = [&]<int N>(std::integral_constant<int, N>) __attribute__((always_inline)) {
    Vec a[N], v[N], before[N + 1];
    if (args.ahead) {
      prefetch_tile<Reverse, N>(x, step + args.ahead);
      if (args.gates) prefetch_tile<Reverse, N>((const G*)args.gates, step + args.ahead);
    }
    for (int k = 0; k < N; ++k) {
      v[k] = load(vector_at<Reverse>(x, step + k * kLanes));
      a[k] = load_gates<G, Reverse, Has>(args, step + k * kLanes);
    }
    if (first) a[0] = select(first_lanes<Reverse>(1), Vec{}, a[0]);
    bool in_order = false;
    if constexpr (kMayLeaveRange<G>) in_order = any_out_of_range<N>(a);
    for (int k = 0; k < N; ++k) scan_vector<Reverse>(a[k], v[k]);
    before[0] = carry;
    for (int k = 0; k < N; ++k)
      before[k + 1] = fma(splat_last<Reverse>(a[k]), before[k], splat_last<Reverse>(v[k]));
    for (int k = 0; k < N; ++k) v[k] = fma(a[k], before[k], v[k]);
    in_order |= !is_finite(before[N][0]) || !all_finite<N>(v);
    if (__builtin_expect(in_order, 0)) return false;
    states = v[N - 1];
    if constexpr (What == Written::kStatesBefore)
      for (int k = 0; k < N; ++k)
        v[k] = before_or_dropped<Reverse>(args, step + k * kLanes, v[k], first && k == 0 ? Vec{} : before[k]);
    if constexpr (What != Written::kNothing) store_tile<T, Reverse, N>(out, step, v, how);
    carry = before[N];
    first = false;
    step += N * kLanes;
    return true;
  };
  auto redo = [&](int n) __attribute__((always_inline)) {
    const Redone redone = scan_again<T, G, Reverse>(args, step, step + n, carry[0], first);
    states = carry = broadcast(redone.state);
    first = false;
    step = redone.step;
  };
  scan_all<kUnrollGated>(tile, redo, args.n, step, args.n >= kLongGated<T>);

  const int rest = (int)(args.n - step);
  if (rest == 0) return step ? state_at<Reverse>(states, kLanes - 1) : args.carry;
  Vec a = load_gates_first<G, Reverse>(args, step, rest);
  if (first) a = select(first_lanes<Reverse>(1), Vec{}, a);
  Vec v = load_first<Reverse>(x, step, rest);
  const bool bad = kMayLeaveRange<G> && any_out_of_range<1>(&a);
  scan_vector<Reverse>(a, v);
  v = fma(a, carry, v);
  const double state = state_at<Reverse>(v, rest - 1);
  if (bad || !all_finite<1>(&v)) return scan_again<T, G, Reverse>(args, step, args.n, carry[0], first).state;
  if (out) {
    if (args.exclusive) {
      v = states_before<Reverse>(v, first ? Vec{} : carry);
      if (args.reset) v = select(load_mask_first<Reverse>(args.reset, step, rest), Vec{}, v);
    }
    store_first<Reverse>(out, step, v, rest);
  }
  return state;
}

template <class T, class G, bool Reverse, bool Streams, Operands Has, Written What>
void scan_gated_as(const LineArgs& args, const Lines& lines, Store how) {
  for_lines(args, lines, [&](const LineArgs& line) __attribute__((always_inline)) {
    return scan_gated_line<T, G, Reverse, Streams, Has, What>(line, how);
  });
}

template <class T, class G, bool Reverse, Operands Has, Written What>
void scan_gated_as(const LineArgs& args, const Lines& lines) {
  const Store how = how_to_store<T, Reverse>(args, lines);
  if constexpr (kIsMain<T, G>)
    if (how == Store::kCached) return scan_gated_as<T, G, Reverse, false, Has, What>(args, lines, how);
  scan_gated_as<T, G, Reverse, true, Has, What>(args, lines, how);
}

template <class T, class G, bool Reverse>
void scan_gated(const LineArgs& args, const Lines& lines) {
  if (!gamma_in_range(args)) return scan_all_in_order<T, G, Reverse>(args, lines);
  constexpr Operands kUnknown = Operands::kUnknown;
  if (!args.out)
    return scan_gated_as<T, G, Reverse, false, kUnknown, Written::kNothing>(args, lines, Store::kCached);
  if constexpr (kIsMain<T, G>) {
    if (args.gates && !args.reset)
      return args.exclusive ? scan_gated_as<T, G, Reverse, Operands::kGates, Written::kStatesBefore>(args, lines)
                            : scan_gated_as<T, G, Reverse, Operands::kGates, Written::kStates>(args, lines);
    if (args.gates && !args.exclusive)
      return scan_gated_as<T, G, Reverse, Operands::kGatesAndResets, Written::kStates>(args, lines);
  }
  return args.exclusive ? scan_gated_as<T, G, Reverse, kUnknown, Written::kStatesBefore>(args, lines)
                        : scan_gated_as<T, G, Reverse, kUnknown, Written::kStates>(args, lines);
}

// ---- all kinds ------------------------------------------------------------------------------------------------------

template <class T, bool Reverse>
void scan_lines(const LineArgs& args, const Lines& lines) {
  if (args.gates) return scan_gated<T, T, Reverse>(args, lines);
  if (!args.reset) return scan_constant<T, Reverse>(args, lines);
  for_lines(args, lines, [](const LineArgs& line) {
    return scan_between_resets<T, Reverse>(line, scan_constant<T, Reverse>, scan_gated<T, T, Reverse>);
  });
}

}  // namespace

LineScan* line_scan(int32_t dtype, int32_t gate_dtype, bool reverse) {
  LineScan* const half = gate_dtype == dtype ? half_line_scan(dtype, reverse) : nullptr;
  return half ? half : wide_line_scan(dtype, gate_dtype, reverse);
}

LineScan* wide_line_scan(int32_t dtype, int32_t gate_dtype, bool reverse) {
  return with_real_types(dtype, gate_dtype, [&](auto x, auto gate) -> LineScan* {
    using T = decltype(x);
    using G = decltype(gate);
    if constexpr (std::is_same_v<T, G>) return reverse ? scan_lines<T, true> : scan_lines<T, false>;
    else return reverse ? scan_gated<T, G, true> : scan_gated<T, G, false>;
  });
}

}  // namespace upsweep
