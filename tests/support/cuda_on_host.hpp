// What the kernels of cuda/ take of CUDA, beside what on_host.hpp has: vectors of words, short floats, lanes of a warp,
// the runtime's few functions. The harness removes inline assembly and turns launches into calls of `launch_on_host`.
#pragma once

#include <cstdint>

#include "on_host.hpp"

using std::isfinite;

struct uint4 {
    unsigned x, y, z, w;
} __attribute__((aligned(16)));

struct __half {
    unsigned short bits;
};
struct __half2 {
    __half x, y;
};
static float __half2float(__half v) { return widen_float16(v.bits); }
static __half __float2half_rn(float v) { return {to_float16(v)}; }

struct __nv_bfloat16 {
    unsigned short bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
static float __bfloat162float(__nv_bfloat16 v) { return bits_as_float(unsigned(v.bits) << 16); }
static __nv_bfloat16 __float2bfloat16_rn(float v) {
    const unsigned bits = float_as_bits(v);
    if (v != v) return {(unsigned short)(bits >> 16 | 0x40)};
    return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

static float __int_as_float(int bits) { return bits_as_float(unsigned(bits)); }
static int __float_as_int(float v) { return int(float_as_bits(v)); }
static float __double2float_rz(double v) {
    const float near = float(v);
    return std::fabs(double(near)) > std::fabs(v) ? std::nextafter(near, 0.0f) : near;
}
static unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned((uint64_t(high) << 32 | low) << by >> 32);
}

// An address that is no multiple of the size is an error on a device too.
template <class T>
T __ldcs(const T* from) {
    if (uintptr_t(from) % sizeof(T)) __builtin_trap();
    return *from;
}
template <class T>
void __stcs(T* to, T v) {
    *to = v;
}

template <class T>
T __shfl_down_sync(unsigned, T v, int by, int width = 32) {
    const int lane = threadIdx.x % 32;
    return broadcast_from(v, lane % width + by < width ? lane + by : lane);
}
static unsigned __ballot_sync(unsigned, bool condition) {
    const unsigned values[1] = {condition};
    const auto* warp = lanes::tell(values);
    unsigned all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= warp[lane][0] << lane;
    return all;
}

static bool __any_sync(unsigned mask, bool condition) { return __ballot_sync(mask, condition); }

enum cudaError_t { cudaSuccess };
typedef struct CUstream_st* cudaStream_t;
static cudaError_t cudaGetLastError() { return cudaSuccess; }
static cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
static cudaError_t cudaSetDevice(int) { return cudaSuccess; }
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

template <class Argument>
void launch_on_host(void (*kernel)(Argument), unsigned n_blocks, unsigned n_threads, const Argument& argument) {
    fibers::Launch<Argument>::run(kernel, argument, n_blocks, n_threads, 1);
}
