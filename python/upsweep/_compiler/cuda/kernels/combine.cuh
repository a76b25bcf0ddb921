// What the items of a tile have left becomes the result of its rows.
// Called by: `_backends/cuda/pairs_launch.py`, after reduce_pairs, where tiles were cut along the columns.

// One thread a row takes what the items of its tile have left, in the order of their columns.
extern "C" __global__ void __launch_bounds__(COMBINERS) combine_parts(const __grid_constant__ Call call) {
    constexpr int SHARE = (TILE + COMBINERS - 1) / COMBINERS;
    const long long number = blockIdx.x / SHARE;
    const int row_in_tile = int(blockIdx.x % SHARE) * COMBINERS + threadIdx.x;
    const long long batch = unsigned(number) / unsigned(call.n_tiles), tile = number - batch * call.n_tiles;
    long long row = tile * TILE, end = row + TILE, item = tile * call.n_parts, last = item + call.n_parts;
    if (call.tiles) {
        const long long* it = call.tiles + 4 * tile;
        row = it[0], end = it[1], item = it[2], last = it[3];
    }
    if (end > call.n_rows) end = call.n_rows;
    if (row_in_tile >= TILE || row + row_in_tile >= end) return;
    const bool empty = call.items && last - item == 1 && call.items[4 * item + 2] == call.items[4 * item + 3];
    const Bases bases = find_bases(call, batch);
    real p[PARAMETERS];
    load_parameters(call, bases, row, p);
    State state;
    clear(state);
    const long long n_partial = call.n_batch * call.n_items * TILE;
#pragma unroll 4
    for (; item < last; ++item)
        merge(state, call.partial, (batch * call.n_items + item) * TILE + row_in_tile, n_partial);
    write(call, bases, p, state, row + row_in_tile, batch * call.n_rows + row + row_in_tile, empty);
}
