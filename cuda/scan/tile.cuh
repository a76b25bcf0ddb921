// One tile of a line, or several short lines, in the registers of a warp.
//
// A lane holds kVec neighbouring elements; the lanes of a group (32 of them, or fewer where lines are short) hold
// neighbouring runs. What a run does to the state is one step; the steps of a group are scanned with shuffles, and each
// lane then takes its own elements in order from the state that reaches it.
//
// A drop (a reset) forgets the state before it. It is a selection: no product of gates reaches across it.
//
// The line's initial state is the lane's own that holds the first element, not the group's: `begin` is what its run
// starts from. The state before the first tile is then one that adds nothing.
//
// States that are not finite: see common/steps.cuh. Where such a lane's state may be wrong, its warp combines what its
// lanes do again, as steps over all states (common/lane_run.cuh).
#pragma once

#include "common/lane_run.cuh"
#include "common/line_access.cuh"
#include "common/steps.cuh"

namespace upsweep {

// gamma's powers over whole runs: the steps of a constant factor need no products of gates. Held by each lane where
// groups of lanes have lines of their own, and once a block, in shared memory, where they have one in common.
template <class S>
struct Powers {
  S gamma;
  S doubled[5];    // gamma^(kVec << i)
  S group;         // of all lanes' runs
  S sub;           // over a sub-run
  S before_lane;   // of the runs before this lane's
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
    sub = power(value, kSubrunElements);
    keep = is_normal(power(group, times));
  }
  __device__ S lane_power(int) const { return before_lane; }
};

template <class S>
struct BlockPowers {
  S gamma;
  S doubled[5];
  S group;
  S sub;
  S before_lane[32];
  bool keep;

  // By the first warp; the block has to synchronise before it uses them, and before they are set again.
  __device__ void set(S value, int vec, int times) {
    if (threadIdx.x >= 32) return;
    Powers<S> own;
    own.set(value, vec, threadIdx.x, 32, times);
    before_lane[threadIdx.x] = own.before_lane;
    if (threadIdx.x == 0) {
      gamma = own.gamma;
      group = own.group;
      sub = own.sub;
      keep = own.keep;
      for (int i = 0; i < 5; ++i) doubled[i] = own.doubled[i];
    }
  }
  __device__ S lane_power(int lane) const { return before_lane[lane]; }
};

template <class Line, bool kGated, bool kResets>
struct Tile {
  using S = typename Line::State;
  using Local = typename Line::Local;
  using Raw = typename Line::Raw;
  static constexpr int kVec = Line::kVec, kPer = Line::kPer, kVectors = kVec / kPer, kSubruns = Line::kSubruns;
  static constexpr bool kDrops = kResets;

  // The lane's elements, unless they are read from shared memory, a vector at a time, whenever they are wanted.
  Raw x[Line::kHeld ? kVec : 1];
  Raw a[Line::kHeld && kGated ? kVec : 1];
  uint32_t drops;                                // a bit for each element
  bool dropped_before;                           // someone before this lane's run drops
  Step<S> first;                                 // what the first of two sub-runs does; .a of gates only
  Step<S> before;                                // what the group does before this lane's run; .a of gates only
  Step<S> all;                                   // what the group does
  bool dropped;                                  // whether it drops
  S begin;
  int start;                                     // elements of this lane before the line's first

  __device__ bool drop(int i) const { return kResets && drops >> i & 1; }

  // A vector's elements, as a lane computes with them.
  struct Vector {
    Local x[kPer], a[kGated ? kPer : 1];

