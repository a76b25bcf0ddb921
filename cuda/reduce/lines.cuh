// What lines do to a state, along memory: x and gates are read once, and of each line or chunk three numbers are written.
//
// Nobody waits for the state before a chunk, and nothing is written back, so elements go from memory straight into
// registers: neighbouring lanes take neighbouring vectors of 16 bytes, kVectors of them one after the other on their way
// at a time. What a lane's vector does is one step, and a tree of shuffles makes one step of 32: 60 instructions for 1
// KiB of gates and float32, of which an H200's processor reads 19 bytes a cycle while it issues 4. Runs of neighbours
// for each lane would need no more than a tree for several vectors, but a way through shared memory for all.
//
// Where the factor is constant, no lane needs its neighbours before the end: the vectors of a lane lie 32 apart, and it
// takes them up with one power of gamma.
#pragma once

#include "reduce/steps.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

// A lane's vector of a line, and its factors.
template <class X, class A, bool kGated>
struct LineVector {
  X x;
  A a;
};
template <class X, class A>
struct LineVector<X, A, false> {
  X x;
};
template <class T, int n>
struct Elements {
  T part[n];
};

// A line of one dtype, contiguous in memory. Vectors count in scan order from the one that holds the line's first
// element; what is outside of the line reads as x = -0 and a factor of 1, which change no state.
template <class T>
struct VectorLine {
  using Factor = double;
  using State = double;
  static constexpr int kPer = 16 / sizeof(T);

  template <bool kGated>
  using Vector = LineVector<uint4, uint4, kGated>;

  const char *x, *gates;           // the lowest address of a vector that begins at time 0
  const char* reset;
  int64_t length, reset_stride;
  double gamma;
  int phase, sign;
  bool aligned;

  __device__ VectorLine(const Reduction& r, int64_t line) {
    const Problem& p = r.scan;
    const LineIndex index(p, line);
    const char* const first = index.in(p.x);
    sign = p.x.time_stride < 0 ? -1 : 1;
    phase = upsweep::phase_of(r, first);
    const int to_lowest = sign < 0 ? (kPer - 1) * static_cast<int>(sizeof(T)) : 0;
    x = first - to_lowest;
    gates = p.gates.data ? index.in(p.gates) - to_lowest : nullptr;
    aligned = !gates || (gates - x) % 16 == 0;
    length = p.length;
    reset = p.reset.data ? index.in(p.reset) : nullptr;
    reset_stride = p.reset.time_stride;
    gamma = gates ? 1.0 : gamma_of<double>(p, index);
  }

  __device__ bool reversed() const { return sign < 0; }
  __device__ int64_t offset(int64_t t) const { return sign * t * static_cast<int64_t>(sizeof(T)); }

  __device__ uint4 read_pieces(const char* at, int64_t t, double outside) const {
    union { uint4 word; T part[kPer]; } u;
#pragma unroll
    for (int e = 0; e < kPer; ++e) {
      const int64_t time = reversed() ? t + (kPer - 1 - e) : t + e;
      u.part[e] = time >= 0 && time < length ? reinterpret_cast<const T*>(at)[e] : from_double<T>(outside);
    }
    return u.word;
  }
  template <bool kGated>
  __device__ void read(Vector<kGated>& v, int64_t t) const {
    const bool whole = t >= 0 && t + kPer <= length;
    v.x = whole ? __ldcs(reinterpret_cast<const uint4*>(x + offset(t))) : read_pieces(x + offset(t), t, -0.0);
    if constexpr (kGated)
      v.a = whole && aligned ? __ldcs(reinterpret_cast<const uint4*>(gates + offset(t)))
                             : read_pieces(gates + offset(t), t, 1.0);
  }
  // n vectors that lie 32 apart, from time t on. kWhole: all of them are in the line, and begin alike in all arrays.
  template <bool kGated, bool kWhole, int n>
  __device__ void fetch(Vector<kGated> (&v)[n], int64_t t) const {
    const int64_t at = offset(t);
    const int step = sign * 32 * 16;
#pragma unroll
    for (int u = 0; u < n; ++u) {
      if constexpr (kWhole) {
        v[u].x = __ldcs(reinterpret_cast<const uint4*>(x + at + u * step));
        if constexpr (kGated) v[u].a = __ldcs(reinterpret_cast<const uint4*>(gates + at + u * step));
      } else {
        read(v[u], t + u * (32 * kPer));
      }
    }
  }
  // Whether n vectors from time t on may be fetched so.
  __device__ bool whole(int64_t t, int n) const { return aligned && t >= 0 && t + int64_t(n) * kPer <= length; }

