// What one call brings: arrays by address and strides, how its work is scheduled, where results go.
// Called by: every kernel of a reduction over pairs. `_backends/cuda/pairs_launch.py` fills the structure, field by field.

struct Array {  // strides in bytes; those of a batch axis on which the array is repeated are 0
    const char* data;
    long long row_stride, component_stride;
    long long batch_strides[MAX_BATCH];
};

// A piece of work is an item: some rows against some columns. Rows come in tiles of at most TILE; a tile has one
// item or several, in the order of their columns, whose results are partial and are combined in that order.
struct Call {
    long long n_rows, n_columns;  // of one entry of the batch
    long long n_items, n_tiles;   // of one entry of the batch
    long long n_parts;            // items of each tile, where every row meets every column
    long long n_batch;
    long long batch_shape[MAX_BATCH];
    const long long* items;   // else, for each item: first row, end of rows, first piece, end of pieces
    const long long* pieces;  // for each piece: first column, end of columns
    const long long* tiles;   // for each tile: first row, end of rows, first item, end of items
    char* prepared;           // columns that another kernel has rounded, if the formula takes such
    char* partial;            // what items leave to be combined; none: each item is a tile's only one
    char* values;
    long long* indices;
    Array arrays[N_ARRAYS];
};

struct Bases {  // where the arrays begin in this entry of the batch
    const char* data[N_ARRAYS];
};

__device__ __forceinline__ Bases find_bases(const Call& call, long long batch) {
    Bases bases;
#pragma unroll
    for (int a = 0; a < N_ARRAYS; ++a) bases.data[a] = call.arrays[a].data;
#pragma unroll 1
    for (int axis = MAX_BATCH - 1; axis >= 0 && batch; --axis) {
        const unsigned size = unsigned(call.batch_shape[axis]);  // of at most 2^31 entries
        const long long index = unsigned(batch) % size;
        batch = unsigned(batch) / size;
#pragma unroll
        for (int a = 0; a < N_ARRAYS; ++a) bases.data[a] += index * call.arrays[a].batch_strides[axis];
    }
    return bases;
}

__device__ __forceinline__ real load(const Call& call, const Bases& bases, int array, long long at, int component) {
    const char* address = bases.data[array] + at * call.arrays[array].row_stride +
                          component * call.arrays[array].component_stride;
    return Stored<element>::widen(fetch_element<element>(address));
}
