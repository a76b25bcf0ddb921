// The states before the tiles of a round, found by a warp of each block: what all blocks' tiles do, folded in the order
// of their index. scan/persistent_lines.cuh says what rounds are.
//
// Tile states are those of scan/look_back.cuh.
#pragma once

#include "scan/look_back.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

// What lanes' steps do one after the other, up to each one, from lane `head` on. doubled: the factors of 1, 2, 4, ...
// lanes, where they are no data.
template <bool kGated, int kLanes>
__device__ inline Step<double> scan_of_lanes(Step<double> step, const double* doubled, int lane, int head = 0) {
#pragma unroll
  for (int i = 0; 1 << i < kLanes; ++i) {
    const int by = 1 << i;
    const double b = shuffle_up(step.b, by, 32);
    if constexpr (kGated) {
      const double a = shuffle_up(step.a, by, 32);
      if (lane - by >= head) step = combine(Step<double>{a, b}, step);
    } else {
      if (lane - by >= head) step.b = advance(doubled[i], b, step.b);
    }
  }
  return step;
}

// The tile states of rounds: of each round a number from every block, or two where factors are data, contiguous for the
// lanes of a warp that takes `each` neighbours a lane; and of the tiles of a round in which a state may be wrong that is
// not finite what each does to any state.
template <bool kGated>
struct PersistentTileStates {
  static constexpr int kWords = kGated ? 2 : 1;
  Word *steps, *extended;
  int blocks, each;                // in a round; tile states of a lane

  __device__ PersistentTileStates(const Workspace& w, uint32_t all_tiles)
      : steps(w.tile_words), blocks(gridDim.x), each((gridDim.x + 31) / 32) {
    extended = of_round((all_tiles + blocks - 1) / blocks);
  }
  __device__ Word* of_round(int round) const { return steps + int64_t(round) * kWords * each * 32; }
  __device__ Word* extended_of(int round) const {
    return extended + (int64_t(round) * blocks + blockIdx.x) * ExtendedStep::kWords;
  }
  __device__ void store_step(int round, Step<double> step) const {
    Word* const to = of_round(round) + blockIdx.x % each * 32 + blockIdx.x / each;
    store_relaxed(to, word_of(step.b));
    if (kGated) store_relaxed(to + each * 32, word_of(step.a));
  }
};

// What a round needs of its tiles where a state may be wrong that is not finite.
enum Request { kNoRequest, kRequestSteps, kRequestTables };

// The warp that folds: the states before a block's own tiles, round by round.
template <bool kGated>
struct PrefixWarp {
  static constexpr int kEach = PersistentTuning::kMostBlocks / 32;
  using TileState = PersistentTileStates<kGated>;
  const TileState& tile_states;
  uint32_t all_tiles, tiles;       // of all lines, of one
  double factor;                   // of a tile, where it is no data
  bool keeps;                      // which never makes 0 or NaN of an infinity
  int lane, own;                   // which of the lane's tiles is the block's, if any
  uint32_t first_index, stride;    // of the lane's first tile in its line, and how far it moves from round to round
  double doubled[5], lane_factor;  // of the tiles of 1, 2, 4, ... lanes, and of the lanes before this one
  double carry = -0.0;             // the state before the round
  Word b[kEach], a[kGated ? kEach : 1];   // that have been asked for

  __device__ PrefixWarp(const TileState& tile_states_, uint32_t all, uint32_t tiles_, double factor_, bool keeps_, int lane_)
      : tile_states(tile_states_), all_tiles(all), tiles(tiles_), factor(factor_), keeps(keeps_), lane(lane_),
        own(static_cast<int>(blockIdx.x) - lane_ * tile_states_.each), first_index(lane_ * tile_states_.each % tiles_),
        stride(tile_states_.blocks % tiles_), lane_factor(power(power(factor_, tile_states_.each), lane_)) {
    doubled[0] = power(factor, tile_states.each);
    for (int i = 1; i < 5; ++i) doubled[i] = product(doubled[i - 1], doubled[i - 1]);
  }

  // From a later round on.
  __device__ void continue_from(int round, double state) {
    first_index = static_cast<uint32_t>((first_index + uint64_t(round) * stride) % tiles);
    carry = state;
    poll(round);
  }
  __device__ bool has_own() const { return own >= 0 && own < tile_states.each; }

