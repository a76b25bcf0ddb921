// Few long lines, in rounds: one block a processor, all of them at once, each with a tile of every round.
//
// A block reduces its tiles kAhead rounds before it scans them, and posts what each does to a state. A warp of its own
// reads what all tiles of a round do, folds them in the order of their index, and so knows the state before the block's
// own tile and the one after the round: no state is handed from block to block, and what travels has the time of
// kAhead tiles to arrive. A tile stays in shared memory until it is scanned, so that memory is read once.
//
// All blocks have to be resident, since they wait for each other: a cooperative launch. The order of every sum depends
// on the number of blocks and on nothing that happens.
#pragma once

#include "scan/lines.cuh"
#include "scan/prefix_warp.cuh"

namespace upsweep {

template <class T, bool kGated>
struct PersistentShape {
  static constexpr int kRun = persistent_elements(sizeof(T), kGated);                         // elements of a lane
  // That scan; one more folds rounds, and one finds lines and combines what the warps reduce.
  static constexpr int kWarps = PersistentTuning::kWarps;
  static constexpr int kStages = sizeof(T) == 2 ? PersistentTuning::kStages - 1 : PersistentTuning::kStages;
  static constexpr int kStage = kStageVectors<Staged<T, false, kRun>, kGated>;          // vectors of a warp
  static constexpr int kShared = kStages * kWarps * kStage * 16;                        // bytes
  static constexpr int kTile = kWarps * 32 * kRun;                                      // positions
};

// The lines of a block's tiles, found once a tile: each warp would need longer for it than for its elements.
template <class Line, int kSlots>
struct PersistentLines {
  using T = typename Line::Raw;
  struct Words { uint4 word[(sizeof(Line) + 15) / 16]; } slots[kSlots];
  int64_t row[kSlots];
  // Of a tile that is all in the middle of its line, aligned alike in all arrays: where its first position is.
  struct Whole {
    const T *x, *gates;
    T* out;
    bool is_whole;
  } whole[kSlots];

  __device__ void put(int round, const Line& line, int64_t row_of_tile, const Problem& p, int positions) {
    Words words;
    memcpy(&words, &line, sizeof line);
    slots[round % kSlots] = words;
    row[round % kSlots] = row_of_tile;
    const int back = Line::kBackward ? line.phase : -line.phase;
    whole[round % kSlots] = {line.x + back, line.gates + back, line.out + back,
                            sizeof(T) >= 4 && !line.starts && line.aligned && p.writes &&
                                is_plain(line, p, 0, positions)};
  }
  __device__ Line get(int round) const {
    const Words words = slots[round % kSlots];
    Line line;
    memcpy(&line, &words, sizeof line);
    return line;
  }
};

// By the warps of a block that scan, or by all.
template <int kThreads>
__device__ inline void named_barrier(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// Without waiting, by warps whose writes others read after their own named_barrier(). A warp must not arrive again before
// the others have been there.
template <int kThreads>
__device__ inline void arrive_at_barrier(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// What a lane of a whole tile does with its elements, and its warp: a Tile without whatever most tiles do not have.
template <class Line, bool kGated>
struct WholeTile {
  using T = typename Line::Raw;
  static constexpr int kPer = Line::kPer, kVectors = Line::kVectors;

  // The lowest of the warp's elements, from where the tile's first position is.
  static __device__ int offset(int warp_position) {
    return Line::kBackward ? -warp_position - (Line::kWarpPositions - 1) : warp_position;
  }
  static __device__ void fetch(const T* from, int to, int lane) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      copy_async_16<true>(&staging[to + Line::place_in_memory(i, lane)], from + (i * 32 + lane) * kPer);
  }
  static __device__ void flush(T* to, int base, int lane) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      __stcs(reinterpret_cast<uint4*>(to + (i * 32 + lane) * kPer), staging[base + Line::place_in_memory(i, lane)]);
    __syncwarp();
  }

  // What the lane's elements do; gamma is not looked at with gates.
  static __device__ Step<double> step_of(int base, double gamma) {
    Step<double> step = {1.0, -0.0};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      T x[kPer], a[kPer];
      Line::read(base, j, x);
      if constexpr (kGated) Line::read(base + Line::kWarpVectors, j, a);
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        const double by = kGated ? double(Line::value(a[e])) : gamma;
        step.b = advance(by, step.b, double(Line::value(x[e])));
        if constexpr (kGated) step.a = product(by, step.a);
      }
    }
    return step;
  }
  // The results, in the place of x; returns the last state.
  static __device__ double walk(int base, double gamma, double state) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      T x[kPer], a[kPer];
      Line::read(base, j, x);
      if constexpr (kGated) Line::read(base + Line::kWarpVectors, j, a);
      typename Line::Local y[kPer];
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        state = advance(kGated ? double(Line::value(a[e])) : gamma, state, double(Line::value(x[e])));
        y[e] = static_cast<typename Line::Local>(state);
      }
      Line::put(base, j, y);
    }
    return state;
  }
};

