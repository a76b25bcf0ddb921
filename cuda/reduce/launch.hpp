// The kernels of each dtype that reduce, compiled in files of their own: reduce_<dtype>.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "plan/reduce.hpp"

namespace upsweep {

typedef cudaError_t LaunchReduce(const ReducePlan& plan, cudaStream_t stream);

LaunchReduce reduce_float16, reduce_bfloat16, reduce_float32, reduce_float64;   // typed plans
LaunchReduce reduce_any_real, reduce_any_complex, reduce_any_integer;           // the others
LaunchReduce join_chunks;                                                       // of several chunks, or of no steps

}  // namespace upsweep
