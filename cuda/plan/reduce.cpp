#include "plan/reduce.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "plan/tuning.hpp"

namespace upsweep {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_complex(int32_t dtype) { return dtype == UPSWEEP_COMPLEX64 || dtype == UPSWEEP_COMPLEX128; }

// Where the effects of chunks lie in the workspace: factors, values, marks.
void place_effects(ReducePlan& plan, int32_t accumulator, int64_t chunk_step, int64_t line_step) {
  Reduction& r = plan.reduction;
  r.chunk_step = chunk_step;
  r.line_step = line_step;
  if (r.chunks <= 1) return;
  const int64_t n = r.scan.lines * r.chunks;
  plan.values_at = n * (plan.complex_factors ? 16 : 8);
  plan.marks_at = plan.values_at + n * (accumulator == UPSWEEP_COMPLEX ? 16 : 8);
  plan.workspace_bytes = plan.marks_at + n;
}

void plan_columns(ReducePlan& plan) {
  Reduction& r = plan.reduction;
  const Problem& p = r.scan;
  const int64_t item = dtype_size(p.x.dtype), per = 16 / item;
  plan.regime = kColumns;
  plan.vectors = plan.typed && p.shape[p.n_dims - 1] % per == 0 && has_aligned_rows(p.x, p, item) &&
                 plan.outer.keeps_vectors(kX) &&
                 (!plan.gated || (has_aligned_rows(p.gates, p, item) && plan.outer.keeps_vectors(kGates)));
  const int64_t threads = p.lines / (plan.vectors ? per : 1);
  const int64_t target = std::clamp(ReduceTuning::kColumnThreads / threads, int64_t(1), ReduceTuning::kColumnChunks);
  r.chunk = std::max(divide_up(p.length, target), ReduceTuning::kColumnSteps);
  r.chunks = divide_up(p.length, r.chunk);
  r.chunk = divide_up(p.length, r.chunks);
  r.per = 1;
  plan.tile = r.chunk;
}

void plan_lines(ReducePlan& plan) {
  Reduction& r = plan.reduction;
  const Problem& p = r.scan;
  const int64_t item = dtype_size(p.x.dtype);
  r.per = static_cast<int32_t>(plan.typed ? 16 / item : kStridedElements / 2);
  r.item = static_cast<int32_t>(plan.typed ? item : 0);
  // A line may begin inside of a vector.
  bool whole = !plan.typed || (reinterpret_cast<uintptr_t>(p.x.data) + (p.x.time_stride < 0 ? item : 0)) % 16 == 0;
  for (int dim = 0; dim < p.n_dims; ++dim) whole = whole && (!plan.typed || p.x.strides[dim] % 16 == 0);
  whole = whole && (!plan.typed || plan.outer.keeps_vectors(kX));
  const int64_t vectors = divide_up(p.length + (whole ? 0 : r.per - 1), r.per);
  if (vectors <= 32) {
    plan.regime = kShortLines;
    r.lanes = 1;
    while (r.lanes < vectors) r.lanes *= 2;
    r.chunks = 1;
    r.chunk = 32;
  } else {
    plan.regime = kLines;
    const int64_t turn = 32 * (plan.typed ? ReduceTuning::kVectors[plan.gated] : ReduceTuning::kAnyVectors);
    const int64_t turns = divide_up(vectors, turn);
    const int64_t target = p.lines >= ReduceTuning::kLines ? ReduceTuning::kTimes
                                                           : divide_up(p.lines * turns, ReduceTuning::kChunks);
    r.chunks = divide_up(turns, std::min(target, ReduceTuning::kTimes));
    r.chunk = divide_up(turns, r.chunks) * turn;
    r.chunks = divide_up(vectors, r.chunk);
  }
  plan.tile = r.chunk * r.per;
}

}  // namespace

void place_workspace(ReducePlan& plan, void* workspace) {
  if (!plan.workspace_bytes) return;
  Reduction& r = plan.reduction;
  r.factors = static_cast<char*>(workspace);
  r.values = r.factors + plan.values_at;
  r.marks = reinterpret_cast<uint8_t*>(r.factors + plan.marks_at);
}

const char* make_reduce_plan(const upsweep_reduction& reduction, ReducePlan* result) {
  const upsweep_scan& scan = reduction.scan;
  if (const char* wrong = check_scan(scan)) return wrong;
  if (scan.out.data || scan.exclusive || scan.window) return "out, exclusive and window are of scans alone";
  if (scan.gates.data && scan.accumulator == UPSWEEP_INTEGER) return "integers are only summed";
  ReducePlan& plan = *result;
  std::memset(&plan, 0, sizeof plan);
  int64_t lines = 1;
  for (int dim = 0; dim < scan.n_batch; ++dim) lines *= scan.batch_shape[dim];
  if (lines == 0) return nullptr;
  if (scan.length && !scan.x.data) return "x has to be given";
  const upsweep_array& like = scan.x.time_stride || !scan.gates.data ? scan.x : scan.gates;
  const upsweep_array* const arrays[] = {&scan.x,       &scan.gates,       &scan.reset,           &like,            &scan.gamma,
                                         &scan.initial, &scan.final_state, &reduction.multiplier, &reduction.dropped};
  for (const upsweep_array* array : arrays)
    if (array->data && !dtype_size(array->dtype)) return "dtype is unknown";
  if (reduction.dropped.data && reduction.dropped.dtype != UPSWEEP_BOOL) return "dropped has to be bool";
  plan.complex_factors = scan.accumulator == UPSWEEP_COMPLEX &&
                         (scan.gates.data   ? is_complex(scan.gates.dtype)
                          : scan.gamma.data ? is_complex(scan.gamma.dtype)
                                            : scan.gamma_im != 0);
  const int32_t factor = reduction.multiplier.dtype;
  if (reduction.multiplier.data && scan.accumulator != UPSWEEP_INTEGER && factor != UPSWEEP_COMPLEX128 &&
      (plan.complex_factors || factor != UPSWEEP_FLOAT64))
    return "multiplier has to be float64, or complex128 where factors are complex";
  Reduction& r = plan.reduction;
  Problem& p = r.scan;
  View* const views[] = {&p.x,       &p.gates,       &p.reset,      &p.out,    &p.gamma,
                         &p.initial, &p.final_state, &r.multiplier, &r.dropped};
  static_assert(sizeof views == kMostArrays * sizeof(View*) && sizeof arrays == sizeof views, "an array for each view");
  lay_out(scan, arrays, views, kMostArrays, &p, &plan.outer);
  plan.gated = p.gates.data != nullptr;
  plan.accumulator = scan.accumulator;
  const int64_t item = dtype_size(p.x.dtype);
  const bool same = scan.accumulator == UPSWEEP_REAL && is_typed(p.x.dtype) && (!plan.gated || p.gates.dtype == p.x.dtype);
  const bool contiguous = std::llabs(p.x.time_stride) == item && (!plan.gated || p.gates.time_stride == p.x.time_stride);
  if (p.length == 0) {
    plan.regime = kLines;
    plan.tile = r.chunk = r.per = 1;
  } else if (runs_down(p)) {
    plan.typed = same;
    plan_columns(plan);
    place_effects(plan, scan.accumulator, p.lines, 1);
  } else {
    plan.typed = same && contiguous;
    plan_lines(plan);
    place_effects(plan, scan.accumulator, 1, r.chunks);
  }
  return nullptr;
}

}  // namespace upsweep
