// Sums of what tensor cores have made where it is: a thread adds its columns' share of four rows, and the four threads
// that have a row's shares add them in the end.
// Called by: products.cuh.

constexpr int OWN = 2 * ROW_TILES;  // rows of a thread
static_assert(PRODUCTS == 0, "what render.py says");

__device__ __forceinline__ int own_row(int r) { return row_of_product(r / 2, r % 2 * 2); }

__device__ __forceinline__ real Column::product() const { return mma_product; }

template <int FORM, bool WHOLE>
__device__ __forceinline__ void add_products(
    const real* p, const real (&x)[OWN][ROW_VALUES], State (&state)[OWN], const real* columns, int n_columns,
    const Products& product) {
    real sum[OWN][N_RESULTS];
#pragma unroll
    for (int r = 0; r < OWN; ++r)
#pragma unroll
        for (int k = 0; k < N_RESULTS; ++k) sum[r][k] = 0;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int number = column_of_product(n, c);
            Column y(columns, number);
#pragma unroll
            for (int r = 0; r < OWN; ++r) {
                y.mma_product = product[r / 2][n][r % 2 * 2 + c];
                const Pair<FORM> at(p, x[r], y);
#pragma unroll
                for (int k = 0; k < N_RESULTS; ++k)
                    sum[r][k] += WHOLE || number < n_columns ? at.result[k] : real(0);
            }
        }
#pragma unroll
    for (int r = 0; r < OWN; ++r)
#pragma unroll
        for (int k = 0; k < N_RESULTS; ++k) state[r].sum[k] += wide(sum[r][k]);
}

template <int FORM>
__device__ __forceinline__ void reduce_as(
    const real* p, const real (&x)[OWN][ROW_VALUES], State (&state)[OWN], const real* columns, int n,
    const Products& product) {
    if (n >= STRIP)
        add_products<FORM, true>(p, x, state, columns, n, product);
    else
        add_products<FORM, false>(p, x, state, columns, n, product);
}

__device__ __forceinline__ void reduce_products(
    const real* p, const real (&x)[OWN][ROW_VALUES], State (&state)[OWN], const real* columns, column_index, int n,
    const Products& product) {
    if (SIGNED && p[SIGN] > 0)
        reduce_as<1>(p, x, state, columns, n, product);
    else
        reduce_as<0>(p, x, state, columns, n, product);
}

// Each of the four threads is left with the sums of one of their rows, in the place of its first one.
__device__ __forceinline__ void gather(State (&state)[OWN]) {
#pragma unroll
    for (int k = 0; k < N_RESULTS; ++k) {
        wide own_sum = 0;
#pragma unroll
        for (int r = 0; r < OWN; ++r) {
            wide sum = state[r].sum[k];
            sum += of_other_lane(sum, 1);
            sum += of_other_lane(sum, 2);
            own_sum = threadIdx.x % 4 == r ? sum : own_sum;
        }
        state[0].sum[k] = own_sum;
    }
}
