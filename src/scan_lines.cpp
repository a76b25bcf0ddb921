// LINES: a scan along contiguous memory.
//
//   y[t] = a[t] * y[t-1] + x[t]
//
// Bytes an element: one read of x (and of the gates), one write of y. Arithmetic for kLanes elements: log2(kLanes)
// shifts and fused multiply-adds inside the vector, one more to add the carry, and one of latency from vector
// to vector; a plain loop would wait for a multiply-add at every element.
//
// Products of gates are what may go wrong: they overflow or vanish where the loop would not. So a tile whose
// state is no longer finite, or whose gates leave [kGateLow, kGateHigh], is run again as the plain loop,
// which is also what defines the answer. A NaN or an infinity always reaches the tile's last state here,
// because nothing in the vector form is ever dropped: a dropped state is a product with zero.
//
// Called by the drivers (scan_driver.cpp), for a whole line or for a block of it.

#include "scan.hpp"
#include "vec.hpp"

namespace upsweep {
namespace {

constexpr int kUnroll = 4;   // vectors in flight: covers the latency of shift and multiply-add

// ---- addressing in scan order ---------------------------------------------------------------------------------

template <bool Reverse, class T>
inline T* vector_at(T* base, int64_t step) {
  return Reverse ? base - step - (kLanes - 1) : base + step;
}
template <bool Reverse, class T>
inline T& element_at(T* base, int64_t step) {
  return Reverse ? base[-step] : base[step];
}

// The first `count` steps of a vector; the other lanes are zero.
template <bool Reverse, class T>
inline Vec load_first(const T* base, int64_t step, int count) {
  if constexpr (!Reverse) {
    return load_some(base + step, count);
  } else {
    T some[kLanes] = {};
    std::memcpy(some + kLanes - count, base - step - (count - 1), count * sizeof(T));
    return load(some);
  }
}
template <bool Reverse>
inline Mask load_mask_first(const uint8_t* base, int64_t step, int count) {
  uint8_t some[kLanes] = {};
  std::memcpy(some + (Reverse ? kLanes - count : 0), Reverse ? base - step - (count - 1) : base + step, count);
  return load_mask(some);
}
template <bool Reverse, class T>
inline void store_first(T* base, int64_t step, Vec v, int count) {
  if constexpr (!Reverse) {
    store_some(base + step, v, count);
  } else {
    T some[kLanes];
    store(some, v);
    std::memcpy(base - step - (count - 1), some + kLanes - count, count * sizeof(T));
  }
}

// The mask of the lanes that hold the first `count` steps.
template <bool Reverse>
inline Mask first_lanes(int count) {
  Mask mask;
  for (int lane = 0; lane < kLanes; ++lane) mask[lane] = (Reverse ? kLanes - 1 - lane : lane) < count ? -1 : 0;
  return mask;
}

template <bool Reverse>
constexpr int lane_of(int step) { return Reverse ? kLanes - 1 - step : step; }

// Streaming needs every vector of the line aligned; the line's start says it for all of them.
template <class T, bool Reverse>
inline Store how_to_store(const LineArgs& args) {
  if (!args.stream || args.out == nullptr) return Store::kCached;
  const uintptr_t address = (uintptr_t)vector_at<Reverse>((T*)args.out, 0);
  if (address % (kLanes * sizeof(T)) == 0) return Store::kStreamVector;
  return address % 16 == 0 && kLanes * sizeof(T) % 16 == 0 ? Store::kStream16 : Store::kCached;
}

// y[t] = c before step t: the states one step later, the carry in front, nothing where the state was dropped.
template <bool Reverse>
inline Vec states_before(Vec states, Vec carry) { return shift<1, Reverse>(states, carry); }

// ---- constant gamma ---------------------------------------------------------------------------------------------

// gamma^1, ^2, ^4, for the steps inside a vector, each lane's own power, and the power of a whole vector.
struct Powers {
  Vec steps[3];
  Vec zero;     // gamma * zero + x is x, its sign included when it is a zero itself
  Vec lanes;
  Vec vector;
};

template <bool Reverse>
inline Powers powers_of(double gamma) {
  Powers p;
  p.zero = broadcast(gamma < 0.0 ? 0.0 : -0.0);
  double power = gamma, walk = gamma;
  for (int k = 0; k < 3; ++k, power *= power) p.steps[k] = broadcast(power);
  for (int step = 0; step < kLanes; ++step, walk *= gamma) p.lanes[lane_of<Reverse>(step)] = walk;
  p.vector = broadcast(p.lanes[lane_of<Reverse>(kLanes - 1)]);
  return p;
}

template <bool Reverse>
inline Vec scan_vector(Vec v, const Powers& p) {
  v = fma(p.steps[0], shift<1, Reverse>(v, p.zero), v);
  if constexpr (kLanes >= 4) v = fma(p.steps[1], shift<2, Reverse>(v, broadcast(-0.0)), v);
  if constexpr (kLanes >= 8) v = fma(p.steps[2], shift<4, Reverse>(v, broadcast(-0.0)), v);
  return v;
}

// ---- the plain loop -----------------------------------------------------------------------------------------------

template <class T, class G, bool Reverse>
double scan_in_order(const LineArgs& args, int64_t from, int64_t to, double state, bool first) {
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

// ---- scan, constant gamma, no resets ----------------------------------------------------------------------------

template <class T, bool Reverse>
double scan_constant(const LineArgs& args) {
  const double gamma = args.gamma, size = __builtin_fabs(gamma);
  if (!(gamma == 0.0 || (size >= kGateLow && size <= kGateHigh)))
    return scan_in_order<T, T, Reverse>(args, 0, args.n, args.carry, args.first);

  const Powers powers = powers_of<Reverse>(gamma);
  const T* x = (const T*)args.x;
  T* out = (T*)args.out;
  const Store how = how_to_store<T, Reverse>(args);
  // Without a state before it, the first step adds gamma * 0.
  Vec carry = args.first ? powers.zero : broadcast(args.carry);
  bool first = args.first;
  int64_t step = 0;

  auto tile = [&]<int N>(std::integral_constant<int, N>) __attribute__((always_inline)) {
    Vec v[N];
    for (int k = 0; k < N; ++k) v[k] = load(vector_at<Reverse>(x, step + k * kLanes));
    for (int k = 0; k < N; ++k) v[k] = scan_vector<Reverse>(v[k], powers);
    Vec next = carry, before[N];
    for (int k = 0; k < N; ++k) {
      const Vec last = splat_last<Reverse>(v[k]);
      v[k] = fma(powers.lanes, next, v[k]);
      before[k] = next;
      next = fma(powers.vector, next, last);
    }
    if (__builtin_expect(!is_finite(next[0]), 0)) {
      carry = broadcast(scan_in_order<T, T, Reverse>(args, step, step + N * kLanes, carry[0], first));
    } else if (out) {
      if (args.exclusive)
        for (int k = 0; k < N; ++k) v[k] = states_before<Reverse>(v[k], before[k]);
      for (int k = 0; k < N; ++k) store(vector_at<Reverse>(out, step + k * kLanes), v[k], how);
      carry = next;
    } else {
      carry = next;
    }
    first = false;
    step += N * kLanes;
  };
  while (step + kUnroll * kLanes <= args.n) tile(std::integral_constant<int, kUnroll>{});
  while (step + kLanes <= args.n) tile(std::integral_constant<int, 1>{});
  if (how != Store::kCached) end_stream();

  const int rest = (int)(args.n - step);
  if (rest == 0) return carry[0];
  Vec v = fma(powers.lanes, carry, scan_vector<Reverse>(load_first<Reverse>(x, step, rest), powers));
  double state = 0.0;
  for (int lane = 0; lane < kLanes; ++lane)   // a variable index would send v through memory
    state = lane == lane_of<Reverse>(rest - 1) ? v[lane] : state;
  if (!is_finite(state)) return scan_in_order<T, T, Reverse>(args, step, args.n, carry[0], first);
  if (out) store_first<Reverse>(out, step, args.exclusive ? states_before<Reverse>(v, carry) : v, rest);
  return state;
}

// ---- scan, gates or resets ----------------------------------------------------------------------------------------

// (a, v) of a vector: v[k] is the scan of the vector alone, a[k] the product of its gates up to k.
template <bool Reverse>
inline void scan_vector(Vec& a, Vec& v) {
  const Vec one = broadcast(1.0), zero = broadcast(-0.0);
  v = fma(a, shift<1, Reverse>(v, zero), v);
  a = a * shift<1, Reverse>(a, one);
  if constexpr (kLanes >= 4) {
    v = fma(a, shift<2, Reverse>(v, zero), v);
    a = a * shift<2, Reverse>(a, one);
  }
  if constexpr (kLanes >= 8) {
    v = fma(a, shift<4, Reverse>(v, zero), v);
    a = a * shift<4, Reverse>(a, one);
  }
}

// Gates as the vector form wants them: zero where the state is dropped.
template <class G, bool Reverse>
inline Vec load_gates(const LineArgs& args, int64_t step) {
  Vec a = args.gates ? load(vector_at<Reverse>((const G*)args.gates, step)) : broadcast(args.gamma);
  if (args.reset) a = select(load_mask(vector_at<Reverse>(args.reset, step)), Vec{}, a);
  return a;
}
template <class G, bool Reverse>
inline Vec load_gates_first(const LineArgs& args, int64_t step, int count) {
  Vec a = args.gates ? load_first<Reverse>((const G*)args.gates, step, count) : broadcast(args.gamma);
  if (args.reset) a = select(load_mask_first<Reverse>(args.reset, step, count), Vec{}, a);
  return select(first_lanes<Reverse>(count), a, broadcast(1.0));
}

// Lanes whose gate is neither zero nor within the bounds. Only doubles can be: eight of the smallest floats
// multiply to 2^-1008, eight of the largest to just under 2^1024.
template <class G>
inline Mask out_of_range(Vec a) {
  const Vec size = abs(a);
  return (Mask)((size < kGateLow) | (size > kGateHigh)) & (Mask)(a != 0.0);
}
inline bool any(Mask mask) {
  int64_t all = 0;
  for (int lane = 0; lane < kLanes; ++lane) all |= mask[lane];
  return all != 0;
}
template <class G>
constexpr bool kMayLeaveRange = sizeof(G) == 8;

inline bool gamma_in_range(const LineArgs& args) {
  const double size = __builtin_fabs(args.gamma);
  return args.gates || args.gamma == 0.0 || (size >= kGateLow && size <= kGateHigh);
}

template <class T, class G, bool Reverse>
double scan_gated(const LineArgs& args) {
  if (!gamma_in_range(args))
    return scan_in_order<T, G, Reverse>(args, 0, args.n, args.carry, args.first);
  const T* x = (const T*)args.x;
  T* out = (T*)args.out;
  const Store how = how_to_store<T, Reverse>(args);
  Vec carry = broadcast(args.first ? -0.0 : args.carry);
  bool first = args.first;
  int64_t step = 0;

  auto tile = [&]<int N>(std::integral_constant<int, N>) __attribute__((always_inline)) {
    Vec a[N], v[N];
    Mask bad = {};
    for (int k = 0; k < N; ++k) {
      v[k] = load(vector_at<Reverse>(x, step + k * kLanes));
      a[k] = load_gates<G, Reverse>(args, step + k * kLanes);
    }
    if (first) a[0] = select(first_lanes<Reverse>(1), Vec{}, a[0]);
    for (int k = 0; k < N; ++k) {
      if constexpr (kMayLeaveRange<G>) bad |= out_of_range<G>(a[k]);
    }
    for (int k = 0; k < N; ++k) scan_vector<Reverse>(a[k], v[k]);
    Vec next = carry, before[N];
    for (int k = 0; k < N; ++k) {
      const Vec last_a = splat_last<Reverse>(a[k]), last_v = splat_last<Reverse>(v[k]);
      v[k] = fma(a[k], next, v[k]);
      before[k] = next;
      next = fma(last_a, next, last_v);
    }
    bool in_order = !is_finite(next[0]);
    if constexpr (kMayLeaveRange<G>) in_order |= any(bad);
    if (__builtin_expect(in_order, 0)) {
      carry = broadcast(scan_in_order<T, G, Reverse>(args, step, step + N * kLanes, carry[0], first));
    } else {
      if (out) {
        if (args.exclusive)
          for (int k = 0; k < N; ++k) {
            v[k] = states_before<Reverse>(v[k], before[k]);
            if (args.reset)
              v[k] = select(load_mask(vector_at<Reverse>(args.reset, step + k * kLanes)), Vec{}, v[k]);
          }
        for (int k = 0; k < N; ++k) store(vector_at<Reverse>(out, step + k * kLanes), v[k], how);
      }
      carry = next;
    }
    first = false;
    step += N * kLanes;
  };
  while (step + kUnroll * kLanes <= args.n) tile(std::integral_constant<int, kUnroll>{});
  while (step + kLanes <= args.n) tile(std::integral_constant<int, 1>{});
  if (how != Store::kCached) end_stream();

  const int rest = (int)(args.n - step);
  if (rest == 0) return carry[0];
  Vec a = load_gates_first<G, Reverse>(args, step, rest);
  if (first) a = select(first_lanes<Reverse>(1), Vec{}, a);
  Vec v = load_first<Reverse>(x, step, rest);
  const bool bad = kMayLeaveRange<G> && any(out_of_range<G>(a));
  scan_vector<Reverse>(a, v);
  v = fma(a, carry, v);
  double state = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) state = lane == lane_of<Reverse>(rest - 1) ? v[lane] : state;
  if (bad || !is_finite(state)) return scan_in_order<T, G, Reverse>(args, step, args.n, carry[0], first);
  if (out) {
    if (args.exclusive) {
      v = states_before<Reverse>(v, carry);
      if (args.reset) v = select(load_mask_first<Reverse>(args.reset, step, rest), Vec{}, v);
    }
    store_first<Reverse>(out, step, v, rest);
  }
  return state;
}

// ---- reduce: what a block does to the state before it ---------------------------------------------------------------

template <class T, bool Reverse>
Reduced reduce_constant(const LineArgs& args) {
  const double gamma = args.gamma, size = __builtin_fabs(gamma);
  Reduced result{__builtin_pow(gamma, (double)args.n), 0.0, size, size, !gamma_in_range(args)};
  if (result.in_order) return result;
  const T* x = (const T*)args.x;
  // Each lane is a Horner scheme of its own in gamma^(kUnroll * kLanes).
  constexpr int kTile = kUnroll * kLanes;
  const Powers powers = powers_of<Reverse>(gamma);
  double tile_power = powers.vector[0];
  for (int k = 1; k < kUnroll; k *= 2) tile_power *= tile_power;
  const Vec factor = broadcast(tile_power);
  Vec sums[kUnroll];
  for (Vec& sum : sums) sum = broadcast(-0.0);
  int64_t step = 0;
  for (; step + kTile <= args.n; step += kTile)
    for (int k = 0; k < kUnroll; ++k)
      sums[k] = fma(sums[k], factor, load(vector_at<Reverse>(x, step + k * kLanes)));
  Vec sum = sums[0];
  for (int k = 1; k < kUnroll; ++k) sum = fma(sum, powers.vector, sums[k]);
  double value = sum[lane_of<Reverse>(0)];
  for (int k = 1; k < kLanes; ++k) value = fma(gamma, value, sum[lane_of<Reverse>(k)]);
  for (; step < args.n; ++step) value = fma(gamma, value, to_double(element_at<Reverse>(x, step)));
  result.value = value;
  return result;
}

template <class T, class G, bool Reverse>
Reduced reduce_gated(const LineArgs& args) {
  Reduced result{1.0, 0.0, 1.0, 1.0, !gamma_in_range(args)};
  if (result.in_order) return result;
  const T* x = (const T*)args.x;
  Vec smallest = broadcast(__builtin_inf()), largest = {};
  Vec product = broadcast(1.0), value = broadcast(-0.0);
  Mask bad = {};
  bool first = args.first;
  auto vectors = [&]<int N>(std::integral_constant<int, N>, Vec* a, Vec* v) __attribute__((always_inline)) {
    if (first) a[0] = select(first_lanes<Reverse>(1), broadcast(1.0), a[0]);   // put back below
    first = false;
    for (int k = 0; k < N; ++k) {
      const Vec gate_size = abs(a[k]);
      smallest = gate_size < smallest ? gate_size : smallest;
      largest = gate_size > largest ? gate_size : largest;
      if constexpr (kMayLeaveRange<G>) bad |= out_of_range<G>(a[k]);
    }
    for (int k = 0; k < N; ++k) scan_vector<Reverse>(a[k], v[k]);
    for (int k = 0; k < N; ++k) {
      const Vec last_a = splat_last<Reverse>(a[k]);
      value = fma(last_a, value, splat_last<Reverse>(v[k]));
      product = product * last_a;
    }
  };
  int64_t step = 0;
  for (; step + kUnroll * kLanes <= args.n; step += kUnroll * kLanes) {
    Vec a[kUnroll], v[kUnroll];
    for (int k = 0; k < kUnroll; ++k) {
      v[k] = load(vector_at<Reverse>(x, step + k * kLanes));
      a[k] = load_gates<G, Reverse>(args, step + k * kLanes);
    }
    vectors(std::integral_constant<int, kUnroll>{}, a, v);
  }
  while (step < args.n) {
    const int count = args.n - step < kLanes ? (int)(args.n - step) : kLanes;
    Vec a = load_gates_first<G, Reverse>(args, step, count);
    // A zero step after the end with a gate of one leaves the state as it is.
    Vec v = load_first<Reverse>(x, step, count);
    vectors(std::integral_constant<int, 1>{}, &a, &v);
    step += count;
  }
  result.value = value[0];
  result.multiplier = product[0];
  for (int lane = 0; lane < kLanes; ++lane) {
    result.min_gate = lane && result.min_gate < smallest[lane] ? result.min_gate : smallest[lane];
    result.max_gate = lane && result.max_gate > largest[lane] ? result.max_gate : largest[lane];
  }
  result.in_order = any(bad);
  if (args.first && args.n > 0) {
    const bool dropped = args.reset && element_at<Reverse>(args.reset, 0);
    const double gate = dropped        ? 0.0
                        : args.gates ? to_double(element_at<Reverse>((const G*)args.gates, 0))
                                     : args.gamma;
    result.multiplier *= gate;
    if (gate == 0.0) result.min_gate = 0.0;
  }
  return result;
}

template <class T, bool Reverse>
double scan_line(const LineArgs& args) {
  return args.gates || args.reset ? scan_gated<T, T, Reverse>(args) : scan_constant<T, Reverse>(args);
}
template <class T, bool Reverse>
Reduced reduce_line(const LineArgs& args) {
  return args.gates || args.reset ? reduce_gated<T, T, Reverse>(args) : reduce_constant<T, Reverse>(args);
}

template <class T, bool Reverse>
LineKernels select_kernels(int32_t gate_dtype) {
  if constexpr (sizeof(T) != 8)
    if (gate_dtype == kDouble) return {scan_gated<T, double, Reverse>, reduce_gated<T, double, Reverse>};
  (void)gate_dtype;
  return {scan_line<T, Reverse>, reduce_line<T, Reverse>};
}

template <bool Reverse>
LineKernels select_kernels(int32_t dtype, int32_t gate_dtype) {
  switch (dtype) {
    case kHalf: return select_kernels<Half, Reverse>(gate_dtype);
    case kBFloat: return select_kernels<BFloat, Reverse>(gate_dtype);
    case kFloat: return select_kernels<float, Reverse>(gate_dtype);
    default: return select_kernels<double, Reverse>(gate_dtype);
  }
}

}  // namespace

LineKernels line_kernels(int32_t dtype, int32_t gate_dtype, bool reverse) {
  return reverse ? select_kernels<true>(dtype, gate_dtype) : select_kernels<false>(dtype, gate_dtype);
}

}  // namespace upsweep
