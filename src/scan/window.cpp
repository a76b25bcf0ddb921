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
// prefetchers expect. A long block is taken in chunks, R's value between them computed beforehand. A few elements are
// summed directly.
//
// Without resets, blocks of whole vectors along a line (scan/window_lines.cpp), and vectors across columns, also with
// resets (scan/window_columns.cpp), do the same in a third of the time. What may have overflowed there is computed again
// here.
//
// The block's sums are not those that the plain loop goes through. Where gamma^K or the elements are so large that one
// of either may overflow, a tree over the elements keeps the loop's order (scan/window_tree.hpp). Where gamma^k is too small
// for a number although gamma^k * x need not be, powers are multiplied in as two factors.
//
// Bytes an element: x read twice (once from the cache, for K within it; in vectors, once), y written once.

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/parallel.hpp"
#include "common/tuning.hpp"
#include "scan/strips.hpp"
#include "scan/window_tree.hpp"

namespace upsweep {
namespace {

using namespace window_tuning;

constexpr int64_t kChunk = 4096;      // elements of a buffer
constexpr int64_t kPollBlocks = 64;
constexpr int64_t kSegmentBlocks = 8; // a segment begins with the sums of the block before it

constexpr double kGrowthTaken = 0x1p1000;    // gamma^K up to here, and its rounding, stay finite
constexpr double kPowerTaken = 0x1p-1000;    // and down to here normal

inline double add(double a, double b) { return a + b; }
inline Complex add(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
inline double multiply(double a, double b) { return a * b; }
inline Complex multiply(Complex a, Complex b) { return a * b; }

// A power of gamma as one factor, or as two where it may be too small for one.
template <class Acc>
struct Scale {
  Acc first, second;
  bool is_split;

  Acc operator()(Acc value) const {
    value = multiply(first, value);
    return is_split ? multiply(second, value) : value;
  }
};

// scale(weight * value), where a power that vanished must not turn an infinity into a NaN.
inline double weigh(const Scale<double>& scale, double weight, double value, double gamma) {
  if (is_finite(value) || gamma == 0.0) return scale(weight * value);
  return std::copysign(1.0, scale(weight)) * value;
}
inline Complex weigh(const Scale<Complex>& scale, Complex weight, Complex value, Complex) {
  return scale(multiply(weight, value));
}

// The largest of the finite elements.
inline double largest_of(const double* values, int64_t n) {
  Vec largest = {};
  int64_t k = 0;
  auto measure = [&](Vec v) {
    const Vec size = abs(v);
    largest = max(select((Mask)(size < __builtin_inf()), size, Vec{}), largest);
  };
  for (; k + kLanes <= n; k += kLanes) measure(load(values + k));
  if (k < n) measure(load_some(values + k, (int)(n - k)));
  double result = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) result = std::max(result, largest[lane]);
  return result;
}
inline double largest_of(const Complex* values, int64_t n) { return largest_of((const double*)values, 2 * n); }

template <class Acc>
class Window {
 public:
  explicit Window(const ScanProblem& problem)
      : p(problem), strips(problem), K(std::min(problem.window, problem.length)),
        n_vectors(K / kLanes), in_place(p.out.data == p.x.data), in_columns(has_columns()),
        in_vectors(!in_columns && has_vectors()), is_contiguous(strips.layout == Layout::kLines),
        block_in_vectors(line_window(is_contiguous ? p.x.dtype : kDouble, is_contiguous && p.x.time_stride < 0)),
        column_block(column_window(p.x.dtype)), scan_forward(line_scan(kDouble, kDouble, false)),
        scan_backward(line_scan(kDouble, kDouble, true)) {}

