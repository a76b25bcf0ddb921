// Counts of one row in private tables of bytes.
#pragma once

#include <cstdlib>

#include "bincount/tables.hpp"

namespace upsweep {

constexpr int64_t kByteBins = 1 << 22;

class CountBytes {
 public:
  // As CountTables::count.
  Outcome count(const CountProblem& p, int64_t row, int64_t n_bins, int n_threads);
  int64_t n_bins() const { return top; }
  void write(int64_t* counts, int64_t n_bins, bool overwrite, int n_threads) const;

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Worker {
    Scratch<uint8_t> bytes;
    std::unique_ptr<uint32_t[], Free> wraps;   // how often each byte wrapped around; pages that none did are not had
    std::vector<uint8_t> wrapped;              // which pages some did
    uint64_t ready = 0;                        // bytes that are initialised, a power of two
    bool careful = false;                      // the last block had keys outside: the next one is looked at first
    int64_t top = 0;
  };
  template <class Key>
  Outcome run(const CountProblem& p, int64_t row, int64_t n_bins, int n_threads);
  template <class Key>
  void count_piece(Worker& worker, const Row& row, int64_t from, int64_t to, StopAt& stop) const;

  std::vector<Worker> workers;
  int64_t limit = 0, top = 0;   // limit: bins that keys can have; one more is for keys outside
};

}  // namespace upsweep
