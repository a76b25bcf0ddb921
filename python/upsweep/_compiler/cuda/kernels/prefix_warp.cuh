// The states before the tiles of a round, one tile in each block of threads, and that before the next round.
//
// A warp of each block reads what all tiles of the round do. Its lanes fold some neighbouring tiles each, are joined,
// and go past their tiles again, from their own state. A line may begin anywhere among them. Numbers that are not
// ordinary have the round folded again with an eye on each. Then the blocks publish what their tiles do to any state, and
// the warp folds these; of updates that do not extend to all states (EXTENDS) it goes through the round tile after tile.
// Called by: scan_persistent.cuh, which says more.

constexpr int ROUND_LEVEL = TILE_LEVEL + 1;  // the power for LANE_TILES tiles
constexpr int BLOCK_BITS = TILE_LEVEL - 5, ALL_THREADS = THREADS + 32;
constexpr int PREFIX_WORDS = CARRIED + N_STATES, PREFIXES = EARLY + 1;

// Values shared by the threads of a block; of two rounds, or of those that are posted.
struct BlockShared {
    Carry carries[2][N_WARPS];
    bool combinable[2][N_WARPS], in_range[2][N_WARPS];
    bool is_plain[PREFIXES], is_known[2];
    int n_unknown;
    double state[2][N_STATES], after[N_STATES];
    ExtendedStep extended[EXTENDS ? N_WARPS : 1];
};

// The tiles of a round.
struct Round {
    unsigned number, first, n;  // its first tile, and how many

    __device__ __forceinline__ Round(unsigned number_, unsigned n_tiles) : number(number_), first(number_ * gridDim.x) {
        n = n_tiles - first < gridDim.x ? n_tiles - first : gridDim.x;
    }
};

__device__ __forceinline__ Word* find_tile_state(const Call& call, unsigned round, unsigned block) {
    Word* const words_of_tiles = reinterpret_cast<Word*>(call.reduced);
    return words_of_tiles + (long long)round * (CARRY_WORDS * LANE_TILES * 32) + block % LANE_TILES * 32 + block / LANE_TILES;
}
// Of the state after a tile, or of what the tile does to any state.
__device__ __forceinline__ Word* find_state_words(const Call& call, unsigned n_rounds, unsigned tile) {
    Word* const words_of_tiles = reinterpret_cast<Word*>(call.reduced);
    const long long n_words = EXTENDS ? EXTENDED_WORDS : N_STATES;
    return words_of_tiles + (long long)n_rounds * (CARRY_WORDS * LANE_TILES * 32) + tile * n_words;
}
constexpr int APART = LANE_TILES * 32;  // words of one tile state

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

__device__ __forceinline__ Carry unpack_carry(const Word* words) {
    Carry carry;
#pragma unroll
    for (int n = 0; n < N_MATRIX; ++n) carry.matrix[n] = n < CARRIED ? bits_as_double(words[n % CARRY_WORDS]) : 0;
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) carry.rest[s] = bits_as_double(words[CARRIED + s]);
    return carry;
}

// The state after a tile in the place of that before it; false if it is not reliable.
__device__ __forceinline__ bool pass(const Call& call, const Word* tile_state, double* state) {
    Carry carry = unpack_carry(tile_state);
    double after[N_STATES];
    const bool known = (tile_state[0] != NOT_COMBINABLE || stays_nan(state)) &&
                       jump_over(call, TILE_LEVEL, 1, 1, carry, state, after);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = after[s];
    return known;
}

__device__ __forceinline__ bool pass_block(const Call& call, const Round& round, unsigned block, double* state) {
    Word tile_state[CARRY_WORDS];
    const Word* const from = find_tile_state(call, round.number, block);
#pragma unroll
    for (int n = 0; n < CARRY_WORDS; ++n) tile_state[n] = load_relaxed(from + n * APART);
    return pass(call, tile_state, state);
}

