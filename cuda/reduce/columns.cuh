// What columns do to a state: neighbours in memory are other lines, so a thread takes one, or a vector of 16 bytes of
// them, and walks down its chunk of their steps, kSteps of them on their way at a time. x and gates are read once; each
// chunk of a column writes 17 bytes, so chunks have 128 steps at least where columns are many.
#pragma once

#include <type_traits>

#include "reduce/steps.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

// kPer neighbours of one dtype; for more than one, a vector that is aligned.
template <class T, int kPer_>
struct TypedColumns {
  using Factor = double;
  using State = double;
  static constexpr int kPer = kPer_;
  struct Held {
    T part[kPer];
  };
  static __device__ Held load(const char* at, int32_t) {
    Held held;
    if constexpr (kPer == 1) {
      held.part[0] = Typed<T>::load(at, 0);
    } else {
      union { uint4 word; Held held; } u;
      u.word = __ldcs(reinterpret_cast<const uint4*>(at));
      held = u.held;
    }
    return held;
  }
  static __device__ Held load_factor(const char* at, int32_t dtype) { return load(at, dtype); }
  static __device__ double value(const Held& held, int i) { return to_double(held.part[i]); }
  static __device__ double factor(const Held& held, int i) { return to_double(held.part[i]); }
};

template <class F, class S>
struct AnyColumns {
  using Factor = F;
  using State = S;
  static constexpr int kPer = 1;
  using Held = S;
  static __device__ S load(const char* at, int32_t dtype) { return Any<S>::load(at, dtype); }
  static __device__ F load_factor(const char* at, int32_t dtype) { return Any<F>::load(at, dtype); }
  static __device__ S value(S held, int) { return held; }
  static __device__ F factor(F held, int) { return held; }
};

template <class Columns, bool kGated, bool kResets>
struct ColumnWalk {
  using F = typename Columns::Factor;
  using S = typename Columns::State;
  static constexpr int kPer = Columns::kPer;
  using XHeld = decltype(Columns::load(nullptr, 0));
  using AHeld = decltype(Columns::load_factor(nullptr, 0));

  const Problem& p;
  const char *x, *gates, *reset;
  int64_t apart;                   // bytes between neighbours' resets
  F a[kPer], gamma[kPer];
  S b[kPer];
  uint32_t dropped = 0, zeros = 0;   // a bit for each column

  __device__ ColumnWalk(const Problem& p_, int64_t line, int64_t begin)
      : p(p_), apart(p_.reset.strides[p_.n_dims - 1]) {
    const LineIndex index(p, line);
    x = index.in(p.x);
    gates = kGated ? index.in(p.gates) : nullptr;
    reset = p.reset.data ? index.in(p.reset) : nullptr;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const LineIndex own(p, line + i);
      a[i] = one(F());
      gamma[i] = kGated ? one(F()) : gamma_of<F>(p, own);
      b[i] = begin == 0 ? initial_of<S>(p, own) : nothing(S());
    }
  }

  template <int n>
  __device__ void take(int64_t t) {
    XHeld x_held[n];
    AHeld a_held[kGated ? n : 1];
#pragma unroll
    for (int u = 0; u < n; ++u) {
      x_held[u] = Columns::load(x + (t + u) * p.x.time_stride, p.x.dtype);
      if constexpr (kGated) a_held[u] = Columns::load_factor(gates + (t + u) * p.gates.time_stride, p.gates.dtype);
    }
#pragma unroll
    for (int u = 0; u < n; ++u) {
      const bool alone = kGated && t + u == 0 && !p.initial.data;   // the first gate meets no state
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const S own = Columns::value(x_held[u], i);
        F by = gamma[i];
        if constexpr (kGated) by = Columns::factor(a_held[u], i);
        const bool drop = kResets && reset && reset[(t + u) * p.reset.time_stride + i * apart];
        b[i] = drop || alone ? own : advance(by, b[i], own);
        if constexpr (kGated || kResets) a[i] = drop ? zero(F()) : product(by, a[i]);
        if constexpr (kGated) zeros |= uint32_t(is_zero(by)) << i;
        if constexpr (kResets) dropped |= uint32_t(drop) << i;
      }
    }
  }
};

// Steps that a thread has on their way. Resets are read a byte at a time: fewer of them fit the registers.
template <class Columns, bool kGated, bool kResets>
constexpr int kStepsOf = kResets ? 16 / (Columns::kPer < 4 ? 4 : Columns::kPer) : ReduceTuning::kSteps[kGated];

// A thread for each chunk of as many neighbouring columns as it takes.
template <class Columns, bool kGated, bool kResets>
__global__ void __launch_bounds__(ReduceTuning::kThreads, ReduceTuning::kBlocks)
    reduce_columns(const __grid_constant__ Reduction r) {
  using Walk = ColumnWalk<Columns, kGated, kResets>;
  constexpr int kPer = Columns::kPer, kSteps = kStepsOf<Columns, kGated, kResets>;
  const Problem& p = r.scan;
  const int64_t pieces = p.lines / kPer, n = pieces * r.chunks;   // rows hold whole pieces
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t chunk = i / pieces, line = (i - chunk * pieces) * kPer;
    const int64_t begin = chunk * r.chunk, end = min(begin + r.chunk, p.length);
    Walk walk(p, line, begin);
    int64_t t = begin;
    for (; t + kSteps <= end; t += kSteps) walk.template take<kSteps>(t);
    for (; t < end; ++t) walk.template take<1>(t);
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      if constexpr (!kGated && !kResets) walk.a[k] = power(walk.gamma[k], static_cast<uint32_t>(end - begin));
      keep_effect(r, line + k, chunk, Effect<typename Walk::F, typename Walk::S>{walk.a[k], walk.b[k]},
                  walk.dropped >> k & 1, kGated ? walk.zeros >> k & 1 : is_zero(walk.gamma[k]));
    }
  }
}

}  // namespace upsweep