  // A vector's elements in scan order.
  __device__ void unpack(uint4 word, double (&v)[kPer]) const {
    if (reversed()) {
      if constexpr (sizeof(T) == 8) {
        word = {word.z, word.w, word.x, word.y};
      } else {
        word = {word.w, word.z, word.y, word.x};
        if constexpr (sizeof(T) == 2) {
          word.x = __funnelshift_l(word.x, word.x, 16);
          word.y = __funnelshift_l(word.y, word.y, 16);
          word.z = __funnelshift_l(word.z, word.z, 16);
          word.w = __funnelshift_l(word.w, word.w, 16);
        }
      }
    }
    union { uint4 word; T part[kPer]; } u;
    u.word = word;
#pragma unroll
    for (int e = 0; e < kPer; ++e) v[e] = to_double(u.part[e]);
  }
  template <bool kGated>
  __device__ void values(const Vector<kGated>& v, double (&own)[kPer]) const { unpack(v.x, own); }
  __device__ void factors(const Vector<true>& v, double (&by)[kPer]) const { unpack(v.a, by); }
};

// Any dtype, any strides, an element at a time.
template <class F, class S>
struct AnyLine {
  using Factor = F;
  using State = S;
  static constexpr int kPer = kStridedElements / 2;

  template <bool kGated>
  using Vector = LineVector<Elements<S, kPer>, Elements<F, kPer>, kGated>;

  const char *x, *gates, *reset;
  int64_t length, reset_stride, x_stride, gates_stride;
  F gamma;
  int32_t x_dtype, gates_dtype;
  static constexpr int phase = 0;

  __device__ AnyLine(const Reduction& r, int64_t line) {
    const Problem& p = r.scan;
    const LineIndex index(p, line);
    x = index.in(p.x);
    gates = p.gates.data ? index.in(p.gates) : nullptr;
    reset = p.reset.data ? index.in(p.reset) : nullptr;
    length = p.length;
    x_stride = p.x.time_stride;
    gates_stride = p.gates.time_stride;
    reset_stride = p.reset.time_stride;
    x_dtype = p.x.dtype;
    gates_dtype = p.gates.dtype;
    gamma = gates ? one(F()) : gamma_of<F>(p, index);
  }

  template <bool kGated, bool, int n>
  __device__ void fetch(Vector<kGated> (&v)[n], int64_t t) const {
#pragma unroll
    for (int u = 0; u < n; ++u) {
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        const int64_t time = t + u * (32 * kPer) + e;
        const bool inside = time < length;
        v[u].x.part[e] = inside ? Any<S>::load(x + time * x_stride, x_dtype) : nothing(S());
        if constexpr (kGated)
          v[u].a.part[e] = inside ? Any<F>::load(gates + time * gates_stride, gates_dtype) : one(F());
      }
    }
  }
  __device__ bool whole(int64_t, int) const { return false; }

  template <bool kGated>
  __device__ void values(const Vector<kGated>& v, S (&own)[kPer]) const {
#pragma unroll
    for (int e = 0; e < kPer; ++e) own[e] = v.x.part[e];
  }
  __device__ void factors(const Vector<true>& v, F (&by)[kPer]) const {
#pragma unroll
    for (int e = 0; e < kPer; ++e) by[e] = v.a.part[e];
  }
};

// Vectors that a lane has on their way at a time.
template <class Line, bool kGated>
constexpr int kVectorsOf = ReduceTuning::kVectors[kGated];
template <class F, class S, bool kGated>
constexpr int kVectorsOf<AnyLine<F, S>, kGated> = ReduceTuning::kAnyVectors;

// The same where each is another line's.
template <class Line>
constexpr int kShortVectorsOf = ReduceTuning::kShortVectors;
template <class F, class S>
constexpr int kShortVectorsOf<AnyLine<F, S>> = ReduceTuning::kAnyVectors;

// A bit for each of a vector's elements that drops the state before it.
template <class Line>
__device__ inline uint32_t drops_of_vector(const Line& line, int64_t t) {
  uint32_t drops = 0;
#pragma unroll
  for (int e = 0; e < Line::kPer; ++e)
    if (line.reset && t + e >= 0 && t + e < line.length && line.reset[(t + e) * line.reset_stride]) drops |= 1u << e;
  return drops;
}

