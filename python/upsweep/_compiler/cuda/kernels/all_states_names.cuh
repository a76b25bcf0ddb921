// What all_states.cuh takes of C++'s headers and of cuda/common/steps.cuh, for text without headers.
// Called by: all_states.cuh.

namespace upsweep {

typedef short int16_t;
typedef unsigned short uint16_t;
typedef unsigned uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#ifndef DBL_MAX
#define DBL_MAX 0x1.fffffffffffffp1023
#endif
#ifndef FLT_MAX
#define FLT_MAX 0x1.fffffep127f
#endif

__device__ inline bool is_nan(double v) { return v != v; }
__device__ inline bool is_finite(double v) { return fabs(v) <= DBL_MAX; }
__device__ inline float advance(float a, float s, float b) { return a * s + b; }
__device__ inline double advance(double a, double s, double b) { return a * s + b; }

}  // namespace upsweep
