// kmin, argkmin and both at once: of each component of F over the columns the K smallest, sorted; of equal ones the
// first column comes first. NaN comes last, and what columns are too few for is +inf and -1.
// The K best stay in registers. CHUNK columns are looked at together: only where the smallest of them is below
// the K-th best for a row of the warp, which happens about K * log(columns / K) times a row, are they candidates. To
// insert one takes as long as ten pairs, and all lanes wait for it: so candidates wait in shared memory until a
// lane has enough of them, and then all lanes insert theirs.
// Called by: reduce_pairs and combine_parts in kernel.cuh.

struct State {
    real value[N_RESULTS][K];  // NaN where there is none yet
    column_index at[N_RESULTS][K];
    int n_waiting[N_RESULTS];
};

struct Candidate {
    real value;
    column_index at;
};

constexpr int WAITING = 8;  // candidates of a row and a result
static_assert(WAITING >= CHUNK, "after candidates have been inserted there is room for a chunk");
// Where formulas have many results there is no room, and candidates are inserted at once.
constexpr bool BUFFERED = N_RESULTS * ROWS * WAITING * THREADS * int(sizeof(Candidate)) <= 32 * 1024;

__device__ __forceinline__ Candidate* waiting_room(int row, int k) {
    __shared__ Candidate room[BUFFERED ? N_RESULTS * ROWS * WAITING * THREADS : 1];
    return room + (row * N_RESULTS + k) * WAITING * THREADS + threadIdx.x;
}

static_assert(PARTIAL_BYTES == N_RESULTS * K * (sizeof(real) + sizeof(long long)), "what render.py says");

__device__ __forceinline__ void clear(State& state) {
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k)
#pragma unroll EACH_PLACE
        for (int place = 0; place < K; ++place) state.value[k][place] = not_a_number(), state.at[k][place] = -1;
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) state.n_waiting[k] = 0;
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
    bool inserts = !(state.value[k][K - 1] <= value);
    if (!inserts) return;
#pragma unroll EACH_PLACE
    for (int place = K - 1; place > 0; --place) {
        const bool next = !(state.value[k][place - 1] <= value);
        state.value[k][place] = next ? state.value[k][place - 1] : inserts ? value : state.value[k][place];
        state.at[k][place] = next ? state.at[k][place - 1] : inserts ? at : state.at[k][place];
        inserts = next;
    }
    if (inserts) state.value[k][0] = value, state.at[k][0] = at;
}

// All lanes insert their candidates, first come first served.
__device__ __forceinline__ void insert_waiting(State& state, int row, int k) {
    const Candidate* room = waiting_room(row, k);
#pragma unroll 1
    for (int turn = 0; any_of_warp(turn < state.n_waiting[k]); ++turn) {
        if (turn < state.n_waiting[k]) {
            const Candidate one = room[turn * THREADS];
            insert(state, k, one.value, one.at);
        }
    }
    state.n_waiting[k] = 0;
}

template <int COUNT>
__device__ __forceinline__ void consider(State& state, int row, int k, const real (&value)[COUNT], column_index first) {
    const real worst = state.value[k][K - 1];
    if (!BUFFERED) {
#pragma unroll
        for (int u = 0; u < COUNT; ++u)
            if (!(value[u] >= worst)) insert(state, k, value[u], first + u);
        return;
    }
    Candidate* room = waiting_room(row, k);
#pragma unroll
    for (int u = 0; u < COUNT; ++u)
        if (!(value[u] >= worst)) room[state.n_waiting[k]++ * THREADS] = Candidate{value[u], first + u};
    if (any_of_warp(state.n_waiting[k] > WAITING - CHUNK)) insert_waiting(state, row, k);
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
            real low = value[r][k][0];
#pragma unroll
            for (int u = 1; u < COUNT; ++u) low = least_number(low, value[r][k][u]);
            if (any_of_warp(!(low >= state[r].value[k][K - 1]))) consider(state[r], r, k, value[r][k], first + c);
        }
}

template <int FORM, int ROWS>
__device__ __forceinline__ void reduce_block(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, column_index first,
    int n) {
    int c = 0;
    for (; c + CHUNK <= n; c += CHUNK) load_relaxed<FORM, CHUNK>(p, x, state, columns, c, first);
    for (; c < n; ++c) load_relaxed<FORM, 1>(p, x, state, columns, c, first);
}

__device__ __forceinline__ void settle(State& state, int row) {
    if (!BUFFERED) return;
#pragma unroll EACH_RESULT
    for (int k = 0; k < N_RESULTS; ++k) insert_waiting(state, row, k);
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
