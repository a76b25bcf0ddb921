// The vocabulary of the kernels: a vector of doubles as wide as the instruction set's registers, and the
// few things the scans need from it. One algorithm is written once over these names and built per level.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace upsweep {
// Internal linkage for everything: two builds of this header live in one process.
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 2;
#endif

typedef double Vec __attribute__((vector_size(kLanes * 8)));
typedef int64_t Mask __attribute__((vector_size(kLanes * 8)));   // all ones in a lane that is set
typedef uint64_t Bits __attribute__((vector_size(kLanes * 8)));
typedef float FloatVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t FloatBits __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfBits __attribute__((vector_size(kLanes * 2)));
typedef uint8_t ByteVec __attribute__((vector_size(kLanes)));

// float16 and bfloat16 in memory format.
struct Half { uint16_t bits; };
struct BFloat { uint16_t bits; };

inline Vec broadcast(double value) { return value - Vec{}; }

// a*b + c with one rounding where the instruction set has it. Written out, because contraction is off:
// the same expression must round the same way wherever it is inlined.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
  return (Vec)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  return a * b + c;
#endif
}

inline double fma(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

inline Vec select(Mask mask, Vec yes, Vec no) { return mask ? yes : no; }
inline bool any(Mask mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_pd((__m256d)mask) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_pd((__m128d)mask) != 0;
#else
  int64_t all = 0;
  for (int lane = 0; lane < kLanes; ++lane) all |= mask[lane];
  return all != 0;
#endif
}

// Lane k of the result is lane k - K of v in scan order, `fill` where there is none. In a reversed scan the
// first step sits in the last lane.
template <int K, bool Reverse, int... I>
inline Vec shift_lanes(Vec v, Vec fill, std::integer_sequence<int, I...>) {
  if constexpr (Reverse)
    return __builtin_shufflevector(v, fill, (I + K)...);
  else
    return __builtin_shufflevector(fill, v, (kLanes - K + I)...);
}
template <int K, bool Reverse>
inline Vec shift(Vec v, Vec fill) {
  return shift_lanes<K, Reverse>(v, fill, std::make_integer_sequence<int, kLanes>{});
}

// The vector in blocks of 2 * Half steps: each step of a block's second half gets the last of its first half,
// the others keep their own.
template <int Half, bool Reverse>
constexpr int source_lane(int lane) {
  const int step = Reverse ? kLanes - 1 - lane : lane;
  const int source = step & Half ? (step & ~(2 * Half - 1)) + Half - 1 : step;
  return Reverse ? kLanes - 1 - source : source;
}
template <int Half, bool Reverse, int... I>
inline Vec spread_lanes(Vec v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, source_lane<Half, Reverse>(I)...);
}
template <int Half, bool Reverse>
inline Vec spread_halves(Vec v) {
  return spread_lanes<Half, Reverse>(v, std::make_integer_sequence<int, kLanes>{});
}
// The second halves of a, the first halves of b: a shuffle with constant lanes is one cheap blend, a select is not on Intel.
template <int Half, bool Reverse, int... I>
inline Vec select_second(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, ((Reverse ? kLanes - 1 - I : I) & Half ? I : kLanes + I)...);
}
template <int Half, bool Reverse>
inline Vec select_second(Vec a, Vec b) {
  return select_second<Half, Reverse>(a, b, std::make_integer_sequence<int, kLanes>{});
}

// Lanes at even and at odd places of a and b, contiguous: (a0 b0 a2 b2 ...) and (a1 b1 a3 b3 ...).
template <int Odd, int... I>
inline Vec interleave(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I % 2 ? kLanes + I - 1 + Odd : I + Odd)...);
}
// Pairs of lanes at even and at odd places of a, then those of b: (a01 a45 b01 b45) and (a23 a67 b23 b67).
template <int Odd, int... I>
inline Vec pick_pairs(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, ((I / 2 * 2 + Odd) * 2 + I % 2)...);
}
// Both are single cheap shuffles, where picking lanes freely is not; `First` chooses between them.
template <bool First, int Odd>
inline Vec halve(Vec a, Vec b) {
  if constexpr (First) return interleave<Odd>(a, b, std::make_integer_sequence<int, kLanes>{});
  else return pick_pairs<Odd>(a, b, std::make_integer_sequence<int, kLanes>{});
}

