// Lines of whole vectors that have nothing of their own but elements: a line in each block of threads, or in each group of
// 1 to 32 lanes, and two vectors a lane where a warp has more than one for each. Ends and copies to shared memory are left
// out: short lines are limited by the number of instructions and by the latency of shuffles.
//
// scan_block_lines: all of a line at once. scan_walked_lines: longer ones, tile after tile.
//
// Bytes an element: x, and gates, are read once, out is written once. Other lines: scan/cluster_lines.cuh, scan/lines.cuh.
#pragma once

#include "plan/scan.hpp"
#include "scan/cluster_lines.cuh"

namespace upsweep {

// The vectors of a lane.
template <class T, int kVectors>
union LaneVectors {
  uint4 word[kVectors];
  T part[kVectors * 16 / sizeof(T)];

  // Neighbouring lanes exchange one of two vectors: a vector from each half of what the warp has becomes a run of two
  // neighbours, of the first half in even lanes and of the second half in odd ones; and back.
  __device__ void exchange(bool odd) {
    uint4 one = odd ? word[0] : word[1];
    one.x = __shfl_xor_sync(0xffffffffu, one.x, 1);
    one.y = __shfl_xor_sync(0xffffffffu, one.y, 1);
    one.z = __shfl_xor_sync(0xffffffffu, one.z, 1);
    one.w = __shfl_xor_sync(0xffffffffu, one.w, 1);
    (odd ? word[0] : word[1]) = one;
  }
};

// The parameters that every lane reads, in two cache lines: the Problem spreads them over five, each of which a block waits
// for. It is read where states are not finite.
struct BlockLines {
  struct Array {
    char* data;                      // the first element in scan order
    int64_t stride;                  // bytes from line to line
  } x, gates, out;
  double gamma;
  int32_t lines, length;
  int32_t width;                     // lanes of a line, a power of two where it has a warp at most

  explicit BlockLines(const Plan& plan) : gamma(plan.problem.gamma_re), width(plan.width) {
    const Problem& p = plan.problem;
    x = {p.x.data, p.x.strides[0]};
    gates = {p.gates.data, p.gates.strides[0]};
    out = {p.out.data, p.out.strides[0]};
    lines = static_cast<int32_t>(p.lines);
    length = static_cast<int32_t>(p.length);
  }
};

template <class T, bool kReverse, bool kGated, int kVectors>
struct BlockRun {
  using Line = Contiguous<T, kReverse>;
  using Local = typename Line::Local;
  static constexpr int kPer = Line::kPer, kElements = kVectors * kPer;
  LaneVectors<T, kVectors> x, gates;

  static __device__ int place(int i) { return kReverse ? i / kPer * kPer + kPer - 1 - i % kPer : i; }
  // The address of the vector with times t, t + 1, ... There is at most one batch axis, so nothing is divided.
  static __device__ uint4* at(const BlockLines::Array& array, int64_t row, int t) {
    return reinterpret_cast<uint4*>(array.data + row * array.stride +
                                    (kReverse ? -(t + kPer - 1) : t) * static_cast<int>(sizeof(T)));
  }
  // From time t on, and in the second half of what the warp has. Elements outside change no state.
  __device__ void fetch(const BlockLines& all, int64_t row, int t, bool has_line) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      x.part[i] = from_double<T>(-0.0);
      if (kGated) gates.part[i] = from_double<T>(1.0);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int time = t + v * 32 * kPer;
      if (!has_line || time >= all.length) continue;
      x.word[v] = __ldcs(at(all.x, row, time));
      if (kGated) gates.word[v] = __ldcs(at(all.gates, row, time));
    }
    if (kGated && t == 0) gates.part[place(0)] = from_double<T>(1.0);   // is not used
  }
  // What was fetched, as runs.
  __device__ void take() {
    if constexpr (kVectors > 1) {
      x.exchange(threadIdx.x & 1);
      if (kGated) gates.exchange(threadIdx.x & 1);
    }
  }
  __device__ void store(const BlockLines& all, int64_t row, int t, bool has_line) {
    if constexpr (kVectors > 1) x.exchange(threadIdx.x & 1);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int time = t + v * 32 * kPer;
      if (has_line && time < all.length) __stcs(at(all.out, row, time), x.word[v]);
    }
  }
  __device__ Local value(int i) const { return Line::value(x.part[place(i)]); }
  __device__ Local factor(int i, Local gamma) const { return kGated ? Line::value(gates.part[place(i)]) : gamma; }

  // What the elements do; .a of gates only.
  __device__ Step<double> step(Local gamma) const {
    Local all = one(Local()), state = static_cast<Local>(-0.0);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      state = advance(factor(i, gamma), state, value(i));
      if (kGated) all = product(factor(i, gamma), all);
    }
    Step<double> step = {convert<double>(all), convert<double>(state)};
    if constexpr (kGated && std::is_same_v<Local, float>) {
      // A float may not hold their product where the states before and after it are numbers of their dtype.
      if (!(fabsf(all) >= FLT_MIN && fabsf(all) <= FLT_MAX)) {
        step.a = 1.0;
#pragma unroll
        for (int i = 0; i < kElements; ++i) step.a = product(convert<double>(factor(i, gamma)), step.a);
      }
    }
    return step;
  }
  // Puts results in the place of x.
  __device__ void finish(Local gamma, Local state) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      state = advance(factor(i, gamma), state, value(i));
      x.part[place(i)] = from_local<T>(state);
    }
  }
};

