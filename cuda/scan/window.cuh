// Sums over a window: y[t] = x[t] + gamma x[t-1] + ... over the last K steps, or those since the last reset.
//
// A line is cut into segments of L <= K steps. The window of a step begins in some segment, ends in its own and has whole
// segments in between, so with what each step's segment does up to it (its prefix), what each segment does from a step
// on (its suffix), and what the whole segments do, nothing is ever subtracted, and the work does not grow with K:
//
//   reduce_window_segments   what each segment does to a state
//   scan_window              suffixes into shared memory, then prefixes and results, for a tile of steps
//
// Bytes an element: x is read three times (twice from the cache, for small K), out is written once. Whole segments are
// folded in order by a warp a segment, K / 256 of them: nothing beside the rest up to a K of some million.
//
// In place (out is x) the results wait in the workspace until all windows have been read.
// A result that is not finite is computed again in the loop's own order. K below WindowTuning::kDirect is always done so.
#pragma once

#include "common/line_access.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

// What a run of steps does to a state, of a factor that is known; kept in the workspace for each segment.
template <class S>
struct WindowStep {
  S a, b;
  bool dropped;
};

template <class S>
__device__ inline WindowStep<S> combine(const WindowStep<S>& first, const WindowStep<S>& second) {
  return {product(second.a, first.a), second.dropped ? second.b : advance(second.a, first.b, second.b),
          first.dropped || second.dropped};
}
template <class S>
__device__ inline WindowStep<S> shuffle_up(const WindowStep<S>& v, int by, int width) {
  return {shuffle_up(v.a, by, width), shuffle_up(v.b, by, width),
          __shfl_up_sync(0xffffffffu, static_cast<int>(v.dropped), by, width) != 0};
}
template <class S>
__device__ inline WindowStep<S> shuffle(const WindowStep<S>& v, int lane) {
  return {shuffle(v.a, lane), shuffle(v.b, lane), __shfl_sync(0xffffffffu, static_cast<int>(v.dropped), lane) != 0};
}

// A line's elements; outside of it there are some that add nothing.
template <class S>
struct WindowLine {
  const char *x, *reset;
  char* out;
  S gamma;

  __device__ WindowLine(const Problem& p, int64_t line) {
    const LineIndex index(p, line);
    x = index.in(p.x);
    out = index.in(p.out);
    reset = p.reset.data ? index.in(p.reset) : nullptr;
    gamma = gamma_of<S>(p, index);
  }
  __device__ S at(const Problem& p, int64_t t) const {
    return t >= 0 && t < p.length ? Any<S>::load(x + t * p.x.time_stride, p.x.dtype) : nothing(S());
  }
  __device__ bool drops(const Problem& p, int64_t t) const {
    return reset && t >= 0 && t < p.length && reset[t * p.reset.time_stride];
  }
};

constexpr int kWindowLane = WindowTuning::kLaneSteps;

// The inclusive scan of a group's lanes, from the first lane or (kFromEnd) from the last one.
template <bool kFromEnd, class S>
__device__ inline WindowStep<S> scan_group(WindowStep<S> step, int lane, int width) {
  for (int by = 1; by < width; by *= 2) {
    if (kFromEnd) {
      const int other = threadIdx.x % 32 + by;
      const WindowStep<S> after = shuffle(step, other & 31);
      if (lane + by < width) step = combine(step, after);
    } else {
      const WindowStep<S> before = shuffle_up(step, by, width);
      if (lane >= by) step = combine(before, step);
    }
  }
  return step;
}

