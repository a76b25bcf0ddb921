// Scans down columns: the lines' neighbours in memory are other lines, so the lanes of a warp take one column each.
//
// A block has 32 columns. Its warps take kSteps steps each of a tile; what they do to the state is folded in shared
// memory. Bytes an element: x and gates are read once, out is written once. scan_columns iterates over the steps of a
// block's columns, and copies the next steps to shared memory meanwhile. For few columns see scan/split_columns.cuh.
#pragma once

#include <type_traits>

#include "common/extended_step.cuh"
#include "common/line_access.cuh"
#include "common/staged_line.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

// Whether elements wait in shared memory: those of one dtype do.
template <class Element>
constexpr bool kStagesColumns = false;
template <class T>
constexpr bool kStagesColumns<Typed<T>> = true;

// A state may overflow between two steps of a fold, although the fold leaves a finite one. Where columns are split,
// every product of gates and every state along a fold is therefore below 2^200, or the fold is none: NaN. With products
// of a thread's steps, of warps, tiles and groups and a state, no state between them reaches 2^1001.
template <class S>
__device__ inline bool is_large(S) { return false; }
template <>
__device__ inline bool is_large(double v) { return (__double2hiint(v) & 0x7fffffff) >= (1023 + 200) << 20; }
template <bool kGuards, class S>
__device__ inline Step<S> guarded(Step<S> step, bool any_large = false) {
  if constexpr (kGuards && std::is_same_v<S, double>)
    if (any_large || is_large(step.a) || is_large(step.b)) return {number_of_class(kNone), number_of_class(kNone)};
  return step;
}

// A lane's column, and which of its warp's runs of kSteps steps it takes. With less than 32 columns a warp has several
// runs, one after the other in time.
struct ColumnLane {
  int width = 32;                  // columns of a block: 8, 16 or 32
  int column = threadIdx.x % 32, run = 0;

  __device__ ColumnLane() {}
  __device__ explicit ColumnLane(int width_)
      : width(width_), column(threadIdx.x % 32 % width_), run(threadIdx.x % 32 / width_) {}
  __device__ bool is_last_run() const { return (run + 1) * width == 32; }
};

// Steps of a warp's columns on their way into shared memory, each warp's for itself: x, then gates. Of each step there
// are 32 elements, one for each lane.
template <class T, bool kGated, int kSteps>
struct ColumnStage {
  static constexpr int kVectors = kSteps * 32 * sizeof(T) / 16;      // of one array
  static constexpr int kAllVectors = (kGated ? 2 : 1) * kVectors;
  static constexpr int kRow = 32 * sizeof(T) / 16;                   // of one step
  static constexpr int kStages = sizeof(T) == 2 ? 4 : 2;

  static __device__ T* element(int stage, int step) {
    return reinterpret_cast<T*>(&staging[stage]) + step * 32 + threadIdx.x % 32;
  }
  // One element a lane, or what changes no state.
  static __device__ __noinline__ void fetch_elements(const char* from, int64_t stride, int n, int stage, T outside) {
#pragma unroll 4
    for (int step = 0; step < kSteps; ++step) {
      if (step >= n) *element(stage, step) = outside;
      else if constexpr (sizeof(T) == 2) *element(stage, step) = *reinterpret_cast<const T*>(from + step * stride);
      else copy_async<sizeof(T)>(element(stage, step), from + step * stride);
    }
  }
  // from: the lane's own column at the first of its steps, of which n exist. whole: so do all steps and columns of the
  // warp, in vectors.
  static __device__ void fetch_array(const char* from, int64_t stride, const ColumnLane& own, bool whole, int n, int stage,
                                     T outside) {
    if (!whole) return fetch_elements(from, stride, n, stage, outside);
    const int lane = threadIdx.x % 32, run_vectors = kRow * own.width / 32, run = lane % kRow / run_vectors;
    from += (int64_t(run - own.run) * kSteps + lane / kRow) * stride - own.column * static_cast<int>(sizeof(T)) +
            lane % kRow % run_vectors * 16;
#pragma unroll
    for (int i = 0; i < kVectors / 32; ++i)
      copy_async_16(&staging[stage + i * 32 + lane], from + i * (32 / kRow) * stride);
  }
  // Starts the copies of the lane's steps from `begin` on, of which n exist; the caller commits them.
  template <class Element, class Block>
  static __device__ void fetch(const Problem& p, const Block& block, bool whole, int64_t begin, int n, int stage) {
    fetch_array(block.x + begin * p.x.time_stride, p.x.time_stride, block.lane, whole, n, stage, Element::raw(-0.0));
    if constexpr (kGated)
      fetch_array(block.gates + begin * p.gates.time_stride, p.gates.time_stride, block.lane, whole, n,
                  stage + kVectors, Element::raw(1.0));
  }
};

