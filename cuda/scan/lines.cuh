// Scans along lines: y[t] = a[t] * y[t-1] + x[t] for each line on its own.
//
// Bytes an element: x and gates are read once, out is written once. Four kernels, chosen in plan/scan.cpp:
//
//   scan_short_lines   several lines in a warp, each within one vector of a group of lanes
//   scan_packed_lines  the same where lines are contiguous: each warp takes as many as it holds elements of
//   scan_lines         a block a line, tile after tile, the state carried from one to the next
//   scan_split_lines   a block a tile: few long lines, whose tiles look back for the state before them
#pragma once

#include <type_traits>

#include "scan/look_back.cuh"
#include "scan/tile.cuh"
#include "common/staged_line.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

template <class S, int kWarps>
struct WarpSteps {
  Step<S> step[kWarps];
  bool dropped[kWarps];
  S state;                         // passed from warp to warp when steps are processed in order
  ExtendedStep extended[kWarps];   // when a state may be wrong that is not finite

  // What all of the tile does.
  __device__ Step<S> all(int n_warps, bool* any_dropped) const {
    Step<S> state_before_tile = step[0];
    *any_dropped = dropped[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      if (w == n_warps) break;
      state_before_tile = dropped[w] ? step[w] : combine(state_before_tile, step[w]);
      *any_dropped |= dropped[w];
    }
    return state_before_tile;
  }
  // The state before `warp` from the one before the tile, and, in *state, the one after it.
  __device__ S before(int warp, int n_warps, S* state, bool* finite, bool* any_dropped) const {
    S warp_state = *state;
    *finite = true;
    *any_dropped = false;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == n_warps) break;
      if (w == warp) warp_state = *state;
      *state = dropped[w] ? step[w].b : advance(step[w].a, *state, step[w].b);
      *finite = *finite && is_finite(*state);
      *any_dropped = *any_dropped || dropped[w];
    }
    return warp_state;
  }
  // Whether states that are not finite are right all the same; of tiles that drop nothing.
  __device__ bool are_right(int n_warps, S state) const {
    bool right = true;
#pragma unroll 1
    for (int w = 0; w < n_warps; ++w) {
      const S after = advance(step[w].a, state, step[w].b);
      right = right && (is_finite(after) || is_right(step[w].a, state, after));
      state = after;
    }
    return right;
  }
};

// A tile whose states may be wrong that are not finite, by steps over all states; returns the state after it. known:
// called by all threads with what the tile does, and returns the state before it; it may synchronise the block.
template <class T, class Line, int kWarps, class Known>
__device__ __forceinline__ double finish_tile_again(const T& tile, WarpSteps<double, kWarps>& shared, const Line& line,
                                                    const Problem& p, int64_t row, int position, double gamma,
                                                    Known known) {
  typename T::HeldElements held;
  const auto run = tile.run_of(line, p, row, position, gamma, held);
  const ExtendedTile steps = reduce_again(run, shared.extended, blockDim.x / 32, BlockBarrier());
  const double state = scan_tile_again(run, steps, known(steps.all));
  tile.bring(line, p, position, held);
  return state;
}
// Complex states: by all warps in turn.
template <class T, class Line, int kWarps, class Known>
__device__ __forceinline__ Complex finish_tile_again(const T& tile, WarpSteps<Complex, kWarps>& shared,
                                                     const Line& line, const Problem& p, int64_t row, int position,
                                                     Complex gamma, Known known) {
  const T copy = tile;
  const Line same_line = line;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Complex state = known(ExtendedStep());
#pragma unroll 1
  for (int w = 0; w < blockDim.x / 32; ++w) {
    if (w == warp) {
      const Complex after = T::in_turn(copy, same_line, p, row, position, gamma, state, lane, 0, 32, true);
      if (lane == 0) shared.state = after;
    }
    __syncthreads();
    state = shared.state;
    __syncthreads();
  }
  return state;
}
template <class T, class Line, int kWarps, class Known>
__device__ uint64_t finish_tile_again(const T&, WarpSteps<uint64_t, kWarps>&, const Line&, const Problem&, int64_t, int,
                                      uint64_t, Known) {
  return 0;   // integers are all finite
}

// The same of a tile before which the state is known.
template <class T, class Line, class S, int kWarps>
__device__ __forceinline__ S finish_known_tile_again(const T& tile, WarpSteps<S, kWarps>& shared, const Line& line,
                                                     const Problem& p, int64_t row, int position, S gamma, S state) {
  if constexpr (std::is_same_v<S, double>) {
    typename T::HeldElements held;
    const auto run = tile.run_of(line, p, row, position, gamma, held);
    const double after = scan_known_tile_again(run, shared.extended, T::kDrops, state);
    tile.bring(line, p, position, held);
    return after;
  } else {
    return finish_tile_again(tile, shared, line, p, row, position, gamma, [&](const ExtendedStep&) { return state; });
  }
}

