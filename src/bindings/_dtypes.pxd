"""The numbers that name numpy's dtypes in C++."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t


cdef extern from "common/gather.hpp" namespace "upsweep" nogil:
    cdef enum DType:
        kBool, kInt8, kUInt8, kInt16, kUInt16, kInt32, kUInt32, kInt64, kUInt64
        kHalf, kBFloat, kFloat, kDouble, kComplexFloat, kComplexDouble
    void gather(const char* source, int64_t stride, int64_t n, int32_t dtype, bint swapped, double* to)
    void scatter(const double* values, int64_t n, int32_t dtype, char* target, int64_t stride)


cdef inline int32_t dtype_code(cnp.ndarray array) except -1:
    cdef char kind = (<cnp.dtype>array.descr).kind
    cdef int size = cnp.PyArray_ITEMSIZE(array)
    if kind == b"f":
        return kHalf if size == 2 else kFloat if size == 4 else kDouble
    if kind == b"c":
        return kComplexFloat if size == 8 else kComplexDouble
    if kind == b"b":
        return kBool
    if kind == b"i":
        return kInt8 if size == 1 else kInt16 if size == 2 else kInt32 if size == 4 else kInt64
    if kind == b"u":
        return kUInt8 if size == 1 else kUInt16 if size == 2 else kUInt32 if size == 4 else kUInt64
    if array.dtype.name == "bfloat16":
        return kBFloat
    raise TypeError(f"no kernel for dtype {array.dtype}")
