// result[i] = reduction over the columns j that row i meets of F(i, j), where F reads the squared distance or the
// scalar product of long vectors x_i and y_j.
//
// Tensor cores multiply tiles of TILE rows and BLOCK columns; |x - y|^2 = |x|^2 + |y|^2 - 2 x.y, all of it
// relative to the mean of the tile's rows, so that nothing large cancels where points lie far from the origin. A
// float32 number is split into two of 11 bits and a sign, of whose four products the three large ones are taken: as
// good as float32's own. The products go through shared memory to the threads that own a row each, and are reduced there
// as any others are.
// LENGTH features lie in shared memory at a time, padded to 16; longer vectors take CHUNKS turns, in each of which
// rows are brought again.
// Called by: `_cuda/pairs.py`.

constexpr int WARPS = THREADS / 32;
constexpr int WARP_ROWS = 64, WARP_COLUMNS = 32;                     // of the products that a warp makes
constexpr int ROW_TILES = WARP_ROWS / 16, COLUMN_TILES = WARP_COLUMNS / 8;
// Rows r and r + 8 lie together, feature by feature, as multiply_tiles takes them. With these pitches the threads of
// a warp read 16 bytes each from different banks.
constexpr int PAIR_PITCH = 2 * LENGTH + 4;
constexpr int PITCH = LENGTH / 16 % 2 ? LENGTH : LENGTH + 16;
constexpr int PRODUCT_PITCH = TILE + 4;                              // and products are written without conflicts
constexpr int SHARED_COLUMNS = BLOCK * (PITCH > PRODUCT_PITCH ? PITCH : PRODUCT_PITCH);  // or their products

static_assert(TILE == THREADS && TILE == 2 * WARP_ROWS && BLOCK == 2 * WARP_COLUMNS && WARPS == 4, "2 x 2 warps");
static_assert(SHARED_BYTES == (TILE / 2 * PAIR_PITCH + SHARED_COLUMNS + CENTRES + TILE) * sizeof(real), "what render.py says");

struct Shared {
    real *rows, *columns, *products, *centre, *norms;

    __device__ __forceinline__ Shared() {
        rows = reinterpret_cast<real*>(shared_memory());
        columns = products = rows + TILE / 2 * PAIR_PITCH;
        centre = columns + SHARED_COLUMNS;
        norms = centre + CENTRES;
    }
};

__device__ __forceinline__ real Column::product() const {
    return Shared().products[number * PRODUCT_PITCH + threadIdx.x];
}

// Four features in sequence of a vector, those beyond the last one as the centre has them: relative to it they are 0.
template <bool TOGETHER>
__device__ __forceinline__ void fetch_four(
    const Array& array, const char* vector, int feature, const real (&centre)[4], real (&four)[4]) {
    if (TOGETHER) {  // DIM is a multiple of 4
        fetch_together(vector + (feature < DIM ? feature : DIM - 4) * sizeof(element), four);
#pragma unroll
        for (int k = 0; k < 4; ++k) four[k] = feature < DIM ? four[k] : centre[k];
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int at = feature + k < DIM ? feature + k : DIM - 1;
            four[k] = Stored<element>::widen(fetch_element<element>(vector + at * array.component_stride));
            four[k] = feature + k < DIM ? four[k] : centre[k];
        }
    }
}

// Bring features [chunk * LENGTH, ...) of vectors, relative to the centre, a warp for each vector in turn, and add
// their squares to the norms, which are `norm_stride` apart. Beyond the n vectors that there are the last one is
// repeated: nobody reads its products.
template <bool OF_ROWS, bool TOGETHER>
__device__ __forceinline__ void bring_vectors(
    const Array& array, const char* data, int n, int chunk, const Shared& shared, real* norms, int norm_stride) {
    constexpr int VECTORS = OF_ROWS ? TILE : BLOCK, AT_ONCE = TOGETHER ? 8 : 1;
    static_assert(LENGTH <= 128 && VECTORS % (AT_ONCE * WARPS) == 0, "four features a lane");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, feature = chunk * LENGTH + 4 * lane;
    const bool mine = 4 * lane < LENGTH;
    real centre[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) centre[k] = CENTRED && mine && feature + k < DIM ? shared.centre[feature + k] : real(0);
#pragma unroll 1
    for (int begin = warp; begin < VECTORS; begin += AT_ONCE * WARPS) {
        real four[AT_ONCE][4];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const int v = begin + u * WARPS;
            fetch_four<TOGETHER>(array, data + (v < n ? v : n - 1) * array.row_stride, feature, centre, four[u]);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const int v = begin + u * WARPS;
            real norm = 0;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (CENTRED) four[u][k] -= centre[k];
                norm += four[u][k] * four[u][k];
            }
            if (mine && OF_ROWS) {
                real* to = shared.rows + (v / 16 * 8 + v % 8) * PAIR_PITCH + v % 16 / 8 + 8 * lane;
#pragma unroll
                for (int k = 0; k < 4; ++k) to[2 * k] = four[u][k];
            }
            if (mine && !OF_ROWS) write_together(four[u], shared.columns + v * PITCH + 4 * lane);
            if (!CENTRED) continue;
            norm = sum_of_warp(mine ? norm : real(0));
            if (lane == 0) norms[v * norm_stride] = chunk ? norms[v * norm_stride] + norm : norm;
        }
    }
}

