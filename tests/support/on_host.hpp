// A device for kernels that are compiled by a C++ compiler: some blocks run at the same time, each by a thread of the
// host, its threads as fibers that change places at each barrier. Slow, and exact to C++'s rules: what it finds is
// what a kernel does, not how fast. The functions replace those of kernels/device.cuh.
#include <setjmp.h>
#include <ucontext.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ static thread_local
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

using std::acos, std::asin, std::atan, std::atan2, std::cos, std::exp, std::exp2, std::fabs, std::floor, std::fmax;
using std::fma, std::fmin, std::ldexp, std::log, std::pow, std::sin, std::sqrt, std::tanh;
using std::acosh, std::asinh, std::atanh, std::copysign, std::cosh, std::erf, std::expm1, std::fmod, std::hypot, std::log10;
using std::log1p, std::log2, std::rint, std::sinh, std::tan;

struct Index {
    unsigned x, y, z;
};
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

// Under another name, since newer C libraries declare a function of this one.
static float emulated_rsqrt(float x) { return 1 / std::sqrt(x); }
static double emulated_rsqrt(double x) { return 1 / std::sqrt(x); }
#define rsqrt emulated_rsqrt

static float exp2_fast(float x) { return std::exp2(x); }
static double exp2_fast(double x) { return std::exp2(x); }
template <class T>
static T least(T a, T b) {
    return a < b || a != a ? a : b;
}
static float most(float a, float b) { return a > b || a != a ? a : b; }
static float least_number(float a, float b) { return std::fmin(a, b); }
static double least_number(double a, double b) { return std::fmin(a, b); }
static float bits_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
static unsigned float_as_bits(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
static float widen_float16(unsigned short bits) {
    _Float16 x;
    std::memcpy(&x, &bits, 2);
    return float(x);
}
static unsigned short to_float16(float x) {
    const _Float16 y = _Float16(x);
    unsigned short bits;
    std::memcpy(&bits, &y, 2);
    return bits;
}
template <class T>
static T multiply_rounded(T a, T b) {
    return a * b;
}
template <class T>
static void read_together(const T* from, T* to) {
    std::memcpy(to, __builtin_assume_aligned(from, 16), 16);
}

template <class Element>
static Element fetch_element(const char* from) {
    Element x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
static unsigned short fetch_bits(const char* from) { return fetch_element<unsigned short>(from); }
template <class T>
static void fetch_together(const char* from, T* to) {
    std::memcpy(to, __builtin_assume_aligned(from, 16), 16);
}
static void write_together(const unsigned* from, unsigned* to) {
    std::memcpy(__builtin_assume_aligned(to, 16), from, 16);
}
template <class Element>
static void copy_element(char* to, const char* from) {
    std::memcpy(to, from, sizeof(Element));
}
static void copy_together(char* to, const char* from) {
    std::memcpy(__builtin_assume_aligned(to, 16), __builtin_assume_aligned(from, 16), 16);
}
static void commit_copies() {}
template <int PENDING>
static void wait_for_copies() {}
static void wait_for_copies() {}

static unsigned long long double_as_bits(double x) {
    unsigned long long bits;
    std::memcpy(&bits, &x, 8);
    return bits;
}
static double bits_as_double(unsigned long long bits) {
    double x;
    std::memcpy(&x, &bits, 8);
    return x;
}
static long long __double_as_longlong(double x) { return (long long)double_as_bits(x); }
static double __longlong_as_double(long long bits) { return bits_as_double(bits); }
static int __double2hiint(double v) {
    long long bits;
    std::memcpy(&bits, &v, 8);
    return int(bits >> 32);
}
template <class T>
static T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
static T max(T a, T b) {
    return a < b ? b : a;
}
static void store_relaxed(unsigned long long* to, unsigned long long word) { __atomic_store_n(to, word, __ATOMIC_RELAXED); }
static unsigned long long load_relaxed(const unsigned long long* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
static unsigned take_ticket(unsigned* counter) { return __atomic_add_fetch(counter, 1u, __ATOMIC_RELAXED); }

template <class Pointer>
static void forget_origin(Pointer&) {}
static void forget_word(unsigned&) {}
template <class Element>
static void store_element(char* to, Element x) {
    std::memcpy(to, &x, sizeof x);
}

namespace fibers {
constexpr int STACK = 1 << 18;
struct Fiber {
    ucontext_t beginning;
    jmp_buf place;
    bool has_begun, is_done;
};
static thread_local jmp_buf scheduler;
static thread_local std::vector<Fiber> threads;
static thread_local int running;

// Contexts only begin a fiber: to change one for another would ask the kernel for the mask of signals.
static void give_way() {
    if (!_setjmp(threads[running].place)) _longjmp(scheduler, 1);
}
static __attribute__((noinline)) void resume(int t) {
    running = t, threadIdx = {unsigned(t), 0, 0};
    if (_setjmp(scheduler)) return;
    if (threads[t].has_begun) _longjmp(threads[t].place, 1);
    threads[t].has_begun = true;
    setcontext(&threads[t].beginning);
}

// A barrier of the block, or of a warp: the last one to come opens it.
struct Barrier {
    unsigned arrived, opened;

    void wait(unsigned n) {
        const unsigned before = opened;
        if (++arrived == n)
            arrived = 0, ++opened;
        else
            while (opened == before) give_way();
    }
};
static thread_local Barrier of_block, of_warp[32], numbered[4];

template <class Call>
struct Launch {
    static inline thread_local void (*kernel)(Call);
    static inline thread_local const Call* call;

    static void thread() {
        kernel(*call);
        threads[running].is_done = true;
        _longjmp(scheduler, 1);
    }

    static void run_block(unsigned block, unsigned n_blocks, unsigned n_threads, char* stacks) {
        blockDim = {n_threads, 1, 1}, gridDim = {n_blocks, 1, 1}, blockIdx = {block, 0, 0};
        for (unsigned t = 0; t < n_threads; ++t) {
            ucontext_t& context = threads[t].beginning;
            getcontext(&context);
            context.uc_stack.ss_sp = stacks + size_t(t) * STACK;
            context.uc_stack.ss_size = STACK;
            context.uc_link = nullptr;
            makecontext(&context, thread, 0);
            threads[t].has_begun = threads[t].is_done = false;
        }
        for (unsigned left = n_threads; left;) {
            left = 0;
            for (unsigned t = 0; t < n_threads; ++t) {
                if (threads[t].is_done) continue;
                resume(int(t));
                left += !threads[t].is_done;
            }
        }
    }

    // `at_once` blocks that wait for each other.
    static void run(
        void (*which)(Call), const Call& with, unsigned n_blocks, unsigned n_threads, unsigned at_once) {
        std::atomic<unsigned> next{0};
        const auto work = [&] {
            kernel = which, call = &with;
            const std::unique_ptr<char[]> stacks(new char[size_t(n_threads) * STACK]);  // not filled
            threads.resize(n_threads);
            for (unsigned block; (block = next++) < n_blocks;) run_block(block, n_blocks, n_threads, stacks.get());
        };
        std::vector<std::thread> others;
        for (unsigned n = 1; n < at_once; ++n) others.emplace_back(work);
        work();
        for (auto& other : others) other.join();
    }
};
}  // namespace fibers

// Others may be those of the own block.
static void back_off() {
    std::this_thread::yield();
    fibers::give_way();
}

static void __syncthreads() { fibers::of_block.wait(blockDim.x); }
static void sync_threads(int barrier, int n_threads) { fibers::numbered[barrier].wait(n_threads); }
static void __syncwarp() { fibers::of_warp[threadIdx.x / 32].wait(32); }

static int __syncthreads_or(int condition) {
    static thread_local int conditions[1024];
    conditions[threadIdx.x] = condition;
    __syncthreads();
    int any = 0;
    for (unsigned t = 0; t < blockDim.x; ++t) any |= conditions[t];
    __syncthreads();
    return any;
}

static char* shared_memory() {
    alignas(16) static thread_local char shared[1 << 18];
    return shared;
}

// What the lanes of a warp tell each other, in words.
namespace lanes {
static thread_local unsigned exchanged[1024][6];

template <class T, int N>
static const unsigned (*tell(const T (&values)[N]))[6] {
    static_assert(sizeof values <= sizeof exchanged[0], "words");
    auto& warp = fibers::of_warp[threadIdx.x / 32];
    warp.wait(32);
    std::memcpy(exchanged[threadIdx.x], values, sizeof values);
    warp.wait(32);
    return exchanged + threadIdx.x / 32 * 32;
}
}  // namespace lanes

template <class T>
static T broadcast_from(T v, int lane) {
    const T values[1] = {v};
    const auto* warp = lanes::tell(values);
    std::memcpy(&v, warp[lane], sizeof v);
    return v;
}
template <class T>
static T __shfl_sync(unsigned, T v, int lane) {
    return broadcast_from(v, lane);
}
template <class T>
static T __shfl_up_sync(unsigned, T v, int by, int width = 32) {
    const int lane = threadIdx.x % 32;
    return broadcast_from(v, lane % width < by ? lane : lane - by);
}
template <class T>
static T of_other_lane(T x, int mask) {
    const T values[1] = {x};
    std::memcpy(&x, lanes::tell(values)[threadIdx.x % 32 ^ mask], sizeof x);
    return x;
}

static double of_lane_before(double x, int distance) {
    const double values[1] = {x};
    const int lane = int(threadIdx.x % 32);
    std::memcpy(&x, lanes::tell(values)[lane < distance ? lane : lane - distance], sizeof x);
    return x;
}

template <class T>
static T of_lane(T x, int lane) {
    return broadcast_from(x, lane);
}

static unsigned most_of_warp(unsigned x) {
    const unsigned values[1] = {x};
    const auto* warp = lanes::tell(values);
    for (int lane = 0; lane < 32; ++lane) x = x < warp[lane][0] ? warp[lane][0] : x;
    return x;
}

static unsigned votes_of_warp(bool condition) {
    const unsigned values[1] = {condition};
    const auto* warp = lanes::tell(values);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane) votes |= warp[lane][0] << lane;
    return votes;
}
static int highest_bit(unsigned bits) { return 31 - __builtin_clz(bits); }

static bool any_of_warp(bool condition) { return most_of_warp(condition); }

static unsigned pack_float16(float first, float second) {
    return to_float16(first) | unsigned(to_float16(second)) << 16;
}
static void unpack_float16(unsigned both, float& first, float& second) {
    first = widen_float16((unsigned short)both), second = widen_float16((unsigned short)(both >> 16));
}

// Number k of 16 in a row of a or a column of b: four lanes have two each of the first eight in word `low`, and of
// the others in word `high`.
static double of_sixteen(const unsigned (*warp)[6], int first_lane, int low, int high, int k) {
    const unsigned word = warp[first_lane + k % 8 / 2][k < 8 ? low : high];
    return widen_float16((unsigned short)(k % 2 ? word >> 16 : word));
}

// With what a sum is beyond 24 bits cut off, as tensor cores do it.
static void multiply_tiles(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const auto* warp = lanes::tell(words);
    const int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    for (int n = 0; n < 4; ++n) {
        const int row = group + n / 2 * 8, column = 2 * member + n % 2;
        double sum = c[n];
        for (int k = 0; k < 16; ++k)
            sum += of_sixteen(warp, row % 8 * 4, row / 8, row / 8 + 2, k) * of_sixteen(warp, column * 4, 4, 5, k);
        c[n] = float(sum);
        if (std::isfinite(sum) && std::fabs(c[n]) > std::fabs(sum)) c[n] = std::nextafter(c[n], 0.0f);
    }
}
