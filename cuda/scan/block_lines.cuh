// Lines of whole vectors that have nothing of their own but elements, a vector a lane: a line in each block of threads, or
// in each group of 1 to 32 lanes. There are no tiles, ends or copies to shared memory, since short or few lines are
// limited by the fetch of instructions and by the latency of shuffles.
//
// Bytes an element: x, and gates, are read once, out is written once. Other lines: scan/cluster_lines.cuh, scan/lines.cuh.
#pragma once

#include "scan/cluster_lines.cuh"

namespace upsweep {

template <class T, bool kReverse, bool kGated>
struct BlockVector {
  using Line = Contiguous<T, kReverse>;
  using Local = typename Line::Local;
  static constexpr int kPer = Line::kPer;
  union Vector { uint4 word; T part[kPer]; };
  Vector x, gates;

  static __device__ int place(int i) { return kReverse ? kPer - 1 - i : i; }
  // The address of the vector with times t, t + 1, ... There is at most one batch axis, so nothing is divided.
  static __device__ uint4* at(const View& view, int64_t row, int t) {
    return reinterpret_cast<uint4*>(view.data + row * view.strides[0] +
                                    (kReverse ? -(t + kPer - 1) : t) * static_cast<int>(sizeof(T)));
  }
  // Elements outside change no state.
  __device__ void load(const Problem& p, int64_t row, int t, bool inside) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      x.part[i] = from_double<T>(-0.0);
      if (kGated) gates.part[i] = from_double<T>(1.0);
    }
    if (!inside) return;
    x.word = __ldcs(at(p.x, row, t));
    if (kGated) gates.word = __ldcs(at(p.gates, row, t));
    if (kGated && t == 0) gates.part[place(0)] = from_double<T>(1.0);   // is not used
  }
  __device__ Local value(int i) const { return Line::value(x.part[place(i)]); }
  __device__ Local factor(int i, Local gamma) const { return kGated ? Line::value(gates.part[place(i)]) : gamma; }

  // What the elements do; .a of gates only.
  __device__ Step<double> step(Local gamma) const {
    Local all = one(Local()), state = static_cast<Local>(-0.0);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      state = advance(factor(i, gamma), state, value(i));
      if (kGated) all = product(factor(i, gamma), all);
    }
    Step<double> step = {convert<double>(all), convert<double>(state)};
    if constexpr (kGated && std::is_same_v<Local, float>) {
      // A float may not hold their product where the states before and after it are numbers of their dtype.
      if (!(fabsf(all) >= FLT_MIN && fabsf(all) <= FLT_MAX)) {
        step.a = 1.0;
#pragma unroll
        for (int i = 0; i < kPer; ++i) step.a = product(convert<double>(factor(i, gamma)), step.a);
      }
    }
    return step;
  }
  // Puts results in the place of x.
  __device__ void walk(Local gamma, Local state) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      state = advance(factor(i, gamma), state, value(i));
      x.part[place(i)] = from_local<T>(state);
    }
  }
};

// Lines whose states may be wrong that are not finite, by steps over all states: by a warp, of its lanes from the state
// before them, or by a block. Functions of their own, after which nothing is left to do, so that the usual way keeps
// nothing for them in registers.
template <class T, bool kReverse, bool kGated>
__device__ __noinline__ void scan_lanes_again(const Problem& p, int64_t row, int position, double state, int lane, int width,
                                              bool has_line) {
  RunAgain<Contiguous<T, kReverse>, kGated> again;
  again.load(p, row, position, p.gamma_re);
  scan_group_again(again.run, state, lane, threadIdx.x % 32 - lane, width, 32, has_line);
  if (has_line) again.store(p, row, position);
}
template <class T, bool kReverse, bool kGated>
__device__ __noinline__ void scan_block_again(const Problem& p, int64_t row, int position, ExtendedStep* extended) {
  RunAgain<Contiguous<T, kReverse>, kGated> again;
  again.load(p, row, position, p.gamma_re);
  scan_known_tile_again(again.run, extended, false, nothing(0.0));
  again.store(p, row, position);
}

