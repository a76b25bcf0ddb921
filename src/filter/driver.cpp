// Filters, tile by tile of each line.
//
// A tile of inputs lies in a buffer behind the `order` inputs before it, and a tile of outputs behind the outputs before
// it. The sums of inputs fill vectors of neighbouring steps. Those of outputs do so too, for outputs that are at least a
// vector away; nearer ones are added step by step. Columns that are neighbours in memory are read and written together.
//
// Cost a step: a multiplication and an addition for each coefficient that is not 0, a vector of steps at a time.

#include "filter/filter.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/buffer.hpp"
#include "common/parallel.hpp"
#include "common/vec.hpp"

namespace upsweep {
namespace {

struct LongComplex {
  long double re, im;
};
template <class T>
concept IsComplex = requires(T number) { number.re, number.im; };
template <IsComplex T>
T operator*(T a, T b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <IsComplex T>
T operator+(T a, T b) {
  return {a.re + b.re, a.im + b.im};
}

long double fma(long double a, long double b, long double c) { return a * b + c; }
template <IsComplex T>
T fma(T a, T b, T c) {
  return a * b + c;
}

bool is_zero(double number) { return number == 0; }
bool is_zero(long double number) { return number == 0; }
template <IsComplex T>
bool is_zero(T number) {
  return number.re == 0 && number.im == 0;
}
double minus(double number) { return -number; }
long double minus(long double number) { return -number; }
template <IsComplex T>
T minus(T number) {
  return {-number.re, -number.im};
}

// A vector of T, for the types that have vectors, and the one number that stands for it elsewhere.
template <class T>
using Lanes = std::conditional_t<std::is_same_v<T, double>, Vec, T>;
template <class T>
constexpr int64_t kWidth = sizeof(Lanes<T>) / sizeof(T);
Vec spread(double number) { return broadcast(number); }
template <class T>
T spread(T number) {
  return number;
}
template <class T>
Lanes<T> read_lanes(const T* from) {
  Lanes<T> lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

template <class T>
struct Term {
  int64_t delay;
  T factor;
};

constexpr int64_t kMaxTile = 2048;    // steps
constexpr int64_t kChunk = 16384;     // of a task, without feedback
constexpr int64_t kGroup = 8;         // columns: a cache line of doubles
constexpr int64_t kAtOnce = 8;        // vectors of sums, to hide the latency of an addition
constexpr int64_t kSlack = 64;        // that whole vectors may read and write beyond a tile

// f[i] += the sum over all terms of factor * x[i - delay]. Whole vectors are written.
template <int64_t n_vectors, class T>
void add_terms_at(const T* x, const std::vector<Term<T>>& terms, T* f) {
  Lanes<T> sums[n_vectors];
  for (int64_t k = 0; k < n_vectors; ++k) sums[k] = read_lanes(f + k * kWidth<T>);
  for (const Term<T>& term : terms) {
    const Lanes<T> factor = spread(term.factor);
    for (int64_t k = 0; k < n_vectors; ++k)
      sums[k] = fma(factor, read_lanes(x + k * kWidth<T> - term.delay), sums[k]);
  }
  std::memcpy(f, sums, sizeof sums);
}
template <class T>
void add_terms(const T* x, int64_t n, const std::vector<Term<T>>& terms, T* f) {
  constexpr int64_t kStep = kAtOnce * kWidth<T>;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) add_terms_at<kAtOnce>(x + i, terms, f + i);
  for (; i < n; i += kWidth<T>) add_terms_at<1>(x + i, terms, f + i);
}

// y[i] = f[i] + the sum over all terms of factor * y[i - delay], of which the far ones are at least a vector away.
template <class T>
void feed_back(const T* f, int64_t n, const std::vector<Term<T>>& far, const std::vector<Term<T>>& near, T* y) {
  constexpr size_t kSums = 4;
  for (int64_t i = 0; i < n; i += kWidth<T>) {
    Lanes<T> sums[kSums] = {read_lanes(f + i)};
    for (size_t k = 0; k < far.size(); k += kSums)
      for (size_t j = 0; j < std::min(kSums, far.size() - k); ++j)
        sums[j] = fma(spread(far[k + j].factor), read_lanes(y + i - far[k + j].delay), sums[j]);
    const Lanes<T> total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    T start[kWidth<T>];
    std::memcpy(start, &total, sizeof start);
    for (int64_t lane = 0; lane < std::min(kWidth<T>, n - i); ++lane) {
      T sum = start[lane];
      for (const Term<T>& term : near) sum = fma(term.factor, y[i + lane - term.delay], sum);
      y[i + lane] = sum;
    }
  }
}

// The type computed in is that in memory, or one that `gather` and `scatter` convert to and from.
template <class T>
constexpr bool kConverts = std::is_same_v<T, double> || std::is_same_v<T, Complex>;

template <class T>
class Filter {
 public:
  explicit Filter(const FilterProblem& problem) : p(problem) {
    const T *b = (const T*)p.b, *a = (const T*)p.a;
    for (int64_t k = p.order; k >= 0; --k) {
      if (!is_zero(b[k])) forward.push_back({k, b[k]});
      if (k == 0 || is_zero(a[k])) continue;
      feedback.push_back({k, minus(a[k])});
      (k >= kWidth<T> ? far : near).push_back(feedback.back());
    }
  }

  void run() {
    const int64_t n_groups = (p.inner + kGroup - 1) / kGroup;
    // With feedback, a line is one task: its steps follow from each other.
    const int64_t chunk = feedback.empty() ? std::max(kChunk, 4 * p.order) : p.length;
    const int64_t n_chunks = std::max<int64_t>(1, (p.length + chunk - 1) / chunk);
    const int64_t n_tasks = p.outer * n_groups * n_chunks;
    const int64_t n_terms = forward.size() + feedback.size();
    const int64_t bytes = p.outer * p.length * p.inner * sizeof(T) * (1 + n_terms / 16);
    const int n_threads = threads_worth(p.n_threads, bytes, n_tasks);
    std::vector<Memory> memories(n_threads);
    for_tasks(n_tasks, n_threads, true, [&](int64_t task, int thread) {
      const int64_t line = task / n_chunks, first = task % n_chunks * chunk, column = line % n_groups * kGroup;
      filter_steps(memories[thread], line / n_groups, column, first, std::min(p.length, first + chunk));
    });
  }

 private:
  struct Memory {
    Buffer<T> inputs, outputs, sums;  // of all columns of a group, one after the other
  };

  // Steps [first, end) of a group of columns.
  void filter_steps(Memory& memory, int64_t outer, int64_t column, int64_t first, int64_t end) const {
    const int64_t n_columns = std::min(kGroup, p.inner - column), order = p.order;
    const int64_t tile = std::min(kMaxTile, p.length), n_sums = std::max(tile, order) + kSlack, size = order + n_sums;
    const bool feeds_back = !feedback.empty();
    memory.inputs.resize(n_columns * size), memory.sums.resize(n_columns * n_sums);
    if (feeds_back) memory.outputs.resize(n_columns * size);
    T *inputs = memory.inputs.data(), *outputs = memory.outputs.data(), *sums = memory.sums.data();
    const int64_t n_before = std::min(order, first);
    for (int64_t c = 0; c < n_columns; ++c) {
      std::fill_n(inputs + c * size, order - n_before, T{});
      if (feeds_back) std::fill_n(outputs + c * size, order, T{});
    }
    read(outer, column, n_columns, first - n_before, n_before, inputs + order - n_before, size);
    for (int64_t t = first; t < end; t += tile) {
      const int64_t n = std::min(tile, end - t);
      read(outer, column, n_columns, t, n, inputs + order, size);
      for (int64_t c = 0; c < n_columns; ++c) {
        T *x = inputs + c * size, *y = outputs + c * size, *f = sums + c * n_sums;
        start_sums(outer, column + c, t, n, f);
        add_terms(x + order, n, forward, f);
        std::memmove(x, x + n, order * sizeof(T));
        if (feeds_back) feed_back(f, n, far, near, y + order);
      }
      if (feeds_back) write(outputs + order, size, outer, column, n_columns, t, n);
      else write(sums, n_sums, outer, column, n_columns, t, n);
      for (int64_t c = 0; c < n_columns && feeds_back; ++c)
        std::memmove(outputs + c * size, outputs + c * size + n, order * sizeof(T));
      if (t + n < end) poll();
    }
    if (end < p.length || !p.final_state) return;
    // The states are what inputs and outputs so far add to the next outputs.
    for (int64_t c = 0; c < n_columns; ++c) {
      T *x = inputs + c * size, *y = outputs + c * size, *f = sums + c * n_sums;
      start_sums(outer, column + c, p.length, order, f);
      std::fill_n(x + order, order, T{});
      add_terms(x + order, order, forward, f);
      if (feeds_back) std::fill_n(y + order, order, T{});
      add_terms(y + order, order, feedback, f);
      T* state = (T*)p.final_state + outer * order * p.inner + column + c;
      for (int64_t k = 0; k < order; ++k) state[k * p.inner] = f[k];
    }
  }

  // What the initial states add to n steps from step t on.
  void start_sums(int64_t outer, int64_t column, int64_t t, int64_t n, T* sums) const {
    const int64_t n_states = p.initial ? std::clamp<int64_t>(p.order - t, 0, n) : 0;
    const T* state = (const T*)p.initial + outer * p.order * p.inner + column;
    for (int64_t k = 0; k < n_states; ++k) sums[k] = state[(t + k) * p.inner];
    std::fill(sums + n_states, sums + n, T{});
  }

  // Inputs of n steps from step t on, each column `size` elements behind the one before.
  void read(int64_t outer, int64_t column, int64_t n_columns, int64_t t, int64_t n, T* to, int64_t size) const {
    const char* from = p.x + outer * p.x_strides[0] + t * p.x_strides[1] + column * p.x_strides[2];
    if (n_columns == 1) return read_numbers(from, p.x_strides[1], n, to);
    for (int64_t k = 0; k < n; ++k) {
      T row[kGroup];
      read_numbers(from + k * p.x_strides[1], p.x_strides[2], n_columns, row);
      for (int64_t c = 0; c < n_columns; ++c) to[c * size + k] = row[c];
    }
  }
  void write(const T* from, int64_t size, int64_t outer, int64_t column, int64_t n_columns, int64_t t, int64_t n) const {
    const int64_t item = kConverts<T> ? dtype_size(p.y_dtype) : sizeof(T);
    char* to = p.y + ((outer * p.length + t) * p.inner + column) * item;
    if (n_columns == 1) return write_numbers(from, n, to, p.inner * item);
    for (int64_t k = 0; k < n; ++k) {
      T row[kGroup];
      for (int64_t c = 0; c < n_columns; ++c) row[c] = from[c * size + k];
      write_numbers(row, n_columns, to + k * p.inner * item, item);
    }
  }
  void read_numbers(const char* from, int64_t stride, int64_t n, T* to) const {
    if constexpr (kConverts<T>) gather(from, stride, n, p.x_dtype, p.x_swapped, to);
    else for (int64_t k = 0; k < n; ++k) std::memcpy(to + k, from + k * stride, sizeof(T));
  }
  void write_numbers(const T* from, int64_t n, char* to, int64_t stride) const {
    if constexpr (kConverts<T>) scatter(from, n, p.y_dtype, to, stride);
    else for (int64_t k = 0; k < n; ++k) std::memcpy(to + k * stride, from + k, sizeof(T));
  }

  const FilterProblem& p;
  std::vector<Term<T>> forward, feedback, far, near;   // the oldest first
};

}  // namespace

void run_filter(const FilterProblem& problem) {
  switch (problem.type) {
    case kFilterReal: return Filter<double>(problem).run();
    case kFilterComplex: return Filter<Complex>(problem).run();
    case kFilterLong: return Filter<long double>(problem).run();
    default: return Filter<LongComplex>(problem).run();
  }
}

}  // namespace upsweep
