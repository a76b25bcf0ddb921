// result[i] = reduction over the columns j that row i meets of F(i, j), where F is the text before this file.
//
// A thread owns ROWS rows, 32 rows apart, with what depends on them alone in registers. The block brings BLOCK
// columns at a time into shared memory, each by one thread, which also computes what depends on the column alone;
// every thread then reads a column's record once for all of its rows. Each element of the columns is read from
// memory once a tile of TILE rows, which is THREADS * ROWS of them: memory is no limit.
// Called by: `_cuda/pairs.py`, first reduce_pairs, then combine_parts where tiles were cut along the columns.

constexpr int TILE = THREADS * ROWS;

struct Item {
    long long batch, row, n_rows, piece, end;
};

__device__ __forceinline__ Item find_item(const Call& call, long long number) {
    Item item;
    item.batch = number / call.n_items;
    number -= item.batch * call.n_items;
    if (call.items) {
        const long long* it = call.items + 4 * number;
        item.row = it[0], item.n_rows = it[1] - it[0], item.piece = it[2], item.end = it[3];
    } else {
        const long long tile = number / call.n_parts;
        item.row = tile * TILE;
        item.n_rows = call.n_rows - item.row < TILE ? call.n_rows - item.row : TILE;
        item.piece = number - tile * call.n_parts, item.end = item.piece + 1;
    }
    return item;
}

// Columns [begin, end) of a piece; where every row meets every column, of a part: whole blocks, dealt evenly.
__device__ __forceinline__ void find_columns(const Call& call, long long piece, long long& begin, long long& end) {
    if (call.items) {
        begin = call.pieces[2 * piece], end = call.pieces[2 * piece + 1];
        return;
    }
    const long long n_blocks = (call.n_columns + BLOCK - 1) / BLOCK;
    begin = piece * n_blocks / call.n_parts * BLOCK;
    end = (piece + 1) * n_blocks / call.n_parts * BLOCK;
    if (end > call.n_columns) end = call.n_columns;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR) reduce_pairs(const __grid_constant__ Call call) {
    __shared__ __align__(16) real columns[BLOCK * COLUMN_VALUES];
    const Item item = find_item(call, blockIdx.x);
    const Bases bases = find_bases(call, item.batch);
    real p[PARAMETERS];
    load_parameters(call, bases, item.row, p);

    // A warp owns 32 * ROWS rows in sequence; a warp without rows only helps to bring columns.
    const int first = (threadIdx.x / 32) * 32 * ROWS + threadIdx.x % 32;
    const bool busy = first - int(threadIdx.x % 32) < item.n_rows;
    real x[ROWS][ROW_VALUES];
    State state[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + 32 * r;
        load_row(call, bases, p, item.row + (row < item.n_rows ? row : item.n_rows - 1), x[r]);
        clear(state[r]);
    }
    for (long long piece = item.piece; piece < item.end; ++piece) {
        long long begin, end;
        find_columns(call, piece, begin, end);
        for (; begin < end; begin += BLOCK) {
            const int n = end - begin < BLOCK ? int(end - begin) : BLOCK;
            __syncthreads();
            for (int c = threadIdx.x; c < n; c += THREADS)
                load_column(call, bases, p, begin + c, columns + c * COLUMN_VALUES);
            __syncthreads();
            if (busy) reduce_block(p, x, state, columns, column_index(begin), n);
        }
    }
    const bool empty = call.items ? item.piece == item.end : call.n_columns == 0;
    const long long n_partial = (long long)gridDim.x * TILE;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + 32 * r;
        if (row >= item.n_rows) continue;
        if (call.partial)
            save(state[r], call.partial, (long long)blockIdx.x * TILE + row, n_partial);
        else
            write(call, bases, p, state[r], item.row + row, item.batch * call.n_rows + item.row + row, empty);
    }
}

// One thread a row takes what the items of its tile have left, in the order of their columns.
extern "C" __global__ void __launch_bounds__(COMBINERS) combine_parts(const __grid_constant__ Call call) {
    constexpr int SHARE = (TILE + COMBINERS - 1) / COMBINERS;
    const long long number = blockIdx.x / SHARE;
    const int row_in_tile = int(blockIdx.x % SHARE) * COMBINERS + threadIdx.x;
    const long long batch = number / call.n_tiles, tile = number - batch * call.n_tiles;
    long long row = tile * TILE, end = row + TILE, item = tile * call.n_parts, last = item + call.n_parts;
    if (call.tiles) {
        const long long* it = call.tiles + 4 * tile;
        row = it[0], end = it[1], item = it[2], last = it[3];
    }
    if (end > call.n_rows) end = call.n_rows;
    if (row_in_tile >= TILE || row + row_in_tile >= end) return;
    const Bases bases = find_bases(call, batch);
    real p[PARAMETERS];
    load_parameters(call, bases, row, p);
    State state;
    clear(state);
    const long long n_partial = call.n_batch * call.n_items * TILE;
#pragma unroll 4
    for (; item < last; ++item)
        merge(state, call.partial, (batch * call.n_items + item) * TILE + row_in_tile, n_partial);
    write(call, bases, p, state, row + row_in_tile, batch * call.n_rows + row + row_in_tile, false);
}
