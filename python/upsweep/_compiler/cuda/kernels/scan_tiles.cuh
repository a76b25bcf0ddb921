// Few long lines in one pass: a block takes a tile of a line's steps, finds the state before it, and takes the steps.
//
// Bytes: each input is read once, each output written once, and some words a tile. A lane's run is reduced from
// nothing; what runs do is joined over the warp and the block, in double; the first warp posts it and finds the state
// before the tile (look_back.cuh), and each lane then takes its steps from its own state.
// Called by: `_backends/cuda/user_scan_launch.py`, where n_columns are lines, and a chunk is a tile.

// Values shared by the threads of a block.
struct BlockShared {
    unsigned ticket;
    bool is_plain, is_known, is_combinable, is_begun;
    bool combinable[N_WARPS], in_range[N_WARPS];
    Carry carries[N_WARPS];
    double state[N_STATES], after[N_STATES];
    ExtendedStep extended[EXTENDS ? N_WARPS : 1];
};

// The lane's state before its run, by steps over all states. By all threads.
__device__ __noinline__ double scan_over_all_states(
    const Call& call, const Fixed& fixed, const WarpTile& part, unsigned line, unsigned tile, BlockShared& shared_state,
    double first) {
    ExtendedStep all;
    const StepsBefore before = scan_extended(call, fixed, part, shared_state.extended, &all);
    if (threadIdx.x < 32) {
        const Chain chain(call, line);
        const bool is_begun = shared_state.is_begun;
        const double state = is_begun ? shared_state.state[0] : chain.find_extended_state(tile, all, first);
        if (threadIdx.x == 0) {
            double after[N_STATES];
            after[0] = all.of<real>(state);
            if (!shared_state.is_known && (is_begun || Chain::ends_family(tile))) chain.store_state(tile, after);
            shared_state.state[0] = state;
        }
        __syncwarp();
    }
    __syncthreads();
    return before.state_after(shared_state.state[0]);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) run_scan(const __grid_constant__ Call call) {
    __shared__ BlockShared shared_state;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) shared_state.ticket = take_ticket(reinterpret_cast<unsigned*>(call.reduced));
    __syncthreads();
    // The first tiles of all lines, then the second ones: a tile's predecessor has then long begun.
    const unsigned n_lines = unsigned(call.n_columns);
    const unsigned tile = shared_state.ticket / n_lines, line = shared_state.ticket - tile * n_lines;
    const bool is_last = tile + 1 == unsigned(call.n_chunks);
    WarpTile part;
    const Place place = find_part(call, line, tile, shared_memory() + warp * WARP_BYTES, part);
    fetch_part(call, part);
    Fixed fixed;
    fetch_fixed(call, place, fixed);
    wait_for_copies();
    __syncwarp();

    // What the warp's runs do before the lane's own, and all of them.
    const int n_steps = part.steps();
    Carry carry = nothing();
    bool combinable = true, in_range = true;
    const bool has_run = part.has_run();
    if (has_run) {
        carry = reduce_run(call, fixed, part.shared);
        combinable = is_combinable(carry);
        in_range = is_in_range(carry);
    }
    join_lanes(call, 0, 5, carry);
    in_range = in_range && (!has_run || is_in_range(carry));
    const bool any_not_combinable = any_of_warp(!combinable), any_out_of_range = any_of_warp(!in_range);
    if (lane == 31) {
        shared_state.carries[warp] = carry;
        shared_state.combinable[warp] = !any_not_combinable;
        shared_state.in_range[warp] = !any_out_of_range;
    }
    carry = of_lane_before(carry, 1);
    if (lane == 0) carry = nothing();
    __syncthreads();

    if (warp == 0) {
        Carry own = shared_state.carries[0];
        bool all_combinable = shared_state.combinable[0], all_in_range = shared_state.in_range[0] && call.is_bounded;
#pragma unroll
        for (int w = 1; w < N_WARPS; ++w) {
            Carry next = shared_state.carries[w];
            put_before(call, 5, own, next);
            own = next;
            all_combinable = all_combinable && shared_state.combinable[w];
            all_in_range = all_in_range && shared_state.in_range[w] && is_in_range(own);
        }
        const Chain chain(call, line);
        if (!is_last && lane == 0) store_carry(chain.carries + (long long)tile * CARRY_WORDS, own, all_combinable);
        real first[N_STATES];
        double state[N_STATES], after[N_STATES];
        load_states(call, place, first);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = first[s];
        bool is_begun = true;
        if (tile > 0) {
            double initial[N_STATES];
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) initial[s] = first[s];
            is_begun = chain.find_state(call, tile, own, all_combinable, initial, state);
        }
        // The state after the tile goes out before anything else is done: others may wait for it.
        const bool known = jump_over(call, TILE_LEVEL, 1, 1, own, state, after) && is_begun &&
                           (all_combinable || stays_nan(state));
        if (lane == 0) {
            if (!is_last && known) chain.store_state(tile, after);
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) shared_state.state[s] = state[s];
            shared_state.is_known = is_last || known;
            shared_state.is_combinable = all_combinable;
            shared_state.is_begun = is_begun;
            shared_state.is_plain = all_in_range && all_combinable && is_begun && are_in_range(state);
        }
    } else {
        // Those before the lane's own in the block. The first warp's are known.
        Carry before = shared_state.carries[0];
#pragma unroll 1
        for (int w = 1; w < warp; ++w) {
            Carry next = shared_state.carries[w];
            put_before(call, 5, before, next);
            before = next;
        }
        put_warps_before(call, before, find_number(call, 0, 5, lane), carry);
    }
    set_number(find_number(call, 0, TILE_LEVEL, threadIdx.x), carry);
    __syncthreads();

    // Nothing comes before the first run: a carry of nothing would replace an extreme that is equal to it.
    double start[N_STATES];
    const bool is_first = threadIdx.x == 0;
    if (shared_state.is_plain && shared_state.is_known) {
        advance(call, 0, TILE_LEVEL, threadIdx.x, carry, shared_state.state, start);
    } else {  // seldom
        const bool known = jump_over(call, 0, TILE_LEVEL, threadIdx.x, carry, shared_state.state, start) || is_first;
        const bool all_known = !__syncthreads_or(!known && n_steps > 0) && shared_state.is_begun;
        const bool is_passed = shared_state.is_combinable || stays_nan(shared_state.state);
        if (!all_known || !is_passed || !shared_state.is_known) {
            // On copies, so that nothing of the usual way has to lie in memory.
            const WarpTile same = part;
            const Fixed same_fixed = fixed;
            if (EXTENDS) {
                real first[N_STATES];
                load_states(call, place, first);
                start[0] = scan_over_all_states(call, same_fixed, same, line, tile, shared_state, first[0]);
            } else {
                double in_order_state[N_STATES];
                scan_in_order(call, same_fixed, same, shared_state.state, shared_state.after, in_order_state);
#pragma unroll
                for (int s = 0; s < N_STATES; ++s) start[s] = in_order_state[s];
                if (threadIdx.x == 0 && !is_last && !shared_state.is_known)
                    Chain(call, line).store_state(tile, shared_state.after);
            }
        }
    }
    if (is_first) {
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) start[s] = shared_state.state[s];
    }
    finish_part(call, fixed, place, part, start);
}
