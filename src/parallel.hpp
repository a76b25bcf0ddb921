// Tasks for the workers of one call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#include <sched.h>
#endif

#include "flush.hpp"

namespace upsweep {
namespace {

constexpr int64_t kWorthAThread = 128 << 10;   // bytes of input below which a thread costs more than it saves

inline int threads_worth(int64_t n_threads, int64_t bytes, int64_t n_tasks) {
#ifdef _OPENMP
  return (int)std::max<int64_t>(1, std::min({n_threads, bytes / kWorthAThread, n_tasks}));
#else
  (void)n_threads, (void)bytes, (void)n_tasks;
  return 1;
#endif
}

// body(task, thread) for every task, claimed in increasing order.
template <class Body>
void for_tasks(int64_t n_tasks, int n_threads, bool flush, Body body) {
  std::atomic<int64_t> next{0};
  auto work = [&](int thread) {
    const FlushSubnormals guard(flush);
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) body(task, thread);
  };
#ifdef _OPENMP
  if (n_threads > 1) {
#pragma omp parallel num_threads(n_threads)
    work(omp_get_thread_num());
    return;
  }
#endif
  work(0);
}

// Spins until another worker has set the flag.
inline void publish(std::atomic<uint8_t>& flag) { flag.store(1, std::memory_order_release); }
inline void wait_for(const std::atomic<uint8_t>& flag) {
  for (int spins = 0; !flag.load(std::memory_order_acquire);) {
#ifdef _OPENMP
    if (spins < 4096) ++spins;
    else sched_yield();   // more threads than cores: let the one waited for run
#endif
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

}  // namespace
}  // namespace upsweep