// In the second halves a*b + c, and a*b; elsewhere c, and a.
template <int Half, bool Reverse>
inline Vec fma_second(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  constexpr __mmask8 kMask = Reverse ? 0xff / ((1 << Half) + 1) : 0xff / ((1 << Half) + 1) << Half;
  return (Vec)_mm512_mask3_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c, kMask);
#else
  return fma(select_second<Half, Reverse>(a, Vec{}), b, c);
#endif
}
template <int Half, bool Reverse>
inline Vec multiply_second(Vec a, Vec b) {
#if defined(__AVX512F__)
  constexpr __mmask8 kMask = Reverse ? 0xff / ((1 << Half) + 1) : 0xff / ((1 << Half) + 1) << Half;
  return (Vec)_mm512_mask_mul_pd((__m512d)a, kMask, (__m512d)a, (__m512d)b);
#else
  return select_second<Half, Reverse>(a * b, a);
#endif
}

template <int Lane, int... I>
inline Vec splat_lane(Vec v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I * 0 + Lane)...);
}
// The last step's value, in every lane.
template <bool Reverse>
inline Vec splat_last(Vec v) {
  return splat_lane<Reverse ? 0 : kLanes - 1>(v, std::make_integer_sequence<int, kLanes>{});
}

// The number as arithmetic sees it: where subnormals are flushed, a subnormal is zero. The compiler must not
// know the factor, or it would drop the multiplication.
template <class T>
inline T as_operand(T v) {
  double one = 1.0;
#if defined(__x86_64__)
  asm("" : "+x"(one));
#elif defined(__aarch64__)
  asm("" : "+w"(one));
#endif
  return v * one;
}

// The smaller and the larger; b where a is a NaN.
inline Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_min_pd((__m512d)a, (__m512d)b);
#else
  return a < b ? a : b;
#endif
}
inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_pd((__m512d)a, (__m512d)b);
#else
  return a > b ? a : b;
#endif
}
inline Bits max(Bits a, Bits b) {
#if defined(__AVX512F__)
  return (Bits)_mm512_max_epu64((__m512i)a, (__m512i)b);
#else
  return a > b ? a : b;
#endif
}
inline Vec abs(Vec v) { return (Vec)((Bits)v & 0x7fffffffffffffffull); }

// True when the number is neither an infinity nor a NaN; bit arithmetic, so that no compiler flag undoes it.
inline bool is_finite(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, 8);
  return (bits & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

// ---- one element ----------------------------------------------------------------------------------------

// The double whose 24 leading bits are v's and whose last kept bit is set when any dropped bit was: rounding
// it again, to float16 or bfloat16, is then rounding v once.
inline double round_to_odd_float(double v) {
  uint64_t bits;
  std::memcpy(&bits, &v, 8);
  const uint64_t dropped = bits & 0x1fffffffull;
  bits = (bits & ~0x1fffffffull) | ((uint64_t)(dropped != 0) << 29);
  std::memcpy(&v, &bits, 8);
  return v;
}

inline uint16_t float_bits_to_bfloat(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);   // a NaN stays one
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline double to_double(double v) { return v; }
inline double to_double(float v) { return (double)v; }
// Written out: the compiler's own conversion of one float16 is a call of a library, of 10 ns, and of 100 for a NaN.
// Subnormal float16 is a number also where subnormal doubles count as zero.
inline double to_double(Half v) {
#if defined(__F16C__)
  return (double)_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(v.bits)));
#elif defined(__aarch64__)
  __fp16 half;
  std::memcpy(&half, &v, 2);
  return (double)(float)half;
#else
  const uint64_t sign = (uint64_t)(v.bits & 0x8000u) << 48, size = v.bits & 0x7fffu;
  if (size < 0x400u) return (sign ? -0x1p-24 : 0x1p-24) * (double)(int64_t)size;
  const uint64_t bits = sign | ((size << 42) + ((uint64_t)(size < 0x7c00u ? 1023 - 15 : 2047 - 31) << 52));
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
#endif
}
inline double to_double(BFloat v) {
  const uint32_t bits = (uint32_t)v.bits << 16;
  float single;
  std::memcpy(&single, &bits, 4);
  return (double)single;
}

