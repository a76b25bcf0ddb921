// The states before the tiles of a round, found by a warp of each block: what all blocks' tiles do, folded in the order
// of their index. scan_persistent.cuh says what rounds are.
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
// lanes of a warp that takes `each` neighbours a lane; and of each tile whose states are not finite the one after it.
template <bool kGated>
struct PersistentTileStates {
  static constexpr int kWords = kGated ? 2 : 1;
  Word *steps, *states;
  int blocks, each;                // in a round; tile states of a lane

  __device__ PersistentTileStates(const Workspace& w, uint32_t all_tiles)
      : steps(w.tile_words), blocks(gridDim.x), each((gridDim.x + 31) / 32) {
    states = of_round((all_tiles + blocks - 1) / blocks);
  }
  __device__ Word* of_round(int round) const { return steps + int64_t(round) * kWords * each * 32; }
  __device__ void store_step(int round, Step<double> step) const {
    Word* const to = of_round(round) + blockIdx.x % each * 32 + blockIdx.x / each;
    store_relaxed(to, word_of(step.b));
    if (kGated) store_relaxed(to + each * 32, word_of(step.a));
  }
};

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

  // Finds the state before the block's own tile of a round, and the one after the round. tell(state, in_order) is called
  // once, by all lanes: with the state that is in the lane which has the tile, and whether the tile's steps have to be
  // taken one after the other.
  template <class Broadcast>
  __device__ void fold(int round, bool is_last, Broadcast broadcast) {
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
      in_order(round, n, begins, tile_a, tile_b, broadcast);
      return;
    }
    broadcast(own_state, false);
    // After the last lane that has a tile.
    carry = shuffle(state, min(31, (min(tile_states.blocks, present(round) + lane * tile_states.each) - 1) / tile_states.each));
  }

  // Where a fold may have made a NaN of an infinity: tile after tile. A tile after which a state is not finite takes
  // its steps one after the other, and tells what it leaves.
  template <class Broadcast>
  __device__ void in_order(int round, int n, uint32_t begins, const double (&tile_a)[kEach],
                           const double (&tile_b)[kEach], Broadcast broadcast) {
    double state = carry;
    for (int block = 0; block < tile_states.blocks; ++block) {
      const int source = block / tile_states.each, i = block % tile_states.each;
      double step_a = 1.0, step_b = -0.0;
      bool first = false;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (j != i || j >= n) continue;
        step_a = tile_a[j];
        step_b = tile_b[j];
        first = begins >> j & 1;
      }
      const bool exists = shuffle(double(i < n), source) != 0;
      if (!exists) break;
      step_a = shuffle(step_a, source);
      step_b = shuffle(step_b, source);
      first = shuffle(double(first), source) != 0;
      if (first) state = -0.0;
      const double after = advance(first ? 1.0 : step_a, state, step_b);
      const bool slow = !is_finite(after) && !is_nan(state);
      if (block == blockIdx.x) broadcast(state, slow);
      if (!slow) {
        state = after;
        continue;
      }
      Word w[1][1];
      wait_for<1, 1>(tile_states.states + (int64_t(round) * tile_states.blocks + block), 1, 0, w);
      state = number_of(w[0][0]);
    }
    carry = state;
  }
};

}  // namespace upsweep
