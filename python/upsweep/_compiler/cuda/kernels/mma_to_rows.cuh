// What tensor cores have made goes through a warp's own piece of shared memory to the threads that own a row each,
// HANDED columns at a time, and is reduced there as any other values are.
// Called by: products.cuh.

constexpr int OWN = 1;                 // rows of a thread
constexpr int PRODUCT_PITCH = 32 + 4;  // of a warp's rows: they are written without conflicts
static_assert(HANDED % 8 == 0 && PRODUCTS == WARPS * HANDED * PRODUCT_PITCH, "what render.py says");

__device__ __forceinline__ int own_row(int) { return threadIdx.x; }

__device__ __forceinline__ real Column::product() const {
    return Shared().products[(threadIdx.x / 32 * HANDED + number) * PRODUCT_PITCH + threadIdx.x % 32];
}

// Write the products of columns [first, first + HANDED).
__device__ __forceinline__ void hand_over(const Shared& shared, const Products& product, int first) {
    real* to = shared.products + threadIdx.x / 32 * HANDED * PRODUCT_PITCH;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n) {
        if (first != n * 8 / HANDED * HANDED) continue;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                to[column_of_product(n, k) % HANDED * PRODUCT_PITCH + row_of_product(m, k) % 32] = product[m][n][k];
    }
}

__device__ __forceinline__ void reduce_products(
    const real* p, const real (&x)[OWN][ROW_VALUES], State (&state)[OWN], const real* columns, column_index begin,
    int n, const Products& product) {
#pragma unroll 1
    for (int first = 0; first < n && first < STRIP; first += HANDED) {
        __syncwarp();
        hand_over(Shared(), product, first);
        __syncwarp();
        const int left = n - first < HANDED ? n - first : HANDED;
        reduce_formed(p, x, state, columns + first * COLUMN_VALUES, begin + first, left, false);
    }
}

__device__ __forceinline__ void gather(State (&state)[OWN]) { settle(state[0], 0); }
