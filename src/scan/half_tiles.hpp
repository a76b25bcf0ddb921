// Tiles of float16 or bfloat16 along a line, in lanes of float32: kFloatLanes runs of kRun steps, a run a lane.
//
// A tile is turned in its 16-bit form, where a register holds most elements: after that, vector s has step s of every
// run, and a scan of the runs is one multiply-add a vector. Registers of a tile hold neighbouring runs:
// run kRunsARegister * i + l is part l (of 128 bits) of register i, and comes out in lane 4 * l + i.
//
// For instruction sets that convert float16, where UPSWEEP_HALF_TILES is defined; the others scan halves in float64.
#pragma once

#include "scan/lines.hpp"

namespace upsweep {
namespace {

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__))
#define UPSWEEP_HALF_TILES

constexpr int kFloatLanes = 2 * kLanes;
constexpr int kRun = 8;                     // elements of 16 bits in 128, the part of a register that shuffles stay in
constexpr int kTile = kFloatLanes * kRun;
constexpr int kRegisters = 4;
constexpr int kRunsARegister = kFloatLanes / kRegisters;

typedef float Singles __attribute__((vector_size(kFloatLanes * 4)));
typedef uint32_t SinglesBits __attribute__((vector_size(kFloatLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kTile * 2 / kRegisters)));   // a register of a tile
typedef uint8_t HalvesBytes __attribute__((vector_size(kTile / kRegisters)));
constexpr int kRegisterHalves = kTile / kRegisters;

struct HalfTile {
  Halves part[kRegisters];
};

// ---- the few operations that differ ----------------------------------------------------------------------------

