// A device for kernels that are compiled by a C++ compiler: blocks run one after the other, the threads of a block
// as fibers that change places at each barrier, shared memory is static. Slow, and exact to C++'s rules: what it
// finds is what a kernel does, not how fast. The functions are the twins of kernels/device.cuh.
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

using std::acos, std::asin, std::atan, std::atan2, std::cos, std::exp, std::exp2, std::fabs, std::floor, std::fmax;
using std::fmin, std::log, std::pow, std::sin, std::sqrt, std::tanh;

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

static float rsqrt(float x) { return 1 / std::sqrt(x); }
static double rsqrt(double x) { return 1 / std::sqrt(x); }

static float exp2_fast(float x) { return std::exp2(x); }
static double exp2_fast(double x) { return std::exp2(x); }
template <class T>
static T least(T a, T b) {
    return a < b || a != a ? a : b;
}
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

namespace fibers {
constexpr int STACK = 1 << 18;
static ucontext_t scheduler;
static std::vector<ucontext_t> threads;
static std::vector<char> done;
static int running;

static void wait() { swapcontext(&threads[running], &scheduler); }

template <class Call>
struct Launch {
    static inline void (*kernel)(Call);
    static inline const Call* call;

    static void thread() {
        kernel(*call);
        done[running] = 1;
    }

    static void run(void (*which)(Call), const Call& with, unsigned n_blocks, unsigned n_threads) {
        kernel = which, call = &with;
        std::vector<char> stacks(size_t(n_threads) * STACK);
        threads.resize(n_threads), done.resize(n_threads);
        blockDim = {n_threads, 1, 1}, gridDim = {n_blocks, 1, 1};
        for (unsigned block = 0; block < n_blocks; ++block) {
            blockIdx = {block, 0, 0};
            for (unsigned t = 0; t < n_threads; ++t) {
                getcontext(&threads[t]);
                threads[t].uc_stack.ss_sp = stacks.data() + size_t(t) * STACK;
                threads[t].uc_stack.ss_size = STACK;
                threads[t].uc_link = &scheduler;
                makecontext(&threads[t], thread, 0);
                done[t] = 0;
            }
            for (unsigned left = n_threads; left;) {
                left = 0;
                for (unsigned t = 0; t < n_threads; ++t) {
                    if (done[t]) continue;
                    running = int(t), threadIdx = {t, 0, 0};
                    swapcontext(&scheduler, &threads[t]);
                    left += !done[t];
                }
            }
        }
    }
};
}  // namespace fibers

static void __syncthreads() { fibers::wait(); }
