// result[i] = reduction over the columns j that row i meets of F(i, j), where F reads the squared distance or the
// scalar product of vectors x_i and y_j of at most 128 features, which have been rounded to float16.
//
// A warp keeps its 32 rows in registers, as two tiles of 16; the block copies BLOCK columns at a time to shared memory,
// and multiplies STRIP of them at a time. While a tile's products are reduced, in the registers that tensor cores have
// written, those of the other tile are made. A thread has four rows and a quarter of the columns; four threads that
// have the same rows combine their results in the end.
// Called by: `_backends/cuda/pairs_launch.py`.

constexpr int STAGES = 3;                               // columns are read, by slower warps too, or are on their way
constexpr int STRIP = 64;                               // columns whose products a warp makes at a time
constexpr int ATOM = 128 * BLOCK;                       // bytes of 64 features of the columns
constexpr int INFO = (STEPS + 3) / 4 * ATOM;            // where norms and factors of the columns are
constexpr int RECORDS = INFO + BLOCK * sizeof(ColumnInfo);  // where their records are
static_assert(BLOCK % STRIP == 0, "whole strips");
static_assert(RECORDS + BLOCK * COLUMN_VALUES * sizeof(real) <= STAGE_BYTES && STAGE_BYTES % 1024 == 0, "sizes.py");

__device__ __forceinline__ real Column::product() const { return mma_product; }

// Stages begin at multiples of 1024 bytes, which tensor cores expect.
__device__ __forceinline__ char* stage_at(int stage) {
    char* memory = shared_memory();
    memory += -reinterpret_cast<unsigned long long>(memory) & 1023;
    return memory + stage * STAGE_BYTES;
}

// The columns that come, and the record of one of them, which a thread brings and places a turn later.
struct Ahead {
    static constexpr bool RECORD = COLUMN_VALUES <= 4;
    Blocks block;
    int stage, n;
    column_index begin;
    real record[RECORD ? COLUMN_VALUES : 1];

    __device__ __forceinline__ Ahead(const Blocks& first) : block(first), stage(0), n(0), begin(0) {}

    __device__ __forceinline__ void fetch(
        const Call& call, const Bases& bases, const real* p, const Item& item, const Prepared& prepared) {
        n = block.any() ? block.n_columns() : 0, begin = block.begin;
        char* to = stage_at(stage);
        // Of pieces of 16 bytes; what is behind the last column is that of columns that were there, or of none.
        constexpr int PIECES = 2 * STEPS;
        const char* from = prepared.columns + begin * (long long)(PIECES * 16) + threadIdx.x * 16;
#pragma unroll
        for (int first = 0; first < BLOCK * PIECES; first += THREADS) {
            constexpr bool EVEN = THREADS % PIECES == 0;
            const int column = EVEN ? threadIdx.x / PIECES + first / PIECES : (first + threadIdx.x) / PIECES;
            const int piece = (EVEN ? threadIdx.x : first + threadIdx.x) % PIECES;
            if (column < n)
                copy_together(to + piece / 8 * ATOM + column * 128 + (piece % 8 ^ column % 8) * 16, from + first * 16);
        }
        const int column = threadIdx.x;
        if (column < n) {
            copy_element<double>(
                to + INFO + column * sizeof(ColumnInfo), reinterpret_cast<const char*>(prepared.info + begin + column));
            if (RECORD) load_column(call, bases, p, begin + column, record);
        }
        commit_copies();
        if (n) block.advance(call, item);
    }
    __device__ __forceinline__ void place(const Call& call, const Bases& bases, const real* p) {
        real* to = reinterpret_cast<real*>(stage_at(stage) + RECORDS) + threadIdx.x * COLUMN_VALUES;
        if (threadIdx.x < n) {
            if (!RECORD) load_column(call, bases, p, begin + threadIdx.x, to);
#pragma unroll
            for (int k = 0; RECORD && k < COLUMN_VALUES; ++k) to[k] = record[RECORD ? k : 0];
        }
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
};

// Columns that are multiplied together: where they are in shared memory, the first one, and how many there are.
struct Strip {
    int stage, first, n;
    column_index begin;
};

// A thread's pairs of a tile of rows and a strip of columns: two rows and 16 columns.
template <bool WHOLE>
struct Pairs {
    static constexpr int COLUMNS = 16;
    const real* p;
    const real (&x)[2][ROW_VALUES];
    const Tile& products;
    const real (&norm)[2], (&factor)[2];
    const Strip& strip;

    // The column of place u of the thread.
    static __device__ __forceinline__ int column(int u) { return u / 2 * 8 + threadIdx.x % 4 * 2 + u % 2; }

