// Which rows and columns a block of threads takes, and which of its bodies a formula takes.
// Called by: reduce_pairs in kernel.cuh and products.cuh.

constexpr int TILE = THREADS * ROWS;

struct Item {
    long long batch, row, n_rows, piece, end;
};

__device__ __forceinline__ Item find_item(const Call& call, long long number) {
    Item item;
    // No more than 2^31 of them are launched, and 32 bits are divided by fewer instructions, compiled sooner.
    item.batch = unsigned(number) / unsigned(call.n_items);
    number -= item.batch * call.n_items;
    if (call.items) {
        const long long* it = call.items + 4 * number;
        item.row = it[0], item.n_rows = it[1] - it[0], item.piece = it[2], item.end = it[3];
    } else {
        const long long tile = unsigned(number) / unsigned(call.n_parts);
        item.row = tile * TILE;
        item.n_rows = call.n_rows - item.row < TILE ? call.n_rows - item.row : TILE;
        item.piece = number - tile * call.n_parts, item.end = item.piece + 1;
    }
    return item;
}

// Columns [begin, end) of a piece; where every row meets every column, of a part: whole blocks, distributed evenly.
__device__ __forceinline__ void find_columns(const Call& call, long long piece, long long& begin, long long& end) {
    if (call.items) {
        begin = call.pieces[2 * piece], end = call.pieces[2 * piece + 1];
        return;
    }
    const long long n_blocks = (call.n_columns + BLOCK - 1) / BLOCK;
    const unsigned n_parts = unsigned(call.n_parts), each = unsigned(n_blocks) / n_parts;
    const unsigned left = unsigned(n_blocks) - each * n_parts, part = unsigned(piece);
    begin = (piece * each + part * left / n_parts) * BLOCK;
    end = ((piece + 1) * each + (part + 1) * left / n_parts) * BLOCK;
    if (end > call.n_columns) end = call.n_columns;
}

// The blocks of columns of an item, in order.
struct Blocks {
    long long piece;
    column_index begin, end;

    __device__ __forceinline__ Blocks(const Call& call, const Item& item) : piece(item.piece - 1), begin(0), end(0) {
        skip_empty(call, item);
    }
    __device__ __forceinline__ bool any() const { return begin < end; }
    __device__ __forceinline__ int n_columns() const { return end - begin < BLOCK ? int(end - begin) : BLOCK; }
    __device__ __forceinline__ void advance(const Call& call, const Item& item) {
        begin += n_columns();
        skip_empty(call, item);
    }
    __device__ __forceinline__ void skip_empty(const Call& call, const Item& item) {
        while (begin >= end && ++piece < item.end) {
            long long first, last;
            find_columns(call, piece, first, last);
            begin = column_index(first), end = column_index(last);
        }
    }
};

// A scale that is a parameter has gone into the points but for its sign: instead of a multiplication for each pair,
// there is one body for either. Where all points are near, there is one that expands the squared distance.
template <int ROWS>
__device__ __forceinline__ void reduce_formed(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, column_index first,
    int n, bool expanded) {
    if (SIGNED && p[SIGN] > 0)
        reduce_block<1>(p, x, state, columns, first, n);
    else if (EXPANDABLE && !TILED && expanded)
        reduce_block<2>(p, x, state, columns, first, n);
    else
        reduce_block<0>(p, x, state, columns, first, n);
}