// A thread's piece of its column.
template <class Element, bool kGated, bool kResets, int kSteps>
struct ColumnPiece {
  using S = typename Element::State;
  using Raw = typename Element::Raw;
  static constexpr bool kStaged = kStagesColumns<Element>;

  Raw x[kStaged ? 1 : kSteps], a[kGated && !kStaged ? kSteps : 1];
  uint32_t drops;
  int stage;                       // where in `staging` the elements are
  bool first;                      // the first gate is not used

  // From shared memory, where they have arrived.
  __device__ void take(const Problem& p, int stage_, const char* reset_at, bool inside, int64_t begin) {
    stage = stage_;
    first = begin == 0 && !p.initial.data;
    drops = 0;
    if constexpr (kResets) {
      const int n = steps_left(p, inside, begin);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        if (i < n && reset_at && reset_at[(begin + i) * p.reset.time_stride]) drops |= 1u << i;
    }
  }
  __device__ S value(int i) const {
    if constexpr (kStaged) return Element::value(*ColumnStage<Raw, kGated, kSteps>::element(stage, i));
    else return Element::value(x[i]);
  }

  static __device__ int steps_left(const Problem& p, bool inside, int64_t begin) {
    const int64_t left = inside ? p.length - begin : 0;
    return left > kSteps ? kSteps + 1 : static_cast<int>(left);
  }

  // kWhole: all of the warp's steps are inside.
  template <bool kWhole>
  __device__ void load(const Problem& p, const char* x_at, const char* gates_at, const char* reset_at, bool inside,
                       int64_t begin) {
    drops = 0;
    x_at += begin * p.x.time_stride;
    gates_at += begin * p.gates.time_stride;
    const int n = kWhole ? kSteps + 1 : steps_left(p, inside, begin);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      x[i] = i < n ? Element::load(x_at, p.x.dtype) : Element::raw(nothing(S()));
      x_at += p.x.time_stride;
      if constexpr (kGated) {
        a[i] = i < n ? Element::load(gates_at, p.gates.dtype) : Element::raw(one(S()));
        gates_at += p.gates.time_stride;
      }
      if constexpr (kResets)
        if (i < n && reset_at && reset_at[(begin + i) * p.reset.time_stride]) drops |= 1u << i;
    }
    if constexpr (kGated)
      if (begin == 0 && !p.initial.data) a[0] = Element::raw(one(S()));   // the first gate is not used
  }

  // Between reduce() and finish(): see hide().
  __device__ void hide_elements() {
    if constexpr (sizeof(Raw) != 2 && !kStaged) {
      hide_all(x);
      if constexpr (kGated) hide_all(a);
    }
  }

  __device__ bool drop(int i) const { return kResets && drops >> i & 1; }
  __device__ S factor(int i, S gamma) const {
    if constexpr (kGated && kStaged) {
      using Stage = ColumnStage<Raw, kGated, kSteps>;
      return i == 0 && first ? one(S()) : S(Element::value(*Stage::element(stage + Stage::kVectors, i)));
    } else if constexpr (kGated) {
      return Element::value(a[i]);
    } else {
      return gamma;
    }
  }

  // gamma_steps: gamma^kSteps.
  template <bool kGuards = false>
  __device__ Step<S> reduce(S gamma, S gamma_steps) const {
    Step<S> step = {kGated ? one(S()) : gamma_steps, nothing(S())};
    bool any_large = false;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const S value = this->value(i), by = factor(i, gamma);
      step.b = drop(i) ? value : advance(by, step.b, value);
      if constexpr (kGated) step.a = drop(i) ? zero(S()) : i == 0 ? by : product(by, step.a);
      if constexpr (kGuards) any_large = !drop(i) && (any_large || is_large(step.a));
    }
    return guarded<kGuards>(step, any_large);
  }

  // Writes the results from the state before the piece; returns the one after it.
  template <bool kWhole>
  __device__ S finish(const Problem& p, char* out_at, const LineIndex& index, bool inside, int64_t begin, S gamma,
                      S state) const {
    const int n = kWhole ? kSteps + 1 : steps_left(p, inside, begin);
    out_at += begin * p.out.time_stride;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      S entering = drop(i) ? zero(S()) : state;
      const bool first = i == 0 && begin == 0 && !p.initial.data;
      if (first) entering = zero(S());
      const S value = this->value(i);
      state = drop(i) || first ? value : advance(factor(i, gamma), state, value);
      if (i < n && p.writes) Element::store(out_at, p.out.dtype, p.exclusive ? entering : state);
      if (i + 1 == n && p.final_state.data) store_state(index.in(p.final_state), p.final_state.dtype, state);
      out_at += p.out.time_stride;
    }
    return state;
  }

  // What the piece does to any state.
  __device__ ExtendedStep extended(const Problem& p, int64_t begin, S gamma) const {
    if (!drops && !(begin == 0 && !p.initial.data)) {
      ExtendedStep step;
      OrdinaryRun plain;
#pragma unroll 4
      for (int i = 0; i < kSteps; ++i) plain.add(factor(i, gamma), value(i));
      if (plain.is_step(&step)) return step;
    }
    ExtendedRun<double> run;
#pragma unroll 1
    for (int i = 0; i < kSteps; ++i) {
      if (drop(i) || (i == 0 && begin == 0 && !p.initial.data)) run.begin_with(value(i));
      else run.add(factor(i, gamma), value(i));
    }
    return run.step();
  }
};