    // Call `take(row, place, pair, whether the column is there)` for each.
    template <int FORM, class Take>
    __device__ __forceinline__ void each(Take take) const {
        const char* stage = stage_at(strip.stage);
        const real* all_info = reinterpret_cast<const real*>(stage + INFO) + 2 * strip.first;
        const real* records = reinterpret_cast<const real*>(stage + RECORDS) + strip.first * COLUMN_VALUES;
#pragma unroll
        for (int two = 0; two < COLUMNS; two += 2) {
            real info[4];
            read_together(all_info + 2 * column(two), info);
#pragma unroll
            for (int u = two; u < two + 2; ++u) {
                Column y(records, column(u));
                const real norm_of_column = info[u % 2 * 2], scale = info[u % 2 * 2 + 1];
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    // One factor after the other: both together may be more, or less, than float32 holds.
                    const real product = products[u / 2][2 * r + u % 2], scaled = SCALED ? product * scale : product;
                    y.mma_product = CENTRED ? most(fma(scaled, factor[r], norm[r] + norm_of_column), real(0))
                                            : scaled * factor[r];
                    take(r, u, Pair<FORM>(p, x[r], y), WHOLE || column(u) < strip.n);
                }
            }
        }
    }
};

__device__ __forceinline__ void multiply(const Rows& rows, int tile, const Strip& strip, Tile& products) {
    const char* columns = stage_at(strip.stage) + strip.first * 128;
    begin_products();
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        start_products(products, rows.words[tile][step], columns + step / 4 * ATOM, step % 4, step > 0);
    commit_products();
}

template <bool WHOLE>
__device__ __forceinline__ void reduce_pairs_of(const Pairs<WHOLE>& pairs, column_index first, State (&state)[2]) {
    if (SIGNED && pairs.p[SIGN] > 0)
        reduce_tile<1>(pairs, first, state);
    else
        reduce_tile<0>(pairs, first, state);
}

__device__ __forceinline__ void reduce_products(
    const real* p, const real (&x)[2][ROW_VALUES], const Rows& rows, int tile, const Tile& products,
    const Strip& strip, State (&state)[2]) {
    const real(&norm)[2] = rows.norm[tile], (&factor)[2] = rows.factor[tile];
    if (strip.n >= STRIP)
        reduce_pairs_of(Pairs<true>{p, x, products, norm, factor, strip}, strip.begin, state);
    else
        reduce_pairs_of(Pairs<false>{p, x, products, norm, factor, strip}, strip.begin, state);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
    reduce_pairs(const __grid_constant__ Call call) {
    __shared__ Item item;
    __shared__ Bases bases;
    if (threadIdx.x == 0) item = find_item(call, blockIdx.x), bases = find_bases(call, item.batch);
    __syncthreads();
    const Prepared prepared(call, item.batch);
    real p[PARAMETERS];
    load_parameters(call, bases, item.row, p);
    Blocks block(call, item);
    Ahead ahead(block);
    ahead.fetch(call, bases, p, item, prepared);
    Rows rows;
    load_rows(call, bases, item, prepared.centre, rows);
    real x[ROW_TILES][2][ROW_VALUES];
    State state[ROW_TILES][2];
#pragma unroll
    for (int r = 0; r < 2 * ROW_TILES; ++r) {
        const int row = own_row(r / 2, r % 2);
        load_row(call, bases, p, item.row + (row < item.n_rows ? row : int(item.n_rows) - 1), x[r / 2][r % 2]);
        clear(state[r / 2][r % 2]);
    }
    if (block.any()) {
        Tile first, second;
        Strip strip = {0, 0, block.n_columns(), block.begin};
        const auto bring = [&] {  // what comes next is there, and what is after it begins to come
            ahead.place(call, bases, p);
            wait_for_copies();
            publish_copies();
            __syncthreads();
            ahead.fetch(call, bases, p, item, prepared);
        };
        bring();
        multiply(rows, 0, strip, first);
        wait_for_products(first);
        // No products are on their way at the end of a turn: the compiler would wait for them at once.
#pragma unroll 1
        for (bool more = true; more;) {
            const Strip done = strip;
            multiply(rows, 1, done, second);
            reduce_products(p, x[0], rows, 0, first, done, state[0]);
            wait_for_products(second);
            if (done.n > STRIP && done.first + STRIP < BLOCK) {
                strip = Strip{done.stage, done.first + STRIP, done.n - STRIP, done.begin + STRIP};
            } else {
                block.advance(call, item);
                more = block.any();
                if (more) {
                    strip = Strip{done.stage + 1 < STAGES ? done.stage + 1 : 0, 0, block.n_columns(), block.begin};
                    bring();
                }
            }
            multiply(rows, 0, strip, first);  // where no strip comes, of the last one again: nobody reads them
            reduce_products(p, x[1], rows, 1, second, done, state[1]);
            wait_for_products(first);
        }
    }
    State own;
#pragma unroll
    for (int r = 0; r < 2 * ROW_TILES; ++r) {
        State& of_row = state[r / 2][r % 2];
        join_lanes(of_row, 1);
        join_lanes(of_row, 2);
        if (threadIdx.x % 4 == r) own = of_row;
    }
    const int row = own_row(threadIdx.x % 4 / 2, threadIdx.x % 2);
    if (row >= item.n_rows) return;
    const bool empty = call.items ? item.piece == item.end : call.n_columns == 0;
    if (call.partial)
        save(own, call.partial, (long long)blockIdx.x * TILE + row, (long long)gridDim.x * TILE);
    else
        write(call, bases, p, own, item.row + row, item.batch * call.n_rows + item.row + row, empty);
}
