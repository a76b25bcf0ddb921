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
  Step<S> step[ClusterTuning::kBlocks];
  ExtendedStep extended[ClusterTuning::kBlocks];
};

// A line whose results stay in registers until it is known whether they are right.
template <class T, bool kReverse>
struct Held : Contiguous<T, kReverse> {
  using Base = Contiguous<T, kReverse>;
  using typename Base::Local;
  T* results;                      // of a vector; they take the place of the elements

  using Base::Base;
  template <bool>
  __device__ void store(int, int, const Local (&y)[Base::kVec]) const {
#pragma unroll
    for (int i = 0; i < Base::kVec; ++i) results[i] = from_local<T>(y[i]);
  }
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

// A lane's run of neighbouring elements, for what is seldom done: from memory again, as no result is there before.
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
  static constexpr int kGroups = cluster_vectors(sizeof(typename Line::Raw), kGated), kGroup = 32 * Line::kVec;
  static constexpr int kWarpTile = kGroups * kGroup;

  Tile<Line, kGated, false> tile[kGroups];

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
  // What the warp's part does.
  template <bool kWhole>
  __device__ Step<S> reduce(const Line& line, int position, S initial, const BlockPowers<S>& powers, int lane) {
    Step<S> all;
#pragma unroll
    for (int e = 0; e < kGroups; ++e) {
      const int at = position + e * kGroup;
      tile[e].template begin_with<kWhole>(line, at, initial);
      tile[e].template reduce<kWhole>(line, at, powers, lane, 0, 32);
      tile[e].hide_elements();
      all = e ? combine(all, tile[e].all) : tile[e].all;
    }
    return all;
  }
  // Puts results in the place of the elements, from the state before the warp's part. Returns whether they may be wrong.
  template <bool kPlain>
  __device__ bool scan(Line& line, const Problem& p, int64_t row, int position, const BlockPowers<S>& powers, S state,
                       int lane) {
    bool wrong = false;
#pragma unroll
    for (int e = 0; e < kGroups; ++e) {
      line.results = tile[e].x;
      wrong |= tile[e].template write<kPlain>(line, p, row, position + e * kGroup, powers, state, lane) != 0;
      const Step<S> step = tile[e].all;
      const S after = advance(step.a, state, step.b);
      wrong |= !is_finite(after) && !is_right(step.a, state, after);
      state = after;
    }
    return wrong && (kGated || !powers.keep);
  }
  __device__ void put(const Line& line, int position) const {
#pragma unroll
    for (int e = 0; e < kGroups; ++e) line.put(position + e * kGroup, tile[e].x);
  }
};

// A line in each cluster of n_blocks.
template <class T, bool kReverse, bool kGated>
__global__ void __launch_bounds__(ClusterTuning::kWarps * 32, ClusterTuning::kResident)
    scan_cluster_lines(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers gamma_powers,
                       int n_blocks) {
  using Line = Held<T, kReverse>;
  using S = typename Line::State;
  using Groups = HeldGroups<Line, kGated>;
  constexpr int kWarps = ClusterTuning::kWarps, kBlocks = ClusterTuning::kBlocks;
  __shared__ WarpSteps<S, kWarps> shared;
  __shared__ BlockPowers<S> powers;
  __shared__ ClusterSteps<S> sent;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  const uint32_t row = blockIdx.x / n_blocks;
  const int block = blockIdx.x % n_blocks, block_position = block * n_warps * Groups::kWarpTile;
  const int warp_position = block_position + warp * Groups::kWarpTile, position = warp_position + lane * Line::kVec;
  Line line(p, LineIndex(p, row));
  __builtin_assume(position >= 0 && line.phase >= 0 && line.phase < Line::kVec);
  Groups groups;
  groups.fetch_vectors(line, position);
  if (n_blocks > 1) arrive_at_cluster();
  if (!kGated) {
    set_powers(powers, p, gamma_powers, row, Line::kVec, Groups::kGroups * kWarps * kBlocks);
    __syncthreads();
  }
  const bool plain = is_plain(line, p, warp_position, Groups::kWarpTile);
  if (!plain || warp_position == 0) groups.fetch_rest(line, position);
  const S initial = block ? nothing(S()) : initial_of<S>(p, LineIndex(p, row));
  const Step<S> step = plain ? groups.template reduce<true>(line, position, initial, powers, lane)
                             : groups.template reduce<false>(line, position, initial, powers, lane);
  if (lane == 0) shared.step[warp] = step;
  __syncthreads();
  const ScannedSteps<S> warps(shared.step, n_warps, lane);

  RunAgain<InRuns<typename Line::Base, Groups::kGroups>, kGated> again;
  using Local = typename Line::Local;
  const int run_position = block_position + threadIdx.x * Groups::kGroups * Line::kVec;
  S state = nothing(S());
  if (n_blocks > 1) {
    wait_for_cluster();            // from here on every block may write into every other's shared memory
    if (warp == 0) {
      const Step<S> all = warps.all();
      if (lane < n_blocks) in_block(&sent, lane)->step[block] = all;
    }
    synchronise_cluster();
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
  const bool wrong = plain ? groups.template scan<true>(line, p, row, position, powers, state, lane)
                           : groups.template scan<false>(line, p, row, position, powers, state, lane);
  if (wrong) {
    __syncwarp();
    again.load(p, row, run_position, powers.gamma);
    scan_group_again(again.run, state, lane, 0, 32, 32, true);
    again.store(p, row, run_position);
  } else if (p.writes) {
    groups.put(line, position);
  }
}

}  // namespace upsweep
