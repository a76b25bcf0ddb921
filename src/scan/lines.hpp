// What scan/lines.cpp and scan/reduce_lines.cpp share: addressing in scan order, powers of a constant gamma, gates,
// and the scan inside one vector.
#pragma once

#include "scan/scan.hpp"
#include "common/vec.hpp"

namespace upsweep {
namespace {

constexpr int kUnroll = 4;   // vectors in flight: covers the latency of shuffle and multiply-add
// The same with gates, where there are registers for it: a tenth less time, but of short lines of float64 a third more.
constexpr int kUnrollGated = kLanes >= 8 ? 8 : kUnroll;
template <class T>
constexpr int64_t kLongGated = sizeof(T) == 8 ? 128 : 0;
// Bounds within which gamma^(kUnroll * kLanes) stays normal.
constexpr double kGammaLow = 0x1p-31, kGammaHigh = 0x1p31;

// ---- addressing in scan order ---------------------------------------------------------------------------------

template <bool Reverse, class T>
inline T* vector_at(T* base, int64_t step) {
  return Reverse ? base - step - (kLanes - 1) : base + step;
}
template <bool Reverse, class T>
inline T& element_at(T* base, int64_t step) {
  return Reverse ? base[-step] : base[step];
}

// Asks for the memory of N vectors of the next block, while this one is computed from the cache.
template <bool Reverse, int N, class T>
inline void prefetch_tile(const T* base, int64_t step) {
  const char* tile = (const char*)(Reverse ? base - step - (N * kLanes - 1) : base + step);
  for (int byte = 0; byte < N * kLanes * (int)sizeof(T); byte += 64) __builtin_prefetch(tile + byte, 0, 2);
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

// Streaming needs every store of kBytes aligned: the start of the first line and the bytes from one to the next say it
// for all.
template <int kBytes>
inline Store how_to_store(const void* lowest, int64_t line_stride, bool stream) {
  if (!stream || lowest == nullptr) return Store::kCached;
  const uintptr_t address = (uintptr_t)lowest | (uintptr_t)line_stride;
  if (address % kBytes == 0) return Store::kStreamVector;
  return address % 16 == 0 && kBytes % 16 == 0 ? Store::kStream16 : Store::kCached;
}
template <class T, bool Reverse>
inline Store how_to_store(void* out, bool stream) {
  return how_to_store<kLanes * sizeof(T)>(out ? vector_at<Reverse>((T*)out, 0) : nullptr, 0, stream);
}
template <class T, bool Reverse>
inline Store how_to_store(const LineArgs& args, const Lines& lines) {
  const void* lowest = args.out ? vector_at<Reverse>((T*)args.out, 0) : nullptr;
  return how_to_store<kLanes * sizeof(T)>(lowest, lines.n > 1 ? lines.out_stride : 0, args.stream);
}

// ---- lines ------------------------------------------------------------------------------------------------------

// What a scan writes: the states, for exclusive ones the states before them, or nothing but the last one.
enum class Written { kStates, kStatesBefore, kNothing };

// Every line of `lines`, its state before and after in lines.carry. The arguments of a line are made from those of the one
// before in registers: loading them back from where a caller has just written them takes longer than a short line does.
template <class Scan>
inline __attribute__((always_inline)) void for_lines(const LineArgs& first_line, const Lines& args_, Scan scan) {
  LineArgs args = first_line;
  const Lines lines = args_;
  for (int64_t line = 0; line < lines.n; ++line) {
    args.carry = lines.carry[line];
    lines.carry[line] = scan(args);
    args.x = (const char*)args.x + lines.x_stride;
    if (args.gates) args.gates = (const char*)args.gates + lines.gates_stride;
    if (args.reset) args.reset += lines.reset_stride;
    if (args.out) args.out = (char*)args.out + lines.out_stride;
  }
}

// ---- a line without gates of its own, with resets -------------------------------------------------------------------

// Stretches without a reset take the cheaper kernel.
template <class T, bool Reverse>
double scan_between_resets(const LineArgs& args, LineScan* scan_clear, LineScan* scan_reset) {
  constexpr int64_t kStretch = 16 * kLanes;
  LineArgs part = args;
  for (int64_t step = 0; step < args.n; step += part.n) {
    auto is_clear = [&](int64_t from) {
      const int64_t n = args.n - from < kStretch ? args.n - from : kStretch;
      const uint8_t* flags = Reverse ? args.reset - from - (n - 1) : args.reset + from;
      uint8_t any_flag = 0;   // of any value: a bool seen through a view may be more than 1
      for (int64_t k = 0; k < n; ++k) any_flag |= flags[k];
      return any_flag == 0;
    };
    const bool clear = is_clear(step);
    int64_t end = step + kStretch;
    while (end < args.n && is_clear(end) == clear) end += kStretch;
    part.n = (end < args.n ? end : args.n) - step;
    part.x = &element_at<Reverse>((const T*)args.x, step);
    part.out = args.out ? &element_at<Reverse>((T*)args.out, step) : nullptr;
    part.reset = clear ? nullptr : &element_at<Reverse>(args.reset, step);
    part.carry = scan_one_line(clear ? scan_clear : scan_reset, part);
    part.first = false;
  }
  return part.carry;
}

// Narrower tokens cannot add up to what overflows a double, unless gates make them grow.
template <class T>
constexpr bool kMayOverflow = sizeof(T) == 8;

inline double largest_lane(Vec v) {
  double largest = v[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = v[lane] > largest ? v[lane] : largest;
  return largest;
}

template <bool Reverse>
constexpr int lane_of(int step) { return Reverse ? kLanes - 1 - step : step; }

inline bool gamma_in_range(const LineArgs& args) {
  const double size = __builtin_fabs(args.gamma);
  return args.gates || args.gamma == 0.0 || (size >= kGammaLow && size <= kGammaHigh);
}

// ---- constant gamma ---------------------------------------------------------------------------------------------

// The powers of gamma that carry a state across half a block of lanes, to each lane, and across vectors.
struct Powers {
  double gamma = __builtin_nan("");
  Vec halves[3];             // for the second halves of 2, 4 and 8 lanes; zero in the first
  Vec lanes;                 // gamma^(step + 1)
  Vec vectors[kUnroll + 1];  // gamma^(k * kLanes)
  Vec zero;                  // gamma * zero + x is x, its sign included when it is a zero itself
};

template <bool Reverse>
void fill_powers(Powers& p, double gamma) {
  p.gamma = gamma;
  p.zero = broadcast(gamma < 0.0 ? 0.0 : -0.0);
  double power[kLanes + 1] = {1.0};
  for (int k = 1; k <= kLanes; ++k) power[k] = power[k - 1] * gamma;
  for (int step = 0; step < kLanes; ++step) {
    p.lanes[lane_of<Reverse>(step)] = power[step + 1];
    for (int k = 0; k < 3; ++k) {
      const int half = 1 << k;
      p.halves[k][lane_of<Reverse>(step)] = step & half ? power[(step & (half - 1)) + 1] : 0.0;
    }
  }
  p.vectors[0] = broadcast(1.0);
  for (int k = 1; k <= kUnroll; ++k) p.vectors[k] = p.vectors[k - 1] * power[kLanes];
}

// Lines of one call mostly share their gamma, and a short one takes no longer than its powers do: each worker
// keeps the last ones, for either direction.
template <bool Reverse>
const Powers& powers_of(const LineArgs& args) {
  thread_local Powers cached_powers;
  Powers* powers = &cached_powers;
  // The compiler must not know where they are: it would ask for the thread's copy anew in every tile, a call around
  // which every vector register is saved and loaded again.
  asm("" : "+r"(powers));
  // As bits: 0.0 and -0.0 have other powers.
  if (__builtin_expect(std::memcmp(&powers->gamma, &args.gamma, sizeof(double)) != 0, 0))
    fill_powers<Reverse>(*powers, args.gamma);
  return *powers;
}

template <bool Reverse>
inline Vec scan_vector(Vec v, const Powers& p) {
  v = fma(p.halves[0], spread_halves<1, Reverse>(v), v);
  if constexpr (kLanes >= 4) v = fma(p.halves[1], spread_halves<2, Reverse>(v), v);
  if constexpr (kLanes >= 8) v = fma(p.halves[2], spread_halves<4, Reverse>(v), v);
  return v;
}

// ---- gates and resets ----------------------------------------------------------------------------------------

template <int Half, bool Reverse>
inline void scan_halves(Vec& a, Vec& v) {
  v = fma_second<Half, Reverse>(a, spread_halves<Half, Reverse>(v), v);
  a = multiply_second<Half, Reverse>(a, spread_halves<Half, Reverse>(a));
}

// (a, v) of a vector: v[k] is the scan of the vector alone, a[k] the product of its gates up to k.
template <bool Reverse>
inline void scan_vector(Vec& a, Vec& v) {
  scan_halves<1, Reverse>(a, v);
  if constexpr (kLanes >= 4) scan_halves<2, Reverse>(a, v);
  if constexpr (kLanes >= 8) scan_halves<4, Reverse>(a, v);
}

// (a, v) of neighbouring runs of steps, a run a lane, in scan order.
struct Runs {
  Vec a, v;
};

// Neighbouring runs combined: half as many, of twice the length. `p` comes before `q`. The first time the runs of
// the two come out interleaved, which the other times undo: in the end lane k is vector k.
template <bool Reverse, bool First>
inline Runs combine_runs(const Runs& p, const Runs& q) {
  const Runs& low = Reverse ? q : p;
  const Runs& high = Reverse ? p : q;
  const Runs even{halve<First, 0>(low.a, high.a), halve<First, 0>(low.v, high.v)};
  const Runs odd{halve<First, 1>(low.a, high.a), halve<First, 1>(low.v, high.v)};
  const Runs& before = Reverse ? odd : even;
  const Runs& after = Reverse ? even : odd;
  return {after.a * before.a, fma(after.a, before.v, after.v)};
}

// Gates as the vector form wants them: zero where the state is dropped.
// What is known of a call when its kernel is picked: gates are given, and resets too or not; or nothing.
enum class Operands { kGates, kGatesAndResets, kUnknown };

template <class G, bool Reverse, Operands What = Operands::kUnknown>
inline Vec load_gates(const LineArgs& args, int64_t step) {
  if constexpr (What != Operands::kUnknown) {
    const Vec a = load(vector_at<Reverse>((const G*)args.gates, step));
    if constexpr (What == Operands::kGates) return a;
    return select(load_mask(vector_at<Reverse>(args.reset, step)), Vec{}, a);
  }
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
inline Mask out_of_range(Vec a) {
  const Vec size = abs(a);
  return (Mask)((size < kGateLow) | (size > kGateHigh)) & (Mask)(a != 0.0);
}
template <class G>
constexpr bool kMayLeaveRange = sizeof(G) == 8;

// The same of N vectors. How far each is above the lower bound, as bits, shows all but the zeros in one comparison;
// they are distinguished when there are any.
template <int N>
inline bool any_out_of_range(const Vec* a) {
  constexpr uint64_t kLow = (uint64_t)(1023 - 127) << 52, kSpan = (uint64_t)(2 * 127) << 52;   // kGateLow to kGateHigh
  Bits furthest = (Bits)abs(a[0]) - kLow;
  for (int k = 1; k < N; ++k) furthest = max((Bits)abs(a[k]) - kLow, furthest);
  if (__builtin_expect(!any((Mask)(furthest > kSpan)), 1)) return false;
  Mask out_of_range_any = {};
  for (int k = 0; k < N; ++k) out_of_range_any |= out_of_range(a[k]);
  return any(out_of_range_any);
}


}  // namespace
}  // namespace upsweep