template <bool OF_ROWS>
__device__ __forceinline__ void bring(
    const Call& call, const Bases& bases, long long first, int n, int chunk, const Shared& shared, real* norms,
    int norm_stride) {
    constexpr int ARRAY = OF_ROWS ? ROW_ARRAY : COLUMN_ARRAY, COMPONENT = OF_ROWS ? ROW_COMPONENT : COLUMN_COMPONENT;
    const Array& array = call.arrays[ARRAY];
    const char* data = bases.data[ARRAY] + first * array.row_stride + COMPONENT * array.component_stride;
    if (sizeof(element) == 4 && DIM % 4 == 0 && array.component_stride == 4 && array.row_stride % 16 == 0 &&
        reinterpret_cast<unsigned long long>(data) % 16 == 0)
        bring_vectors<OF_ROWS, sizeof(element) == 4>(array, data, n, chunk, shared, norms, norm_stride);
    else
        bring_vectors<OF_ROWS, false>(array, data, n, chunk, shared, norms, norm_stride);
}

// Rounding, not cutting off, leaves a rest of either sign: the product of two rests, which is left out, then has no
// bias.
__device__ __forceinline__ void split(const real* from, real (&upper)[4], real (&rest)[4]) {
    read_together(from, upper);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        rest[k] = upper[k];
        upper[k] = round_for_tiles(upper[k]);
        rest[k] -= upper[k];
    }
}

// Add the products of LENGTH features; a thread holds what multiply_tiles gives it of each 16 x 8 products. Tensor
// cores cut off what they add: only the sums of 16 features are theirs.
__device__ __forceinline__ void multiply(const Shared& shared, real (&product)[ROW_TILES][COLUMN_TILES][4]) {
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    const real* rows = shared.rows + (warp / 2 * WARP_ROWS / 2 + group) * PAIR_PITCH + 8 * member;
    const real* columns = shared.columns + (warp % 2 * WARP_COLUMNS + group) * PITCH + 4 * member;
#pragma unroll 1
    for (int k = 0; k < LENGTH; k += 16) {  // two steps of 8: which feature is which does not matter to a product
        real b[COLUMN_TILES][4], b_rest[COLUMN_TILES][4];
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n) split(columns + 8 * n * PITCH + k, b[n], b_rest[n]);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            real sum[COLUMN_TILES][4];
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) sum[n][c] = 0;
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                real a[4], a_rest[4];
                split(rows + 8 * m * PAIR_PITCH + 2 * k + 4 * step, a, a_rest);
#pragma unroll
                for (int n = 0; n < COLUMN_TILES; ++n) {
                    multiply_tiles(sum[n], a_rest, b[n][2 * step], b[n][2 * step + 1]);
                    multiply_tiles(sum[n], a, b_rest[n][2 * step], b_rest[n][2 * step + 1]);
                    multiply_tiles(sum[n], a, b[n][2 * step], b[n][2 * step + 1]);
                }
            }
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) product[m][n][c] += sum[n][c];
        }
    }
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

__device__ __forceinline__ void hand_over(const Shared& shared, const real (&product)[ROW_TILES][COLUMN_TILES][4]) {
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    const int row = warp / 2 * WARP_ROWS + group, column = warp % 2 * WARP_COLUMNS + 2 * member;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                shared.products[(column + 8 * n + k % 2) * PRODUCT_PITCH + row + 16 * m + k / 2 * 8] =
                    product[m][n][k];
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
    reduce_pairs(const __grid_constant__ Call call) {
    __shared__ __align__(16) real columns[BLOCK * COLUMN_VALUES];
    const Shared shared;
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
            real product[ROW_TILES][COLUMN_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int c = 0; c < COLUMN_TILES; ++c)
#pragma unroll
                    for (int k = 0; k < 4; ++k) product[m][c][k] = 0;
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                if (CHUNKS > 1 || !brought)
                    bring<true>(call, bases, item.row, int(item.n_rows), chunk, shared, shared.norms, 1);
                bring<false>(call, bases, begin, n, chunk, shared, columns + COLUMN_NORM, COLUMN_VALUES);
                brought = true;
                if (chunk == 0)
                    for (int c = threadIdx.x; c < n; c += THREADS)
                        load_column(call, bases, p, begin + c, columns + c * COLUMN_VALUES);
                __syncthreads();
                multiply(shared, product);
                __syncthreads();
            }
            hand_over(shared, product);
            __syncthreads();
            if (CENTRED) x[0][ROW_NORM] = shared.norms[row];
            if (busy) reduce_formed(p, x, state, columns, column_index(begin), n, false);
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