// How the warp that folds answers the kThreads threads that scan.
template <int kThreads_>
struct PersistentBarriers {
  static constexpr int kThreads = kThreads_;
  // Threads that meet; barriers.
  static constexpr int kAll = kThreads + 64, kAmongScanning = 1, kWithOthers = 2, kWithPrefix = 3,
                       kWithCombining = 4;
  double* state_of_tile;           // of two rounds
  Request* requests;

  __device__ void operator()(int round, bool has_own, double state, Request request, bool is_answer) const {
    if (has_own) state_of_tile[round & 1] = state;
    if (!is_answer && threadIdx.x % 32 == 0) requests[round & 1] = request;
    if (is_answer) named_barrier<kThreads + 32>(kWithPrefix);
    else named_barrier<kAll>(kWithOthers);
  }
};

// The rounds from the first one on in which a state may be wrong that is not finite. A function of its own, so that the
// usual way keeps its registers.
template <class Local, bool kGated, class Answer>
__device__ __noinline__ void fold_rounds_again(PersistentTileStates<kGated> tile_states, uint32_t all_tiles,
                                               uint32_t tiles, double factor, bool keeps, int round, int rounds,
                                               double state, Answer answer) {
  PrefixWarp<kGated> folding(tile_states, all_tiles, tiles, factor, keeps, threadIdx.x % 32);
  folding.continue_from(round, state);
  for (; round < rounds; ++round) folding.template fold<Local, true>(round, round + 1 == rounds, answer);
}

// A tile of such a round, by all threads that scan: publishes what it does, and waits for the state before it.
template <int kThreads, class T>
__device__ __noinline__ void scan_requested_tile(const LaneRun<T>& run, Request request, ExtendedStep* extended,
                                                 Word* published, const double* state) {
  using Barriers = PersistentBarriers<kThreads>;
  const auto synchronise = [] { named_barrier<kThreads>(Barriers::kAmongScanning); };
  if (request == kRequestTables) {
    const TileTables tables = reduce_tables(run, extended, kThreads / 32, synchronise);
    if (threadIdx.x == 0) store_relaxed(published, tables.all);
    named_barrier<kThreads + 32>(Barriers::kWithPrefix);
    run.walk(number_of_class(look_up(tables.before, class_of(*state))));
  } else {
    const ExtendedTile steps = reduce_again(run, extended, kThreads / 32, synchronise);
    if (threadIdx.x == 0) publish_extended(published, steps.all);
    named_barrier<kThreads + 32>(Barriers::kWithPrefix);
    scan_tile_again(run, steps, *state);
  }
}

