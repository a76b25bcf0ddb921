// result[i] = reduction over the columns j that row i meets of F(i, j), where F reads the squared distance or the
// scalar product of long vectors x_i and y_j.
//
// Tensor cores multiply tiles of TILE rows and BLOCK columns; |x - y|^2 = |x|^2 + |y|^2 - 2 x.y, all of it
// relative to the mean of the tile's rows, so that nothing large cancels where points lie far from the origin. Of
// the four products of two numbers' parts the three large ones are taken (vectors.cuh says how good that is).
// A warp makes the products of its own 32 rows with all columns. They go through its own piece of shared memory to
// the threads that own a row each, HANDED columns at a time, and are reduced there as any others are.
// LENGTH features lie in shared memory at a time, padded to 16; longer vectors take CHUNKS turns, in each of which
// rows are brought again.
// Called by: `_cuda/pairs.py`.

constexpr int ROW_TILES = 2, COLUMN_TILES = BLOCK / 8;  // of a warp's products
constexpr int AT_A_TIME = 4;                            // of the column tiles: 8 sums are independent of each other
constexpr int PRODUCT_PITCH = 32 + 4;                   // products are written without conflicts

static_assert(TILE == THREADS && COLUMN_TILES % AT_A_TIME == 0 && HANDED % 8 == 0, "a warp has 32 rows");

struct Shared {
    unsigned *rows, *columns;
    real *products, *centre, *row_norms, *row_factors, *column_factors;

    __device__ __forceinline__ Shared() {
        rows = reinterpret_cast<unsigned*>(shared_memory());
        columns = rows + TILE * LENGTH;
        products = reinterpret_cast<real*>(columns + BLOCK * LENGTH);
        centre = products + WARPS * HANDED * PRODUCT_PITCH;
        row_norms = centre + CENTRES;
        row_factors = row_norms + TILE;
        column_factors = row_factors + TILE;
    }
};

static_assert(
    SHARED_BYTES ==
        ((TILE + BLOCK) * LENGTH + WARPS * HANDED * PRODUCT_PITCH + CENTRES + 2 * TILE + BLOCK) * sizeof(real),
    "what render.py says");

__device__ __forceinline__ real Column::product() const {
    return Shared().products[(threadIdx.x / 32 * HANDED + number) * PRODUCT_PITCH + threadIdx.x % 32];
}

typedef real Products[ROW_TILES][COLUMN_TILES][4];  // a thread's, of each 16 x 8, as multiply_tiles has them

// The powers of 2 that products of a thread's rows and columns are to be multiplied with.
struct Factors {
    real of_rows[ROW_TILES][2], of_columns[COLUMN_TILES][2];

    __device__ __forceinline__ explicit Factors(const Shared& shared) {
        const int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int k = 0; k < 2; ++k)
                of_rows[m][k] = shared.row_factors[threadIdx.x / 32 * 32 + 16 * m + 8 * k + group];
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
            for (int k = 0; k < 2; ++k) of_columns[n][k] = shared.column_factors[8 * n + 2 * member + k];
    }
    // The row's first: both together may be more, or less, than float32 holds.
    __device__ __forceinline__ real undo(real product, int m, int n, int k) const {
        return product * of_rows[m][k / 2] * of_columns[n][k % 2];
    }
};

// Add the products of LENGTH features. Tensor cores cut off what they add: only the sums of 16 features are theirs,
// the small products first.
__device__ __forceinline__ void multiply(const Shared& shared, Products& product) {
    const int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    const int first_row = threadIdx.x / 32 * 32 + group;
    const Factors factors(shared);
#pragma unroll 1
    for (int k = 0; k < LENGTH; k += 16) {
        const int feature = k + 4 * member;
        unsigned a[ROW_TILES][2][4];
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int part = 0; part < 2; ++part)
                read_together(shared.rows + place_of_rows(first_row + 16 * m, feature, part), a[m][part]);
#pragma unroll
        for (int first = 0; first < COLUMN_TILES; first += AT_A_TIME) {
            unsigned b[AT_A_TIME][4];
            real sum[ROW_TILES][AT_A_TIME][4];
#pragma unroll
            for (int n = 0; n < AT_A_TIME; ++n) {
                read_together(shared.columns + place_of_column(8 * (first + n) + group, feature), b[n]);
            }
#pragma unroll
            for (int turn = 0; turn < 3; ++turn) {  // rest * upper, upper * rest, upper * upper
                const int of_a = turn == 0, of_b = 2 * (turn == 1);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                    for (int n = 0; n < AT_A_TIME; ++n) {
                        if (turn == 0)
#pragma unroll
                            for (int c = 0; c < 4; ++c) sum[m][n][c] = 0;
                        multiply_tiles(sum[m][n], a[m][of_a], b[n][of_b], b[n][of_b + 1]);
                    }
            }
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int n = 0; n < AT_A_TIME; ++n)
#pragma unroll
                    for (int c = 0; c < 4; ++c)
                        product[m][first + n][c] +=
                            CHUNKS > 1 ? factors.undo(sum[m][n][c], m, first + n, c) : sum[m][n][c];
        }
    }
    if (CHUNKS > 1) return;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) product[m][n][c] = factors.undo(product[m][n][c], m, n, c);
}