template <class S>
struct ColumnSteps {
  Step<S> step[ColumnTuning::kWarps][32];
  bool dropped[ColumnTuning::kWarps][32];
  S state[32];                     // passed from run to run when steps are processed in order

  // What the first n of them do, n at least 1.
  template <bool kGuards>
  __device__ Step<S> join(int n, int lane, bool* any_dropped) const {
    Step<S> all = step[0][lane];
    *any_dropped = dropped[0][lane];
#pragma unroll
    for (int w = 1; w < ColumnTuning::kWarps; ++w) {
      if (w >= n) break;
      all = dropped[w][lane] ? step[w][lane] : guarded<kGuards>(combine(all, step[w][lane]));
      *any_dropped = *any_dropped || dropped[w][lane];
    }
    return all;
  }
  // The state before `warp` from the one before the tile, and, in *state, the one after it.
  template <bool kGuards = false>
  __device__ S before(int warp, int lane, S* state, bool* finite, bool* any_dropped) const {
    S warp_state = *state;
    *finite = true;
    *any_dropped = false;
#pragma unroll
    for (int w = 0; w < ColumnTuning::kWarps; ++w) {
      if (w == warp) warp_state = *state;
      *state = dropped[w][lane] ? step[w][lane].b : advance(step[w][lane].a, *state, step[w][lane].b);
      *finite = *finite && (kGuards ? !is_large(*state) : is_finite(*state));
      *any_dropped = *any_dropped || dropped[w][lane];
    }
    return warp_state;
  }
  // Whether states that are not finite are right all the same; of tiles that drop nothing.
  __device__ bool are_right(int lane, S state) const {
    bool right = true;
#pragma unroll 1
    for (int w = 0; w < ColumnTuning::kWarps; ++w) {
      const S after = advance(step[w][lane].a, state, step[w][lane].b);
      right = right && (is_finite(after) || is_right(step[w][lane].a, state, after));
      state = after;
    }
    return right;
  }
};
// Of a tile of which some columns' states may be wrong that are not finite: of each warp, and of the tile.
struct ExtendedColumns {
  ExtendedStep step[ColumnTuning::kWarps + 1][32];

  // What the first n of them do to any state.
  __device__ ExtendedStep join(int n, int lane) const {
    ExtendedStep all = ExtendedStep::none<double>();
#pragma unroll 1
    for (int w = 0; w < n; ++w) all = combine<double>(all, step[w][lane]);
    return all;
  }
};

// The columns of a block: those of the innermost axis, counted row by row, so that none wraps into the next row.
template <class Element, bool kGated, int kSteps>
struct ColumnBlock {
  using S = typename Element::State;
  ColumnLane lane;
  bool inside, full;               // this lane has a column; all lanes have
  LineIndex index;
  const char *x, *gates, *reset;
  char* out;
  S gamma, gamma_steps, begin;
  bool keep;

