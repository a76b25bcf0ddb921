// result[i] = reduction over the columns j that row i meets of F(i, j), where F reads the squared distance or the
// scalar product of long vectors x_i and y_j, which tensor cores make for TILE rows and BLOCK columns at a time.
//
// LENGTH features lie in shared memory at a time, padded to 16; longer vectors take CHUNKS turns, in each of which
// rows are brought again.
// Called by: `_cuda/pairs.py`.

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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
    reduce_pairs(const __grid_constant__ Call call) {
    __shared__ __align__(16) real columns[BLOCK * COLUMN_VALUES];
    const Shared shared;
    const Item item = find_item(call, blockIdx.x);
    const Bases bases = find_bases(call, item.batch);
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
                    bring<true>(call, bases, item.row, int(item.n_rows), chunk, shared.centre, shared.rows);
                bring<false>(call, bases, begin, n, chunk, shared.centre, shared.columns);
                brought = true;
                __syncthreads();
                if (busy) multiply(shared, product);
                if (chunk < CHUNKS - 1) __syncthreads();
            }
            if (busy) {
                finish(shared, product);
                reduce_products(p, x, state, columns, column_index(begin), n, product);
            }
            __syncthreads();
        }
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
