// Tasks for the workers of one call, and how a call ends early.
//
// A task that fails, and a signal whose handler raises (Ctrl-C), end a call: no further task begins, workers that wait
// for each other stop waiting, and for_tasks throws in the thread that made the call. Long tasks call poll() once per
// tile. The thread that made the call then looks for signals every kSignalInterval; other workers read a flag.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>

#ifdef _OPENMP
#include <omp.h>
#include <sched.h>
#endif

#include "common/flush.hpp"
#include "common/tuning.hpp"

namespace upsweep {

// Runs the handlers of signals that have come, and returns whether one of them has raised. Set by the bindings; null:
// there are no signals. Called with or without the interpreter's lock.
inline bool (*check_signals)() = nullptr;

// Thrown where a call ends early. Python's exception is set by then.
struct Interrupted : std::exception {};

// The first exception of any worker of a call.
class Failure {
 public:
  void keep(std::exception_ptr exception) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!first) first = exception;
    failed.store(true, std::memory_order_relaxed);
  }
  bool any() const { return failed.load(std::memory_order_relaxed); }
  void rethrow() const {
    if (first) std::rethrow_exception(first);
  }

 private:
  std::mutex mutex;
  std::exception_ptr first;
  std::atomic<bool> failed{false};
};

// The state of the call whose tasks a thread runs; null outside of for_tasks, where no other thread runs.
struct Worker {
  const Failure* failure;
  bool made_the_call;
};
inline constinit thread_local Worker worker{nullptr, true};
inline constinit thread_local int64_t next_signal_check = 0;   // nanoseconds of the steady clock

namespace {

// The interpreter's lock may be held by another thread for 5 ms.
constexpr std::chrono::nanoseconds kSignalInterval = std::chrono::milliseconds(100);

// Throws Interrupted if the call is to end. Costs 20 to 30 ns: a tile should take a few microseconds.
inline void poll() {
  if (worker.failure && worker.failure->any()) throw Interrupted();
  if (!worker.made_the_call) return;
  const int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (now < next_signal_check) return;
  next_signal_check = now + kSignalInterval.count();
  const FlushSubnormals keep_subnormals(true, false);   // for Python's code
  const Worker saved = worker;
  worker = {nullptr, true};   // a handler may call kernels
  const bool raised = check_signals && check_signals();
  worker = saved;
  if (raised) throw Interrupted();
}

inline int threads_worth(int64_t n_threads, int64_t bytes, int64_t n_tasks) {
#ifdef _OPENMP
  return (int)std::max<int64_t>(1, std::min({n_threads, bytes / kWorthAThread, n_tasks}));
#else
  (void)n_threads, (void)bytes, (void)n_tasks;
  return 1;
#endif
}

// body(task, thread) for every task, claimed in increasing order. Throws the first exception of a body, after all
// workers have stopped.
template <class Body>
void for_tasks(int64_t n_tasks, int n_threads, bool flush, Body body) {
  std::atomic<int64_t> next{0};
  Failure failure;
  auto work = [&](int thread, bool made_the_call) {
    const FlushSubnormals guard(flush);
    const Worker saved = worker;
    worker = {&failure, made_the_call};
    try {
      // poll() comes before a task is claimed: a claimed one runs, since others may wait for it.
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) {
        body(task, thread);
        if (task + 1 < n_tasks) poll();
      }
    } catch (...) {
      failure.keep(std::current_exception());
    }
    worker = saved;
  };
#ifdef _OPENMP
  if (n_threads > 1) {
    const bool made_the_call = worker.made_the_call;
    std::atomic<int> n_finished{0};
#pragma omp parallel num_threads(n_threads)
    {
      const bool is_first = omp_get_thread_num() == 0;
      work(omp_get_thread_num(), is_first && made_the_call);
      n_finished.fetch_add(1, std::memory_order_release);
      // The thread that made the call polls until the others have finished.
      while (is_first && made_the_call && n_finished.load(std::memory_order_acquire) < omp_get_num_threads()) {
        try {
          if (!failure.any()) poll();
        } catch (...) {
          failure.keep(std::current_exception());
        }
        sched_yield();
      }
    }
    return failure.rethrow();
  }
#endif
  work(0, worker.made_the_call);
  failure.rethrow();
}

// Spins until another worker has set the flag, or the call ends early.
inline void publish(std::atomic<uint8_t>& flag) { flag.store(1, std::memory_order_release); }
inline void wait_for(const std::atomic<uint8_t>& flag) {
  for (int spins = 0; !flag.load(std::memory_order_acquire);) {
    if (++spins % 64 == 0) poll();
#ifdef _OPENMP
    if (spins > 4096) sched_yield();   // more threads than cores: let the one waited for run
#endif
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

}  // namespace
}  // namespace upsweep
