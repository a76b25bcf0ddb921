// A line in the registers of one block, or of a cluster of blocks that exchange the aggregates of their parts through
// shared memory. One launch, no workspace, and every element is loaded before anything waits: for lines so few or so short
// that the time is that of the launch and of the way to memory and back.
//
// A warp's part is kGroups groups of 32 neighbouring vectors, one vector a lane. Each group is a tile (scan/tile.cuh).
#pragma once

#include "common/cluster.cuh"
#include "scan/lines.cuh"

namespace upsweep {

// The aggregates of up to 32 parts of a line, one in each lane of a warp, together with those of all parts before.
template <class S>
struct ScannedSteps {
  Step<S> until;                   // what the parts up to this lane's do

  __device__ ScannedSteps(const Step<S>* steps, int n, int lane)
      : until(scan_of_steps(lane < n ? steps[lane] : Step<S>{one(S()), nothing(S())}, 0, lane)) {}
  __device__ Step<S> all() const { return {shuffle(until.a, 31), shuffle(until.b, 31)}; }
  // The state before a part, from the one before the first.
  __device__ S before(int part, S state) const {
    const S after = advance(until.a, state, until.b), before = shuffle(after, part ? part - 1 : 0);
    return part ? before : state;
  }
  // Whether a state before one of n parts may be wrong that is not finite.
  __device__ bool may_be_wrong(int n, int lane, S state) const {
    const S after = advance(until.a, state, until.b);
    return __any_sync(0xffffffffu, lane + 1 < n && !is_finite(after) && !is_right(until.a, state, after));
  }
};

// What the blocks of a cluster send each other: the aggregates, and those over all states where a state may be wrong.
template <class S>
struct ClusterSteps {
  alignas(16) Step<S> step[ClusterTuning::kBlocks];
  Arrivals arrivals;
  ExtendedStep extended[ClusterTuning::kBlocks];
};

// A line whose lanes take kVectors neighbouring vectors each from memory.
template <class Base, int kVectors>
struct InRuns : Base {
  using typename Base::Local;
  using typename Base::Raw;
  static constexpr int kPer = Base::kPer, kVec = kVectors * kPer;
  static constexpr bool kHeld = false;

  using Base::Base;
  template <bool kGated>
  __device__ void take(int position, int j, Raw (&x_out)[kPer], Raw (&a_out)[kGated ? kPer : 1]) const {
    Base::template load<kGated, false>(position + j * kPer, x_out, a_out);
  }
  template <bool kWhole>
  __device__ void store(int position, int j, const Local (&y)[kPer]) const {
    Base::template store<kWhole>(position + j * kPer, 0, y);
  }
};

// A lane's run of neighbouring elements, loaded once more in the rare case that its results may be wrong: the warp has not
// stored any of them yet, so that this holds in place, too.
template <class Line, bool kGated>
struct RunAgain {
  using AgainTile = Tile<Line, kGated, false>;
  typename AgainTile::HeldElements held;
  LaneRun<typename Line::Raw> run;

  __device__ __noinline__ void load(const Problem& p, int64_t row, int position, double gamma) {
    const LineIndex index(p, row);
    const Line line(p, index);
    AgainTile tile;
    tile.template load<false>(line, position, initial_of<double>(p, index));
    run = tile.run_of(line, p, row, position, gamma, held);
  }
  __device__ __noinline__ void store(const Problem& p, int64_t row, int position) const {
    AgainTile().bring(Line(p, LineIndex(p, row)), p, position, held);
  }
};

// The groups of a warp.
template <class Line, bool kGated>
struct HeldGroups {
  using S = typename Line::State;
  using Local = typename Line::Local;
  using Raw = typename Line::Raw;
  static constexpr int kVec = Line::kVec, kGroups = cluster_vectors(sizeof(Raw), kGated), kGroup = 32 * kVec;
  static constexpr int kWarpTile = kGroups * kGroup;

  Tile<Line, kGated, false> tile[kGroups];   // .before: from the warp's first element on

