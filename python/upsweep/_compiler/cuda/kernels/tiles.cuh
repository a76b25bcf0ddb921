// The products of rows and columns, by tensor cores; |x - y|^2 = |x|^2 + |y|^2 - 2 x.y, all of it relative to the mean
// of the tile's rows, so that nothing large cancels where points lie far from the origin. Of the four products of two
// numbers' parts the three large ones are taken (vectors.cuh says how good that is). A warp makes the products of its
// own 32 rows with a strip of the columns.
// Called by: products.cuh.

constexpr int STRIP = 64;                               // columns whose products a warp makes at a time
constexpr int ROW_TILES = 2, COLUMN_TILES = STRIP / 8;  // of these products
constexpr int AT_A_TIME = 4;                            // of the column tiles: 8 sums are independent of each other
static_assert(TILE == THREADS && COLUMN_TILES == 2 * AT_A_TIME && BLOCK % STRIP == 0, "a warp has 32 rows");
static_assert(CHUNKS == 1 || BLOCK == STRIP, "products of one strip wait for the next chunk");

struct Shared {
    Vectors rows, columns;
    real *centre, *products;

    __device__ __forceinline__ Shared() {
        rows.words = reinterpret_cast<unsigned*>(shared_memory());
        columns.words = rows.words + TILE * LENGTH;
        rows.norms = reinterpret_cast<real*>(columns.words + BLOCK * LENGTH);
        rows.factors = rows.norms + TILE;
        columns.norms = rows.factors + TILE;
        columns.factors = columns.norms + BLOCK;
        centre = columns.factors + BLOCK;
        products = centre + CENTRES;
    }
};

static_assert(
    SHARED_BYTES == ((TILE + BLOCK) * (LENGTH + 2) + CENTRES + PRODUCTS) * sizeof(real), "what render.py says");

// A thread's, of each 16 x 8: rows g and g + 8, columns 2 t and 2 t + 1 of a strip, where it is number 4 g + t of its
// warp.
typedef real Products[ROW_TILES][COLUMN_TILES][4];

__device__ __forceinline__ int row_of_product(int m, int k) {
    return threadIdx.x / 32 * 32 + 16 * m + k / 2 * 8 + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int column_of_product(int n, int k) { return 8 * n + threadIdx.x % 4 * 2 + k % 2; }

__device__ __forceinline__ void read_rows(const Shared& shared, int k, int part, unsigned (&a)[ROW_TILES][2][4]) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
        read_together(shared.rows.words + place_of_rows(row_of_product(m, 0), k + threadIdx.x % 4 * 4, part), a[m][part]);
}
__device__ __forceinline__ void read_columns(const Shared& shared, int strip, int k, int first, unsigned (&b)[AT_A_TIME][4]) {
#pragma unroll
    for (int n = 0; n < AT_A_TIME; ++n) {
        const int column = strip + 8 * (first + n) + threadIdx.x % 32 / 4;
        read_together(shared.columns.words + place_of_column(column, k + threadIdx.x % 4 * 4), b[n]);
    }
}

typedef real Sums[ROW_TILES][AT_A_TIME][4];

__device__ __forceinline__ void multiply_parts(
    Sums& sum, const unsigned (&a)[ROW_TILES][2][4], int of_a, const unsigned (&b)[AT_A_TIME][4], int of_b) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < AT_A_TIME; ++n) multiply_tiles(sum[m][n], a[m][of_a], b[n][2 * of_b], b[n][2 * of_b + 1]);
}

// The powers of 2 that undo a product's scales, the row's first: both together may be more, or less, than float32 holds.
__device__ __forceinline__ real undo(const Shared& shared, real product, int m, int n, int k) {  // in the first strip
    return product * shared.rows.factors[row_of_product(m, k)] * shared.columns.factors[column_of_product(n, k)];
}

__device__ __forceinline__ void add_sums(const Shared& shared, const Sums& sum, int first, Products& product) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < AT_A_TIME; ++n)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                product[m][first + n][k] += CHUNKS > 1 ? undo(shared, sum[m][n][k], m, first + n, k) : sum[m][n][k];
}

__device__ __forceinline__ void clear(Products& product) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
            for (int k = 0; k < 4; ++k) product[m][n][k] = 0;
}

// Add the products of LENGTH features with the strip's columns. Tensor cores cut off what they add: only the sums of
// SUMMED features are theirs, of 16 the small products first. What the next 16 take is read as soon as its registers
// are free.
__device__ __forceinline__ void multiply(const Shared& shared, int strip, Products& product) {
    unsigned a[ROW_TILES][2][4], b[2][AT_A_TIME][4];
    read_rows(shared, 0, 1, a);
    read_columns(shared, strip, 0, 0, b[0]);
    read_rows(shared, 0, 0, a);
    read_columns(shared, strip, 0, AT_A_TIME, b[1]);
#pragma unroll 1
    for (int k = 0; k < LENGTH; k += SUMMED) {
        Sums first = {}, second = {};
#pragma unroll
        for (int step = 0; step < SUMMED; step += 16) {
            if (step && k + step >= LENGTH) break;
            const int next = k + step + 16 < LENGTH ? k + step + 16 : 0;
            multiply_parts(first, a, 1, b[0], 0);
            multiply_parts(first, a, 0, b[0], 1);
            multiply_parts(first, a, 0, b[0], 0);
            read_columns(shared, strip, next, 0, b[0]);
            multiply_parts(second, a, 1, b[1], 0);
            read_rows(shared, next, 1, a);
            if (SUMMED == 16) add_sums(shared, first, 0, product);
            multiply_parts(second, a, 0, b[1], 1);
            multiply_parts(second, a, 0, b[1], 0);
            read_rows(shared, next, 0, a);
            read_columns(shared, strip, next, AT_A_TIME, b[1]);
        }
        if (SUMMED > 16) add_sums(shared, first, 0, product);
        add_sums(shared, second, AT_A_TIME, product);
    }
}

// From sums to what the formula reads: scalar products, or squared distances, never negative, but for NaN.
__device__ __forceinline__ void finish(const Shared& shared, int strip, Products& product) {
    constexpr real OF_DISTANCE = CENTRED ? -2 : 1;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int column = strip + column_of_product(n, k);
            const real factor = OF_DISTANCE * (CHUNKS == 1 ? shared.columns.factors[column] : real(1));
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                const int row = row_of_product(m, k);
                real& value = product[m][n][k];
                if (CHUNKS == 1) value *= shared.rows.factors[row];
                if (CENTRED)
                    value = most((shared.rows.norms[row] + shared.columns.norms[column]) + value * factor, real(0));
                else
                    value *= factor;
            }
        }
}
