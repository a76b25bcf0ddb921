// A strip is a run of neighbouring lines; a driver scans or reduces some steps of it and neither knows nor
// cares how they lie in memory. This file picks the kernel for a problem's layout:
//
//   kLines         contiguous in time: one line after the other, in place      (scan/lines.cpp, scan/integers.cpp)
//   kColumns       contiguous across: all columns of the strip, in place       (scan/columns.cpp, scan/integers.cpp)
//   kGatheredLines    a tile of one line at a time, through a buffer              (common/gather.cpp, then LINES)
//   kGatheredColumns  a tile of some lines, step by step, through a buffer        (common/gather.cpp, then COLUMNS)
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/buffer.hpp"
#include "common/parallel.hpp"
#include "common/tuning.hpp"
#include "scan/scan.hpp"
#include "common/vec.hpp"

namespace upsweep {
namespace {

using namespace scan_tuning;

enum class Layout { kLines, kColumns, kGatheredLines, kGatheredColumns };

constexpr int64_t kPollTiles = 16;           // a tile takes 1 to 20 us
constexpr int64_t kTileColumns = 64;
constexpr int64_t kManyComplexLines = 8 * kTileColumns;

// The output is much larger than the cache and nobody has just read its lines.
inline bool should_stream(const ScanProblem& p, int64_t lanes) {
  const int64_t bytes = lanes * p.length * dtype_size(p.out.dtype);
  return p.out.data && p.out.data != p.x.data && p.out.data != p.gates.data && bytes >= kStreamBytes;
}

// ---- arithmetic of the accumulators -------------------------------------------------------------------------
//
// Acc is what a state is held in, Factor what it is multiplied by. A real factor of a complex state is multiplied with
// each part: as a complex one, its imaginary zero would turn an infinity into a NaN.

inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }
inline uint64_t multiply_add(uint64_t a, uint64_t b, uint64_t c) { return a * b + c; }
inline Complex multiply_add(Complex a, Complex b, Complex c) {
  return {fma(a.re, b.re, fma(-a.im, b.im, c.re)), fma(a.re, b.im, fma(a.im, b.re, c.im))};
}
inline Complex multiply_add(double a, Complex b, Complex c) { return {fma(a, b.re, c.re), fma(a, b.im, c.im)}; }
inline Complex operator*(Complex a, Complex b) { return multiply_add(a, b, Complex{0.0, 0.0}); }

inline Complex token_of(Complex x) { return {as_operand(x.re), as_operand(x.im)}; }
inline uint64_t token_of(uint64_t x) { return x; }

template <class Acc>
struct Unit;
template <> struct Unit<double> {
  static constexpr double one = 1.0, zero = 0.0;
  static constexpr int32_t dtype = kDouble;
};
template <> struct Unit<uint64_t> {
  static constexpr uint64_t one = 1, zero = 0;
  static constexpr int32_t dtype = kUInt64;
};
template <> struct Unit<Complex> {
  static constexpr Complex one{1.0, 0.0}, zero{0.0, 0.0};
  static constexpr int32_t dtype = kComplexDouble;
};

// What some steps do to the state before them.
template <class Acc, class Factor = Acc>
struct Effect {
  Factor multiplier;
  Acc value;
  double min_gate, max_gate, growth, reach;   // as in Reduced
  bool in_order;
};

// Whether no state of the block, started from this one, comes near the end of the range. Not so for a NaN.
inline bool stays_finite(const Effect<double>& effect, double state) {
  return effect.growth * std::fabs(state) + effect.reach <= kLargestState;
}

// The state after a block whose effect is known, or false: then only the plain order of its steps gives it.
inline bool apply(const Effect<double>& effect, double state, double* after) {
  if (effect.in_order || !is_finite(effect.value) || !is_finite(effect.multiplier) || !stays_finite(effect, state))
    return false;
  if (std::fabs(effect.multiplier) >= kSmallest) {
    *after = fma(effect.multiplier, state, effect.value);
    return true;
  }
  *after = effect.value;
  if (effect.min_gate == 0.0) return true;   // a gate of zero, or a reset: the product is zero, not just tiny
  // It vanished. With no gate above one it never came back, so what is lost is below |state| * kSmallest.
  return effect.max_gate <= 1.0 &&
         std::fabs(state) * kSmallest <= std::max(kSmallest, std::fabs(effect.value) * 0x1p-60);
}
inline bool apply(const Effect<uint64_t>& effect, uint64_t state, uint64_t* after) {
  *after = effect.multiplier * state + effect.value;
  return true;
}
template <class Factor>
inline bool apply(const Effect<Complex, Factor>&, Complex, Complex*) { return false; }

// ---- one strip ---------------------------------------------------------------------------------------------------

// Pointers at the strip's first line and scan order's first step.
struct Strip {
  char *x, *gates, *reset, *out, *gamma, *initial, *final_state, *multiplier;
  int64_t lanes;
};

template <class Acc, class Factor = Acc>
struct Workspace {
  Buffer<Acc> x, carry, after;          // after: of integers and of *_carry; products: of *_carry
  Buffer<Acc> turned;                   // a tile, line by line
  Buffer<Factor> gates, gamma, products;
  Buffer<uint8_t> reset;
  std::vector<Effect<Acc, Factor>> effects;
  std::vector<Reduced> reduced;
};

inline bool aligned(const Array& array, const ScanProblem& problem) {
  const uint64_t item = (uint64_t)dtype_size(array.dtype);
  uint64_t all = (uint64_t)array.data | (uint64_t)array.time_stride | (uint64_t)array.column_stride;
  for (int dim = 0; dim < problem.n_batch; ++dim) all |= (uint64_t)array.batch_strides[dim];
  return all % item == 0;
}

inline Layout choose_layout(const ScanProblem& p) {
  const int64_t item = dtype_size(p.x.dtype);
  const bool has_out = p.out.data != nullptr;
  const Array& like = has_out ? p.out : p.x;
  auto across = [&](const Array& array) {
    return std::llabs(array.column_stride) < std::llabs(array.time_stride) && p.columns > 1 && array.column_stride != 0;
  };
  const bool columns_first = across(p.x);
  bool in_place = p.accumulator == kReal && p.x.dtype >= kHalf && p.x.dtype <= kDouble && like.dtype == p.x.dtype;
  if (p.accumulator == kInteger)
    in_place = p.x.dtype <= kUInt64 && !p.gates.data && !p.gamma.data &&
               (!has_out || (p.out.dtype >= kInt32 && p.out.dtype <= kUInt64));
  in_place = in_place && !p.x.swapped && aligned(p.x, p) && aligned(like, p);
  if (p.gates.data)
    in_place = in_place && (p.gates.dtype == p.x.dtype || p.gates.dtype == kDouble) && !p.gates.swapped &&
               aligned(p.gates, p);
  if (in_place) {
    const int64_t sign = p.x.time_stride < 0 ? -1 : 1;
    const bool is_constant = p.accumulator == kInteger && p.x.time_stride == 0;   // forward: its sign is 1
    if ((p.x.time_stride == sign * item || is_constant) && like.time_stride == sign * dtype_size(like.dtype) &&
        (!p.gates.data || p.gates.time_stride == sign * dtype_size(p.gates.dtype)) &&
        (!p.reset.data || p.reset.time_stride == sign) && !(columns_first && p.length < kLanes))
      return Layout::kLines;
    if (p.x.column_stride == item && like.column_stride == dtype_size(like.dtype) &&
        (!p.gates.data || p.gates.column_stride == 0 || p.gates.column_stride == dtype_size(p.gates.dtype)) &&
        (!p.reset.data || p.reset.column_stride == 0 || p.reset.column_stride == 1))
      return Layout::kColumns;
  }
  // Complex numbers wait long for each other: several of their lines are scanned at a time where there are enough for
  // the threads.
  const bool many = p.accumulator == kComplex && p.columns >= kManyComplexLines;
  // A few columns that are gathered leave most of a vector empty; as lines they fill it.
  const bool few = p.accumulator != kComplex && p.columns < scan_tuning::kFewGatheredColumns;
  const bool by_columns = !few && (columns_first || (has_out && across(p.out)) || many);
  return by_columns ? Layout::kGatheredColumns : Layout::kGatheredLines;
}

// Kernels of a layout, for one accumulator and its factor.
template <class Acc, class Factor = Acc>
class Strips {
 public:
  typedef upsweep::Workspace<Acc, Factor> Workspace;
  typedef upsweep::Effect<Acc, Factor> Effect;