// Tile after tile, in each lane alike, from block `begin` up to `end`, where all tile states are complete. After a tile that
// is not reliable its block posts the state.
__device__ __noinline__ void go_through(
    const Call& call, const Round round, unsigned n_rounds, unsigned begin, unsigned end, double* state) {
    const unsigned of_line = unsigned(call.n_chunks);
    unsigned line = (round.first + begin) / of_line, phase = round.first + begin - line * of_line;
    for (unsigned block = begin; block < end; ++block) {
        if (phase == 0) load_first(call, line, state);
        if (phase + 1 < of_line && !pass_block(call, round, block, state)) {
            const Word* const from = find_state_words(call, n_rounds, round.first + block);
            StateTileState tile_state;
            tile_state.load(from, true);
            tile_state.wait_for(from, true);
            unpack_state(tile_state, state);
        }
        if (++phase == of_line) phase = 0, ++line;
    }
    __syncwarp();
}

// From what all tiles of a round do to any state: the state before the block's own tile, and, in the place of the one
// before the round, the one after it. `line`, `phase`: as in PrefixWarp.
__device__ __noinline__ double fold_extended(
    const Call& call, const Round round, unsigned n_rounds, unsigned line, unsigned phase, double* state) {
    const unsigned lane = threadIdx.x % 32, begin = lane * LANE_TILES, of_line = unsigned(call.n_chunks);
    const Word* const from = find_state_words(call, n_rounds, round.first + begin);
    TileState<EXTENDED_WORDS> tiles[LANE_TILES];
#pragma unroll
    for (int i = 0; i < LANE_TILES; ++i) tiles[i].load(from + i * EXTENDED_WORDS, begin + i < round.n);
#pragma unroll
    for (int i = 0; i < LANE_TILES; ++i) tiles[i].wait_for(from + i * EXTENDED_WORDS, begin + i < round.n);
    __syncwarp();
    ExtendedStep steps = ExtendedStep::none<real>(), before_own = steps, all;
#pragma unroll 1
    for (int i = 0; i < LANE_TILES; ++i) {
        if (begin + i < round.n) {
            if (phase == 0) {
                double first[N_STATES];
                load_first(call, line, first);
                steps = ExtendedStep::reset_to(first[0]);
            }
            if (begin + i == blockIdx.x) before_own = steps;
            steps = upsweep::combine<real>(steps, upsweep::unpack_extended(tiles[i].words));
        }
        if (++phase == of_line) phase = 0, ++line;
    }
    __syncwarp();
    const ExtendedStep before = upsweep::scan_of_extended<real>(steps, lane, 0, 32, 32, &all);
    const double own = of_lane(before_own.of<real>(before.of<real>(state[0])), blockIdx.x / LANE_TILES);
    state[0] = all.of<real>(state[0]);
    return own;
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
struct PrefixWarp {
    const Call& call;
    BlockShared& shared_state;
    unsigned n_tiles, n_rounds, of_line, lane;
    unsigned line, phase;    // of the lane's first tile: its line, and which of the line's tiles it is
    double number;           // of the tiles of the lanes before
    double state[N_STATES];  // before the round, in each lane
    Word words[LANE_TILES][CARRY_WORDS];

    __device__ __forceinline__ PrefixWarp(const Call& call_, BlockShared& joint_, unsigned n_tiles_, unsigned n_waves_)
        : call(call_), shared_state(joint_), n_tiles(n_tiles_), n_rounds(n_waves_), of_line(unsigned(call_.n_chunks)),
          lane(threadIdx.x % 32), line(lane * LANE_TILES / of_line), phase(lane * LANE_TILES - line * of_line),
          number(find_number(call_, ROUND_LEVEL, 5, threadIdx.x % 32)) {
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = 0;
    }

    __device__ __forceinline__ void poll(const Round& round) {
        const Word* const from = find_tile_state(call, round.number, 0) + lane;
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i)
#pragma unroll
            for (int n = 0; n < CARRY_WORDS; ++n)
                words[i][n] = lane * LANE_TILES + i < round.n ? load_relaxed(from + i * 32 + n * APART) : 0;
    }
    __device__ __forceinline__ bool is_complete() const {
        bool whole = true;
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i)
#pragma unroll
            for (int n = 0; n < CARRY_WORDS; ++n) whole = whole && words[i][n] != INVALID;
        return whole;
    }

    __device__ __forceinline__ void advance_lines() {
        line += gridDim.x / of_line, phase += gridDim.x % of_line;
        if (phase >= of_line) phase -= of_line, ++line;
    }

    // The state before the block's own tile, and that before the next round, where all numbers are ordinary; else false.
    __device__ __forceinline__ bool fold_plain(const Round& round, double* own_state) {
        const unsigned begin = lane * LANE_TILES;
        bool in_range = call.is_bounded, begins = false;
        Carry total = nothing(), tile;
        unsigned t = phase;
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i) {
            if (begin + i < round.n) {
                tile = unpack_carry(words[i]);
                const bool is_end = t + 1 == of_line;  // after it a line begins
                in_range = in_range && (is_end || (words[i][0] != NOT_COMBINABLE && is_in_range(tile)));
                if (t == 0) {
                    // In the place of what it does to a state the state after it.
                    double first[N_STATES];
                    load_first(call, line + (phase + i) / of_line, first);
                    set_number(call.matrix[TILE_LEVEL * N_MATRIX], tile);
                    advance(call, TILE_LEVEL, 1, 1, tile, first, total.rest);
                    begins = true;
                } else if (i > 0) {
                    put_before(call, TILE_LEVEL, total, tile);
                    total = tile;
                } else {
                    total = tile;
                }
                t = is_end ? 0 : t + 1;
            }
        }
        const unsigned beginnings = votes_of_warp(begins), heads = beginnings & (0xffffffffu >> (31 - lane));
        const int head = heads ? highest_bit(heads) : 0;
