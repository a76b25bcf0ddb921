// Few long lines in one pass, by blocks of threads that are all there at once: in each round a block takes one tile.
//
// Tiles are numbered line after line; block b takes tile b of each round of gridDim.x tiles. Its inputs are on their
// way for STAGES - 1 rounds, and what it does to a state is posted EARLY rounds before its steps are taken. A warp of
// its own reads what all tiles of a round do, and so knows the state before its own tile and that before the next round:
// no block waits for one that waits. All blocks fold a round in the same order, so bits are the same on each run.
//
// Where a carry is not combinable, or a state not reliable, all blocks publish what their tiles of the round do to any
// state. Of updates that do not extend to all states (EXTENDS) they go through the round tile after tile; the state
// after such a tile is posted by the block that has it, which takes its steps in order.
//
// Bytes: each input is read once, each output written once; each block reads some words a tile of a round.
// Called by: `_backends/cuda/user_scan_launch.py`, where n_columns are lines, and a chunk is a tile; as a cooperative launch.

// The block's tiles, round after round.
struct Position {
    unsigned round, stage, line, tile, lines_on, tiles_on, of_line;

    __device__ __forceinline__ Position(const Call& call)
        : round(0), stage(0), of_line(unsigned(call.n_chunks)) {
        line = blockIdx.x / of_line, tile = blockIdx.x - line * of_line;
        lines_on = gridDim.x / of_line, tiles_on = gridDim.x - lines_on * of_line;
    }
    __device__ __forceinline__ void advance_lines() {
        ++round, line += lines_on, tile += tiles_on;
        if (tile >= of_line) tile -= of_line, ++line;
        if (++stage == STAGES) stage = 0;
    }
    __device__ __forceinline__ Place find(const Call& call, WarpTile& part) const {
        return find_part(
            call, line, tile, shared_memory() + (stage * N_WARPS + threadIdx.x / 32) * WARP_BYTES, part);
    }
};

// A block's threads that have runs.
struct TileWorker {
    const Call& call;
    BlockShared& shared_state;
    double* prefixes;
    unsigned n_rounds;
    double of_lanes, of_runs;  // the numbers of the lanes before the own one, and of the block's runs

    __device__ __forceinline__ double& prefix(unsigned round, int n) const {
        return prefixes[(round % PREFIXES * PREFIX_WORDS + n) * THREADS + threadIdx.x];
    }

    __device__ __forceinline__ void fetch(Position& at, unsigned n) const {
        if (at.round < n) {
            WarpTile part;
            at.find(call, part);
            fetch_part(call, part);
        }
        commit_copies();
        at.advance_lines();
    }

