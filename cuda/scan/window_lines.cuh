// Sums over a window along contiguous lines of one real dtype:
//
//   y[t] = x[t] + gamma x[t-1] + ... + gamma^(W-1) x[t-W+1]
//
// Nothing is subtracted. A lane computes a run of 8 neighbours, whose windows share all but 7 steps (van Herk's prefix and
// suffix around the part in common):
//
//   |P-W ....... P-W+7|............................|P .......... P+7|
//     suffixes of       shared by all eight: W - 8    prefixes of
//     these 7 steps     steps before the run          the run
//
// The part in common is itself a windowed sum, over the aggregates of runs, an eighth as many. Where it has 8 runs or more
// it is computed in the same way for 8 neighbouring runs at once (a block of 64 steps): prefixes and suffixes over runs,
// and whole blocks between them, summed one by one. What is left over of W - 8 below a run is the tail of one run, and
// what is left over of the runs below a block are up to 7 of them.
//
//   near  a thread block reads its tile and the W steps before it, and aggregates both
//   far   (tile + 256 <= W) a thread block reads its tile and about a tile's steps from W before it. Tiles publish the
//         aggregates of themselves and of their units of 256 steps, and a thread block sums those between; no tile waits
//         for another's result
//
// Global memory, an element: one read and one write; near, W / tile of a read more and, far, one, both from the
// second-level cache if W steps of all lines in flight fit. Work, an element: 4 fused multiply-adds, of 16-bit elements
// in float32 within a run, and about 50 instructions in all; W < 8 takes W fused multiply-adds.
//
// A result that is not finite is computed again in the loop's own order (scan/window.cuh).
#pragma once

#include <cfloat>
#include <cmath>

#include "plan/tuning.hpp"
#include "scan/look_back.cuh"
#include "scan/window.cuh"
#include "scan/window_tile.cuh"

namespace upsweep {

__device__ inline double eighth_power(double v) {
  v *= v;
  v *= v;
  return v * v;
}

// Powers of gamma that all threads of a thread block need.
struct WindowPowers {
  static constexpr int kOldest = 0;    // of the oldest steps of a run's windows, in its first result
  static constexpr int kCommon = 1;    // of the units that all windows of a tile have in common
  static constexpr int kBlocks = 2;    // of the whole blocks
  static constexpr int kTile = 3;      // of a tile
  static constexpr int kRound = 4;     // of as many tiles as a thread block has threads
  static constexpr int kTiles = 5;     // of the whole tiles among the units in common
  static_assert(kTiles + 1 == kWindowPowers);