template <class T>
inline T from_double(double v);
template <>
inline double from_double<double>(double v) { return v; }
template <>
inline float from_double<float>(double v) { return (float)v; }
template <>
inline Half from_double<Half>(double v) {
#if defined(__F16C__)
  const __m128 odd = _mm_set_ss((float)round_to_odd_float(v));
  return Half{(uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(odd, _MM_FROUND_TO_NEAREST_INT))};
#elif defined(__aarch64__)
  const __fp16 half = (__fp16)(float)round_to_odd_float(v);
  Half result;
  std::memcpy(&result, &half, 2);
  return result;
#else
  uint64_t bits;
  std::memcpy(&bits, &v, 8);
  const uint16_t sign = (uint16_t)(bits >> 48 & 0x8000u);
  bits &= 0x7fffffffffffffffull;
  if (bits >= 0x40f0000000000000ull)   // from 2^16 on: infinity, or a NaN
    return Half{(uint16_t)(sign | 0x7c00u | (bits > 0x7ff0000000000000ull ? 0x200u : 0u))};
  // Added to 2^42 times its power of two, but at least to that of subnormals, the number keeps 11 bits, rounded to even.
  const uint64_t shift = std::max<uint64_t>(bits & 0x7ff0000000000000ull, 0x3f10000000000000ull) + (42ull << 52);
  double size, magic;
  std::memcpy(&size, &bits, 8);
  std::memcpy(&magic, &shift, 8);
  size = (size + magic) - magic;
  if (size < 0x1p-14) return Half{(uint16_t)(sign | (uint16_t)(int64_t)(size * 0x1p24))};
  std::memcpy(&bits, &size, 8);
  return Half{(uint16_t)(sign | (uint16_t)((bits >> 42) - ((1023 - 15) << 10)))};
#endif
}
template <>
inline BFloat from_double<BFloat>(double v) {
  const float single = (float)round_to_odd_float(v);
  uint32_t bits;
  std::memcpy(&bits, &single, 4);
  return BFloat{float_bits_to_bfloat(bits)};
}

// ---- a vector of elements ---------------------------------------------------------------------------------

template <class V>
inline V load_bytes(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

// Between float and double. GCC 12 widens by __builtin_convertvector in halves, or lane by lane at 128 bits, and takes the
// upper half through memory: 0.3 more cycles an element of a sum on a Zen 4.
inline Vec widen(FloatVec v) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtps_pd((__m256)v);
#elif defined(__AVX2__)
  return (Vec)_mm256_cvtps_pd((__m128)v);
#elif defined(__SSE2__)
  return (Vec)_mm_cvtps_pd((__m128)_mm_loadl_epi64((const __m128i*)&v));
#else
  return __builtin_convertvector(v, Vec);
#endif
}
inline FloatVec narrow(Vec v) {
#if defined(__AVX512F__)
  return (FloatVec)_mm512_cvtpd_ps((__m512d)v);
#else
  return __builtin_convertvector(v, FloatVec);
#endif
}

inline Vec load(const double* p) { return load_bytes<Vec>(p); }
inline Vec load(const float* p) { return widen(load_bytes<FloatVec>(p)); }
inline Vec load(const Half* p) {
#if defined(__AVX512F__)
  return widen((FloatVec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__F16C__)
  return widen((FloatVec)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)p)));
#else
  Vec v;
  for (int lane = 0; lane < kLanes; ++lane) v[lane] = to_double(p[lane]);
  return v;
#endif
}
inline Vec load(const BFloat* p) {
  // GCC 12 converts halves of the vector and joins them.
#if defined(__AVX512F__)
  const FloatBits wide = (FloatBits)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
  const FloatBits wide = (FloatBits)_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  const FloatBits wide = __builtin_convertvector(load_bytes<HalfBits>(p), FloatBits);
#endif
  return widen((FloatVec)(wide << 16));
}

