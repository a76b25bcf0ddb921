// Scans by compiled steps; the header tells how. Called by bindings/_user_scans.pyx.
#include "user_scan/user_scan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/buffer.hpp"
#include "common/flush.hpp"
#include "common/parallel.hpp"
#include "user_scan/strip.hpp"

namespace upsweep {
namespace {

constexpr int64_t kLeastChunk = 16;
constexpr double kHuge = 1e200;             // states beyond are not trusted to what was multiplied without them
constexpr double kMostGrown = 256;          // numbers of a matrix beyond lose digits that one step's would not lose

// A column's operands at one of its steps.
char* at(const ScanOperand& operand, const UserScan& scan, int64_t column, int64_t step) {
  char* data = operand.data + step * operand.time_stride;
  for (int d = scan.n_dims - 1; d >= 0; --d) {
    data += column % scan.dims[d] * operand.strides[d];
    column /= scan.dims[d];
  }
  return data;
}

int64_t bytes_of(const UserScan& scan) {
  const double item = scan.kernel.bits / 8;
  return (int64_t)std::min(1e15, scan.cost * item * (double)scan.length * (double)scan.n_columns);
}

// ---- time in parallel -------------------------------------------------------------------------------------------

using Numbers = std::vector<double>;

double number(const StepsKernel& kernel, const char* from, int64_t place) {
  if (kernel.bits == 64) return ((const double*)from)[place];
  return ((const float*)from)[place];
}
void set_number(const StepsKernel& kernel, char* to, int64_t place, double value) {
  if (kernel.bits == 64) ((double*)to)[place] = value;
  else ((float*)to)[place] = (float)value;
}

// Numbers of twice a double's digits. Powers of matrices need them: of a filter whose poles are nearly equal, the numbers
// of a power are 1e6 times what becomes of its states, and squared for the next.
struct Pair {
  double high = 0, low = 0;
};
using Pairs = std::vector<Pair>;

Pair sum(Pair a, Pair b) {
  const double high = a.high + b.high, part = high - a.high;
  const double low = (a.high - (high - part)) + (b.high - part) + a.low + b.low;
  const double total = high + low;
  return std::isfinite(total) ? Pair{total, low - (total - high)} : Pair{high, 0};
}
Pair times(Pair a, Pair b) {
  const double high = a.high * b.high;
  return std::isfinite(high) ? Pair{high, std::fma(a.high, b.high, -high) + (a.high * b.low + a.low * b.high)} : Pair{high, 0};
}

Pairs product(const Pairs& a, const Pairs& b, int k) {
  Pairs result(k * k);
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < k; ++j)
      for (int m = 0; m < k; ++m) result[i * k + j] = sum(result[i * k + j], times(a[i * k + m], b[m * k + j]));
  return result;
}
Pairs identity(int k) {
  Pairs result(k * k);
  for (int i = 0; i < k; ++i) result[i * k + i].high = 1;
  return result;
}
Pairs widened(const Numbers& numbers) {
  Pairs result(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) result[i].high = numbers[i];
  return result;
}
Numbers rounded(const Pairs& pairs) {
  Numbers result(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) result[i] = pairs[i].high;
  return result;
}

bool has_grown(const Numbers& numbers) {
  return !std::all_of(numbers.begin(), numbers.end(), [](double x) { return std::fabs(x) < kMostGrown; });
}

// What `n` steps of the same do: the matrix to that power, or n times the shift. `exact` is the matrix that has grown.
struct Power {
  Numbers rounded;
  Pairs exact;
};

Power repeated(const TimeParallel& parallel, int k, int64_t n) {
  if (parallel.kind != kAffine) {
    Power result{parallel.matrix, {}};
    for (double& shift : result.rounded) shift *= (double)n;
    return result;
  }
  Pairs result = identity(k), square = widened(parallel.matrix);
  for (;;) {
    if (n % 2) result = product(square, result, k);
    if (!(n /= 2)) break;
    square = product(square, square, k);
  }
  Numbers numbers = rounded(result);
  if (!has_grown(numbers)) result.clear();
  return {std::move(numbers), std::move(result)};
}

// after = matrix before + rest, where products are much larger than their sums.
void multiply_grown(const Pairs& matrix, int k, const double* before, const double* rest, double* after) {
  for (int i = 0; i < k; ++i) {
    Pair total{rest[i], 0};
    for (int j = 0; j < k; ++j) total = sum(total, times(matrix[i * k + j], {before[j], 0}));
    after[i] = total.high;
  }
}

bool trusted(const double* numbers, int n) {
  for (int i = 0; i < n; ++i)
    if (!(std::fabs(numbers[i]) < kHuge)) return false;
  return true;
}

// The same of kAffine with a matrix that has not grown, for every lane of a block: `lane_in_order` where it has to be.
template <int k, class T, class InOrder>
void combine_lanes(const double* matrix, const T* rests, T* states, int64_t lanes, double* carry, InOrder lane_in_order) {
  double before[k], after[k];
  std::copy_n(carry, k, before);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    bool fits = true;
    for (int i = 0; i < k; ++i) {
      const double rest = rests[i * lanes + lane];
      states[i * lanes + lane] = (T)before[i];
      after[i] = rest;
      for (int j = 0; j < k; ++j) after[i] += matrix[i * k + j] * before[j];
      fits &= (std::fabs(rest) < kHuge) & (std::fabs(before[i]) < kHuge) & (std::fabs(after[i]) < kHuge);
    }
    if (!fits) lane_in_order(lane, before, after);
    std::copy_n(after, k, before);
  }
  std::copy_n(before, k, carry);
}

