// What the other files ask of a device beyond plain C++, and the functions of formulas that are more than one
// call. tests/support/on_host.hpp has each for the host.
// Called by: every kernel of a reduction over pairs and every formula's own text.

__device__ __forceinline__ float exp2_fast(float x) {
    // Two units in the last place; subnormal results are zero, which saves two instructions of three.
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ double exp2_fast(double x) { return exp2(x); }

// The smaller of two; NaN if one is.
__device__ __forceinline__ float least(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
__device__ __forceinline__ double least(double a, double b) { return a < b || a != a ? a : b; }

// The larger of two; NaN if one is.
__device__ __forceinline__ float most(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

// The smaller of two; the other one if one is NaN.
__device__ __forceinline__ float least_number(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ double least_number(double a, double b) { return fmin(a, b); }

__device__ __forceinline__ float widen_float16(unsigned short bits) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
    return y;
}
__device__ __forceinline__ unsigned short to_float16(float x) {
    unsigned short y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float bits_as_float(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ unsigned float_as_bits(float x) { return __float_as_uint(x); }

// Neither is made part of a fused multiply-add: what is computed alike for rows and columns stays alike.
__device__ __forceinline__ float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double multiply_rounded(double a, double b) { return __dmul_rn(a, b); }

// Sixteen bytes from an aligned address of shared memory.
__device__ __forceinline__ void read_together(const float* from, float* to) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
__device__ __forceinline__ void read_together(const double* from, double* to) {
    const double2 two = *reinterpret_cast<const double2*>(from);
    to[0] = two.x, to[1] = two.y;
}
__device__ __forceinline__ void read_together(const unsigned* from, unsigned* to) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
__device__ __forceinline__ void write_together(const unsigned* from, unsigned* to) {
    *reinterpret_cast<uint4*>(to) = make_uint4(from[0], from[1], from[2], from[3]);
}

// The block's shared memory beyond what is declared.
__device__ __forceinline__ char* shared_memory() {
    extern __shared__ __align__(16) char shared[];
    return shared;
}

// The number of the lane of the warp whose own number differs in the bits of `mask`.
template <class Real>
__device__ __forceinline__ Real of_other_lane(Real x, int mask) {
    return __shfl_xor_sync(0xffffffffu, x, mask);
}

// The largest of the lanes of a warp, in each of them.
__device__ __forceinline__ unsigned most_of_warp(unsigned x) { return __reduce_max_sync(0xffffffffu, x); }

// Whether it holds for a lane of the warp, all of whose lanes ask.
__device__ __forceinline__ bool any_of_warp(bool condition) { return __any_sync(0xffffffffu, condition); }

// A bit for each lane, if it holds for it; and the number of the highest bit of some.
__device__ __forceinline__ unsigned votes_of_warp(bool condition) { return __ballot_sync(0xffffffffu, condition); }
__device__ __forceinline__ int highest_bit(unsigned bits) { return 31 - __clz(bits); }

// Two numbers as float16, rounded to nearest, the first one in the lower half of the word; and back.
__device__ __forceinline__ unsigned pack_float16(float first, float second) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
__device__ __forceinline__ void unpack_float16(unsigned both, float& first, float& second) {
    asm("{.reg .b16 low, high;\n\t"
        "mov.b32 {low, high}, %2;\n\t"
        "cvt.f32.f16 %0, low;\n\t"
        "cvt.f32.f16 %1, high;}"
        : "=f"(first), "=f"(second)
        : "r"(both));
}

// c += a * b, of 16 x 16 and 16 x 8 float16, two of them in a word.
__device__ __forceinline__ void multiply_tiles(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// From global memory, which no one writes meanwhile.
template <class Element>
__device__ __forceinline__ Element fetch_element(const char* from) {
    return __ldg(reinterpret_cast<const Element*>(from));
}
__device__ __forceinline__ unsigned short fetch_bits(const char* from) {
    return __ldg(reinterpret_cast<const unsigned short*>(from));
}
// Sixteen bytes from an aligned address.
template <class Real>
__device__ __forceinline__ void fetch_together(const char* from, Real* to) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(from));
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// What an address was made of is forgotten here: else dozens of them are kept in registers, from turn to turn of a loop.
template <class Pointer>
__device__ __forceinline__ void forget_origin(Pointer& address) {
    asm volatile("" : "+l"(address));
}

// What a word was made of is forgotten, so that it stays in its register.
__device__ __forceinline__ void forget_word(unsigned& word) { asm volatile("" : "+r"(word)); }

// Into global memory, of which the compiler knows nothing any more where an address has forgotten its origin.
template <class Element>
__device__ __forceinline__ void store_element(char* to, Element x) {
    __builtin_assume(__isGlobal(to));
    *reinterpret_cast<Element*>(to) = x;
}

// From global to shared memory; elements of 4 and 8 bytes are on their way until wait_for_copies().
template <class Element>
__device__ __forceinline__ void copy_element(char* to, const char* from) {
    if (sizeof(Element) == 4 || sizeof(Element) == 8) {
        constexpr int n_bytes = sizeof(Element) == 8 ? 8 : 4;
        const unsigned place = unsigned(__cvta_generic_to_shared(to));
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(n_bytes));
    } else {
        *reinterpret_cast<Element*>(to) = fetch_element<Element>(from);
    }
}
// Sixteen bytes, on their way likewise.
__device__ __forceinline__ void copy_together(char* to, const char* from) {
    const unsigned place = unsigned(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
// Until at most PENDING of the groups that were committed are still on their way.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// So many threads of the block meet, at one of its barriers.
__device__ __forceinline__ void sync_threads(int barrier, int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

// The number of the lane so many before the own one, where there is one, or of a certain lane.
__device__ __forceinline__ double of_lane_before(double x, int distance) {
    return __shfl_up_sync(0xffffffffu, x, distance);
}
template <class Real>
__device__ __forceinline__ Real of_lane(Real x, int lane) {
    return __shfl_sync(0xffffffffu, x, lane);
}

__device__ __forceinline__ unsigned long long double_as_bits(double x) { return __double_as_longlong(x); }
__device__ __forceinline__ double bits_as_double(unsigned long long bits) { return __longlong_as_double(bits); }

// Words that blocks write for each other, in one piece each; a pause between two looks at them.
__device__ __forceinline__ void store_relaxed(unsigned long long* to, unsigned long long word) {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* from) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}
__device__ __forceinline__ void back_off() { __nanosleep(32); }

// One more than the last block was given; the counter begins with all ones.
__device__ __forceinline__ unsigned take_ticket(unsigned* counter) { return atomicAdd(counter, 1u) + 1u; }