  __device__ void fetch_vectors(const Line& line, int position) {
#pragma unroll
    for (int e = 0; e < kGroups; ++e)
      line.template fetch_vectors<kGated>(position + e * kGroup, tile[e].x, tile[e].a);
  }
  __device__ void fetch_rest(const Line& line, int position) {
#pragma unroll
    for (int e = 0; e < kGroups; ++e)
      line.template fetch_rest<kGated>(position + e * kGroup, tile[e].x, tile[e].a);
  }
  // What the warp's part does. Only a line's first group begins with the initial state; positions before the
  // line add nothing.
  __device__ Step<S> reduce(const Line& line, int position, S initial, const BlockPowers<S>& powers, int lane) {
    if constexpr (kGated) line.pass_first_gate(line.time(position), tile[0].a);
    Step<S> all = {one(S()), nothing(S())};
#pragma unroll
    for (int e = 0; e < kGroups; ++e) {
      const int at = position + e * kGroup;
      if (e == 0) {
        tile[e].template begin_with<false>(line, at, initial);
        tile[e].template reduce<false>(line, at, powers, lane, 0, 32);
      } else {
        tile[e].template begin_with<true>(line, at, nothing(S()));
        tile[e].template reduce<true>(line, at, powers, lane, 0, 32);
      }
      tile[e].hide_elements();
      const Step<S> before = {kGated ? tile[e].before.a : powers.lane_power(lane), tile[e].before.b};
      tile[e].before.b = advance(before.a, all.b, before.b);
      if constexpr (kGated) tile[e].before.a = product(before.a, all.a);
      all = combine(all, tile[e].all);
    }
    return all;
  }
  // Puts results in the place of the elements, from the state before the warp's part. Returns whether the lane's may be
  // wrong.
  __device__ bool scan(const Line& line, const Problem& p, int64_t row, int position, const BlockPowers<S>& powers,
                       S state, int lane) {
    bool wrong = false;
    S factor = kGated ? one(S()) : powers.lane_power(lane);
#pragma unroll
    for (int e = 0; e < kGroups; ++e) {
      const int t = line.time(position + e * kGroup);
      const S a = kGated ? tile[e].before.a : factor;
      S s = advance(a, state, tile[e].before.b);
      if (!is_finite(s)) wrong |= !is_right(a, state, s);
      if (e == 0 && line.begins(position)) s = tile[e].begin;
      if (!kGated && e + 1 < kGroups) factor = product(powers.group, factor);
      if (p.final_state.data && t < line.length && t + kVec >= line.length) finish(line, p, row, t, powers, s, e);
      walk(p, t, convert<Local>(powers.gamma), convert<Local>(s), e);
    }
    return wrong && (kGated || !powers.keep);
  }
  // Of one group: results in the place of the elements.
  __device__ void walk(const Problem& p, int t, Local gamma, Local s, int e) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Local by = factor_of(gamma, e, i), next = advance(by, s, Line::value(tile[e].x[i]));
      const bool outside = !kGated && e == 0 && t + i < 0;
      // The state before the line is none; -0 was only to add nothing.
      const bool none = e == 0 && t + i == 0 && !p.initial.data;
      tile[e].x[i] = from_local<Raw>(!p.exclusive ? next : none ? zero(Local()) : s);
      s = outside ? s : next;
    }
  }
  // Stores the state after the line's last element, from the one before a lane's elements.
  __device__ void finish(const Line& line, const Problem& p, int64_t row, int t, const BlockPowers<S>& powers, S state,
                         int e) const {
    Local s = convert<Local>(state);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Local next = advance(factor_of(convert<Local>(powers.gamma), e, i), s, Line::value(tile[e].x[i]));
      if (t + i >= 0 && t + i < line.length) s = next;
    }
    store_state(LineIndex(p, row).in(p.final_state), p.final_state.dtype, convert<S>(s));
  }
  __device__ Local factor_of(Local gamma, int e, int i) const {
    return kGated ? Line::value(tile[e].a[kGated ? i : 0]) : gamma;
  }
  __device__ void put(const Line& line, int position) const {
#pragma unroll
    for (int e = 0; e < kGroups; ++e) line.put(position + e * kGroup, tile[e].x);
  }
};