// Powers of gamma over runs of `elements`: over 1, 2, 4, ... of them, those up to a lane's, and all of a group.
template <int kRounds>
struct RunPowers {
  double doubled[kRounds], up_to_run, of_group;

  __device__ RunPowers(double gamma, int elements, int number) {
    of_group = up_to_run = power(gamma, elements);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      doubled[i] = of_group;
      if (number >> i & 1) up_to_run = product(up_to_run, of_group);
      of_group = product(of_group, of_group);
    }
  }
};

// What the runs of a group of lanes do, up to each of them. kHalves: even lanes have the runs of the first half, odd lanes
// those of the second half.
template <bool kGated, bool kHalves>
struct RunScan {
  static constexpr int kRounds = kHalves ? 4 : 5, kApart = kHalves ? 2 : 1;
  using Powers = RunPowers<kRounds>;

  static __device__ Step<double> scan(Step<double> step, const Powers& powers, int lane, int group) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int by = kApart << i;
      if (by >= group) break;
      const double b = shuffle_up(step.b, by, group);
      if constexpr (kGated) {
        const double a = shuffle_up(step.a, by, group);
        if (lane >= by) step = combine(Step<double>{a, b}, step);
      } else {
        if (lane >= by) step.b = advance(powers.doubled[i], b, step.b);
      }
    }
    if (!kGated) step.a = powers.up_to_run;
    if constexpr (kHalves) {
      const Step<double> first_half = {kGated ? shuffle(step.a, 30) : powers.of_group, shuffle(step.b, 30)};
      if (lane & 1) step = combine(first_half, step);
    }
    return step;
  }
  // The lane of the warp with the run before a lane's, which is not the first.
  static __device__ int earlier(int lane) {
    return !kHalves ? static_cast<int>(threadIdx.x % 32) - 1 : lane == 1 ? 30 : lane - 2;
  }
};

// Lines whose states may be wrong that are not finite, by steps over all states: by a warp, of its lanes from the state
// before them, or by a block, which returns the state after it. Functions of their own, after which nothing is left to do
// with what was loaded, so that the usual way keeps nothing for them in registers.
template <class T, bool kReverse, bool kGated, int kVectors>
__device__ __noinline__ void scan_lanes_again(const Problem& p, int64_t row, int position, double state, int lane, int width,
                                              bool has_line) {
  RunAgain<InRuns<Contiguous<T, kReverse>, kVectors>, kGated> again;
  again.load(p, row, position, p.gamma_re);
  scan_group_again(again.run, state, lane, threadIdx.x % 32 - lane, width, 32, has_line);
  if (has_line) again.store(p, row, position);
}
template <class T, bool kReverse, bool kGated, int kVectors>
__device__ __noinline__ double scan_block_again(const Problem& p, int64_t row, int position, ExtendedStep* extended,
                                                double state) {
  RunAgain<InRuns<Contiguous<T, kReverse>, kVectors>, kGated> again;
  again.load(p, row, position, p.gamma_re);
  const double after = scan_known_tile_again(again.run, extended, false, state);
  again.store(p, row, position);
  return after;
}