template <class T, bool kReverse, bool kGated>
__global__ void __launch_bounds__((PersistentShape<T, kGated>::kWarps + 2) * 32, 1)
    scan_persistent(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers gamma_powers, Workspace w,
                    uint32_t tiles, double tile_factor) {
  using Shape = PersistentShape<T, kGated>;
  using Line = Staged<T, kReverse, Shape::kRun>;
  using TileOfWarp = Tile<Line, kGated, false>;
  constexpr int kWarps = Shape::kWarps, kThreads = kWarps * 32, kWarpTile = 32 * Line::kVec;
  constexpr int kStages = Shape::kStages, kAhead = PersistentTuning::kAhead, kPending = kAhead + 1;
  constexpr bool kHalves = Line::kSubruns == 2, kHasWhole = sizeof(T) >= 4;
  using Local = typename Line::Local;
  using Barriers = PersistentBarriers<kThreads>;
  __shared__ PersistentLines<Line, kStages + 1> lines;
  __shared__ BlockPowers<double> powers;
  __shared__ double warps_doubled[5];                // factors of 1, 2, 4, ... warps
  __shared__ Step<double> steps[2][kWarps];          // of the warps, of one tile and of the next
  // Of tiles that are reduced and not scanned yet: what is done before a warp and before a lane of it.
  __shared__ Step<double> before_warp[kPending][kWarps];
  __shared__ double before[kPending][kGated ? 2 : 1][kThreads];
  __shared__ double first[kPending][kHalves && kGated ? 2 : 1][kHalves ? kThreads : 1];
  __shared__ double state_of_tile[2];
  __shared__ Request requests[2];
  __shared__ ExtendedStep extended[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t all_tiles = static_cast<uint32_t>(p.lines) * tiles;
  // Those with a tile of this block.
  const int rounds = static_cast<int>((all_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x);
  const PersistentTileStates<kGated> tile_states(w, all_tiles);
  const auto make_line = [&](int round, uint32_t* row) {
    const uint32_t tile = uint32_t(round) * gridDim.x + blockIdx.x;
    *row = tile / tiles;
    return Line(p, LineIndex(p, *row), int64_t(tile % tiles) * Shape::kTile);
  };
  const auto find_line = [&](int round) {
    uint32_t row;
    const Line line = make_line(round, &row);
    lines.put(round, line, row, p, Shape::kTile);
  };
  if (threadIdx.x < kStages && threadIdx.x < rounds) find_line(threadIdx.x);
  if (!kGated && warp == 1) {
    // Of gamma that all lines have in common.
    const double* const from = &gamma_powers.gamma;
    for (int i = lane; i < kGammaPowers; i += 32) (&powers.gamma)[i] = from[i];
    if (lane == 0) {
      powers.keep = is_normal(gamma_powers.most);
      double factor = gamma_powers.group;
      for (double& doubled : warps_doubled) {
        doubled = factor;
        factor *= factor;
      }
    }
  }
  __syncthreads();

  if (warp == kWarps) {
    const PersistentBarriers<kThreads> answer = {state_of_tile, requests};
    const bool keeps = !kGated && is_normal(gamma_powers.most);
    PrefixWarp<kGated> folding(tile_states, all_tiles, tiles, tile_factor, keeps, lane);
    wait_for_workspace();
    folding.poll(0);
    for (int round = 0; round < rounds; ++round) {
      if (folding.template fold<Local, false>(round, round + 1 == rounds, answer)) continue;
      fold_rounds_again<Local, kGated>(tile_states, all_tiles, tiles, tile_factor, keeps, round, rounds, folding.carry, answer);
      return;
    }
    return;
  }
  if (warp == kWarps + 1) {
    // What the warps' elements of a tile do one after the other; published for all blocks.
    const auto combine_warps = [&](int round) {
      const int slot = round % kPending;
      named_barrier<kThreads + 32>(Barriers::kWithCombining);
      Step<double> step = {kGated ? 1.0 : tile_factor, -0.0};
      if (lane < kWarps) step.b = steps[round & 1][lane].b;
      if (kGated && lane < kWarps) step.a = steps[round & 1][lane].a;
      step = scan_of_lanes<kGated, kWarps>(step, warps_doubled, lane);
      if (lane + 1 < kWarps) before_warp[slot][lane + 1] = step;
      if (lane == kWarps) before_warp[slot][0] = {1.0, -0.0};
      // Where a product leaves the range of float64 on its way, a state of 0 would become NaN: in order, then.
      const bool odd = lane < kWarps && !(is_finite(step.a) && is_finite(step.b));
      if (__any_sync(0xffffffffu, odd) && (kGated || !powers.keep)) step.b = number_of(kPlainNaN);
      if (lane == kWarps - 1) tile_states.store_step(round, step);
      __syncwarp();
    };
    wait_for_workspace();
    for (int round = 0; round < kAhead && round < rounds; ++round) combine_warps(round);
    named_barrier<kThreads + 32>(Barriers::kWithCombining);
    for (int round = 0; round < rounds; ++round) {
      // In the place of the line before this round's, which all have read.
      if (lane == 0 && round + kStages < rounds) find_line(round + kStages);
      __syncwarp();
      if (round + kAhead < rounds) combine_warps(round + kAhead);
      named_barrier<Barriers::kAll>(Barriers::kWithOthers);
    }
    return;
  }

  const int warp_position = warp * kWarpTile, position = warp_position + lane * Line::kVec;
  const auto base_of = [&](int round) { return (round % kStages * kWarps + warp) * Shape::kStage; };
  const auto line_of = [&](int round) {
    Line line = lines.get(round);
    line.base = base_of(round);
    return line;
  };
  const auto initial_before = [&](const Line& line, int64_t row) {
    return line.starts ? initial_of<double>(p, LineIndex(p, row)) : nothing(0.0);
  };
  using Whole = WholeTile<Line, kGated>;
  const int offset = Whole::offset(warp_position);
  const auto fetch = [&](int round) {
    if (round < rounds) {
      const auto& whole = lines.whole[round % (kStages + 1)];
      if (kHasWhole && whole.is_whole) {
        Whole::fetch(whole.x + offset, base_of(round), lane);
        if constexpr (kGated) Whole::fetch(whole.gates + offset, base_of(round) + Line::kWarpVectors, lane);
      } else {
        const Line line = line_of(round);
        line.template fetch<kGated>(warp_position, line.base, lane);
      }
    }
    commit_copies();
  };
  const auto reduce = [&](int round) {
    const int slot = round % kPending;
    Step<double> before_lane;
    if (kHasWhole && lines.whole[round % (kStages + 1)].is_whole) {
      const Step<double> step =
          scan_of_lanes<kGated, 32>(Whole::step_of(base_of(round), powers.gamma), powers.doubled, lane);
      if (lane == 31) steps[round & 1][warp] = {kGated ? step.a : powers.group, step.b};
      before_lane = {kGated ? shuffle_up(step.a, 1, 32) : 1.0, shuffle_up(step.b, 1, 32)};
      if (lane == 0) before_lane = {1.0, -0.0};
    } else {
      const Line line = line_of(round);
      TileOfWarp tile;
      tile.take(line, position, initial_before(line, lines.row[round % (kStages + 1)]), powers,
                is_plain(line, p, warp_position, kWarpTile), lane);
      before_lane = tile.before;
      if constexpr (kHalves) first[slot][0][threadIdx.x] = tile.first.b;
      if constexpr (kHalves && kGated) first[slot][1][threadIdx.x] = tile.first.a;
      if (lane == 0) steps[round & 1][warp] = tile.all;
    }
    before[slot][0][threadIdx.x] = before_lane.b;
    if constexpr (kGated) before[slot][1][threadIdx.x] = before_lane.a;
    __syncwarp();
  };
  // The same once the fold may have put another line in its place.
  const auto again = [&](int round) {
    uint32_t row;
    Line line = make_line(round, &row);
    line.base = base_of(round);
    return line;
  };
  // Of the warps before this one, where it is no data.
  double warps_factor = 1.0;
  if (!kGated)
    for (int i = 0; i < warp; ++i) warps_factor *= powers.group;
  const auto tile_of = [&](int round, const Line& line, int64_t row, bool plain) {
    const double initial = initial_before(line, row);
    const int slot = round % kPending;
    TileOfWarp tile;
    if (plain) tile.template load<true>(line, position, initial);
    else tile.template load<false>(line, position, initial);
    tile.dropped_before = tile.dropped = false;
    tile.before = {kGated ? before[slot][kGated ? 1 : 0][threadIdx.x] : 1.0, before[slot][0][threadIdx.x]};
    if constexpr (kHalves)
      tile.first = {kGated ? first[slot][kGated ? 1 : 0][threadIdx.x] : 1.0, first[slot][0][threadIdx.x]};
    return tile;
  };
  const auto scan = [&](int round) {
    const int slot = round % kPending;
    const bool is_whole = kHasWhole && lines.whole[round % (kStages + 1)].is_whole;
    T* const out = lines.whole[round % (kStages + 1)].out + offset;
    const int64_t row = lines.row[round % (kStages + 1)];
    const Step<double> to_warp = {kGated ? before_warp[slot][warp].a : warps_factor, before_warp[slot][warp].b};
    const Step<double> to_lane = {kGated ? before[slot][kGated ? 1 : 0][threadIdx.x] : powers.lane_power(lane),
                                  before[slot][0][threadIdx.x]};
    Line line;
    if (!is_whole) line = line_of(round);
    named_barrier<Barriers::kAll>(Barriers::kWithOthers);
    const Request request = requests[round & 1];
    const double state_of_warp_run = advance(to_warp.a, state_of_tile[round & 1], to_warp.b);
    if (is_whole && request == kNoRequest) {
      const double begin = advance(to_lane.a, state_of_warp_run, to_lane.b);
      const double end = Whole::walk(base_of(round), powers.gamma, begin);
      // As in Tile::finish(): a lane's run is in order from its begin on.
      const bool finite = is_finite(begin) && is_finite(end);
      if ((kGated || !powers.keep) && __any_sync(0xffffffffu, !finite)) {
        const double a = kGated ? before[slot][kGated ? 1 : 0][threadIdx.x] : powers.lane_power(lane);
        if (__any_sync(0xffffffffu, !finite && !is_right(a, state_of_warp_run, begin))) {
          const Line same = again(round);
          tile_of(round, same, row, true)
              .finish_again(same, p, row, position, powers.gamma, state_of_warp_run, lane, 0, 32, 32, true);
        }
      }
      Whole::flush(out, base_of(round), lane);
      return;
    }
    if (is_whole) line = again(round);
    const bool plain = is_plain(line, p, warp_position, kWarpTile);
    const TileOfWarp tile = tile_of(round, line, row, plain);
    if (request != kNoRequest) {
      typename TileOfWarp::HeldElements none;
      scan_requested_tile<kThreads>(tile.run_of(line, p, row, position, powers.gamma, none), request, extended,
                                    tile_states.extended_of(round), &state_of_tile[round & 1]);
    } else {
      tile.give(line, p, row, position, powers, state_of_warp_run, plain, lane);
    }
    if (p.writes) line.flush(warp_position, plain, lane);
    else __syncwarp();   // before the next copies come into this stage
  };

  // As many groups of copies as stages but one are on their way or there.
  for (int round = 0; round + 1 < kStages; ++round) fetch(round);
  wait_for_workspace();
  wait_for_copies<kStages - 1 - kAhead>();
  __syncwarp();
  for (int round = 0; round < kAhead && round < rounds; ++round) {
    reduce(round);
    named_barrier<kThreads + 32>(Barriers::kWithCombining);
  }
  named_barrier<kThreads + 32>(Barriers::kWithCombining);
  for (int round = 0; round < rounds; ++round) {
    fetch(round + kStages - 1);
    wait_for_copies<kStages - 1 - kAhead>();
    __syncwarp();
    if (round + kAhead < rounds) {
      // The combining warp is at this barrier before it is at that of scan().
      reduce(round + kAhead);
      arrive_at_barrier<kThreads + 32>(Barriers::kWithCombining);
    }
    scan(round);
  }
}

}  // namespace upsweep