    __device__ Local factor(int i, Local gamma) const { return kGated ? a[kGated ? i : 0] : gamma; }
  };
  __device__ Vector vector(const Line& line, int position, int j) const {
    Vector v;
    if constexpr (Line::kHeld) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        v.x[i] = Line::value(x[j * kPer + i]);
        if constexpr (kGated) v.a[i] = Line::value(a[j * kPer + i]);
      }
    } else {
      Raw x_raw[kPer], a_raw[kGated ? kPer : 1];
      line.template take<kGated>(position, j, x_raw, a_raw);
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        v.x[i] = Line::value(x_raw[i]);
        if constexpr (kGated) v.a[i] = Line::value(a_raw[i]);
      }
    }
    return v;
  }

  // initial: the line's state before its first step, or one that adds nothing.
  // kWhole: all of the warp's positions are in the line.
  template <bool kWhole>
  __device__ void load(const Line& line, int position, S initial) {
    if constexpr (Line::kHeld) line.template load<kGated, kWhole>(position, x, a);
    begin_with<kWhole>(line, position, initial);
  }
  // The same of a lane whose elements are there.
  template <bool kWhole>
  __device__ void begin_with(const Line& line, int position, S initial) {
    if constexpr (kResets) drops = line.load_resets(position);
    const int t = line.time(position);
    start = !kWhole && line.starts && t < 0 ? -t : 0;
    begin = line.begins(position) ? initial : nothing(S());
  }

  // Elements that do nothing, for a group that has no line.
  __device__ void clear() {
    drops = 0;
    start = 0;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      x[i] = Raw();
      if constexpr (kGated) a[i] = Raw();
    }
    begin = nothing(S());
  }

  // What a lane's sub-run does, its product since the last drop. Elements before the line's first are passed over: gamma
  // would change an initial state.
  template <bool kWhole>
  __device__ Step<S> step_of(const Line& line, int position, Local gamma, S gamma_sub, int sub) const {
    constexpr int kSubVectors = kVectors / kSubruns;
    Local a_all = one(Local()), b_all = convert<Local>(sub == 0 ? begin : nothing(S()));
#pragma unroll(kWhole ? Line::kUnroll : Line::kUnrollEnds)
    for (int j = sub * kSubVectors; j < (sub + 1) * kSubVectors; ++j) {
      const Vector v = vector(line, position, j);
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        const int i = j * kPer + e;
        const Local by = v.factor(e, gamma), next = drop(i) ? v.x[e] : advance(by, b_all, v.x[e]);
        b_all = !kWhole && !kGated && i < start ? b_all : next;
        if constexpr (kGated) a_all = drop(i) ? one(Local()) : product(by, a_all);
      }
    }
    Step<S> step = {kGated ? convert<S>(a_all) : gamma_sub, convert<S>(b_all)};
    if constexpr (kGated && std::is_same_v<Local, float>) {
      // A float may not hold their product where the states before and after it are numbers of their dtype.
      if (!(fabsf(a_all) >= FLT_MIN && fabsf(a_all) <= FLT_MAX)) {
        step.a = one(S());
#pragma unroll 1
        for (int j = sub * kSubVectors; j < (sub + 1) * kSubVectors; ++j) {
          const Vector v = vector(line, position, j);
#pragma unroll
          for (int e = 0; e < kPer; ++e)
            step.a = drop(j * kPer + e) ? one(S()) : product(convert<S>(v.a[e]), step.a);
        }
      }
    }
    return step;
  }
  __device__ bool first_drops() const { return kResets && kSubruns > 1 && (drops & ((1u << kVec / kSubruns % 32) - 1)); }

  // Fills what comes before each run, and what all do. lane: within the group of `width` lanes from lane `base`;
  // reach: lanes beyond which no state goes, since one in between drops it.
  template <bool kWhole, class P>
  __device__ void reduce(const Line& line, int position, const P& powers, int lane, int base, int width,
                         int reach = 32) {
    const uint32_t group = (width == 32 ? 0xffffffffu : (1u << width) - 1u) << base;
    const uint32_t up_to_lane = 0xffffffffu >> (31 - base - lane);
    dropped_before = dropped = false;
    Step<S> step = step_of<kWhole>(line, position, convert<Local>(powers.gamma), powers.sub, 0);
    if constexpr (kSubruns == 2) {
      // Two chains at a time; a float32 does not run further than one of them.
      first = step;
      const Step<S> second = step_of<kWhole>(line, position, convert<Local>(powers.gamma), powers.sub, 1);
      step = kResets && drops >> kVec / 2 ? second : combine(first, second);
    }
    uint32_t dropping = 0;
    int head = 0;
    if constexpr (kResets) {
      dropping = __ballot_sync(0xffffffffu, drops != 0) & group;
      const uint32_t heads = dropping & up_to_lane;
      head = heads ? 31 - __clz(heads) - base : 0;
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      const int by = 1 << i;
      if (by >= width || by >= reach) break;
      const S b = shuffle_up(step.b, by, width);
      if constexpr (kGated) {
        const S a_before = shuffle_up(step.a, by, width);
        if (lane - by >= head) step = combine(Step<S>{a_before, b}, step);
      } else {
        if (lane - by >= head) step.b = advance(powers.doubled[i], b, step.b);
      }
    }
    all = {powers.group, shuffle(step.b, base + width - 1)};
    if (kGated) all.a = shuffle(step.a, base + width - 1);
    before.b = shuffle_up(step.b, 1, width);
    if (kGated) before.a = shuffle_up(step.a, 1, width);
    if (lane == 0) before = {one(S()), nothing(S())};
    if (kResets) {
      dropped_before = dropping & up_to_lane & ~(1u << (base + lane));
      dropped = dropping;
    }
  }

  // load() and reduce(), and finish(), for a whole warp: the same code twice, without and with what is seldom needed.
  template <class P>
  __device__ void take(const Line& line, int position, S initial, const P& powers, bool plain, int lane,
                       int reach = 32) {
    if (Line::kSimple || plain) {
      load<true>(line, position, initial);
      reduce<true>(line, position, powers, lane, 0, 32, reach);
    } else {
      load<false>(line, position, initial);
      reduce<false>(line, position, powers, lane, 0, 32, reach);
    }
    hide_elements();
  }
  template <class P>
  __device__ void give(const Line& line, const Problem& p, int64_t row, int position, const P& powers,
                       S state, bool plain, int lane, int reach = 32) const {
    if (Line::kSimple || plain) finish<true>(line, p, row, position, powers, state, lane, 0, 32, reach);
    else finish<false>(line, p, row, position, powers, state, lane, 0, 32, reach);
  }

  // Between reduce() and finish(): see hide().
  __device__ void hide_elements() {
    if constexpr (Line::kHeld) {
      hide_all(x);
      if constexpr (kGated) hide_all(a);
    }
  }

  // Takes a lane's elements in order and writes the results; returns the state after the last. kFirst: really in order,
  // and the line's first element is taken as it is, where there is no state that its gamma could meet. Without it, what
  // is returned is not finite if any state was not that began a sub-run. kPlain: whole positions, no final state among
  // them, not exclusive.
  template <bool kFirst, bool kPlain>
  __device__ Local walk(const Line& line, const Problem& p, int64_t row, int position, Local gamma,
                        S gamma_sub, S state, bool writes) const {
    const int t = line.time(position);
    Local s = convert<Local>(state), last = s;
    bool finite = true;
#pragma unroll(kPlain ? Line::kUnroll : Line::kUnrollEnds)
    for (int j = 0; j < kVectors; ++j) {
      if (!kFirst && kSubruns == 2 && j == kVectors / 2) {
        // What a line begins with is in first.b already, as step_of() began from it.
        const bool known = first_drops() || line.begins(position);
        const S middle = known ? first.b : advance(kGated ? first.a : gamma_sub, state, first.b);
        finite = is_finite(middle) && is_finite(convert<S>(s));
        s = convert<Local>(middle);
      }
      const Vector v = vector(line, position, j);
      Local y[kPer];
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        const int i = j * kPer + e;
        const bool alone = drop(i) || (kFirst && line.is_first(t + i) && !p.initial.data);
        const Local next = alone ? v.x[e] : advance(v.factor(e, gamma), s, v.x[e]);
        if (kPlain) {
          y[e] = s = next;
          continue;
        }
        // There is no state before a drop, nor before the first step: -0 was only one that adds nothing.
        const Local entering = drop(i) || (t + i == 0 && line.starts && !p.initial.data) ? zero(Local()) : s;
        s = i < start ? s : next;
        y[e] = p.exclusive ? entering : s;
        if (t + i == line.length - 1) last = s;
      }
      if (writes && p.writes) line.template store<kPlain>(position, j, y);
    }
    if (!kPlain && writes && p.final_state.data && t < line.length && t + kVec >= line.length)
      store_state(LineIndex(p, row).in(p.final_state), p.final_state.dtype, convert<S>(last));
    if constexpr (!kFirst && kSubruns == 2) {
      if (!finite) return nanf("");
    }
    return s;
  }

  // Writes the results of all elements, given the state before the group's first. Returns a bit for each of the warp's
  // lanes whose results may be wrong.
  template <bool kPlain, class P>
  __device__ uint32_t write(const Line& line, const Problem& p, int64_t row, int position, const P& powers, S state,
                            int lane, bool writes = true) const {
    S s = before.b;
    if (!(kResets && dropped_before)) s = advance(kGated ? before.a : powers.lane_power(lane), state, s);
    if (line.begins(position)) s = begin;
    const Local last =
        walk<false, kPlain>(line, p, row, position, convert<Local>(powers.gamma), powers.sub, s, writes);
    if (kGated || !powers.keep) {
      // Without a drop a state that is not finite stays so up to the run's end. What it does before a drop inside the
      // run was processed in order, from a state that is looked at here.
      const bool finite = is_finite(convert<S>(last)) && is_finite(s);
      if (__any_sync(0xffffffffu, !finite)) {
        const S a = kGated ? before.a : powers.lane_power(lane);
        bool right = is_right(a, kResets && dropped_before ? zero(S()) : state, s) || line.begins(position);
        if constexpr (kSubruns == 2) {
          const S a_first = kGated ? first.a : powers.sub;
          right = right && (first_drops() || line.begins(position) || is_right(a_first, s, advance(a_first, s, first.b)));
        }
        return __ballot_sync(0xffffffffu, !finite && !right);
      }
    }
    return 0;
  }
  template <bool kPlain, class P>
  __device__ void finish(const Line& line, const Problem& p, int64_t row, int position, const P& powers,
                         S state, int lane, int base, int width, int reach = 32, bool writes = true) const {
    const uint32_t spoilt = write<kPlain>(line, p, row, position, powers, state, lane, writes);
    if ((kGated || !powers.keep) && spoilt) {
      const uint32_t group = (width == 32 ? 0xffffffffu : (1u << width) - 1u) << base;
      finish_again(line, p, row, position, powers.gamma, state, lane, base, width, reach, writes && (spoilt & group));
    }
  }

  // The same by steps over all states, by the groups that take part.
  __device__ void finish_again(const Line& line, const Problem& p, int64_t row, int position, S gamma, S state,
                               int lane, int base, int width, int reach, bool takes_part) const {
    if constexpr (std::is_same_v<S, double>) {
      line.template fetch_again<kGated>(position);
      HeldElements held;
      const LaneRun<Raw> run = run_of(line, p, row, position, gamma, held);
      scan_group_again(run, state, lane, base, width, reach, takes_part);
      if (takes_part) bring(line, p, position, held);
    } else {
      const Tile tile = *this;     // in memory, so that the usual way keeps its registers
      const Line same_line = line;
      in_turn(tile, same_line, p, row, position, gamma, state, lane, base, width, takes_part);
    }
  }

  // The lane's elements in memory, and their description: `held` has those that a LaneRun cannot find where they are.
  struct HeldElements {
    static constexpr int kWords = Line::kInPlace ? 1 : kVec * static_cast<int>(sizeof(Raw)) / 16;
    union { uint4 word[kWords]; Raw part[Line::kInPlace ? 1 : kVec]; } x, gates;
    __device__ HeldElements() {}
  };
  __device__ __forceinline__ LaneRun<Raw> run_of(const Line& line, const Problem& p, int64_t row, int position,
                                                 double gamma, HeldElements& held) const {
    const int t = line.time(position);
    LaneRun<Raw> run;
    if constexpr (Line::kInPlace) {
      line.locate(run, kGated);
    } else {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        Raw x_raw[kPer], a_raw[kGated ? kPer : 1];
        if constexpr (!Line::kHeld) line.template take<kGated>(position, j, x_raw, a_raw);
#pragma unroll
        for (int e = 0; e < kPer; ++e) {
          held.x.part[j * kPer + e] = Line::kHeld ? x[Line::kHeld ? e : 0] : x_raw[e];
          if constexpr (kGated) held.gates.part[j * kPer + e] = Line::kHeld ? a[Line::kHeld ? e : 0] : a_raw[e];
        }
      }
      run.x = held.x.word;
      run.gates = kGated ? held.gates.word : nullptr;
      run.vectors = HeldElements::kWords;
      run.turn = 0;
      run.reverse = false;
    }
    run.drops = kResets ? drops : 0;
    run.start = start;
    run.first = line.is_first(t) && !p.initial.data ? -t : -1;
    run.exclusive = p.exclusive;
    run.gamma = gamma;
    run.begins = line.begins(position);
    run.begin = begin;
    run.end = line.length - 1 - t;
    run.final_state = nullptr;
    if (p.final_state.data && run.end >= 0 && run.end < kVec) {
      run.final_state = LineIndex(p, row).in(p.final_state);
      run.final_dtype = p.final_state.dtype;
    }
    return run;
  }
  // Stores results that are in `held`; others are staged, for flush().
  __device__ void bring(const Line& line, const Problem& p, int position, const HeldElements& held) const {
    if constexpr (!Line::kInPlace) {
      if (!p.writes) return;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        Local y[kPer];
#pragma unroll
        for (int e = 0; e < kPer; ++e) y[e] = Line::value(held.x.part[j * kPer + e]);
        line.template store<false>(position, j, y);
      }
    }
  }

  // Complex states, a lane after the other. Returns the state after the last element.
  static __device__ __noinline__ S in_turn(const Tile& tile, const Line& line, const Problem& p, int64_t row,
                                           int position, S gamma, S state, int lane, int base, int width,
                                           bool takes_part) {
#pragma unroll 1
    for (int turn = 0; turn < width; ++turn) {
      S s = state;
      if (lane == turn && takes_part) {
        if (line.begins(position)) s = tile.begin;
        s = tile.template walk<true, false>(line, p, row, position, gamma, S(), s, true);
      }
      state = shuffle(s, base + turn);
    }
    return state;
  }
};

}  // namespace upsweep
