// What the files of the C interface share: errors, devices.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "upsweep_cuda.h"

#define UPSWEEP_EXPORT extern "C" __attribute__((visibility("default")))

namespace upsweep {

// Keeps the text for upsweep_cuda_last_error; returns the status.
__attribute__((format(printf, 2, 3))) int32_t fail(int32_t status, const char* format, ...);
int32_t cuda_failed(const char* what, cudaError_t error);

// The caller's current device is left as it was.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device_) error_ = cudaSetDevice(device_);
  }
  ~DeviceGuard() {
    if (error_ == cudaSuccess && before_ != device_) cudaSetDevice(before_);
  }
  cudaError_t error() const { return error_; }

 private:
  int device_, before_ = 0;
  cudaError_t error_;
};

// An attribute of a device, looked up once: the runtime's own call costs microseconds.
constexpr int kMostDevices = 128;
struct AttributeCache {
  cudaDeviceAttr attribute;
  int values[kMostDevices];   // zero: not yet known
};
cudaError_t attribute_of(AttributeCache& cache, int device, int* value);
cudaError_t processors_of(int device, int* count);

}  // namespace upsweep
