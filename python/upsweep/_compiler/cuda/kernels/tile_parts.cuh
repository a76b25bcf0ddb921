// A warp's part of a tile: 32 runs of TILE neighbouring steps of a line, in shared memory as in scan_lines.cuh the
// steps of 32 columns. Copies bring them there in the order of memory, each lane reads its own run, and leaves its
// outputs where inputs of their size were.
// Called by: scan_tiles.cuh and scan_persistent.cuh.

constexpr int AT_ONCE = 32 / TILE, PIECE = 8, N_WARPS = THREADS / 32, WARP_STEPS = 32 * TILE;

// Of a run of TILE steps, which are the last axis.
__device__ __forceinline__ Place find_run(const Call& call, long long line, long long run) {
    Place place = find_place<N_DIMS - 2>(call, line);
    place.at[N_DIMS - 1] = run;
    return place;
}

// A warp's part of a tile.
struct WarpTile {
    Walk corner;  // of its first step
    char* shared;
    int left;     // steps of the line from there on, WARP_STEPS at most
    bool is_last;  // no more than these

    __device__ __forceinline__ bool is_whole() const { return left == WARP_STEPS; }
    // Of the lane's own run.
    __device__ __forceinline__ int steps() const {
        const int n = left - int(threadIdx.x % 32) * TILE;
        return n < 0 ? 0 : n < TILE ? n : TILE;
    }
    // Whether the lane's own run has all its steps. steps() == TILE is false on Hopper, where ptxas 13.0 makes one
    // minimum with a predicate of both comparisons.
    __device__ __forceinline__ bool has_run() const { return left >= int(threadIdx.x % 32 + 1) * TILE; }
};

// The warp's part of a tile, which is to lie from `shared` on; and the place of its first run.
__device__ __forceinline__ Place find_part(const Call& call, unsigned line, unsigned tile, char* shared, WarpTile& part) {
    const long long number = (long long)tile * N_WARPS + threadIdx.x / 32;
    const Place place = find_run(call, line, number * 32);
#pragma unroll
    for (int n = 0; n < N_INPUTS; ++n) part.corner.inputs[n] = find_address(call.inputs[n], place);
#pragma unroll
    for (int n = 0; n < N_OUTPUTS; ++n) part.corner.outputs[n] = find_address(call.outputs[n], place);
    part.shared = shared;
    const long long left = call.n_steps - number * WARP_STEPS;
    part.left = left < 0 ? 0 : left < WARP_STEPS ? int(left) : WARP_STEPS;
    part.is_last = left <= WARP_STEPS;
    return place;
}

template <bool WHOLE>
__device__ __forceinline__ void fetch_part(const Call& call, const WarpTile& part) {
    const int lane = threadIdx.x % 32, row = lane / TILE, t = lane % TILE;
    Walk at = part.corner;
    begin_inputs(call, at, row, t);
#pragma unroll
    for (int n = 0; n < TILE; ++n) {
        if (WHOLE || n * 32 + lane < part.left) copy_here(at, part.shared, n * AT_ONCE + row, t);
        next_inputs(call, at, AT_ONCE);
    }
}

template <bool WHOLE>
__device__ __forceinline__ void store_part(const Call& call, const WarpTile& part) {
    const int lane = threadIdx.x % 32, row = lane / TILE, t = lane % TILE;
    Walk at = part.corner;
    begin_outputs(call, at, row, t);
#pragma unroll
    for (int n = 0; n < TILE; ++n) {
        if (WHOLE || n * 32 + lane < part.left) store_here(at, part.shared, n * AT_ONCE + row, t);
        next_outputs(call, at, AT_ONCE);
    }
}

__device__ __forceinline__ void fetch_part(const Call& call, const WarpTile& part) {
    if (part.is_whole())
        fetch_part<true>(call, part);
    else
        fetch_part<false>(call, part);
}

// What the lane's run, of which all steps are there, does to a state.
__device__ __forceinline__ Carry reduce_run(const Call& call, const Fixed& fixed, const char* shared) {
    real q[REDUCTION_PARAMETERS], numbers[N_REDUCED];
    load_reduction_parameters(call, q);
    begin_reduction(numbers);
#pragma unroll 1
    for (int from = 0; from < TILE; from += PIECE) {
        Inputs x[PIECE];
#pragma unroll
        for (int k = 0; k < PIECE; ++k) get_inputs(shared, threadIdx.x % 32, from + k, x[k]);
#pragma unroll
        for (int k = 0; k < PIECE; ++k) reduce_step(q, fixed, x[k], numbers);
    }
    Carry carry;
#pragma unroll
    for (int n = 0; n < N_MATRIX; ++n) carry.matrix[n] = VARIES ? double(numbers[n]) : call.matrix[n];
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) carry.rest[s] = numbers[CARRIED + s];
    return carry;
}

