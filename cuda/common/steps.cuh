// States and steps: the algebra of a scan.
//
// A step turns a state s into a * s + b. Two steps make one; that is what lets a line be scanned in parallel. Taken
// together they give what they give one by one, but for rounding, as long as every number is finite: a product of gates
// that underflows or overflows may make a NaN of an infinite state, or of none at all. Whoever finds a state that is
// not finite therefore combines steps over all states (common/extended_step.cuh), and complex ones in order.
#pragma once

#include <cfloat>
#include <cstdint>

namespace upsweep {

struct Complex {
  double re, im;
};

template <class S>
struct Step {
  S a, b;
};

// ---- double, and float inside a lane ------------------------------------------------------------------------

__device__ inline double one(double) { return 1.0; }
__device__ inline double zero(double) { return 0.0; }
// Adding it changes no number, not even -0.
__device__ inline double nothing(double) { return -0.0; }
__device__ inline double from_parts(double, double re, double) { return re; }
__device__ inline float one(float) { return 1.0f; }
__device__ inline float zero(float) { return 0.0f; }
__device__ inline float product(float a, float b) { return a * b; }
__device__ inline float advance(float a, float s, float b) { return fmaf(a, s, b); }
__device__ inline double product(double a, double b) { return a * b; }
__device__ inline double advance(double a, double s, double b) { return fma(a, s, b); }
__device__ inline bool is_finite(double v) { return (__double2hiint(v) & 0x7ff00000) != 0x7ff00000; }
__device__ inline bool is_nan(double v) { return v != v; }
// Whether a state that is not finite is right, which the product `a` and what was summed up have made of another one.
// Whatever ends an infinite state leaves a NaN, with products that vanish or overflow too; a NaN ends with a drop alone;
// and a product is an ordinary number only if all that were multiplied on its way are.
__device__ inline bool is_right(double a, double before, double after) {
  if (is_finite(before)) return fabs(a) >= DBL_MIN && is_finite(a);
  return is_nan(before) || fabs(after) > DBL_MAX;
}
// Whether a power of gamma is so far from 0 and from infinity that it keeps infinities as they are.
__device__ inline bool is_normal(double v) { return fabs(v) >= DBL_MIN && is_finite(v); }

__device__ inline double shuffle(double v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
__device__ inline double shuffle_up(double v, int by, int width) { return __shfl_up_sync(0xffffffffu, v, by, width); }

// ---- Complex ----------------------------------------------------------------------------------------------

__device__ inline Complex one(Complex) { return {1, 0}; }
__device__ inline Complex zero(Complex) { return {0, 0}; }
__device__ inline Complex nothing(Complex) { return {-0.0, -0.0}; }
__device__ inline Complex from_parts(Complex, double re, double im) { return {re, im}; }

// A real factor scales both parts: multiplied as a complex number it would turn an infinite part into NaN.
__device__ inline Complex product(Complex a, Complex b) {
  if (a.im == 0) return {a.re * b.re, a.re * b.im};
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ inline Complex advance(Complex a, Complex s, Complex b) {
  if (a.im == 0) return {fma(a.re, s.re, b.re), fma(a.re, s.im, b.im)};
  return {fma(a.re, s.re, fma(-a.im, s.im, b.re)), fma(a.re, s.im, fma(a.im, s.re, b.im))};
}
__device__ inline bool is_finite(Complex v) { return is_finite(v.re) && is_finite(v.im); }
__device__ inline bool is_nan(Complex v) { return is_nan(v.re) && is_nan(v.im); }
__device__ inline bool is_right(Complex, Complex before, Complex) { return is_nan(before); }
__device__ inline bool is_normal(Complex v) { return v.im == 0 && is_normal(v.re); }
__device__ inline Complex shuffle(Complex v, int lane) { return {shuffle(v.re, lane), shuffle(v.im, lane)}; }
__device__ inline Complex shuffle_up(Complex v, int by, int width) {
  return {shuffle_up(v.re, by, width), shuffle_up(v.im, by, width)};
}

// ---- integers, which wrap around ----------------------------------------------------------------------------

__device__ inline uint64_t one(uint64_t) { return 1; }
__device__ inline uint64_t zero(uint64_t) { return 0; }
__device__ inline uint64_t nothing(uint64_t) { return 0; }
__device__ inline uint64_t from_parts(uint64_t, double re, double) { return static_cast<uint64_t>(re); }
__device__ inline uint64_t product(uint64_t a, uint64_t b) { return a * b; }
__device__ inline uint64_t advance(uint64_t a, uint64_t s, uint64_t b) { return a * s + b; }
__device__ inline bool is_finite(uint64_t) { return true; }
__device__ inline bool is_nan(uint64_t) { return false; }
__device__ inline bool is_right(uint64_t, uint64_t, uint64_t) { return true; }
__device__ inline bool is_normal(uint64_t) { return true; }
__device__ inline uint64_t shuffle(uint64_t v, int lane) {
  return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(v), lane);
}
__device__ inline uint64_t shuffle_up(uint64_t v, int by, int width) {
  return __shfl_up_sync(0xffffffffu, static_cast<unsigned long long>(v), by, width);
}

// ---- for any of them ------------------------------------------------------------------------------------------

// `first`, then `second`.
template <class S>
__device__ inline Step<S> combine(Step<S> first, Step<S> second) {
  return {product(second.a, first.a), advance(second.a, first.b, second.b)};
}

// Between a state and what a lane computes in.
template <class To, class From>
__device__ inline To convert(From v) { return static_cast<To>(v); }

template <class S>
__device__ inline S power(S base, uint32_t exponent) {
  S result = one(S());
  for (; exponent; exponent >>= 1) {
    if (exponent & 1) result = product(result, base);
    base = product(base, base);
  }
  return result;
}

}  // namespace upsweep
