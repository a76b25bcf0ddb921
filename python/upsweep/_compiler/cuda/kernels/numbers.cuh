// Elements in memory as the numbers that are computed with, and back; special values; the functions of formulas
// that are more than one call.
// Called by: every kernel of a reduction over pairs and every formula's own text.

template <class Element>
struct Stored {  // float32 and float64 as they are
    static __device__ __forceinline__ real widen(Element x) { return real(x); }
    static __device__ __forceinline__ Element narrow(real x) { return Element(x); }
};

struct float16 {
    unsigned short bits;
};
struct bfloat16 {
    unsigned short bits;
};

template <>
__device__ __forceinline__ float16 fetch_element<float16>(const char* from) {
    return float16{fetch_bits(from)};
}
template <>
__device__ __forceinline__ bfloat16 fetch_element<bfloat16>(const char* from) {
    return bfloat16{fetch_bits(from)};
}

template <>
struct Stored<float16> {
    static __device__ __forceinline__ real widen(float16 x) { return real(widen_float16(x.bits)); }
    static __device__ __forceinline__ float16 narrow(real x) { return float16{to_float16(float(x))}; }
};

template <>
struct Stored<bfloat16> {
    static __device__ __forceinline__ real widen(bfloat16 x) {
        return real(bits_as_float(unsigned(x.bits) << 16));
    }
    static __device__ __forceinline__ bfloat16 narrow(real x) {
        const unsigned bits = float_as_bits(float(x));
        if (x != x) return bfloat16{(unsigned short)((bits >> 16) | 64)};
        return bfloat16{(unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};  // to nearest, ties to even
    }
};

__device__ __forceinline__ real infinity() { return real(bits_as_float(0x7f800000u)); }
__device__ __forceinline__ real not_a_number() { return real(bits_as_float(0x7fc00000u)); }

constexpr real LOG2_E = real(1.4426950408889634);
constexpr real LN_2 = real(0.6931471805599453);

__device__ __forceinline__ real do_exp(real x) {
    return sizeof(real) == 8 ? real(exp(double(x))) : real(exp2_fast(x * LOG2_E));
}
// What has a finite inverse; of a squared distance's scale, nothing that matters.
__device__ __forceinline__ real at_least_tiny(real x) { return x < real(1e-30) ? real(1e-30) : x; }
__device__ __forceinline__ real finite_or_0(real x) { return x - x == 0 ? x : real(0); }

// A power of 2 between 2^-125 and 2^125, within 4 units in the last place, without the unit for exponentials.
__device__ __forceinline__ real exp2_by_polynomial(real x) {
    const float rounder = 12582912;  // 1.5 * 2^23, beside which the lowest bit is 1
    const float whole = float(x) + rounder, left = float(x) - (whole - rounder);
    float y = 0.00132764719f;
    y = y * left + 0.00967554133f;
    y = y * left + 0.0555071327f;
    y = y * left + 0.240221197f;
    y = y * left + 0.693146967f;
    y = y * left + 1.00000007f;
    return bits_as_float(float_as_bits(y) + (float_as_bits(whole) << 23));
}

// The exponential that `softmax.cuh` takes: float32 formulas come with their scale for powers of 2.
__device__ __forceinline__ real power(real x) { return sizeof(real) == 8 ? real(exp(double(x))) : real(exp2_fast(x)); }