  void run() {
    int64_t n_lines = p.columns;
    for (int dim = 0; dim < p.n_batch; ++dim) n_lines *= p.batch_shape[dim];
    if (n_lines == 0 || p.length == 0) return;
    const int64_t item = dtype_size(p.x.dtype);
    // Segments are whole blocks; in place a line is one segment, because a block reads the one before it.
    const int64_t width = in_columns ? kWindowColumns : 1, n_strips = (p.columns + width - 1) / width;
    const int64_t grain = in_columns ? K : in_vectors ? n_vectors * kLanes : K <= kDirect ? kChunk : K;
    const int64_t fewest = in_columns || in_vectors ? kSegmentBlocks : 1;
    int64_t segment = std::max(kSegmentBytes / item / grain / width, fewest) * grain;
    const bool stream = should_stream(p, n_lines);
    if (in_place) segment = p.length;
    const int64_t n_segments = (p.length + segment - 1) / segment;
    const int64_t n_tasks = n_lines / p.columns * n_strips * n_segments;
    const int n_threads = threads_worth(p.n_threads, n_lines * p.length * item, n_tasks);
    std::vector<Buffers> buffers(n_threads);
    for (Buffers& b : buffers) {
      b.resize(in_vectors ? n_vectors : 0, in_place || !is_contiguous);
      if (in_columns) b.rows.resize(K * kWindowColumns), b.normal_powers.resize(K + 1);
    }
    for_tasks(n_tasks, n_threads, p.flush, [&](int64_t task, int thread) {
      Buffers& b = buffers[thread];
      const int64_t strip = task / n_segments, from = task % n_segments * segment, column = strip % n_strips * width;
      const Strip s = strips.strip(strip / n_strips, column, std::min(width, p.columns - column));
      const Acc gamma = strips.gamma_of(s, 0);
      const int64_t to = std::min(p.length, from + segment);
      b.prepare(gamma, K, is_wide(p.out.dtype));
      if (in_columns && fits_columns(gamma, b)) return blocks_of_columns(s, gamma, from, to, b);
      for (int64_t lane = 0; lane < s.lanes; ++lane) windows(strips.part(s, lane, 1), gamma, from, to, stream, b);
    });
  }

 private:
  struct Buffers {
    Buffer<Acc> x, previous, powers, falling, between;   // falling: powers backwards, for whole vectors
    Buffer<double> sums, rests, aside, line, vector_powers;   // of blocks in vectors
    Buffer<double> rows, normal_powers;                       // of blocks of columns
    Buffer<uint8_t> reset;
    WindowTree<Acc> tree;
    Acc gamma{};
    double growth = 0.0;      // the largest power of gamma
    int64_t chunk = 0;        // steps for which a power of gamma is one factor
    bool may_vanish = false;  // for some it is not
    bool is_normal = false;   // all powers are normal numbers: then only what it should be is not finite
    bool ready = false;

    void resize(int64_t n_vectors, bool has_aside) {
      if (has_aside) aside.resize(n_vectors * kLanes), line.resize((n_vectors + 1) * kLanes);
      sums.resize(n_vectors * kLanes);
      rests.resize(n_vectors * kLanes);
      vector_powers.resize(n_vectors ? n_vectors + 1 : 0);
      x.resize(kChunk + kDirect);
      previous.resize(kChunk + kDirect);
      powers.resize(kChunk + 1);
      falling.resize(kChunk);
      reset.resize(kChunk + kDirect);
    }
    // gamma^0 ... gamma^kChunk, each within two roundings.
    void prepare(Acc value, int64_t K, bool wide) {
      if (ready && std::memcmp(&gamma, &value, sizeof(Acc)) == 0) return;
      gamma = value, ready = true;
      growth = growth_of(gamma, K);
      const double size = size_of(gamma), smallest = std::pow(size, (double)K);
      is_normal = smallest >= kPowerTaken && growth <= kGrowthTaken;
      may_vanish = wide && size != 0.0 && smallest < kPowerTaken;
      chunk = kChunk;
      if (may_vanish) chunk = std::clamp<int64_t>((int64_t)(std::log2(kPowerTaken) / std::log2(size)), 1, kChunk);
      constexpr int64_t kRow = 64;
      for (int64_t k = 0; k < kRow; ++k) powers[k] = power(value, k);
      for (int64_t row = kRow; row <= kChunk; row += kRow) {
        const Acc start = power(value, row);
        for (int64_t k = 0; k < kRow && row + k <= kChunk; ++k) powers[row + k] = multiply(start, powers[k]);
      }
      for (int64_t k = 0; k < kChunk; ++k) falling[k] = powers[kChunk - 1 - k];
      between.resize(K / chunk + 2);
      if constexpr (std::is_same_v<Acc, double>)
        for (int64_t k = 0; k < (int64_t)vector_powers.size(); ++k) vector_powers[k] = power(value, k * kLanes);
      // Of narrow elements those that would vanish stay normal: what they add is far below the smallest float32.
      if constexpr (std::is_same_v<Acc, double>)
        for (int64_t k = 0; k < (int64_t)normal_powers.size(); ++k) {
          normal_powers[k] = power(value, k);
          if (std::fabs(normal_powers[k]) < kPowerTaken)
            normal_powers[k] = std::copysign(kPowerTaken, value < 0.0 && k % 2 ? -1.0 : 1.0);
        }
    }
  };