  explicit Strips(const ScanProblem& problem) : p(problem), layout(choose_layout(problem)) {
    if (p.accumulator == kInteger) {
      const bool in_place = layout == Layout::kLines || layout == Layout::kColumns;
      integer_scan_ = integer_scan(in_place ? p.x.dtype : kUInt64, in_place && p.out.data ? p.out.dtype : kInt64);
      return;
    }
    const int32_t gate_dtype = p.gates.data ? p.gates.dtype : p.x.dtype;
    const bool in_place = layout == Layout::kLines, reverse = in_place && p.x.time_stride < 0;
    line_scan_ = line_scan(in_place ? p.x.dtype : kDouble, in_place ? gate_dtype : kDouble, reverse);
    // A carry that is asked for is float64 to its last digits.
    line_reduce_ = (p.multiplier.data ? wide_line_reduce : line_reduce)(in_place ? p.x.dtype : kDouble,
                                                                        in_place ? gate_dtype : kDouble, reverse);
    columns = layout == Layout::kColumns ? column_kernels(p.x.dtype, gate_dtype) : column_kernels(kDouble, kDouble);
  }

  bool by_lines() const { return layout == Layout::kLines || layout == Layout::kGatheredLines; }

  // Bytes read of one step of one line.
  int64_t step_bytes() const {
    return dtype_size(p.x.dtype) + (p.gates.data ? dtype_size(p.gates.dtype) : 0);
  }