// Whether the states s before a warp's lanes are right, those that are not finite too; from `state` before the first one.
__device__ inline bool are_right(double s, double a, double state, int lane, int earlier) {
  if (__all_sync(0xffffffffu, is_finite(s))) return true;
  a = shuffle(a, earlier);
  return !__any_sync(0xffffffffu, lane && !is_finite(s) && !is_right(a, state, s));
}

// Threads of a block, at most, and blocks of so many a processor, which bounds the registers.
template <bool kGated, int kVectors, bool kBlock>
struct BlockShape {
  static constexpr int kThreads = kBlock ? BlockTuning::kThreads[kVectors - 1] : BlockTuning::kGroupThreads;
  static constexpr int kResident = BlockTuning::kResidentThreads[kGated && kVectors > 1] / kThreads;
};

// kBlock: a line in each block; else in each group of lanes.
template <class T, bool kReverse, bool kGated, int kVectors, bool kBlock, class Shape = BlockShape<kGated, kVectors, kBlock>>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kResident)
    scan_block_lines(const __grid_constant__ BlockLines all, const __grid_constant__ Problem p) {
  using Run = BlockRun<T, kReverse, kGated, kVectors>;
  using Local = typename Run::Local;
  using Scan = RunScan<kGated, (kVectors > 1)>;
  constexpr int kThreads = Shape::kThreads;
  __shared__ Step<double> of_warps[kThreads / 32];
  __shared__ ExtendedStep extended[kThreads / 32];
  const int group = kBlock || kVectors > 1 ? 32 : all.width, lane = threadIdx.x & (group - 1), log2_width = 31 - __clz(group);
  const int64_t row = kBlock ? blockIdx.x : int64_t(blockIdx.x) * (blockDim.x >> log2_width) + (threadIdx.x >> log2_width);
  const int warp = threadIdx.x / 32, first = kBlock ? warp * 32 * Run::kElements : 0, position = first + lane * Run::kPer;
  const bool has_line = row < all.lines;
  Run own;
  own.fetch(all, row, position, has_line);
  own.take();
  // While the elements are on their way.
  const Local gamma = convert<Local>(all.gamma);
  const typename Scan::Powers powers(all.gamma, Run::kElements, lane / Scan::kApart);
  const bool keeps = !kGated && is_normal(power(powers.of_group, Scan::kApart * (kThreads / 32)));
  const Step<double> step = Scan::scan(own.step(gamma), powers, lane, group);
  double state = -0.0;
  if constexpr (kBlock) {
    const int n_warps = blockDim.x / 32;
    if (lane == 31) of_warps[warp] = step;
    __syncthreads();
    Step<double> warps = lane < n_warps ? of_warps[lane] : Step<double>{1.0, -0.0};
    for (int by = 1; by < n_warps; by *= 2) {
      const Step<double> earlier = {shuffle_up(warps.a, by, 32), shuffle_up(warps.b, by, 32)};
      if (lane >= by) warps = combine(earlier, warps);
    }
    const bool finite = lane + 1 >= n_warps || is_finite(warps.b);
    if (!keeps && !__all_sync(0xffffffffu, finite) && __any_sync(0xffffffffu, !finite && !is_right(warps.a, state, warps.b))) {
      scan_block_again<T, kReverse, kGated, kVectors>(p, row, first + lane * Run::kElements, extended, nothing(0.0));
      return;
    }
    const double before = shuffle(warps.b, warp - 1);
    if (warp) state = before;
  }
  const int earlier = Scan::earlier(lane);
  double s = shuffle(advance(step.a, state, step.b), earlier);   // before the lane's run
  if (lane == 0) s = state;
  // Times a gamma that is not finite, the nothing before a line's first element would be NaN.
  if (!keeps && !(is_finite(all.gamma) && are_right(s, step.a, state, lane, earlier)))
    return scan_lanes_again<T, kReverse, kGated, kVectors>(p, has_line ? row : 0, first + lane * Run::kElements, state, lane,
                                                           group, has_line);
  own.finish(gamma, convert<Local>(s));
  own.store(all, row, position, has_line);
}

