// What all ways of counting share: keys of any integer type, byte order and stride, block by block; weights likewise;
// rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bincount/bincount.hpp"
#include "common/parallel.hpp"
#include "common/tuning.hpp"

namespace upsweep {
namespace {

constexpr int64_t kBlock = 1024;   // keys that are counted and checked at a time
constexpr int64_t kPollBlocks = 64;

// After block number `block` of a long loop.
inline void poll_blocks(int64_t block) {
  if (block % kPollBlocks == kPollBlocks - 1) poll();
}

template <class Key>
using Unsigned = std::make_unsigned_t<Key>;

template <class Visit>
auto with_key_type(int32_t dtype, Visit visit) {
  switch (dtype) {
    case kInt8: return visit(int8_t{});
    case kUInt8: return visit(uint8_t{});
    case kInt16: return visit(int16_t{});
    case kUInt16: return visit(uint16_t{});
    case kInt32: return visit(int32_t{});
    case kUInt32: return visit(uint32_t{});
    case kUInt64: return visit(uint64_t{});
    default: return visit(int64_t{});
  }
}

// The same by the width alone: only the largest key tells signed numbers from others.
template <class Visit>
auto with_key_width(int32_t dtype, Visit visit) {
  return with_key_type(dtype, [&](auto key) { return visit(Unsigned<decltype(key)>{}); });
}

// How many keys of a type are not negative, or n_bins where that is less.
inline uint64_t valid_bins(int32_t dtype, int64_t n_bins) {
  const uint64_t largest =
      with_key_type(dtype, [](auto key) { return (uint64_t)std::numeric_limits<decltype(key)>::max(); });
  return n_bins == 0 ? 0 : std::min(largest, (uint64_t)(n_bins - 1)) + 1;
}

// Keys are compared as unsigned numbers: negative ones are behind all bins.
//
// Another thread or process may change keys while they are counted. A check of a block says nothing about a second read
// of it: an index is either masked, or compared in the read that it comes from.
template <class Key>
inline Unsigned<Key> key_at(const char* keys, int64_t at) {
  Unsigned<Key> key;
  std::memcpy(&key, keys + at * (int64_t)sizeof(Key), sizeof(Key));
  return key;
}

// A key that is compared and then used as an index: the compiler may not read it from memory again in between.
template <class Key>
inline uint64_t index_at(const char* keys, int64_t at) {
  uint64_t index = key_at<Key>(keys, at);
  asm("" : "+r"(index));
  return index;
}

inline uint8_t swap_bytes_of(uint8_t value) { return value; }
inline uint16_t swap_bytes_of(uint16_t value) { return __builtin_bswap16(value); }
inline uint32_t swap_bytes_of(uint32_t value) { return __builtin_bswap32(value); }
inline uint64_t swap_bytes_of(uint64_t value) { return __builtin_bswap64(value); }

template <class Key, bool Swapped>
inline void read_keys(const char* source, int64_t stride, int64_t n, Unsigned<Key>* to) {
#pragma GCC unroll 8
  for (int64_t at = 0; at < n; ++at) {
    Unsigned<Key> key;
    std::memcpy(&key, source + at * stride, sizeof(Key));
    to[at] = Swapped ? swap_bytes_of(key) : key;
  }
}

// A block is looked at faster than memory gives it, and then worked on while memory would rest: so the next one is
// asked for. Behind the end of an array nothing is read, only asked for.
inline void fetch_ahead(const char* block, int64_t n_bytes) {
  constexpr int64_t kLine = 64, kMost = kBlock * 8;
  if (n_bytes <= 0 || n_bytes > kMost) return;
  for (int64_t at = 0; at < n_bytes; at += kLine) __builtin_prefetch(block + n_bytes + at);
}

// visit(at, turn) for the keys of a block, whose turns are 0 to 7 again and again. Keys are asked for a little ahead, a
// cache line at a time: the processor's own prefetching ends with a page, and asking for a whole block at once keeps
// the loads of a table waiting (Zen 4, 256 to 10,000 bins: 0.97 to 1.3 ns a key instead of 0.45 to 0.6).
template <class Key, class Visit>
inline void each_key_of_block(const char* keys, int64_t n, Visit visit) {
  constexpr int kTurns = 8;
  constexpr int64_t kLine = 64 / (int64_t)sizeof(Key);
  int64_t at = 0;
  for (; at + kLine <= n; at += kLine) {
    __builtin_prefetch(keys + at * (int64_t)sizeof(Key) + count_tuning::kAheadBytes);
    for (int64_t first = at; first < at + kLine; first += kTurns)
      for (int turn = 0; turn < kTurns; ++turn) visit(first + turn, turn);
  }
  for (; at < n; ++at) visit(at, 0);
}

// One row of keys.
struct Row {
  const char* keys;
  int64_t stride;
  bool swapped;
  int32_t shift = 0;   // CountProblem::key_shift
};

// The n <= kBlock keys from `first` on, contiguous and native: where they lie, or in the buffer. Ahead: the next block
// is asked for; else only where keys are copied.
template <class Key, bool Ahead = true>
inline const char* read_block(const Row& row, int64_t first, int64_t n, Unsigned<Key>* buffer) {
  const char* source = row.keys + first * row.stride;
  if (Ahead || row.stride != (int64_t)sizeof(Key) || row.swapped || row.shift) fetch_ahead(source, n * row.stride);
  if (row.stride == (int64_t)sizeof(Key)) {
    if (!row.swapped && row.shift == 0) return source;
    row.swapped ? read_keys<Key, true>(source, sizeof(Key), n, buffer)
                : read_keys<Key, false>(source, sizeof(Key), n, buffer);
  } else if (row.swapped) {
    read_keys<Key, true>(source, row.stride, n, buffer);
  } else {
    read_keys<Key, false>(source, row.stride, n, buffer);
  }
  for (int64_t at = 0; at < n && row.shift > 0; ++at) buffer[at] = (Unsigned<Key>)(buffer[at] >> row.shift);
  return (const char*)buffer;
}

// visit(keys, first, n) for keys [from, to), at most kBlock at a time; it ends where visit says false.
template <class Key, bool Ahead = true, class Visit>
inline bool each_block(const Row& row, int64_t from, int64_t to, Visit visit) {
  Unsigned<Key> buffer[kBlock];
  for (int64_t first = from; first < to; first += kBlock) {
    const int64_t n = std::min(kBlock, to - first);
    if (!visit(read_block<Key, Ahead>(row, first, n, buffer), first, n)) return false;
    poll_blocks((first - from) / kBlock);
  }
  return true;
}

// Which bits are set in any key of a block, and which in all: where these are the same, so are all keys.
template <class Key>
struct Bits2 {
  Unsigned<Key> any = 0, all = (Unsigned<Key>)~Unsigned<Key>(0);
};
template <class Key>
inline Bits2<Key> bits_of(const char* keys, int64_t n) {
  Bits2<Key> bits;
  for (int64_t at = 0; at < n; ++at) {
    const Unsigned<Key> key = key_at<Key>(keys, at);
    bits.any |= key, bits.all &= key;
  }
  return bits;
}

// Whether all keys of a block may be equal: three of them are.
template <class Key>
inline bool may_be_equal(const char* keys, int64_t n) {
  const Unsigned<Key> first = key_at<Key>(keys, 0);
  return first == key_at<Key>(keys, n / 2) && first == key_at<Key>(keys, n - 1);
}

// Whether a key is above the limit; the top bit of none of them is set.
template <class Key>
inline bool is_any_above(const char* keys, int64_t n, uint64_t limit) {
  uint64_t bits = 0;
  for (int64_t at = 0; at < n; ++at) bits |= limit - key_at<Key>(keys, at);
  return bits >> 63;
}

// The largest key of a block, in the type's own order; below 0 where all are negative.
template <class Key>
inline Key largest_of(const char* keys, int64_t n) {
  Key largest = (Key)key_at<Key>(keys, 0);
  for (int64_t at = 1; at < n; ++at) largest = std::max(largest, (Key)key_at<Key>(keys, at));
  return largest;
}
template <class Key>
inline Unsigned<Key> largest_unsigned(const char* keys, int64_t n) {
  return largest_of<Unsigned<Key>>(keys, n);
}

// ---- weights -------------------------------------------------------------------------------------------------------

inline bool is_complex(int32_t dtype) { return dtype == kComplexFloat || dtype == kComplexDouble; }

inline void gather_weights(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, double* to) {
  if (is_complex(dtype)) return gather(source, stride, n, dtype, swapped, (Complex*)to);
  gather(source, stride, n, dtype, swapped, to);
}
inline void gather_weights(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, uint64_t* to) {
  gather(source, stride, n, dtype, swapped, to);
}

// One row of weights, read as numbers of type Sum: float64, or integers modulo 2^64.
template <class Sum>
struct Weights {
  const char* data;
  int64_t stride, sum_stride, n_given;   // n_given: in memory format, a complex one counting once
  int64_t n_sums;                        // numbers a key: a complex one counts twice
  int32_t dtype;
  bool swapped, in_place, flat;