uint64_t bits_of(double number) {
  uint64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

// The state after a chunk; false where it has to be found step by step.
bool combine(const TimeParallel& parallel, int k, const double* matrix, const double* rest, const double* before,
             double* after) {
  const double s = before[0];
  switch (parallel.kind) {
    case kAffine:
      for (int i = 0; i < k; ++i) {
        after[i] = rest[i];
        for (int j = 0; j < k; ++j) after[i] += matrix[i * k + j] * before[j];
      }
      return trusted(matrix, k * k) && trusted(before, k) && trusted(rest, k) && trusted(after, k);
    case kIntegers:
      for (int i = 0; i < k; ++i) {
        uint64_t total = bits_of(rest[i]);
        for (int j = 0; j < k; ++j) total += bits_of(matrix[i * k + j]) * bits_of(before[j]);
        std::memcpy(&after[i], &total, sizeof total);
      }
      return true;
    case kMaxPlus:
      after[0] = std::fmax(s + matrix[0], rest[0]);
      return !std::isnan(rest[0]) && !std::isnan(s + matrix[0]);
    case kMinPlus:
      after[0] = std::fmin(s + matrix[0], rest[0]);
      return !std::isnan(rest[0]) && !std::isnan(s + matrix[0]);
    case kLogAddExp: {
      const double a = s + matrix[0], b = rest[0], most = std::fmax(a, b);
      after[0] = most == -INFINITY ? most : most + std::log(std::exp(a - most) + std::exp(b - most));
      return std::isfinite(after[0]) || (most == -INFINITY && !std::isnan(a) && !std::isnan(b));
    }
    default: {   // the better of two
      const double current = before[parallel.decides], other = rest[parallel.decides];
      const bool later = parallel.kind == kMostWins ? other > current : other < current;
      const bool tie = other == current && !parallel.keeps_ties;
      std::copy_n(later || tie ? rest : before, k, after);
      // The worst of all may be none.
      return !std::isinf(other) && !std::isnan(current);
    }
  }
}

class Chunks {
 public:
  Chunks(const UserScan& scan, const TimeParallel& parallel)
      : scan(scan), parallel(parallel), k(scan.kernel.n_states), n_lanes(scan.kernel.group) {
    const int64_t n_streams = std::max<int64_t>(1, (int64_t)(scan.inputs.size() + scan.outputs.size()));
    const int64_t most = kBlockBytes / (n_lanes * (scan.kernel.bits / 8) * n_streams);
    // An odd number of vectors: lines a power of two apart would fall into few sets of the cache.
    const int64_t lanes = scan.kernel.lanes;
    chunk = std::max(kLeastChunk, most / lanes * lanes - (most / lanes % 2 ? 0 : lanes));
    // Short lines: blocks enough for all threads of a small machine, of any number of threads.
    while (chunk > 2 * kLeastChunk && scan.length / (chunk * n_lanes) < 4) chunk /= 2;
    n_blocks = std::max<int64_t>(1, scan.length / (chunk * n_lanes));
    power = parallel.varies ? Power() : repeated(parallel, k, chunk);
    find_sums();
    carries.resize(n_blocks * scan.n_columns * k);
    flags = std::make_unique<std::atomic<uint8_t>[]>(n_blocks * scan.n_columns);
  }

  void run() {
    const int64_t n_tasks = n_blocks * scan.n_columns;
    const int threads = threads_worth(scan.n_threads, bytes_of(scan), n_tasks);
    std::vector<Scratch> scratch(threads);
    for_tasks(n_tasks, threads, true, [&](int64_t task, int thread) {
      run_block(task / scan.n_columns, task % scan.n_columns, scratch[thread]);
    });
  }

 private:
  const UserScan& scan;
  const TimeParallel& parallel;
  const int k;
  const int64_t n_lanes;
  int64_t chunk = 0, n_blocks = 0;
  Power power;
  Numbers carries;
  std::unique_ptr<std::atomic<uint8_t>[]> flags;
  bool sums_chunks = false, backward = false;   // inputs in the order of memory, which may be the other way
  std::vector<char> powers;

  // A block's operands: where its first step is, in memory or in a copy. The lanes of chunks read here and there what no
  // prefetcher foresees; so what comes from beyond the caches is copied in its own order, unless it has been summed in
  // that order before, and written so.
  struct Place {
    std::vector<char*> inputs, outputs;
    struct Pending {
      const char* from;
      char* to;
      int64_t n_bytes;
    };
    std::vector<Pending> pending;
  };

  // Inputs whose steps are neighbours are summed in place, and so come into the cache for the second pass.
  void find_sums() {
    const SumsKernel& sums = parallel.sums;
    const int64_t item = scan.kernel.bits / 8, lanes = scan.kernel.lanes, round = lanes * sums.vectors_at_once;
    if (!sums.sums || chunk % lanes || chunk < round) return;
    bool forward = false;
    for (const ScanOperand& operand : scan.inputs) {
      if (operand.shared) continue;
      if (!is_number(scan.kernel, operand.type, operand.integer) || std::abs(operand.time_stride) != item) return;
      (operand.time_stride < 0 ? backward : forward) = true;
    }
    if (backward && forward) return;
    const Numbers rounds = repeated(parallel, k, round).rounded;
    if (has_grown(rounds)) return;
    sums_chunks = true;
    powers.resize((2 * k * k + k * k * lanes) * item);
    auto set = [&](const Numbers& matrix, int64_t place, int64_t stride) {
      for (int i = 0; i < k * k; ++i) set_number(scan.kernel, powers.data(), place + i * stride, matrix[i]);
    };
    set(rounds, 0, 1);
    const Pairs step = widened(parallel.matrix);
    Pairs steps = identity(k);
    for (int64_t n = 0; n < lanes; ++n, steps = product(step, steps, k))
      set(rounded(steps), 2 * k * k + (backward ? n : lanes - 1 - n), lanes);
    set(rounded(steps), k * k, 1);
  }

  void sum_chunks(const Place& position, std::vector<char>& rests) const {
    const int64_t lanes = scan.kernel.lanes;
    std::vector<Stream> streams(std::max<size_t>(1, scan.inputs.size()));   // the kernel reads the first in any case
    for (size_t n = 0; n < scan.inputs.size(); ++n) {
      const int64_t stride = scan.inputs[n].time_stride;
      streams[n] = {position.inputs[n] + (stride < 0 ? (lanes - 1) * stride : 0), lanes * stride};
    }
    parallel.sums.sums(streams.data(), parallel.sums.params.data(), powers.data(), rests.data(), n_lanes, chunk / lanes);
  }

  bool is_copied(const ScanOperand& operand) const {
    return scan.length * size_of(operand.type) >= kBeyondCaches && std::abs(operand.time_stride) == size_of(operand.type);
  }

  // Memory that a worker keeps from block to block: fresh pages would cost more than what is copied there.
  struct Scratch {
    std::vector<Buffer<char>> copies;
    Buffer<char> tiles;
  };

  Place place(int64_t column, int64_t first, int64_t steps, bool is_summed, Scratch& scratch) const {
    Place result;
    size_t n_copies = 0;
    auto add = [&](std::vector<char*>& to, const ScanOperand& operand, bool is_input) {
      char* const data = at(operand, scan, column, first);
      if (!is_copied(operand) || (is_input && is_summed)) return to.push_back(data);
      const int64_t n_bytes = steps * size_of(operand.type);
      const int64_t back = operand.time_stride < 0 ? (steps - 1) * operand.time_stride : 0;   // to the lowest address
      // Of any type: another block may have another operand here.
      if (n_copies == scratch.copies.size()) scratch.copies.emplace_back(2 * chunk * n_lanes * sizeof(double));
      char* const copy = scratch.copies[n_copies++].data();
      if (is_input) std::memcpy(copy, data + back, n_bytes);
      else result.pending.push_back({copy, data + back, n_bytes});
      to.push_back(copy - back);
    };
    for (const ScanOperand& operand : scan.inputs) add(result.inputs, operand, true);
    for (const ScanOperand& operand : scan.outputs) add(result.outputs, operand, false);
    return result;
  }

  // The chunks of a part of a block, from its step `first` on, as a strip.
  Strip strip(const StepsKernel& kernel, const Place& place, int64_t first, int64_t steps, int64_t lanes,
              bool with_outputs, Scratch& scratch) const {
    Strip result(kernel, (int64_t)(scan.inputs.size() + scan.outputs.size()), scratch.tiles);
    auto add = [&](std::vector<Walk>& walks, const ScanOperand& operand, char* data) {
      walks.push_back({data + first * operand.time_stride, operand.time_stride, steps * operand.time_stride, operand.type,
                       operand.shared, operand.integer, nullptr});
    };
    for (size_t n = 0; n < scan.inputs.size(); ++n) add(result.inputs, scan.inputs[n], place.inputs[n]);
    for (size_t n = 0; with_outputs && n < scan.outputs.size(); ++n)
      add(result.outputs, scan.outputs[n], place.outputs[n]);
    result.prepare(lanes);
    return result;
  }

  // All lanes of some steps each: reduced, given their states, scanned. Leaves the state after them in `carry`.
  void pass(const Place& position, int64_t steps, int64_t lanes, const Power& power, std::vector<char>& states,
            const std::vector<char>& reduced, double* carry, Scratch& scratch) {
    if (parallel.kind == kAffine && !parallel.varies && power.exact.empty()) {
      auto one = [&](int64_t lane, const double* before, double* after) {
        in_order(position, lane * steps, steps, before, after, scratch);
      };
      auto all = [&](auto zero) {
        using T = decltype(zero);
        const T* const rests = (const T*)reduced.data();
        T* const before = (T*)states.data();
        switch (k) {
          case 1: return combine_lanes<1>(power.rounded.data(), rests, before, lanes, carry, one);
          case 2: return combine_lanes<2>(power.rounded.data(), rests, before, lanes, carry, one);
          case 3: return combine_lanes<3>(power.rounded.data(), rests, before, lanes, carry, one);
          default: return combine_lanes<4>(power.rounded.data(), rests, before, lanes, carry, one);
        }
      };
      static_assert(kMostCombined == 4);
      return scan.kernel.bits == 32 ? all(float{}) : all(double{});
    }
    const int64_t n = (int64_t)parallel.start.size(), n_matrix = parallel.varies ? n - k : 0;
    Numbers matrix = power.rounded, rest(k), after(k);
    matrix.resize(std::max<size_t>(matrix.size(), parallel.varies ? n_matrix : 1));
    for (int64_t lane = 0; lane < lanes; ++lane) {
      for (int s = 0; s < k; ++s) set_number(scan.kernel, states.data(), s * lanes + lane, carry[s]);
      for (int64_t m = 0; m < n_matrix; ++m) matrix[m] = number(scan.kernel, reduced.data(), m * lanes + lane);
      for (int s = 0; s < k; ++s) rest[s] = number(scan.kernel, reduced.data(), (n_matrix + s) * lanes + lane);
      if (!combine(parallel, k, matrix.data(), rest.data(), carry, after.data()))
        in_order(position, lane * steps, steps, carry, after.data(), scratch);
      else if (!power.exact.empty())
        multiply_grown(power.exact, k, carry, rest.data(), after.data());
      std::copy(after.begin(), after.end(), carry);
    }
  }

  // Step by step from this state; what it writes is right, and is written again with the other lanes.
  void in_order(const Place& position, int64_t first, int64_t steps, const double* before, double* after, Scratch& scratch) {
    std::vector<char> state(k * 8);
    for (int s = 0; s < k; ++s) set_number(scan.kernel, state.data(), s, before[s]);
    strip(scan.kernel, position, first, steps, 1, true, scratch).run(state.data(), 1, steps, 1);
    for (int s = 0; s < k; ++s) after[s] = number(scan.kernel, state.data(), s);
  }

  void run_block(int64_t block, int64_t column, Scratch& scratch) {
    const int64_t task = block * scan.n_columns + column, first = block * chunk * n_lanes;
    const bool last = block == n_blocks - 1;
    const int64_t n_steps = last ? scan.length - first : chunk * n_lanes;
    // The last block has what is left: its chunks are longer, and a few steps come after them.
    const int64_t steps = last ? n_steps / n_lanes : chunk, left = n_steps - steps * n_lanes;
    const Power own = parallel.varies || steps == chunk ? power : repeated(parallel, k, steps);
    const int64_t n = (int64_t)parallel.start.size();
    std::vector<char> reduced(n * n_lanes * 8), states(k * n_lanes * 8);
    const bool is_summed = sums_chunks && steps == chunk;
    const Place position = place(column, first, n_steps, is_summed, scratch);
    if (is_summed) {
      sum_chunks(position, reduced);
    } else if (steps > 0) {
      for (int64_t s = 0; s < n; ++s)
        for (int64_t lane = 0; lane < n_lanes; ++lane)
          set_number(parallel.reduce, reduced.data(), s * n_lanes + lane, parallel.start[s]);
      strip(parallel.reduce, position, 0, steps, n_lanes, false, scratch).run(reduced.data(), n_lanes, steps, n_lanes);
    }
    Numbers carry(k);
    if (block == 0) {
      for (int s = 0; s < k; ++s) carry[s] = number(scan.kernel, (char*)scan.state, s * scan.n_columns + column);
    } else {
      wait_for(flags[task - scan.n_columns]);
      std::copy_n(carries.data() + (task - scan.n_columns) * k, k, carry.data());
    }
    if (steps > 0) pass(position, steps, n_lanes, own, states, reduced, carry.data(), scratch);
    std::copy_n(carry.data(), k, carries.data() + task * k);
    publish(flags[task]);
    if (steps > 0) strip(scan.kernel, position, 0, steps, n_lanes, true, scratch).run(states.data(), n_lanes, steps, n_lanes);
    if (last) finish(position, column, steps, left, states, carry, scratch);
    for (const auto& each : position.pending) std::memcpy(each.to, each.from, each.n_bytes);
  }

  // What is left, and the state after the last step, as it stands beside the last output.
  void finish(const Place& position, int64_t column, int64_t steps, int64_t left, const std::vector<char>& states,
              const Numbers& carry, Scratch& scratch) {
    std::vector<char> final_state(k * 8);
    for (int s = 0; s < k; ++s) {
      const double value = steps > 0 ? number(scan.kernel, states.data(), s * n_lanes + n_lanes - 1) : carry[s];
      set_number(scan.kernel, final_state.data(), s, value);
    }
    if (left) strip(scan.kernel, position, steps * n_lanes, left, 1, true, scratch).run(final_state.data(), 1, left, 1);
    for (int s = 0; s < k; ++s)
      set_number(scan.kernel, (char*)scan.state, s * scan.n_columns + column, number(scan.kernel, final_state.data(), s));
  }
};

}  // namespace