template <bool WHOLE, bool WRITES>
__device__ __forceinline__ void take_run(
    const Call& call, const Fixed& fixed, char* shared, int n_steps, real* state) {
    real p[PARAMETERS];
    load_parameters(call, p);
#pragma unroll 1
    for (int from = 0; from < TILE; from += PIECE) {
        Inputs x[PIECE];
#pragma unroll
        for (int k = 0; k < PIECE; ++k) get_inputs(shared, threadIdx.x % 32, from + k, x[k]);
#pragma unroll
        for (int k = 0; k < PIECE; ++k) {
            if (WHOLE || from + k < n_steps) {
                real out[N_OUTPUTS];
                step(p, fixed, x[k], state, out);
                if (WRITES) put_outputs(shared, threadIdx.x % 32, from + k, out);
            }
        }
    }
}

// The lane's steps from the state before them, and what comes of them; by whole warps.
__device__ __forceinline__ void finish_part(
    const Call& call, const Fixed& fixed, const Place& place, const WarpTile& part, const double* start) {
    real state[N_STATES];
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = real(start[s]);
    const int n_steps = part.steps();
    if (part.is_whole()) {
        take_run<true, true>(call, fixed, part.shared, TILE, state);
        __syncwarp();
        store_part<true>(call, part);
    } else {
        take_run<false, true>(call, fixed, part.shared, n_steps, state);
        __syncwarp();
        store_part<false>(call, part);
    }
    if (part.is_last && n_steps > 0 && part.left <= int(threadIdx.x % 32 + 1) * TILE) store_finals(call, place, state);
}

// What the warp's runs up to each lane's own do, from what the lanes' own do.
__device__ __forceinline__ void join_lanes(const Call& call, int level, int bits, Carry& carry) {
#pragma unroll
    for (int bit = 0; bit < bits; ++bit) {
        const Carry before = of_lane_before(carry, 1 << bit);
        if (int(threadIdx.x % 32) >= 1 << bit) put_before(call, level + bit, before, carry);
    }
}

// What the block's warps before the lane's own do, and then the lanes before it, of whom `carry` and `number` are.
__device__ __forceinline__ void put_warps_before(
    const Call& call, const Carry& warps, double number, Carry& carry) {
    if (VARIES || KIND == WINNER || HAS_NUMBER) {
        Carry total = warps;
        set_number(number, carry);
        append(total, carry);
        carry = total;
    } else {
        double moved[N_STATES];
        advance(call, 0, 5, threadIdx.x % 32, carry, warps.rest, moved);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) carry.rest[s] = moved[s];
    }
}

// The lane's state before its run, from that before the tile, run after run: over those that can be trusted in one go.
// `passed` is in shared memory, and has the state after the tile in the end. By all threads that have runs.
__device__ __noinline__ void scan_in_order(
    const Call& call, const Fixed& fixed, const WarpTile& part, double* before, double* passed, double* start) {
    Carry carry = reduce_run(call, fixed, part.shared);
    const int n_steps = part.steps();
    if (threadIdx.x == 0)
        for (int s = 0; s < N_STATES; ++s) passed[s] = before[s];
    sync_threads(1, THREADS);
    for (int turn = 0; turn < THREADS; ++turn) {
        if (int(threadIdx.x) == turn) {
            double after[N_STATES];
            for (int s = 0; s < N_STATES; ++s) start[s] = passed[s];
            if (!part.has_run() || !jump(carry, start, after)) {
                real state[N_STATES];
                for (int s = 0; s < N_STATES; ++s) state[s] = real(start[s]);
                take_run<false, false>(call, fixed, part.shared, n_steps, state);
                for (int s = 0; s < N_STATES; ++s) after[s] = state[s];
            }
            for (int s = 0; s < N_STATES; ++s) passed[s] = double(real(after[s]));
        }
        sync_threads(1, THREADS);
    }
}