  Workspace workspace(int64_t lanes) const {
    Workspace w;
    w.carry.resize(lanes);
    w.gamma.resize(lanes);
    w.effects.resize(lanes);
    if (p.multiplier.data || p.accumulator == kInteger) w.after.resize(lanes);
    if (p.multiplier.data) w.products.resize(lanes);
    if (layout == Layout::kColumns || layout == Layout::kGatheredColumns) w.reduced.resize(lanes);
    if (layout == Layout::kGatheredLines || layout == Layout::kGatheredColumns) {
      w.x.resize(kTileElements);
      if (layout == Layout::kGatheredColumns) w.turned.resize(kTileElements);
      if (p.gates.data) w.gates.resize(kTileElements);
      if (p.reset.data) w.reset.resize(kTileElements);
    }
    return w;
  }

  Strip strip(int64_t batch, int64_t column, int64_t lanes) const {
    Strip s{p.x.data, p.gates.data, p.reset.data, p.out.data, p.gamma.data, p.initial.data,
            p.final_state.data, p.multiplier.data, lanes};
    for (int dim = p.n_batch - 1; dim >= 0; --dim) {
      move(s, batch % p.batch_shape[dim], [dim](const Array& array) { return array.batch_strides[dim]; });
      batch /= p.batch_shape[dim];
    }
    return part(s, column, lanes);
  }
  // Some lanes of a strip.
  Strip part(Strip s, int64_t lane, int64_t lanes) const {
    move(s, lane, [](const Array& array) { return array.column_stride; });
    s.lanes = lanes;
    return s;
  }

  Factor gamma_of(const Strip& s, int64_t lane) const {
    if (!s.gamma) return Unit<Factor>::one;
    const char* at = s.gamma + lane * p.gamma.column_stride;
    if (p.gamma.dtype == Unit<Factor>::dtype && !p.gamma.swapped) return load_bytes<Factor>(at);
    Factor gamma;
    gather(at, 0, 1, p.gamma.dtype, p.gamma.swapped, &gamma);
    return gamma;
  }

