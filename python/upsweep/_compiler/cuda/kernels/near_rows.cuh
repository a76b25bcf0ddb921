// Near pairs where threads make their exponents: with rows that are doubled meanwhile, from norms and a product.
// Called by: reduce_pairs in kernel.cuh.

// Squared norms, times what their exponential has as its scale, up to which a squared distance is expanded: the
// rounding of 2 x.y, at most twice as much, then stays below 2^-17.
constexpr real NEAR = 64;

struct Near {
    static constexpr int WORDS = 1;  // of shared memory, which are not used
    bool doubled = false;

    static __device__ __forceinline__ int row_of_lane() { return threadIdx.x % 32; }
    static __device__ __forceinline__ void begin(const real (&)[ROWS][ROW_VALUES]) {}
    static __device__ __forceinline__ void place(const real*, int, unsigned*) {}
    static __device__ __forceinline__ void finish(State (&)[ROWS]) {}

    __device__ __forceinline__ void reduce(
        const real* p, real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, column_index first,
        int n, const unsigned*, bool near) {
        if (near != doubled) {  // exact in both directions
            doubled = near;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) scale_row(x[r], doubled ? real(2) : real(0.5));
        }
        reduce_formed(p, x, state, columns, first, n, near);
    }
};