  // The last round may be short: what is not there does nothing.
  __device__ int present(int round) const {
    return min(tile_states.blocks, static_cast<int>(all_tiles - uint32_t(round) * tile_states.blocks)) - lane * tile_states.each;
  }
  __device__ void poll(int round) {
    const Word* const from = tile_states.of_round(round) + lane;
    const int n = min(tile_states.each, present(round));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      b[i] = i < n ? load_relaxed(from + i * 32) : word_of(-0.0);
      if (kGated) a[i] = i < n ? load_relaxed(from + (tile_states.each + i) * 32) : word_of(1.0);
    }
  }
  __device__ bool is_complete() const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) all = all && b[i] != kInvalid && (!kGated || a[i] != kInvalid);
    return __all_sync(0xffffffffu, all);
  }

  // Finds the state before the block's own tile of a round, and the one after the round. broadcast(round, has_own, state,
  // request, is_answer) is called by all lanes, with the state in the lane which has the tile: once, or, with kAgain,
  // first with a request, upon which all blocks publish what their tiles of the round do to any state, or to infinite
  // ones. Without kAgain it returns false where that is needed, and has not called it.
  template <class Local, bool kAgain, class Broadcast>
  __device__ bool fold(int round, bool is_last, Broadcast broadcast) {
    while (!is_complete()) poll(round);
    double tile_b[kEach], tile_a[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      tile_b[i] = number_of(b[i]);
      tile_a[i] = kGated ? number_of(a[i]) : factor;
    }
    const int n = min(tile_states.each, present(round));
    if (!is_last) poll(round + 1);   // on its way while this one is folded
    // A bit for each tile that a line begins with.
    uint32_t begins = 0;
    Step<double> step = {1.0, -0.0};
    uint32_t index = first_index;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= n) break;
      begins |= uint32_t(index == 0) << i;
      step.b = index == 0 ? tile_b[i] : advance(tile_a[i], step.b, tile_b[i]);
      if (kGated) step.a = index == 0 ? tile_a[i] : product(tile_a[i], step.a);
      index = index + 1 == tiles ? 0 : index + 1;
    }
    first_index += stride;
    if (first_index >= tiles) first_index -= tiles;
    const uint32_t droppers = __ballot_sync(0xffffffffu, begins != 0);
    const uint32_t heads = droppers & (0xffffffffu >> (31 - lane));
    const Step<double> all = scan_of_lanes<kGated, 32>(step, doubled, lane, heads ? 31 - __clz(heads) : 0);
    const Step<double> before = {kGated ? shuffle_up(all.a, 1, 32) : lane_factor, shuffle_up(all.b, 1, 32)};
    double state = carry, own_state = -0.0;
    if (lane) state = droppers & (0xffffffffu >> (32 - lane)) ? before.b : advance(before.a, carry, before.b);
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= n) break;
      if (begins >> i & 1) state = -0.0;
      if (i == own) own_state = state;
      state = begins >> i & 1 ? tile_b[i] : advance(tile_a[i], state, tile_b[i]);
      finite = finite && is_finite(state);
    }
    if (!keeps && !__all_sync(0xffffffffu, finite)) {
      if constexpr (!kAgain) return false;
      // The fold may have made a NaN of an infinity. NaN stays NaN where no line begins.
      States states = {carry, carry};
      if (droppers || !is_nan(carry)) {
        const bool has_tables = !droppers && !is_finite(carry);
        const Word* const from =
            tile_states.extended + (int64_t(round) * tile_states.blocks + lane * tile_states.each) * ExtendedStep::kWords;
        broadcast(round, has_own(), carry, has_tables ? kRequestTables : kRequestSteps, false);
        states = has_tables ? fold_tables(from, n, lane, own, carry) : fold_steps<Local>(from, n, lane, own, carry);
        broadcast(round, has_own(), states.own, kNoRequest, true);
      } else {
        broadcast(round, has_own(), carry, kNoRequest, false);
      }
      carry = states.after;
      return true;
    }
    broadcast(round, has_own(), own_state, kNoRequest, false);
    // After the last lane that has a tile.
    carry = shuffle(state, min(31, (min(tile_states.blocks, present(round) + lane * tile_states.each) - 1) / tile_states.each));
    return true;
  }

  // The state before a block's own tile, and the one after the round.
  struct States {
    double own, after;
  };
  // From what all tiles do to any state. A line's first tile drops the state of the line before it. It takes no more
  // than values, so that the usual way has all that it needs in registers.
  template <class Local>
  static __device__ __noinline__ States fold_steps(const Word* from, int n, int lane, int own, double carry) {
    constexpr int kWords = ExtendedStep::kWords;
    Word w[kEach][kWords];
    wait_for<kEach, kWords>(from, n, kWords, w);
    ExtendedStep step = ExtendedStep::none<Local>(), before_own = step, all;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= n) break;
      if (i == own) before_own = step;
      step = combine<Local>(step, unpack_extended(w[i]));
    }
    __syncwarp();
    const ExtendedStep before = scan_of_extended<Local>(step, lane, 0, 32, 32, &all);
    return {before_own.of<Local>(before.of<Local>(carry)), all.of<Local>(carry)};
  }
  // From what they do to infinite states, where no line begins.
  static __device__ __noinline__ States fold_tables(const Word* from, int n, int lane, int own, double carry) {
    Word w[kEach][1];
    wait_for<kEach, 1>(from, n, ExtendedStep::kWords, w);
    uint32_t table = kSame, before_own = kSame, all;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= n) break;
      if (i == own) before_own = table;
      table = combine_tables(table, static_cast<uint32_t>(w[i][0]));
    }
    __syncwarp();
    const uint32_t before = scan_of_tables(table, lane, &all), c = class_of(carry);
    return {number_of_class(look_up(combine_tables(before, before_own), c)), number_of_class(look_up(all, c))};
  }
};

}  // namespace upsweep
