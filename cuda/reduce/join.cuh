// The chunks of a line put together, in their order, which follows from the shape:
//
//   join_in_threads   few chunks, by one thread
//   join_in_warps     chunks of columns: 32 columns in a block, each warp a run of their chunks
//   join_in_blocks    a block for a line, a run of its chunks for each thread
//
// Where anything about it is doubtful (reduce/steps.cuh), one thread goes through the chunks again from the line's
// first, and takes the steps of those that are in order.
#pragma once

#include "reduce/steps.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

template <class F, class S>
struct Joined {
  Effect<F, S> effect;
  bool dropped, doubtful;
  bool has_zero;                   // of single chunks
};

// `first`, then `second`.
template <class F, class S>
__device__ inline Joined<F, S> join(const Joined<F, S>& first, const Joined<F, S>& second) {
  if (second.dropped) return {{zero(F()), second.effect.b}, true, second.doubtful, false};
  const S b = advance(second.effect.a, first.effect.b, second.effect.b);
  return {{product(second.effect.a, first.effect.a), b}, first.dropped,
          first.doubtful || second.doubtful || is_doubtful(second.effect.a, first.effect.b, second.effect.b, b),
          false};
}

// The product of the factors up to the end of a chunk, given the one before it.
template <class F>
__device__ inline F multiply_chunk(const Problem& p, int64_t line, int64_t begin, int64_t end, F before, F own,
                                   bool has_zero) {
  const F all = product(own, before);
  if (!is_doubtful_product(p, all) || is_nan(before)) return all;
  if (keeps_infinity(own, before, has_zero)) return propagated_infinity(own, before);
  return multiply_in_order(p, line, begin, end, before);
}

template <class F, class S>
__device__ inline Joined<F, S> effect_of_chunk(const Reduction& r, int64_t line, int64_t chunk) {
  const int64_t at = line * r.line_step + chunk * r.chunk_step;
  const S b = reinterpret_cast<const S*>(r.values)[at];
  const uint8_t marks = r.marks[at];
  return {{reinterpret_cast<const F*>(r.factors)[at], b}, bool(marks & kDrops), !is_finite(b), bool(marks & kHasZero)};
}

// From the line's first chunk, each from the state that the one before really left.
template <class F, class S>
__device__ inline Joined<F, S> join_in_order(const Reduction& r, int64_t line) {
  const Problem& p = r.scan;
  const LineIndex index(p, line);
  const int phase = phase_of(r, index.in(p.x));
  const auto begin_of = [&](int64_t chunk) {
    const int64_t t = chunk * r.chunk * r.per - phase;
    return t < 0 ? 0 : t < p.length ? t : p.length;
  };
  Joined<F, S> all = effect_of_chunk<F, S>(r, line, 0);
  if (all.doubtful) all.effect.b = take_in_order<F, S>(p, line, 0, begin_of(1), S());
  all.effect.a = multiply_chunk(p, line, 0, begin_of(1), one(F()), all.effect.a, all.has_zero);
#pragma unroll 1
  for (int64_t chunk = 1; chunk < r.chunks; ++chunk) {
    const Joined<F, S> own = effect_of_chunk<F, S>(r, line, chunk);
    const S before = all.effect.b;
    const int64_t begin = begin_of(chunk), end = begin_of(chunk + 1);
    const F factor = own.dropped ? zero(F())
                                 : multiply_chunk(p, line, begin, end, all.effect.a, own.effect.a, own.has_zero);
    all = join(all, own);
    if (is_nan(before) && !own.dropped) all.effect.b = before;   // a NaN stays one
    else if (!own.dropped && !own.doubtful && keeps_infinity(own.effect.a, before, own.has_zero))
      all.effect.b = propagated_infinity(own.effect.a, before);
    else if (all.doubtful)
      all.effect.b = take_in_order<F, S>(p, line, begin, end, before);
    all.effect.a = factor;
    all.doubtful = false;
  }
  return all;
}

// One thread for each line; also for lines without a step.
template <class F, class S>
__global__ void __launch_bounds__(ReduceTuning::kThreads) join_in_threads(const __grid_constant__ Reduction r) {
  const Problem& p = r.scan;
  for (int64_t line = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; line < p.lines;
       line += int64_t(gridDim.x) * blockDim.x) {
    if (r.chunks) {
      const Joined<F, S> all = join_in_order<F, S>(r, line);
      write_results(r, line, all.effect, all.dropped);
    } else {
      const S state = p.initial.data ? initial_of<S>(p, LineIndex(p, line)) : zero(S());
      write_results(r, line, Effect<F, S>{one(F()), state}, false);
    }
  }
}

