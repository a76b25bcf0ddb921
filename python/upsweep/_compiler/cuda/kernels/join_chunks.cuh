// The states before each chunk of a column, from what the chunks do to a state: a matrix (or shift) and a vector (or
// bound), which a scan from nothing has found.
//
// Carries are joined in double, in an order that depends on their number alone. What cannot be trusted, since a number
// in it is not finite, has the column's steps joined again as steps over all states; of updates that do not extend to these
// (EXTENDS) one thread goes through the column again, chunk after chunk, step by step where need be.
// Bytes: two readings and one writing of some numbers a chunk. Called by: `_backends/cuda/user_scan_launch.py`.

constexpr int TOGETHER = 8;  // steps that are loaded together where a chunk is walked

__device__ __forceinline__ long long column_of(const Call& call, long long column, long long chunk) {
    return CHUNK_DIM == 0 ? chunk * (call.n_columns / call.n_chunks) + column : column * call.n_chunks + chunk;
}

__device__ __forceinline__ void load_carry(const Call& call, long long column, Carry& carry) {
    // No one writes there meanwhile: what is loaded for the next chunks need not wait for what is stored.
    const auto load = [&](int n) {
        return double(fetch_element<real>(reinterpret_cast<const char*>(call.reduced + n * call.n_columns + column)));
    };
#pragma unroll
    for (int n = 0; n < N_MATRIX; ++n) carry.matrix[n] = VARIES ? load(n) : call.matrix[n];
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) carry.rest[s] = load((VARIES ? N_MATRIX : 0) + s);
}

__device__ __forceinline__ void save_start(const Call& call, long long column, const double* state) {
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) call.starts[s * call.n_columns + column] = real(state[s]);
}

// Chunk after chunk from `state`, which becomes the one after them; false once something was not reliable.
__device__ __forceinline__ bool go_through(
    const Call& call, long long column, long long chunk, long long end, double* state) {
    bool trusted = are_reliable(state);
#pragma unroll 4
    for (; chunk < end; ++chunk) {
        const long long at = column_of(call, column, chunk);
        Carry carry;
        load_carry(call, at, carry);
        save_start(call, at, state);
        double after[N_STATES];
        apply(carry, state, after);
        // What the last chunk does to the state matters to none.
        trusted = trusted && (chunk + 1 == call.n_chunks || (is_reliable(carry) && is_known(carry, after)));
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = after[s];
    }
    return trusted;
}

// Calls take(fixed, x) with the inputs of each step of a chunk.
template <class Function>
__device__ __forceinline__ void for_each_step(const Call& call, long long column, Function take) {
    const Place place = find_place(call, column);
    Walk walk = begin_walk(call, place);
    Fixed fixed;
    fetch_fixed(call, place, fixed);
    for (long long left = walk.n_steps; left > 0; left -= TOGETHER) {
        Inputs x[TOGETHER];
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t)
            if (t < left) fetch(call, walk, x[t]);
#pragma unroll 1
        for (int t = 0; t < TOGETHER && t < left; ++t) take(fixed, x[t]);
    }
}

__device__ __noinline__ void walk_chunk(const Call& call, long long column, double* states) {
    real p[PARAMETERS], state[N_STATES];
    load_parameters(call, p);
    for (int s = 0; s < N_STATES; ++s) state[s] = real(states[s]);
    for_each_step(call, column, [&](const Fixed& fixed, const Inputs& x) {
        real out[N_OUTPUTS];
        step(p, fixed, x, state, out);
    });
    for (int s = 0; s < N_STATES; ++s) states[s] = state[s];
}

__device__ __noinline__ void scan_in_order(const Call& call, long long column) {
    real first[N_STATES];
    double state[N_STATES], after[N_STATES];
    load_states(call, find_place(call, column_of(call, column, 0)), first);
    for (int s = 0; s < N_STATES; ++s) state[s] = first[s];
    for (long long chunk = 0; chunk < call.n_chunks; ++chunk) {
        const long long at = column_of(call, column, chunk);
        save_start(call, at, state);
        if (chunk + 1 == call.n_chunks) break;
        Carry carry;
        load_carry(call, at, carry);
        const bool known = jump(carry, state, after);
        if (!known) walk_chunk(call, at, state);
        for (int s = 0; s < N_STATES && known; ++s) state[s] = double(real(after[s]));
    }
}

