// One tile of a line, or several short lines, in the registers of a warp.
//
// A lane holds kVec neighbouring elements of each of kSegments segments; the lanes of a group (32 of them, or fewer
// where lines are short) hold neighbouring vectors. What a vector does to the state is one step; the steps of a group
// are scanned with shuffles, and each lane then takes its own elements in order from the state that reaches it.
//
// A drop (a reset) forgets the state before it. It is a selection: no product of gates reaches across it.
//
// The line's initial state is the lane's own that holds the first element, not the group's: `begin` is what its vector
// starts from. The state before the first tile is then one that adds nothing.
//
// States that are not finite: see steps.cuh. A lane whose results are not finite makes its warp take them in order.
#pragma once

#include "line_access.cuh"
#include "steps.cuh"

namespace upsweep {

// gamma's powers over whole vectors: the steps of a constant factor need no products of gates. Held by each lane where
// groups of lanes have lines of their own, and once a block, in shared memory, where they have one in common.
template <class S>
struct Powers {
  S gamma;
  S doubled[5];    // gamma^(kVec << i)
  S group;         // of all lanes' vectors
  S before_lane;   // of the vectors before this lane's
  bool keep;       // none of them, to the power of `times`, makes 0 or NaN of an infinity

  __device__ void set(S value, int vec, int lane, int width, int times) {
    gamma = value;
    S p = power(value, vec);
    group = p;
    before_lane = one(S());
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      doubled[i] = p;
      if (lane >> i & 1) before_lane = product(before_lane, p);
      p = product(p, p);
      if ((2 << i) <= width) group = p;
    }
    keep = is_normal(power(group, times));
  }
  __device__ S lane_power(int) const { return before_lane; }
};

template <class S>
struct BlockPowers {
  S gamma;
  S doubled[5];
  S group;
  S before_lane[32];
  bool keep;

  // By the first warp; the block has to synchronise before it uses them, and before they are set again.
  __device__ void set(S value, int vec, int times) {
    if (threadIdx.x >= 32) return;
    Powers<S> mine;
    mine.set(value, vec, threadIdx.x, 32, times);
    before_lane[threadIdx.x] = mine.before_lane;
    if (threadIdx.x == 0) {
      gamma = mine.gamma;
      group = mine.group;
      keep = mine.keep;
      for (int i = 0; i < 5; ++i) doubled[i] = mine.doubled[i];
    }
  }
  __device__ S lane_power(int lane) const { return before_lane[lane]; }
};

template <class Line, bool kGated, bool kResets, int kSegments>
struct Tile {
  using S = typename Line::State;
  using Local = typename Line::Local;
  using Raw = typename Line::Raw;
  static constexpr int kVec = Line::kVec;

  Raw x[kSegments][kVec];
  Raw a[kGated ? kSegments : 1][kVec];
  uint32_t drops[kResets ? kSegments : 1];       // a bit for each element
  uint32_t dropped_before;                       // a bit for each segment: someone before this lane's vector drops
  S before_a[kGated ? kSegments : 1];            // what the group does before this lane's vector
  S before_b[kSegments];
  Step<S> all;                                   // what the group does
  bool dropped;                                  // whether it drops
  S begin;

  __device__ bool drop(int k, int i) const { return kResets && drops[kResets ? k : 0] >> i & 1; }
  __device__ Local factor(int k, int i, Local gamma) const {
    if constexpr (kGated) return Line::value(a[k][i]);
    return gamma;
  }

  // initial: the line's state before its first step, or one that adds nothing.
  // kWhole: all of the warp's positions can be read and written as vectors.
  template <bool kWhole>
  __device__ void load(const Line& line, int64_t position, int segment_positions, S initial) {
#pragma unroll
    for (int k = 0; k < kSegments; ++k)
      line.template load<kGated, kWhole>(position + k * segment_positions, x[k], a[kGated ? k : 0]);
    if constexpr (kResets) {
#pragma unroll
      for (int k = 0; k < kSegments; ++k) drops[k] = line.load_resets(position + k * segment_positions);
    }
    begin = position == 0 ? initial : nothing(S());
  }

