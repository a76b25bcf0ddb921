// Few long lines, in waves: one block a processor, all of them at once, each with a tile of every wave.
//
// A block reduces its tiles kAhead waves before it scans them, and posts what each does to a state. A warp of its own
// reads what all tiles of a wave do, folds them in the order of their index, and so knows the state before the block's
// own tile and the one after the wave: no state is handed from block to block, and what travels has the time of
// kAhead tiles to arrive. A tile stays in shared memory until it is scanned, so that memory is read once.
//
// All blocks have to be resident, since they wait for each other: a cooperative launch. Letters are those of
// look_back.cuh. The order of every sum depends on the number of blocks and on nothing that happens.
#pragma once

#include "scan_lines.cuh"

namespace upsweep {

template <class T, bool kGated>
struct WaveShape {
  static constexpr int kRun = wave_elements(sizeof(T), kGated);                         // elements of a lane
  static constexpr int kWarps = WaveTuning::kWarps;   // that scan; one more folds, and one finds lines
  static constexpr int kStages = sizeof(T) == 2 ? WaveTuning::kStages - 1 : WaveTuning::kStages;
  static constexpr int kStage = kStageVectors<Staged<T, false, kRun>, kGated>;          // vectors of a warp
  static constexpr int kShared = kStages * kWarps * kStage * 16;                        // bytes
  static constexpr int kTile = kWarps * 32 * kRun;                                      // positions
};

// The lines of a block's tiles, found once a tile: each warp would need longer for it than for its elements.
template <class Line, int kSlots>
struct WaveLines {
  using T = typename Line::Raw;
  struct Words { uint4 word[(sizeof(Line) + 15) / 16]; } slots[kSlots];
  int64_t row[kSlots];
  // Of a tile that is all in the middle of its line, aligned alike in all arrays: where its first position is.
  struct Whole {
    const T *x, *gates;
    T* out;
    bool is_whole;
  } whole[kSlots];

  __device__ void put(int wave, const Line& line, int64_t its_row, const Problem& p, int positions) {
    Words words;
    memcpy(&words, &line, sizeof line);
    slots[wave % kSlots] = words;
    row[wave % kSlots] = its_row;
    const int back = Line::kBackward ? line.phase : -line.phase;
    whole[wave % kSlots] = {line.x + back, line.gates + back, line.out + back,
                            sizeof(T) >= 4 && !line.starts && line.aligned && p.writes && is_plain(line, p, 0, positions)};
  }
  __device__ Line get(int wave) const {
    const Words words = slots[wave % kSlots];
    Line line;
    memcpy(&line, &words, sizeof line);
    return line;
  }
};

// By the warps of a block that scan, or by all.
template <int kThreads>
__device__ inline void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
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

  // What the lanes' steps do one after the other, up to each one.
  __device__ Step<double> scan(Step<double> step, uint32_t droppers) const {
    if constexpr (kGated) return scan_of_steps(step, droppers, lane);
    const uint32_t heads = droppers & (0xffffffffu >> (31 - lane));
    const int head = heads ? 31 - __clz(heads) : 0;
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      const double b = shuffle_up(step.b, 1 << i, 32);
      if (lane - (1 << i) >= head) step.b = advance(doubled[i], b, step.b);
    }
    return step;
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
    const Step<double> all = scan(step, droppers);
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