#if defined(__AVX512F__)
inline Singles fma(Singles a, Singles b, Singles c) {
  return (Singles)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#define UPSWEEP_UNPACK(name, intrinsic) \
  inline Halves name(Halves a, Halves b) { return (Halves)_mm512_##intrinsic((__m512i)a, (__m512i)b); }
#else
inline Singles fma(Singles a, Singles b, Singles c) {
  return (Singles)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#define UPSWEEP_UNPACK(name, intrinsic) \
  inline Halves name(Halves a, Halves b) { return (Halves)_mm256_##intrinsic((__m256i)a, (__m256i)b); }
#endif
// Elements of the low (high) halves of each 128 bits, taken in turn from a and b.
UPSWEEP_UNPACK(low_16, unpacklo_epi16)
UPSWEEP_UNPACK(high_16, unpackhi_epi16)
UPSWEEP_UNPACK(low_32, unpacklo_epi32)
UPSWEEP_UNPACK(high_32, unpackhi_epi32)
UPSWEEP_UNPACK(low_64, unpacklo_epi64)
UPSWEEP_UNPACK(high_64, unpackhi_epi64)
UPSWEEP_UNPACK(smaller, min_epu16)
UPSWEEP_UNPACK(larger, max_epu16)
// Numbers below 2^16 of 32 bits, those of a into the low half of each 128 bits.
UPSWEEP_UNPACK(narrow_32, packus_epi32)
#undef UPSWEEP_UNPACK

// Of each 128 bits, the elements of the low half to `first`, those of the high half to `second`.
template <class T>
inline __attribute__((always_inline)) void widen_pair(Halves v, Singles* first, Singles* second) {
  if constexpr (std::is_same_v<T, BFloat>) {
    *first = (Singles)low_16(Halves{}, v);
    *second = (Singles)high_16(Halves{}, v);
  } else {
#if defined(__AVX512F__)
    const __m512i apart = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), (__m512i)v);
    *first = (Singles)_mm512_cvtph_ps(_mm512_castsi512_si256(apart));
    *second = (Singles)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(apart, 1));
#else
    const __m256i apart = _mm256_permute4x64_epi64((__m256i)v, 0xd8);
    *first = (Singles)_mm256_cvtph_ps(_mm256_castsi256_si128(apart));
    *second = (Singles)_mm256_cvtph_ps(_mm256_extracti128_si256(apart, 1));
#endif
  }
}

// bfloat16 in the upper 16 bits, rounded to nearest even. No NaN comes here: a tile with one is scanned elsewhere.
inline Halves bfloat_bits(Singles v) {
  const SinglesBits bits = (SinglesBits)v;
  return (Halves)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The reverse of widen_pair, rounded.
template <class T>
inline __attribute__((always_inline)) Halves narrow_pair(Singles first, Singles second) {
  if constexpr (std::is_same_v<T, BFloat>) {
    return narrow_32(bfloat_bits(first), bfloat_bits(second));
  } else {
#if defined(__AVX512F__)
    const __m256i a = _mm512_cvtps_ph((__m512)first, _MM_FROUND_TO_NEAREST_INT);
    const __m256i b = _mm512_cvtps_ph((__m512)second, _MM_FROUND_TO_NEAREST_INT);
    return (Halves)_mm512_permutex2var_epi64(_mm512_castsi256_si512(a), _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11),
                                             _mm512_castsi256_si512(b));
#else
    const __m128i a = _mm256_cvtps_ph((__m256)first, _MM_FROUND_TO_NEAREST_INT);
    const __m128i b = _mm256_cvtps_ph((__m256)second, _MM_FROUND_TO_NEAREST_INT);
    return (Halves)_mm256_set_m128i(_mm_unpackhi_epi64(a, b), _mm_unpacklo_epi64(a, b));
#endif
  }
}

// ---- tiles -----------------------------------------------------------------------------------------------------

// The tile's lowest address.
template <bool Reverse, class T>
inline T* tile_at(T* base, int64_t step) {
  return Reverse ? base - step - (kTile - 1) : base + step;
}

template <class T>
inline __attribute__((always_inline)) HalfTile load_tile(const T* p) {
  HalfTile tile;
  for (int i = 0; i < kRegisters; ++i) tile.part[i] = load_bytes<Halves>(p + i * kRegisterHalves);
  return tile;
}
inline Halves drop(Halves v, const uint8_t* reset) {
  return v & (Halves)(__builtin_convertvector(load_bytes<HalvesBytes>(reset), Halves) == 0);
}
// Zeros where the state is dropped.
inline __attribute__((always_inline)) void drop(HalfTile& tile, const uint8_t* reset) {
  for (int i = 0; i < kRegisters; ++i) tile.part[i] = drop(tile.part[i], reset + i * kRegisterHalves);
}

template <class T>
inline __attribute__((always_inline)) void store_tile(T* p, const HalfTile& tile, Store how) {
  for (int i = 0; i < kRegisters; ++i) store_bytes(p + i * kRegisterHalves, tile.part[i], how);
}

// In the comments, the bits that an element's place is made of: i, of the register; s, of the step; l stays.
template <class T>
inline __attribute__((always_inline)) void to_runs(const HalfTile& tile, Singles steps[kRun]) {
  for (int s2 = 0; s2 < 2; ++s2) {
    Halves a[2];   // (s1 s0 i0)
    for (int i1 = 0; i1 < 2; ++i1) {
      const Halves &first = tile.part[2 * i1], &second = tile.part[2 * i1 + 1];
      a[i1] = s2 ? high_16(first, second) : low_16(first, second);
    }
    widen_pair<T>(low_32(a[0], a[1]), &steps[4 * s2], &steps[4 * s2 + 1]);   // (s0 i1 i0)
    widen_pair<T>(high_32(a[0], a[1]), &steps[4 * s2 + 2], &steps[4 * s2 + 3]);
  }
}

template <class T>
inline __attribute__((always_inline)) HalfTile from_runs(const Singles steps[kRun]) {
  Halves a[2][2], b[2][2];
  for (int s0 = 0; s0 < 2; ++s0) {
    const Halves first = narrow_pair<T>(steps[s0], steps[4 + s0]);   // (s2 i1 i0)
    const Halves second = narrow_pair<T>(steps[2 + s0], steps[6 + s0]);
    a[0][s0] = low_16(first, second), a[1][s0] = high_16(first, second);   // (i1 i0 s1)
  }
  HalfTile tile;
  for (int s2 = 0; s2 < 2; ++s2)
    b[s2][0] = low_16(a[s2][0], a[s2][1]), b[s2][1] = high_16(a[s2][0], a[s2][1]);   // (i0 s1 s0)
  for (int i1 = 0; i1 < 2; ++i1)
    tile.part[2 * i1] = low_64(b[0][i1], b[1][i1]), tile.part[2 * i1 + 1] = high_64(b[0][i1], b[1][i1]);
  return tile;
}

// ---- from lanes to runs in order, in float64 ------------------------------------------------------------------------

constexpr int lane_of_run(int run) { return 4 * (run % kRunsARegister) + run / kRunsARegister; }
constexpr int run_of_lane(int lane) { return kRunsARegister * (lane % 4) + lane / 4; }

// Two vectors, `low` for the runs at lower addresses.
struct WidePair {
  Vec low, high;
};

template <int From, int... I>
inline FloatVec part_of(Singles v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (From + I)...);
}
inline WidePair widen_lanes(Singles v) {
  const auto lanes = std::make_integer_sequence<int, kLanes>{};
  return {widen(part_of<0>(v, lanes)), widen(part_of<kLanes>(v, lanes))};
}
template <int... I>
inline WidePair sort_runs(const WidePair& v, std::integer_sequence<int, I...>) {
  return {__builtin_shufflevector(v.low, v.high, lane_of_run(I)...),
          __builtin_shufflevector(v.low, v.high, lane_of_run(kLanes + I)...)};
}
inline WidePair sort_runs(const WidePair& v) { return sort_runs(v, std::make_integer_sequence<int, kLanes>{}); }
inline WidePair wide_runs(Singles v) { return sort_runs(widen_lanes(v)); }