// What a vector does that begins at time t.
template <bool kGated, bool kResets, bool kWhole, class Line>
__device__ inline Effect<typename Line::Factor, typename Line::State> effect_of_vector(
    const Line& line, const typename Line::template Vector<kGated>& v, int64_t t, uint32_t drops) {
  using F = typename Line::Factor;
  using S = typename Line::State;
  S own[Line::kPer];
  F by[Line::kPer];
  line.values(v, own);
  if constexpr (kGated) {
    line.factors(v, by);
  } else {
#pragma unroll
    for (int e = 0; e < Line::kPer; ++e) by[e] = kWhole || (t + e >= 0 && t + e < line.length) ? line.gamma : one(F());
  }
  Effect<F, S> all = {by[0], own[0]};
  if (kResets && drops & 1) all.a = zero(F());
#pragma unroll
  for (int e = 1; e < Line::kPer; ++e) {
    const bool drop = kResets && drops >> e & 1;
    all.b = drop ? own[e] : advance(by[e], all.b, own[e]);
    all.a = drop ? zero(F()) : product(by[e], all.a);
  }
  return all;
}

// In the first lane of each `width`, what all of them do one after the other. dropping: the lanes that drop.
template <bool kResets, class F, class S>
__device__ inline void fold_lanes(Effect<F, S>& own, uint32_t dropping, int lane, int width) {
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    const int by = 1 << i;
    if (by >= width) break;
    const Effect<F, S> next = {shuffle_down(own.a, by), shuffle_down(own.b, by)};
    const bool drop = kResets && lane + by < 32 && (dropping >> (lane + by) & ((1u << by) - 1));
    own.b = drop ? next.b : advance(next.a, own.b, next.b);
    own.a = drop ? zero(F()) : product(next.a, own.a);
  }
}

// What a warp has of its chunk; in its first lane.
template <class Line, bool kGated, bool kResets>
struct ChunkOfLine {
  using F = typename Line::Factor;
  using S = typename Line::State;
  static constexpr int kPer = Line::kPer, kVectors = kVectorsOf<Line, kGated>;

  Effect<F, S> all;
  bool empty;                      // there is no state before what comes next
  bool dropped = false;
  bool has_zero = false;           // of this lane

  // initial: whether there is a state that the line begins with.
  __device__ ChunkOfLine(const Problem& p, int64_t row, bool initial) : empty(!initial) {
    all = {one(F()), initial ? initial_of<S>(p, LineIndex(p, row)) : nothing(S())};
  }

  // What the warp does next. Nothing is multiplied by its factor, were it infinite or no number, where nothing was.
  __device__ void add(Effect<F, S> next, bool drops) {
    all.b = drops || empty ? next.b : advance(next.a, all.b, next.b);
    all.a = drops ? zero(F()) : product(next.a, all.a);
    dropped = dropped || drops;
    empty = false;
  }

  // As many vectors for each lane as there are up to time `end`.
  template <bool kWhole>
  __device__ void take(const Line& line, int64_t begin, int64_t end, int lane) {
    typename Line::template Vector<kGated> v[kVectors];
    const int64_t t = begin + lane * kPer;
    line.template fetch<kGated, kWhole>(v, t);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (!kWhole && begin + u * (32 * kPer) >= end) break;
      const int64_t at = t + u * (32 * kPer);
      const uint32_t drops = kResets ? drops_of_vector(line, at) : 0;
      Effect<F, S> next = effect_of_vector<kGated, kResets, kWhole>(line, v[u], at, drops);
      has_zero = has_zero || is_zero(next.a);
      const uint32_t dropping = kResets ? __ballot_sync(0xffffffffu, drops != 0) : 0;
      fold_lanes<kResets>(next, dropping, lane, 32);
      add(next, dropping);
    }
  }
};

// Whole vectors under one factor: each lane's own, `strides` apart, then those of all lanes.
template <class Line>
struct ConstantFactor {
  static constexpr int kPer = Line::kPer, kVectors = kVectorsOf<Line, false>;
  double of_vector, of_lanes, sum = -0.0;
  uint32_t n = 0;

  __device__ explicit ConstantFactor(double gamma) : of_vector(power(gamma, kPer)), of_lanes(power(of_vector, 32)) {}
  __device__ void take(const Line& line, int64_t t) {
    typename Line::template Vector<false> v[kVectors];
    line.template fetch<false, true>(v, t);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      double own[kPer];
      line.values(v[u], own);
      double all = own[0];
#pragma unroll
      for (int e = 1; e < kPer; ++e) all = fma(line.gamma, all, own[e]);
      sum = fma(of_lanes, sum, all);
    }
    n += kVectors;
  }
  __device__ Effect<double, double> effect() const {
    double all = sum, by = of_vector;
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      all = fma(by, all, shuffle_down(all, 1 << i));
      by *= by;
    }
    return {power(of_lanes, n), all};
  }
};