  Weights(const CountProblem& p, const char* data)
      : data(data), stride(p.weight_stride), sum_stride(p.sum_stride), n_given(p.n_sums),
        n_sums(p.n_sums * (is_complex(p.weight_dtype) ? 2 : 1)), dtype(p.weight_dtype), swapped(p.weight_swapped) {
    const int64_t item = dtype_size(dtype);
    flat = n_given == 1 || (sum_stride == item && stride == n_given * item);
    const bool same = std::is_same_v<Sum, double> ? dtype == kDouble || dtype == kComplexDouble
                                                  : dtype == kInt64 || dtype == kUInt64;
    in_place = same && flat && !swapped && stride == n_given * item && (uintptr_t)data % alignof(Sum) == 0;
  }
  // n_sums numbers for each of the n keys from `first` on; the buffer has place for them.
  const Sum* read(int64_t first, int64_t n, Sum* buffer) const {
    const char* source = data + first * stride;
    if (in_place) return (const Sum*)source;
    if (n_given == 1) {
      gather_weights(source, stride, n, dtype, swapped, buffer);
    } else if (flat) {
      gather_weights(source, sum_stride, n * n_given, dtype, swapped, buffer);
    } else {
      for (int64_t at = 0; at < n; ++at)
        gather_weights(source + at * stride, sum_stride, n_given, dtype, swapped, buffer + at * n_sums);
    }
    return buffer;
  }
};

// ---- rows ----------------------------------------------------------------------------------------------------------

// Where row `number` begins, dims counted in C order.
inline int64_t row_offset(const CountProblem& p, const int64_t* strides, int64_t number) {
  int64_t offset = 0;
  for (int dim = p.n_dims - 1; dim >= 0; --dim) {
    offset += number % p.dims[dim] * strides[dim];
    number /= p.dims[dim];
  }
  return offset;
}
inline Row row_of(const CountProblem& p, int64_t number) {
  return {p.keys + row_offset(p, p.key_row_strides, number), p.key_stride, p.key_swapped != 0, p.key_shift};
}
template <class Sum>
inline Weights<Sum> weights_of(const CountProblem& p, int64_t number) {
  return {p, p.weights + row_offset(p, p.weight_row_strides, number)};
}

}  // namespace
}  // namespace upsweep