  static __device__ int64_t line_of(const Problem& p, int64_t block, const ColumnLane& lane, bool* inside, bool* full) {
    const int64_t columns = p.shape[p.n_dims - 1], blocks = (columns + lane.width - 1) / lane.width;
    const int64_t row = block / blocks, first = (block - row * blocks) * lane.width, column = first + lane.column;
    *inside = column < columns;
    *full = first + lane.width <= columns;
    return *inside ? row * columns + column : 0;
  }

  // times: how many runs of kSteps steps are multiplied together at most.
  __device__ ColumnBlock(const Problem& p, int64_t block, const ColumnLane& lane_, int times)
      : lane(lane_), index(p, line_of(p, block, lane_, &inside, &full)) {
    x = index.in(p.x);
    out = index.in(p.out);
    gates = p.gates.data ? index.in(p.gates) : nullptr;
    reset = p.reset.data ? index.in(p.reset) : nullptr;
    begin = initial_of<S>(p, index);
    gamma = gamma_steps = one(S());
    keep = false;
    if constexpr (!kGated) {
      gamma = gamma_of<S>(p, index);
      gamma_steps = power(gamma, kSteps);
      keep = is_normal(power(gamma_steps, times));
    }
  }
};

// What the runs before a thread's own do to any state of its column, and what the tile does.
struct ExtendedColumn {
  ExtendedStep before, all;
};
template <class Piece>
__device__ __noinline__ ExtendedColumn reduce_again(const Piece& piece, const ColumnLane& own, ExtendedColumns& extended,
                                                    const Problem& p, int64_t begin, double gamma) {
  constexpr int kWarps = ColumnTuning::kWarps;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  ExtendedStep step = piece.extended(p, begin, gamma), before = ExtendedStep::none<double>();
#pragma unroll 1
  for (int by = own.width; by < 32; by *= 2) {
    const ExtendedStep other = shuffle_up(step, by, 32);
    if (lane >= by) step = combine<double>(other, step);
  }
  if (own.width < 32) before = shuffle_up(step, own.width, 32);
  if (own.is_last_run()) extended.step[warp][own.column] = step;
  __syncthreads();
  if (warp == 0 && own.run == 0) {
    ExtendedStep all = ExtendedStep::none<double>();
#pragma unroll 1
    for (int w = 0; w < kWarps; ++w) {
      const ExtendedStep next = extended.step[w][own.column];
      extended.step[w][own.column] = all;
      all = combine<double>(all, next);
    }
    extended.step[kWarps][own.column] = all;
  }
  __syncthreads();
  ExtendedColumn steps = {extended.step[warp][own.column], extended.step[kWarps][own.column]};
  if (own.run) steps.before = combine<double>(steps.before, before);
  __syncthreads();
  return steps;
}

// A tile of which some columns' states may be wrong that are not finite, by steps over all states where they are
// (complex ones in order); returns the state after it. Columns that are not in doubt keep the state that they have, and
// its bits. known: called by all threads with what the tile does, and returns the state before it; it may synchronise
// the block.
template <class Piece, class Block, class S, class Known>
__device__ __forceinline__ S finish_columns_again(const Piece& piece, const Block& block, ColumnSteps<S>& shared,
                                                  ExtendedColumns& extended, const Problem& p, int64_t begin, S own,
                                                  bool in_doubt, Known known) {
  const auto finish = [&](S before) {
    return piece.template finish<false>(p, block.out, block.index, block.inside, begin, block.gamma, before);
  };
  if constexpr (std::is_same_v<S, double>) {
    const ExtendedColumn steps = reduce_again(piece, block.lane, extended, p, begin, block.gamma);
    const S state = known(steps.all);
    finish(in_doubt ? steps.before.template of<double>(state) : own);
    return steps.all.template of<double>(state);
  } else {
    const int runs = 32 / block.lane.width, own_run = threadIdx.x / 32 * runs + block.lane.run;
    S state = known(ExtendedStep());
#pragma unroll 1
    for (int run = 0; run < ColumnTuning::kWarps * runs; ++run) {
      __syncthreads();
      if (run == own_run) shared.state[block.lane.column] = finish(in_doubt ? state : own);
      __syncthreads();
      state = shared.state[block.lane.column];
    }
    return state;
  }
}

