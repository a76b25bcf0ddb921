// Elements of any type, byte order and stride, to and from buffers of the types that kernels compute in.
#pragma once

#include <cstdint>

namespace upsweep {

enum DType : int32_t {
  kBool, kInt8, kUInt8, kInt16, kUInt16, kInt32, kUInt32, kInt64, kUInt64,
  kHalf, kBFloat, kFloat, kDouble, kComplexFloat, kComplexDouble,
};

int64_t dtype_size(int32_t dtype);

struct Complex {
  double re, im;
};

// `to` becomes the transpose of `from`, which has `rows` rows of `columns` elements; both are contiguous. T: 8 or 16 bytes.
template <class T>
void transpose(const T* from, int64_t rows, int64_t columns, T* to);

// Reads n elements, `stride` bytes from one to the next; swapped: their bytes are in the other order.
void gather(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, double* to);
void gather(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, Complex* to);
void gather(const char* source, int64_t stride, int64_t n, int32_t dtype, bool swapped, uint64_t* to);

// Writes n elements, rounded once.
void scatter(const double* from, int64_t n, int32_t dtype, char* target, int64_t stride);
void scatter(const Complex* from, int64_t n, int32_t dtype, char* target, int64_t stride);
void scatter(const uint64_t* from, int64_t n, int32_t dtype, char* target, int64_t stride);

}  // namespace upsweep
