// Few long lines in one pass, by blocks of threads that are all there at once: in each wave a block takes one tile.
//
// Tiles are numbered line after line; block b takes tile b of each wave of gridDim.x tiles. Its inputs are on their
// way for STAGES - 1 waves, and what it does to a state is posted EARLY waves before its steps are taken. A warp of
// its own reads what all tiles of a wave do, and so knows the state before its own tile and that before the next wave:
// no block waits for one that waits. All blocks fold a wave in the same order, so bits are the same on each run.
//
// Where a carry is useless, or a state not to be trusted, all blocks go through the wave tile after tile; the state
// after such a tile is posted by the block that has it, which takes its steps in order.
//
// Bytes: each input is read once, each output written once; each block reads some words a tile of a wave.
// Called by: `_cuda/user_scans.py`, where n_columns are lines, and a chunk is a tile; as a cooperative launch.

// The block's tiles, wave after wave.
struct Position {
    unsigned wave, stage, line, tile, lines_on, tiles_on, of_line;

    __device__ __forceinline__ Position(const Call& call)
        : wave(0), stage(0), of_line(unsigned(call.n_chunks)) {
        line = blockIdx.x / of_line, tile = blockIdx.x - line * of_line;
        lines_on = gridDim.x / of_line, tiles_on = gridDim.x - lines_on * of_line;
    }
    __device__ __forceinline__ void move_on() {
        ++wave, line += lines_on, tile += tiles_on;
        if (tile >= of_line) tile -= of_line, ++line;
        if (++stage == STAGES) stage = 0;
    }
    __device__ __forceinline__ Place find(const Call& call, Part& part) const {
        return find_part(
            call, line, tile, shared_memory() + (stage * N_WARPS + threadIdx.x / 32) * WARP_BYTES, part);
    }
};

// A block's threads that have runs.
struct Taker {
    const Call& call;
    Joint& joint;
    double* prefixes;
    unsigned n_waves;
    double of_lanes, of_runs;  // the numbers of the lanes before the own one, and of the block's runs

    __device__ __forceinline__ double& prefix(unsigned wave, int n) const {
        return prefixes[(wave % PREFIXES * PREFIX_WORDS + n) * THREADS + threadIdx.x];
    }

    __device__ __forceinline__ void fetch(Position& at, unsigned n) const {
        if (at.wave < n) {
            Part part;
            at.find(call, part);
            fetch_part(call, part);
        }
        commit_copies();
        at.move_on();
    }

