// The C interface of reductions: checks, the choice of the kernels, the loop over axes that one launch does not take.
#include "api/support.hpp"
#include "reduce/launch.hpp"

namespace upsweep {
namespace {

LaunchReduce* launch_of(const ReducePlan& plan) {
  if (plan.accumulator == UPSWEEP_INTEGER) return reduce_any_integer;
  if (plan.accumulator == UPSWEEP_COMPLEX) return reduce_any_complex;
  if (!plan.typed) return reduce_any_real;
  switch (plan.reduction.scan.x.dtype) {
    case UPSWEEP_FLOAT16: return reduce_float16;
    case UPSWEEP_BFLOAT16: return reduce_bfloat16;
    case UPSWEEP_FLOAT32: return reduce_float32;
    default: return reduce_float64;
  }
}

}  // namespace
}  // namespace upsweep

using namespace upsweep;

UPSWEEP_EXPORT int32_t upsweep_cuda_plan_reduce(const upsweep_reduction* reduction, upsweep_plan* result) {
  if (!reduction || !result) return fail(UPSWEEP_INVALID, "upsweep_cuda_plan_reduce: a pointer is NULL");
  ReducePlan plan;
  if (const char* wrong = make_reduce_plan(*reduction, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  *result = {plan.regime, plan.typed,          plan.reduction.scan.lines,
             plan.tile,   plan.outer.n_launches, plan.workspace_bytes};
  return UPSWEEP_OK;
}

UPSWEEP_EXPORT int32_t upsweep_cuda_reduce(const upsweep_reduction* reduction) {
  if (!reduction) return fail(UPSWEEP_INVALID, "upsweep_cuda_reduce: a pointer is NULL");
  const upsweep_scan& scan = reduction->scan;
  ReducePlan plan;
  if (const char* wrong = make_reduce_plan(*reduction, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  if (plan.regime == kNothing) return UPSWEEP_OK;
  if (scan.workspace_bytes < plan.workspace_bytes || (plan.workspace_bytes && !scan.workspace))
    return fail(UPSWEEP_INVALID, "workspace: %lld bytes are needed, %lld were given",
                static_cast<long long>(plan.workspace_bytes), static_cast<long long>(scan.workspace_bytes));
  const DeviceGuard guard(scan.device);
  if (guard.error() != cudaSuccess) return cuda_failed("cudaSetDevice", guard.error());
  place_workspace(plan, scan.workspace);
  Reduction& r = plan.reduction;
  Problem& p = r.scan;
  View* const views[] = {&p.x,       &p.gates,       &p.reset,      &p.out,    &p.gamma,
                         &p.initial, &p.final_state, &r.multiplier, &r.dropped};
  const cudaStream_t stream = static_cast<cudaStream_t>(scan.stream);
  LaunchReduce* const launch = launch_of(plan);
  return for_each_launch(plan.outer, views, [&]() -> int32_t {
    cudaError_t error = r.chunks ? launch(plan, stream) : cudaSuccess;
    if (error == cudaSuccess && r.chunks != 1) error = join_chunks(plan, stream);
    return error == cudaSuccess ? UPSWEEP_OK : cuda_failed("launch of a reduction", error);
  });
}
