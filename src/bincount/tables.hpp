// Counts of one row in private tables.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bincount/keys.hpp"
#include "common/tuning.hpp"

namespace upsweep {

using namespace count_tuning;

struct AlignedDelete {
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{64}); }
};
template <class T>
using Scratch = std::unique_ptr<T[], AlignedDelete>;   // not initialised: whoever uses it first touches it
template <class T>
inline Scratch<T> new_scratch(int64_t n) {
  return Scratch<T>(static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64})));
}

// For what is larger than a few pages: large ones are asked for, since each small one costs a visit to the kernel.
template <class T>
inline Scratch<T> new_large_scratch(int64_t n) {
  Scratch<T> memory = new_scratch<T>(n);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kLarge = 2 << 20;
  const uintptr_t first = ((uintptr_t)memory.get() + kLarge - 1) / kLarge * kLarge;
  const uintptr_t end = (uintptr_t)(memory.get() + n) / kLarge * kLarge;
  if (first < end) madvise((void*)first, end - first, MADV_HUGEPAGE);   // advice: where it fails, pages are small
#endif
  return memory;
}

constexpr int64_t kTableBins = kTableBytes / (int64_t)sizeof(uint32_t);      // in one table of 32-bit numbers
constexpr int kMostTables = 8;                                               // of 16-bit numbers

enum class Outcome { kCounted, kOutside, kTooMany };

// What ends a count before its end.
struct StopAt {
  const uint64_t valid;      // keys from here on are outside
  const bool raise, known;   // raise: then stop; known: the number of bins is given
  std::atomic<bool> outside{false}, too_many{false};

  bool set() const {
    return outside.load(std::memory_order_relaxed) || too_many.load(std::memory_order_relaxed);
  }
  // Whether a block that has keys beyond the `limit` of the tables cannot be counted.
  template <class Key>
  bool should_stop(const char* keys, int64_t n, uint64_t limit) {
    const Key largest = largest_of<Key>(keys, n);
    if (raise && largest_unsigned<Key>(keys, n) >= valid) outside.store(true, std::memory_order_relaxed);
    else if (!known && largest >= Key(0) && (uint64_t)largest >= limit) too_many.store(true, std::memory_order_relaxed);
    else return false;
    return true;
  }
};

class CountTables {
 public:
  // Counts a row of the problem. With bins unknown (-1) it finds them, or gives up on keys beyond `capacity()`.
  // n_tables: 1 or kMostTables of 16-bit numbers; 0: straight in 32-bit numbers.
  Outcome count(const CountProblem& p, int64_t row, int64_t n_bins, int n_tables, int n_threads);
  int64_t n_bins() const { return top; }   // the largest key, and 1
  void write(int64_t* counts, int64_t n_bins, bool overwrite, int n_threads) const;

  static int64_t capacity(int n_tables) { return n_tables ? kTableBytes / (kMostTables * (int64_t)sizeof(uint16_t)) : kTableBins; }

 private:
  struct Worker {
    Scratch<uint32_t> table;
    Scratch<uint16_t> narrow;      // tables of 16-bit numbers, which are added to the table after each piece
    std::vector<uint64_t> wide;    // what 32 bits cannot hold
    uint64_t ready = 0;            // entries of each table that are initialised, a power of two
    bool careful = false;          // the last block had keys outside: the next one is looked at before it is counted
    int64_t n_counted = 0;         // since 32 bits began to be filled
    int64_t top = 0;
  };
  template <class Key, int N>
  Outcome run(const CountProblem& p, int64_t row, int64_t n_bins, int n_threads);
  template <class Key, int N>
  void count_piece(Worker& worker, const Row& row, int64_t from, int64_t to, StopAt& stop) const;
  template <int N>
  void prepare(Worker& worker, uint64_t bins) const;
  template <int N>
  void fold(Worker& worker) const;

  std::vector<Worker> workers;
  // limit: entries of a table, a power of two, to which any key can be masked; one more is for keys outside.
  int64_t limit = 0, stride = 0, top = 0;
  int64_t n_valid = 0;                      // entries of bins; those after them are of keys outside
};

}  // namespace upsweep
