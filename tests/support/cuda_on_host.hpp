// What the kernels of cuda/ take of CUDA, beside what on_host.hpp has: vectors of words, short floats, lanes of a warp,
// the runtime's few functions. The harness removes inline assembly and turns launches into calls of `launch_on_host`.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "on_host.hpp"

using std::isfinite;

struct uint2 {
    unsigned x, y;
} __attribute__((aligned(8)));
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
static __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }

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
static __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
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
static bool __all_sync(unsigned mask, bool condition) { return !__ballot_sync(mask, !condition); }
template <class T>
T __shfl_xor_sync(unsigned, T v, int by) {
    return broadcast_from(v, threadIdx.x % 32 ^ by);
}
template <class T>
unsigned __match_any_sync(unsigned, T v) {
    const T values[1] = {v};
    const auto* warp = lanes::tell(values);
    unsigned same = 0;
    for (int lane = 0; lane < 32; ++lane) same |= unsigned(!std::memcmp(warp[lane], &v, sizeof v)) << lane;
    return same;
}

static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __ffs(int x) { return __builtin_ffs(x); }
static int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
static unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const uint64_t bytes = uint64_t(high) << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
template <class T>
T __ldg(const T* from) {
    return __ldcs(from);
}

// Blocks may run at the same time.
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> by) {
    return std::atomic_ref<T>(*at).fetch_add(by);
}
static unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected, unsigned long long v) {
    std::atomic_ref<unsigned long long>(*at).compare_exchange_strong(expected, v);
    return expected;
}
template <class T>
void atomicMin(T* at, std::type_identity_t<T> v) {
    std::atomic_ref<T> target(*at);
    for (T before = target; v < before && !target.compare_exchange_weak(before, v);) continue;
}
template <class T>
void atomicMax(T* at, std::type_identity_t<T> v) {
    std::atomic_ref<T> target(*at);
    for (T before = target; v > before && !target.compare_exchange_weak(before, v);) continue;
}

enum cudaError_t { cudaSuccess };
typedef struct CUstream_st* cudaStream_t;
static cudaError_t cudaGetLastError() { return cudaSuccess; }
static cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
static cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static cudaError_t cudaMemsetAsync(void* at, int byte, size_t n, cudaStream_t) {
    return std::memset(at, byte, n), cudaSuccess;
}
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
    return cudaSuccess;
}

template <class... Parameters>
void launch_on_host(
    void (*kernel)(Parameters...), unsigned n_blocks, unsigned n_threads,
    const std::type_identity_t<Parameters>&... arguments) {
    using Call = std::tuple<void (*)(Parameters...), std::remove_const_t<Parameters>...>;
    const auto call_kernel = [](Call call) {
        std::apply([](auto function, auto... values) { function(values...); }, call);
    };
    fibers::Launch<Call>::run(call_kernel, Call(kernel, arguments...), n_blocks, n_threads, 1);
}
