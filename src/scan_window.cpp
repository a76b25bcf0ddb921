// WINDOW: at most K elements of a decaying sum.
//
//   y[t] = sum over k < min(K, t + 1) of gamma^k * x[t-k], back to the last reset
//
// Nothing is subtracted: with blocks of K steps, the window that ends at step i of a block is the block's own
// scan up to i, and a suffix of the block before it (van Herk's two half-block scans). With P the block before,
//
//   y[i] = S[i] + gamma^(i+1) * R[i+1],      R[q] = sum over j >= q of gamma^(K-1-j) * P[j]
//
// S runs forward and R, a plain sum of weighted elements, backward: three operations an element whatever K is.
// In place, blocks are taken from the last to the first, because each reads the one before it; otherwise forward, as
// prefetchers expect. A long block is taken in chunks, R's value between them computed beforehand. Up to kDirect elements are summed directly.
//
// x is read twice (once from the cache, for K within it) and y written once.

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel.hpp"
#include "scan_strips.hpp"

namespace upsweep {
namespace {

constexpr int64_t kChunk = 4096;      // elements of a buffer
constexpr int64_t kDirect = 64;       // up to here K multiply-adds cost less than the set-up of a block
constexpr int64_t kSegmentBytes = 256 << 10;

inline bool finite(double v) { return is_finite(v); }
inline bool finite(Complex v) { return is_finite(v.re) && is_finite(v.im); }
inline double add(double a, double b) { return a + b; }
inline Complex add(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
inline double multiply(double a, double b) { return a * b; }
inline Complex multiply(Complex a, Complex b) { return a * b; }

// weight * value, where a weight that vanished must not turn an infinity into a NaN.
inline double weigh(double weight, double value, double base) {
  if (is_finite(value) || base == 0.0) return weight * value;
  return std::copysign(1.0, weight) * value;
}
inline Complex weigh(Complex weight, Complex value, Complex) { return weight * value; }

template <class Acc>
Acc power(Acc base, int64_t exponent) {
  if constexpr (std::is_same_v<Acc, double>) return std::pow(base, (double)exponent);
  Acc result = Unit<Acc>::one;
  for (; exponent > 0; exponent >>= 1, base = multiply(base, base))
    if (exponent & 1) result = multiply(result, base);
  return result;
}

template <class Acc>
class Window {
 public:
  explicit Window(const ScanProblem& problem)
      : p(problem), strips(problem), K(std::min(problem.window, problem.length)),
        scan_forward(line_scan(kDouble, kDouble, false)),
        scan_backward(line_scan(kDouble, kDouble, true)) {}

  void run() {
    int64_t n_lines = p.columns;
    for (int dim = 0; dim < p.n_batch; ++dim) n_lines *= p.batch_shape[dim];
    if (n_lines == 0 || p.length == 0) return;
    const int64_t item = dtype_size(p.x.dtype);
    // Segments are whole blocks; in place a line is one segment, because a block reads the one before it.
    const int64_t grain = K <= kDirect ? kChunk : K;
    int64_t segment = std::max<int64_t>(kSegmentBytes / item / grain, 1) * grain;
    if (p.out.data == p.x.data) segment = p.length;
    const int64_t n_segments = (p.length + segment - 1) / segment;
    const int n_threads = threads_worth(p.n_threads, n_lines * p.length * item, n_lines * n_segments);
    std::vector<Buffers> buffers(n_threads);
    for (Buffers& b : buffers) b.resize(K);
    for_tasks(n_lines * n_segments, n_threads, p.flush, [&](int64_t task, int thread) {
      Buffers& b = buffers[thread];
      const int64_t line = task / n_segments, from = task % n_segments * segment;
      const Strip s = strips.strip(line / p.columns, line % p.columns, 1);
      const Acc gamma = strips.gamma_of(s, 0);
      const int64_t to = std::min(p.length, from + segment);
      if (!finite(gamma) || !finite(power(gamma, K))) return in_order(s, gamma, from, to);
      b.prepare(gamma);
      if (K <= kDirect) direct(s, gamma, from, to, b);
      else blocks(s, gamma, from, to, b);
    });
  }

 private:
  struct Buffers {
    Buffer<Acc> x, previous, powers, falling, between;   // falling: powers backwards, for whole vectors
    Buffer<uint8_t> reset;
    Acc gamma{};
    bool ready = false;

    void resize(int64_t K) {
      x.resize(kChunk + kDirect);
      previous.resize(kChunk + kDirect);
      powers.resize(kChunk + 1);
      falling.resize(kChunk);
      between.resize(K / kChunk + 2);
      reset.resize(kChunk + kDirect);
    }
    // gamma^0 ... gamma^kChunk, each within two roundings.
    void prepare(Acc value) {
      if (ready && std::memcmp(&gamma, &value, sizeof(Acc)) == 0) return;
      gamma = value, ready = true;
      constexpr int64_t kRow = 64;
      for (int64_t k = 0; k < kRow; ++k) powers[k] = power(value, k);
      for (int64_t row = kRow; row <= kChunk; row += kRow) {
        const Acc start = power(value, row);
        for (int64_t k = 0; k < kRow && row + k <= kChunk; ++k) powers[row + k] = multiply(start, powers[k]);
      }
      for (int64_t k = 0; k < kChunk; ++k) falling[k] = powers[kChunk - 1 - k];
    }
  };

  const ScanProblem& p;
  const Strips<Acc> strips;
  const int64_t K;
  LineScan* const scan_forward;
  LineScan* const scan_backward;

  void read(const Strip& s, int64_t from, int64_t n, Acc* to) const {
    gather(s.x + from * p.x.time_stride, p.x.time_stride, n, p.x.dtype, p.x.swapped, to);
  }
  // Asks for the elements that the next chunk will read, to arrive while this one is computed.
  void prefetch(const Strip& s, int64_t from, int64_t n) const {
    const int64_t item = dtype_size(p.x.dtype);
    if (std::llabs(p.x.time_stride) != item) return;
    const char* line = s.x + std::min(from * p.x.time_stride, (from + n) * p.x.time_stride);
    for (int64_t byte = 0; byte < n * item; byte += 64) __builtin_prefetch(line + byte);
  }
  void read_reset(const Strip& s, int64_t from, int64_t n, uint8_t* to) const {
    for (int64_t k = 0; k < n; ++k) to[k] = reset_at(s, from + k);
  }
  uint8_t reset_at(const Strip& s, int64_t step) const {
    return s.reset ? (uint8_t)s.reset[step * p.reset.time_stride] : 0;
  }
  void write(const Strip& s, int64_t from, int64_t n, const Acc* values) const {
    scatter(values, n, p.out.dtype, s.out + from * p.out.time_stride, p.out.time_stride);
  }

  // K multiply-adds for each step, from the oldest element on; what remains when gamma^K is not a number.
  void in_order(const Strip& s, Acc gamma, int64_t from, int64_t to) const {
    for (int64_t step = to - 1; step >= from; --step) {
      Acc state{}, x;
      bool first = true;
      for (int64_t k = std::max<int64_t>(0, step - K + 1); k <= step; ++k) {
        read(s, k, 1, &x);
        state = first || reset_at(s, k) ? x : multiply_add(gamma, state, x);
        first = false;
      }
      write(s, step, 1, &state);
    }
  }

  void direct(const Strip& s, Acc gamma, int64_t from, int64_t to, Buffers& b) const {
    const int64_t history = K - 1;
    for (int64_t end = to; end > from;) {
      const int64_t start = std::max(from, end - kChunk), n = end - start;
      const int64_t known = std::min(history, start), missing = history - known;
      std::fill_n(b.x.data(), missing, Acc{});
      read(s, start - known, known + n, b.x.data() + missing);
      if (s.reset) {
        std::fill_n(b.reset.data(), missing, 0);
        read_reset(s, start - known, known + n, b.reset.data() + missing);
      }
      sum_windows(b, gamma, n, history, s.reset != nullptr);
      write(s, start, n, b.previous.data());
      end = start;
    }
  }

  void sum_windows(Buffers& b, Acc gamma, int64_t n, int64_t history, bool has_reset) const {
    int64_t i = 0;
    if constexpr (std::is_same_v<Acc, double>) {
      const Vec factor = broadcast(gamma);
      constexpr int kWide = 4 * kLanes;
      for (; i + kWide <= n; i += kWide) {
        Vec sums[4] = {};
        for (int64_t k = 0; k <= history; ++k)
          for (int j = 0; j < 4; ++j) {
            const Vec x = load(b.x.data() + i + k + j * kLanes);
            sums[j] = fma(factor, sums[j], x);
            if (has_reset) sums[j] = select(load_mask(b.reset.data() + i + k + j * kLanes), x, sums[j]);
          }
        for (int j = 0; j < 4; ++j) store(b.previous.data() + i + j * kLanes, sums[j]);
      }
    }
    for (; i < n; ++i) {
      Acc sum{};
      for (int64_t k = 0; k <= history; ++k)
        sum = has_reset && b.reset[i + k] ? b.x[i + k] : multiply_add(gamma, sum, b.x[i + k]);
      b.previous[i] = sum;
    }
  }

  void blocks(const Strip& s, Acc gamma, int64_t from, int64_t to, Buffers& b) const {
    const int64_t n_blocks = (to - from + K - 1) / K;
    const bool in_place = p.out.data == p.x.data;
    for (int64_t block = 0; block < n_blocks; ++block) {
      const int64_t start = from + (in_place ? n_blocks - 1 - block : block) * K;
      const int64_t n = std::min(K, to - start);
      int64_t last_reset = -1, first_reset = n;
      if (s.reset) {
        for (int64_t j = K - 1; start && j >= 0 && last_reset < 0; --j)
          if (reset_at(s, start - K + j)) last_reset = j;
        for (int64_t i = 0; i < n && first_reset == n; ++i)
          if (reset_at(s, start + i)) first_reset = i;
      }
      if (start && K > kChunk) {
        Acc sum{};
        for (int64_t chunk = (K - 1) / kChunk; chunk >= 0; --chunk) {
          b.between[chunk] = sum;
          sum = suffix_sums(s, gamma, start - K, chunk, sum, last_reset, b);
        }
      } else {
        b.between[0] = Acc{};
      }
      Acc state{};
      for (int64_t chunk = 0; chunk * kChunk < n; ++chunk) {
        const int64_t begin = chunk * kChunk, count = std::min(kChunk, n - begin);
        read(s, start + begin, count, b.x.data());
        prefetch(s, start + begin + count, count);
        if (s.reset) read_reset(s, start + begin, count, b.reset.data());
        state = own_scan(b, gamma, count, state, chunk == 0, s.reset != nullptr);
        if (start) {
          const Acc after = b.between[chunk];
          suffix_sums(s, gamma, start - K, chunk, after, last_reset, b);
          const int64_t size = std::min(kChunk, K - begin);
          b.previous[size] = after;
          combine(b, power(gamma, begin), gamma, std::min(count, std::max<int64_t>(0, first_reset - begin)));
        }
        write(s, start + begin, count, b.x.data());
      }
    }
  }

  // S over one chunk, in place in b.x.
  Acc own_scan(Buffers& b, Acc gamma, int64_t n, Acc state, bool first, bool has_reset) const {
    if constexpr (std::is_same_v<Acc, double>) {
      return scan_forward({b.x.data(), nullptr, has_reset ? b.reset.data() : nullptr, b.x.data(), n, gamma, state,
                           first, false, false, 0});
    } else {
      for (int64_t i = 0; i < n; ++i) {
        const bool dropped = (first && i == 0) || (has_reset && b.reset[i]);
        b.x[i] = state = dropped ? b.x[i] : multiply_add(gamma, state, b.x[i]);
      }
      return state;
    }
  }

  // R over one chunk of the block at `block`, into b.previous; `after` is R just behind it. Returns R at its start.
  Acc suffix_sums(const Strip& s, Acc gamma, int64_t block, int64_t chunk, Acc after, int64_t last_reset,
                  Buffers& b) const {
    const int64_t begin = chunk * kChunk, n = std::min(kChunk, K - begin), end = begin + n;
    Acc* r = b.previous.data();
    read(s, block + begin, n, r);
    const Acc base = power(gamma, K - end);
    const Acc* weights = b.falling.data() + kChunk - n;   // gamma^(n-1) ... gamma^0
    for (int64_t j = 0; j < n; ++j) r[j] = multiply(multiply(base, weights[j]), r[j]);
    for (int64_t j = 0; j < std::min(n, last_reset - begin); ++j) r[j] = Acc{};
    if constexpr (std::is_same_v<Acc, double>) {
      scan_backward({r + n - 1, nullptr, nullptr, r + n - 1, n, 1.0, after, false, false, false, 0});
      if (is_finite(r[0])) return r[0];
      read(s, block + begin, n, r);
    } else {
      read(s, block + begin, n, r);
    }
    Acc sum = after;
    for (int64_t j = n - 1; j >= 0; --j) {
      if (j >= last_reset - begin) sum = add(sum, weigh(multiply(base, weights[j]), r[j], gamma));
      r[j] = sum;
    }
    return sum;
  }

  // b.x[i] += gamma^(begin + i + 1) * R[i + 1]
  void combine(Buffers& b, Acc base, Acc gamma, int64_t n) const {
    Acc* __restrict x = b.x.data();
    const Acc *__restrict r = b.previous.data() + 1, *__restrict powers = b.powers.data() + 1;
    if (n > 0 && !finite(r[0])) {
      for (int64_t i = 0; i < n; ++i) x[i] = add(x[i], weigh(multiply(base, powers[i]), r[i], gamma));
      return;
    }
    for (int64_t i = 0; i < n; ++i) x[i] = add(x[i], multiply(multiply(base, powers[i]), r[i]));
  }
};

// The same problem on the real and the imaginary parts of x and out, one axis more: under a real gamma they never meet.
ScanProblem in_parts(const ScanProblem& complex) {
  ScanProblem parts = complex;
  parts.accumulator = kReal;
  for (Array* array : {&parts.x, &parts.out}) {
    array->dtype = array->dtype == kComplexFloat ? kFloat : kDouble;
    array->batch_strides[parts.n_batch] = dtype_size(array->dtype);
  }
  for (Array* array : {&parts.reset, &parts.gamma}) array->batch_strides[parts.n_batch] = 0;
  parts.batch_shape[parts.n_batch++] = 2;
  return parts;
}

}  // namespace

void run_window(const ScanProblem& problem) {
  if (problem.accumulator != kComplex) Window<double>(problem).run();
  else if (has_real_factor(problem)) Window<double>(in_parts(problem)).run();
  else Window<Complex>(problem).run();
}

}  // namespace upsweep