    // Posts what the tile does, and keeps what its runs before the thread's own do.
    __device__ __forceinline__ void reduce(Position& at) const {
        const unsigned round = at.round;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, turn = round % 2;
        WarpTile part;
        const Place place = at.find(call, part);
        at.advance_lines();
        Fixed fixed;
        fetch_fixed(call, place, fixed);
        const bool is_whole = part.steps() == TILE;
        Carry carry = nothing();
        bool combinable = true, in_range = true;
        if (is_whole) {
            carry = reduce_run(call, fixed, part.shared);
            combinable = is_combinable(carry);
            in_range = is_in_range(carry);
        }
        join_lanes(call, 0, 5, carry);
        in_range = in_range && (!is_whole || is_in_range(carry));
        const bool any_not_combinable = any_of_warp(!combinable), any_out_of_range = any_of_warp(!in_range);
        if (lane == 31) {
            shared_state.carries[turn][warp] = carry;
            shared_state.combinable[turn][warp] = !any_not_combinable;
            shared_state.in_range[turn][warp] = !any_out_of_range;
        }
        carry = of_lane_before(carry, 1);
        if (lane == 0) carry = nothing();
        sync_threads(1, THREADS);

        Carry warps = shared_state.carries[turn][lane % N_WARPS];
        join_lanes(call, 5, BLOCK_BITS, warps);
        if (warp == 0) {
            const bool all_combinable = !any_of_warp(!shared_state.combinable[turn][lane % N_WARPS]);
            const bool odd = lane < N_WARPS && !(shared_state.in_range[turn][lane] && is_in_range(warps));
            const bool all_in_range = !any_of_warp(odd);
            const Carry all = of_lane(warps, N_WARPS - 1);
            if (lane == 0) {
                Word* const to = find_tile_state(call, round, blockIdx.x);
#pragma unroll
                for (int n = 0; n < CARRIED; ++n) store_relaxed(to + n * APART, all_combinable ? word_of(all.matrix[n]) : NOT_COMBINABLE);
#pragma unroll
                for (int s = 0; s < N_STATES; ++s)
                    store_relaxed(to + (CARRIED + s) * APART, all_combinable ? word_of(all.rest[s]) : NOT_COMBINABLE);
                shared_state.is_plain[round % PREFIXES] = all_in_range && all_combinable && call.is_bounded;
            }
        } else {
            put_warps_before(call, of_lane(warps, warp - 1), of_lanes, carry);
        }
#pragma unroll
        for (int n = 0; n < CARRIED; ++n) prefix(round, n) = carry.matrix[n];
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) prefix(round, CARRIED + s) = carry.rest[s];
    }

    // The lane's state before its run, by steps over all states. With `to`, what the tile does goes there, and the prefix
    // warp then finds `before`.
    __device__ __noinline__ double scan_over_all_states(
        const Fixed& fixed, const WarpTile& part, Word* to, const double* before) const {
        ExtendedStep all;
        const StepsBefore steps = scan_extended(call, fixed, part, shared_state.extended, &all);
        if (to && threadIdx.x == 0) store_extended(to, all);
        if (to) sync_threads(2, ALL_THREADS);
        return steps.state_after(before[0]);
    }

    __device__ __forceinline__ void take(Position& position) const {
        const unsigned round = position.round;
        WarpTile part;
        const Place place = position.find(call, part);
        position.advance_lines();
        Fixed fixed;
        fetch_fixed(call, place, fixed);
        Carry carry;
#pragma unroll
        for (int n = 0; n < N_MATRIX; ++n) carry.matrix[n] = n < CARRIED ? prefix(round, n % PREFIX_WORDS) : 0;
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) carry.rest[s] = prefix(round, CARRIED + s);
        set_number(of_runs, carry);
        sync_threads(2, ALL_THREADS);
        double before[N_STATES], start[N_STATES];
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) before[s] = shared_state.state[round % 2][s];
        const bool tile_known = shared_state.is_known[round % 2], is_plain = shared_state.is_plain[round % PREFIXES];
        if (EXTENDS && !tile_known) {  // seldom
            const WarpTile same = part;
            const Fixed same_fixed = fixed;
            Word* const to = find_state_words(call, n_rounds, round * gridDim.x + blockIdx.x);
            start[0] = scan_over_all_states(same_fixed, same, to, shared_state.state[round % 2]);
            copy(shared_state.state[round % 2], before);
        } else if (is_plain && tile_known && are_in_range(before)) {
            advance(call, 0, TILE_LEVEL, threadIdx.x, carry, before, start);
        } else {  // seldom
            if (threadIdx.x == 0) shared_state.n_unknown = 0;
            sync_threads(1, THREADS);
            // A tile that is not plain may have runs that are of no use to others; it is known where it is the last.
            const bool known = jump_over(call, 0, TILE_LEVEL, threadIdx.x, carry, before, start) || threadIdx.x == 0;
            if (!known && part.steps() > 0) shared_state.n_unknown = 1;
            sync_threads(1, THREADS);
            const unsigned number = round * gridDim.x + blockIdx.x;
            const bool combinable = load_relaxed(find_tile_state(call, round, blockIdx.x)) != NOT_COMBINABLE;
            if (shared_state.n_unknown || !tile_known || (!combinable && !stays_nan(before))) {
                // On copies, so that nothing of the usual way has to lie in memory.
                const WarpTile same = part;
                const Fixed same_fixed = fixed;
                double at[N_STATES], in_order_state[N_STATES];
                copy(before, at);
                if (EXTENDS)
                    in_order_state[0] = scan_over_all_states(same_fixed, same, nullptr, at);
                else
                    scan_in_order(call, same_fixed, same, at, shared_state.after, in_order_state);
                copy(in_order_state, start);
                if (threadIdx.x == 0 && !tile_known) {
                    Word* const to = find_state_words(call, n_rounds, number);
#pragma unroll
                    for (int s = 0; s < N_STATES; ++s) store_relaxed(to + s, word_of(shared_state.after[s]));
                }
            }
        }
        // Nothing comes before the first run: a carry of nothing would replace an extreme that is equal to it.
        if (threadIdx.x == 0) {
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) start[s] = before[s];
        }
        finish_part(call, fixed, place, part, start);
        __syncwarp();
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) run_scan(const __grid_constant__ Call call) {
    __shared__ BlockShared shared_state;
    const unsigned of_line = unsigned(call.n_chunks), n_tiles = unsigned(call.n_columns) * of_line;
    const unsigned n_rounds = (n_tiles + gridDim.x - 1) / gridDim.x;
    const unsigned n = (n_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;  // rounds in which the block has a tile
    if (threadIdx.x >= THREADS) {
        PrefixWarp prefix_warp(call, shared_state, n_tiles, n_rounds);
        prefix_warp.poll(Round(0, n_tiles));
#pragma unroll 1
        for (unsigned round = 0; round < n; ++round) prefix_warp.find(Round(round, n_tiles), round + 1 < n);
        return;
    }
    double* const prefixes = reinterpret_cast<double*>(shared_memory() + STAGES * N_WARPS * WARP_BYTES);
    const TileWorker worker{
        call, shared_state, prefixes, n_rounds, find_number(call, 0, 5, threadIdx.x % 32),
        find_number(call, 0, TILE_LEVEL, threadIdx.x)};
    Position fetched(call), reduced(call), scanned(call);
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) worker.fetch(fetched, n);
    wait_for_copies<STAGES - 1 - EARLY>();
    __syncwarp();
#pragma unroll 1
    while (reduced.round < EARLY && reduced.round < n) worker.reduce(reduced);
#pragma unroll 1
    while (scanned.round < n) {
        worker.fetch(fetched, n);
        wait_for_copies<STAGES - 1 - EARLY>();
        __syncwarp();
        if (reduced.round < n) worker.reduce(reduced);
        worker.take(scanned);
    }
}
