// A column's own steps are neighbours in memory: a warp takes 32 columns, and turns squares of them in shared memory.
//
// Whole rows of TILE steps are loaded into registers, AT_ONCE columns by one instruction, while the tile before is
// used: 32 columns times TILE steps are on their way in each warp. Each lane then reads its own column's steps from
// shared memory, in which a row takes an odd number of banks, and leaves its outputs there, which go out by rows.
// Warps do not wait for each other. Called by: `_backends/cuda/user_scan_launch.py`.

constexpr int AT_ONCE = 32 / TILE, PIECE = 8;

struct Square {  // 32 neighbouring columns, or what is left of a row of them
    Walk corner;  // of the first
    long long n_steps, steps_of_last;
    int n_columns;

    // Of chunks the last may be short, and nothing comes behind it.
    __device__ __forceinline__ bool has(int column, long long t) const {
        return column < n_columns - 1 ? t < n_steps : column == n_columns - 1 && t < steps_of_last;
    }
    __device__ __forceinline__ bool is_whole(long long t) const { return n_columns == 32 && t + TILE <= steps_of_last; }
};

// WHOLE: all of the square's columns are there and have all of the tile's steps, as most do.
template <bool WHOLE>
__device__ __forceinline__ void fetch_rows(const Call& call, const Square& square, long long t, Inputs (&x)[TILE]) {
    const int lane = threadIdx.x % 32, row = lane / TILE;
    t += lane % TILE;
    Walk at = square.corner;
    begin_inputs(call, at, row, t);
#pragma unroll
    for (int n = 0; n < TILE; ++n) {
        const int column = n * AT_ONCE + row;
        if (WHOLE || square.has(column, t)) fetch_here(at, x[n]);
        next_inputs(call, at, AT_ONCE);
    }
}

template <bool WHOLE>
__device__ __forceinline__ void store_rows(const Call& call, const Square& square, long long t, const char* shared) {
    const int lane = threadIdx.x % 32, row = lane / TILE, step = lane % TILE;
    t += step;
    Walk at = square.corner;
    begin_outputs(call, at, row, t);
#pragma unroll
    for (int n = 0; n < TILE; ++n) {
        const int column = n * AT_ONCE + row;
        if (WHOLE || square.has(column, t)) store_here(at, shared, column, step);
        next_outputs(call, at, AT_ONCE);
    }
}

__device__ __forceinline__ void fetch_tile(const Call& call, const Square& square, long long t, Inputs (&x)[TILE]) {
    if (square.is_whole(t))
        fetch_rows<true>(call, square, t, x);
    else
        fetch_rows<false>(call, square, t, x);
}

// The lane's own column past the tile's steps, of which `left` are there.
template <bool WHOLE>
__device__ __forceinline__ void take_tile(const real* p, const Fixed& fixed, char* shared, int left, real* state) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int from = 0; from < TILE; from += PIECE) {
        Inputs x[PIECE];
#pragma unroll
        for (int k = 0; k < PIECE; ++k) get_inputs(shared, lane, from + k, x[k]);
#pragma unroll
        for (int k = 0; k < PIECE; ++k) {
            if (WHOLE || from + k < left) {
                real out[N_OUTPUTS];
                step(p, fixed, x[k], state, out);
                put_outputs(shared, lane, from + k, out);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) run_scan(const __grid_constant__ Call call) {
    const int lane = threadIdx.x % 32;
    char* const shared = shared_memory() + threadIdx.x / 32 * WARP_BYTES;
    const long long extent = call.shape[N_DIMS - 1], squares = (extent + 31) / 32;
    const long long number = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const long long outer = number / squares;
    const long long inner = (number - outer * squares) * 32;
    if (outer * extent >= call.n_columns) return;
    Square square;
    square.n_columns = extent - inner < 32 ? int(extent - inner) : 32;
    square.corner = begin_walk(call, find_place(call, outer * extent + inner));
    square.n_steps = square.corner.n_steps;
    square.steps_of_last = begin_walk(call, find_place(call, outer * extent + inner + square.n_columns - 1)).n_steps;

    // A lane without a column has the last one's place, takes whatever lies in its row, and leaves nothing.
    const bool busy = lane < square.n_columns;
    const long long column = outer * extent + inner + (busy ? lane : square.n_columns - 1);
    const Place place = find_place(call, column);
    const Walk own = begin_walk(call, place);
    real p[PARAMETERS], state[N_STATES];
    load_parameters(call, p);
    Fixed fixed;
    fetch_fixed(call, place, fixed);
    begin_states(call, place, column, state);

    Inputs following[TILE];
    fetch_tile(call, square, 0, following);
#pragma unroll 1
    for (long long t = 0; t < square.n_steps; t += TILE) {
        __syncwarp();
#pragma unroll
        for (int n = 0; n < TILE; ++n) put_inputs(shared, n * AT_ONCE + lane / TILE, lane % TILE, following[n]);
        __syncwarp();
        if (t + TILE < square.n_steps) fetch_tile(call, square, t + TILE, following);
        if (square.is_whole(t)) {
            take_tile<true>(p, fixed, shared, TILE, state);
            __syncwarp();
            store_rows<true>(call, square, t, shared);
        } else {
            take_tile<false>(p, fixed, shared, own.n_steps - t < TILE ? int(own.n_steps - t) : TILE, state);
            __syncwarp();
            store_rows<false>(call, square, t, shared);
        }
    }
    if (busy) end_states(call, place, column, own.is_last, state);
}
