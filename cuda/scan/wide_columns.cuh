// Scans down so many columns that a thread for each few of them fills the device: each walks from the first step to the
// last, and keeps the next steps of its columns on their way in registers. Nothing is folded, so every state is the one
// that a loop finds, also where states are not finite.
//
// Bytes an element: x and gates are read once, out is written once. Fewer columns: scan/columns.cuh.
#pragma once

#include "common/line_access.cuh"
#include "plan/tuning.hpp"

namespace upsweep {

// kColumns: neighbours of which a thread loads one step at once; kAhead: steps on their way.
template <class T, bool kGated, int kColumns = WideTuning::kColumns, int kAhead = wide_steps(sizeof(T), kGated),
          int kThreads = WideTuning::kThreads>
__global__ void __launch_bounds__(kThreads) scan_wide_columns(const __grid_constant__ Problem p) {
  using Element = Typed<T>;
  struct alignas(kColumns * sizeof(T)) Step {
    T v[kColumns];
  };
  const int64_t line = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kColumns;
  if (line >= p.lines) return;
  const LineIndex index(p, line);
  const char *x_at = index.in(p.x), *gates_at = kGated ? index.in(p.gates) : nullptr;
  char* out_at = index.in(p.out);
  double state[kColumns], gamma[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const LineIndex own(p, line + c);
    state[c] = initial_of<double>(p, own);
    gamma[c] = kGated ? 1 : gamma_of<double>(p, own);
  }
  Step x[kAhead], gates[kGated ? kAhead : 1];
  const auto fetch = [&](int i) {
    x[i] = *reinterpret_cast<const Step*>(x_at);
    x_at += p.x.time_stride;
    if constexpr (kGated) {
      gates[i] = *reinterpret_cast<const Step*>(gates_at);
      gates_at += p.gates.time_stride;
    }
  };
  // Without an initial state the first factor is not used.
  const auto advance_all = [&](int i, bool first) {
    Step result;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const double value = Element::value(x[i].v[c]), entering = first ? 0 : state[c];
      const double factor = kGated ? Element::value(gates[kGated ? i : 0].v[c]) : gamma[c];
      state[c] = first ? value : advance(factor, state[c], value);
      result.v[c] = from_double<T>(p.exclusive ? entering : state[c]);
    }
    return result;
  };
  const auto store = [&](const Step& result) {
    if (p.writes) *reinterpret_cast<Step*>(out_at) = result;
    out_at += p.out.time_stride;
  };
  int64_t n = p.length;
  if (!p.initial.data) {
    fetch(0);
    store(advance_all(0, true));
    --n;
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (i < n) fetch(i);
#pragma unroll 1
  for (; n >= kAhead; n -= kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Step result = advance_all(i, false);
      if (kAhead + i < n) fetch(i);
      store(result);
    }
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (i < n) store(advance_all(i, false));
  if (!p.final_state.data) return;
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    store_state(LineIndex(p, line + c).in(p.final_state), p.final_state.dtype, state[c]);
}

}  // namespace upsweep
