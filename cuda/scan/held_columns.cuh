// Short columns: a block holds eight of them in registers from the first step to the last, so that nothing waits for
// another block, and there is one launch. Each thread takes a run of the steps of one column; the runs are folded in the
// warp and then in shared memory. The code is short, because all of it is fetched from memory while nothing else runs.
//
// Bytes an element: x is read once, out is written once. Only for one factor of all columns with |factor| <= 1, whose
// power of all steps is normal, and for elements whose sums cannot overflow in float64: states that are not finite then
// come out of a fold as they do step by step. Other columns: scan/columns.cuh, scan/split_columns.cuh.
#pragma once

#include <cmath>

#include "common/line_access.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

// The factor to the powers of a step, of one, two and three runs, and of a warp's.
struct HeldPowers {
  double step, one_run, two_runs, three_runs, warp;

  HeldPowers(double gamma, int run) : step(gamma), one_run(std::pow(gamma, run)) {
    two_runs = one_run * one_run;
    three_runs = two_runs * one_run;
    warp = two_runs * two_runs;
  }
};

template <class T, int kRun, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) scan_held_columns(const __grid_constant__ Problem p, HeldPowers powers) {
  using Element = Typed<T>;
  constexpr int kColumns = HeldTuning::kColumns, kRuns = 32 / kColumns;   // of a warp
  static_assert(kRuns == 4);
  __shared__ double totals[kWarps][kColumns];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, run = lane / kColumns;
  const int64_t columns = p.shape[p.n_dims - 1], blocks = (columns + kColumns - 1) / kColumns;
  const int64_t row = blockIdx.x / blocks, column = (blockIdx.x - row * blocks) * kColumns + lane % kColumns;
  const LineIndex index(p, row * columns + (column < columns ? column : 0));
  const int begin = (warp * kRuns + run) * kRun;
  const int left = column < columns ? static_cast<int>(p.length) - begin : 0;
  T x[kRun];
  const char* x_at = index.in(p.x) + begin * p.x.time_stride;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    x[i] = i < left ? *reinterpret_cast<const T*>(x_at) : Element::raw(-0.0);
    x_at += p.x.time_stride;
  }
  double all = Element::value(x[0]);   // what the lane's run and those before it in the warp add
#pragma unroll
  for (int i = 1; i < kRun; ++i) all = advance(powers.step, all, Element::value(x[i]));
  const double one_before = __shfl_up_sync(0xffffffffu, all, kColumns);
  if (run >= 1) all = advance(powers.one_run, one_before, all);
  const double two_before = __shfl_up_sync(0xffffffffu, all, 2 * kColumns);
  if (run >= 2) all = advance(powers.two_runs, two_before, all);
  if (run == kRuns - 1) totals[warp][lane % kColumns] = all;
  const double before = __shfl_up_sync(0xffffffffu, all, kColumns);
  hide_all(x);   // converted once more: the registers are enough for four blocks a processor
  double state = initial_of<double>(p, index);
  const bool is_first = begin == 0 && !p.initial.data;   // without a state before it, whose 0 would change the sign of -0
  __syncthreads();
#pragma unroll 1
  for (int w = 0; w < warp; ++w) state = advance(powers.warp, state, totals[w][lane % kColumns]);
  const double factor = run == 1 ? powers.one_run : run == 2 ? powers.two_runs : powers.three_runs;
  if (run) state = advance(factor, state, before);
  char* out_at = index.in(p.out) + begin * p.out.time_stride;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const bool alone = i == 0 && is_first;
    const double entering = alone ? 0.0 : state;
    if (i < left) state = alone ? Element::value(x[i]) : advance(powers.step, state, Element::value(x[i]));
    if (i < left && p.writes) *reinterpret_cast<T*>(out_at) = from_double<T>(p.exclusive ? entering : state);
    out_at += p.out.time_stride;
  }
  if (left > 0 && left <= kRun && p.final_state.data) store_state(index.in(p.final_state), p.final_state.dtype, state);
}

}  // namespace upsweep
