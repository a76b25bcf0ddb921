// How a compiled loop nest is ended early, and how it runs. Included by bindings/_loops.pyx alone.
//
// The first of a nest's arguments is its status. Loops load it now and then, and call poll_nest where it is not 0
// (python/upsweep/_compiler/llvm/loops/render.py). While a nest runs that may take long, a thread, the ticker, sets the status
// every kSignalInterval. The thread that called the nest then looks for signals; all others go on.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "common/signals.hpp"

namespace upsweep {
namespace {

enum NestStatus : int64_t { kRuns = 0, kNoMemory = 1, kInterrupted = 2, kLookForSignals = 3 };

using Nest = void (*)(int64_t* args, int64_t n_threads);

thread_local int64_t* called_nest = nullptr;   // the arguments of the nest that this thread has called

int64_t poll_nest(int64_t* args) {
  int64_t status = __atomic_load_n(args, __ATOMIC_RELAXED);
  if (status != kLookForSignals) return status != kRuns;
  if (called_nest != args) return 0;
  __atomic_compare_exchange_n(args, &status, (int64_t)kRuns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  if (!check_python_signals()) return 0;
  __atomic_store_n(args, (int64_t)kInterrupted, __ATOMIC_RELAXED);
  return 1;
}

// Sets the status of a nest at intervals while it lives.
class Ticker {
 public:
  explicit Ticker(int64_t* status) : process(getpid()), thread([this, status] { run(status); }) {}
  bool is_of_this_process() const { return process == getpid(); }
  ~Ticker() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stops = true;
    }
    changed.notify_one();
    thread.join();
  }

 private:
  void run(int64_t* status) {
    std::unique_lock<std::mutex> lock(mutex);
    while (!changed.wait_for(lock, kSignalInterval, [this] { return stops; })) {
      int64_t runs = kRuns;
      __atomic_compare_exchange_n(status, &runs, (int64_t)kLookForSignals, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool stops = false;
  const pid_t process;
  std::thread thread;   // the last, since it uses the others
};

// Returns the status. `work` is an estimate of the bytes that the nest moves, functions of mathematics counted as bytes.
int64_t run_nest(Nest nest, int64_t* args, int64_t n_threads, double work) {
  constexpr double kLongWork = 1 << 25;   // a few milliseconds; to start a thread takes 20 us
  int64_t* const saved = called_nest;
  called_nest = args;
  std::unique_ptr<Ticker> ticker;
  if (work > kLongWork) {
    try {
      ticker = std::make_unique<Ticker>(args);
    } catch (const std::exception&) {
      // The process may have no more threads or memory: then this call cannot be interrupted.
    }
  }
  nest(args, n_threads);
  // A handler may have forked. The ticker does not run in the child, which must not wait for it.
  if (ticker && !ticker->is_of_this_process()) ticker.release();
  ticker.reset();
  called_nest = saved;
  const int64_t status = __atomic_load_n(args, __ATOMIC_RELAXED);
  return status == kLookForSignals ? (int64_t)kRuns : status;
}

}  // namespace
}  // namespace upsweep