  const ScanProblem& p;
  const Strips<Acc> strips;
  const int64_t K, n_vectors;
  const bool in_place, in_columns, in_vectors, is_contiguous;
  LineWindow* const block_in_vectors;
  ColumnWindow* const column_block;
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

  // Windows of one line.
  void windows(const Strip& s, Acc gamma, int64_t from, int64_t to, bool stream, Buffers& b) const {
    if (in_vectors && fits_vectors(b)) vectors(s, gamma, from, to, stream, b);
    else if (K <= kDirect && finite(gamma)) direct(s, gamma, from, to, b);
    else if (finite(gamma) && b.growth <= kGrowthTaken) blocks(s, gamma, from, to, b);
    else in_order(s, gamma, from, to, b);
  }

  // From the last step to the first: in place, a window's elements are still there then.
  void in_order(const Strip& s, Acc gamma, int64_t from, int64_t to, Buffers& b) const {
    auto read_some = [&](int64_t at, int64_t n, Acc* values) { read(s, at, n, values); };
    const int64_t piece = std::max(K, kChunk);
    for (int64_t end = to; end > from;) {
      const int64_t start = std::max(from, end - piece), begin = std::max<int64_t>(0, start - K + 1);
      b.tree.build(gamma, begin, end, read_some);
      int64_t last_reset = end;
      for (int64_t step = end - 1; step >= start; --step) {
        const int64_t oldest = std::max<int64_t>(0, step - K + 1);
        if (s.reset && last_reset > step)
          for (last_reset = step; last_reset >= begin && !reset_at(s, last_reset);) --last_reset;
        const Acc sum = b.tree.sum(s.reset ? std::max(oldest, last_reset) : oldest, step, read_some);
        write(s, step, 1, &sum);
        if (step % kChunk == 0) poll();
      }
      end = start;
    }
  }

  // Whether no sum of the elements of two blocks, in whatever order, comes near the end of the range.
  bool stays_finite(double largest, double growth) const {
    return growth * 2.0 * (double)K * largest <= kLargestState;
  }
  double largest_of_block(const Strip& s, int64_t from, int64_t n, Buffers& b) const {
    double largest = 0.0;
    for (int64_t step = 0; step < n; step += kChunk) {
      const int64_t count = std::min(kChunk, n - step);
      read(s, from + step, count, b.x.data());
      largest = std::max(largest, largest_of(b.x.data(), count));
    }
    return largest;
  }
  static bool is_wide(int32_t dtype) { return dtype == kDouble || dtype == kComplexDouble; }

  Scale<Acc> scale_of(Acc gamma, int64_t exponent, const Buffers& b) const {
    if (!b.may_vanish) return {power(gamma, exponent), Unit<Acc>::one, false};
    return {power(gamma, exponent / 2), power(gamma, exponent - exponent / 2), true};
  }

  bool has_vectors() const {
    return std::is_same_v<Acc, double> && !p.reset.data && K >= (p.length < kShort ? kDirect : kFewest) && K <= kMost;
  }
  // No block may need powers as two factors, nor narrow elements to be measured.
  bool fits_vectors(const Buffers& b) const {
    return b.growth <= kGrowthTaken && !b.may_vanish && (is_wide(p.x.dtype) || stays_finite(kNarrowToken, b.growth));
  }

