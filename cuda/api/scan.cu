// The C interface: argument checks, devices, errors. Launches happen in instances/scan_<dtype>.cu.
#include "api/support.hpp"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "scan/launch.hpp"

#include "architectures.hpp"   // made by CMake

namespace upsweep {
namespace {

thread_local char last_error[512] = "";
AttributeCache processor_counts = {cudaDevAttrMultiProcessorCount, {}};
AttributeCache shared_bytes = {cudaDevAttrMaxSharedMemoryPerBlockOptin, {}};

// Blocks of the largest cluster; 0: not looked up yet.
std::atomic<int> cluster_blocks[kMostDevices];

cudaError_t machine_of(int device, Machine* machine) {
  cudaError_t error = processors_of(device, &machine->n_processors);
  if (error == cudaSuccess) error = attribute_of(shared_bytes, device, &machine->shared_bytes);
  if (error != cudaSuccess) return error;
  const bool is_cached = device >= 0 && device < kMostDevices;
  machine->cluster_blocks = is_cached ? cluster_blocks[device].load(std::memory_order_relaxed) : 0;
  if (machine->cluster_blocks) return cudaSuccess;
  const DeviceGuard guard(device);
  error = guard.error() != cudaSuccess ? guard.error() : probe_clusters(&machine->cluster_blocks);
  if (error == cudaSuccess && is_cached)
    cluster_blocks[device].store(machine->cluster_blocks, std::memory_order_relaxed);
  return error;
}


Launch* launch_of(const Plan& plan, int32_t accumulator) {
  if (plan.regime == kWindow)
    return plan.typed ? launch_window_lines : accumulator == UPSWEEP_COMPLEX ? launch_window_complex : launch_window_real;
  if (accumulator == UPSWEEP_INTEGER) return launch_any_integer;
  if (accumulator == UPSWEEP_COMPLEX) return launch_any_complex;
  if (!plan.typed) return launch_any_real;
  switch (plan.problem.x.dtype) {
    case UPSWEEP_FLOAT16: return launch_float16;
    case UPSWEEP_BFLOAT16: return launch_bfloat16;
    case UPSWEEP_FLOAT32: return launch_float32;
    default: return launch_float64;
  }
}

LaunchBackward* launch_backward_of(int32_t dtype) {
  switch (dtype) {
    case UPSWEEP_FLOAT16: return launch_backward_float16;
    case UPSWEEP_BFLOAT16: return launch_backward_bfloat16;
    case UPSWEEP_FLOAT32: return launch_backward_float32;
    default: return launch_backward_float64;
  }
}

}  // namespace

int32_t fail(int32_t status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

int32_t cuda_failed(const char* what, cudaError_t error) {
  cudaGetLastError();   // taken off the runtime's hands, or the next check would find it
  return fail(UPSWEEP_CUDA_ERROR, "%s: %s (%s)", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

cudaError_t attribute_of(AttributeCache& cache, int device, int* value) {
  if (device >= 0 && device < kMostDevices && (*value = __atomic_load_n(&cache.values[device], __ATOMIC_RELAXED)))
    return cudaSuccess;
  const cudaError_t error = cudaDeviceGetAttribute(value, cache.attribute, device);
  if (error == cudaSuccess && device < kMostDevices)
    __atomic_store_n(&cache.values[device], *value, __ATOMIC_RELAXED);
  return error;
}

cudaError_t processors_of(int device, int* count) { return attribute_of(processor_counts, device, count); }

}  // namespace upsweep

using namespace upsweep;

UPSWEEP_EXPORT int32_t upsweep_cuda_abi(void) { return UPSWEEP_CUDA_ABI; }

UPSWEEP_EXPORT void upsweep_cuda_sizes(int64_t sizes[9]) {
  sizes[0] = sizeof(upsweep_array);
  sizes[1] = sizeof(upsweep_scan);
  sizes[2] = sizeof(upsweep_reduction);
  sizes[3] = sizeof(upsweep_lines);
  sizes[4] = sizeof(upsweep_lines_backward);
  sizes[5] = sizeof(upsweep_plan);
  sizes[6] = sizeof(upsweep_count);
  sizes[7] = sizeof(upsweep_histogram);
  sizes[8] = sizeof(upsweep_count_plan);
}

UPSWEEP_EXPORT int32_t upsweep_cuda_architectures(int32_t* capabilities, int32_t n) {
  constexpr int32_t n_built = sizeof kArchitectures / sizeof kArchitectures[0];
  for (int32_t i = 0; i < n && i < n_built; ++i) capabilities[i] = kArchitectures[i];
  return n_built;
}

UPSWEEP_EXPORT const char* upsweep_cuda_last_error(void) { return last_error; }

UPSWEEP_EXPORT int32_t upsweep_cuda_device_count(int32_t* count) {
  int n = 0;
  const cudaError_t error = cudaGetDeviceCount(&n);
  *count = error == cudaSuccess ? n : 0;
  if (error == cudaSuccess) return UPSWEEP_OK;
  return cuda_failed("cudaGetDeviceCount", error);
}

UPSWEEP_EXPORT int32_t upsweep_cuda_device_check(int32_t device, char* name, int32_t* capability) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return cuda_failed("cudaGetDeviceProperties", error);
  std::snprintf(name, 256, "%s", properties.name);
  *capability = properties.major * 10 + properties.minor;
  const DeviceGuard guard(device);
  cudaFuncAttributes attributes;
  const cudaError_t failure = guard.error() ? guard.error() : probe_kernel(&attributes);
  if (failure == cudaSuccess) return UPSWEEP_OK;
  cudaGetLastError();
  return fail(UPSWEEP_UNSUPPORTED, "%s has compute capability %d.%d, for which libupsweep_cuda.so holds no code: %s",
              properties.name, properties.major, properties.minor, cudaGetErrorString(failure));
}

namespace {

// given: n_processors of a device with all that there is, or 0 for this one.
int32_t find_machine(int32_t device, int32_t n_processors, Machine* machine) {
  *machine = {n_processors, ClusterTuning::kBlocks, PersistentTuning::kSharedBytes};
  if (n_processors > 0) return UPSWEEP_OK;
  const cudaError_t error = machine_of(device, machine);
  if (error == cudaSuccess) return UPSWEEP_OK;
  return cuda_failed("looking at the device", error);
}

}  // namespace

UPSWEEP_EXPORT int32_t upsweep_cuda_plan_scan(const upsweep_scan* scan, int32_t n_processors, upsweep_plan* result) {
  if (!scan || !result) return fail(UPSWEEP_INVALID, "upsweep_cuda_plan_scan: a pointer is NULL");
  Machine machine;
  if (const int32_t status = find_machine(scan->device, n_processors, &machine)) return status;
  Plan plan;
  if (const char* wrong = make_plan(*scan, machine, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  *result = {plan.regime, plan.typed, plan.problem.lines, plan.tile, plan.outer.n_launches, plan.workspace_bytes};
  return UPSWEEP_OK;
}

namespace {

// needed: where the size of a workspace goes that was not given; nullptr: that is an error.
int32_t run_scan(const upsweep_scan& scan, int64_t* needed) {
  const DeviceGuard guard(scan.device);
  if (guard.error() != cudaSuccess) return cuda_failed("cudaSetDevice", guard.error());
  Machine machine;
  if (const int32_t status = find_machine(scan.device, 0, &machine)) return status;
  Plan plan;
  if (const char* wrong = make_plan(scan, machine, &plan)) return fail(UPSWEEP_INVALID, "%s", wrong);
  if (plan.regime == kNothing) return UPSWEEP_OK;
  if (scan.workspace_bytes < plan.workspace_bytes || (plan.workspace_bytes && !scan.workspace)) {
    if (needed) {
      *needed = plan.workspace_bytes;
      return UPSWEEP_WORKSPACE;
    }
    return fail(UPSWEEP_INVALID, "workspace: %lld bytes are needed, %lld were given",
                static_cast<long long>(plan.workspace_bytes), static_cast<long long>(scan.workspace_bytes));
  }

  const cudaStream_t stream = static_cast<cudaStream_t>(scan.stream);
  plan.starts_early = plan.invalid_bytes && machine.cluster_blocks > 1;   // code for 9.0 or newer is in use
  Workspace w = {};
  if (plan.workspace_bytes) {
    w.counter = static_cast<uint32_t*>(scan.workspace);
    w.tile_words = reinterpret_cast<unsigned long long*>(static_cast<char*>(scan.workspace) + kCounterBytes);
  }
  Launch* const launch = launch_of(plan, scan.accumulator);
  Problem& p = plan.problem;
  View* const views[] = {&p.x, &p.gates, &p.reset, &p.out, &p.gamma, &p.initial, &p.final_state};
  return for_each_launch(plan.outer, views, [&]() -> int32_t {
    if (plan.invalid_bytes) {   // of tile states
      const cudaError_t error = plan.starts_early ? fill_workspace(scan.workspace, plan.invalid_bytes, stream)
                                                  : cudaMemsetAsync(scan.workspace, 0xff, plan.invalid_bytes, stream);
      if (error != cudaSuccess) return cuda_failed("filling a workspace", error);
    }
    const cudaError_t error = launch(plan, w, stream, machine.n_processors);
    return error == cudaSuccess ? UPSWEEP_OK : cuda_failed("launch of a scan", error);
  });
}

}  // namespace

UPSWEEP_EXPORT int32_t upsweep_cuda_scan(const upsweep_scan* scan) {
  if (!scan) return fail(UPSWEEP_INVALID, "upsweep_cuda_scan: a pointer is NULL");
  return run_scan(*scan, nullptr);
}

UPSWEEP_EXPORT int32_t upsweep_cuda_scan_lines(upsweep_lines* lines) {
  if (!lines) return fail(UPSWEEP_INVALID, "upsweep_cuda_scan_lines: a pointer is NULL");
  if (lines->dtype < UPSWEEP_FLOAT16 || lines->dtype > UPSWEEP_FLOAT64)
    return fail(UPSWEEP_INVALID, "dtype %d is not a real floating one", static_cast<int>(lines->dtype));
  upsweep_scan scan = {};
  scan.device = lines->device;
  scan.accumulator = UPSWEEP_REAL;
  scan.reverse = lines->reverse;
  scan.stream = lines->stream;
  scan.workspace = lines->workspace;
  scan.workspace_bytes = lines->workspace_bytes;
  scan.gamma_re = lines->gamma;
  scan.length = lines->length;
  scan.n_batch = 1;
  scan.batch_shape[0] = lines->lines;
  const int64_t item = dtype_size(lines->dtype);
  void* const data[] = {lines->x, lines->gates, lines->out};
  upsweep_array* const arrays[] = {&scan.x, &scan.gates, &scan.out};
  for (int i = 0; i < 3; ++i) {
    arrays[i]->data = data[i];
    arrays[i]->dtype = lines->dtype;
    arrays[i]->time_stride = item;
    arrays[i]->batch_strides[0] = item * lines->length;
  }
  return run_scan(scan, &lines->workspace_bytes);
}

namespace {

// given: as find_machine has it, whose answer is left in *machine.
int32_t plan_backward(const upsweep_lines_backward* lines, int32_t n_processors, Machine* machine, BackwardPlan* plan) {
  if (!lines) return fail(UPSWEEP_INVALID, "upsweep_cuda_lines_backward: a pointer is NULL");
  if (const int32_t status = find_machine(lines->device, n_processors, machine)) return status;
  if (const char* wrong = make_backward_plan(*lines, machine->n_processors, plan))
    return fail(UPSWEEP_INVALID, "%s", wrong);
  return plan->supported ? UPSWEEP_OK : UPSWEEP_NO_KERNEL;
}

}  // namespace

UPSWEEP_EXPORT int32_t upsweep_cuda_plan_lines_backward(const upsweep_lines_backward* lines, int32_t n_processors) {
  BackwardPlan plan;
  Machine machine;
  return plan_backward(lines, n_processors, &machine, &plan);
}

UPSWEEP_EXPORT int32_t upsweep_cuda_lines_backward(const upsweep_lines_backward* lines) {
  BackwardPlan plan;
  Machine machine;
  if (const int32_t status = plan_backward(lines, 0, &machine, &plan)) return status;
  if (plan.problem.lines == 0) return UPSWEEP_OK;
  const DeviceGuard guard(lines->device);
  if (guard.error() != cudaSuccess) return cuda_failed("cudaSetDevice", guard.error());
  const cudaError_t error =
      launch_backward_of(lines->dtype)(plan, static_cast<cudaStream_t>(lines->stream), machine.n_processors);
  return error == cudaSuccess ? UPSWEEP_OK : cuda_failed("launch of a backward scan", error);
}

namespace {

template <class Call>
int32_t on_device(int32_t device, const char* what, Call call) {
  const DeviceGuard guard(device);
  cudaError_t error = guard.error();
  if (error == cudaSuccess) error = call();
  if (error == cudaSuccess) return UPSWEEP_OK;
  return cuda_failed(what, error);
}

}  // namespace

UPSWEEP_EXPORT int32_t upsweep_cuda_allocate(int32_t device, void* stream, int64_t bytes, void** memory) {
  return on_device(device, "cudaMallocAsync", [&] {
    return cudaMallocAsync(memory, bytes, static_cast<cudaStream_t>(stream));
  });
}

UPSWEEP_EXPORT int32_t upsweep_cuda_free(int32_t device, void* stream, void* memory) {
  return on_device(device, "cudaFreeAsync", [&] { return cudaFreeAsync(memory, static_cast<cudaStream_t>(stream)); });
}

namespace {

int32_t copy(int32_t device, void* stream, void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
  return on_device(device, "cudaMemcpyAsync", [&] {
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, static_cast<cudaStream_t>(stream));
    return error == cudaSuccess ? cudaStreamSynchronize(static_cast<cudaStream_t>(stream)) : error;
  });
}

}  // namespace

UPSWEEP_EXPORT int32_t upsweep_cuda_copy_to_device(int32_t device, void* stream, void* to, const void* from,
                                                   int64_t bytes) {
  return copy(device, stream, to, from, bytes, cudaMemcpyHostToDevice);
}

UPSWEEP_EXPORT int32_t upsweep_cuda_copy_to_host(int32_t device, void* stream, void* to, const void* from,
                                                 int64_t bytes) {
  return copy(device, stream, to, from, bytes, cudaMemcpyDeviceToHost);
}