  // Where a fold may have made a NaN of an infinity: tile after tile. A tile after which a state is not finite takes its
  // steps one after the other, and tells what it leaves.
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
      copy_async_16(&staging[to + Line::place_in_memory(i, lane)], from + (i * 32 + lane) * kPer);
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

// What lanes' steps do one after the other, up to each one; `doubled`: factors of 1, 2, 4, ... lanes, where they are no data.
template <bool kGated, int kLanes>
__device__ inline Step<double> scan_of_lanes(Step<double> step, const double* doubled, int lane) {
#pragma unroll
  for (int i = 0; 1 << i < kLanes; ++i) {
    const int by = 1 << i;
    const double b = shuffle_up(step.b, by, 32);
    if constexpr (kGated) {
      const double a = shuffle_up(step.a, by, 32);
      if (lane >= by) step = combine(Step<double>{a, b}, step);
    } else {
      if (lane >= by) step.b = advance(doubled[i], b, step.b);
    }
  }
  return step;
}

template <class T, bool kReverse, bool kGated>
__global__ void __launch_bounds__((WaveShape<T, kGated>::kWarps + 2) * 32, 1)
    scan_wave_lines(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers given, Workspace w,
                    uint32_t tiles, double tile_factor) {
  using Shape = WaveShape<T, kGated>;
  using Line = Staged<T, kReverse, Shape::kRun>;
  using TileOfWarp = Tile<Line, kGated, false>;
  constexpr int kWarps = Shape::kWarps, kThreads = kWarps * 32, kWarpTile = 32 * Line::kVec;
  constexpr int kStages = Shape::kStages, kAhead = WaveTuning::kAhead, kKept = kAhead + 1;
  constexpr bool kHalves = Line::kSubruns == 2, kHasWhole = sizeof(T) >= 4;
  constexpr int kAll = kThreads + 64, kAmongScanning = 1, kWithOthers = 2;   // threads that meet; barriers
  __shared__ WaveLines<Line, kStages + 1> lines;
  __shared__ BlockPowers<double> powers;
  __shared__ double warps_doubled[5];                // factors of 1, 2, 4, ... warps
  __shared__ Step<double> steps[2][kWarps];          // of the warps, of one tile and of the next
  // Of tiles that are reduced and not scanned yet: what is done before a warp and before a lane of it.
  __shared__ Step<double> before_warp[kKept][kWarps];
  __shared__ double before[kKept][kGated ? 2 : 1][kThreads];
  __shared__ double first[kKept][kHalves && kGated ? 2 : 1][kHalves ? kThreads : 1];
  __shared__ double told[2];
  __shared__ bool told_in_order[2];
  __shared__ double handed_on;                       // from warp to warp when steps are taken in order
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t all_tiles = static_cast<uint32_t>(p.lines) * tiles;
  const int waves = static_cast<int>((all_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x);   // with a tile of this block
  const WaveMail<kGated> mail(w, all_tiles);
  const auto find_line = [&](int wave) {
    const uint32_t tile = uint32_t(wave) * gridDim.x + blockIdx.x, row = tile / tiles;
    lines.put(wave, Line(p, LineIndex(p, row), int64_t(tile % tiles) * Shape::kTile), row, p, Shape::kTile);
  };
  if (threadIdx.x < kStages && threadIdx.x < waves) find_line(threadIdx.x);
  if (!kGated && warp == 1) {
    // Of gamma that all lines have in common.
    const double* const from = &given.gamma;
    for (int i = lane; i < kGammaPowers; i += 32) (&powers.gamma)[i] = from[i];
    if (lane == 0) {
      powers.keep = is_normal(given.most);
      double factor = given.group;
      for (double& doubled : warps_doubled) {
        doubled = factor;
        factor *= factor;
      }
    }
  }
  __syncthreads();

  if (warp == kWarps) {
    WaveFold<kGated> folding(mail, all_tiles, tiles, tile_factor, !kGated && is_normal(given.most), lane);
    folding.ask(0);
    for (int wave = 0; wave < waves; ++wave)
      folding.fold(wave, wave + 1 == waves, [&](double state, bool in_order) {
        if (folding.has_own()) {
          told[wave & 1] = state;
          told_in_order[wave & 1] = in_order;
        }
        meet<kAll>(kWithOthers);
      });
    return;
  }
  if (warp == kWarps + 1) {
    for (int wave = 0; wave < waves; ++wave) {
      // In the place of the line before this wave's, which all have read.
      if (lane == 0 && wave + kStages < waves) find_line(wave + kStages);
      __syncwarp();
      meet<kAll>(kWithOthers);
    }
    return;
  }

  const int warp_position = warp * kWarpTile, position = warp_position + lane * Line::kVec;
  const auto base_of = [&](int wave) { return (wave % kStages * kWarps + warp) * Shape::kStage; };
  const auto line_of = [&](int wave) {
    Line line = lines.get(wave);
    line.base = base_of(wave);
    return line;
  };
  const auto initial_before = [&](const Line& line, int64_t row) {
    return line.starts ? initial_of<double>(p, LineIndex(p, row)) : nothing(0.0);
  };
  using Whole = WholeTile<Line, kGated>;
  const int offset = Whole::offset(warp_position);
  const auto fetch = [&](int wave) {
    if (wave < waves) {
      const auto& whole = lines.whole[wave % (kStages + 1)];
      if (kHasWhole && whole.is_whole) {
        Whole::fetch(whole.x + offset, base_of(wave), lane);
        if constexpr (kGated) Whole::fetch(whole.gates + offset, base_of(wave) + Line::kWarpVectors, lane);
      } else {
        const Line line = line_of(wave);
        line.template fetch<kGated>(warp_position, line.base, lane);
      }
    }
    commit_copies();
  };
  const auto reduce = [&](int wave) {
    const int slot = wave % kKept;
    Step<double> before_lane;
    if (kHasWhole && lines.whole[wave % (kStages + 1)].is_whole) {
      const Step<double> step =
          scan_of_lanes<kGated, 32>(Whole::step_of(base_of(wave), powers.gamma), powers.doubled, lane);
      if (lane == 31) steps[wave & 1][warp] = {kGated ? step.a : powers.group, step.b};
      before_lane = {kGated ? shuffle_up(step.a, 1, 32) : 1.0, shuffle_up(step.b, 1, 32)};
      if (lane == 0) before_lane = {1.0, -0.0};
    } else {
      const Line line = line_of(wave);
      TileOfWarp tile;
      tile.take(line, position, initial_before(line, lines.row[wave % (kStages + 1)]), powers,
                is_plain(line, p, warp_position, kWarpTile), lane);
      before_lane = tile.before;
      if constexpr (kHalves) first[slot][0][threadIdx.x] = tile.first.b;
      if constexpr (kHalves && kGated) first[slot][1][threadIdx.x] = tile.first.a;
      if (lane == 0) steps[wave & 1][warp] = tile.all;
    }
    before[slot][0][threadIdx.x] = before_lane.b;
    if constexpr (kGated) before[slot][1][threadIdx.x] = before_lane.a;
    meet<kThreads>(kAmongScanning);
    Step<double> step = {kGated ? 1.0 : tile_factor, -0.0};
    if (lane < kWarps) step.b = steps[wave & 1][lane].b;
    if (kGated && lane < kWarps) step.a = steps[wave & 1][lane].a;
    step = scan_of_lanes<kGated, kWarps>(step, warps_doubled, lane);
    if (lane + 1 == warp) before_warp[slot][warp] = step;
    if (warp == 0) {
      // Where a product leaves the range of float64 on its way, a state of 0 would become NaN: in order, then.
      const bool odd = lane < kWarps && !(is_finite(step.a) && is_finite(step.b));
      if (__any_sync(0xffffffffu, odd) && (kGated || !powers.keep)) step.b = number_of(kPlainNaN);
      if (lane == kWarps - 1) mail.post_step(wave, step);
    }
    if (warp == 0 && lane == 0) before_warp[slot][0] = {1.0, -0.0};
    __syncwarp();
  };
  // The same once the fold may have put another line in its place.
  const auto again = [&](int wave) {
    const uint32_t tile = uint32_t(wave) * gridDim.x + blockIdx.x, row = tile / tiles;
    Line line(p, LineIndex(p, row), int64_t(tile % tiles) * Shape::kTile);
    line.base = base_of(wave);
    return line;
  };
  // Of the warps before this one, where it is no data.
  double warps_factor = 1.0;
  if (!kGated)
    for (int i = 0; i < warp; ++i) warps_factor *= powers.group;
  const auto scan_in_order = [&](int wave, const TileOfWarp& tile, const Line& line, int64_t row, double state) {
    for (int turn = 0; turn < kWarps; ++turn) {
      if (turn == warp) {
        const double after = tile.finish_in_order(line, p, row, position, powers.gamma, state, lane, 0, 32, true);
        if (lane == 0) handed_on = after;
      }
      meet<kThreads>(kAmongScanning);
      state = handed_on;
      meet<kThreads>(kAmongScanning);
    }
    if (threadIdx.x == 0) post(mail.states + (int64_t(wave) * gridDim.x + blockIdx.x), word_of(state));
  };
  const auto tile_of = [&](int wave, const Line& line, int64_t row, bool plain) {
    const double initial = initial_before(line, row);
    const int slot = wave % kKept;
    TileOfWarp tile;
    if (plain) tile.template load<true>(line, position, initial);
    else tile.template load<false>(line, position, initial);
    tile.dropped_before = tile.dropped = false;
    tile.before = {kGated ? before[slot][kGated ? 1 : 0][threadIdx.x] : 1.0, before[slot][0][threadIdx.x]};
    if constexpr (kHalves)
      tile.first = {kGated ? first[slot][kGated ? 1 : 0][threadIdx.x] : 1.0, first[slot][0][threadIdx.x]};
    return tile;
  };
  const auto scan = [&](int wave) {
    const int slot = wave % kKept;
    const bool is_whole = kHasWhole && lines.whole[wave % (kStages + 1)].is_whole;
    T* const out = lines.whole[wave % (kStages + 1)].out + offset;
    const int64_t row = lines.row[wave % (kStages + 1)];
    const Step<double> to_warp = {kGated ? before_warp[slot][warp].a : warps_factor, before_warp[slot][warp].b};
    const Step<double> to_lane = {kGated ? before[slot][kGated ? 1 : 0][threadIdx.x] : powers.lane_power(lane),
                                  before[slot][0][threadIdx.x]};
    Line line;
    if (!is_whole) line = line_of(wave);
    meet<kAll>(kWithOthers);
    const double state = told[wave & 1];
    const bool in_order = told_in_order[wave & 1];
    const double mine = advance(to_warp.a, state, to_warp.b);
    if (is_whole && !in_order) {
      const double begin = advance(to_lane.a, mine, to_lane.b);
      const double end = Whole::walk(base_of(wave), powers.gamma, begin);
      // As in Tile::finish().
      if ((kGated || !powers.keep) &&
          __ballot_sync(0xffffffffu, !(is_finite(begin) && is_finite(end)) && !is_nan(mine))) {
        const Line same = again(wave);
        tile_of(wave, same, row, true).finish_in_order(same, p, row, position, powers.gamma, mine, lane, 0, 32, true);
      }
      Whole::flush(out, base_of(wave), lane);
      return;
    }
    if (is_whole) line = again(wave);
    const bool plain = is_plain(line, p, warp_position, kWarpTile);
    const TileOfWarp tile = tile_of(wave, line, row, plain);
    if (in_order) scan_in_order(wave, tile, line, row, state);
    else tile.give(line, p, row, position, powers, mine, plain, lane);
    if (p.writes) line.flush(warp_position, plain, lane);
    else __syncwarp();   // before the next copies come into this stage
  };

  // As many groups of copies as stages but one are on their way or there.
  for (int wave = 0; wave + 1 < kStages; ++wave) fetch(wave);
  wait_for_copies<kStages - 1 - kAhead>();
  __syncwarp();
  for (int wave = 0; wave < kAhead && wave < waves; ++wave) reduce(wave);
  for (int wave = 0; wave < waves; ++wave) {
    fetch(wave + kStages - 1);
    wait_for_copies<kStages - 1 - kAhead>();
    __syncwarp();
    if (wave + kAhead < waves) reduce(wave + kAhead);
    scan(wave);
  }
}

}  // namespace upsweep
