// A lane's elements in memory, for tiles whose states may be wrong that are not finite: see common/steps.cuh.
//
// A kernel has its elements in registers and its sizes in template arguments. What is seldom done again, by steps over
// all states (common/extended_step.cuh), is done here, with sizes that are variables: one function for each dtype,
// whatever the kernel. Kernels describe the lane's elements by a LaneRun, which costs the usual way no registers.
#pragma once

#include "common/extended_step.cuh"
#include "common/line_access.cuh"

namespace upsweep {

template <class T>
struct LaneRun {
  using Local = decltype(local_of(T()));
  static constexpr int kPer = 16 / sizeof(T);

  uint4* x;                        // the lane's vectors, in shared or local memory; results take their place
  const uint4* gates;              // null: gamma
  int vectors, turn;               // the j-th of them in memory is at j ^ turn
  bool reverse;                    // scan order is from the last element in memory to the first
  bool exclusive;
  double gamma;
  uint32_t drops;                  // a bit for each element, of up to 32
  int start;                       // elements before the line's first
  int first;                       // the one that no state is before, as the line begins with it; -1: none
  bool begins;                     // the state before the run is `begin`
  double begin;
  int end;                         // the element that leaves the line's final state, if `final_state` wants it
  char* final_state;
  int32_t final_dtype;

  // Calls take(i, gate, x) for each element that the line has, in scan order; it may change x to a result.
  template <class Take>
  __device__ void each(bool writes, Take take) const {
#pragma unroll 1
    for (int j = 0; j < vectors; ++j) {
      const int at = (reverse ? vectors - 1 - j : j) ^ turn;
      union { uint4 word; T part[kPer]; } u, by;
      u.word = x[at];
      by.word = gates ? gates[at] : u.word;
      Local value[kPer];
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        const int i = j * kPer + e;
        value[e] = local_of(reverse ? u.part[kPer - 1 - e] : u.part[e]);
        const Local gate = local_of(reverse ? by.part[kPer - 1 - e] : by.part[e]);
        if (i >= start) take(i, gates ? gate : static_cast<Local>(gamma), value[e]);
      }
      if (!writes) continue;
#pragma unroll
      for (int e = 0; e < kPer; ++e) u.part[e] = from_local<T>(reverse ? value[kPer - 1 - e] : value[e]);
      x[at] = u.word;
    }
  }
  // Whether no state is before an element.
  __device__ bool alone(int i) const { return i == first || (i < 32 && drops >> i & 1); }

  // What the elements do to any state.
  __device__ __noinline__ ExtendedStep step() const {
    if constexpr (sizeof(Local) == 8) {
      if (!begins && first < 0 && !drops) {
        OrdinaryRun run;
        each(false, [&](int, Local gate, Local& value) { run.add(gate, value); });
        ExtendedStep step;
        if (run.is_step(&step)) return step;
      }
    }
    ExtendedRun<Local> run;
    if (begins) run.begin_with(static_cast<Local>(begin));
    each(false, [&](int i, Local gate, Local& value) {
      if (alone(i)) run.begin_with(value);
      else run.add(gate, value);
    });
    return run.step();
  }
  // What they do to states that are not finite; nothing is dropped, and no line begins.
  __device__ __noinline__ uint32_t table() const {
    Local plus = static_cast<Local>(number_of_class(kPlus)), minus = static_cast<Local>(number_of_class(kMinus));
    each(false, [&](int, Local gate, Local& value) {
      plus = advance(gate, plus, value);
      minus = advance(gate, minus, value);
    });
    return class_of(plus) | class_of(minus) << 2 | kNone << 4;
  }
  // The results from the state before the elements, one after the other.
  __device__ __noinline__ void walk(double state) const {
    Local s = static_cast<Local>(begins ? begin : state);
    each(true, [&](int i, Local gate, Local& value) {
      const bool is_alone = alone(i);
      const Local before = is_alone ? Local(0) : s;
      s = is_alone ? value : advance(gate, s, value);
      value = exclusive ? before : s;
      if (i == end && final_state) store_state(final_state, final_dtype, static_cast<double>(s));
    });
  }
};

// By the groups of a warp that take part, from the state before each group. reach: lanes beyond which no state goes.
template <class T>
__device__ __noinline__ void scan_group_again(const LaneRun<T>& run, double state, int lane, int base, int width,
                                              int reach, bool takes_part) {
  using Local = typename LaneRun<T>::Local;
  ExtendedStep of_group;
  const ExtendedStep before = scan_of_extended<Local>(run.step(), lane, base, width, reach, &of_group);
  if (takes_part) run.walk(before.of<Local>(state));
}

// What the runs of a block's tile before a lane's own do to any state, and what the tile does; `extended` has room for
// each warp's step. synchronise: a barrier of the n_warps warps.
struct ExtendedTile {
  ExtendedStep before_warp, before_lane, all;
};
template <class T, class Synchronise>
__device__ __noinline__ ExtendedTile reduce_again(const LaneRun<T>& run, ExtendedStep* extended, int n_warps,
                                                  Synchronise synchronise) {
  using Local = typename LaneRun<T>::Local;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  ExtendedStep of_warp, of_tile;
  const ExtendedStep before_lane = scan_of_extended<Local>(run.step(), lane, 0, 32, 32, &of_warp);
  if (lane == 0) extended[warp] = of_warp;
  synchronise();
  const ExtendedStep before_warp = scan_of_warps<Local>(extended, n_warps, warp, lane, &of_tile);
  return {before_warp, before_lane, of_tile};
}
// The same of infinite states alone, as tables.
struct TileTables {
  uint32_t before, all;
};
template <class T, class Synchronise>
__device__ __noinline__ TileTables reduce_tables(const LaneRun<T>& run, ExtendedStep* extended, int n_warps,
                                                 Synchronise synchronise) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t of_warp, of_tile;
  const uint32_t before_lane = scan_of_tables(run.table(), lane, &of_warp);
  if (lane == 0) extended[warp].form = static_cast<uint16_t>(of_warp);
  synchronise();
  const uint32_t of_warps = scan_of_tables(lane < n_warps ? extended[lane].form : kSame, lane, &of_tile);
  return {combine_tables(__shfl_sync(0xffffffffu, of_warps, warp), before_lane), of_tile};
}

struct BlockBarrier {
  __device__ void operator()() const { __syncthreads(); }
};

// Writes the results of a tile from the state before it; returns the state after it.
template <class T>
__device__ __noinline__ double scan_tile_again(const LaneRun<T>& run, const ExtendedTile& steps, double state) {
  using Local = typename LaneRun<T>::Local;
  run.walk(steps.before_lane.of<Local>(steps.before_warp.of<Local>(state)));
  return steps.all.of<Local>(state);
}
// The same where the state before it is known from the beginning.
template <class T>
__device__ __noinline__ double scan_known_tile_again(const LaneRun<T>& run, ExtendedStep* extended, bool drops,
                                                     double state) {
  const int n_warps = blockDim.x / 32;
  if (!drops && !is_finite(state)) {
    const TileTables tables = reduce_tables(run, extended, n_warps, BlockBarrier());
    run.walk(number_of_class(look_up(tables.before, class_of(state))));
    return number_of_class(look_up(tables.all, class_of(state)));
  }
  return scan_tile_again(run, reduce_again(run, extended, n_warps, BlockBarrier()), state);
}

}  // namespace upsweep