// The mean of some of the tile's rows, or 0 where they are not finite.
__device__ __forceinline__ void find_centre(
    const Call& call, const Bases& bases, long long first, int n_rows, const Shared& shared) {
    constexpr int SAMPLES = 32;
    const int step = (n_rows + SAMPLES - 1) / SAMPLES, n = (n_rows + step - 1) / step;
    for (int k = threadIdx.x; k < DIM; k += THREADS) {
        real sum = 0;
#pragma unroll 8
        for (int sample = 0; sample < n; ++sample)
            sum += load(call, bases, ROW_ARRAY, first + sample * step, ROW_COMPONENT + k);
        shared.centre[k] = finite_or_0(sum / n);
    }
}

// Write the products of columns [first, first + HANDED).
__device__ __forceinline__ void hand_over(const Shared& shared, const Products& product, int first) {
    const int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    real* to = shared.products + (threadIdx.x / 32 * HANDED + 2 * member) * PRODUCT_PITCH + group;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n) {
        if (first != n * 8 / HANDED * HANDED) continue;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                to[(8 * n % HANDED + k % 2) * PRODUCT_PITCH + 16 * m + k / 2 * 8] = product[m][n][k];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
    reduce_pairs(const __grid_constant__ Call call) {
    __shared__ __align__(16) real columns[BLOCK * COLUMN_VALUES];
    const Shared shared;
    const Vectors of_rows{shared.rows, shared.row_factors, shared.row_norms, 1};
    const Vectors of_columns{shared.columns, shared.column_factors, columns + COLUMN_NORM, COLUMN_VALUES};
    const Item item = find_item(call, blockIdx.x);
    const Bases bases = find_bases(call, item.batch);
    real p[PARAMETERS];
    load_parameters(call, bases, item.row, p);
    const int row = threadIdx.x < item.n_rows ? threadIdx.x : int(item.n_rows) - 1;
    const bool busy = threadIdx.x - threadIdx.x % 32 < item.n_rows;  // as a warp: lanes ask each other
    real x[1][ROW_VALUES];
    State state[1];
    load_row(call, bases, p, item.row + row, x[0]);
    clear(state[0]);
    if (CENTRED) find_centre(call, bases, item.row, int(item.n_rows), shared);
    __syncthreads();
    bool brought = false;
    for (long long piece = item.piece; piece < item.end; ++piece) {
        long long begin, end;
        find_columns(call, piece, begin, end);
        for (; begin < end; begin += BLOCK) {
            const int n = end - begin < BLOCK ? int(end - begin) : BLOCK;
            Products product;
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int c = 0; c < COLUMN_TILES; ++c)
#pragma unroll
                    for (int k = 0; k < 4; ++k) product[m][c][k] = 0;
            for (int c = threadIdx.x; c < n; c += THREADS)
                load_column(call, bases, p, begin + c, columns + c * COLUMN_VALUES);
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                if (CHUNKS > 1 || !brought)
                    bring<true>(call, bases, item.row, int(item.n_rows), chunk, shared.centre, of_rows);
                bring<false>(call, bases, begin, n, chunk, shared.centre, of_columns);
                brought = true;
                __syncthreads();
                if (busy) multiply(shared, product);
                if (chunk < CHUNKS - 1) __syncthreads();
            }
            if (CENTRED) x[0][ROW_NORM] = shared.row_norms[row];
#pragma unroll 1
            for (int first = 0; busy && first < n; first += HANDED) {
                __syncwarp();
                hand_over(shared, product, first);
                __syncwarp();
                reduce_formed(
                    p, x, state, columns + first * COLUMN_VALUES, column_index(begin + first),
                    n - first < HANDED ? n - first : HANDED, false);
            }
            __syncthreads();
        }
    }
    settle(state[0], 0);
    if (threadIdx.x >= item.n_rows) return;
    const bool empty = call.items ? item.piece == item.end : call.n_columns == 0;
    if (call.partial)
        save(state[0], call.partial, (long long)blockIdx.x * TILE + threadIdx.x, (long long)gridDim.x * TILE);
    else
        write(call, bases, p, state[0], item.row + threadIdx.x, item.batch * call.n_rows + item.row + threadIdx.x, empty);
}