// shares[t] = what the first t + 1 shares do, from what each does, by all threads; those without a share come last.
template <class Share, class Function>
__device__ __forceinline__ void scan_shares(Share* shares, Share total, Function join) {
    shares[threadIdx.x] = total;
    __syncthreads();
#pragma unroll 1
    for (int distance = 1; distance < JOINERS; distance *= 2) {
        const bool joins = int(threadIdx.x) >= distance;
        if (joins) total = join(shares[threadIdx.x - distance], total);
        __syncthreads();
        if (joins) shares[threadIdx.x] = total;
        __syncthreads();
    }
}

// The states before the chunks from `begin` up to `end`, the thread's share, by steps over all states. By all threads.
__device__ __noinline__ void join_over_all_states(
    const Call& call, long long column, long long begin, long long end, ExtendedStep* shares) {
    real p[PARAMETERS], q[PART_PARAMETERS], first[N_STATES];
    load_parameters(call, p);
    load_part_parameters(call, q);
    ExtendedRun run;
    for (long long chunk = begin; chunk < end; ++chunk)
        for_each_step(call, column_of(call, column, chunk),
                      [&](const Fixed& fixed, const Inputs& x) { add_step(p, q, fixed, x, run); });
    scan_shares(shares, run.step(), [](const ExtendedStep& before, const ExtendedStep& own) {
        return upsweep::combine<real>(before, own);
    });
    double state[N_STATES];
    load_states(call, find_place(call, column_of(call, column, 0)), first);
    state[0] = threadIdx.x > 0 ? shares[threadIdx.x - 1].of<real>(first[0]) : first[0];
    for (long long chunk = begin; chunk < end; ++chunk) {
        const long long at = column_of(call, column, chunk);
        save_start(call, at, state);
        if (chunk + 1 < end) walk_chunk(call, at, state);
    }
}

// A thread a column, where chunks are few.
extern "C" __global__ void __launch_bounds__(THREADS) join_alone(const __grid_constant__ Call call) {
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= call.n_columns / call.n_chunks) return;
    real first[N_STATES];
    double state[N_STATES];
    load_states(call, find_place(call, column_of(call, column, 0)), first);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = first[s];
    if (!go_through(call, column, 0, call.n_chunks, state)) scan_in_order(call, column);
}

// A block a column: each thread joins its share of the chunks, the shares are scanned, and each thread goes through
// its own again.
extern "C" __global__ void __launch_bounds__(JOINERS) join_together(const __grid_constant__ Call call) {
    __shared__ Carry shares[JOINERS];
    __shared__ ExtendedStep extended[EXTENDS ? JOINERS : 1];
    const long long column = blockIdx.x, share = (call.n_chunks + JOINERS - 1) / JOINERS;
    const long long begin = threadIdx.x * share < call.n_chunks ? threadIdx.x * share : call.n_chunks;
    const long long end = begin + share < call.n_chunks ? begin + share : call.n_chunks;
    Carry total, next;
    if (begin < end) load_carry(call, column_of(call, column, begin), total);
#pragma unroll 4
    for (long long chunk = begin + 1; chunk < end; ++chunk) {
        load_carry(call, column_of(call, column, chunk), next);
        append(total, next);
    }
    // What those without a share have is read by none.
    scan_shares(shares, total, [](Carry before, const Carry& own) {
        append(before, own);
        return before;
    });
    real first[N_STATES];
    double state[N_STATES], after[N_STATES];
    load_states(call, find_place(call, column_of(call, column, 0)), first);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = first[s];
    bool trusted = are_reliable(state);
    if (threadIdx.x > 0 && begin < end) {
        const Carry& before = shares[threadIdx.x - 1];
        apply(before, state, after);
        trusted = trusted && is_reliable(before) && (KIND == AFFINE || is_known(before, after));
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = after[s];
    }
    if (begin < end) trusted = go_through(call, column, begin, end, state) && trusted;
    const bool in_order = __syncthreads_or(!trusted);
    if (EXTENDS && in_order)
        join_over_all_states(call, column, begin, end, extended);
    else if (in_order && threadIdx.x == 0)
        scan_in_order(call, column);
}
