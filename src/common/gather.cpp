// What the kernels cannot read in place is brought in piece by piece, in the type that they compute in: other types,
// other byte orders, strides that fit none of them. Never a copy of the whole array.
//
// Called by the strips (scan/strips.hpp) and the windows for tiles, states and gammas, by the counts for weights.

#include "common/gather.hpp"

#include "common/vec.hpp"

namespace upsweep {
namespace {

template <class T>
inline T swap_bytes(T value) {
  if constexpr (sizeof(T) == 1) return value;
  std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>> bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if constexpr (sizeof(T) == 2) bits = __builtin_bswap16(bits);
  else if constexpr (sizeof(T) == 4) bits = __builtin_bswap32(bits);
  else bits = __builtin_bswap64(bits);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T, class Part>
inline T swap_parts(T value) {
  Part parts[2];
  std::memcpy(parts, &value, sizeof(T));
  for (Part& part : parts) part = swap_bytes(part);
  std::memcpy(&value, parts, sizeof(T));
  return value;
}

struct ComplexFloat {
  float re, im;
};
template <>
inline ComplexFloat swap_bytes(ComplexFloat value) { return swap_parts<ComplexFloat, float>(value); }
template <>
inline Complex swap_bytes(Complex value) { return swap_parts<Complex, double>(value); }

template <class To, class From>
inline To convert(From value) {
  if constexpr (std::is_same_v<From, ComplexFloat> || std::is_same_v<From, Complex>) {
    if constexpr (std::is_same_v<To, Complex>) return Complex{(double)value.re, (double)value.im};
    else return To(0);   // the drivers never ask for it
  } else if constexpr (std::is_same_v<To, uint64_t>) {
    if constexpr (std::is_integral_v<From>) return (uint64_t)(int64_t)value;   // sign-extended, then modulo 2^64
    else return 0;
  } else {
    double real;
    if constexpr (std::is_integral_v<From>) real = (double)value;
    else real = to_double(value);
    if constexpr (std::is_same_v<To, Complex>) return Complex{real, 0.0};
    else return real;
  }
}
template <>
inline uint64_t convert<uint64_t, uint64_t>(uint64_t value) { return value; }

template <class T>
constexpr bool kHasVectors = std::is_same_v<T, Half> || std::is_same_v<T, BFloat> || std::is_same_v<T, float> ||
                             std::is_same_v<T, double>;

// Vectors of the elements of a block of a matrix, 4 rows of 4.
typedef uint64_t Four __attribute__((vector_size(32)));

// The matrix, all blocks of it, and what is left at its right and lower borders.
template <class T>
void transpose_blocks(const T* from, int64_t rows, int64_t columns, T* to) {
  int64_t whole_rows = 0, whole_columns = 0;
  if constexpr (sizeof(T) == 8) {
    whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
    for (int64_t column = 0; column < whole_columns; column += 4)
      for (int64_t row = 0; row < whole_rows; row += 4) {
        const T* block = from + row * columns + column;
        Four v[4], pairs[4];
        for (int k = 0; k < 4; ++k) v[k] = load_bytes<Four>(block + k * columns);
        for (int k = 0; k < 4; k += 2) {
          pairs[k] = __builtin_shufflevector(v[k], v[k + 1], 0, 4, 2, 6);
          pairs[k + 1] = __builtin_shufflevector(v[k], v[k + 1], 1, 5, 3, 7);
        }
        for (int k = 0; k < 2; ++k) {
          v[k] = __builtin_shufflevector(pairs[k], pairs[k + 2], 0, 1, 4, 5);
          v[k + 2] = __builtin_shufflevector(pairs[k], pairs[k + 2], 2, 3, 6, 7);
        }
        for (int k = 0; k < 4; ++k) std::memcpy(to + (column + k) * rows + row, &v[k], sizeof(Four));
      }
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = row < whole_rows ? whole_columns : 0; column < columns; ++column)
      to[column * rows + row] = from[row * columns + column];
}

// The lanes of a vector from the last one on, and every second one of two vectors.
template <int... I>
inline Vec turned(Vec v, std::integer_sequence<int, I...>) { return __builtin_shufflevector(v, v, (kLanes - 1 - I)...); }
template <int... I>
inline Vec evens(Vec a, Vec b, std::integer_sequence<int, I...>) { return __builtin_shufflevector(a, b, (2 * I)...); }

template <class From, class To>
void gather_as(const char* source, int64_t stride, int64_t n, bool swapped, To* to) {
  if constexpr (kHasVectors<From> && std::is_same_v<To, double>) {
    if (!swapped && stride == (int64_t)sizeof(From)) {
      const From* from = (const From*)source;
      int64_t k = 0;
      for (; k + kLanes <= n; k += kLanes) store(to + k, load(from + k));
      if (k < n) store_some(to + k, load_some(from + k, (int)(n - k)), (int)(n - k));
      return;
    }
    if (!swapped && stride == -(int64_t)sizeof(From)) {
      const From* from = (const From*)source;
      int64_t k = 0;
      for (; k + kLanes <= n; k += kLanes)
        store(to + k, turned(load(from - k - (kLanes - 1)), std::make_integer_sequence<int, kLanes>{}));
      for (; k < n; ++k) to[k] = to_double(load_bytes<From>(from - k));
      return;
    }
    if (!swapped && stride == 2 * (int64_t)sizeof(From)) {   // parts of complex numbers, columns of two
      const From* from = (const From*)source;
      int64_t k = 0;
      for (; k + kLanes < n; k += kLanes)
        store(to + k, evens(load(from + 2 * k), load(from + 2 * k + kLanes), std::make_integer_sequence<int, kLanes>{}));
      for (; k < n; ++k) to[k] = to_double(load_bytes<From>(from + 2 * k));
      return;
    }
  }
  if (swapped) {
    constexpr int64_t kBlock = 64;
    From block[kBlock];
    for (int64_t k = 0; k < n; k += kBlock) {
      const int64_t count = n - k < kBlock ? n - k : kBlock;
      for (int64_t j = 0; j < count; ++j) block[j] = swap_bytes(load_bytes<From>(source + (k + j) * stride));
      gather_as<From>((const char*)block, sizeof(From), count, false, to + k);
    }
  } else if (stride == (int64_t)sizeof(From)) {
    for (int64_t k = 0; k < n; ++k) to[k] = convert<To>(load_bytes<From>(source + k * sizeof(From)));
  } else {
    for (int64_t k = 0; k < n; ++k) to[k] = convert<To>(load_bytes<From>(source + k * stride));
  }
}

template <class To>
void gather_any(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, To* to) {
  switch (dtype) {
    case kBool:
      for (int64_t k = 0; k < n; ++k) to[k] = convert<To>((uint8_t)(source[k * stride] != 0));
      return;
    case kInt8: return gather_as<int8_t>(source, stride, n, swapped, to);
    case kUInt8: return gather_as<uint8_t>(source, stride, n, swapped, to);
    case kInt16: return gather_as<int16_t>(source, stride, n, swapped, to);
    case kUInt16: return gather_as<uint16_t>(source, stride, n, swapped, to);
    case kInt32: return gather_as<int32_t>(source, stride, n, swapped, to);
    case kUInt32: return gather_as<uint32_t>(source, stride, n, swapped, to);
    case kInt64: return gather_as<int64_t>(source, stride, n, swapped, to);
    case kUInt64: return gather_as<uint64_t>(source, stride, n, swapped, to);
    case kHalf: return gather_as<Half>(source, stride, n, swapped, to);
    case kBFloat: return gather_as<BFloat>(source, stride, n, swapped, to);
    case kFloat: return gather_as<float>(source, stride, n, swapped, to);
    case kDouble: return gather_as<double>(source, stride, n, swapped, to);
    case kComplexFloat: return gather_as<ComplexFloat>(source, stride, n, swapped, to);
    default: return gather_as<Complex>(source, stride, n, swapped, to);
  }
}

// Doubles, rounded once.
template <class To>
void scatter_real(const double* from, int64_t n, char* target, int64_t stride) {
  if (stride == (int64_t)sizeof(To)) {
    To* to = (To*)target;
    int64_t k = 0;
    for (; k + kLanes <= n; k += kLanes) store(to + k, load(from + k));
    if (k < n) store_some(to + k, load_some(from + k, (int)(n - k)), (int)(n - k));
    return;
  }
  for (int64_t k = 0; k < n; ++k) {
    const To value = from_double<To>(from[k]);
    std::memcpy(target + k * stride, &value, sizeof(To));
  }
}

template <class To, class From, class Convert>
void scatter_as(const From* from, int64_t n, char* target, int64_t stride, Convert convert_one) {
  if (stride == (int64_t)sizeof(To)) {   // a stride that the compiler knows
    for (int64_t k = 0; k < n; ++k) {
      const To value = convert_one(from[k]);
      std::memcpy(target + k * sizeof(To), &value, sizeof(To));
    }
    return;
  }
  for (int64_t k = 0; k < n; ++k) {
    const To value = convert_one(from[k]);
    std::memcpy(target + k * stride, &value, sizeof(To));
  }
}

}  // namespace

int64_t dtype_size(int32_t dtype) {
  switch (dtype) {
    case kBool: case kInt8: case kUInt8: return 1;
    case kInt16: case kUInt16: case kHalf: case kBFloat: return 2;
    case kInt32: case kUInt32: case kFloat: return 4;
    case kComplexDouble: return 16;
    default: return 8;
  }
}

template <class T>
void transpose(const T* from, int64_t rows, int64_t columns, T* to) { transpose_blocks(from, rows, columns, to); }
template void transpose(const double*, int64_t, int64_t, double*);
template void transpose(const uint64_t*, int64_t, int64_t, uint64_t*);
template void transpose(const Complex*, int64_t, int64_t, Complex*);

void gather(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, double* to) {
  gather_any(source, stride, n, dtype, swapped, to);
}
void gather(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, Complex* to) {
  gather_any(source, stride, n, dtype, swapped, to);
}
void gather(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, uint64_t* to) {
  gather_any(source, stride, n, dtype, swapped, to);
}

void scatter(const double* from, int64_t n, int32_t dtype, char* target, int64_t stride) {
  switch (dtype) {
    case kHalf: return scatter_real<Half>(from, n, target, stride);
    case kBFloat: return scatter_real<BFloat>(from, n, target, stride);
    case kFloat: return scatter_real<float>(from, n, target, stride);
    default: return scatter_real<double>(from, n, target, stride);
  }
}
void scatter(const Complex* from, int64_t n, int32_t dtype, char* target, int64_t stride) {
  if (dtype == kComplexFloat)
    return scatter_as<ComplexFloat>(from, n, target, stride,
                                    [](Complex v) { return ComplexFloat{(float)v.re, (float)v.im}; });
  scatter_as<Complex>(from, n, target, stride, [](Complex v) { return v; });
}
void scatter(const uint64_t* from, int64_t n, int32_t dtype, char* target, int64_t stride) {
  if (dtype == kBool)   // numpy's sum of booleans in booleans is "any"
    return scatter_as<uint8_t>(from, n, target, stride, [](uint64_t v) { return (uint8_t)(v != 0); });
  switch (dtype_size(dtype)) {
    case 1: return scatter_as<uint8_t>(from, n, target, stride, [](uint64_t v) { return (uint8_t)v; });
    case 2: return scatter_as<uint16_t>(from, n, target, stride, [](uint64_t v) { return (uint16_t)v; });
    case 4: return scatter_as<uint32_t>(from, n, target, stride, [](uint64_t v) { return (uint32_t)v; });
    default: return scatter_as<uint64_t>(from, n, target, stride, [](uint64_t v) { return v; });
  }
}

}  // namespace upsweep