// segments, segment: of a line, and their steps; a group of segment / kWindowLane lanes has one.
template <class S>
__global__ void __launch_bounds__(WindowTuning::kThreads)
    reduce_window_segments(const __grid_constant__ Problem p, WindowStep<S>* steps, int64_t segments, int segment) {
  const int width = segment / kWindowLane, lane = threadIdx.x % width;
  const int64_t each = WindowTuning::kThreads / width, all = p.lines * segments;
  for (int64_t begin = blockIdx.x * each; begin < all; begin += gridDim.x * each) {
    const int64_t index = begin + threadIdx.x / width;
    const bool inside = index < all;
    const WindowLine<S> line(p, inside ? index / segments : 0);
    const int64_t t = (inside ? index % segments : segments) * segment + lane * kWindowLane;
    WindowStep<S> step = {power(line.gamma, kWindowLane), nothing(S()), false};
    for (int i = 0; i < kWindowLane; ++i) {
      const bool drop = line.drops(p, t + i);
      step.b = drop ? line.at(p, t + i) : advance(line.gamma, step.b, line.at(p, t + i));
      step.dropped = step.dropped || drop;
    }
    step = scan_group<false>(step, lane, width);
    if (inside && lane == width - 1) steps[index] = step;
  }
}

// From `first` to t in the loop's own order.
template <class S>
__device__ S sum_in_order(const WindowLine<S>& line, const Problem& p, int64_t first, int64_t t) {
  S s = line.at(p, first);
  for (int64_t k = first + 1; k <= t; ++k) {
    s = advance(line.gamma, s, line.at(p, k));
    if (is_nan(s)) break;
  }
  return s;
}

// One result in the loop's own order.
template <class S>
__device__ S window_in_order(const WindowLine<S>& line, const Problem& p, int64_t t, int64_t window) {
  int64_t first = t < window ? 0 : t - window + 1;
  for (int64_t k = t; k >= first; --k) {
    const S v = line.at(p, k);
    if (is_nan(v)) return v;           // it stays one, whatever comes after
    if (line.drops(p, k)) first = k;
  }
  return sum_in_order(line, p, first, t);
}

// Where results go: to out, or aside.
template <class S>
struct WindowResults {
  S* aside;

  __device__ void store(const WindowLine<S>& line, const Problem& p, int64_t row, int64_t t, S y) const {
    if (aside) aside[row * p.length + t] = y;
    else Any<S>::store(line.out + t * p.out.time_stride, p.out.dtype, y);
  }
};

template <class S>
__global__ void __launch_bounds__(WindowTuning::kThreads)
    bring_results(const __grid_constant__ Problem p, WindowResults<S> results) {
  const int64_t n = p.lines * p.length, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
    Any<S>::store(WindowLine<S>(p, i / p.length).out + i % p.length * p.out.time_stride, p.out.dtype, results.aside[i]);
}

template <class S>
__global__ void __launch_bounds__(WindowTuning::kThreads)
    scan_window_in_order(const __grid_constant__ Problem p, WindowResults<S> results, int64_t window) {
  const int64_t n = p.lines * p.length, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const WindowLine<S> line(p, i / p.length);
    const int64_t t = i % p.length;
    results.store(line, p, i / p.length, t, window_in_order(line, p, t, window));
  }
}