  static __device__ uint32_t exponent(int power, const WindowShape& shape) {
    const uint32_t tile = shape.units * WindowShape::kUnit;
    switch (power) {
      case kOldest: return shape.window - (WindowShape::kRun - 1);
      case kCommon: return shape.common * WindowShape::kUnit;
      case kBlocks: return shape.blocks * WindowShape::kBlock;
      case kTile: return tile;
      case kRound: return tile * blockDim.x;
      default: return shape.common / shape.units * tile;
    }
  }
};

// Of elements `begin` to `end`: aggregates of runs, the tails of runs, aggregates of blocks of 8 runs.
template <class T>
__device__ inline void aggregate_window(const WindowTile<T>& tile, const WindowShape& shape, double gamma, uint32_t begin,
                                        uint32_t end) {
  using Tile = WindowTile<T>;
  using Local = typename Tile::Local;
  constexpr int kRun = Tile::kRun;
  const Local factor = static_cast<Local>(gamma);
  for (uint32_t run = begin / kRun + threadIdx.x; run < end / kRun; run += blockDim.x) {
    Local x[kRun];
    Tile::read(tile.vectors + Tile::slot(run * Tile::kRunVectors), x);
    Local state = x[0];
#pragma unroll
    for (int i = 1; i < kRun; ++i) state = advance(factor, state, x[i]);
    tile.runs[Tile::slot(run)] = state;
    if (shape.tail) {
      Local tail = static_cast<Local>(-0.0);
#pragma unroll
      for (int i = 1; i < kRun; ++i)
        if (i >= kRun - shape.tail) tail = advance(factor, tail, x[i]);
      tile.tails[Tile::slot(run)] = tail;
    }
  }
  __syncthreads();
  if (shape.runs < kRun) return;
  const double run_factor = eighth_power(gamma);
  for (uint32_t block = begin / Tile::kBlock + threadIdx.x; block < end / Tile::kBlock; block += blockDim.x) {
    const double* const runs = tile.runs + Tile::slot(block * 8);
    double state = runs[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) state = advance(run_factor, state, runs[i]);
    tile.blocks[block] = state;
  }
  __syncthreads();
}

__device__ inline double wait_for_one(const Word* from) {
  Word w[1][1];
  wait_for(from, 1, 0, w);
  return number_of(w[0][0]);
}

// The state that the states of lanes give one after the other, each of steps whose power of gamma is `factor`; in lane 31.
__device__ inline double fold_lanes(double state, double factor) {
  for (int by = 1; by < 32; by *= 2, factor *= factor) {
    const double before = __shfl_up_sync(0xffffffffu, state, by);
    if (threadIdx.x % 32 >= by) state = advance(factor, before, state);
  }
  return state;
}

// Far: publishes the aggregates of the tile and of its units.
template <class T>
__device__ inline void publish_tile(const WindowTile<T>& tile, const WindowShape& shape, double gamma, Word* unit_words,
                                    Word* tile_word) {
  constexpr int kBlock = WindowShape::kBlock, kUnitBlocks = WindowShape::kUnit / kBlock;
  const double* const blocks = tile.blocks + shape.own_at / kBlock;
  const double factor = eighth_power(eighth_power(gamma));
  for (int unit = threadIdx.x; unit < shape.units; unit += blockDim.x) {
    double state = blocks[unit * kUnitBlocks];
#pragma unroll
    for (int i = 1; i < kUnitBlocks; ++i) state = advance(factor, state, blocks[unit * kUnitBlocks + i]);
    store_relaxed(unit_words + unit, word_of(state));
  }
  if (threadIdx.x / 32 != blockDim.x / 32 - 1) return;
  const int lane = threadIdx.x % 32, n = shape.units * kUnitBlocks, each = (n + 31) / 32;
  double state = -0.0;
  for (int i = n - (32 - lane) * each; i < n - (31 - lane) * each; ++i)
    if (i >= 0) state = advance(factor, state, blocks[i]);
  state = fold_lanes(state, power(factor, each));
  if (lane == 31) store_relaxed(tile_word, word_of(state));
}

// Far: the state after the units that all windows of a tile have in common, the last of which precedes the tile.
template <class T>
__device__ inline double fetch_common(const WindowTile<T>& tile, const WindowShape& shape, double gamma,
                                      const Word* unit_words, const Word* tile_words, int64_t index) {
  const int tiles = shape.common / shape.units, units = shape.common % shape.units;   // units: of the tile before those
  const int64_t n = min(int64_t(tiles), index);
  double weight = power(tile.powers[WindowPowers::kTile], threadIdx.x), sum = -0.0;
  const double factor = tile.powers[WindowPowers::kRound];
  constexpr int kAtOnce = 4;
  for (int64_t k = threadIdx.x; k < n; k += kAtOnce * int64_t(blockDim.x)) {
    Word w[kAtOnce][1];
    const int64_t left = (n - k + blockDim.x - 1) / blockDim.x;
    const int count = left < kAtOnce ? static_cast<int>(left) : kAtOnce;
    wait_for(tile_words + index - 1 - k, count, -int64_t(blockDim.x), w);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i < count) sum = advance(weight, number_of(w[i][0]), sum);
      weight *= factor;
    }
  }
  const int64_t end = (index - tiles) * shape.units;   // of the units that are taken one by one
  const double block_factor = eighth_power(eighth_power(gamma)), unit_factor = power(block_factor, 4);
  for (int i = threadIdx.x; i < units && end > 0; i += blockDim.x)
    sum = advance(tile.powers[WindowPowers::kTiles] * power(unit_factor, i), wait_for_one(unit_words + end - 1 - i), sum);
  for (int by = 16; by; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
  if (threadIdx.x % 32 == 0) tile.sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = tile.sums[0];
  for (int warp = 1; warp < blockDim.x / 32; ++warp) sum += tile.sums[warp];
  return sum;
}

// What precedes each run of the tile in all eight windows of the run: windows of fewer than 8 whole runs.
template <class T>
__device__ inline void precede_runs(const WindowTile<T>& tile, const WindowShape& shape, double gamma) {
  using Tile = WindowTile<T>;
  const double factor = eighth_power(gamma);
  const int own = shape.own_at / Tile::kRun;
  for (int run = threadIdx.x; run < shape.units * (Tile::kUnit / Tile::kRun); run += blockDim.x) {
    const int begin = own + run - shape.runs;
    double state = shape.tail ? tile.tails[Tile::slot(begin - 1)] : -0.0;
    for (int i = begin; i < own + run; ++i) state = advance(factor, state, tile.runs[Tile::slot(i)]);
    tile.before[Tile::slot(run)] = state;
  }
}