template <int... I>
inline Singles narrow_runs(const WidePair& v, std::integer_sequence<int, I...>) {
  const Singles sorted = __builtin_shufflevector(narrow(v.low), narrow(v.high), I...);
  return __builtin_shufflevector(sorted, sorted, run_of_lane(I)...);
}
inline Singles narrow_runs(const WidePair& v) { return narrow_runs(v, std::make_integer_sequence<int, kFloatLanes>{}); }

inline Singles singles(double value) { return (float)value - Singles{}; }

// Whether a lane is an infinity or a NaN.
inline bool any_not_finite(Singles v) {
  const Singles zero = v * 0.0f;
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)zero, (__m512)zero, _CMP_UNORD_Q) != 0;
#else
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)zero, (__m256)zero, _CMP_UNORD_Q)) != 0;
#endif
}

// Whether an element of 16 bits is below, or above, the limit.
inline bool any_below(Halves v, uint16_t limit) {
  const Halves limits = Halves{} + limit;
#if defined(__AVX512F__)
  return _mm512_cmplt_epu16_mask((__m512i)v, (__m512i)limits) != 0;
#else
  return _mm256_movemask_epi8((__m256i)(Halves)(larger(v, limits) != v)) != 0;
#endif
}
inline bool any_above(Halves v, uint16_t limit) { return any_below((uint16_t)0xffff - v, 0xffff - limit); }

// Sizes of gates as bits, which are in the same order. A gate of bfloat16 from here on has a normal float32 for its
// product with another; of float16 all have.
constexpr uint16_t kBFloatGateLow = (127 - 63) << 7;
inline Halves sizes(Halves gates) { return gates & 0x7fff; }

// The least size of gates, zeros apart, is at least this.
template <class T>
inline bool may_vanish(Halves least_but_zero) {
  return std::is_same_v<T, BFloat> && any_below(least_but_zero, kBFloatGateLow - 1);
}
// Of sizes, so that may_vanish can tell: less one, which makes zeros the largest.
inline Halves but_zero(Halves size) { return size - 1; }

// The first step in scan order.
template <bool Reverse>
inline void drop_first(HalfTile& tile) {
  if constexpr (Reverse) tile.part[kRegisters - 1][kRegisterHalves - 1] = 0;
  else tile.part[0][0] = 0;
}

// Steps in scan order: the first is at the highest address of a reversed run.
template <bool Reverse>
constexpr int step_at(int step) { return Reverse ? kRun - 1 - step : step; }

template <bool Reverse, class T>
inline void prefetch_half_tile(const T* base, int64_t step) {
  const char* tile = (const char*)tile_at<Reverse>(base, step);
  for (int byte = 0; byte < kTile * 2; byte += 64) __builtin_prefetch(tile + byte, 0, 2);
}

// The steps of all runs two by two, in scan order: token and gate of the first one of each two, the product of both gates,
// which is exact, and the state after both, from nothing.
struct Pairs {
  Singles tokens[kRun / 2], gates[kRun / 2], products[kRun / 2], values[kRun / 2];
};
template <class T, bool Reverse>
inline __attribute__((always_inline)) Pairs pairs_of(const HalfTile& x, const HalfTile& a) {
  Singles tokens[kRun], gates[kRun];
  to_runs<T>(a, gates);
  to_runs<T>(x, tokens);
  Pairs pairs;
  for (int k = 0; k < kRun / 2; ++k) {
    const int even = step_at<Reverse>(2 * k), odd = step_at<Reverse>(2 * k + 1);
    pairs.tokens[k] = tokens[even], pairs.gates[k] = gates[even];
    pairs.products[k] = gates[even] * gates[odd];
    pairs.values[k] = fma(gates[odd], tokens[even], tokens[odd]);
  }
  return pairs;
}

// The runs of a tile: product of the gates and state from nothing of each, from those of its pairs of steps.
struct WideRuns {
  WidePair a, v;
};
inline __attribute__((always_inline)) WideRuns runs_of(const Singles* product, const Singles* value) {
  Singles state = value[0];
  for (int k = 1; k < kRun / 2; ++k) state = fma(product[k], state, value[k]);
  WidePair factor = widen_lanes(product[0]);
  for (int k = 1; k < kRun / 2; ++k) {
    const WidePair next = widen_lanes(product[k]);
    factor = {factor.low * next.low, factor.high * next.high};
  }
  return {sort_runs(factor), wide_runs(state)};
}

#endif

}  // namespace
}  // namespace upsweep
