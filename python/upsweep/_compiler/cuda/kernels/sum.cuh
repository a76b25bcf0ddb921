// result[i] = sum over j of F(i, j).
// Inside a block of columns sums are kept in `real`, from block to block in `wide`: with at most 128 columns a
// block the rounding of float32 stays below 128 * 2^-24 of the sum of the terms' sizes.
// Called by: reduce_pairs and combine_parts in kernel.cuh.

struct State {
    wide sum[N_RESULTS];
};

static_assert(PARTIAL_BYTES == N_RESULTS * sizeof(wide), "what render.py says");

__device__ __forceinline__ void clear(State& state) {
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) state.sum[k] = 0;
}

template <int FORM, int ROWS>
__device__ __forceinline__ void reduce_block(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, column_index, int n) {
    real sum[ROWS][N_RESULTS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll EACH_RESULT
        for (int k = 0; k < N_RESULTS; ++k) sum[r][k] = 0;
#pragma unroll UNROLLED
    for (int c = 0; c < n; ++c) {
        const Column y(columns, c);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            Pair<FORM> at(p, x[r], y);
#pragma unroll EACH_RESULT
            for (int k = 0; k < N_RESULTS; ++k) sum[r][k] += at.result[k];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll EACH_RESULT
        for (int k = 0; k < N_RESULTS; ++k) state[r].sum[k] += wide(sum[r][k]);
}

// What a thread has of a tile that float16_products.cuh multiplies.
template <int FORM, class Pairs>
__device__ __forceinline__ void reduce_tile(const Pairs& pairs, column_index, State (&state)[2]) {
    real sum[2][N_RESULTS] = {};
    pairs.template each<FORM>([&](int r, int, const Pair<FORM>& at, bool is_there) {
#pragma unroll
        for (int k = 0; k < N_RESULTS; ++k) sum[r][k] += is_there ? at.result[k] : real(0);
    });
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int k = 0; k < N_RESULTS; ++k) state[r].sum[k] += wide(sum[r][k]);
}

__device__ __forceinline__ void join_lanes(State& state, int mask) {
#pragma unroll
    for (int k = 0; k < N_RESULTS; ++k) state.sum[k] += of_other_lane(state.sum[k], mask);
}

__device__ __forceinline__ void settle(State&, int) {}

__device__ __forceinline__ void save(const State& state, char* partial, long long at, long long n) {
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) reinterpret_cast<wide*>(partial)[k * n + at] = state.sum[k];
}

__device__ __forceinline__ void merge(State& state, const char* partial, long long at, long long n) {
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) state.sum[k] += reinterpret_cast<const wide*>(partial)[k * n + at];
}

__device__ __forceinline__ void write(
    const Call& call, const Bases& bases, const real* p, State& state, long long row, long long at, bool empty) {
    if (!empty) finish_sum(call, bases, p, row, state.sum);  // 0 times what may be infinite
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k)
        reinterpret_cast<element*>(call.values)[at * N_RESULTS + k] = Stored<element>::narrow(real(state.sum[k]));
}
