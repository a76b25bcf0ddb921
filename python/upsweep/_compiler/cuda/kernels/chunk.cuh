// The formula's values for COUNT columns from column c on, of each row of a thread: for reductions that look at the
// least of several before they ask which one it was. All loops are unrolled, so that the values are in registers.
// Called by: look in extremes.cuh and topk.cuh.

template <int FORM, int COUNT, int ROWS>
__device__ __forceinline__ void values_of_chunk(
    const real* p, const real (&x)[ROWS][ROW_VALUES], const real* columns, int c,
    real (&value)[ROWS][N_RESULTS][COUNT]) {
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
        const Column y(columns, c + u);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            Pair<FORM> at(p, x[r], y);
#pragma unroll EACH_RESULT
            for (int k = 0; k < N_RESULTS; ++k) value[r][k][u] = at.result[k];
        }
    }
}