  // Scans steps [from, to) of the strip; carry holds one state a lane, before and after. Without `write`
  // only the states are brought forward.
  void scan(const Strip& s, int64_t from, int64_t to, Acc* carry, bool first, bool stream, bool write,
            Workspace& w) const {
    if (from == to) return;
    if (layout == Layout::kGatheredLines || layout == Layout::kGatheredColumns) {
      for_tiles(s, from, to, w, [&](const Tile& tile, int64_t lane, int64_t step, bool at_start) {
        scan_tile(tile, carry + lane, first && at_start, w);
        if (write && s.out) scatter_tile(s, tile, lane, step, w);
      });
    } else if constexpr (std::is_same_v<Acc, double>) {
      if (layout == Layout::kColumns) {
        columns.scan(column_args(s, from, to, carry, first, stream, write, w));
      } else {
        if (!s.gamma || p.gamma.column_stride == 0 || s.lanes == 1) {
          line_scan_(line_args(s, 0, from, to, 0.0, first, stream, write),
                     {s.lanes, p.x.column_stride, p.gates.column_stride, p.reset.column_stride,
                            p.out.column_stride, carry});
        } else {
          for (int64_t lane = 0; lane < s.lanes; ++lane)
            carry[lane] = scan_one_line(line_scan_, line_args(s, lane, from, to, carry[lane], first, stream, write));
        }
      }
    } else if constexpr (std::is_same_v<Acc, uint64_t>) {
      integer_scan_(integer_args(s, from, to, carry, write));
    }
  }

  // What steps [from, to) do to each lane's state.
  void reduce(const Strip& s, int64_t from, int64_t to, bool first, Effect* effects, Workspace& w) const {
    // Of one line of integers, all that counts is what follows its last reset.
    if (std::is_same_v<Acc, uint64_t> && s.reset && s.lanes == 1) {
      for (int64_t step = to - 1; step > from; --step)
        if (s.reset[step * p.reset.time_stride]) from = step;
    }
    if (layout == Layout::kGatheredLines || layout == Layout::kGatheredColumns) {
      for_tiles(s, from, to, w, [&](const Tile& tile, int64_t lane, int64_t, bool at_start) {
        reduce_tile(tile, effects + lane, at_start, first && at_start, w);
      });
    } else if constexpr (std::is_same_v<Acc, double>) {
      if (layout == Layout::kColumns) {
        columns.reduce(column_args(s, from, to, nullptr, first, false, false, w), w.reduced.data());
        for (int64_t lane = 0; lane < s.lanes; ++lane) effects[lane] = effect_of(w.reduced[lane]);
      } else {
        for (int64_t lane = 0; lane < s.lanes; ++lane)
          effects[lane] = effect_of(line_reduce_(line_args(s, lane, from, to, 0.0, first, false, false)));
      }
    } else if constexpr (std::is_same_v<Acc, uint64_t>) {
      std::fill_n(w.after.data(), s.lanes, 0);
      const IntegerArgs args = integer_args(s, from, to, w.after.data(), false);
      integer_scan_(args);
      for (int64_t lane = 0; lane < s.lanes; ++lane) {
        bool dropped = false;
        for (int64_t step = 0; args.reset && step < args.n_steps; ++step)
          dropped |= args.reset[lane * args.reset_lane_stride + step * args.reset_stride] != 0;
        effects[lane] = {dropped ? 0u : 1u, w.after[lane], 1.0, 1.0, 1.0, 0.0, false};
      }
    }
  }

  const ScanProblem& p;
  const Layout layout;
  int64_t ahead_steps = 0;   // see LineArgs

 private:
  template <class Stride>
  void move(Strip& s, int64_t index, Stride stride) const {
    auto move_one = [&](char*& pointer, const Array& array) {
      if (pointer) pointer += index * stride(array);
    };
    move_one(s.x, p.x);
    move_one(s.gates, p.gates);
    move_one(s.reset, p.reset);
    move_one(s.out, p.out);
    move_one(s.gamma, p.gamma);
    move_one(s.initial, p.initial);
    move_one(s.final_state, p.final_state);
    move_one(s.multiplier, p.multiplier);
  }

  LineScan* line_scan_ = nullptr;       // of real numbers
  IntegerScan* integer_scan_ = nullptr;
  LineReduce* line_reduce_ = nullptr;
  ColumnKernels columns{};

