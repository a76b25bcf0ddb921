// kmin, argkmin and both at once: of each component of F over the columns the K smallest, sorted; of equal ones the
// first column comes first. NaN comes last, and what columns are too few for is +inf and -1.
// The K best stay in registers. CHUNK columns are looked at together: only where the smallest of them is below
// the K-th best are they inserted, which happens about K * log(columns / K) times a row.
// Called by: reduce_pairs and combine_parts in kernel.cuh.

struct State {
    real value[N_RESULTS][K];  // NaN where there is none yet
    column_index at[N_RESULTS][K];
};

static_assert(PARTIAL_BYTES == N_RESULTS * K * (sizeof(real) + sizeof(long long)), "what render.py says");

__device__ __forceinline__ void clear(State& state) {
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k)
#pragma unroll EACH_PLACE
        for (int place = 0; place < K; ++place) state.value[k][place] = not_a_number(), state.at[k][place] = -1;
}

__device__ __forceinline__ void insert(State& state, int k, real value, column_index at) {
    if (value != value) {
        bool free = true;
#pragma unroll EACH_PLACE
        for (int place = 0; place < K; ++place)
            if (free && state.at[k][place] < 0) state.at[k][place] = at, free = false;
        return;
    }
    // What is not smaller or equal moves back by one; NaN does, which is also what no column has taken yet.
    bool here = !(state.value[k][K - 1] <= value);
    if (!here) return;
#pragma unroll EACH_PLACE
    for (int place = K - 1; place > 0; --place) {
        const bool next = !(state.value[k][place - 1] <= value);
        state.value[k][place] = next ? state.value[k][place - 1] : here ? value : state.value[k][place];
        state.at[k][place] = next ? state.at[k][place - 1] : here ? at : state.at[k][place];
        here = next;
    }
    if (here) state.value[k][0] = value, state.at[k][0] = at;
}

// One of values in registers, where a loop is not unrolled.
template <int COUNT, int ROWS>
__device__ __forceinline__ real chosen(const real (&value)[COUNT][ROWS][N_RESULTS], int u, int r, int k) {
    real found = value[0][r][k];
#pragma unroll
    for (int v = 1; v < COUNT; ++v) found = u == v ? value[v][r][k] : found;
    return found;
}

template <int COUNT, int ROWS>
__device__ __forceinline__ void look(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, int c,
    column_index first) {
    real value[COUNT][ROWS][N_RESULTS];
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
        const Column y(columns, c + u);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            Pair at(p, x[r], y);
#pragma unroll EACH_RESULT
            for (int k = 0; k < N_RESULTS; ++k) value[u][r][k] = at.result[k];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll EACH_RESULT
        for (int k = 0; k < N_RESULTS; ++k) {
            real low = value[0][r][k];
#pragma unroll
            for (int u = 1; u < COUNT; ++u) low = least_number(low, value[u][r][k]);
            if (!(low >= state[r].value[k][K - 1])) {
#pragma unroll 1
                for (int u = 0; u < COUNT; ++u) insert(state[r], k, chosen(value, u, r, k), first + c + u);
            }
        }
}

template <int ROWS>
__device__ __forceinline__ void reduce_block(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, column_index first,
    int n) {
    int c = 0;
    for (; c + CHUNK <= n; c += CHUNK) look<CHUNK>(p, x, state, columns, c, first);
    for (; c < n; ++c) look<1>(p, x, state, columns, c, first);
}

__device__ __forceinline__ void save(const State& state, char* partial, long long at, long long n) {
    long long* indices = reinterpret_cast<long long*>(partial);
    real* values = reinterpret_cast<real*>(indices + N_RESULTS * K * n);
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k)
#pragma unroll EACH_PLACE
        for (int place = 0; place < K; ++place) {
            values[(k * K + place) * n + at] = state.value[k][place];
            indices[(k * K + place) * n + at] = state.at[k][place];
        }
}

__device__ __forceinline__ void merge(State& state, const char* partial, long long at, long long n) {
    const long long* indices = reinterpret_cast<const long long*>(partial);
    const real* values = reinterpret_cast<const real*>(indices + N_RESULTS * K * n);
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k)
#pragma unroll 1
        for (int place = 0; place < K; ++place) {
            const long long column = indices[(k * K + place) * n + at];
            if (column >= 0) insert(state, k, values[(k * K + place) * n + at], column_index(column));
        }
}

__device__ __forceinline__ void write(
    const Call& call, const Bases&, const real*, State& state, long long, long long at, bool) {
#pragma unroll EACH_PLACE
    for (int place = 0; place < K; ++place)
#pragma unroll EACH_RESULT
        for (int k = 0; k < N_RESULTS; ++k) {
            const long long to = (at * K + place) * N_RESULTS + k;
            const real value = state.at[k][place] < 0 ? infinity() : state.value[k][place];
            if (VALUES) reinterpret_cast<element*>(call.values)[to] = Stored<element>::narrow(value);
            if (INDICES) call.indices[to] = state.at[k][place];
        }
}