// A line in each cluster of 2^log2_blocks blocks.
template <class T, bool kReverse, bool kGated>
__global__ void __launch_bounds__(ClusterTuning::kWarps * 32, ClusterTuning::kResident)
    scan_cluster_lines(const __grid_constant__ Problem p, int log2_blocks) {
  using Line = Contiguous<T, kReverse>;
  using S = typename Line::State;
  using Groups = HeldGroups<Line, kGated>;
  constexpr int kWarps = ClusterTuning::kWarps, kBlocks = ClusterTuning::kBlocks;
  __shared__ WarpSteps<S, kWarps> shared;
  __shared__ BlockPowers<S> powers;
  __shared__ ClusterSteps<S> sent;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  const int n_blocks = 1 << log2_blocks;
  const uint32_t row = blockIdx.x >> log2_blocks;
  const int block = blockIdx.x & (n_blocks - 1), block_position = block * n_warps * Groups::kWarpTile;
  const int warp_position = block_position + warp * Groups::kWarpTile, position = warp_position + lane * Line::kVec;
  const LineIndex index(p, row);
  const Line line(p, index);
  __builtin_assume(position >= 0 && line.phase >= 0 && line.phase < Line::kVec);
  Groups groups;
  groups.fetch_vectors(line, position);
  if (n_blocks > 1) {
    if (threadIdx.x == 0) sent.arrivals.expect(n_blocks * sizeof(Step<S>));
    arrive_relaxed();
  }
  if (!kGated) {
    powers.set(gamma_of<S>(p, index), Line::kVec, Groups::kGroups * kWarps * kBlocks);
    __syncthreads();
  }
  if (warp_position < line.positions() && !line.whole(warp_position, Groups::kWarpTile))
    groups.fetch_rest(line, position);
  const S initial = block ? nothing(S()) : initial_of<S>(p, index);
  const Step<S> step = groups.reduce(line, position, initial, powers, lane);
  if (lane == 0) shared.step[warp] = step;
  __syncthreads();
  const ScannedSteps<S> warps(shared.step, n_warps, lane);

  RunAgain<InRuns<Line, Groups::kGroups>, kGated> again;
  using Local = typename Line::Local;
  const int run_position = block_position + threadIdx.x * Groups::kGroups * Line::kVec;
  S state = nothing(S());
  if (n_blocks > 1) {
    wait_for_cluster();            // from here on every block may write into every other's shared memory
    if (warp == 0) {
      const Step<S> all = warps.all();
      if (lane < n_blocks) sent.arrivals.send(&sent.step[block].a, lane, all.a, all.b);
    }
    sent.arrivals.wait();
    const ScannedSteps<S> blocks(sent.step, n_blocks, lane);
    if ((kGated || !powers.keep) && blocks.may_be_wrong(n_blocks, lane, state)) {
      again.load(p, row, run_position, powers.gamma);
      const ExtendedTile steps = reduce_again(again.run, shared.extended, n_warps, BlockBarrier());
      if (warp == 0 && lane < n_blocks) in_block(&sent, lane)->extended[block] = steps.all;
      synchronise_cluster();
      ExtendedStep all;
      const ExtendedStep before = scan_of_warps<Local>(sent.extended, n_blocks, block, lane, &all);
      scan_tile_again(again.run, steps, before.template of<Local>(state));
      again.store(p, row, run_position);
      return;
    }
    state = blocks.before(block, state);
  }
  if ((kGated || !powers.keep) && warps.may_be_wrong(n_warps, lane, state)) {
    again.load(p, row, run_position, powers.gamma);
    scan_known_tile_again(again.run, shared.extended, false, state);
    again.store(p, row, run_position);
    return;
  }
  state = warps.before(warp, state);
  if (__any_sync(0xffffffffu, groups.scan(line, p, row, position, powers, state, lane))) {
    __syncwarp();                  // a lane has stored the final state, which another one may have to replace
    again.load(p, row, run_position, powers.gamma);
    scan_group_again(again.run, state, lane, 0, 32, 32, true);
    again.store(p, row, run_position);
  } else if (p.writes) {
    groups.put(line, position);
  }
}

}  // namespace upsweep