// width: the lanes of a line, a power of two; or more than 32: a line in each block.
template <class T, bool kReverse, bool kGated, int kThreads, int kResident>
__global__ void __launch_bounds__(kThreads, kResident) scan_block_lines(const __grid_constant__ Problem p, int width) {
  using Elements = BlockVector<T, kReverse, kGated>;
  using Local = typename Elements::Local;
  __shared__ Step<double> of_warps[kThreads / 32];
  __shared__ ExtendedStep extended[kThreads / 32];
  const bool is_block = width > 32;
  const int group = min(width, 32), lane = threadIdx.x & (group - 1), log2_width = 31 - __clz(width);
  const int64_t row =
      is_block ? blockIdx.x : int64_t(blockIdx.x) * (blockDim.x >> log2_width) + (threadIdx.x >> log2_width);
  const int position = (is_block ? static_cast<int>(threadIdx.x) : lane) * Elements::kPer;
  const bool inside = row < p.lines && position < p.length;
  Elements own;
  own.load(p, row, position, inside);
  // Of gamma, while the elements are on their way: over the elements of the lanes up to this one, and of a warp.
  const Local gamma = convert<Local>(p.gamma_re);
  double of_warp = 1.0, up_to_lane = 1.0, doubled[5];
  bool keeps = false;
  if (!kGated) {
    of_warp = up_to_lane = power(p.gamma_re, Elements::kPer);
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      doubled[i] = of_warp;
      if (lane >> i & 1) up_to_lane = product(up_to_lane, of_warp);
      of_warp = product(of_warp, of_warp);
    }
    keeps = is_normal(power(of_warp, kThreads / 32));
  }

  Step<double> step = own.step(gamma);   // then of all lanes up to this one
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    const int by = 1 << i;
    if (by >= group) break;
    const double b = shuffle_up(step.b, by, group);
    if constexpr (kGated) {
      const double a = shuffle_up(step.a, by, group);
      if (lane >= by) step = combine(Step<double>{a, b}, step);
    } else {
      if (lane >= by) step.b = advance(doubled[i], b, step.b);
    }
  }
  if (!kGated) step.a = up_to_lane;
  double state = -0.0;
  if (is_block) {
    const int warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    if (lane == 31) of_warps[warp] = step;
    __syncthreads();
    Step<double> warps = lane < n_warps ? of_warps[lane] : Step<double>{1.0, -0.0};
    for (int by = 1; by < n_warps; by *= 2) {
      const Step<double> earlier = {shuffle_up(warps.a, by, 32), shuffle_up(warps.b, by, 32)};
      if (lane >= by) warps = combine(earlier, warps);
    }
    const bool finite = lane + 1 >= n_warps || is_finite(warps.b);
    if (!keeps && !__all_sync(0xffffffffu, finite) && __any_sync(0xffffffffu, !finite && !is_right(warps.a, state, warps.b)))
      return scan_block_again<T, kReverse, kGated>(p, row, position, extended);
    const double before = shuffle(warps.b, warp - 1);
    if (warp) state = before;
  }
  double s = shuffle_up(advance(step.a, state, step.b), 1, group);   // before the lane's elements
  if (lane == 0) s = state;
  if (!keeps && !__all_sync(0xffffffffu, is_finite(s))) {
    const double a = shuffle_up(step.a, 1, group);
    if (__any_sync(0xffffffffu, lane && !is_finite(s) && !is_right(a, state, s)))
      return scan_lanes_again<T, kReverse, kGated>(p, row < p.lines ? row : 0, position, state, lane, group, row < p.lines);
  }
  own.walk(gamma, convert<Local>(s));
  if (inside) __stcs(Elements::at(p.out, row, position), own.x.word);
}

}  // namespace upsweep