// Lanes whose byte is not zero.
inline Mask load_mask(const uint8_t* p) {
#if defined(__AVX512F__)
  return (Mask)_mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i*)p)) > 0;
#elif defined(__AVX2__)   // GCC 12 converts bytes one by one
  return (Mask)_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(load_bytes<int32_t>(p))) > 0;
#elif defined(__SSE4_1__)
  return (Mask)_mm_cvtepu8_epi64(_mm_cvtsi32_si128(load_bytes<uint16_t>(p))) > 0;
#else
  return (Mask)__builtin_convertvector(load_bytes<ByteVec>(p), Bits) > 0;
#endif
}

inline FloatVec narrow_to_odd(Vec v) {
#if defined(__AVX512F__)
  const __m512i bits = (__m512i)v, truncated = _mm512_and_si512(bits, _mm512_set1_epi64(~0x1fffffffll));
  const __mmask8 inexact = _mm512_test_epi64_mask(bits, _mm512_set1_epi64(0x1fffffffll));
  return narrow((Vec)_mm512_mask_or_epi64(truncated, inexact, truncated, _mm512_set1_epi64(1ll << 29)));
#else
  const Bits bits = (Bits)v;
  const Bits dropped = (Bits)((bits & 0x1fffffffull) != 0) & (1ull << 29);
  return narrow((Vec)((bits & ~0x1fffffffull) | dropped));
#endif
}

// What lies in memory for kLanes elements of T.
template <class T> struct Packed;
template <> struct Packed<double> { typedef Vec type; };
template <> struct Packed<float> { typedef FloatVec type; };
template <> struct Packed<Half> { typedef HalfBits type; };
template <> struct Packed<BFloat> { typedef HalfBits type; };