// A tile of which every warp's step is in `shared`, from the state before it; returns the one after it.
template <bool kGated, class T, class Line, class S, int kWarps>
__device__ __forceinline__ S finish_tile(const T& tile, WarpSteps<S, kWarps>& shared, const Line& line,
                                         const Problem& p, int64_t row, int position, const BlockPowers<S>& powers,
                                         S state, bool plain) {
  const S state_before = state;
  bool finite, any_dropped;
  const S warp_state = shared.before(threadIdx.x / 32, blockDim.x / 32, &state, &finite, &any_dropped);
  if (!finite && (kGated || !powers.keep) && (any_dropped || !shared.are_right(blockDim.x / 32, state_before)))
    return finish_known_tile_again(tile, shared, line, p, row, position, powers.gamma, state_before);
  tile.give(line, p, row, position, powers, warp_state, plain, threadIdx.x % 32);
  return state;
}

// Whether a tile needs none of the cases that most tiles do not have.
template <class Line>
__device__ inline bool is_plain(const Line& line, const Problem& p, int begin, int n) {
  return line.whole(begin, n) && !p.exclusive &&
         !(p.final_state.data && begin + n >= line.positions());
}

// Of gamma that all lines have in common, from the host; others find their own.
template <class S>
__device__ inline void set_powers(BlockPowers<S>& powers, const Problem& p, const GammaPowers& gamma_powers,
                                  int64_t row, int vec, int times) {
  if constexpr (std::is_same_v<S, double>) {
    if (!p.gamma.data) {
      const double* const from = &gamma_powers.gamma;
      for (int i = threadIdx.x; i < kGammaPowers; i += blockDim.x) (&powers.gamma)[i] = from[i];
      if (threadIdx.x == 0) powers.keep = is_normal(gamma_powers.most);
      return;
    }
  }
  powers.set(gamma_of<S>(p, LineIndex(p, row)), vec, times);
}

// The lines of a block: the first `walking` blocks share all lines but the last ones, of which the others have one each.
struct Walk {
  int64_t first, apart, end;
  __device__ Walk(int64_t lines, int64_t walking) {
    const bool walks = blockIdx.x < walking;
    first = walks ? blockIdx.x : lines - gridDim.x + blockIdx.x;
    apart = walks ? walking : lines;
    end = walks ? lines - (gridDim.x - walking) : lines;
  }
};

template <class Line, bool kGated, bool kResets>
__global__ void __launch_bounds__(LineTuning::kWarps * 32, LineTuning::kBlocks)
    scan_lines(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers gamma_powers, int64_t walking) {
  using S = typename Line::State;
  constexpr int kWarps = LineTuning::kWarps, kWarpTile = 32 * Line::kVec, kStage = kStageVectors<Line, kGated>;
  // Two, taken in turn: a warp may write the next tile's while another still reads this one's.
  __shared__ WarpSteps<S, kWarps> shared[2];
  __shared__ BlockPowers<S> powers;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  const int tile_positions = n_warps * kWarpTile;
  const int stage = warp * 2 * kStage;
  int turn = 0;
  const Walk walk(p.lines, walking);
  if (walk.first < walk.end)
    Line(p, LineIndex(p, walk.first), 0).template fetch<kGated>(warp * kWarpTile, stage, lane);
  commit_copies();
  for (int64_t row = walk.first; row < walk.end; row += walk.apart) {
    const LineIndex index(p, row);
    Line line(p, index, 0);
    const S initial = initial_of<S>(p, index);
    if (!kGated && (row == walk.first || p.gamma.data)) {
      __syncthreads();
      set_powers(powers, p, gamma_powers, row, Line::kVec, kWarps);
      __syncthreads();
    }
    if (p.length == 0 && threadIdx.x == 0)
      store_state(index.in(p.final_state), p.final_state.dtype, p.initial.data ? initial : zero(S()));
    S state = nothing(S());
    for (int begin = 0; begin < line.positions(); begin += tile_positions, turn ^= 1) {
      const int warp_position = begin + warp * kWarpTile, position = warp_position + lane * Line::kVec;
      // The next tile, of this line or of the block's next one, is on its way while this one is scanned.
      const int next_stage = stage + (turn ^ 1) * kStage;
      if (begin + tile_positions < line.positions())
        line.template fetch<kGated>(warp_position + tile_positions, next_stage, lane);
      else if (row + walk.apart < walk.end)
        Line(p, LineIndex(p, row + walk.apart), 0).template fetch<kGated>(warp * kWarpTile, next_stage, lane);
      commit_copies();
      wait_for_copies<1>();
      __syncwarp();
      line.base = stage + turn * kStage;
      // Simple lines' ends need no other arithmetic: what lies outside changes no state.
      const bool plain = Line::kSimple || is_plain(line, p, warp_position, kWarpTile);
      Tile<Line, kGated, kResets> tile;
      tile.take(line, position, initial, powers, plain, lane);
      if (lane == 0) {
        shared[turn].step[warp] = tile.all;
        shared[turn].dropped[warp] = tile.dropped;
      }
      __syncthreads();
      state = finish_tile<kGated>(tile, shared[turn], line, p, row, position, powers, state, plain);
      if (p.writes) line.flush(warp_position, Line::kSimple ? line.whole(warp_position, kWarpTile) : plain, lane);
    }
    if (Line::kSimple && p.final_state.data && threadIdx.x == 0)
      store_state(index.in(p.final_state), p.final_state.dtype, state);
  }
}