  void vectors(const Strip& s, Acc gamma, int64_t from, int64_t to, bool stream, Buffers& b) const {
    if constexpr (std::is_same_v<Acc, double>) {
      const int64_t block = n_vectors * kLanes, n_blocks = (to - from + block - 1) / block;
      auto run = [&](int64_t start, int64_t n, char* out) {
        const char* x = s.x + start * p.x.time_stride;
        if (!is_contiguous) {   // a vector of the block before, and the block
          const int64_t before = std::min<int64_t>(start, kLanes);
          gather(x - before * p.x.time_stride, p.x.time_stride, n + before, p.x.dtype, p.x.swapped,
                 b.line.data() + kLanes - before);
          x = (const char*)(b.line.data() + kLanes);
        }
        return block_in_vectors({x, out, n, n_vectors, (int)(K - block), gamma, b.vector_powers.data(), b.sums.data(),
                                 b.rests.data(), start == 0, stream && is_contiguous});
      };
      double previous = 0.0;
      for (int64_t k = 0; k < n_blocks; ++k) {
        const int64_t start = from + (in_place ? n_blocks - 1 - k : k) * block, n = std::min(block, to - start);
        if (start && (in_place || k == 0)) previous = run(start - block, block, nullptr).largest;
        char* out = s.out + start * p.out.time_stride;
        // In place, the elements stay until it is known that they are not needed again.
        const bool is_aside = in_place || !is_contiguous;
        const bool is_reversed = is_contiguous && p.out.time_stride < 0;
        char* aside = (char*)b.aside.data() + (is_reversed ? (n - 1) * -p.out.time_stride : 0);
        const WindowResult result = run(start, n, is_aside ? aside : out);
        const bool is_known = (result.finite || b.is_normal) &&
                              stays_finite(std::max(start ? previous : 0.0, result.largest), b.growth);
        previous = result.largest;
        if (k % kPollBlocks == kPollBlocks - 1) poll();
        if (is_known) {
          if (!is_contiguous) scatter(b.aside.data(), n, p.out.dtype, out, p.out.time_stride);
          else if (in_place) copy_block(aside, n, out);
          continue;
        }
        if (stream) end_stream();
        // A first block that is shorter than a window is computed again with the second.
        const bool is_second = start && start < K;
        blocks(s, gamma, is_second ? 0 : start, start + n, b);
        if (in_place && is_second) break;
      }
      if (stream) end_stream();
    }
  }
  void copy_block(const char* source, int64_t n, char* target) const {
    const int64_t back = p.out.time_stride < 0 ? (n - 1) * -p.out.time_stride : 0;
    std::memcpy(target - back, source - back, n * std::llabs(p.out.time_stride));
  }

  // ---- columns ---------------------------------------------------------------------------------------------------

  bool has_columns() const {
    if constexpr (!std::is_same_v<Acc, double>) return false;
    return strips.layout == Layout::kColumns && p.columns >= kLanes && p.gamma.column_stride == 0 && K > 1 &&
           K * kWindowColumns * (int64_t)sizeof(double) <= kRowBytes && !(in_place && is_wide(p.x.dtype));
  }

  bool fits_columns(Acc gamma, const Buffers& b) const {
    return finite(gamma) && size_of(gamma) > 0.0 && !b.may_vanish && b.growth <= kGrowthTaken &&
           (is_wide(p.x.dtype) || stays_finite(kNarrowToken, b.growth));
  }

