// What chunks of a line do to a state, and what is left of a line when they are joined.
//
// A chunk's effect is that of a step: a state s becomes a * s + b, or b where it drops s. Effects are found without the
// state, so a product of gates may leave float64's range where no state does. An effect that cannot be trusted with the
// state it meets (see is_doubtful) is left aside, and its steps are processed in order by one thread: slow and right.
//
// Factors may be real where states are complex.
#pragma once

#include "common/line_access.cuh"
#include "reduce/problem.hpp"

namespace upsweep {

template <class F, class S>
struct Effect {
  F a;
  S b;
};

__device__ inline Complex advance(double a, Complex s, Complex b) {
  return {fma(a, s.re, b.re), fma(a, s.im, b.im)};
}

__device__ inline double shuffle_down(double v, int by) { return __shfl_down_sync(0xffffffffu, v, by); }
__device__ inline Complex shuffle_down(Complex v, int by) { return {shuffle_down(v.re, by), shuffle_down(v.im, by)}; }
__device__ inline uint64_t shuffle_down(uint64_t v, int by) {
  return __shfl_down_sync(0xffffffffu, static_cast<unsigned long long>(v), by);
}

__device__ inline double size_of(double v) { return fabs(v); }
__device__ inline double size_of(Complex v) { return fmax(fabs(v.re), fabs(v.im)); }

// Whether what a chunk does to `before` may not be what its steps do: the result is not finite, or all that is left of
// a large state was below the smallest normal number, and `own`, what the chunk adds, does not hide it.
template <class F, class S>
__device__ inline bool is_doubtful(F a, S before, S own, S after) {
  if (!is_finite(after)) return true;
  const double large = size_of(before);
  return size_of(a) < DBL_MIN && large > 1 && size_of(own) < large * 0x1p-962;
}
__device__ inline bool is_doubtful(uint64_t, uint64_t, uint64_t, uint64_t) { return false; }

__device__ inline bool is_zero(double v) { return v == 0; }
__device__ inline bool is_zero(Complex v) { return v.re == 0 && v.im == 0; }
__device__ inline bool is_zero(uint64_t v) { return v == 0; }

// Whether an infinite state is still one after a chunk of finite elements: where no factor is 0. It has the sign that
// their product gives it, also where that underflows.
__device__ inline bool keeps_infinity(double a, double before, bool has_zero) {
  return !has_zero && !is_finite(before) && !is_nan(before) && !is_nan(a);
}
__device__ inline double propagated_infinity(double a, double before) { return before * copysign(1.0, a); }
// Their parts may differ; whole states go through the chunk in order.
template <class F>
__device__ inline bool keeps_infinity(F, Complex, bool) { return false; }
template <class F>
__device__ inline Complex propagated_infinity(F, Complex before) { return before; }
__device__ inline bool keeps_infinity(uint64_t, uint64_t, bool) { return false; }
__device__ inline uint64_t propagated_infinity(uint64_t, uint64_t before) { return before; }

// Where a line begins in its first vector, counted in scan order.
__device__ inline int phase_of(const Reduction& r, const void* x) {
  if (!r.item) return 0;
  const int offset = static_cast<int>(reinterpret_cast<uintptr_t>(x) / r.item % r.per);
  return r.scan.x.time_stride < 0 ? r.per - 1 - offset : offset;
}

// The state after the steps from `begin` up to `end`, one by one, from the state before them.
template <class F, class S>
__device__ __noinline__ S take_in_order(const Problem& p, int64_t line, int64_t begin, int64_t end, S state) {
  const LineIndex index(p, line);
  const char* const x = index.in(p.x);
  const char* const gates = p.gates.data ? index.in(p.gates) : nullptr;
  const char* const reset = p.reset.data ? index.in(p.reset) : nullptr;
  const F gamma = gates ? one(F()) : gamma_of<F>(p, index);
  if (begin == 0) state = initial_of<S>(p, index);
#pragma unroll 1
  for (int64_t t = begin; t < end; ++t) {
    const S own = Any<S>::load(x + t * p.x.time_stride, p.x.dtype);
    const bool alone = (reset && reset[t * p.reset.time_stride]) || (t == 0 && !p.initial.data);
    if (alone) state = own;
    else state = advance(gates ? Any<F>::load(gates + t * p.gates.time_stride, p.gates.dtype) : gamma, state, own);
  }
  return state;
}

// The same of the product of gates, from the one before them.
template <class F>
__device__ __noinline__ F multiply_in_order(const Problem& p, int64_t line, int64_t begin, int64_t end, F before) {
  const char* const gates = LineIndex(p, line).in(p.gates);
#pragma unroll 1
  for (int64_t t = begin; t < end && !is_nan(before); ++t)
    before = product(Any<F>::load(gates + t * p.gates.time_stride, p.gates.dtype), before);
  return before;
}

// Whether gates have to be multiplied in order: out of order their product may meet 0 or infinity where it does not in
// order, and then be no number.
template <class F>
__device__ inline bool is_doubtful_product(const Problem& p, F product) {
  return p.gates.data && !is_finite(product);
}

__device__ inline void store_factor(char* at, int32_t dtype, double v) {
  if (dtype == UPSWEEP_COMPLEX64 || dtype == UPSWEEP_COMPLEX128) Any<Complex>::store(at, dtype, {v, 0});
  else store_state(at, dtype, v);
}
__device__ inline void store_factor(char* at, int32_t dtype, Complex v) { Any<Complex>::store(at, dtype, v); }
__device__ inline void store_factor(char* at, int32_t dtype, uint64_t v) { Any<uint64_t>::store(at, dtype, v); }

// The results of a line.
template <class F, class S>
__device__ inline void write_results(const Reduction& r, int64_t line, Effect<F, S> all, bool dropped) {
  const Problem& p = r.scan;
  const LineIndex index(p, line);
  if (p.final_state.data) store_state(index.in(p.final_state), p.final_state.dtype, all.b);
  if (r.multiplier.data) store_factor(index.in(r.multiplier), r.multiplier.dtype, dropped ? zero(F()) : all.a);
  if (r.dropped.data) *index.in(r.dropped) = dropped;
}

// What a chunk does, kept for those who join the chunks; or the line's results, if it is all of the line.
template <class F, class S>
__device__ inline void keep_effect(const Reduction& r, int64_t line, int64_t chunk, Effect<F, S> effect, bool dropped,
                                   bool has_zero) {
  const Problem& p = r.scan;
  if (r.chunks == 1) {
    if (!is_finite(effect.b)) effect.b = take_in_order<F, S>(p, line, 0, p.length, S());
    if (is_doubtful_product(p, effect.a) && r.multiplier.data && !dropped)
      effect.a = multiply_in_order(p, line, 0, p.length, one(F()));
    write_results(r, line, effect, dropped);
    return;
  }
  const int64_t at = line * r.line_step + chunk * r.chunk_step;
  reinterpret_cast<F*>(r.factors)[at] = effect.a;
  reinterpret_cast<S*>(r.values)[at] = effect.b;
  r.marks[at] = (dropped ? kDrops : 0) | (has_zero ? kHasZero : 0);
}

}  // namespace upsweep