// The same of longer windows: 8 runs in each thread.
template <class T>
__device__ inline void precede_blocks(const WindowTile<T>& tile, const WindowShape& shape, double gamma, double common) {
  using Tile = WindowTile<T>;
  const int own = shape.own_at / Tile::kBlock;
  const double run_factor = eighth_power(gamma), block_factor = eighth_power(run_factor);
  for (int block = threadIdx.x; block < shape.units * (Tile::kUnit / Tile::kBlock); block += blockDim.x) {
    int between = shape.oldest_block + block;
    // The runs before the whole blocks: those of the last run's windows, then one more for each earlier run, and the tail
    // before the first of them.
    double states[8], sum = -0.0, weight = 1.0;
    int run = between * 8 - 1;
    for (int i = 0; i < shape.rest; ++i, --run) {
      sum = advance(weight, tile.runs[Tile::slot(run)], sum);
      weight *= run_factor;
    }
#pragma unroll
    for (int i = 7; i >= 0; --i, --run) {
      states[i] = shape.tail ? advance(weight, tile.tails[Tile::slot(run)], sum) : sum;
      sum = advance(weight, tile.runs[Tile::slot(run)], sum);
      weight *= run_factor;
    }
    double state = -0.0;
    if (shape.common) {
      for (; between < own; ++between) state = advance(block_factor, state, tile.blocks[between]);
      state = advance(tile.powers[WindowPowers::kCommon], state, common);
    }
#pragma unroll 4
    for (; between < own + block; ++between) state = advance(block_factor, state, tile.blocks[between]);
    weight = tile.powers[WindowPowers::kBlocks];
    const double* const runs = tile.runs + Tile::slot((own + block) * 8);
    double* const before = tile.before + Tile::slot(block * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      before[i] = advance(weight, states[i], state);
      state = advance(run_factor, state, runs[i]);
      weight *= run_factor;
    }
  }
}

// Of a lane's run. y: its steps, then the results. oldest: the steps that some of its windows have and others not.
// before: the state after the steps that all have.
template <class Number>
__device__ inline void window_results(Number gamma, Number oldest_weight, Number before,
                                      Number (&oldest)[WindowShape::kRun], Number (&y)[WindowShape::kRun]) {
  constexpr int kRun = WindowShape::kRun;
  Number weight = gamma;
#pragma unroll
  for (int i = kRun - 3; i >= 0; --i) {
    oldest[i] = advance(weight, oldest[i], oldest[i + 1]);
    weight *= gamma;
  }
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    before = advance(gamma, before, y[i]);
    y[i] = i < kRun - 1 ? advance(oldest_weight, oldest[i], before) : before;
    oldest_weight *= gamma;
  }
}

// Of windows that reach no further back than the run before the lane's.
template <class Number>
__device__ inline void short_window_results(Number gamma, int window, const Number (&before)[WindowShape::kRun],
                                            Number (&y)[WindowShape::kRun]) {
  constexpr int kRun = WindowShape::kRun;
  Number x[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) x[i] = y[i], y[i] = static_cast<Number>(-0.0);
#pragma unroll
  for (int k = kRun - 2; k >= 0; --k)
    if (k < window)
#pragma unroll
      for (int i = 0; i < kRun; ++i) y[i] = advance(gamma, y[i], i < k ? before[kRun + i - k] : x[i - k]);
}

enum Kind { kNanKind, kPlusKind, kMinusKind, kFiniteKind };

// The kind of an element; states after one that is not finite stay of its kind. A negative gamma changes the sign of an
// infinity at each step (`turns`): the kind is that at even steps.
__device__ inline int kind_of(double x, int64_t t, bool turns) {
  if (is_finite(x)) return kFiniteKind;
  return is_nan(x) ? kNanKind : (x < 0) != (turns && t % 2 != 0) ? kMinusKind : kPlusKind;
}