template <class Line>
constexpr bool kHasWhole = false;
template <class T>
constexpr bool kHasWhole<VectorLine<T>> = true;

// A warp for each chunk of a line.
template <class Line, bool kGated, bool kResets>
__global__ void __launch_bounds__(ReduceTuning::kThreads, ReduceTuning::kBlocks)
    reduce_lines(const __grid_constant__ Reduction r) {
  using Chunk = ChunkOfLine<Line, kGated, kResets>;
  constexpr int kVectors = 32 * Chunk::kVectors;          // of a warp
  constexpr int64_t kTimes = int64_t(kVectors) * Line::kPer;
  const int lane = threadIdx.x % 32;
  const int64_t n_warps = int64_t(gridDim.x) * (blockDim.x / 32), n = r.scan.lines * r.chunks;
  for (int64_t i = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; i < n; i += n_warps) {
    const int64_t row = r.chunks == 1 ? i : i / r.chunks, chunk = i - row * r.chunks;
    const Line line(r, row);
    const int64_t begin = chunk * r.chunk * Line::kPer - line.phase;
    const int64_t end = min(begin + r.chunk * Line::kPer, line.length);
    Chunk own(r.scan, row, chunk == 0 && r.scan.initial.data);
    int64_t t = begin;
    if constexpr (kHasWhole<Line>) {
      if (t < 0) {   // a line that begins inside of a vector
        own.template take<false>(line, t, end, lane);
        t += kTimes;
      }
      if constexpr (kGated || kResets) {
        for (; t < end && line.whole(t, kVectors); t += kTimes) own.template take<true>(line, t, end, lane);
      } else if (t < end && line.whole(t, kVectors)) {
        ConstantFactor<Line> run(line.gamma);
        for (; t < end && line.whole(t, kVectors); t += kTimes) run.take(line, t + lane * Line::kPer);
        own.add(run.effect(), false);
      }
    }
    for (; t < end; t += kTimes) own.template take<false>(line, t, end, lane);
    const bool has_zero = __any_sync(0xffffffffu, own.has_zero || (!kGated && is_zero(line.gamma)));
    if (lane == 0) keep_effect(r, row, chunk, own.all, own.dropped, has_zero);
  }
}

// Lines of at most 32 vectors: r.lanes lanes for each, of as many lines at a time as a lane has vectors on their way.
template <class Line, bool kGated, bool kResets>
__global__ void __launch_bounds__(ReduceTuning::kThreads, ReduceTuning::kBlocks)
    reduce_short_lines(const __grid_constant__ Reduction r) {
  using F = typename Line::Factor;
  using S = typename Line::State;
  constexpr int kVectors = kShortVectorsOf<Line>;
  const int lane = threadIdx.x % 32, width = r.lanes, each = 32 / width;
  const int position = lane % width;
  const uint32_t group = (width == 32 ? 0xffffffffu : (1u << width) - 1u) << (lane - position);
  const int64_t n_warps = int64_t(gridDim.x) * (blockDim.x / 32);
  const int64_t n = (r.scan.lines + each * kVectors - 1) / (each * kVectors);
  for (int64_t i = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; i < n; i += n_warps) {
    const int64_t first = i * (each * kVectors) + lane / width;
    typename Line::template Vector<kGated> v[kVectors][1];
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const Line line(r, min(first + u * each, r.scan.lines - 1));
      line.template fetch<kGated, false>(v[u], position * Line::kPer - line.phase);
    }
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const int64_t row = first + u * each, held = min(row, r.scan.lines - 1);
      const Line line(r, held);
      const int64_t t = position * Line::kPer - line.phase;
      const uint32_t drops = kResets ? drops_of_vector(line, t) : 0;
      Effect<F, S> all = effect_of_vector<kGated, kResets, false>(line, v[u][0], t, drops);
      const uint32_t dropping = kResets ? __ballot_sync(0xffffffffu, drops != 0) : 0;
      fold_lanes<kResets>(all, dropping, lane, width);
      if (position == 0 && row == held) {
        const bool dropped = dropping & group;
        if (r.scan.initial.data && !dropped)
          all.b = advance(all.a, initial_of<S>(r.scan, LineIndex(r.scan, row)), all.b);
        keep_effect(r, row, 0, all, dropped, false);   // is the line's
      }
    }
  }
}

}  // namespace upsweep
