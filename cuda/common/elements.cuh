// Elements in memory, and as states: one conversion to the state's type on the way in, one rounding on the way out.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "scan/problem.hpp"
#include "common/steps.cuh"
#include "upsweep_cuda.h"

namespace upsweep {

__device__ inline double to_double(float v) { return v; }
__device__ inline double to_double(double v) { return v; }
__device__ inline double to_double(__half v) { return __half2float(v); }
__device__ inline double to_double(__nv_bfloat16 v) { return __bfloat162float(v); }

// What a lane computes its own elements in. The short ones need no more than float32 between two of a lane's vectors:
// their promise is 1e-6 of what was summed. From lane to lane everything is a double.
__device__ inline double local_of(double v) { return v; }
__device__ inline double local_of(float v) { return v; }
__device__ inline float local_of(__half v) { return __half2float(v); }
__device__ inline float local_of(__nv_bfloat16 v) { return __bfloat162float(v); }

// Rounded to odd in float32 first, so that the second rounding finds the ties and the sides of ties as they were.
__device__ inline float to_odd_float(double v) {
  const float down = __double2float_rz(v);
  if (static_cast<double>(down) == v || !isfinite(v)) return static_cast<float>(v);
  return __int_as_float(__float_as_int(down) | 1);
}

template <class T>
__device__ inline T from_double(double v);
template <>
__device__ inline float from_double<float>(double v) { return static_cast<float>(v); }
template <>
__device__ inline double from_double<double>(double v) { return v; }
template <>
__device__ inline __half from_double<__half>(double v) { return __float2half_rn(to_odd_float(v)); }
template <>
__device__ inline __nv_bfloat16 from_double<__nv_bfloat16>(double v) { return __float2bfloat16_rn(to_odd_float(v)); }

template <class T>
__device__ inline T from_local(double v) { return from_double<T>(v); }
template <class T>
__device__ inline T from_local(float v) {
  if constexpr (sizeof(T) != 2) return static_cast<T>(v);
  else if constexpr (std::is_same_v<T, __half>) return __float2half_rn(v);
  else return __float2bfloat16_rn(v);
}

// 16 bytes of them; the short ones are rounded in pairs.
template <class T, class Local, int n>
__device__ inline uint4 vector_of(const Local (&v)[n]) {
  static_assert(n * sizeof(T) == 16);
  if constexpr (std::is_same_v<T, __half> && std::is_same_v<Local, float>) {
    union { uint4 word; __half2 pair[n / 2]; } u;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) u.pair[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    return u.word;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16> && std::is_same_v<Local, float>) {
    union { uint4 word; __nv_bfloat162 pair[n / 2]; } u;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) u.pair[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    return u.word;
  } else {
    union { uint4 word; T part[n]; } u;
#pragma unroll
    for (int i = 0; i < n; ++i) u.part[i] = from_local<T>(v[i]);
    return u.word;
  }
}

template <class T>
constexpr int kLaneElements = lane_elements(sizeof(T));

// Hides from the compiler where values come from. It would keep their conversions in registers, of twice the size or
// more, over a wait; to convert them again costs less than to spill them.
__device__ inline void hide(float& v) { asm volatile("" : "+f"(v)); }
__device__ inline void hide(double& v) { asm volatile("" : "+d"(v)); }
__device__ inline void hide(uint64_t& v) { asm volatile("" : "+l"(v)); }
template <class V>
__device__ inline void hide(V&) {}
template <class T, int n>
__device__ inline void hide_all(T (&v)[n]) {
  if constexpr (sizeof(T) == 2) {
    union { T part[n]; uint32_t word[n / 2]; } u;
#pragma unroll
    for (int i = 0; i < n; ++i) u.part[i] = v[i];
#pragma unroll
    for (int i = 0; i < n / 2; ++i) asm volatile("" : "+r"(u.word[i]));
#pragma unroll
    for (int i = 0; i < n; ++i) v[i] = u.part[i];
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) hide(v[i]);
  }
}

// ---- a dtype known when compiled ------------------------------------------------------------------------------

template <class T>
struct Typed {
  using State = double;
  using Raw = T;
  static __device__ inline T load(const char* at, int32_t) { return __ldcs(reinterpret_cast<const T*>(at)); }
  static __device__ inline double value(T raw) { return to_double(raw); }
  static __device__ inline T raw(double v) { return from_double<T>(v); }
  static __device__ inline void store(char* at, int32_t, double v) { *reinterpret_cast<T*>(at) = from_double<T>(v); }
};