// Computes results again that are not finite. t: of the lane's first run. units: those of its warp in which it has some.
template <class T>
__device__ __noinline__ void replace_results(const Problem& p, int64_t line, int64_t t, int64_t window, uint32_t units) {
  constexpr int kRun = WindowShape::kRun, kNone = -(1 << 30);
  const WindowLine<double> access(p, line);
  // Whether no finite elements have an infinite sum in double: then infinities alone decide what windows with some result in.
  const bool keeps = sizeof(T) < sizeof(double) && access.gamma != 0 && fabs(access.gamma) <= 1, turns = access.gamma < 0;
  const int lane = threadIdx.x % 32;
  for (; __any_sync(0xffffffffu, units); units >>= 1, t += blockDim.x * kRun) {
    if (!__any_sync(0xffffffffu, units & 1)) continue;
    // A window with a NaN has the newest for its result, one with infinities these. The newest of each kind: of those before
    // the unit, and of the unit. From its first step:
    const int64_t first = t - lane * kRun;
    int newest[kFiniteKind];
    for (int kind = 0; kind < kFiniteKind; ++kind) {
      newest[kind] = kNone;
      for (int64_t end = first; end > max(first - window, int64_t(0)) && newest[kind] == kNone; end -= 32) {
        const int64_t at = end - 32 + lane;
        const uint32_t lanes = __ballot_sync(0xffffffffu, kind_of(access.at(p, at), at, turns) == kind);
        if (lanes) newest[kind] = static_cast<int>(end - first) - 1 - __clz(lanes);
      }
      int own = kNone;
      for (int i = 0; i < kRun; ++i)
        if (kind_of(access.at(p, t + i), t + i, turns) == kind) own = lane * kRun + i;
      for (int by = 1; by < 32; by *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, own, by);
        if (lane >= by) own = max(own, before);
      }
      own = __shfl_up_sync(0xffffffffu, own, 1);
      if (lane > 0) newest[kind] = max(newest[kind], own);
    }
    for (int i = 0; i < kRun && units & 1; ++i) {
      if (t + i < 0 || t + i >= p.length) continue;
      for (int kind = 0; kind < kFiniteKind; ++kind)
        if (kind_of(access.at(p, t + i), t + i, turns) == kind) newest[kind] = lane * kRun + i;
      T* const y = reinterpret_cast<T*>(access.out + (t + i) * p.out.time_stride);
      if (is_finite(to_double(*y))) continue;
      const int64_t before = lane * kRun + i - window;   // the window
      const double sign = turns && (t + i) % 2 != 0 ? -1 : 1, plus = sign * HUGE_VAL;
      double result;
      if (newest[kNanKind] > before) result = access.at(p, first + newest[kNanKind]);
      else if (keeps && newest[kPlusKind] > before) result = newest[kMinusKind] > before ? plus - plus : plus;
      else if (keeps && newest[kMinusKind] > before) result = -plus;
      else result = sum_in_order(access, p, max(t + i - window + 1, int64_t(0)), t + i);
      *y = from_double<T>(result);
    }
  }
}

template <bool kShort, class Number, class T>
__device__ inline void tile_results(const WindowTile<T>& tile, const WindowShape& shape, const Problem& p, int32_t row,
                                    int begin, int phase, double gamma) {
  using Tile = WindowTile<T>;
  constexpr int kRun = Tile::kRun, kPer = Tile::kPer;
  const LineIndex line(p, row);
  const WindowView<T> out(p, line, p.out, begin, phase);
  const bool aligned = WindowView<T>::phase_of(line, p.out) == phase;
  const uint32_t lane = threadIdx.x % 32, unit = threadIdx.x / 32 * Tile::kUnit;
  const int end = min(shape.units * Tile::kUnit, out.end);
  // Of short windows the run before the lane's.
  const uint32_t own = shape.own_at + unit + lane * kRun, oldest = own - (kShort ? kRun : shape.back);
  uint32_t bad = 0, bit = 1;           // units with results that are not finite
  uint32_t place = 0;                  // of a unit among vectors
  uint4* const results = tile.results + Tile::slot(lane * Tile::kRunVectors);
  const double* before = tile.before + Tile::slot(unit / kRun + lane);
#pragma unroll 1
  for (int at = unit; at < end; at += blockDim.x * kRun) {
    Number factor = static_cast<Number>(gamma);
    hide(factor);                      // its powers would take registers over the loop
    Number y[kRun], old[kRun];
    const uint4* const old_vectors = tile.vectors + Tile::slot(oldest / kPer) + place;
    Tile::read_unaligned(old_vectors, oldest / kPer % 8, oldest % kPer * sizeof(T), old);
    Tile::read(tile.vectors + Tile::slot(own / kPer) + place, y);
    if constexpr (kShort)
      short_window_results(factor, shape.window, old, y);
    else
      window_results(factor, static_cast<Number>(tile.powers[WindowPowers::kOldest]), static_cast<Number>(*before), old, y);
    Number zero = 0;                   // or NaN
#pragma unroll
    for (int i = 0; i < kRun; ++i) zero = advance(y[i], Number(0), zero);
#pragma unroll
    for (int j = 0; j < Tile::kRunVectors; ++j) {
      Number part[kPer];
#pragma unroll
      for (int e = 0; e < kPer; ++e) part[e] = y[j * kPer + e];
      results[j] = vector_of<T>(part);
    }
    if (zero != zero) bad |= bit;
    bit <<= 1;
    __syncwarp();
    store_unit(tile, out, aligned, at);
    __syncwarp();
    place += blockDim.x / 32 * Tile::slot(Tile::kUnitVectors);
    before += blockDim.x / 32 * Tile::slot(Tile::kUnit / kRun);
  }
  if (__any_sync(0xffffffffu, bad)) replace_results<T>(p, row, begin - phase + unit + lane * kRun, shape.window, bad);
}