  // A tile in the buffers: [step][lane], lanes contiguous; one lane in kGatheredLines.
  struct Tile {
    int64_t steps, lanes;
  };

  static Effect effect_of(const Reduced& r) {
    return {r.multiplier, r.value, r.min_gate, r.max_gate, r.growth, r.reach, r.in_order};
  }

  LineArgs line_args(const Strip& s, int64_t lane, int64_t from, int64_t to, double carry, bool first, bool stream,
                     bool write) const {
    auto at = [&](char* base, const Array& array) {
      return base ? base + lane * array.column_stride + from * array.time_stride : nullptr;
    };
    return {at(s.x, p.x), at(s.gates, p.gates), (const uint8_t*)at(s.reset, p.reset),
            write ? at(s.out, p.out) : nullptr, to - from, gamma_at(s, lane), carry, first, p.exclusive != 0, stream,
            ahead_steps};
  }
  double gamma_at(const Strip& s, int64_t lane) const {
    if constexpr (std::is_same_v<Acc, double>) return gamma_of(s, lane);
    else return 1.0;
  }

  ColumnArgs column_args(const Strip& s, int64_t from, int64_t to, double* carry, bool first, bool stream, bool write,
                         Workspace& w) const {
    load_gamma(s, 0, s.lanes, w);
    auto at = [&](char* base, const Array& array) { return base ? base + from * array.time_stride : nullptr; };
    return {at(s.x, p.x), at(s.gates, p.gates), (const uint8_t*)at(s.reset, p.reset),
            write ? at(s.out, p.out) : nullptr, p.x.time_stride, p.gates.time_stride, p.reset.time_stride,
            p.out.time_stride, p.gates.column_stride == 0, p.reset.column_stride == 0, to - from, s.lanes,
            w.gamma.data(), carry, first, p.exclusive != 0, stream};
  }

  IntegerArgs integer_args(const Strip& s, int64_t from, int64_t to, uint64_t* state, bool write) const {
    auto at = [&](char* base, const Array& array) { return base ? base + from * array.time_stride : nullptr; };
    return {at(s.x, p.x), (const uint8_t*)at(s.reset, p.reset), write ? at(s.out, p.out) : nullptr,
            p.x.time_stride, p.reset.time_stride, p.out.time_stride, p.x.column_stride, p.reset.column_stride,
            p.out.column_stride, to - from, s.lanes, state, layout == Layout::kColumns, p.exclusive != 0};
  }

  template <class Visit>
  void for_tiles(const Strip& s, int64_t from, int64_t to, Workspace& w, Visit visit) const {
    const int64_t lanes = layout == Layout::kGatheredColumns ? std::min(s.lanes, kTileColumns) : 1;
    const int64_t steps = kTileElements / lanes;
    for (int64_t lane = 0; lane < s.lanes; lane += lanes)
      for (int64_t step = from; step < to; step += steps) {
        const Tile tile{std::min(steps, to - step), std::min(lanes, s.lanes - lane)};
        gather_all(s, tile, lane, step, w);
        visit(tile, lane, step, step == from);
        if ((step - from) / steps % kPollTiles == kPollTiles - 1) poll();
      }
  }

  // Runs of a tile: each(start, stride, n, at) for each line of it or, where the lines are nearer to each other than their
  // elements, for each step.
  template <class Each>
  void each_run(const Tile& tile, const Array& array, char* base, int64_t lane, int64_t step, bool by_line, Each each) const {
    char* start = base + lane * array.column_stride + step * array.time_stride;
    if (by_line)
      for (int64_t k = 0; k < tile.lanes; ++k)
        each(start + k * array.column_stride, array.time_stride, tile.steps, k * tile.steps);
    else
      for (int64_t k = 0; k < tile.steps; ++k)
        each(start + k * array.time_stride, array.column_stride, tile.lanes, k * tile.lanes);
  }
  static bool by_line(const Tile& tile, const Array& array) {
    return tile.lanes == 1 || std::llabs(array.time_stride) < std::llabs(array.column_stride);
  }

