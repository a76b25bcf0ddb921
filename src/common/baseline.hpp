// The yardsticks of the benchmarks: how fast this machine moves the bytes that a scan has to move.
//
//   copy   dst[i] = src[i]          bytes an element: one read, one write        (a discounted sum moves as much)
//   add    c[i] = a[i] + b[i]       bytes an element: two reads, one write       (a gated recurrence moves as much)
//
// Each thread takes one contiguous part. Called by bindings/_baseline.pyx; no kernel of the package depends on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

namespace upsweep {
// Internal linkage: the builds for several instruction sets live in one process.
namespace {

// How the bytes go: the C library's memcpy, vectors through the cache, or vectors past it.
enum CopyKind : int32_t { kMemcpy, kPlain, kStream };

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif
constexpr int64_t kUnroll = 4;
constexpr int64_t kPartBytes = 4096;   // parts of the threads are whole pages, so that none shares a cache line

typedef uint64_t Word __attribute__((vector_size(kVectorBytes)));

template <class V>
inline V load_from(const char* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

// p is aligned to the vector when Stream is set.
template <bool Stream, class V>
inline void store_to(char* p, V v) {
#if defined(__AVX512F__)
  if constexpr (Stream) return _mm512_stream_si512((__m512i*)p, (__m512i)v);
#elif defined(__AVX2__)
  if constexpr (Stream) return _mm256_stream_si256((__m256i*)p, (__m256i)v);
#elif defined(__SSE2__)
  if constexpr (Stream) return _mm_stream_si128((__m128i*)p, (__m128i)v);
#endif
  std::memcpy(p, &v, sizeof(V));
}

template <bool Stream>
inline void end_stores() {
#if defined(__SSE2__)
  if constexpr (Stream) _mm_sfence();
#endif
}

// Bytes before `target` is aligned to a vector; whole items, as numpy aligns its arrays to them.
inline int64_t bytes_to_alignment(const char* target, int64_t n) {
  return std::min<int64_t>(n, -(intptr_t)target & (kVectorBytes - 1));
}

// Calls step(offset) for each vector from `begin`, kUnroll of them in a turn; returns where it stopped.
template <class Step>
inline int64_t for_vectors(int64_t begin, int64_t n, Step step) {
  int64_t at = begin;
  for (; at + kUnroll * kVectorBytes <= n; at += kUnroll * kVectorBytes) {
    for (int64_t k = 0; k < kUnroll; ++k) step(at + k * kVectorBytes);
    asm volatile("" ::: "memory");   // or the compiler turns the loop into the memcpy it is compared with
  }
  return at;
}

template <bool Stream>
void copy_vectors(const char* src, char* dst, int64_t n) {
  const int64_t head = bytes_to_alignment(dst, n);
  std::memcpy(dst, src, head);
  const int64_t tail = for_vectors(head, n, [&](int64_t at) { store_to<Stream>(dst + at, load_from<Word>(src + at)); });
  std::memcpy(dst + tail, src + tail, n - tail);
  end_stores<Stream>();
}

template <class T, bool Stream>
void add_vectors(const char* a, const char* b, char* c, int64_t n) {
  typedef T Numbers __attribute__((vector_size(kVectorBytes)));
  auto add_items = [&](int64_t from, int64_t to) {
    for (int64_t at = from; at < to; at += sizeof(T)) {
      const T sum = load_from<T>(a + at) + load_from<T>(b + at);
      std::memcpy(c + at, &sum, sizeof(T));
    }
  };
  const int64_t head = bytes_to_alignment(c, n);
  add_items(0, head);
  const int64_t tail = for_vectors(head, n, [&](int64_t at) {
    store_to<Stream>(c + at, load_from<Numbers>(a + at) + load_from<Numbers>(b + at));
  });
  add_items(tail, n);
  end_stores<Stream>();
}

// part(begin, bytes) on each of the threads: a static split of [0, n).
template <class Part>
void split(int64_t n, int n_threads, Part part) {
#ifdef _OPENMP
#pragma omp parallel num_threads(n_threads)
  {
    const int64_t n_parts = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t pages = (n + kPartBytes - 1) / kPartBytes;
    const int64_t begin = std::min(n, pages * thread / n_parts * kPartBytes);
    const int64_t end = std::min(n, pages * (thread + 1) / n_parts * kPartBytes);
    if (begin < end) part(begin, end - begin);
  }
#else
  (void)n_threads;
  part(0, n);
#endif
}

inline void copy_bytes(const char* src, char* dst, int64_t n, int n_threads, int32_t kind) {
  split(n, n_threads, [&](int64_t begin, int64_t bytes) {
    if (kind == kMemcpy)
      std::memcpy(dst + begin, src + begin, bytes);
    else if (kind == kPlain)
      copy_vectors<false>(src + begin, dst + begin, bytes);
    else
      copy_vectors<true>(src + begin, dst + begin, bytes);
  });
}

// n is in bytes and a multiple of sizeof(T).
template <class T>
void add_numbers(const char* a, const char* b, char* c, int64_t n, int n_threads, int32_t kind) {
  split(n, n_threads, [&](int64_t begin, int64_t bytes) {
    if (kind == kPlain)
      add_vectors<T, false>(a + begin, b + begin, c + begin, bytes);
    else
      add_vectors<T, true>(a + begin, b + begin, c + begin, bytes);
  });
}

}  // namespace
}  // namespace upsweep