template <class S>
__global__ void __launch_bounds__(WindowTuning::kThreads)
    scan_window(const __grid_constant__ Problem p, WindowResults<S> results, const WindowStep<S>* steps, int64_t tiles,
                int64_t segments, int segment, int64_t window) {
  constexpr int kTile = WindowTuning::kThreads * kWindowLane;
  __shared__ S suffixes[kTile + 32 * kWindowLane];
  const int width = segment / kWindowLane, lane = threadIdx.x % width;
  const int64_t whole = window / segment;      // segments that a window has at most, between its ends
  for (int64_t index = blockIdx.x; index < p.lines * tiles; index += gridDim.x) {
    const int64_t row = index / tiles, begin = index % tiles * kTile;
    const WindowLine<S> line(p, row);
    // The windows of this tile begin at begin - window + 1 and later: the suffixes of those segments.
    const int64_t first = begin - window + 1;
    const int64_t from = (first >= 0 ? first / segment : -((-first + segment - 1) / segment)) * segment;
    for (int at = threadIdx.x * kWindowLane; at < kTile + 32 * kWindowLane; at += kTile) {
      S x[kWindowLane];
      uint32_t drops = 0;
      for (int i = 0; i < kWindowLane; ++i) {
        x[i] = line.at(p, from + at + i);
        if (line.drops(p, from + at + i)) drops |= 1u << i;
      }
      S state = nothing(S());
      for (int i = 0; i < kWindowLane; ++i) state = drops >> i & 1 ? x[i] : advance(line.gamma, state, x[i]);
      const WindowStep<S> own = {power(line.gamma, kWindowLane), state, drops != 0};
      // What the lanes after this one do.
      const WindowStep<S> all = scan_group<true>(own, lane, width);
      WindowStep<S> after = shuffle(all, (threadIdx.x % 32 + 1) & 31);
      if (lane == width - 1) after = {one(S()), nothing(S()), false};
      S b = nothing(S()), a = one(S());
      bool dropped = false;
      for (int i = kWindowLane - 1; i >= 0; --i) {
        if (!dropped) b = i == kWindowLane - 1 ? x[i] : advance(a, x[i], b);
        dropped = dropped || drops >> i & 1;
        a = product(a, line.gamma);
        suffixes[at + i] = after.dropped ? after.b : advance(after.a, b, after.b);
      }
    }
    __syncthreads();

    const int64_t t0 = begin + int64_t(threadIdx.x) * kWindowLane, own = t0 / segment;
    // The whole segments before this one, `whole` - 2 of them, and one and two more.
    WindowStep<S> between[3];
    const WindowStep<S> none = {one(S()), nothing(S()), false};
    const auto step_of = [&](int64_t which) {
      return which >= 0 && which < segments ? steps[row * segments + which]
                                            : WindowStep<S>{power(line.gamma, segment), nothing(S()), false};
    };
    between[0] = none;
    // Lanes of one warp fold pieces of its first segment's whole ones; with narrow groups there are none of these.
    if (width == 32) {
      const int64_t n = whole - 2 < own ? whole - 2 : own;      // those before the line do nothing
      const int64_t each = n > 0 ? (n + 31) / 32 : 0;
      int64_t k = own - n + lane * each;
      const int64_t end = k + each < own ? k + each : own;
      WindowStep<S> piece = none;
      for (; k < end; ++k) piece = combine(piece, step_of(k));
      between[0] = shuffle(scan_group<false>(piece, lane, 32), 31);
    }
    between[1] = whole >= 2 ? combine(step_of(own - whole + 1), between[0]) : none;
    between[2] = combine(step_of(own - whole), between[1]);

    S x[kWindowLane];
    uint32_t drops = 0;
    for (int i = 0; i < kWindowLane; ++i) {
      x[i] = line.at(p, t0 + i);
      if (line.drops(p, t0 + i)) drops |= 1u << i;
    }
    S state = nothing(S());
    for (int i = 0; i < kWindowLane; ++i) state = drops >> i & 1 ? x[i] : advance(line.gamma, state, x[i]);
    const WindowStep<S> all = scan_group<false>(WindowStep<S>{power(line.gamma, kWindowLane), state, drops != 0}, lane, width);
    WindowStep<S> prefix = shuffle_up(all, 1, width);
    if (lane == 0) prefix = none;
    for (int i = 0; i < kWindowLane; ++i) {
      const int64_t t = t0 + i, s = t - window + 1;
      prefix = combine(prefix, WindowStep<S>{line.gamma, x[i], (drops >> i & 1) != 0});
      S y = prefix.b;
      if (s < own * segment && !prefix.dropped) {
        const int64_t at = s - from;
        const int more = static_cast<int>(own + 1 - (from / segment + at / segment) - whole);
        const S suffix = suffixes[at];
        const WindowStep<S>& middle = between[more < 0 ? 0 : more > 2 ? 2 : more];
        y = advance(prefix.a, middle.dropped ? middle.b : advance(middle.a, suffix, middle.b), y);
      }
      if (t < p.length) {
        if (!is_finite(y)) y = window_in_order(line, p, t, window);
        results.store(line, p, row, t, y);
      }
    }
    __syncthreads();
  }
}

}  // namespace upsweep