// The block's tile of a line, which is on its way to shared memory; what each warp's part does is in `shared` then.
template <class Tile, class Line, class S, int kWarps>
__device__ __forceinline__ void take_one_of_many(Tile& tile, const Problem& p, const Line& line, uint32_t row,
                                                 bool is_first, int position, WarpSteps<S, kWarps>& shared,
                                                 const BlockPowers<S>& powers, bool plain) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  wait_for_copies<0>();
  __syncwarp();
  tile.take(line, position, is_first ? initial_of<S>(p, LineIndex(p, row)) : nothing(S()), powers, plain, lane);
  if (lane == 0) {
    shared.step[warp] = tile.all;
    shared.dropped[warp] = tile.dropped;
  }
  __syncthreads();
}

template <class Line, bool kGated, bool kResets>
__global__ void __launch_bounds__(SplitTuning::kWarps * 32, SplitTuning::kBlocks)
    scan_split_lines(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers gamma_powers, Workspace w,
                     int64_t tiles) {
  using S = typename Line::State;
  constexpr int kWarps = SplitTuning::kWarps, kWarpTile = 32 * Line::kVec;
  __shared__ WarpSteps<S, kWarps> shared;
  __shared__ uint32_t ticket;
  __shared__ S state_before;
  __shared__ BlockPowers<S> powers;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  wait_for_workspace();
  if (threadIdx.x == 0) ticket = atomicAdd(w.counter, 1u) + 1u;
  __syncthreads();
  // The first tiles of all lines, then the second ones: a tile's predecessor has then long begun.
  const uint32_t lines = static_cast<uint32_t>(p.lines);
  const uint32_t row = ticket % lines;
  const int64_t tile_index = ticket / lines;
  Line line(p, LineIndex(p, row), tile_index * kWarps * kWarpTile);
  line.base = warp * kStageVectors<Line, kGated>;
  line.template fetch<kGated>(warp * kWarpTile, line.base, lane);
  commit_copies();
  if (!kGated) {
    // The power is that of a family of tiles: its steps are multiplied together.
    set_powers(powers, p, gamma_powers, row, Line::kVec, kWarps * static_cast<int>(kFamily));
    __syncthreads();
  }
  const int n_warps = blockDim.x / 32, warp_position = warp * kWarpTile, position = warp_position + lane * Line::kVec;
  const bool plain = is_plain(line, p, warp_position, kWarpTile), is_last = tile_index + 1 == tiles;
  const LineChain<S> chain(w, p.lines, row, tiles);
  Tile<Line, kGated, kResets> tile;
  take_one_of_many(tile, p, line, row, tile_index == 0, position, shared, powers, plain);
  bool published = false;          // by the first warp
  if (warp == 0) {
    Step<S> step = {one(S()), nothing(S())};
    bool any = false;
    if (!is_last) {
      step = shared.all(n_warps, &any);
      if (lane == 0) chain.publish_step(tile_index, step, any);
    }
    const S state_before_tile = tile_index ? chain.state_before(tile_index, step, any, lane) : nothing(S());
    if (lane == 0) state_before = state_before_tile;
    // The states are the chain that everything waits for: this one goes out before anything else is done, unless the
    // fold may have made a NaN of an infinity.
    const S after = any ? step.b : advance(step.a, state_before_tile, step.b);
    published = !is_last && is_finite(after);
    if (lane == 0 && published) chain.publish_state(tile_index, after);
  }
  __syncthreads();
  S state = state_before;
  bool finite, any_dropped;
  const S warp_state = shared.before(warp, n_warps, &state, &finite, &any_dropped);
  if (!finite && (kGated || !powers.keep)) {
    // The fold may have made a NaN of an infinity. `published` is known to the first warp.
    state = finish_tile_again(tile, shared, line, p, row, position, powers.gamma, [&](const ExtendedStep& step) {
      if (warp == 0) {
        const LineChain<S> copy = chain;
        const S before = copy.template state_before_again<typename Line::Local>(tile_index, step, is_last || published, lane);
        if (lane == 0) state_before = before;
      }
      __syncthreads();
      return state_before;
    });
    if (threadIdx.x == 0 && !is_last && !published && chain.hands_on_state(tile_index))
      chain.publish_state(tile_index, state);
  } else {
    if (threadIdx.x == 0 && !is_last && !published) chain.publish_state(tile_index, state);
    tile.give(line, p, row, position, powers, warp_state, plain, lane);
  }
  if (p.writes) line.flush(warp_position, plain, lane);
}

