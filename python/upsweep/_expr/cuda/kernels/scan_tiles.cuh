// Few long lines in one pass: a block takes a tile of a line's steps, finds the state before it, and takes the steps.
//
// Bytes: each input is read once, each output written once, and some words a tile. A warp's part of a tile is 32 runs
// of TILE neighbouring steps, which lie in shared memory as in scan_lines.cuh the steps of 32 columns: asynchronous
// copies bring them there in the order of memory, each lane reads its own run, and leaves its outputs where the inputs
// were. A run is reduced from nothing; what runs do is joined over the warp and the block, in double; the first warp
// posts it and finds the state before the tile (look_back.cuh), and each lane then takes its steps from its own state.
// Called by: `_cuda/user_scans.py`, where n_columns are lines, and a chunk is a tile.

constexpr int AT_ONCE = 32 / TILE, PIECE = 8, N_WARPS = THREADS / 32, WARP_STEPS = 32 * TILE;

// What threads of a block tell each other.
struct Joint {
    unsigned ticket;
    bool is_plain, is_known, is_useful;
    bool useful[N_WARPS], ordinary[N_WARPS];
    Carry carries[N_WARPS];
    double state[N_STATES], after[N_STATES];
};

// A warp's part of a tile.
struct Part {
    Walk corner;  // of its first step
    char* shared;
    int left;     // steps of the line from there on, WARP_STEPS at most

    __device__ __forceinline__ bool is_whole() const { return left == WARP_STEPS; }
    // Of the lane's own run.
    __device__ __forceinline__ int steps() const {
        const int n = left - int(threadIdx.x % 32) * TILE;
        return n < 0 ? 0 : n < TILE ? n : TILE;
    }
};

