// A product of matrices as a kernel of its own: out(row, column) = sum over k of left(row, k) * right(k, column).
// Called by: kernels of stages that are such products. Blocks of 256 threads.
//
// A block computes 128 x 128 elements (64 x 64 of 8 bytes), a thread 8 x 8 (4 x 4) of them in registers. Both factors
// pass through shared memory, 8 terms at a time, the next ones on their way to registers meanwhile. So a thread reads
// 16 numbers of shared memory for 64 multiply-adds, and a factor comes from global memory once for 128 rows or columns.
// Each element's terms are added in the order of k.

template <class T>
struct ProductTile {
    static constexpr int SIDE = sizeof(T) == 8 ? 64 : 128, EACH = SIDE / 16, TERMS = 8, THREADS = 256;
    static constexpr int FETCHED = SIDE * TERMS / THREADS;  // terms of each factor that a thread fetches at a time
    static constexpr int STRIDE = SIDE + 4;  // elements: rows of terms begin in other banks
};

// The first row or column of a thread's fours: a half of the tile has one, so that neighbours read neighbours.
template <class T>
__device__ __forceinline__ unsigned in_tile(unsigned thread, int n) {
    return n / 4 * (ProductTile<T>::SIDE / 2) + 4 * thread + n % 4;
}

// `put(row, column, four)` stores the elements of four columns from `column`, a multiple of 4; some may be beyond the
// last one.
template <class T, class Left, class Right, class Put>
__device__ __forceinline__ void multiply_tile(
    int64 first_row, int64 first_column, int64 n_rows, int64 n_columns, int64 n_terms, Left left, Right right,
    Put put) {
    using Tile = ProductTile<T>;
    constexpr int SIDE = Tile::SIDE, EACH = Tile::EACH, TERMS = Tile::TERMS, STEP = Tile::THREADS / SIDE;
    __shared__ __align__(16) T rows[2][TERMS][Tile::STRIDE];
    __shared__ __align__(16) T columns[2][TERMS][Tile::STRIDE];
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // A warp has 4 x 8 threads of the tile's 16 x 16.
    const unsigned tile_row = warp / 2 * 4 + lane / 8, tile_column = warp % 2 * 8 + lane % 8;
    // What a thread fetches: term thread % 8 of every 32nd row, and terms of one column. Rows and columns beyond the
    // last one are the last one, terms are zero.
    const int64 column = min(first_column + thread % SIDE, n_columns - 1);
    T next_rows[Tile::FETCHED], next_columns[Tile::FETCHED];
    const auto fetch_terms = [&](int64 first) {
#pragma unroll
        for (int n = 0; n < Tile::FETCHED; ++n) {
            const int64 row = min(first_row + thread / TERMS + n * (Tile::THREADS / TERMS), n_rows - 1);
            const int64 of_row = first + thread % TERMS, of_column = first + thread / SIDE + n * STEP;
            const T a = left(row, min(of_row, n_terms - 1)), b = right(min(of_column, n_terms - 1), column);
            next_rows[n] = of_row < n_terms ? a : T(0);
            next_columns[n] = of_column < n_terms ? b : T(0);
        }
    };
    const auto store_terms = [&](int buffer) {
#pragma unroll
        for (int n = 0; n < Tile::FETCHED; ++n) {
            rows[buffer][thread % TERMS][thread / TERMS + n * (Tile::THREADS / TERMS)] = next_rows[n];
            columns[buffer][thread / SIDE + n * STEP][thread % SIDE] = next_columns[n];
        }
    };
    T sums[EACH][EACH] = {};
    if (n_terms > 0) {
        fetch_terms(0);
        store_terms(0);
    }
    __syncthreads();
    int buffer = 0;
    for (int64 first = 0; first < n_terms; first += TERMS) {
        const bool has_more = first + TERMS < n_terms;
        if (has_more) fetch_terms(first + TERMS);
#pragma unroll
        for (int k = 0; k < TERMS; ++k) {
            Four<T> a[EACH / 4], b[EACH / 4];
#pragma unroll
            for (int n = 0; n < EACH / 4; ++n) {
                a[n] = *reinterpret_cast<const Four<T>*>(&rows[buffer][k][in_tile<T>(tile_row, 4 * n)]);
                b[n] = *reinterpret_cast<const Four<T>*>(&columns[buffer][k][in_tile<T>(tile_column, 4 * n)]);
            }
#pragma unroll
            for (int i = 0; i < EACH; ++i)
#pragma unroll
                for (int j = 0; j < EACH; ++j) sums[i][j] += a[i / 4].of[i % 4] * b[j / 4].of[j % 4];
        }
        buffer ^= 1;
        if (has_more) store_terms(buffer);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int64 row = first_row + in_tile<T>(tile_row, i);
#pragma unroll
        for (int n = 0; n < EACH / 4; ++n) {
            const int64 at = first_column + in_tile<T>(tile_column, 4 * n);
            const Four<T> four = {{sums[i][4 * n], sums[i][4 * n + 1], sums[i][4 * n + 2], sums[i][4 * n + 3]}};
            if (row < n_rows && at < n_columns) put(row, at, four);
        }
    }
}
