// How a line's elements are reached: Contiguous (a vector of one dtype in one instruction) and Strided (anything).
//
// Both count positions in scan order. Contiguous begins `phase` positions early, where out is aligned to a vector, so
// that every store but the first and the last is a whole one. Positions outside the line read as x = -0 and a gate of
// 1, which change no state. The first gate of a line without an initial state reads as 1 too: it is not used.
#pragma once

#include "common/elements.cuh"
#include "scan/problem.hpp"

namespace upsweep {

// Where a line begins in each array. Mostly all axes are merged into one, and nothing is to be divided.
struct LineIndex {
  const Problem& p;
  int64_t line;

  __device__ LineIndex(const Problem& p_, int64_t line_) : p(p_), line(line_) {}
  __device__ char* in(const View& view) const {
    return view.data + (p.n_dims <= 1 ? line * view.strides[0] : offset(p, view, line));
  }
  static __device__ __noinline__ int64_t offset(const Problem& p, const View& view, int64_t line) {
    int64_t offset = 0;
#pragma unroll 1
    for (int dim = p.n_dims - 1; dim > 0; --dim) {
      if ((line | p.shape[dim]) >> 32 == 0) {   // a 64-bit division takes a hundred instructions
        offset += static_cast<uint32_t>(line) % static_cast<uint32_t>(p.shape[dim]) * view.strides[dim];
        line = static_cast<uint32_t>(line) / static_cast<uint32_t>(p.shape[dim]);
      } else {
        offset += line % p.shape[dim] * view.strides[dim];
        line /= p.shape[dim];
      }
    }
    return offset + line * view.strides[0];
  }
};

template <class S>
__device__ inline S gamma_of(const Problem& p, const LineIndex& index) {
  if (p.gamma.data) return Any<S>::load(index.in(p.gamma), p.gamma.dtype);
  return from_parts(S(), p.gamma_re, p.gamma_im);
}

// The state before the first step, or one that adds nothing.
template <class S>
__device__ inline S initial_of(const Problem& p, const LineIndex& index) {
  return p.initial.data ? Any<S>::load(index.in(p.initial), p.initial.dtype) : nothing(S());
}

// A state is float32 or float64 wide whatever the elements are (plan/scan.cpp checks it): few cases to compile in.
__device__ inline void store_state(char* at, int32_t dtype, double v) {
  if (dtype == UPSWEEP_FLOAT64) write(at, v);
  else write(at, from_double<float>(v));
}
__device__ inline void store_state(char* at, int32_t dtype, Complex v) { Any<Complex>::store(at, dtype, v); }
__device__ inline void store_state(char* at, int32_t dtype, uint64_t v) { Any<uint64_t>::store(at, dtype, v); }

// A bit for each of n neighbours from time t on, of a line with times from `lower` on and before `length`: the resets.
template <int n>
__device__ inline uint32_t drops_of(const char* reset, int64_t stride, int t, int lower, int length) {
  uint32_t drops = 0;
#pragma unroll
  for (int i = 0; i < n; ++i)
    if (t + i >= lower && t + i < length && reset[(t + i) * stride]) drops |= 1u << i;
  return drops;
}

template <class T, bool kReverse>
struct Contiguous {
  using State = double;
  using Raw = T;
  using Local = decltype(local_of(T()));
  static constexpr int kVec = 16 / sizeof(T), kPer = kVec, kUnroll = 1, kUnrollEnds = 1, kSubruns = 1;
  static constexpr bool kHeld = true, kInPlace = false, kSimple = false;

  const T* x;
  const T* gates;
  T* out;
  const char* reset;
  int64_t reset_stride;
  int length;
  int phase;
  static constexpr bool starts = true;
  bool x_aligned, gates_aligned, first_gate;

  static __device__ int offset_of(const void* at) { return reinterpret_cast<uintptr_t>(at) / sizeof(T) % kVec; }
  __device__ int phase_of(const void* at) const {
    return kReverse ? (kVec - (offset_of(at) + static_cast<uint32_t>(length)) % kVec) % kVec : offset_of(at);
  }
  __device__ T* lowest(const View& view, const LineIndex& index) const {
    T* first = reinterpret_cast<T*>(index.in(view));
    return kReverse ? first - (length - 1) : first;
  }

