// min, max, argmin, argmax and both at once: of each component of F over the columns, the first column that has it.
// NaN is the extreme of what contains it. The largest of F is the smallest of -F.
// With indices, CHUNK columns are looked at together: only where the smallest of them is below what is known is
// it asked which one it was.
// Called by: reduce_pairs and combine_parts in kernel.cuh.

struct State {
    real best[N_RESULTS];
    column_index at[N_RESULTS];
};

static_assert(PARTIAL_BYTES == N_RESULTS * (sizeof(real) + sizeof(long long)), "what render.py says");

__device__ __forceinline__ void clear(State& state) {
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) state.best[k] = infinity(), state.at[k] = -1;
}

__device__ __forceinline__ real directed(real value) { return LARGEST ? -value : value; }

__device__ __forceinline__ void take(State& state, int k, real value, column_index at) {
    if (value < state.best[k] || (value != value && state.best[k] == state.best[k]))
        state.best[k] = value, state.at[k] = at;
}

template <int FORM, int COUNT, int ROWS>
__device__ __forceinline__ void load_relaxed(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, int c,
    column_index first) {
    real value[ROWS][N_RESULTS][COUNT];
    values_of_chunk<FORM>(p, x, columns, c, value);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll EACH_RESULT
        for (int k = 0; k < N_RESULTS; ++k) {
            real low = directed(value[r][k][0]);
#pragma unroll
            for (int u = 1; u < COUNT; ++u) low = least(low, directed(value[r][k][u]));
            if (!INDICES) {
                state[r].best[k] = least(state[r].best[k], low);
            } else if (!(low >= state[r].best[k])) {
#pragma unroll
                for (int u = 0; u < COUNT; ++u) take(state[r], k, directed(value[r][k][u]), first + c + u);
            }
        }
}

template <int FORM, int ROWS>
__device__ __forceinline__ void reduce_block(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, column_index first,
    int n) {
    int c = 0;
    for (; c + CHUNK <= n; c += CHUNK) load_relaxed<FORM, CHUNK>(p, x, state, columns, c, first);
    for (; c < n; ++c) load_relaxed<FORM, 1>(p, x, state, columns, c, first);
    if (!INDICES) return;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll EACH_RESULT
        for (int k = 0; k < N_RESULTS; ++k)
            if (state[r].at[k] < 0) state[r].at[k] = first;  // all have been infinite
}

// What a thread has of a tile that float16_products.cuh multiplies: the least of a row first, then where it is.
template <int FORM, class Pairs>
__device__ __forceinline__ void reduce_tile(const Pairs& pairs, column_index first, State (&state)[2]) {
    constexpr int COLUMNS = Pairs::COLUMNS;
    real value[2][N_RESULTS][COLUMNS];
    pairs.template each<FORM>([&](int r, int u, const Pair<FORM>& at, bool is_there) {
#pragma unroll
        for (int k = 0; k < N_RESULTS; ++k) value[r][k][u] = is_there ? directed(at.result[k]) : infinity();
    });
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int k = 0; k < N_RESULTS; ++k) {
            const real(&values)[COLUMNS] = value[r][k];
            real low[4] = {values[0], values[1], values[2], values[3]};
#pragma unroll
            for (int u = 4; u < COLUMNS; ++u) low[u % 4] = least(low[u % 4], values[u]);
            low[0] = least(least(low[0], low[1]), least(low[2], low[3]));
            real& best = state[r].best[k];
            column_index& at = state[r].at[k];
            if (!INDICES) {
                best = least(best, low[0]);
            } else if (low[0] < best) {
#pragma unroll
                for (int u = COLUMNS - 1; u >= 0; --u) at = values[u] == low[0] ? first + Pairs::column(u) : at;
                best = low[0];
            } else if (low[0] != low[0] && best == best) {
#pragma unroll
                for (int u = COLUMNS - 1; u >= 0; --u) at = values[u] != values[u] ? first + Pairs::column(u) : at;
                best = low[0];
            }
            if (INDICES && at < 0) at = first;  // all have been infinite
        }
}

// The better of two lanes' states; of equals, the one whose column comes first.
__device__ __forceinline__ void join_lanes(State& state, int mask) {
#pragma unroll
    for (int k = 0; k < N_RESULTS; ++k) {
        const real value = of_other_lane(state.best[k], mask);
        const column_index at = of_other_lane(state.at[k], mask);
        const bool both = value == state.best[k] || (value != value && state.best[k] != state.best[k]);
        if (both && at >= 0 && at < state.at[k]) state.at[k] = at;
        take(state, k, value, at);
    }
}

__device__ __forceinline__ void settle(State&, int) {}

__device__ __forceinline__ void save(const State& state, char* partial, long long at, long long n) {
    long long* indices = reinterpret_cast<long long*>(partial);
    real* values = reinterpret_cast<real*>(indices + N_RESULTS * n);
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) values[k * n + at] = state.best[k], indices[k * n + at] = state.at[k];
}

__device__ __forceinline__ void merge(State& state, const char* partial, long long at, long long n) {
    const long long* indices = reinterpret_cast<const long long*>(partial);
    const real* values = reinterpret_cast<const real*>(indices + N_RESULTS * n);
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) {
        const column_index column = column_index(indices[k * n + at]);
        take(state, k, values[k * n + at], column);
        if (state.at[k] < 0) state.at[k] = column;
    }
}

__device__ __forceinline__ void write(
    const Call& call, const Bases&, const real*, State& state, long long, long long at, bool) {
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) {
        if (VALUES)
            reinterpret_cast<element*>(call.values)[at * N_RESULTS + k] =
                Stored<element>::narrow(directed(state.best[k]));
        if (INDICES) call.indices[at * N_RESULTS + k] = state.at[k];
    }
}
