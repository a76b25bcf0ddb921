// The C interface of counts: argument checks, devices, errors. Launches happen in bincount/launch.cu.
#include "api/support.hpp"
#include "bincount/launch.hpp"

using namespace upsweep;

namespace {

// What a block may ask for and what a processor has, of compute capability 9.0.
constexpr int kHopperBlockShared = 227 * 1024, kHopperProcessorShared = 228 * 1024;

AttributeCache block_shared = {cudaDevAttrMaxSharedMemoryPerBlockOptin, {}};
AttributeCache processor_shared = {cudaDevAttrMaxSharedMemoryPerMultiprocessor, {}};

// given: n_processors, or 0 for what the device has.
int32_t limits_of(int32_t device, int32_t n_processors, DeviceLimits* limits) {
  *limits = {n_processors, kHopperBlockShared, kHopperProcessorShared};
  if (n_processors > 0) return UPSWEEP_OK;
  cudaError_t error = processors_of(device, &limits->processors);
  if (error == cudaSuccess) error = attribute_of(block_shared, device, &limits->block_shared);
  if (error == cudaSuccess) error = attribute_of(processor_shared, device, &limits->processor_shared);
  if (error == cudaSuccess) return UPSWEEP_OK;
  return cuda_failed("cudaDeviceGetAttribute", error);
}

// The launch of `plan` for each index of the axes that it leaves out; weights: those of a sum.
template <class LaunchOne>
int32_t over_outer(const CountPlan& plan, CountProblem& p, const char** weights, const char* what,
                   LaunchOne launch_one) {
  const char* const bases[] = {p.keys, p.out, weights ? *weights : nullptr};
  for (int64_t index = 0; index < plan.n_launches; ++index) {
    int64_t rest = index, offsets[3] = {};
    for (int dim = plan.n_outer - 1; dim >= 0; --dim) {
      const int64_t at = rest % plan.outer_shape[dim];
      rest /= plan.outer_shape[dim];
      for (int i = 0; i < 3; ++i) offsets[i] += at * plan.outer_strides[i][dim];
    }
    p.keys = bases[0] + offsets[0];
    if (bases[1]) p.out = const_cast<char*>(bases[1]) + offsets[1];
    if (weights) *weights = bases[2] + offsets[2];
    p.first_position = index * p.rows * p.length;
    const cudaError_t error = launch_one();
    if (error != cudaSuccess) return cuda_failed(what, error);
  }
  p.keys = bases[0];
  p.out = const_cast<char*>(bases[1]);
  if (weights) *weights = bases[2];
  return UPSWEEP_OK;
}

template <class LaunchOne>
int32_t over_outer(CountPlan& plan, const char* what, LaunchOne launch_one) {
  return over_outer(plan, plan.problem, nullptr, what, launch_one);
}

int32_t check_workspace(const upsweep_count& count, int64_t needed) {
  if (!needed || (count.workspace && count.workspace_bytes >= needed)) return UPSWEEP_OK;
  return fail(UPSWEEP_INVALID, "workspace: %lld bytes are needed, %lld were given", static_cast<long long>(needed),
              static_cast<long long>(count.workspace_bytes));
}

int32_t clear_marks(const upsweep_count& count, cudaStream_t stream) {
  if (!count.dropped) return UPSWEEP_OK;
  cudaError_t error = cudaMemsetAsync(count.dropped, 0, sizeof(int64_t), stream);
  if (error == cudaSuccess && count.first_outside)
    error = cudaMemsetAsync(count.first_outside, 0xff, sizeof(int64_t), stream);
  return error == cudaSuccess ? UPSWEEP_OK : cuda_failed("cudaMemsetAsync", error);
}

int32_t search_outside(const upsweep_count& count, CountPlan& plan, cudaStream_t stream) {
  if (!count.first_outside || plan.problem.rows * plan.problem.length == 0) return UPSWEEP_OK;
  return over_outer(plan, "launch of a search", [&] { return launch_find_outside(plan, stream); });
}

int32_t run_count(CountPlan& plan, bool accumulate, void* workspace, cudaStream_t stream) {
  // Their kernels write all bins.
  const bool writes_all = plan.regime == kCountRows || plan.table.stores;
  if (!accumulate && !writes_all)
    if (const int32_t status = over_outer(plan, "clearing of bins", [&] { return launch_clear(plan, stream); }))
      return status;
  if (plan.regime == kCountNothing) return UPSWEEP_OK;
  return over_outer(plan, "launch of a count", [&] { return launch_count(plan, workspace, stream); });
}

// Weights and out are those of `count`; the keys may be others.
int32_t run_columns(const upsweep_count& count, SumPlan& plan, void* workspace, cudaStream_t stream) {
  SumProblem& p = plan.problem;
  if (plan.regime == kSumNothing) return UPSWEEP_OK;
  for (int64_t column = 0; column < plan.n_columns; ++column) {
    p.weights = static_cast<const char*>(count.weights.data) + column * plan.weights_column_stride;
    p.count.out = static_cast<char*>(count.out.data) + column * plan.out_column_stride;
    if (column) p.count.dropped = nullptr;   // counted once
    if (const int32_t status = over_outer(plan.count, p.count, &p.weights, "launch of sums",
                                          [&] { return launch_sums(plan, workspace, stream); }))
      return status;
  }
  return UPSWEEP_OK;
}

int32_t run_sums(const upsweep_count& count, const DeviceLimits& limits) {
  SumPlan plan;
  if (const char* wrong = make_sum_plan(count, limits, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  if (const int32_t status = check_workspace(count, plan.workspace_bytes)) return status;
  const cudaStream_t stream = static_cast<cudaStream_t>(count.stream);
  if (const int32_t status = clear_marks(count, stream)) return status;
  if (const int32_t status = run_columns(count, plan, count.workspace, stream)) return status;
  return search_outside(count, plan.count, stream);
}

int32_t guard_failed(const DeviceGuard& guard) {
  return cuda_failed("cudaSetDevice", guard.error());
}

}  // namespace

UPSWEEP_EXPORT int32_t upsweep_cuda_plan_count(const upsweep_count* count, int32_t n_processors,
                                               upsweep_count_plan* result) {
  if (!count || !result) return fail(UPSWEEP_INVALID, "upsweep_cuda_plan_count: a pointer is NULL");
  DeviceLimits limits;
  if (const int32_t status = limits_of(count->device, n_processors, &limits)) return status;
  if (count->weights.data) {
    SumPlan sums;
    if (const char* wrong = make_sum_plan(*count, limits, &sums)) return fail(UPSWEEP_INVALID, "%s", wrong);
    *result = {sums.regime, sums.shape.tables << sums.shape.replicas_log2, static_cast<int32_t>(sums.shape.shares), 0,
               sums.shape.splits, sums.count.n_launches * sums.n_columns, sums.workspace_bytes};
    return UPSWEEP_OK;
  }
  CountPlan plan;
  if (const char* wrong = make_count_plan(*count, limits, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  const bool tables = plan.regime == kCountTables;
  *result = {plan.regime, 1 << plan.table.replicas_log2, tables ? plan.table.shares : 1, plan.vectors,
             tables ? plan.table.splits : plan.splits, plan.n_launches, plan.workspace_bytes};
  return UPSWEEP_OK;
}

UPSWEEP_EXPORT int32_t upsweep_cuda_count(const upsweep_count* count) {
  if (!count) return fail(UPSWEEP_INVALID, "upsweep_cuda_count: a pointer is NULL");
  const DeviceGuard guard(count->device);
  if (guard.error() != cudaSuccess) return guard_failed(guard);
  DeviceLimits limits;
  if (const int32_t status = limits_of(count->device, 0, &limits)) return status;
  if (count->weights.data) return run_sums(*count, limits);
  CountPlan plan;
  if (const char* wrong = make_count_plan(*count, limits, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  if (const int32_t status = check_workspace(*count, plan.workspace_bytes)) return status;
  const cudaStream_t stream = static_cast<cudaStream_t>(count->stream);
  if (const int32_t status = clear_marks(*count, stream)) return status;
  if (const int32_t status = run_count(plan, count->accumulate, count->workspace, stream)) return status;
  return search_outside(*count, plan, stream);
}

UPSWEEP_EXPORT int32_t upsweep_cuda_key_range(const upsweep_count* count, void* range) {
  if (!count || !range) return fail(UPSWEEP_INVALID, "upsweep_cuda_key_range: a pointer is NULL");
  const DeviceGuard guard(count->device);
  if (guard.error() != cudaSuccess) return guard_failed(guard);
  DeviceLimits limits;
  if (const int32_t status = limits_of(count->device, 0, &limits)) return status;
  CountPlan plan;
  if (const char* wrong = make_range_plan(*count, limits, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  const cudaStream_t stream = static_cast<cudaStream_t>(count->stream);
  unsigned long long* const result = static_cast<unsigned long long*>(range);
  const cudaError_t error = launch_begin_range(plan, result, stream);
  if (error != cudaSuccess) return cuda_failed("launch of a range", error);
  if (plan.blocks == 0) return UPSWEEP_OK;
  return over_outer(plan, "launch of a range", [&] { return launch_key_range(plan, result, stream); });
}

namespace {

int32_t run_histogram(const upsweep_histogram& histogram, HistogramPlan& plan, cudaStream_t stream) {
  const upsweep_count& count = histogram.count;
  char* const workspace = static_cast<char*>(count.workspace);
  CountProblem& elements = plan.elements.problem;
  RankProblem ranks = {histogram.thresholds, plan.n_thresholds, histogram.origin, histogram.scale, nullptr,
                       plan.direct ? count.out.dtype : UPSWEEP_INT64};
  if (!plan.direct) {
    elements.out = plan.count.problem.out = workspace + plan.counts_at;
    elements.bin_stride = 8;
  }
  cudaError_t error = cudaSuccess;
  if (histogram.rule != UPSWEEP_THRESHOLDS) {
    ranks.thresholds = workspace + plan.thresholds_at;
    ranks.origin = histogram.first;
    ranks.scale = static_cast<double>(count.n_bins) / (histogram.last - histogram.first);
    const bool clears = plan.fused && !count.accumulate;
    error = launch_uniform_thresholds(
        plan, {histogram.rule, histogram.edge_dtype, histogram.step_dtype, histogram.first, histogram.last,
               histogram.step, count.n_bins, workspace + plan.thresholds_at, histogram.edges,
               clears ? elements.out : nullptr, elements.bin_stride, ranks.out_dtype == UPSWEEP_FLOAT32 ? 4 : 8},
        stream);
    if (error != cudaSuccess) return cuda_failed("launch of thresholds", error);
  }
  const bool some = elements.rows * elements.length > 0;
  if (plan.fused) {
    if (histogram.rule == UPSWEEP_THRESHOLDS && !count.accumulate) error = launch_clear(plan.elements, stream);
    if (error != cudaSuccess) return cuda_failed("clearing of bins", error);
    if (some) error = launch_count_ranks(plan, ranks, stream);
    return error == cudaSuccess ? UPSWEEP_OK : cuda_failed("launch of a histogram", error);
  }
  int32_t* const bins = reinterpret_cast<int32_t*>(workspace + plan.keys_at);
  if (some) {
    ranks.guess_fails = reinterpret_cast<int32_t*>(workspace + plan.guess_at);
    error = launch_check_guess(plan, ranks, stream);
    if (error != cudaSuccess) return cuda_failed("launch of a histogram", error);
    if (const int32_t status = over_outer(plan.elements, "launch of a histogram",
                                          [&] { return launch_rank_keys(plan, ranks, bins, stream); }))
      return status;
  }
  CountProblem& inner = plan.has_weights ? plan.sums.problem.count : plan.count.problem;
  inner.keys = reinterpret_cast<const char*>(bins);
  return plan.has_weights ? run_columns(count, plan.sums, workspace + plan.inner_at, stream)
                          : run_count(plan.count, count.accumulate, workspace + plan.inner_at, stream);
}

}  // namespace

UPSWEEP_EXPORT int32_t upsweep_cuda_plan_histogram(const upsweep_histogram* histogram, int32_t n_processors,
                                                   upsweep_count_plan* result) {
  if (!histogram || !result) return fail(UPSWEEP_INVALID, "upsweep_cuda_plan_histogram: a pointer is NULL");
  DeviceLimits limits;
  if (const int32_t status = limits_of(histogram->count.device, n_processors, &limits)) return status;
  HistogramPlan plan;
  if (const char* wrong = make_histogram_plan(*histogram, limits, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  *result = {plan.fused, 1 << plan.elements.table.replicas_log2, 1, plan.elements.vectors,
             plan.elements.table.splits, plan.elements.n_launches, plan.workspace_bytes};
  return UPSWEEP_OK;
}

UPSWEEP_EXPORT int32_t upsweep_cuda_histogram(const upsweep_histogram* histogram) {
  if (!histogram) return fail(UPSWEEP_INVALID, "upsweep_cuda_histogram: a pointer is NULL");
  const upsweep_count& count = histogram->count;
  const DeviceGuard guard(count.device);
  if (guard.error() != cudaSuccess) return guard_failed(guard);
  DeviceLimits limits;
  if (const int32_t status = limits_of(count.device, 0, &limits)) return status;
  HistogramPlan plan;
  if (const char* wrong = make_histogram_plan(*histogram, limits, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  if (const int32_t status = check_workspace(count, plan.workspace_bytes)) return status;
  const cudaStream_t stream = static_cast<cudaStream_t>(count.stream);
  upsweep_count marks = count;
  marks.first_outside = nullptr;
  if (const int32_t status = clear_marks(marks, stream)) return status;
  if (const int32_t status = run_histogram(*histogram, plan, stream)) return status;
  if (plan.direct) return UPSWEEP_OK;
  const cudaError_t error =
      launch_convert_counts(reinterpret_cast<const int64_t*>(static_cast<char*>(count.workspace) + plan.counts_at),
                            count.n_bins, static_cast<char*>(count.out.data), count.out.time_stride, count.out.dtype,
                            stream);
  return error == cudaSuccess ? UPSWEEP_OK : cuda_failed("conversion of counts", error);
}

UPSWEEP_EXPORT int32_t upsweep_cuda_value_range(const upsweep_count* count, void* range) {
  if (!count || !range) return fail(UPSWEEP_INVALID, "upsweep_cuda_value_range: a pointer is NULL");
  const DeviceGuard guard(count->device);
  if (guard.error() != cudaSuccess) return guard_failed(guard);
  DeviceLimits limits;
  if (const int32_t status = limits_of(count->device, 0, &limits)) return status;
  CountPlan plan;
  if (const char* wrong = make_value_range_plan(*count, limits, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  const cudaStream_t stream = static_cast<cudaStream_t>(count->stream);
  long long* const result = static_cast<long long*>(range);
  const cudaError_t error = launch_begin_value_range(result, stream);
  if (error != cudaSuccess) return cuda_failed("launch of a range", error);
  if (plan.blocks == 0) return UPSWEEP_OK;
  return over_outer(plan, "launch of a range",
                    [&] { return launch_value_range(plan, count->keys.dtype, result, stream); });
}