  // Elements of an array, [step][lane]; those that are nearest to the next step are read line by line, and turned.
  template <class Number>
  void gather_tile(const Array& array, char* base, const Tile& tile, int64_t lane, int64_t step, Buffer<Number>& to,
                   Workspace& w) const {
    const bool turns = std::is_same_v<Number, Acc> && tile.lanes > 1 && by_line(tile, array);
    Number* target = to.data();
    if constexpr (std::is_same_v<Number, Acc>)
      if (turns) target = w.turned.data();
    each_run(tile, array, base, lane, step, turns || tile.lanes == 1, [&](char* source, int64_t stride, int64_t n, int64_t at) {
      gather(source, stride, n, array.dtype, array.swapped, target + at);
    });
    if (turns) transpose(target, tile.lanes, tile.steps, to.data());
  }

  void gather_all(const Strip& s, const Tile& tile, int64_t lane, int64_t step, Workspace& w) const {
    gather_tile(p.x, s.x, tile, lane, step, w.x, w);
    if (s.gates) gather_tile(p.gates, s.gates, tile, lane, step, w.gates, w);
    if (s.reset)
      each_run(tile, p.reset, s.reset, lane, step, tile.lanes == 1, [&](char* source, int64_t stride, int64_t n, int64_t at) {
        for (int64_t k = 0; k < n; ++k) w.reset[at + k] = (uint8_t)source[k * stride];
      });
    load_gamma(s, lane, tile.lanes, w);
  }

  void load_gamma(const Strip& s, int64_t lane, int64_t n, Workspace& w) const {
    const int64_t stride = p.gamma.column_stride;
    if (s.gamma) gather(s.gamma + lane * stride, stride, n, p.gamma.dtype, p.gamma.swapped, w.gamma.data());
    else std::fill_n(w.gamma.data(), n, Unit<Factor>::one);
  }

  void scatter_tile(const Strip& s, const Tile& tile, int64_t lane, int64_t step, Workspace& w) const {
    const bool turns = tile.lanes > 1 && by_line(tile, p.out);
    const Acc* from = w.x.data();
    if (turns) transpose(from, tile.steps, tile.lanes, w.turned.data()), from = w.turned.data();
    each_run(tile, p.out, s.out, lane, step, turns || tile.lanes == 1, [&](char* target, int64_t stride, int64_t n, int64_t at) {
      scatter(from + at, n, p.out.dtype, target, stride);
    });
  }

  LineArgs tile_line(const Tile& tile, double carry, bool first, Workspace& w) const {
    return {w.x.data(), p.gates.data ? w.gates.data() : nullptr, p.reset.data ? w.reset.data() : nullptr,
            w.x.data(), tile.steps, w.gamma[0], carry, first, p.exclusive != 0, false, 0};
  }
  ColumnArgs tile_columns(const Tile& tile, double* carry, bool first, Workspace& w) const {
    const int64_t pitch = tile.lanes * (int64_t)sizeof(double);
    return {(const char*)w.x.data(), p.gates.data ? (const char*)w.gates.data() : nullptr,
            p.reset.data ? w.reset.data() : nullptr, (char*)w.x.data(), pitch, pitch, tile.lanes, pitch, false, false,
            tile.steps, tile.lanes, w.gamma.data(), carry, first, p.exclusive != 0, false};
  }