// ---- any dtype, looked at for each element ----------------------------------------------------------------------

template <class T>
__device__ inline T read(const char* at) { return *reinterpret_cast<const T*>(at); }
template <class T>
__device__ inline void write(char* at, T v) { *reinterpret_cast<T*>(at) = v; }

template <class S>
struct Any;

template <>
struct Any<double> {
  using State = double;
  using Raw = double;
  static __device__ double value(double raw) { return raw; }
  static __device__ double raw(double value) { return value; }
  static __device__ double load(const char* at, int32_t dtype) {
    switch (dtype) {
      case UPSWEEP_BOOL: return read<uint8_t>(at) != 0;
      case UPSWEEP_INT8: return read<int8_t>(at);
      case UPSWEEP_UINT8: return read<uint8_t>(at);
      case UPSWEEP_INT16: return read<int16_t>(at);
      case UPSWEEP_UINT16: return read<uint16_t>(at);
      case UPSWEEP_INT32: return read<int32_t>(at);
      case UPSWEEP_UINT32: return read<uint32_t>(at);
      case UPSWEEP_INT64: return static_cast<double>(read<int64_t>(at));
      case UPSWEEP_UINT64: return static_cast<double>(read<uint64_t>(at));
      case UPSWEEP_FLOAT16: return to_double(read<__half>(at));
      case UPSWEEP_BFLOAT16: return to_double(read<__nv_bfloat16>(at));
      case UPSWEEP_FLOAT32: return read<float>(at);
      default: return read<double>(at);
    }
  }
  static __device__ void store(char* at, int32_t dtype, double v) {
    switch (dtype) {
      case UPSWEEP_FLOAT16: return write(at, from_double<__half>(v));
      case UPSWEEP_BFLOAT16: return write(at, from_double<__nv_bfloat16>(v));
      case UPSWEEP_FLOAT32: return write(at, from_double<float>(v));
      default: return write(at, v);
    }
  }
};

template <>
struct Any<Complex> {
  using State = Complex;
  using Raw = Complex;
  static __device__ Complex value(Complex raw) { return raw; }
  static __device__ Complex raw(Complex value) { return value; }
  static __device__ Complex load(const char* at, int32_t dtype) {
    switch (dtype) {
      case UPSWEEP_COMPLEX64: return {read<float>(at), read<float>(at + 4)};
      case UPSWEEP_COMPLEX128: return {read<double>(at), read<double>(at + 8)};
      default: return {Any<double>::load(at, dtype), 0};
    }
  }
  static __device__ void store(char* at, int32_t dtype, Complex v) {
    if (dtype == UPSWEEP_COMPLEX64) {
      write(at, from_double<float>(v.re));
      write(at + 4, from_double<float>(v.im));
    } else {
      write(at, v.re);
      write(at + 8, v.im);
    }
  }
};

template <>
struct Any<uint64_t> {
  using State = uint64_t;
  using Raw = uint64_t;
  static __device__ uint64_t value(uint64_t raw) { return raw; }
  static __device__ uint64_t raw(uint64_t value) { return value; }
  static __device__ uint64_t load(const char* at, int32_t dtype) {
    switch (dtype) {
      case UPSWEEP_BOOL: return read<uint8_t>(at) != 0;
      case UPSWEEP_INT8: return static_cast<uint64_t>(static_cast<int64_t>(read<int8_t>(at)));
      case UPSWEEP_UINT8: return read<uint8_t>(at);
      case UPSWEEP_INT16: return static_cast<uint64_t>(static_cast<int64_t>(read<int16_t>(at)));
      case UPSWEEP_UINT16: return read<uint16_t>(at);
      case UPSWEEP_INT32: return static_cast<uint64_t>(static_cast<int64_t>(read<int32_t>(at)));
      case UPSWEEP_UINT32: return read<uint32_t>(at);
      default: return read<uint64_t>(at);
    }
  }
  static __device__ void store(char* at, int32_t dtype, uint64_t v) {
    switch (dtype) {
      case UPSWEEP_BOOL: return write<uint8_t>(at, v != 0);
      case UPSWEEP_INT8: case UPSWEEP_UINT8: return write(at, static_cast<uint8_t>(v));
      case UPSWEEP_INT16: case UPSWEEP_UINT16: return write(at, static_cast<uint16_t>(v));
      case UPSWEEP_INT32: case UPSWEEP_UINT32: return write(at, static_cast<uint32_t>(v));
      default: return write(at, v);
    }
  }
};

}  // namespace upsweep
