// result[i] = reduction over the columns j that row i meets of F(i, j), where F is the text before this file.
//
// A thread owns ROWS rows, 32 rows apart, with what depends on them alone in registers. The block brings BLOCK
// columns at a time into shared memory, each by one thread, which also computes what depends on the column alone;
// every thread then reads a column's record once for all of its rows. Each element of the columns is read from
// memory once a tile of TILE rows, which is THREADS * ROWS of them: memory is no limit.
// Called by: `_backends/cuda/pairs_launch.py`.

__device__ __forceinline__ bool is_far(real minus_norm) { return !(-minus_norm <= NEAR); }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR) reduce_pairs(const __grid_constant__ Call call) {
    __shared__ __align__(16) real columns[BLOCK * COLUMN_VALUES];
    __shared__ __align__(16) unsigned words[Near::WORDS];
    const Item item = find_item(call, blockIdx.x);
    const Bases bases = find_bases(call, item.batch);
    real p[PARAMETERS];
    load_parameters(call, bases, item.row, p);

    // A warp owns 32 * ROWS rows in sequence; a warp without rows only helps to bring columns.
    const int first_of_warp = (threadIdx.x / 32) * 32 * ROWS, first = first_of_warp + Near::row_of_lane();
    const bool busy = first_of_warp < item.n_rows;
    real x[ROWS][ROW_VALUES];
    State state[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + 32 * r;
        load_row(call, bases, p, item.row + (row < item.n_rows ? row : item.n_rows - 1), x[r]);
        clear(state[r]);
    }
    bool near = EXPANDABLE && !(SIGNED && p[SIGN] > 0);
    if (near) {
        bool far = false;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) far = far || is_far(x[r][NEAR_ROW]);
        near = !__syncthreads_or(far);
    }
    Near sums;
    sums.begin(x);
    for (long long piece = item.piece; piece < item.end; ++piece) {
        long long begin, end;
        find_columns(call, piece, begin, end);
        for (; begin < end; begin += BLOCK) {
            const int n = end - begin < BLOCK ? int(end - begin) : BLOCK;
            __syncthreads();
            bool far = !near;
            for (int c = threadIdx.x; c < n; c += THREADS) {
                real* record = columns + c * COLUMN_VALUES;
                load_column(call, bases, p, begin + c, record);
                if (!EXPANDABLE) continue;
                far = far || is_far(record[NEAR_COLUMN]);
                if (!far) Near::place(record, c, words);
            }
            const bool all_near = EXPANDABLE ? !__syncthreads_or(far) : false;
            if (!EXPANDABLE) __syncthreads();
            if (busy) sums.reduce(p, x, state, columns, column_index(begin), n, words, all_near);
        }
    }
    if (busy) sums.finish(state);
    const bool empty = call.items ? item.piece == item.end : call.n_columns == 0;
    const long long n_partial = (long long)gridDim.x * TILE;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        settle(state[r], r);
        const int row = first + 32 * r;
        if (row >= item.n_rows) continue;
        if (call.partial)
            save(state[r], call.partial, (long long)blockIdx.x * TILE + row, n_partial);
        else
            write(call, bases, p, state[r], item.row + row, item.batch * call.n_rows + item.row + row, empty);
    }
}