  // Elements that do nothing, for a group that has no line.
  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < kSegments; ++k) {
      if constexpr (kResets) drops[k] = 0;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        x[k][i] = Raw();
        if constexpr (kGated) a[k][i] = Raw();
      }
    }
    begin = nothing(S());
  }

  // What a lane's vector does.
  __device__ Step<S> step_of(int k, Local gamma) const {
    Local a_all = one(Local()), b_all = convert<Local>(k == 0 ? begin : nothing(S()));
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Local value = Line::value(x[k][i]), by = factor(k, i, gamma);
      b_all = drop(k, i) ? value : advance(by, b_all, value);
      if constexpr (kGated) a_all = drop(k, i) ? zero(Local()) : i == 0 ? by : product(by, a_all);
    }
    return {convert<S>(a_all), convert<S>(b_all)};
  }

  // Fills what comes before each vector, and what all do. lane: within the group of `width` lanes from lane `base`.
  template <class P>
  __device__ void reduce(const P& powers, int lane, int base, int width) {
    const uint32_t group = (width == 32 ? 0xffffffffu : (1u << width) - 1u) << base;
    const uint32_t up_to_lane = 0xffffffffu >> (31 - base - lane);
    dropped_before = 0;
    dropped = false;
#pragma unroll
    for (int k = 0; k < kSegments; ++k) {
      Step<S> step = step_of(k, convert<Local>(powers.gamma));
      uint32_t dropping = 0;
      int head = 0;
      if constexpr (kResets) {
        dropping = __ballot_sync(0xffffffffu, drops[k] != 0) & group;
        const uint32_t heads = dropping & up_to_lane;
        head = heads ? 31 - __clz(heads) - base : 0;
      }
#pragma unroll
      for (int i = 0; i < 5; ++i) {
        const int by = 1 << i;
        if (by >= width) break;
        const S b = shuffle_up(step.b, by, width);
        if constexpr (kGated) {
          const S a_before = shuffle_up(step.a, by, width);
          if (lane - by >= head) step = combine(Step<S>{a_before, b}, step);
        } else {
          if (lane - by >= head) step.b = advance(powers.doubled[i], b, step.b);
        }
      }
      Step<S> total = {powers.group, shuffle(step.b, base + width - 1)}, before = {powers.lane_power(lane), step.b};
      if (kGated) total.a = shuffle(step.a, base + width - 1);
      before.b = shuffle_up(step.b, 1, width);
      if (kGated) before.a = shuffle_up(step.a, 1, width);
      if (lane == 0) before = {one(S()), nothing(S())};

      const bool lane_dropped = kResets && (dropping & up_to_lane & ~(1u << (base + lane)));
      if (k > 0 && !lane_dropped) {
        before.b = advance(before.a, all.b, before.b);
        if (kGated) before.a = product(before.a, all.a);
      }
      before_b[k] = before.b;
      if constexpr (kGated) before_a[k] = before.a;
      if (kResets && (lane_dropped || dropped)) dropped_before |= 1u << k;
      if (k == 0 || (kResets && dropping)) all = total;
      else all = combine(all, total);
      if (kResets && dropping) dropped = true;
    }
  }

  // Between reduce() and finish(): see hide().
  __device__ void hide_elements() {
#pragma unroll
    for (int k = 0; k < kSegments; ++k) {
      hide_all(x[k]);
      if constexpr (kGated) hide_all(a[k]);
    }
  }

  // Takes a vector's elements in order and writes the results; returns the state after the last. kFirst: the line's
  // first element is taken as it is, where there is no state that its gamma could meet. kPlain: whole positions, no
  // final state among them, not exclusive.
  template <bool kFirst, bool kPlain>
  __device__ Local walk(int k, const Line& line, const Problem& p, const LineIndex& index, int64_t position,
                        Local gamma, Local state, bool writes) const {
    const int64_t t = line.time(position);
    Local s = state, y[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Local value = Line::value(x[k][i]), entering = drop(k, i) ? zero(Local()) : s;
      const bool alone = drop(k, i) || (kFirst && t + i <= 0 && !p.initial.data);
      s = alone ? value : advance(factor(k, i, gamma), s, value);
      y[i] = !kPlain && p.exclusive ? entering : s;
    }
    if (!kPlain && p.exclusive && t <= 0 && !p.initial.data) {
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        if (t + i == 0) y[i] = zero(Local());   // there is no state: -0 was only one that adds nothing
    }
    if (writes && p.writes) line.template store<kPlain>(position, y);
    if (!kPlain && writes && p.final_state.data && t < p.length && t + kVec >= p.length) {
      Local last = state;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const bool alone = drop(k, i) || (kFirst && t + i <= 0 && !p.initial.data);
        if (t + i < p.length)
          last = alone ? Line::value(x[k][i]) : advance(factor(k, i, gamma), last, Line::value(x[k][i]));
      }
      store_state(index.in(p.final_state), p.final_state.dtype, convert<S>(last));
    }
    return s;
  }

  // Writes the results of all elements, given the state before the group's first.
  template <bool kPlain, class P>
  __device__ void finish(const Line& line, const Problem& p, const LineIndex& index, int64_t position,
                         int segment_positions, const P& powers, S state, int lane, int base,
                         int width, bool writes = true) const {
    bool finite = true;
    S lane_power = kGated ? one(S()) : powers.lane_power(lane);
#pragma unroll
    for (int k = 0; k < kSegments; ++k) {
      S s = before_b[k];
      if constexpr (kGated) {
        if (!(kResets && dropped_before >> k & 1)) s = advance(before_a[k], state, s);
      } else {
        if (!(kResets && dropped_before >> k & 1)) s = advance(lane_power, state, s);
        lane_power = product(lane_power, powers.group);
      }
      if (k == 0 && position == 0) s = begin;
      const Local last = walk<false, kPlain>(k, line, p, index, position + k * segment_positions,
                                     convert<Local>(powers.gamma), convert<Local>(s), writes);
      // Without a drop a state that is not finite stays so up to the vector's end. What it does before a drop inside
      // the vector was taken in order, from a state that is looked at here.
      finite = finite && is_finite(convert<S>(last)) && is_finite(s);
    }
    if (kGated || !powers.keep) {
      const bool known = is_nan(state) && !kResets;   // a NaN stays one
      const uint32_t group = (width == 32 ? 0xffffffffu : (1u << width) - 1u) << base;
      const uint32_t spoilt = __ballot_sync(0xffffffffu, !finite && !known);
      if (spoilt)
        finish_in_order(line, p, index, position, segment_positions, powers.gamma, state, lane, base, width,
                        writes && (spoilt & group));
    }
  }

  // The same, a step after the other, by the groups that take part; returns the state after the last element. Seldom
  // needed, so it works on copies in memory and costs the usual way no registers.
  __device__ S finish_in_order(const Line& line, const Problem& p, const LineIndex& index, int64_t position,
                               int segment_positions, S gamma, S state, int lane, int base, int width,
                               bool takes_part) const {
    const Tile tile = *this;
    const Line same_line = line;
    const LineIndex same_index = index;
    return in_order(tile, same_line, p, same_index, position, segment_positions, gamma, state, lane, base, width,
                    takes_part);
  }

  static __device__ __noinline__ S in_order(const Tile& tile, const Line& line, const Problem& p,
                                            const LineIndex& index, int64_t position, int segment_positions, S gamma,
                                            S state, int lane, int base, int width, bool takes_part) {
#pragma unroll 1
    for (int k = 0; k < kSegments; ++k) {
#pragma unroll 1
      for (int turn = 0; turn < width; ++turn) {
        S s = state;
        if (lane == turn && takes_part) {
          if (k == 0 && position == 0) s = tile.begin;
          s = convert<S>(tile.template walk<true, false>(k, line, p, index, position + k * segment_positions,
                                                         convert<Local>(gamma), convert<Local>(s), true));
        }
        state = shuffle(s, base + turn);
      }
    }
    return state;
  }
};

}  // namespace upsweep
