// A thread iterates over the steps of one column. The inputs of AHEAD steps are loaded into registers while those of the
// AHEAD steps before are used: so much of memory is on its way at any time.
// Called by: every kernel of a recurrence.

__device__ __forceinline__ void fetch_ahead(const Call& call, Walk& walk, Inputs (&x)[AHEAD]) {
#pragma unroll
    for (int t = 0; t < AHEAD; ++t) fetch(call, walk, x[t]);
}

__device__ __forceinline__ void take_ahead(
    const Call& call, Walk& walk, const real* p, const Fixed& fixed, const Inputs (&x)[AHEAD], real* state) {
#pragma unroll
    for (int t = 0; t < AHEAD; ++t) {
        real out[N_OUTPUTS];
        step(p, fixed, x[t], state, out);
        store(call, walk, out);
    }
}

__device__ __forceinline__ void walk_steps(
    const Call& call, Walk& walk, const real* p, const Fixed& fixed, real* state) {
    Inputs x[AHEAD], following[AHEAD];
    const long long n_tiles = walk.n_steps / AHEAD;
    const int rest = int(walk.n_steps - n_tiles * AHEAD);
    if (n_tiles > 0) fetch_ahead(call, walk, x);
#pragma unroll 1
    for (long long tile = 0; tile < n_tiles; tile += 2) {
        if (tile + 1 < n_tiles) fetch_ahead(call, walk, following);
        take_ahead(call, walk, p, fixed, x, state);
        if (tile + 1 < n_tiles) {
            if (tile + 2 < n_tiles) fetch_ahead(call, walk, x);
            take_ahead(call, walk, p, fixed, following, state);
        }
    }
#pragma unroll
    for (int t = 0; t < AHEAD; ++t)
        if (t < rest) fetch(call, walk, x[t]);
#pragma unroll
    for (int t = 0; t < AHEAD; ++t) {
        if (t < rest) {
            real out[N_OUTPUTS];
            step(p, fixed, x[t], state, out);
            store(call, walk, out);
        }
    }
}

// The states before the column's first step.
__device__ __forceinline__ void begin_states(const Call& call, const Place& place, long long column, real* state) {
    if (JOINED) {
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = call.starts[s * call.n_columns + column];
    } else {
        load_states(call, place, state);
    }
}

__device__ __forceinline__ void end_states(
    const Call& call, const Place& place, long long column, bool is_last, const real* state) {
    if (REDUCES) {
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) call.reduced[s * call.n_columns + column] = state[s];
    } else if (is_last) {
        store_finals(call, place, state);
    }
}