template <bool WHOLE>
__device__ __forceinline__ void fetch_part(const Call& call, const Part& part) {
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
__device__ __forceinline__ void store_part(const Call& call, const Part& part) {
    const int lane = threadIdx.x % 32, row = lane / TILE, t = lane % TILE;
    Walk at = part.corner;
    begin_outputs(call, at, row, t);
#pragma unroll
    for (int n = 0; n < TILE; ++n) {
        if (WHOLE || n * 32 + lane < part.left) store_here(at, part.shared, n * AT_ONCE + row, t);
        next_outputs(call, at, AT_ONCE);
    }
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

// The lane's state before its run, from that before the tile, run after run: over those that can be trusted in one go.
// The state after the tile is in joint.after.
__device__ __noinline__ void go_in_order(
    const Call& call, const Fixed& fixed, const Part& part, Joint& joint, double* start) {
    Carry carry = reduce_run(call, fixed, part.shared);
    const int n_steps = part.steps();
    if (threadIdx.x == 0)
        for (int s = 0; s < N_STATES; ++s) joint.after[s] = joint.state[s];
    __syncthreads();
    for (int turn = 0; turn < THREADS; ++turn) {
        if (int(threadIdx.x) == turn) {
            double after[N_STATES];
            for (int s = 0; s < N_STATES; ++s) start[s] = joint.after[s];
            if (n_steps < TILE || !jump(carry, start, after)) {
                real state[N_STATES];
                for (int s = 0; s < N_STATES; ++s) state[s] = real(start[s]);
                take_run<false, false>(call, fixed, part.shared, n_steps, state);
                for (int s = 0; s < N_STATES; ++s) after[s] = state[s];
            }
            for (int s = 0; s < N_STATES; ++s) joint.after[s] = double(real(after[s]));
        }
        __syncthreads();
    }
}

// Of a run of TILE steps, which are the last axis.
__device__ __forceinline__ Place find_run(const Call& call, long long line, long long run) {
    Place place;
    place.at[N_DIMS - 1] = run;
#pragma unroll
    for (int d = N_DIMS - 2; d > 0; --d) {
        const long long rest = line / call.shape[d];
        place.at[d] = line - rest * call.shape[d];
        line = rest;
    }
    place.at[0] = line;
    return place;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) run_scan(const __grid_constant__ Call call) {
    __shared__ Joint joint;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) joint.ticket = take_ticket(reinterpret_cast<unsigned*>(call.reduced));
    __syncthreads();
    // The first tiles of all lines, then the second ones: a tile's predecessor has then long begun.
    const unsigned n_lines = unsigned(call.n_columns);
    const unsigned tile = joint.ticket / n_lines, line = joint.ticket - tile * n_lines;
    const bool is_last = tile + 1 == unsigned(call.n_chunks);
    const Place place = find_run(call, line, ((long long)tile * N_WARPS + warp) * 32);
    Part part;
#pragma unroll
    for (int n = 0; n < N_INPUTS; ++n) part.corner.inputs[n] = find_address(call.inputs[n], place);
#pragma unroll
    for (int n = 0; n < N_OUTPUTS; ++n) part.corner.outputs[n] = find_address(call.outputs[n], place);
    part.shared = shared_memory() + warp * WARP_BYTES;
    const long long left = call.n_steps - ((long long)tile * N_WARPS + warp) * WARP_STEPS;
    part.left = left < 0 ? 0 : left < WARP_STEPS ? int(left) : WARP_STEPS;
    if (part.is_whole())
        fetch_part<true>(call, part);
    else
        fetch_part<false>(call, part);
    Fixed fixed;
    fetch_fixed(call, place, fixed);
    wait_for_copies();
    __syncwarp();

    // What the warp's runs do before the lane's own, and all of them.
    const int n_steps = part.steps();
    Carry carry = nothing();
    bool useful = true, ordinary = true;
    if (n_steps == TILE) {
        carry = reduce_run(call, fixed, part.shared);
        useful = is_useful(carry);
        ordinary = is_ordinary(carry);
    }
#pragma unroll
    for (int bit = 0; bit < 5; ++bit) {
        const Carry other = of_lane_before(carry, 1 << bit);
        if (lane >= 1 << bit) put_before(call, bit, other, carry);
    }
    ordinary = ordinary && (n_steps < TILE || is_ordinary(carry));
    const bool any_useless = any_of_warp(!useful), any_odd = any_of_warp(!ordinary);
    if (lane == 31) {
        joint.carries[warp] = carry;
        joint.useful[warp] = !any_useless;
        joint.ordinary[warp] = !any_odd;
    }
    carry = of_lane_before(carry, 1);
    if (lane == 0) carry = nothing();
    __syncthreads();

    if (warp == 0) {
        Carry own = joint.carries[0];
        bool all_useful = joint.useful[0], all_ordinary = joint.ordinary[0] && call.is_bounded;
#pragma unroll
        for (int w = 1; w < N_WARPS; ++w) {
            Carry next = joint.carries[w];
            put_before(call, 5, own, next);
            own = next;
            all_useful = all_useful && joint.useful[w];
            all_ordinary = all_ordinary && joint.ordinary[w] && is_ordinary(own);
        }
        const Chain chain(call, line);
        if (!is_last && lane == 0) post_carry(chain.carries + (long long)tile * CARRY_WORDS, own, all_useful);
        real first[N_STATES];
        double state[N_STATES], after[N_STATES];
        load_states(call, place, first);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = first[s];
        if (tile > 0) {
            double initial[N_STATES];
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) initial[s] = first[s];
            chain.find_state(call, tile, own, all_useful, initial, state);
        }
        // The state after the tile goes out before anything else is done: others may wait for it.
        const bool known = jump_over(call, TILE_LEVEL, 1, 1, own, state, after) && all_useful;
        if (lane == 0) {
            if (!is_last && known) chain.post_state(tile, after);
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) joint.state[s] = state[s];
            joint.is_known = is_last || known;
            joint.is_useful = all_useful;
            joint.is_plain = all_ordinary && all_useful && are_ordinary(state);
        }
    } else {
        // Those before the lane's own in the block. The first warp's are known.
        Carry before = joint.carries[0];
#pragma unroll 1
        for (int w = 1; w < warp; ++w) {
            Carry next = joint.carries[w];
            put_before(call, 5, before, next);
            before = next;
        }
        if (VARIES || KIND == WINNER || HAS_NUMBER) {
            set_number(call, 0, 5, lane, carry);
            append(before, carry);
            carry = before;
        } else {
            double moved[N_STATES];
            advance(call, 0, 5, lane, carry, before.rest, moved);
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) carry.rest[s] = moved[s];
        }
    }
    set_number(call, 0, TILE_LEVEL, threadIdx.x, carry);
    __syncthreads();

    // Nothing comes before the first run: a carry of nothing would replace an extreme that is equal to it.
    double start[N_STATES];
    const bool is_first = threadIdx.x == 0;
    if (joint.is_plain && joint.is_known) {
        advance(call, 0, TILE_LEVEL, threadIdx.x, carry, joint.state, start);
    } else {  // seldom
        const bool known = jump_over(call, 0, TILE_LEVEL, threadIdx.x, carry, joint.state, start) || is_first;
        const bool all_known = !__syncthreads_or(!known && n_steps > 0);
        if (!all_known || !joint.is_useful || !joint.is_known) {
            // On copies, so that nothing of the usual way has to lie in memory.
            const Part same = part;
            const Fixed same_fixed = fixed;
            double found[N_STATES];
            go_in_order(call, same_fixed, same, joint, found);
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) start[s] = found[s];
            if (threadIdx.x == 0 && !is_last && !joint.is_known) Chain(call, line).post_state(tile, joint.after);
        }
    }
    real state[N_STATES];
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = real(is_first ? joint.state[s] : start[s]);
    if (part.is_whole()) {
        take_run<true, true>(call, fixed, part.shared, TILE, state);
        __syncwarp();
        store_part<true>(call, part);
    } else {
        take_run<false, true>(call, fixed, part.shared, n_steps, state);
        __syncwarp();
        store_part<false>(call, part);
    }
    if (n_steps > 0 && part.left <= (lane + 1) * TILE && left <= WARP_STEPS) store_finals(call, place, state);
}