void scan_columns(const UserScan& scan) {
  const StepsKernel& kernel = scan.kernel;
  const int64_t item = kernel.bits / 8, inner = scan.dims[scan.n_dims - 1], outer = scan.n_columns / inner;
  bool in_place = true;
  auto direct = [&](const ScanOperand& operand) {
    return is_number(kernel, operand.type, operand.integer) && (operand.shared || operand.strides[scan.n_dims - 1] == item);
  };
  for (const auto* operands : {&scan.inputs, &scan.outputs})
    for (const ScanOperand& operand : *operands) in_place &= direct(operand);
  // Wide strips walk along rows of memory; but every thread is to have one.
  int64_t strip = in_place ? kStripBytes / item : kernel.tiled;
  while (strip > kernel.group && (inner + strip - 1) / strip * outer < 2 * scan.n_threads) strip /= 2;
  if (in_place) strip = std::max<int64_t>(strip / kernel.group * kernel.group, kernel.group);
  while (strip > kernel.lanes && strip > inner) strip -= kernel.lanes;
  const int64_t n_strips = (inner + strip - 1) / strip;
  const int threads = threads_worth(scan.n_threads, bytes_of(scan), outer * n_strips);
  std::vector<Buffer<char>> tiles(threads);
  for_tasks(outer * n_strips, threads, true, [&](int64_t task, int thread) {
    const int64_t first = task % n_strips * strip, column = task / n_strips * inner + first;
    const int64_t n_columns = std::min(strip, inner - first);
    Strip work(kernel, (int64_t)(scan.inputs.size() + scan.outputs.size()), tiles[thread]);
    auto add = [&](std::vector<Walk>& walks, const ScanOperand& operand) {
      walks.push_back({at(operand, scan, column, 0), operand.time_stride, operand.strides[scan.n_dims - 1],
                       operand.type, direct(operand), operand.integer, nullptr});
    };
    for (const ScanOperand& operand : scan.inputs) add(work.inputs, operand);
    for (const ScanOperand& operand : scan.outputs) add(work.outputs, operand);
    work.far = true;
    work.prepare(n_columns);
    work.run((char*)scan.state + column * item, scan.n_columns, scan.length, n_columns);
  });
}

void scan_in_chunks(const UserScan& scan, const TimeParallel& parallel) { Chunks(scan, parallel).run(); }

}  // namespace upsweep
