// Few long lines in one pass: a block takes a tile of a line's steps, finds the state before it, and takes the steps.
//
// Bytes: each input is read once, each output written once, and some words a tile. A lane's run is reduced from
// nothing; what runs do is joined over the warp and the block, in double; the first warp posts it and finds the state
// before the tile (look_back.cuh), and each lane then takes its steps from its own state.
// Called by: `_cuda/user_scans.py`, where n_columns are lines, and a chunk is a tile.

// What threads of a block tell each other.
struct Joint {
    unsigned ticket;
    bool is_plain, is_known, is_useful;
    bool useful[N_WARPS], ordinary[N_WARPS];
    Carry carries[N_WARPS];
    double state[N_STATES], after[N_STATES];
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) run_scan(const __grid_constant__ Call call) {
    __shared__ Joint joint;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) joint.ticket = take_ticket(reinterpret_cast<unsigned*>(call.reduced));
    __syncthreads();
    // The first tiles of all lines, then the second ones: a tile's predecessor has then long begun.
    const unsigned n_lines = unsigned(call.n_columns);
    const unsigned tile = joint.ticket / n_lines, line = joint.ticket - tile * n_lines;
    const bool is_last = tile + 1 == unsigned(call.n_chunks);
    Part part;
    const Place place = find_part(call, line, tile, shared_memory() + warp * WARP_BYTES, part);
    fetch_part(call, part);
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
    join_lanes(call, 0, 5, carry);
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
        put_warps_before(call, before, find_number(call, 0, 5, lane), carry);
    }
    set_number(find_number(call, 0, TILE_LEVEL, threadIdx.x), carry);
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
            go_in_order(call, same_fixed, same, joint.state, joint.after, found);
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) start[s] = found[s];
            if (threadIdx.x == 0 && !is_last && !joint.is_known) Chain(call, line).post_state(tile, joint.after);
        }
    }
    if (is_first) {
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) start[s] = joint.state[s];
    }
    finish_part(call, fixed, place, part, start);
}
