// Scans down columns: the lines' neighbours in memory are other lines, so the lanes of a warp take one column each.
//
// A block has 32 columns. Its warps take kSteps steps each of a tile; what they do to the state is folded in shared
// memory. Bytes an element: x and gates are read once, out is written once. Two kernels, chosen in plan/scan.cpp:
//
//   scan_columns         a block walks down its columns, the next steps on their way in shared memory
//   scan_split_columns   a block a tile, for few columns: tiles look back for the states before them
#pragma once

#include <type_traits>

#include "common/line_access.cuh"
#include "scan/look_back.cuh"
#include "common/staged_line.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

// Whether elements wait in shared memory: those of one dtype do.
template <class Element>
constexpr bool kStagesColumns = false;
template <class T>
constexpr bool kStagesColumns<Typed<T>> = true;

// Steps of 32 columns on their way into shared memory, each warp's for itself: x, then gates.
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
  static __device__ __noinline__ void fetch_pieces(const char* from, int64_t stride, int n, int stage, T outside) {
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) *element(stage, step) = step < n ? *reinterpret_cast<const T*>(from + step * stride) : outside;
  }
  // from: the lane's own column at the first of the steps, of which n are there.
  static __device__ void fetch_array(const char* from, int64_t stride, bool aligned, int n, int stage, T outside) {
    if (!aligned || n < kSteps) return fetch_pieces(from, stride, n, stage, outside);
    const int lane = threadIdx.x % 32;
    from -= lane * static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kVectors / 32; ++i) {
      const int vector = i * 32 + lane;
      copy_async_16(&staging[stage + vector], from + vector / kRow * stride + vector % kRow * 16);
    }
  }
  // Starts the copies of the warp's steps from `begin` on, of which n are there; the caller commits them.
  template <class Element, class Block>
  static __device__ void fetch(const Problem& p, const Block& block, bool aligned, int64_t begin, int n, int stage) {
    fetch_array(block.x + begin * p.x.time_stride, p.x.time_stride, aligned, n, stage, Element::raw(-0.0));
    if constexpr (kGated)
      fetch_array(block.gates + begin * p.gates.time_stride, p.gates.time_stride, aligned, n, stage + kVectors,
                  Element::raw(1.0));
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
  __device__ Step<S> reduce(S gamma, S gamma_steps) const {
    Step<S> step = {kGated ? one(S()) : gamma_steps, nothing(S())};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const S value = this->value(i), by = factor(i, gamma);
      step.b = drop(i) ? value : advance(by, step.b, value);
      if constexpr (kGated) step.a = drop(i) ? zero(S()) : i == 0 ? by : product(by, step.a);
    }
    return step;
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
  S state[32];                     // passed from warp to warp when steps are processed in order

  // The state before `warp` from the one before the tile, and, in *state, the one after it.
  __device__ S before(int warp, int lane, S* state, bool* finite, bool* any_dropped) const {
    S warp_state = *state;
    *finite = true;
    *any_dropped = false;
#pragma unroll
    for (int w = 0; w < ColumnTuning::kWarps; ++w) {
      if (w == warp) warp_state = *state;
      *state = dropped[w][lane] ? step[w][lane].b : advance(step[w][lane].a, *state, step[w][lane].b);
      *finite = *finite && is_finite(*state);
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
// Of a tile of which some columns' states may be wrong that are not finite.
struct ExtendedColumns {
  ExtendedStep step[ColumnTuning::kWarps][32];
};

// 32 columns: those of the innermost axis, counted row by row, so that none wraps into the next row.
template <class Element, bool kGated, int kSteps>
struct ColumnBlock {
  using S = typename Element::State;
  bool inside, full;               // this lane has a column; all lanes have
  LineIndex index;
  const char *x, *gates, *reset;
  char* out;
  S gamma, gamma_steps, begin;
  bool keep;

  static __device__ int64_t line_of(const Problem& p, int64_t block, int lane, bool* inside, bool* full) {
    const int64_t columns = p.shape[p.n_dims - 1], blocks = (columns + 31) / 32;
    const int64_t row = block / blocks, column = (block - row * blocks) * 32 + lane;
    *inside = column < columns;
    *full = column - lane + 32 <= columns;
    return *inside ? row * columns + column : 0;
  }

  __device__ ColumnBlock(const Problem& p, int64_t block, int lane, int times)
      : index(p, line_of(p, block, lane, &inside, &full)) {
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

// What the pieces before a thread's own do to any state of its column, and what the tile does.
struct ExtendedColumn {
  ExtendedStep before, all;
};
template <class Piece>
__device__ __noinline__ ExtendedColumn reduce_again(const Piece& piece, ExtendedColumns& extended, const Problem& p,
                                                    int64_t begin, double gamma) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  extended.step[warp][lane] = piece.extended(p, begin, gamma);
  __syncthreads();
  ExtendedColumn steps = {ExtendedStep::none<double>(), ExtendedStep::none<double>()};
#pragma unroll 1
  for (int w = 0; w < ColumnTuning::kWarps; ++w) {
    if (w == warp) steps.before = steps.all;
    steps.all = combine<double>(steps.all, extended.step[w][lane]);
  }
  return steps;
}

// A tile of which some columns' states may be wrong that are not finite, by steps over all states where they are; returns
// the state after it. Columns that are not in doubt keep the state that they have, and its bits. chain: where tiles wait
// for each other; the state before one in doubt is then what the tile before really left. One call with copies, so that
// the usual way keeps its registers.
template <class Piece, class Block, class S>
__device__ __noinline__ S finish_columns_again(const Piece& piece, const Block& block, ColumnSteps<S>& shared,
                                               ExtendedColumns& extended, const Problem& p, int64_t begin,
                                               S warp_state, S state, bool in_doubt, const Chain<S>* chain,
                                               int64_t tile, bool is_last) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool publishes = chain && in_doubt && warp == 0 && !is_last;
  ExtendedColumn steps;
  // Before the state is known, since others wait for what comes of it.
  if constexpr (std::is_same_v<S, double>) steps = reduce_again(piece, extended, p, begin, block.gamma);
  if (chain && in_doubt && tile) state = chain->state_after(tile - 1);
  S after = state, own = warp_state;
  if (in_doubt) {
    bool finite, any_dropped;
    own = shared.before(warp, lane, &after, &finite, &any_dropped);
    in_doubt = !finite && (any_dropped || !shared.are_right(lane, state));
  }
  const auto finish = [&](S before) {
    return piece.template finish<false>(p, block.out, block.index, block.inside, begin, block.gamma, before);
  };
  if constexpr (std::is_same_v<S, double>) {
    if (in_doubt) {
      own = steps.before.template of<double>(state);
      after = steps.all.template of<double>(state);
    }
    if (publishes) chain->publish_state(tile, after);
    finish(own);
  } else {
    // The warps take their pieces in turn.
    S before = state;
#pragma unroll 1
    for (int w = 0; w < ColumnTuning::kWarps; ++w) {
      if (w == warp) shared.state[lane] = finish(in_doubt ? before : own);
      __syncthreads();
      before = shared.state[lane];
      __syncthreads();
    }
    if (in_doubt) after = before;
    if (publishes) chain->publish_state(tile, after);
  }
  return after;
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
    const ColumnBlock<Element, kGated, kSteps> block(p, block_index, lane, kWarps);
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
            const Chain<S>* const no_chain = nullptr;
            const S after = finish_columns_again(copy, same_block, shared[turn], extended, p, piece_begin, warp_state,
                                                 state_before, again, no_chain, 0, true);
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
          Stage::template fetch<Element>(p, block, whole_rows, piece_begin, n, base + stage * Stage::kAllVectors);
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

template <class Element, bool kGated, bool kResets>
__global__ void __launch_bounds__(ColumnTuning::kWarps * 32, ColumnTuning::kSplitBlocks)
    scan_split_columns(const __grid_constant__ Problem p, Workspace w, int64_t blocks, int64_t tiles, bool aligned) {
  using S = typename Element::State;
  constexpr int kWarps = ColumnTuning::kWarps, kSteps = ColumnTuning::kSplitSteps, kTile = kWarps * kSteps;
  __shared__ ColumnSteps<S> shared;
  __shared__ ExtendedColumns extended;
  __shared__ S shared_state[32];
  __shared__ bool found_right[32];   // those that are not finite
  __shared__ uint32_t ticket;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) ticket = atomicAdd(w.counter, 1u) + 1u;
  __syncthreads();
  const uint32_t n_blocks = static_cast<uint32_t>(blocks);
  const int64_t block_index = ticket % n_blocks, tile = ticket / n_blocks;
  const ColumnBlock<Element, kGated, kSteps> block(p, block_index, lane, kWarps);
  using Piece = ColumnPiece<Element, kGated, kResets, kSteps>;
  Piece piece;
  const int64_t begin = tile * kTile + warp * kSteps;
  const bool whole = block.full && tile + 1 < tiles;
  if constexpr (Piece::kStaged) {
    using Stage = ColumnStage<typename Element::Raw, kGated, kSteps>;
    const int stage = warp * Stage::kAllVectors, n = Piece::steps_left(p, block.inside, begin);
    Stage::template fetch<Element>(p, block, aligned && block.full, begin, n, stage);
    commit_copies();
    wait_for_copies<0>();
    __syncwarp();
    piece.take(p, stage, block.reset, block.inside, begin);
  } else if (whole) {
    piece.template load<true>(p, block.x, block.gates, block.reset, block.inside, begin);
  } else {
    piece.template load<false>(p, block.x, block.gates, block.reset, block.inside, begin);
  }
  shared.step[warp][lane] = piece.reduce(block.gamma, block.gamma_steps);
  shared.dropped[warp][lane] = kResets && piece.drops;
  piece.hide_elements();
  __syncthreads();

  const Chain<S> chain(w, blocks, block_index, tiles, 32, lane);
  const bool is_last = tile + 1 == tiles;
  Step<S> step;
  bool dropped = false;
  if (warp == 0) {
    if (!is_last) {
      step = shared.step[0][lane];
      dropped = shared.dropped[0][lane];
      for (int i = 1; i < kWarps; ++i) {
        const bool drop = shared.dropped[i][lane];
        step = drop ? shared.step[i][lane] : combine(step, shared.step[i][lane]);
        dropped |= drop;
      }
      chain.publish_step(tile, step, dropped);
    }
    shared_state[lane] = chain.state_before_alone(tile, block.begin, &found_right[lane]);
  }
  __syncthreads();
  S state = shared_state[lane];
  bool finite, any_dropped;
  const S warp_state = shared.before(warp, lane, &state, &finite, &any_dropped);
  const S before = shared_state[lane];
  // The fold may have made a NaN of an infinity.
  const bool again = !finite && (kGated || !block.keep) &&
                     (any_dropped || !found_right[lane] || !shared.are_right(lane, before));
  if (warp == 0 && !is_last && !again) {
    // By the tile's step, as a look back over this tile has it: the same bits either way. It may lose an infinity.
    const S after = dropped ? step.b : advance(step.a, before, step.b);
    chain.publish_state(tile, is_finite(after) ? after : state);
  }
  if (__any_sync(0xffffffffu, again)) {
    const Piece copy = piece;
    const auto same_block = block;
    const Chain<S> same_chain = chain;
    finish_columns_again(copy, same_block, shared, extended, p, begin, warp_state, before, again, &same_chain, tile, is_last);
  } else {
    if (whole) piece.template finish<true>(p, block.out, block.index, block.inside, begin, block.gamma, warp_state);
    else piece.template finish<false>(p, block.out, block.index, block.inside, begin, block.gamma, warp_state);
  }
}

}  // namespace upsweep
