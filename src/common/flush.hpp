// Flush-to-zero for a scope: in a decaying scan every state ends as a subnormal, and those cost a hundred
// times an ordinary multiply-add. The caller's mode comes back at the end of the scope.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace upsweep {
namespace {

class FlushSubnormals {
 public:
  // flush=false is for a scope inside of one that flushes.
  explicit FlushSubnormals(bool enable, bool flush = true) : enabled(enable) {
    if (!enabled) return;
#if defined(__x86_64__)
    constexpr uint32_t kBits = 0x8040u;   // results (bit 15) and operands (bit 6)
    saved = _mm_getcsr();
    _mm_setcsr(flush ? (uint32_t)saved | kBits : (uint32_t)saved & ~kBits);
#elif defined(__aarch64__)
    constexpr uint64_t kBit = 1ull << 24;
    asm volatile("mrs %0, fpcr" : "=r"(saved));
    asm volatile("msr fpcr, %0" : : "r"(flush ? saved | kBit : saved & ~kBit));
#endif
  }
  ~FlushSubnormals() {
    if (!enabled) return;
#if defined(__x86_64__)
    // Exception flags raised meanwhile stay as the caller had them.
    _mm_setcsr((uint32_t)saved);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(saved));
#endif
  }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  const bool enabled;
  uint64_t saved = 0;
};

}  // namespace
}  // namespace upsweep
