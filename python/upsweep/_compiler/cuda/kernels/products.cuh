// result[i] = reduction over the columns j that row i meets of F(i, j), where F reads the squared distance or the
// scalar product of long vectors x_i and y_j, which tensor cores make for TILE rows and BLOCK columns at a time.
//
// LENGTH features lie in shared memory at a time, padded to 16; longer vectors take CHUNKS turns, in each of which
// rows are brought again.
// Called by: `_backends/cuda/pairs_launch.py`.

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

__device__ __forceinline__ void bring_rows(
    const Call& call, const Bases& bases, const Item& item, int chunk, const Shared& shared) {
#pragma unroll 1
    for (int begin = threadIdx.x / 32 * AT_ONCE; begin < TILE; begin += AT_ONCE * WARPS) {
        Fetched fetched;
        fetch<true, 0>(call, bases, item.row, int(item.n_rows), chunk, begin, fetched);
        fetch<true, 1>(call, bases, item.row, int(item.n_rows), chunk, begin, fetched);
        place<true>(fetched, chunk, begin, shared.centre, shared.rows);
    }
}

// What a thread has of the next block of columns while it reduces this one: half of its vectors, while whose turn the
// others can be fetched, if rows do not come before them; and a column's record if that is short.
struct Ahead {
    static constexpr bool VECTORS = CHUNKS == 1, RECORD = COLUMN_VALUES <= 4;
    Fetched fetched;
    real record[RECORD ? COLUMN_VALUES : 1];

    template <int HALF>
    __device__ __forceinline__ void fetch_vectors(const Call& call, const Bases& bases, const Blocks& block, int chunk) {
        fetch<false, HALF>(call, bases, block.begin, block.n_columns(), chunk, threadIdx.x / 32 * AT_ONCE, fetched);
    }
    __device__ __forceinline__ void fetch_early(const Call& call, const Bases& bases, const real* p, const Blocks& block) {
        if (!block.any()) return;
        if (VECTORS) fetch_vectors<0>(call, bases, block, 0);
        if (RECORD && threadIdx.x < block.n_columns()) load_column(call, bases, p, block.begin + threadIdx.x, record);
    }
    __device__ __forceinline__ void place_record(
        const Call& call, const Bases& bases, const real* p, const Blocks& block, real* columns) const {
        if (threadIdx.x >= block.n_columns()) return;
        real* to = columns + threadIdx.x * COLUMN_VALUES;
        if (!RECORD) load_column(call, bases, p, block.begin + threadIdx.x, to);
#pragma unroll
        for (int k = 0; RECORD && k < COLUMN_VALUES; ++k) to[k] = record[RECORD ? k : 0];
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
    reduce_pairs(const __grid_constant__ Call call) {
    __shared__ __align__(16) real columns[BLOCK * COLUMN_VALUES];
    __shared__ Item item;  // not in registers, of which there are none left
    __shared__ Bases bases;
    const Shared shared;
    if (threadIdx.x == 0) item = find_item(call, blockIdx.x), bases = find_bases(call, item.batch);
    __syncthreads();
    real p[PARAMETERS];
    load_parameters(call, bases, item.row, p);
    const bool busy = threadIdx.x - threadIdx.x % 32 < item.n_rows;  // as a warp: lanes ask each other
    real x[OWN][ROW_VALUES];
    State state[OWN];
#pragma unroll
    for (int r = 0; r < OWN; ++r) {
        const int row = own_row(r);
        load_row(call, bases, p, item.row + (row < item.n_rows ? row : int(item.n_rows) - 1), x[r]);
        clear(state[r]);
    }
    if (CENTRED) find_centre(call, bases, item.row, int(item.n_rows), shared);
    __syncthreads();
    if (CHUNKS == 1) bring_rows(call, bases, item, 0, shared);
    Ahead ahead;
    Blocks block(call, item);
    ahead.fetch_early(call, bases, p, block);
    while (block.any()) {
        const int n = block.n_columns();
        const column_index begin = block.begin;
        Products product;
        clear(product);
        ahead.place_record(call, bases, p, block, columns);
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (CHUNKS > 1) bring_rows(call, bases, item, chunk, shared);
            if (!Ahead::VECTORS) ahead.fetch_vectors<0>(call, bases, block, chunk);
            ahead.fetch_vectors<1>(call, bases, block, chunk);
            place<false>(ahead.fetched, chunk, threadIdx.x / 32 * AT_ONCE, shared.centre, shared.columns);
            __syncthreads();
            if (chunk == CHUNKS - 1) break;
            if (busy) multiply(shared, 0, product);
            __syncthreads();
        }
        block.advance(call, item);
#pragma unroll 1
        for (int strip = 0; strip < n; strip += STRIP) {
            if (busy) multiply(shared, strip, product);
            if (strip + STRIP >= n) ahead.fetch_early(call, bases, p, block);
            if (busy) {
                finish(shared, strip, product);
                reduce_products(p, x, state, columns + strip * COLUMN_VALUES, begin + strip, n - strip, product);
            }
            clear(product);
        }
        __syncthreads();
    }
    gather(state);
    const int row = own_row(DIRECT ? threadIdx.x % 4 : 0);
    if (row >= item.n_rows) return;
    const bool empty = call.items ? item.piece == item.end : call.n_columns == 0;
    if (call.partial)
        save(state[0], call.partial, (long long)blockIdx.x * TILE + row, (long long)gridDim.x * TILE);
    else
        write(call, bases, p, state[0], item.row + row, item.batch * call.n_rows + item.row + row, empty);
}
