// What the parts of histograms share: elements as the keys that they are compared as, and weights, block by block.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "histogram/histogram.hpp"
#include "common/vec.hpp"

namespace upsweep {
namespace {

constexpr int64_t kBlock = 1024;                  // elements that stay in the first cache
constexpr int64_t kChunk = 1 << 16;               // elements of a task

// Of the same size, for floating keys.
template <class Key>
using Pattern = std::conditional_t<sizeof(Key) == 4, uint32_t, uint64_t>;

template <class Key, class T>
inline Key to_key(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return (Key)to_double(value);
  } else if constexpr (std::is_same_v<T, BFloat>) {
    const uint32_t bits = (uint32_t)value.bits << 16;
    float number;
    std::memcpy(&number, &bits, sizeof(number));
    return (Key)number;
  } else {
    return (Key)value;
  }
}

template <class T>
inline T load_number(const char* source, bool swapped) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, source, sizeof(T));
  if (swapped) std::reverse(bytes, bytes + sizeof(T));
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <class Key, class T>
void convert_keys(const char* source, int64_t stride, int64_t n, bool swapped, Key* to) {
  int64_t first = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, Half> && std::is_same_v<Key, float>)
    if (!swapped && stride == (int64_t)sizeof(T))
      for (; first + 8 <= n; first += 8)   // the compiler converts one by one
        _mm256_storeu_ps(to + first, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(source + first * sizeof(T)))));
#endif
  if (!swapped && stride == (int64_t)sizeof(T))
    for (int64_t k = first; k < n; ++k) to[k] = to_key<Key>(load_number<T>(source + k * sizeof(T), false));
  else
    for (int64_t k = 0; k < n; ++k) to[k] = to_key<Key>(load_number<T>(source + k * stride, swapped));
}

template <class Key>
void gather_keys(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, Key* to) {
  if constexpr (std::is_same_v<Key, float>) {
    switch (dtype) {
      case kBool:
        for (int64_t k = 0; k < n; ++k) to[k] = source[k * stride] != 0;
        return;
      case kInt8: return convert_keys<Key, int8_t>(source, stride, n, swapped, to);
      case kUInt8: return convert_keys<Key, uint8_t>(source, stride, n, swapped, to);
      case kInt16: return convert_keys<Key, int16_t>(source, stride, n, swapped, to);
      case kUInt16: return convert_keys<Key, uint16_t>(source, stride, n, swapped, to);
      case kHalf: return convert_keys<Key, Half>(source, stride, n, swapped, to);
      case kBFloat: return convert_keys<Key, BFloat>(source, stride, n, swapped, to);
      default: return convert_keys<Key, float>(source, stride, n, swapped, to);
    }
  } else if constexpr (std::is_same_v<Key, double>) {
    switch (dtype) {
      case kInt32: return convert_keys<Key, int32_t>(source, stride, n, swapped, to);
      case kUInt32: return convert_keys<Key, uint32_t>(source, stride, n, swapped, to);
      default: return convert_keys<Key, double>(source, stride, n, swapped, to);
    }
  } else {
    convert_keys<Key, Key>(source, stride, n, swapped, to);
  }
}

// read(source, stride, n, done) for each stretch of elements [from, from + n), counted over all axes, the last fastest.
template <class Read>
void each_stretch(const HistogramProblem& p, const char* base, const int64_t* strides, int64_t from, int64_t n,
                  Read read) {
  const int last = p.n_axes - 1;
  const int64_t length = p.shape[last];
  int64_t row = from / length, col = from % length;
  for (int64_t done = 0; done < n; ++row, col = 0) {
    const char* source = base + col * strides[last];
    for (int64_t axis = last - 1, rest = row; axis >= 0; rest /= p.shape[axis], --axis)
      source += rest % p.shape[axis] * strides[axis];
    const int64_t count = std::min(length - col, n - done);
    read(source, strides[last], count, done);
    done += count;
  }
}

inline bool side_by_side(const HistogramProblem& p, const char* base, const int64_t* strides, bool swapped,
                         int64_t size) {
  return p.n_axes == 1 && strides[0] == size && !swapped && (uintptr_t)base % size == 0;
}

// The keys [from, from + n), n <= kBlock: where they lie, or in the buffer.
template <class Key>
const Key* read_keys(const HistogramProblem& p, int64_t from, int64_t n, Key* buffer) {
  if (dtype_size(p.dtype) == sizeof(Key) && side_by_side(p, p.x, p.strides, p.swapped, sizeof(Key)))
    return (const Key*)p.x + from;
  each_stretch(p, p.x, p.strides, from, n, [&](const char* source, int64_t stride, int64_t count, int64_t done) {
    gather_keys(source, stride, count, p.dtype, p.swapped, buffer + done);
  });
  return buffer;
}

// Sums are of doubles, or of integers modulo 2^64.
template <class Sum>
const Sum* read_weights(const HistogramProblem& p, int64_t from, int64_t n, Sum* buffer) {
  if (std::is_same_v<Sum, double> && p.weight_dtype == kDouble &&
      side_by_side(p, p.weights, p.weight_strides, p.weight_swapped, sizeof(double)))
    return (const Sum*)p.weights + from;
  const auto read = [&](const char* source, int64_t stride, int64_t count, int64_t done) {
    gather(source, stride, count, p.weight_dtype, p.weight_swapped, buffer + done);
  };
  each_stretch(p, p.weights, p.weight_strides, from, n, read);
  return buffer;
}

template <class Visit>
auto with_key_type(int32_t dtype, Visit visit) {
  switch (key_type(dtype)) {
    case kFloat: return visit(float{});
    case kDouble: return visit(double{});
    case kInt64: return visit(int64_t{});
    default: return visit(uint64_t{});
  }
}

}  // namespace
}  // namespace upsweep
