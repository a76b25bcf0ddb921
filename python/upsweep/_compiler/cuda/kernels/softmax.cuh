// logsumexp: result[i] = log(sum over j of exp(F(i, j)) * weight(i, j)), one for each component of the weight;
// sumsoftmaxweight: the sum over j of exp(F) * weight, divided by the sum of exp(F).
// Sums are of exp(F - top), where top is the largest F of the first block of columns: later ones may be larger by
// all that float32 holds. Only a block whose sums overflow is looked at again, for a new top: this saves the
// comparisons and the products that a running maximum takes for each pair.
// Called by: reduce_pairs and combine_parts in kernel.cuh.

constexpr int N_SUMS = (N_WEIGHTS ? N_WEIGHTS : 1) + SOFTMAX;

struct State {
    real top;
    wide sum[N_SUMS];  // the last one of a softmax is that of exp(F) alone
};

static_assert(PARTIAL_BYTES == sizeof(real) + N_SUMS * sizeof(wide), "what render.py says");

__device__ __forceinline__ void clear(State& state) {
    state.top = -infinity();
#pragma unroll EACH_WEIGHT
    for (int k = 0; k < N_SUMS; ++k) state.sum[k] = 0;
}

// Bring the sums to another top.
__device__ __forceinline__ void rebase(State& state, real top) {
    const real scale = state.top == top ? real(1) : power(state.top - top);
#pragma unroll EACH_WEIGHT
    for (int k = 0; k < N_SUMS; ++k) state.sum[k] *= wide(scale);
    state.top = top;
}

template <int FORM, int ROWS>
__device__ __forceinline__ void raise_tops(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, int n) {
    real top[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) top[r] = state[r].top;
#pragma unroll 2
    for (int c = 0; c < n; ++c) {
        const Column y(columns, c);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) top[r] = -least_number(-top[r], -Pair<FORM>(p, x[r], y).result[0]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rebase(state[r], top[r]);
}

template <int FORM, int ROWS>
__device__ __forceinline__ void reduce_block(
    const real* p, const real (&x)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns, column_index, int n) {
    bool load_relaxed = false;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) load_relaxed = load_relaxed || state[r].top == -infinity();
    for (int turn = 0; turn < 2; ++turn) {
        if (load_relaxed) raise_tops<FORM>(p, x, state, columns, n);
        real sum[ROWS][N_SUMS], top[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            top[r] = finite_or_0(state[r].top);
#pragma unroll EACH_WEIGHT
            for (int k = 0; k < N_SUMS; ++k) sum[r][k] = 0;
        }
#pragma unroll UNROLLED
        for (int c = 0; c < n; ++c) {
            const Column y(columns, c);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                Pair<FORM> at(p, x[r], y);
                const real e = power(at.result[0] - top[r]);
#pragma unroll EACH_WEIGHT
                for (int k = 0; k < N_WEIGHTS; ++k) sum[r][k] += e * at.weight[k];
                if (SOFTMAX || N_WEIGHTS == 0) sum[r][N_SUMS - 1] += e;
            }
        }
        bool overflow = false;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll EACH_WEIGHT
            for (int k = 0; k < N_SUMS; ++k) overflow = overflow || !(sum[r][k] - sum[r][k] == 0);
        if (load_relaxed || !overflow) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll EACH_WEIGHT
                for (int k = 0; k < N_SUMS; ++k) state[r].sum[k] += wide(sum[r][k]);
            break;
        }
        load_relaxed = true;
    }
}

// What a thread has of a tile that float16_products.cuh multiplies, in the same two turns.
template <int FORM, class Pairs>
__device__ __forceinline__ void reduce_tile(const Pairs& pairs, column_index, State (&state)[2]) {
    bool raise = state[0].top == -infinity() || state[1].top == -infinity();
    for (int turn = 0; turn < 2; ++turn) {
        real top[2] = {state[0].top, state[1].top}, sum[2][N_SUMS] = {};
        if (raise) {
            pairs.template each<FORM>([&](int r, int, const Pair<FORM>& at, bool is_there) {
                if (is_there) top[r] = -least_number(-top[r], -at.result[0]);
            });
            rebase(state[0], top[0]), rebase(state[1], top[1]);
        }
        top[0] = finite_or_0(top[0]), top[1] = finite_or_0(top[1]);
        pairs.template each<FORM>([&](int r, int, const Pair<FORM>& at, bool is_there) {
            const real e = power(at.result[0] - top[r]);
#pragma unroll
            for (int k = 0; k < N_WEIGHTS; ++k) sum[r][k] += is_there ? e * at.weight[k] : real(0);
            if (SOFTMAX || N_WEIGHTS == 0) sum[r][N_SUMS - 1] += is_there ? e : real(0);
        });
        bool overflow = false;
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int k = 0; k < N_SUMS; ++k) overflow = overflow || !(sum[r][k] - sum[r][k] == 0);
        if (raise || !overflow) {
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int k = 0; k < N_SUMS; ++k) state[r].sum[k] += wide(sum[r][k]);
            break;
        }
        raise = true;
    }
}

// The sums of two states, with the larger of their tops.
__device__ __forceinline__ void add_state(State& state, State& other) {
    const real top = -least_number(-state.top, -other.top);
    rebase(state, top);
    rebase(other, top);
#pragma unroll EACH_WEIGHT
    for (int k = 0; k < N_SUMS; ++k) state.sum[k] += other.sum[k];
}

__device__ __forceinline__ void join_lanes(State& state, int mask) {
    State other;
    other.top = of_other_lane(state.top, mask);
#pragma unroll
    for (int k = 0; k < N_SUMS; ++k) other.sum[k] = of_other_lane(state.sum[k], mask);
    add_state(state, other);
}

__device__ __forceinline__ void settle(State&, int) {}

__device__ __forceinline__ void save(const State& state, char* partial, long long at, long long n) {
    wide* sums = reinterpret_cast<wide*>(partial);
#pragma unroll EACH_WEIGHT
    for (int k = 0; k < N_SUMS; ++k) sums[k * n + at] = state.sum[k];
    reinterpret_cast<real*>(sums + N_SUMS * n)[at] = state.top;
}

__device__ __forceinline__ void merge(State& state, const char* partial, long long at, long long n) {
    const wide* sums = reinterpret_cast<const wide*>(partial);
    State other;
#pragma unroll EACH_WEIGHT
    for (int k = 0; k < N_SUMS; ++k) other.sum[k] = sums[k * n + at];
    other.top = reinterpret_cast<const real*>(sums + N_SUMS * n)[at];
    add_state(state, other);
}

__device__ __forceinline__ void write(
    const Call& call, const Bases&, const real*, State& state, long long, long long at, bool empty) {
    constexpr int N_OUT = N_SUMS - SOFTMAX;
    element* values = reinterpret_cast<element*>(call.values) + at * N_OUT;
#pragma unroll EACH_WEIGHT
    for (int k = 0; k < N_OUT; ++k) {
        wide value;
        if (SOFTMAX)
            value = empty ? wide(0) : state.sum[k] / state.sum[N_SUMS - 1];
        else if (state.top - state.top != 0 && state.top == state.top)  // infinite, with its sign
            value = state.top > 0 || state.sum[k] == 0 ? state.top : state.sum[k];
        else
            value = wide(state.top) * wide(sizeof(real) == 8 ? 1 : 0.6931471805599453) + log(state.sum[k]);
        values[k] = Stored<element>::narrow(real(value));
    }
}