  __device__ Contiguous(const Problem& p, const LineIndex& index) : length(static_cast<int>(p.length)) {
    x = lowest(p.x, index);
    out = lowest(p.out, index);
    gates = p.gates.data ? lowest(p.gates, index) : nullptr;
    phase = phase_of(out);
    x_aligned = phase_of(x) == phase;
    gates_aligned = gates && phase_of(gates) == phase;
    first_gate = p.initial.data != nullptr;
    reset = p.reset.data ? index.in(p.reset) : nullptr;
    reset_stride = p.reset.time_stride;
  }

  template <bool kGated>
  __device__ void fetch_again(int) const {}
  // Index in scan order.
  __device__ int time(int position) const { return position - phase; }
  __device__ bool begins(int position) const { return position == 0; }
  __device__ bool is_first(int t) const { return t <= 0; }
  // Where a vector begins in memory.
  __device__ int memory(int t) const { return kReverse ? length - kVec - t : t; }
  static __device__ Local value(T raw) { return local_of(raw); }

  // Whether `n` positions from `position` on are all in the line, and come as vectors.
  __device__ bool whole(int position, int n) const {
    return position >= phase && position + n <= positions() && x_aligned && (!gates || gates_aligned);
  }
  __device__ int positions() const { return length + phase; }

  // A vector, or elements that change no state. No branch, so that several are on their way before one is waited for.
  __device__ void read_vector(const T* from, bool aligned, int at, T (&v)[kVec], double outside) const {
    union { uint4 word; T part[kVec]; } u;
#pragma unroll
    for (int i = 0; i < kVec; ++i) u.part[i] = from_double<T>(outside);
    if (aligned && at >= 0 && at + kVec <= length) u.word = __ldcs(reinterpret_cast<const uint4*>(from + at));
#pragma unroll
    for (int i = 0; i < kVec; ++i) v[i] = u.part[kReverse ? kVec - 1 - i : i];
  }
  // An array that is aligned otherwise than out (gates read a step ahead, say) comes an element at a time, and so do
  // the vectors at a line's ends.
  __device__ void read_rest(const T* from, bool aligned, int at, T (&v)[kVec]) const {
    if (aligned && at >= 0 && at + kVec <= length) return;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const int m = at + (kReverse ? kVec - 1 - i : i);
      if (m >= 0 && m < length) v[i] = from[m];
    }
  }

  // Together they load a lane's elements; the second is needed of positions that are not whole(), and of a line's first gate.
  template <bool kGated>
  __device__ void fetch_vectors(int position, T (&x_out)[kVec], T (&a_out)[kGated ? kVec : 1]) const {
    const int at = memory(time(position));
    read_vector(x, x_aligned, at, x_out, -0.0);
    if constexpr (kGated) read_vector(gates, gates_aligned, at, a_out, 1.0);
  }
  template <bool kGated>
  __device__ void fetch_rest(int position, T (&x_out)[kVec], T (&a_out)[kGated ? kVec : 1]) const {
    const int t = time(position), at = memory(t);
    read_rest(x, x_aligned, at, x_out);
    if constexpr (kGated) {
      read_rest(gates, gates_aligned, at, a_out);
      pass_first_gate(t, a_out);
    }
  }
  __device__ void pass_first_gate(int t, T (&a_out)[kVec]) const {
#pragma unroll
    for (int i = 0; i < kVec; ++i) a_out[i] = t + i == 0 && !first_gate ? from_double<T>(1.0) : a_out[i];
  }

  template <bool kGated, bool>
  __device__ void load(int position, T (&x_out)[kVec], T (&a_out)[kGated ? kVec : 1]) const {
    fetch_vectors<kGated>(position, x_out, a_out);
    fetch_rest<kGated>(position, x_out, a_out);
  }