// The same where the state before the tile is known: one call with copies, so that the usual way keeps its registers.
template <class Piece, class Block, class S>
__device__ __noinline__ S finish_known_columns_again(const Piece& piece, const Block& block, ColumnSteps<S>& shared,
                                                     ExtendedColumns& extended, const Problem& p, int64_t begin, S own,
                                                     S state, bool in_doubt) {
  return finish_columns_again(piece, block, shared, extended, p, begin, own, in_doubt,
                              [&](const ExtendedStep&) { return state; });
}

// aligned: every 32 columns begin on a vector's boundary, at each step.
template <class Element, bool kGated, bool kResets>
__global__ void __launch_bounds__(ColumnTuning::kWarps * 32, ColumnTuning::kBlocks)
    scan_columns(const __grid_constant__ Problem p, int64_t blocks, bool aligned) {
  using S = typename Element::State;
  using Piece = ColumnPiece<Element, kGated, kResets, ColumnTuning::kSteps>;
  constexpr int kWarps = ColumnTuning::kWarps, kSteps = ColumnTuning::kSteps, kTile = kWarps * kSteps;
  __shared__ ColumnSteps<S> shared[2];
  __shared__ ExtendedColumns extended;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int turn = 0;
  for (int64_t block_index = blockIdx.x; block_index < blocks; block_index += gridDim.x) {
    const ColumnBlock<Element, kGated, kSteps> block(p, block_index, ColumnLane(), kWarps);
    S state = block.begin;
    const auto walk = [&](auto&& prepare, auto&& load) {
      for (int64_t begin = 0; begin < p.length; begin += kTile, turn ^= 1) {
        const int64_t piece_begin = begin + warp * kSteps;
        prepare(begin);
        const auto run = [&](auto whole) {
          constexpr bool kWhole = decltype(whole)::value;
          Piece piece;
          load(piece, piece_begin, whole);
          shared[turn].step[warp][lane] = piece.reduce(block.gamma, block.gamma_steps);
          shared[turn].dropped[warp][lane] = kResets && piece.drops;
          piece.hide_elements();
          __syncthreads();
          const S state_before = state;
          bool finite, any_dropped;
          const S warp_state = shared[turn].before(warp, lane, &state, &finite, &any_dropped);
          const bool again = !finite && (kGated || !block.keep) &&
                             (any_dropped || !shared[turn].are_right(lane, state_before));
          if (__any_sync(0xffffffffu, again)) {
            const Piece copy = piece;
            const auto same_block = block;
            const S after = finish_known_columns_again(copy, same_block, shared[turn], extended, p, piece_begin,
                                                       warp_state, state_before, again);
            if (again) state = after;
          } else {
            piece.template finish<kWhole>(p, block.out, block.index, block.inside, piece_begin, block.gamma, warp_state);
          }
        };
        // The last step may be the one that leaves the final state.
        if (block.full && begin + kTile < p.length) run(std::true_type());
        else run(std::false_type());
      }
    };
    if constexpr (Piece::kStaged) {
      using T = typename Element::Raw;
      using Stage = ColumnStage<T, kGated, kSteps>;
      constexpr int kStages = Stage::kStages;
      const int base = warp * kStages * Stage::kAllVectors;
      const bool whole_rows = aligned && block.full;
      const auto fetch = [&](int64_t begin, int stage) {
        const int64_t piece_begin = begin + warp * kSteps;
        if (piece_begin < p.length + kTile) {
          const int n = Piece::steps_left(p, block.inside, piece_begin);
          Stage::template fetch<Element>(p, block, whole_rows && n >= kSteps, piece_begin, n,
                                         base + stage * Stage::kAllVectors);
        }
        commit_copies();
      };
      int stage = 0;
      __syncwarp();
      for (int i = 0; i + 1 < kStages; ++i) fetch(int64_t(i) * kTile, i);
      walk(
          [&](int64_t begin) {
            // The stage that the last tile was read from is free: this warp has been through it.
            __syncwarp();
            fetch(begin + (kStages - 1) * kTile, (stage + kStages - 1) % kStages);
            wait_for_copies<kStages - 1>();
            __syncwarp();
          },
          [&](Piece& piece, int64_t piece_begin, auto) {
            piece.take(p, base + stage * Stage::kAllVectors, block.reset, block.inside, piece_begin);
            stage = (stage + 1) % kStages;
          });
    } else {
      walk([](int64_t) {},
           [&](Piece& piece, int64_t piece_begin, auto whole) {
             piece.template load<decltype(whole)::value>(p, block.x, block.gates, block.reset, block.inside,
                                                         piece_begin);
           });
    }
  }
}

}  // namespace upsweep
