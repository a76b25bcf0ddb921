// Sums of one row's weights, in tables of a chunk each.
#pragma once

#include <atomic>

#include "bincount/tables.hpp"

namespace upsweep {

constexpr int64_t kSumChunk = 1 << 17;     // the fewest keys of a chunk: numpy's own bits below
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kSumNumbers = (1 << 16) - kSlack;   // of a table

// Depends on the shape alone, and so do the bits of float sums.
inline int64_t n_chunks_of(int64_t n) { return std::min((n + kSumChunk - 1) / kSumChunk, kMaxChunks); }

// Sum: double, or uint64_t for integers modulo 2^64.
template <class Sum>
class SumTables {
 public:
  // Sums a row of the problem. With bins unknown (-1) it finds them, or gives up on keys beyond the tables.
  // estimate: about how many bins there are; repeating: consecutive keys are often equal.
  Outcome sum(const CountProblem& p, int64_t row, int64_t n_bins, int64_t estimate, bool repeating, int n_threads);
  int64_t n_bins() const { return top; }
  // Numbers of a table, of so many: 1 MiB in all.
  static int64_t numbers(int n_tables) { return std::min<int64_t>(kSumNumbers, (1 << 17) / n_tables - kSlack); }
  // result_stride: from the numbers of one bin to those of the next
  void write(Sum* sums, int64_t result_stride, int64_t n_bins, bool overwrite) const;

 private:
  struct Chunk;
  struct Worker;
  struct Stop;
  template <class Key, int N>
  Outcome run(const CountProblem& p, int64_t row, int64_t n_bins, int64_t estimate, int n_threads);
  void grow(Worker& worker, uint64_t bins) const;
  template <class Key>
  bool prepare(Worker& worker, const char* keys, int64_t n, Stop& stop, bool* checked) const;
  template <class Key, class Term, int N>
  void sum_side_by_side(Worker& worker, const Row& keys, const Weights<Sum>& weights, const Chunk* chunks,
                        Stop& stop) const;
  template <class Key>
  void sum_chunk(Worker& worker, const Row& keys, const Weights<Sum>& weights, const Chunk& chunk, int table,
                 Stop& stop) const;

  Scratch<Sum> total;
  // Numbers of a bin; bins that keys can have, where one more is for keys outside; numbers of a table.
  int64_t width = 1, limit = 0, stride = 0;
  int64_t ready = 0, top = 0;                 // bins of the total
};

// Straight into the result, in the keys' order: few keys, or one thread. What is outside the bins is left out.
void count_in_order(const CountProblem& p, int64_t row, int64_t* counts, int64_t n_bins, bool overwrite);
template <class Sum>
void sum_in_order(const CountProblem& p, int64_t row, Sum* sums, int64_t result_stride, int64_t n_bins,
                  bool overwrite);

}  // namespace upsweep
