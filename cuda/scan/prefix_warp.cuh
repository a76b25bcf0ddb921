// The states before the tiles of a wave, found by a warp of each block: what all blocks' tiles do, folded in the order
// of their index. scan_wave_lines.cuh says what waves are.
//
// Letters are those of look_back.cuh.
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

// The letters of waves: of each wave a number from every block, or two where factors are data, side by side for the
// lanes of a warp that takes `each` neighbours a lane; and of each tile whose states are not finite the one after it.
template <bool kGated>
struct WaveMail {
  static constexpr int kWords = kGated ? 2 : 1;
  Word *steps, *states;
  int blocks, each;                // in a wave; letters of a lane

  __device__ WaveMail(const Workspace& w, uint32_t all_tiles)
      : steps(w.letters), blocks(gridDim.x), each((gridDim.x + 31) / 32) {
    states = of_wave((all_tiles + blocks - 1) / blocks);
  }
  __device__ Word* of_wave(int wave) const { return steps + int64_t(wave) * kWords * each * 32; }
  __device__ void post_step(int wave, Step<double> step) const {
    Word* const to = of_wave(wave) + blockIdx.x % each * 32 + blockIdx.x / each;
    post(to, word_of(step.b));
    if (kGated) post(to + each * 32, word_of(step.a));
  }
};

// The warp that folds: the states before a block's own tiles, wave by wave.
template <bool kGated>
struct WaveFold {
  static constexpr int kEach = WaveTuning::kMostBlocks / 32;
  using Mail = WaveMail<kGated>;
  const Mail& mail;
  uint32_t all_tiles, tiles;       // of all lines, of one
  double factor;                   // of a tile, where it is no data
  bool keeps;                      // which never makes 0 or NaN of an infinity
  int lane, own;                   // which of the lane's tiles is the block's, if any
  uint32_t first_index, stride;    // of the lane's first tile in its line, and how far it moves from wave to wave
  double doubled[5], lane_factor;  // of the tiles of 1, 2, 4, ... lanes, and of the lanes before this one
  double carry = -0.0;             // the state before the wave
  Word b[kEach], a[kGated ? kEach : 1];   // that have been asked for

  __device__ WaveFold(const Mail& mail_, uint32_t all, uint32_t tiles_, double factor_, bool keeps_, int lane_)
      : mail(mail_), all_tiles(all), tiles(tiles_), factor(factor_), keeps(keeps_), lane(lane_),
        own(static_cast<int>(blockIdx.x) - lane_ * mail_.each), first_index(lane_ * mail_.each % tiles_),
        stride(mail_.blocks % tiles_), lane_factor(power(power(factor_, mail_.each), lane_)) {
    doubled[0] = power(factor, mail.each);
    for (int i = 1; i < 5; ++i) doubled[i] = product(doubled[i - 1], doubled[i - 1]);
  }

  __device__ bool has_own() const { return own >= 0 && own < mail.each; }

  // The last wave may be short: what is not there does nothing.
  __device__ int present(int wave) const {
    return min(mail.blocks, static_cast<int>(all_tiles - uint32_t(wave) * mail.blocks)) - lane * mail.each;
  }
  __device__ void ask(int wave) {
    const Word* const from = mail.of_wave(wave) + lane;
    const int n = min(mail.each, present(wave));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      b[i] = i < n ? look(from + i * 32) : word_of(-0.0);
      if (kGated) a[i] = i < n ? look(from + (mail.each + i) * 32) : word_of(1.0);
    }
  }
  __device__ bool is_there() const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) all = all && b[i] != kEmpty && (!kGated || a[i] != kEmpty);
    return __all_sync(0xffffffffu, all);
  }

  // Finds the state before the block's own tile of a wave, and the one after the wave. tell(state, in_order) is called
  // once, by all lanes: with the state that is in the lane which has the tile, and whether the tile's steps have to be
  // taken one after the other.
  template <class Tell>
  __device__ void fold(int wave, bool is_last, Tell tell) {
    while (!is_there()) ask(wave);
    double its_b[kEach], its_a[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      its_b[i] = number_of(b[i]);
      its_a[i] = kGated ? number_of(a[i]) : factor;
    }
    const int n = min(mail.each, present(wave));
    if (!is_last) ask(wave + 1);   // on its way while this one is folded
    // A bit for each tile that a line begins with.
    uint32_t begins = 0;
    Step<double> step = {1.0, -0.0};
    uint32_t index = first_index;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= n) break;
      begins |= uint32_t(index == 0) << i;
      step.b = index == 0 ? its_b[i] : advance(its_a[i], step.b, its_b[i]);
      if (kGated) step.a = index == 0 ? its_a[i] : product(its_a[i], step.a);
      index = index + 1 == tiles ? 0 : index + 1;
    }
    first_index += stride;
    if (first_index >= tiles) first_index -= tiles;
    const uint32_t droppers = __ballot_sync(0xffffffffu, begins != 0);
    const uint32_t heads = droppers & (0xffffffffu >> (31 - lane));
    const Step<double> all = scan_of_lanes<kGated, 32>(step, doubled, lane, heads ? 31 - __clz(heads) : 0);
    const Step<double> before = {kGated ? shuffle_up(all.a, 1, 32) : lane_factor, shuffle_up(all.b, 1, 32)};
    double state = carry, mine = -0.0;
    if (lane) state = droppers & (0xffffffffu >> (32 - lane)) ? before.b : advance(before.a, carry, before.b);
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= n) break;
      if (begins >> i & 1) state = -0.0;
      if (i == own) mine = state;
      state = begins >> i & 1 ? its_b[i] : advance(its_a[i], state, its_b[i]);
      finite = finite && is_finite(state);
    }
    if (!keeps && !__all_sync(0xffffffffu, finite)) {
      in_order(wave, n, begins, its_a, its_b, tell);
      return;
    }
    tell(mine, false);
    // After the last lane that has a tile.
    carry = shuffle(state, min(31, (min(mail.blocks, present(wave) + lane * mail.each) - 1) / mail.each));
  }

  // Where a fold may have made a NaN of an infinity: tile after tile. A tile after which a state is not finite takes
  // its steps one after the other, and tells what it leaves.
  template <class Tell>
  __device__ void in_order(int wave, int n, uint32_t begins, const double (&its_a)[kEach],
                           const double (&its_b)[kEach], Tell tell) {
    double state = carry;
    for (int block = 0; block < mail.blocks; ++block) {
      const int source = block / mail.each, i = block % mail.each;
      double step_a = 1.0, step_b = -0.0;
      bool first = false;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (j != i || j >= n) continue;
        step_a = its_a[j];
        step_b = its_b[j];
        first = begins >> j & 1;
      }
      const bool there = shuffle(double(i < n), source) != 0;
      if (!there) break;
      step_a = shuffle(step_a, source);
      step_b = shuffle(step_b, source);
      first = shuffle(double(first), source) != 0;
      if (first) state = -0.0;
      const double after = advance(first ? 1.0 : step_a, state, step_b);
      const bool slow = !is_finite(after) && !is_nan(state);
      if (block == blockIdx.x) tell(state, slow);
      if (!slow) {
        state = after;
        continue;
      }
      Word w[1][1];
      wait_for<1, 1>(mail.states + (int64_t(wave) * mail.blocks + block), 1, 0, w);
      state = number_of(w[0][0]);
    }
    carry = state;
  }
};

}  // namespace upsweep