    // Posts what the tile does, and keeps what its runs before the thread's own do.
    __device__ __forceinline__ void reduce(Position& at) const {
        const unsigned wave = at.wave;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, turn = wave % 2;
        Part part;
        const Place place = at.find(call, part);
        at.move_on();
        Fixed fixed;
        fetch_fixed(call, place, fixed);
        const bool is_whole = part.steps() == TILE;
        Carry carry = nothing();
        bool useful = true, ordinary = true;
        if (is_whole) {
            carry = reduce_run(call, fixed, part.shared);
            useful = is_useful(carry);
            ordinary = is_ordinary(carry);
        }
        join_lanes(call, 0, 5, carry);
        ordinary = ordinary && (!is_whole || is_ordinary(carry));
        const bool any_useless = any_of_warp(!useful), any_odd = any_of_warp(!ordinary);
        if (lane == 31) {
            joint.carries[turn][warp] = carry;
            joint.useful[turn][warp] = !any_useless;
            joint.ordinary[turn][warp] = !any_odd;
        }
        carry = of_lane_before(carry, 1);
        if (lane == 0) carry = nothing();
        sync_threads(1, THREADS);

        Carry warps = joint.carries[turn][lane % N_WARPS];
        join_lanes(call, 5, BLOCK_BITS, warps);
        if (warp == 0) {
            const bool all_useful = !any_of_warp(!joint.useful[turn][lane % N_WARPS]);
            const bool odd = lane < N_WARPS && !(joint.ordinary[turn][lane] && is_ordinary(warps));
            const bool all_ordinary = !any_of_warp(odd);
            const Carry all = of_lane(warps, N_WARPS - 1);
            if (lane == 0) {
                Word* const to = find_letter(call, wave, blockIdx.x);
#pragma unroll
                for (int n = 0; n < CARRIED; ++n) post(to + n * APART, all_useful ? word_of(all.matrix[n]) : USELESS);
#pragma unroll
                for (int s = 0; s < N_STATES; ++s)
                    post(to + (CARRIED + s) * APART, all_useful ? word_of(all.rest[s]) : USELESS);
                joint.is_plain[wave % PREFIXES] = all_ordinary && all_useful && call.is_bounded;
            }
        } else {
            put_warps_before(call, of_lane(warps, warp - 1), of_lanes, carry);
        }
#pragma unroll
        for (int n = 0; n < CARRIED; ++n) prefix(wave, n) = carry.matrix[n];
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) prefix(wave, CARRIED + s) = carry.rest[s];
    }

    __device__ __forceinline__ void take(Position& position) const {
        const unsigned wave = position.wave;
        Part part;
        const Place place = position.find(call, part);
        position.move_on();
        Fixed fixed;
        fetch_fixed(call, place, fixed);
        Carry carry;
#pragma unroll
        for (int n = 0; n < N_MATRIX; ++n) carry.matrix[n] = n < CARRIED ? prefix(wave, n % PREFIX_WORDS) : 0;
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) carry.rest[s] = prefix(wave, CARRIED + s);
        set_number(of_runs, carry);
        sync_threads(2, ALL_THREADS);
        double before[N_STATES], start[N_STATES];
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) before[s] = joint.state[wave % 2][s];
        const bool tile_known = joint.is_known[wave % 2], is_plain = joint.is_plain[wave % PREFIXES];
        if (is_plain && tile_known && are_ordinary(before)) {
            advance(call, 0, TILE_LEVEL, threadIdx.x, carry, before, start);
        } else {  // seldom
            if (threadIdx.x == 0) joint.n_unknown = 0;
            sync_threads(1, THREADS);
            // A tile that is not plain may have runs that are of no use to others; it is known where it is the last.
            const bool known = jump_over(call, 0, TILE_LEVEL, threadIdx.x, carry, before, start) || threadIdx.x == 0;
            if (!known && part.steps() > 0) joint.n_unknown = 1;
            sync_threads(1, THREADS);
            const unsigned number = wave * gridDim.x + blockIdx.x;
            if (joint.n_unknown || !tile_known || look(find_letter(call, wave, blockIdx.x)) == USELESS) {
                // On copies, so that nothing of the usual way has to lie in memory.
                const Part same = part;
                const Fixed same_fixed = fixed;
                double at[N_STATES], found[N_STATES];
                copy(before, at);
                go_in_order(call, same_fixed, same, at, joint.after, found);
                copy(found, start);
                if (threadIdx.x == 0 && !tile_known) {
                    Word* const to = find_state_letter(call, n_waves, number);
#pragma unroll
                    for (int s = 0; s < N_STATES; ++s) post(to + s, word_of(joint.after[s]));
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
    __shared__ Joint joint;
    const unsigned of_line = unsigned(call.n_chunks), n_tiles = unsigned(call.n_columns) * of_line;
    const unsigned n_waves = (n_tiles + gridDim.x - 1) / gridDim.x;
    const unsigned n = (n_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;  // waves in which the block has a tile
    if (threadIdx.x >= THREADS) {
        Finder finder(call, joint, n_tiles, n_waves);
        finder.ask(Wave(0, n_tiles));
#pragma unroll 1
        for (unsigned wave = 0; wave < n; ++wave) finder.find(Wave(wave, n_tiles), wave + 1 < n);
        return;
    }
    double* const prefixes = reinterpret_cast<double*>(shared_memory() + STAGES * N_WARPS * WARP_BYTES);
    const Taker taker{
        call, joint, prefixes, n_waves, find_number(call, 0, 5, threadIdx.x % 32),
        find_number(call, 0, TILE_LEVEL, threadIdx.x)};
    Position fetched(call), reduced(call), taken(call);
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) taker.fetch(fetched, n);
    wait_for_copies<STAGES - 1 - EARLY>();
    __syncwarp();
#pragma unroll 1
    while (reduced.wave < EARLY && reduced.wave < n) taker.reduce(reduced);
#pragma unroll 1
    while (taken.wave < n) {
        taker.fetch(fetched, n);
        wait_for_copies<STAGES - 1 - EARLY>();
        __syncwarp();
        if (reduced.wave < n) taker.reduce(reduced);
        taker.take(taken);
    }
}