template <class T>
inline typename Packed<T>::type pack(Vec v) {
  if constexpr (sizeof(T) == 8) {
    return v;
  } else if constexpr (sizeof(T) == 4) {
    return narrow(v);
  } else if constexpr (std::is_same_v<T, BFloat>) {
    const FloatBits bits = (FloatBits)narrow_to_odd(v);
    const FloatBits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const FloatBits nan = (bits >> 16) | 0x40u;
    const FloatBits is_nan = (FloatBits)((bits & 0x7fffffffu) > 0x7f800000u);
    return __builtin_convertvector((is_nan & nan) | (~is_nan & rounded), HalfBits);
  } else {
#if defined(__AVX512F__)
    return (HalfBits)_mm256_cvtps_ph((__m256)narrow_to_odd(v), _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    const __m128i halves = _mm_cvtps_ph((__m128)narrow_to_odd(v), _MM_FROUND_TO_NEAREST_INT);
    return load_bytes<HalfBits>(&halves);
#else
    HalfBits halves;
    for (int lane = 0; lane < kLanes; ++lane) halves[lane] = from_double<Half>(v[lane]).bits;
    return halves;
#endif
  }
}

// How a kernel writes: through the cache, or past it in pieces of 16 bytes (numpy's large arrays start 16
// bytes into a page) or of a whole vector.
enum class Store { kCached, kStream16, kStreamVector };

template <class T>
inline void store(T* p, Vec v) {
  const auto packed = pack<T>(v);
  std::memcpy(p, &packed, sizeof(packed));
}

template <class V>
inline void store_bytes(void* p, V v, Store how) {
#if defined(__SSE2__)
  constexpr int kBytes = sizeof(V);
  if (how == Store::kStreamVector) {
#if defined(__AVX512F__)
    if constexpr (kBytes == 64) return _mm512_stream_si512((__m512i*)p, load_bytes<__m512i>(&v));
#endif
#if defined(__AVX2__)
    if constexpr (kBytes == 32) return _mm256_stream_si256((__m256i*)p, load_bytes<__m256i>(&v));
#endif
  }
  if constexpr (kBytes >= 16) {
    if (how != Store::kCached) {
      __m128i pieces[kBytes / 16];
      std::memcpy(pieces, &v, kBytes);
      for (int k = 0; k < kBytes / 16; ++k) _mm_stream_si128((__m128i*)p + k, pieces[k]);
      return;
    }
  }
#endif
  std::memcpy(p, &v, sizeof(v));
}
template <class T>
inline void store(T* p, Vec v, Store how) { store_bytes(p, pack<T>(v), how); }

// `count` bytes, kBytes at most: a call of memcpy would cost more than the step that it is part of.
template <int kBytes>
inline void copy_some(void* target, const void* source, int count) {
  char* to = (char*)target;
  const char* from = (const char*)source;
  auto copy = [&](auto bytes) {
    if constexpr (bytes() <= kBytes) {
      if (!(count & bytes())) return;
      std::memcpy(to, from, bytes());
      to += bytes(), from += bytes();
    }
  };
  copy(std::integral_constant<int, 32>{}), copy(std::integral_constant<int, 16>{}), copy(std::integral_constant<int, 8>{});
  copy(std::integral_constant<int, 4>{}), copy(std::integral_constant<int, 2>{}), copy(std::integral_constant<int, 1>{});
}

// Fewer than kLanes elements; lanes from count on are zero, and are not written. Read as whole registers: what was put
// together in memory would have to arrive there first.
template <class T>
inline Vec load_some(const T* p, int count) {
#if defined(__AVX512F__)
  const uint32_t mask = (1u << count) - 1;
  if constexpr (sizeof(T) == 8) {
    return (Vec)_mm512_maskz_loadu_pd((__mmask8)mask, p);
  } else if constexpr (sizeof(T) == 4) {
    return (Vec)_mm512_cvtps_pd(_mm256_maskz_loadu_ps((__mmask8)mask, p));
  } else {
    const __m128i bits = _mm_maskz_loadu_epi16((__mmask8)mask, p);
    return load((const T*)&bits);
  }
#elif defined(__AVX2__)
  const Mask mask = Mask{0, 1, 2, 3} < (int64_t)count;
  if constexpr (sizeof(T) == 8) {
    return (Vec)_mm256_maskload_pd(p, (__m256i)mask);
  } else if constexpr (sizeof(T) == 4) {
    return widen((FloatVec)_mm_maskload_ps(p, _mm_cmpgt_epi32(_mm_set1_epi32(count), _mm_setr_epi32(0, 1, 2, 3))));
  } else {
    uint64_t bits = 0;
    for (int k = 0; k < kLanes; ++k)
      if (k < count) bits |= (uint64_t)p[k].bits << (16 * k);
    return load((const T*)&bits);
  }
#else
  T some[kLanes] = {};
  for (int k = 0; k < count; ++k) some[k] = p[k];
  return load(some);
#endif
}
// Columns that fill a vector, or the first `count` ones of it.
template <bool Whole, class T>
inline Vec load_columns(const T* p, int count) {
  if constexpr (Whole) return load(p);
  else return load_some(p, count);
}
template <class T>
inline void store_some(T* p, Vec v, int count) {
  const auto packed = pack<T>(v);
#if defined(__AVX512F__)
  const uint32_t mask = (1u << count) - 1;
  if constexpr (sizeof(T) == 8) _mm512_mask_storeu_pd(p, (__mmask8)mask, (__m512d)packed);
  else if constexpr (sizeof(T) == 4) _mm256_mask_storeu_ps(p, (__mmask8)mask, (__m256)packed);
  else _mm_mask_storeu_epi16(p, (__mmask8)mask, (__m128i)packed);
#else
  copy_some<sizeof(packed)>(p, &packed, count * (int)sizeof(T));
#endif
}
inline Mask load_mask_some(const uint8_t* p, int count) {
  uint64_t bytes = 0;
  for (int k = 0; k < kLanes; ++k)
    if (k < count) bytes |= (uint64_t)p[k] << (8 * k);
  return load_mask((const uint8_t*)&bytes);
}

template <bool Whole>
inline Mask load_mask_columns(const uint8_t* p, int count) {
  if constexpr (Whole) return load_mask(p);
  else return load_mask_some(p, count);
}

// Orders streamed stores before whatever is stored next; each task that streams ends with it.
inline void end_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace upsweep