  void scan_tile(const Tile& tile, Acc* carry, bool first, Workspace& w) const {
    if constexpr (std::is_same_v<Acc, double>) {
      // By layout, not by the tile's width, which follows from the number of threads.
      if (layout == Layout::kGatheredLines) carry[0] = scan_one_line(line_scan_, tile_line(tile, carry[0], first, w));
      else columns.scan(tile_columns(tile, carry, first, w));
    } else if (std::is_same_v<Acc, uint64_t> && !p.gates.data && !p.gamma.data) {
      if constexpr (std::is_same_v<Acc, uint64_t>) {
        const int64_t item = sizeof(uint64_t), pitch = tile.lanes * item;
        integer_scan_({(const char*)w.x.data(), p.reset.data ? w.reset.data() : nullptr, (char*)w.x.data(), pitch,
                       tile.lanes, pitch, item, 1, item, tile.steps, tile.lanes, carry, tile.lanes > 1, p.exclusive != 0});
      }
    } else {
      int64_t step = 0;
      for (; step < tile.steps && (first || p.reset.data || p.exclusive); ++step, first = false)
        for (int64_t lane = 0; lane < tile.lanes; ++lane) {
          const int64_t at = step * tile.lanes + lane;
          const bool dropped = first || (p.reset.data && w.reset[at]);
          const Acc before = dropped ? Unit<Acc>::zero : carry[lane];
          const Factor gate = p.gates.data ? w.gates[at] : w.gamma[lane];
          carry[lane] = dropped ? token_of(w.x[at]) : multiply_add(gate, carry[lane], w.x[at]);
          w.x[at] = p.exclusive ? before : carry[lane];
        }
      // The same without a choice: lanes that do not wait for each other, or one in a register.
      Acc *__restrict state = carry, *__restrict x = w.x.data() + step * tile.lanes;
      const Factor* __restrict gates = p.gates.data ? w.gates.data() + step * tile.lanes : w.gamma.data();
      const int64_t gates_step = p.gates.data ? tile.lanes : 0;
      if (tile.lanes == 1) {
        Acc only = state[0];
        for (; step < tile.steps; ++step, ++x, gates += gates_step) *x = only = multiply_add(*gates, only, *x);
        state[0] = only;
      }
      for (; step < tile.steps; ++step, x += tile.lanes, gates += gates_step)
        for (int64_t lane = 0; lane < tile.lanes; ++lane) x[lane] = state[lane] = multiply_add(gates[lane], state[lane], x[lane]);
    }
  }

  // effects <- this tile's after what they hold; `start` begins anew.
  void reduce_tile(const Tile& tile, Effect* effects, bool start, bool first, Workspace& w) const {
    if constexpr (std::is_same_v<Acc, double>) {
      Reduced reduced[kTileColumns];
      if (layout == Layout::kGatheredLines) {
        LineArgs args = tile_line(tile, 0.0, first, w);
        args.out = nullptr;
        reduced[0] = line_reduce_(args);
      } else {
        ColumnArgs args = tile_columns(tile, nullptr, first, w);
        args.out = nullptr;
        columns.reduce(args, reduced);
      }
      for (int64_t lane = 0; lane < tile.lanes; ++lane) {
        const Effect next = effect_of(reduced[lane]);
        Effect& all = effects[lane];
        if (start) {
          all = next;
          continue;
        }
        double value = 0.0;
        all.in_order = all.in_order || !apply(next, all.value, &value);
        // A product that vanished may have been anything below the smallest normal number.
        const double grown = std::max(std::fabs(all.multiplier), kSmallest) * next.growth;
        const double reached = std::fabs(all.value) * next.growth + next.reach;
        all = {all.multiplier * next.multiplier, value, std::min(all.min_gate, next.min_gate),
               std::max(all.max_gate, next.max_gate), std::max(all.growth, grown), std::max(all.reach, reached),
               all.in_order};
      }
    } else {
      for (int64_t step = 0; step < tile.steps; ++step)
        for (int64_t lane = 0; lane < tile.lanes; ++lane) {
          const int64_t at = step * tile.lanes + lane;
          Effect& all = effects[lane];
          if (start && step == 0) all = {Unit<Factor>::one, Unit<Acc>::zero, 1.0, 1.0, 1.0, 0.0, false};
          const bool dropped = p.reset.data && w.reset[at];
          const Factor gate = p.gates.data ? w.gates[at] : w.gamma[lane];
          const bool fresh = dropped || (start && step == 0);
          all.value = fresh ? token_of(w.x[at]) : multiply_add(gate, all.value, w.x[at]);
          if (dropped) all.multiplier = Unit<Factor>::zero;
          else if (start && step == 0) all.multiplier = gate;   // not 1 * gate: a complex 1 turns infinities into NaN
          else all.multiplier = multiply_add(gate, all.multiplier, Unit<Factor>::zero);
        }
    }
  }
};

}  // namespace
}  // namespace upsweep
