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

constexpr int WAVE_LEVEL = TILE_LEVEL + 1;  // the power for LANE_TILES tiles
constexpr int BLOCK_BITS = TILE_LEVEL - 5, ALL_THREADS = THREADS + 32;
constexpr int PREFIX_WORDS = CARRIED + N_STATES, PREFIXES = EARLY + 1;

// What threads of a block tell each other; of two waves, or of those that are posted.
struct Joint {
    Carry carries[2][N_WARPS];
    bool useful[2][N_WARPS], ordinary[2][N_WARPS];
    bool is_plain[PREFIXES], is_known[2];
    int n_unknown;
    double state[2][N_STATES], after[N_STATES];
};

// The tiles of a wave.
struct Wave {
    unsigned number, first, n;  // its first tile, and how many

    __device__ __forceinline__ Wave(unsigned number_, unsigned n_tiles) : number(number_), first(number_ * gridDim.x) {
        n = n_tiles - first < gridDim.x ? n_tiles - first : gridDim.x;
    }
};

__device__ __forceinline__ Word* find_letter(const Call& call, unsigned wave, unsigned block) {
    Word* const letters = reinterpret_cast<Word*>(call.reduced);
    return letters + (long long)wave * (CARRY_WORDS * LANE_TILES * 32) + block % LANE_TILES * 32 + block / LANE_TILES;
}
__device__ __forceinline__ Word* find_state_letter(const Call& call, unsigned n_waves, unsigned tile) {
    Word* const letters = reinterpret_cast<Word*>(call.reduced);
    return letters + (long long)n_waves * (CARRY_WORDS * LANE_TILES * 32) + (long long)tile * N_STATES;
}
constexpr int APART = LANE_TILES * 32;  // words of one letter

__device__ __forceinline__ void copy(const double* from, double* to) {
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) to[s] = from[s];
}

__device__ __forceinline__ void load_first(const Call& call, unsigned line, double* state) {
    real first[N_STATES];
    load_states(call, find_run(call, line, 0), first);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = first[s];
}

__device__ __forceinline__ Carry open_carry(const Word* words) {
    Carry carry;
#pragma unroll
    for (int n = 0; n < N_MATRIX; ++n) carry.matrix[n] = n < CARRIED ? bits_as_double(words[n % CARRY_WORDS]) : 0;
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) carry.rest[s] = bits_as_double(words[CARRIED + s]);
    return carry;
}

// The state after a tile in the place of that before it; false if it is not to be trusted.
__device__ __forceinline__ bool pass(const Call& call, const Word* letter, double* state) {
    Carry carry = open_carry(letter);
    double after[N_STATES];
    const bool known = letter[0] != USELESS && jump_over(call, TILE_LEVEL, 1, 1, carry, state, after);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = after[s];
    return known;
}

__device__ __forceinline__ bool pass_block(const Call& call, const Wave& wave, unsigned block, double* state) {
    Word letter[CARRY_WORDS];
    const Word* const from = find_letter(call, wave.number, block);
#pragma unroll
    for (int n = 0; n < CARRY_WORDS; ++n) letter[n] = look(from + n * APART);
    return pass(call, letter, state);
}

// Tile after tile, in each lane alike, from block `begin` up to `end`, where all letters are there. After a tile that
// is not to be trusted its block posts the state.
__device__ __noinline__ void go_through(
    const Call& call, const Wave wave, unsigned n_waves, unsigned begin, unsigned end, double* state) {
    const unsigned of_line = unsigned(call.n_chunks);
    unsigned line = (wave.first + begin) / of_line, phase = wave.first + begin - line * of_line;
    for (unsigned block = begin; block < end; ++block) {
        if (phase == 0) load_first(call, line, state);
        if (phase + 1 < of_line && !pass_block(call, wave, block, state)) {
            const Word* const from = find_state_letter(call, n_waves, wave.first + block);
            StateLetter letter;
            letter.look_at(from, true);
            letter.wait_for(from, true);
            open_state(letter, state);
        }
        if (++phase == of_line) phase = 0, ++line;
    }
    __syncwarp();
}

// What some neighbouring tiles do: a carry, or a state where a line has begun among them.
struct Segment {
    Carry carry;
    double state[N_STATES];
    int has_state;
};

__device__ __forceinline__ Segment of_lane_before(const Segment& own, int distance) {
    Segment other = own;
    other.carry = of_lane_before(own.carry, distance);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) other.state[s] = of_lane_before(own.state[s], distance);
    other.has_state = of_lane_before(double(own.has_state), distance) != 0;
    return other;
}

// The warp that finds states, of one block.
struct Finder {
    const Call& call;
    Joint& joint;
    unsigned n_tiles, n_waves, of_line, lane;
    double state[N_STATES];  // before the wave, in each lane
    Word words[LANE_TILES][CARRY_WORDS];

    __device__ __forceinline__ Finder(const Call& call_, Joint& joint_, unsigned n_tiles_, unsigned n_waves_)
        : call(call_), joint(joint_), n_tiles(n_tiles_), n_waves(n_waves_), of_line(unsigned(call_.n_chunks)),
          lane(threadIdx.x % 32) {
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = 0;
    }