template <class F, class S>
__device__ inline Joined<F, S> shuffle_down(const Joined<F, S>& v, int by) {
  const int flags = __shfl_down_sync(0xffffffffu, v.dropped | v.doubtful << 1, by);
  return {{shuffle_down(v.effect.a, by), shuffle_down(v.effect.b, by)}, bool(flags & 1), bool(flags & 2), false};
}

// In lane 0, what the first n lanes have.
template <class F, class S>
__device__ inline Joined<F, S> join_lanes(Joined<F, S> own, int lane, int n) {
#pragma unroll 1
  for (int by = 1; by < 32; by *= 2) {
    const Joined<F, S> next = shuffle_down(own, by);
    if (lane + by < n) own = join(own, next);
  }
  return own;
}

// The chunks of a line from `begin` up to `end`, of which there is one at least.
template <class F, class S>
__device__ inline Joined<F, S> join_run(const Reduction& r, int64_t line, int64_t begin, int64_t end) {
  Joined<F, S> all = effect_of_chunk<F, S>(r, line, begin);
#pragma unroll 4
  for (int64_t chunk = begin + 1; chunk < end; ++chunk) all = join(all, effect_of_chunk<F, S>(r, line, chunk));
  return all;
}

// The results of a line from all of its chunks, unless these have to be gone through again.
template <class F, class S>
__device__ inline void finish_line(const Reduction& r, int64_t line, Joined<F, S> all) {
  const bool product = !all.dropped && is_doubtful_product(r.scan, all.effect.a);
  if (all.doubtful || product) all = join_in_order<F, S>(r, line);
  write_results(r, line, all.effect, all.dropped);
}

// 32 lines a block, a warp for each run of chunks.
template <class F, class S>
__global__ void __launch_bounds__(ReduceTuning::kJoiningWarps * 32) join_in_warps(const __grid_constant__ Reduction r) {
  __shared__ Joined<F, S> of_runs[ReduceTuning::kJoiningWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int64_t each = (r.chunks + warps - 1) / warps;
  const int runs = static_cast<int>((r.chunks + each - 1) / each);
  for (int64_t first = int64_t(blockIdx.x) * 32; first < r.scan.lines; first += int64_t(gridDim.x) * 32) {
    const int64_t line = first + lane;
    const bool inside = line < r.scan.lines;
    if (inside && warp < runs)
      of_runs[warp][lane] = join_run<F, S>(r, line, warp * each, min((warp + 1) * each, r.chunks));
    __syncthreads();
    if (inside && warp == 0) {
      Joined<F, S> all = of_runs[0][lane];
#pragma unroll 1
      for (int run = 1; run < runs; ++run) all = join(all, of_runs[run][lane]);
      finish_line(r, line, all);
    }
    __syncthreads();
  }
}

// A block for each line, of whole warps.
template <class F, class S>
__global__ void __launch_bounds__(ReduceTuning::kMostJoiners) join_in_blocks(const __grid_constant__ Reduction r) {
  __shared__ Joined<F, S> of_warps[ReduceTuning::kMostJoiners / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t each = (r.chunks + blockDim.x - 1) / blockDim.x;
  const int n_threads = static_cast<int>((r.chunks + each - 1) / each);   // that have chunks
  for (int64_t line = blockIdx.x; line < r.scan.lines; line += gridDim.x) {
    Joined<F, S> own = {};
    const int64_t begin = threadIdx.x * each, end = min(begin + each, r.chunks);
    if (begin < end) own = join_run<F, S>(r, line, begin, end);
    own = join_lanes(own, lane, min(n_threads - warp * 32, 32));
    if (lane == 0) of_warps[warp] = own;
    __syncthreads();
    if (warp == 0) {
      const int n_warps = (n_threads + 31) / 32;
      own = join_lanes(lane < n_warps ? of_warps[lane] : Joined<F, S>(), lane, n_warps);
      if (lane == 0) finish_line(r, line, own);
    }
    __syncthreads();
  }
}

}  // namespace upsweep