  __device__ uint32_t load_resets(int position) const {
    return drops_of<kVec>(reset, reset_stride, time(position), 0, length);
  }

  template <bool>
  __device__ void store(int position, int, const Local (&y)[kVec]) const {
    T rounded[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) rounded[i] = from_local<T>(y[i]);
    put(position, rounded);
  }
  __device__ void put(int position, const T (&y)[kVec]) const {
    const int t = time(position), at = memory(t);
    if (t >= 0 && t + kVec <= length) {
      union { uint4 word; T part[kVec]; } whole;
#pragma unroll
      for (int i = 0; i < kVec; ++i) whole.part[kReverse ? kVec - 1 - i : i] = y[i];
      __stcs(reinterpret_cast<uint4*>(out + at), whole.word);
      return;
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (t + i >= 0 && t + i < length) out[at + (kReverse ? kVec - 1 - i : i)] = y[i];
  }
};

// Vectors of 16 bytes in shared memory that a warp needs for a tile's elements, besides those of its results.
template <class Line, bool kGated>
constexpr int kStageVectors = (kGated ? 2 : 1) * Line::kWarpVectors;

template <class S>
struct Strided {
  using State = S;
  using Raw = S;
  using Local = S;
  static constexpr int kVec = kStridedElements, kPer = kVec, kUnroll = 1, kUnrollEnds = 1, kSubruns = 1;
  static constexpr bool kHeld = true, kInPlace = false, kSimple = false;
  static constexpr int kWarpVectors = 0;   // nothing is staged

  int base;

  const char *x, *gates, *reset;
  char* out;
  int64_t x_stride, gates_stride, reset_stride, out_stride;
  int length;
  int32_t x_dtype, gates_dtype, out_dtype;
  bool first_gate, starts;

  // From position `origin` on.
  __device__ Strided(const Problem& p, const LineIndex& index, int64_t origin = 0)
      : x_stride(p.x.time_stride), gates_stride(p.gates.time_stride), reset_stride(p.reset.time_stride),
        out_stride(p.out.time_stride), length(static_cast<int>(min(p.length - origin, int64_t(kMostSteps)))),
        x_dtype(p.x.dtype), gates_dtype(p.gates.dtype), out_dtype(p.out.dtype) {
    x = index.in(p.x) + origin * x_stride;
    out = index.in(p.out) + origin * out_stride;
    gates = p.gates.data ? index.in(p.gates) + origin * gates_stride : nullptr;
    starts = origin == 0;
    first_gate = p.initial.data != nullptr;
    reset = p.reset.data ? index.in(p.reset) + origin * reset_stride : nullptr;
  }

  __device__ int positions() const { return length; }
  __device__ int time(int position) const { return position; }
  __device__ bool begins(int position) const { return starts && position == 0; }
  __device__ bool is_first(int t) const { return starts && t <= 0; }
  static __device__ S value(S raw) { return raw; }

  __device__ bool whole(int, int) const { return false; }

  template <bool kGated>
  __device__ void fetch(int, int, int) const {}
  template <bool kGated>
  __device__ void fetch_again(int) const {}
  __device__ void flush(int, bool, int) const {}

  template <bool kGated, bool kWhole>
  __device__ void load(int t, S (&x_out)[kVec], S (&a_out)[kGated ? kVec : 1]) const {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const bool inside = t + i < length;
      x_out[i] = inside ? Any<S>::load(x + (t + i) * x_stride, x_dtype) : nothing(S());
      if constexpr (kGated)
        a_out[i] = inside && (t + i > 0 || !starts || first_gate)
                       ? Any<S>::load(gates + (t + i) * gates_stride, gates_dtype)
                       : one(S());
    }
  }

  __device__ uint32_t load_resets(int t) const {
    return reset ? drops_of<kVec>(reset, reset_stride, t, 0, length) : 0;
  }

  template <bool kWhole>
  __device__ void store(int t, int, const S (&y)[kVec]) const {
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (t + i < length) Any<S>::store(out + (t + i) * out_stride, out_dtype, y[i]);
  }
};

}  // namespace upsweep