// Longer lines: a block iterates over the tiles of one, two vectors a lane, while the next tile is on its way.
template <class T, bool kReverse, bool kGated>
__global__ void __launch_bounds__(BlockTuning::kMostWarps[kGated] * 32, BlockTuning::kWalkResident[kGated])
    scan_walked_lines(const __grid_constant__ BlockLines all, const __grid_constant__ Problem p) {
  using Run = BlockRun<T, kReverse, kGated, 2>;
  using Local = typename Run::Local;
  using Scan = RunScan<kGated, true>;
  constexpr int kWarps = BlockTuning::kMostWarps[kGated], kWarpTile = 32 * Run::kElements;
  // Taken in turn: a warp may write the next tile's while another reads this one's.
  __shared__ Step<double> of_warps[2][kWarps];
  __shared__ ExtendedStep extended[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, earlier = Scan::earlier(lane);
  const int n_warps = blockDim.x / 32, tile = n_warps * kWarpTile;
  const int64_t row = blockIdx.x;
  Run next;
  next.fetch(all, row, warp * kWarpTile + lane * Run::kPer, true);
  const Local gamma = convert<Local>(all.gamma);
  const typename Scan::Powers powers(all.gamma, Run::kElements, lane / Scan::kApart);
  const bool keeps = !kGated && is_normal(power(powers.of_group, Scan::kApart));   // over a warp: states pass from warp to warp
  double state = -0.0;
  int turn = 0;
  for (int begin = 0; begin < all.length; begin += tile, turn ^= 1) {
    const int first = begin + warp * kWarpTile, position = first + lane * Run::kPer;
    Run own = next;
    next.fetch(all, row, position + tile, true);
    own.take();
    const Step<double> step = Scan::scan(own.step(gamma), powers, lane, 32);
    if (lane == 31) of_warps[turn][warp] = step;
    __syncthreads();
    double before = state, after = state;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == n_warps) break;
      if (w == warp) before = after;
      after = advance(of_warps[turn][w].a, after, of_warps[turn][w].b);
    }
    // A state that is not finite stays so. Without gates a NaN is right alone: powers vanish, or overflow, within a warp.
    if (!keeps && !is_finite(after)) {
      bool right = kGated || is_nan(state);
      double s = state;
#pragma unroll 1
      for (int w = 0; kGated && w < n_warps; ++w) {
        const double earlier_state = s, a = of_warps[turn][w].a;
        s = advance(a, s, of_warps[turn][w].b);
        right = right && (is_finite(s) || is_right(a, earlier_state, s));
      }
      if (!right) {
        state = scan_block_again<T, kReverse, kGated, 2>(p, row, first + lane * Run::kElements, extended, state);
        next.fetch(all, row, position + tile, true);   // instead of keeping it
        continue;
      }
    }
    state = after;
    double s = shuffle(advance(step.a, before, step.b), earlier);   // before the lane's run
    if (lane == 0) s = before;
    if (kGated && !are_right(s, step.a, before, lane, earlier)) {
      scan_lanes_again<T, kReverse, kGated, 2>(p, row, first + lane * Run::kElements, before, lane, 32, true);
      next.fetch(all, row, position + tile, true);
      continue;
    }
    own.finish(gamma, convert<Local>(s));
    own.store(all, row, position, true);
  }
}

// The kernel of a plan, and its launch.
template <class T, bool kReverse, bool kGated>
struct BlockLaunch {
  void (*kernel)(BlockLines, Problem) = nullptr;   // none for what no plan has
  int threads;
  int64_t blocks;

  explicit BlockLaunch(const Plan& plan) {
    const bool is_block = plan.width > 32;
    threads = is_block ? plan.width : BlockTuning::kGroupThreads;
    blocks = (plan.problem.lines * plan.width + threads - 1) / threads;
    if (plan.tiles > 1) {
      if constexpr (!kGated || sizeof(T) == 4) kernel = scan_walked_lines<T, kReverse, kGated>;
    } else if (plan.each > 1) {
      kernel = is_block ? scan_block_lines<T, kReverse, kGated, 2, true> : scan_block_lines<T, kReverse, kGated, 2, false>;
    } else if (is_block) {
      if constexpr (kGated && sizeof(T) == 8) kernel = scan_block_lines<T, kReverse, kGated, 1, true>;
    } else {
      kernel = scan_block_lines<T, kReverse, kGated, 1, false>;
    }
  }
};

}  // namespace upsweep