template <class T>
__global__ void __launch_bounds__(WindowTuning::kThreads, WindowTuning::kBlocks)
    scan_window_lines(const __grid_constant__ Problem p, const __grid_constant__ WindowShape shape,
                      const __grid_constant__ Workspace w) {
  using Tile = WindowTile<T>;
  using Local = typename Tile::Local;
  __shared__ uint32_t ticket;
  uint32_t index = blockIdx.x;
  if (shape.common) {                  // a thread block waits for those alone that have begun
    wait_for_workspace();
    if (threadIdx.x == 0) ticket = atomicAdd(w.counter, 1u) + 1;
    __syncthreads();
    index = ticket;
  }
  const uint32_t row = index / static_cast<uint32_t>(shape.tiles), tile_index = index % static_cast<uint32_t>(shape.tiles);
  const int begin = tile_index * shape.units * Tile::kUnit;
  const LineIndex line(p, row);
  const int phase = WindowView<T>::phase_of(line, p.x);
  const double gamma = gamma_of<double>(p, line);
  const Tile tile(shape);
  const WindowView<T> x(p, line, p.x, begin, phase);
  // Once copies are on their way.
  const auto prepare_powers = [&](int count) {
    if (threadIdx.x < count) tile.powers[threadIdx.x] = power(gamma, WindowPowers::exponent(threadIdx.x, shape));
  };
  if (shape.common) {
    // Others wait for this tile's aggregates.
    fetch_steps(x, 0, shape.units * Tile::kUnit, tile.vectors + Tile::slot(shape.own_at / Tile::kPer));
    fetch_steps(x, -shape.lead, shape.own_at, tile.vectors);
    prepare_powers(kWindowPowers);
    wait_for_copies<1>();
    __syncthreads();
    Word* const unit_words = w.tile_words + int64_t(row) * shape.tiles * shape.units;
    Word* const tile_words = w.tile_words + (p.lines * shape.units + row) * shape.tiles;
    aggregate_window(tile, shape, gamma, shape.own_at, shape.elements);
    publish_tile(tile, shape, gamma, unit_words + tile_index * shape.units, tile_words + tile_index);
    wait_for_copies<0>();
    __syncthreads();
    aggregate_window(tile, shape, gamma, 0, shape.own_at);
    precede_blocks(tile, shape, gamma, fetch_common(tile, shape, gamma, unit_words, tile_words, tile_index));
  } else {
    fetch_steps(x, -shape.lead, shape.elements, tile.vectors);
    if (shape.window >= Tile::kRun) prepare_powers(WindowPowers::kBlocks + 1);
    wait_for_copies<0>();
    __syncthreads();
    if (shape.window < Tile::kRun) return tile_results<true, Local>(tile, shape, p, row, begin, phase, gamma);
    aggregate_window(tile, shape, gamma, 0, shape.elements);
    if (shape.runs < Tile::kRun) precede_runs(tile, shape, gamma);
    else precede_blocks(tile, shape, gamma, -0.0);
  }
  __syncthreads();
  if constexpr (!std::is_same_v<Local, double>) {
    // The oldest steps of long windows may weigh less than float32 has numbers for: those of a run's last result the least.
    const double weight = fabs(tile.powers[WindowPowers::kOldest]), least = weight * fabs(power(gamma, Tile::kRun - 2));
    if (least < FLT_MIN && weight > 0) return tile_results<false, double>(tile, shape, p, row, begin, phase, gamma);
  }
  tile_results<false, Local>(tile, shape, p, row, begin, phase, gamma);
}

}  // namespace upsweep