// contiguous lines: each warp scans `each` of them at a time, as one line that every line's first element cuts.
template <class T, bool kReverse, bool kGated>
__global__ void __launch_bounds__(LineTuning::kWarps * 32, LineTuning::kPackedBlocks)
    scan_packed_lines(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers gamma_powers, int each) {
  using Line = Packed<T, kReverse>;
  constexpr int kStage = kStageVectors<Line, kGated>;
  __shared__ BlockPowers<double> powers;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, position = lane * Line::kVec;
  const int64_t apart = int64_t(gridDim.x) * LineTuning::kWarps * each;
  int64_t first = (int64_t(blockIdx.x) * LineTuning::kWarps + warp) * each;
  int base = warp * 2 * kStage;
  int turn = 0;
  if (first < p.lines) Line(p, first, each).template fetch<kGated>(0, base, lane);
  commit_copies();
  if (!kGated) {
    set_powers(powers, p, gamma_powers, 0, Line::kVec, 1);
    __syncthreads();
  }
  const int reach = (static_cast<int>(p.length) + 2 * Line::kVec - 2) / Line::kVec;
  for (; first < p.lines; first += apart, turn ^= 1) {
    if (first + apart < p.lines)
      Line(p, first + apart, each).template fetch<kGated>(0, base + (turn ^ 1) * kStage, lane);
    commit_copies();
    wait_for_copies<1>();
    __syncwarp();
    Line line(p, first, each);
    line.base = base + turn * kStage;
    const bool plain = line.whole(0, 32 * Line::kVec);
    Tile<Line, kGated, true> tile;
    tile.take(line, position, nothing(0.0), powers, plain, lane, reach);
    tile.give(line, p, first, position, powers, nothing(0.0), plain, lane, reach);
    line.flush(0, plain, lane);
  }
}

// A line in each group of `width` lanes.
template <class Line, bool kGated, bool kResets>
__global__ void __launch_bounds__(LineTuning::kShortWarps * 32, LineTuning::kShortBlocks)
    scan_short_lines(const __grid_constant__ Problem p, int width) {
  using S = typename Line::State;
  const int lane = threadIdx.x % width, base = threadIdx.x % 32 - lane, position = lane * Line::kVec;
  const int groups_of_block = blockDim.x / width;
  const int64_t n_groups = int64_t(gridDim.x) * groups_of_block;
  Powers<S> powers;
  if (!kGated) powers.set(from_parts(S(), p.gamma_re, p.gamma_im), Line::kVec, lane, width, 1);
  // Every lane of a warp goes through the loop as often, since they vote together.
  const int64_t warp_begin = int64_t(blockIdx.x) * groups_of_block + threadIdx.x / 32 * (32 / width);
  for (int64_t begin = warp_begin; begin < p.lines; begin += n_groups) {
    const int64_t row = begin + base / width;
    const bool inside = row < p.lines;
    const LineIndex index(p, inside ? row : 0);
    const Line line(p, index);
    Tile<Line, kGated, kResets> tile;
    if (inside) tile.template load<false>(line, position, lane ? nothing(S()) : initial_of<S>(p, index));
    else tile.clear();
    if (!kGated && p.gamma.data) powers.set(gamma_of<S>(p, index), Line::kVec, lane, width, 1);
    tile.template reduce<false>(line, position, powers, lane, base, width);
    tile.hide_elements();
    tile.template finish<false>(line, p, row, position, powers, nothing(S()), lane, base, width, 32, inside);
  }
}

}  // namespace upsweep
