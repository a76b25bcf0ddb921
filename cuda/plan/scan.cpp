#include "plan/scan.hpp"

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace upsweep {
namespace {

// The kernel that runs the scan, by how its lines or columns lie in memory.
void choose_regime(Plan& plan, int32_t accumulator, Machine machine) {
  const Problem& p = plan.problem;
  const int64_t item = dtype_size(p.x.dtype);
  const bool same = accumulator == UPSWEEP_REAL && is_typed(p.x.dtype) && p.out.dtype == p.x.dtype &&
                    (!plan.gated || p.gates.dtype == p.x.dtype);
  const int64_t stride = p.out.time_stride;
  const bool contiguous = same && std::llabs(stride) == item && p.x.time_stride == stride &&
                          (!plan.gated || p.gates.time_stride == stride);
  const bool down = runs_down(p);
  plan.typed = down ? same : contiguous;
  plan.reverse = contiguous && stride < 0;
  if (down) plan_columns(plan, accumulator, machine);
  else plan_lines(plan, accumulator, machine);
}

}  // namespace

int64_t workspace_of(int64_t tiles, int64_t groups, int64_t lanes, int32_t accumulator) {
  const int64_t step_words = accumulator == UPSWEEP_COMPLEX ? 4 : 2, state_words = accumulator == UPSWEEP_REAL ? 1 : 2;
  const int64_t extended_words = 3;   // ExtendedStep::kWords
  return kCounterBytes + (tiles * state_words + (tiles + groups) * (step_words + extended_words)) * lanes * 8;
}

GammaPowers powers_of(double gamma, int vec, int times) {
  const auto power = [](double base, uint32_t exponent) {
    double result = 1;
    for (; exponent; exponent >>= 1) {
      if (exponent & 1) result *= base;
      base *= base;
    }
    return result;
  };
  GammaPowers powers;
  powers.gamma = gamma;
  double p = power(gamma, vec);
  for (double& before : powers.before_lane) before = 1;
  for (int i = 0; i < 5; ++i) {
    powers.doubled[i] = p;
    for (int lane = 0; lane < 32; ++lane)
      if (lane >> i & 1) powers.before_lane[lane] *= p;
    p *= p;
  }
  powers.group = p;
  powers.sub = power(gamma, kSubrunElements);
  powers.most = power(p, times);
  return powers;
}

const char* check_scan(const upsweep_scan& scan) {
  if (scan.length < 0) return "length is negative";
  if (scan.n_batch < 0 || scan.n_batch > UPSWEEP_MAX_DIMS) return "n_batch is out of range";
  if (scan.accumulator < UPSWEEP_REAL || scan.accumulator > UPSWEEP_INTEGER) return "accumulator is unknown";
  for (int dim = 0; dim < scan.n_batch; ++dim)
    if (scan.batch_shape[dim] < 0) return "batch_shape is negative";
  const upsweep_array& last = scan.final_state;
  if (last.data && scan.accumulator == UPSWEEP_REAL && last.dtype != UPSWEEP_FLOAT32 && last.dtype != UPSWEEP_FLOAT64)
    return "final_state has to be float32 or float64";
  return nullptr;
}

const char* make_plan(const upsweep_scan& scan, Machine machine, Plan* result) {
  if (const char* wrong = check_scan(scan)) return wrong;
  if (scan.window < 0) return "window is negative";
  if (scan.window && (scan.gates.data || scan.initial.data || scan.final_state.data || scan.exclusive ||
                      scan.accumulator == UPSWEEP_INTEGER))
    return "window goes with x, gamma, reset and out alone";
  // What is not written has a layout all the same: that of what is read.
  const bool writes = scan.out.data != nullptr;
  const upsweep_array& out = writes ? scan.out : scan.x.time_stride || !scan.gates.data ? scan.x : scan.gates;
  const upsweep_array* const arrays[kScanArrays] = {&scan.x,     &scan.gates,   &scan.reset,      &out,
                                                    &scan.gamma, &scan.initial, &scan.final_state};
  Plan& plan = *result;
  // Outer has 5 KiB, of which lay_out writes what is read.
  std::memset(&plan, 0, offsetof(Plan, outer));
  plan.outer.n = 0;
  plan.outer.n_launches = 0;
  Problem& p = plan.problem;
  View* const views[kScanArrays] = {&p.x, &p.gates, &p.reset, &p.out, &p.gamma, &p.initial, &p.final_state};
  p.lines = 1;
  for (int dim = 0; dim < scan.n_batch; ++dim) p.lines *= scan.batch_shape[dim];
  if (p.lines == 0 || (scan.length == 0 && !scan.final_state.data)) return nullptr;
  if (scan.length && (!scan.x.data || !(writes || scan.final_state.data)))
    return "x and one of out and final_state have to be given";
  for (const upsweep_array* array : arrays)
    if (array->data && !dtype_size(array->dtype)) return "dtype is unknown";
  lay_out(scan, arrays, views, kScanArrays, &p, &plan.outer);
  plan.gated = scan.gates.data != nullptr;
  // A window that reaches over the whole line is none.
  plan.window = scan.window < scan.length ? scan.window : 0;
  if (plan.window) plan_window(plan, scan.accumulator);
  else choose_regime(plan, scan.accumulator, machine);
  if (plan.regime != kWindow) plan.invalid_bytes = plan.workspace_bytes;
  return nullptr;
}

}  // namespace upsweep