  void blocks_of_columns(const Strip& s, Acc gamma, int64_t from, int64_t to, Buffers& b) const {
    if constexpr (std::is_same_v<Acc, double>) {
      auto run = [&](int64_t start, int64_t n, bool write) {
        const char* reset = s.reset ? s.reset + start * p.reset.time_stride : nullptr;
        return column_block({s.x + start * p.x.time_stride, (const uint8_t*)reset,
                             write ? s.out + start * p.out.time_stride : nullptr, p.x.time_stride, p.reset.time_stride,
                             p.out.time_stride, p.reset.column_stride == 0, n, K, s.lanes, b.normal_powers.data(),
                             b.rows.data(), start == 0});
      };
      double previous = from ? run(from - K, K, false) : 0.0;
      for (int64_t start = from; start < to; start += K) {
        const int64_t n = std::min(K, to - start);
        const double largest = run(start, n, true);
        if (is_wide(p.x.dtype) && !stays_finite(std::max(previous, largest), b.growth))
          for (int64_t lane = 0; lane < s.lanes; ++lane) in_order(strips.part(s, lane, 1), gamma, start, start + n, b);
        previous = largest;
        if ((start - from) / K % kPollBlocks == kPollBlocks - 1) poll();
      }
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
      poll();
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
    // Narrow elements rarely need to be looked at.
    const bool measured = is_wide(p.x.dtype) || !stays_finite(kNarrowToken, b.growth);
    double largest = -1.0;   // of the neighbour that this block shares with the one before in this loop
    for (int64_t block = 0; block < n_blocks; ++block) {
      const int64_t start = from + (in_place ? n_blocks - 1 - block : block) * K;
      const int64_t n = std::min(K, to - start);
      if (measured) {
        const double own = in_place && largest >= 0.0 ? largest : largest_of_block(s, start, n, b);
        const bool is_known = !in_place && largest >= 0.0;
        const double previous = !start ? 0.0 : is_known ? largest : largest_of_block(s, start - K, K, b);
        largest = in_place ? previous : own;
        if (!stays_finite(std::max(own, previous), b.growth)) {
          in_order(s, gamma, start, start + n, b);
          continue;
        }
      }
      int64_t last_reset = -1, first_reset = n;
      if (s.reset) {
        for (int64_t j = K - 1; start && j >= 0 && last_reset < 0; --j)
          if (reset_at(s, start - K + j)) last_reset = j;
        for (int64_t i = 0; i < n && first_reset == n; ++i)
          if (reset_at(s, start + i)) first_reset = i;
      }
      if (start && K > b.chunk) {
        Acc sum{};
        for (int64_t chunk = (K - 1) / b.chunk; chunk >= 0; --chunk) {
          b.between[chunk] = sum;
          sum = suffix_sums(s, gamma, start - K, chunk, sum, last_reset, b);
        }
      } else {
        b.between[0] = Acc{};
      }
      Acc state{};
      for (int64_t chunk = 0; chunk * b.chunk < n; ++chunk) {
        const int64_t begin = chunk * b.chunk, count = std::min(b.chunk, n - begin);
        read(s, start + begin, count, b.x.data());
        prefetch(s, start + begin + count, count);
        if (s.reset) read_reset(s, start + begin, count, b.reset.data());
        state = own_scan(b, gamma, count, state, chunk == 0, s.reset != nullptr);
        if (start) {
          const Acc after = b.between[chunk];
          suffix_sums(s, gamma, start - K, chunk, after, last_reset, b);
          const int64_t size = std::min(b.chunk, K - begin);
          b.previous[size] = after;
          combine(b, scale_of(gamma, begin, b), gamma, std::min(count, std::max<int64_t>(0, first_reset - begin)));
        }
        write(s, start + begin, count, b.x.data());
        if (begin + count < n) poll();
      }
    }
  }

  // S over one chunk, in place in b.x.
  Acc own_scan(Buffers& b, Acc gamma, int64_t n, Acc state, bool first, bool has_reset) const {
    if constexpr (std::is_same_v<Acc, double>) {
      const uint8_t* reset = has_reset ? b.reset.data() : nullptr;
      return scan_one_line(
          scan_forward, {b.x.data(), nullptr, reset, b.x.data(), n, gamma, state, first, false, false, 0});
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
    const int64_t begin = chunk * b.chunk, n = std::min(b.chunk, K - begin), end = begin + n;
    Acc* r = b.previous.data();
    read(s, block + begin, n, r);
    const Scale<Acc> scale = scale_of(gamma, K - end, b);
    const Acc* weights = b.falling.data() + kChunk - n;   // gamma^(n-1) ... gamma^0
    if constexpr (std::is_same_v<Acc, double>) {
      for (int64_t j = 0; j < n; ++j) r[j] = scale.first * (weights[j] * r[j]);
      if (scale.is_split)
        for (int64_t j = 0; j < n; ++j) r[j] *= scale.second;
      for (int64_t j = 0; j < std::min(n, last_reset - begin); ++j) r[j] = Acc{};
      scan_one_line(scan_backward, {r + n - 1, nullptr, nullptr, r + n - 1, n, 1.0, after, false, false, false, 0});
      if (is_finite(r[0])) return r[0];
      read(s, block + begin, n, r);
    }
    Acc sum = after;
    for (int64_t j = n - 1; j >= 0; --j) {
      if (j >= last_reset - begin) sum = add(sum, weigh(scale, weights[j], r[j], gamma));
      r[j] = sum;
    }
    return sum;
  }

  // b.x[i] += scale(gamma^(i + 1) * R[i + 1])
  void combine(Buffers& b, const Scale<Acc>& scale, Acc gamma, int64_t n) const {
    Acc* __restrict x = b.x.data();
    const Acc *__restrict r = b.previous.data() + 1, *__restrict powers = b.powers.data() + 1;
    if (n > 0 && !finite(r[0])) {
      for (int64_t i = 0; i < n; ++i) x[i] = add(x[i], weigh(scale, powers[i], r[i], gamma));
    } else if (scale.is_split) {
      for (int64_t i = 0; i < n; ++i)
        x[i] = add(x[i], multiply(scale.second, multiply(scale.first, multiply(powers[i], r[i]))));
    } else {
      for (int64_t i = 0; i < n; ++i) x[i] = add(x[i], multiply(scale.first, multiply(powers[i], r[i])));
    }
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
  if (problem.window >= problem.length) return run_scan(problem);   // no window ends before its line does
  if (problem.accumulator != kComplex) Window<double>(problem).run();
  else if (has_real_factor(problem)) Window<double>(in_parts(problem)).run();
  else Window<Complex>(problem).run();
}

}  // namespace upsweep