    __device__ __forceinline__ void ask(const Wave& wave) {
        const Word* const from = find_letter(call, wave.number, 0) + lane;
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i)
#pragma unroll
            for (int n = 0; n < CARRY_WORDS; ++n)
                words[i][n] = lane * LANE_TILES + i < wave.n ? look(from + i * 32 + n * APART) : 0;
    }
    __device__ __forceinline__ bool are_there() const {
        bool whole = true;
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i)
#pragma unroll
            for (int n = 0; n < CARRY_WORDS; ++n) whole = whole && words[i][n] != EMPTY;
        return whole;
    }

    // What the lane's tiles do; whether states among them can be trusted.
    __device__ __forceinline__ bool reduce_own(const Wave& wave, unsigned phase, unsigned line, Segment& own) const {
        bool known = true;
        own.has_state = 0;
        own.carry = nothing();
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) own.state[s] = 0;
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i) {
            if (lane * LANE_TILES + i < wave.n) {
                if (phase == 0) {
                    load_first(call, line, own.state);
                    own.has_state = 1;
                }
                if (own.has_state) {
                    if (phase + 1 < of_line) known &= pass(call, words[i], own.state);
                } else {
                    Carry tile = open_carry(words[i]);
                    // A line's last tile is followed by a first one.
                    known &= phase + 1 == of_line || words[i][0] != USELESS;
                    if (i > 0) put_before(call, TILE_LEVEL, own.carry, tile);
                    own.carry = tile;
                }
            }
            if (++phase == of_line) phase = 0, ++line;
        }
        return known;
    }

    // The state before the block's own tile, and that before the next wave; false if not all can be trusted.
    __device__ __forceinline__ bool fold(const Wave& wave, double* own_state) {
        const unsigned begin = lane * LANE_TILES, line = (wave.first + begin) / of_line;
        const unsigned phase = wave.first + begin - line * of_line;
        Segment segment;
        bool known = reduce_own(wave, phase, line, segment);
        const bool is_full = begin + LANE_TILES <= wave.n;  // nobody asks for what the others do
#pragma unroll
        for (int bit = 0; bit < 5; ++bit) {
            const Segment other = of_lane_before(segment, 1 << bit);
            if (lane >= 1u << bit && is_full && !segment.has_state) {
                if (other.has_state)
                    known &= jump_over(
                        call, WAVE_LEVEL + bit, 1, 1, segment.carry, other.state, segment.state);
                else
                    put_before(call, WAVE_LEVEL + bit, other.carry, segment.carry);
                segment.has_state = other.has_state;
            }
        }
        Segment before = of_lane_before(segment, 1);
        double at[N_STATES], mine[N_STATES];
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) at[s] = lane == 0 ? state[s] : before.state[s], mine[s] = 0;
        if (lane > 0 && begin < wave.n && !before.has_state)
            known &= jump_over(call, WAVE_LEVEL, 5, lane, before.carry, state, at);
        walk(wave, phase, line, at, mine, known);
        if (any_of_warp(!known)) return false;
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) {
            own_state[s] = of_lane(mine[s], blockIdx.x / LANE_TILES);
            state[s] = of_lane(at[s], (wave.n - 1) / LANE_TILES);
        }
        return true;
    }

    // Past the lane's tiles.
    __device__ __forceinline__ void walk(
        const Wave& wave, unsigned phase, unsigned line, double* at, double* mine, bool& known) const {
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i) {
            const unsigned block = lane * LANE_TILES + i;
            if (block < wave.n) {
                if (phase == 0) load_first(call, line, at);
                if (block == blockIdx.x) {
#pragma unroll
                    for (int s = 0; s < N_STATES; ++s) mine[s] = at[s];
                }
                if (phase + 1 < of_line) known &= pass(call, words[i], at);
            }
            if (++phase == of_line) phase = 0, ++line;
        }
    }

    __device__ __forceinline__ void find(const Wave& wave, bool is_followed) {
        while (any_of_warp(!are_there())) ask(wave);
        double own[N_STATES];
        const bool known = fold(wave, own);
        if (is_followed) ask(Wave(wave.number + 1, n_tiles));
        bool own_known = true;
        if (!known) {  // seldom
            double at[N_STATES];
            copy(state, at);
            go_through(call, wave, n_waves, 0, blockIdx.x, at);
            const unsigned tile = wave.first + blockIdx.x, line = tile / of_line;
            if (tile == line * of_line) load_first(call, line, at);
            copy(at, own);
            copy(at, state);
            own_known = tile + 1 == (line + 1) * of_line || pass_block(call, wave, blockIdx.x, at);
        }
        if (lane == 0) {
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) joint.state[wave.number % 2][s] = own[s];
            joint.is_known[wave.number % 2] = own_known;
        }
        sync_threads(2, ALL_THREADS);
        if (!known) {
            double at[N_STATES];
            copy(state, at);
            go_through(call, wave, n_waves, blockIdx.x, wave.n, at);
            copy(at, state);
        }
    }
};

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