#pragma unroll
        for (int bit = 0; bit < 5; ++bit) {
            const Carry before = of_lane_before(total, 1 << bit);
            if (int(lane) - (1 << bit) >= head) put_before(call, ROUND_LEVEL + bit, before, total);
        }
        Carry before = of_lane_before(total, 1);
        double at[N_STATES], own_before[N_STATES], after[N_STATES];
        set_number(number, before);
        if (lane > 0) advance(call, ROUND_LEVEL, 5, lane, before, state, at);
        const bool has_state = beginnings & ((1u << lane) - 1);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s)
            at[s] = lane == 0 ? state[s] : has_state ? before.rest[s] : at[s], own_before[s] = 0;
        t = phase;
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i) {
            if (begin + i < round.n) {
                if (t == 0) load_first(call, line + (phase + i) / of_line, at);
                in_range = in_range && are_in_range(at);
                if (begin + i == blockIdx.x) copy(at, own_before);
                if (t + 1 < of_line) {
                    tile = unpack_carry(words[i]);
                    set_number(call.matrix[TILE_LEVEL * N_MATRIX], tile);
                    advance(call, TILE_LEVEL, 1, 1, tile, at, after);
                    copy(after, at);
                    in_range = in_range && are_in_range(at);
                }
                t = t + 1 == of_line ? 0 : t + 1;
            }
        }
        if (any_of_warp(!in_range)) return false;
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) {
            own_state[s] = of_lane(own_before[s], blockIdx.x / LANE_TILES);
            state[s] = of_lane(at[s], (round.n - 1) / LANE_TILES);
        }
        return true;
    }

    // What the lane's tiles do; whether states among them can be trusted.
    __device__ __forceinline__ bool reduce_own(const Round& round, unsigned phase, unsigned line, Segment& own) const {
        bool known = true;
        own.has_state = 0;
        own.carry = nothing();
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) own.state[s] = 0;
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i) {
            if (lane * LANE_TILES + i < round.n) {
                if (phase == 0) {
                    load_first(call, line, own.state);
                    own.has_state = 1;
                }
                if (own.has_state) {
                    if (phase + 1 < of_line) known &= pass(call, words[i], own.state);
                } else {
                    Carry tile = unpack_carry(words[i]);
                    // A line's last tile is followed by a first one.
                    known &= phase + 1 == of_line || words[i][0] != NOT_COMBINABLE;
                    if (i > 0) put_before(call, TILE_LEVEL, own.carry, tile);
                    own.carry = tile;
                }
            }
            if (++phase == of_line) phase = 0, ++line;
        }
        return known;
    }

    // The same with what is not finite, where it is known what comes of it; false if not all can be trusted.
    __device__ __forceinline__ bool fold(const Round& round, double* own_state) {
        const unsigned begin = lane * LANE_TILES;
        Segment segment;
        bool known = reduce_own(round, phase, line, segment);
        if (any_of_warp(!known)) return false;
        const bool is_full = begin + LANE_TILES <= round.n;  // nobody asks for what the others do
#pragma unroll
        for (int bit = 0; bit < 5; ++bit) {
            const Segment other = of_lane_before(segment, 1 << bit);
            if (lane >= 1u << bit && is_full && !segment.has_state) {
                if (other.has_state)
                    known &= jump_over(
                        call, ROUND_LEVEL + bit, 1, 1, segment.carry, other.state, segment.state);
                else
                    put_before(call, ROUND_LEVEL + bit, other.carry, segment.carry);
                segment.has_state = other.has_state;
            }
        }
        Segment before = of_lane_before(segment, 1);
        double at[N_STATES], own_before[N_STATES];
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) at[s] = lane == 0 ? state[s] : before.state[s], own_before[s] = 0;
        if (lane > 0 && begin < round.n && !before.has_state)
            known &= jump_over(call, ROUND_LEVEL, 5, lane, before.carry, state, at);
        walk(round, phase, line, at, own_before, known);
        if (any_of_warp(!known)) return false;
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) {
            own_state[s] = of_lane(own_before[s], blockIdx.x / LANE_TILES);
            state[s] = of_lane(at[s], (round.n - 1) / LANE_TILES);
        }
        return true;
    }

    // Past the lane's tiles.
    __device__ __forceinline__ void walk(
        const Round& round, unsigned phase, unsigned line, double* at, double* own_before, bool& known) const {
#pragma unroll
        for (int i = 0; i < LANE_TILES; ++i) {
            const unsigned block = lane * LANE_TILES + i;
            if (block < round.n) {
                if (phase == 0) load_first(call, line, at);
                if (block == blockIdx.x) {
#pragma unroll
                    for (int s = 0; s < N_STATES; ++s) own_before[s] = at[s];
                }
                if (phase + 1 < of_line) known &= pass(call, words[i], at);
            }
            if (++phase == of_line) phase = 0, ++line;
        }
    }

    __device__ __forceinline__ void find(const Round& round, bool is_followed) {
        while (any_of_warp(!is_complete())) {
            back_off();
            poll(round);
        }
        double own[N_STATES];
        // Up to the line's end.
        const bool is_lost = stays_nan(state) && round.first % of_line != 0 && round.first % of_line + round.n <= of_line;
        if (is_lost) copy(state, own);
        const bool known = is_lost || fold_plain(round, own) || fold(round, own);
        const unsigned first_line = line, first_phase = phase;
        advance_lines();
        if (is_followed) poll(Round(round.number + 1, n_tiles));
        bool own_known = true;
        if (!known && EXTENDS) {  // seldom
            if (lane == 0) shared_state.is_known[round.number % 2] = false;
            sync_threads(2, ALL_THREADS);
            double at[N_STATES];
            copy(state, at);
            own[0] = fold_extended(call, round, n_rounds, first_line, first_phase, at);
            copy(at, state);
            if (lane == 0) shared_state.state[round.number % 2][0] = own[0];
            sync_threads(2, ALL_THREADS);
            return;
        }
        if (!known) {  // seldom
            double at[N_STATES];
            copy(state, at);
            go_through(call, round, n_rounds, 0, blockIdx.x, at);
            const unsigned tile = round.first + blockIdx.x, line = tile / of_line;
            if (tile == line * of_line) load_first(call, line, at);
            copy(at, own);
            copy(at, state);
            own_known = tile + 1 == (line + 1) * of_line || pass_block(call, round, blockIdx.x, at);
        }
        if (lane == 0) {
#pragma unroll
            for (int s = 0; s < N_STATES; ++s) shared_state.state[round.number % 2][s] = own[s];
            shared_state.is_known[round.number % 2] = own_known;
        }
        sync_threads(2, ALL_THREADS);
        if (!known) {
            double at[N_STATES];
            copy(state, at);
            go_through(call, round, n_rounds, blockIdx.x, round.n, at);
            copy(at, state);
        }
    }
};
