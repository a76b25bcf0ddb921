// Tiles of one line on several blocks of threads: each posts what it does to a state, and finds the state before it.
//
// Tiles are handed out in increasing order, so a tile waits only for blocks that already run. The tiles of a line form
// groups of GROUP, and these families of GROUP groups. A tile folds the carries of those before it in its group and of
// the groups before that one in its family, each by the same tree, from the state after the family before. So every
// sum has an order that follows from the shape, and results have the same bits on each run.
//
// A tile that reads a carry that is not combinable, or finds a state that is not reliable, waits for the state that the
// tile before really left. Of updates that extend to all states (EXTENDS) it publishes what it does to any state instead
// of the state after it, and the last one of a group what the group does; which of both there is depends on the data alone.
// Called by: scan_tiles.cuh.

// The last n lanes of a warp have tile states with carries of 2**level runs each: all of them in order, in each lane. False
// if one is not combinable.
__device__ __forceinline__ bool fold(
    const Call& call, const CarryTileState& tile_state, int level, int n, Carry& total) {
    const int lane = threadIdx.x % 32;
    Carry carry = nothing();
    if (lane >= 32 - n) {
#pragma unroll
        for (int k = 0; k < CARRIED; ++k) carry.matrix[k] = bits_as_double(tile_state.words[k]);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) carry.rest[s] = bits_as_double(tile_state.words[CARRIED + s]);
    }
    const bool not_combinable = any_of_warp(tile_state.words[0] == NOT_COMBINABLE);
#pragma unroll
    for (int bit = 0; bit < GROUP_BITS; ++bit) {
        const Carry before = of_lane_before(carry, 1 << bit);
        // Only tile states are joined: what is beyond a double times nothing would be NaN.
        if (lane - (1 << bit) >= 32 - n) put_before(call, level + bit, before, carry);
    }
    total = of_lane(carry, 31);
    return !not_combinable;
}

// Where the tile states of one line's tiles are.
struct Chain {
    Word *carries, *states, *groups, *extended, *extended_groups;
    unsigned n_tiles;

    __device__ __forceinline__ Chain(const Call& call, unsigned line) : n_tiles(unsigned(call.n_chunks)) {
        const long long n_groups = (call.n_chunks + GROUP - 1) / GROUP;
        Word* const words_of_tiles = reinterpret_cast<Word*>(call.reduced) + 1;  // behind the counter
        carries = words_of_tiles + line * call.n_chunks * CARRY_WORDS;
        states = words_of_tiles + call.n_columns * call.n_chunks * CARRY_WORDS + line * call.n_chunks * N_STATES;
        Word* const all_groups = words_of_tiles + call.n_columns * call.n_chunks * (CARRY_WORDS + N_STATES);
        groups = all_groups + line * n_groups * CARRY_WORDS;
        Word* const all_extended = all_groups + call.n_columns * n_groups * CARRY_WORDS;
        extended = all_extended + line * call.n_chunks * EXTENDED_WORDS;
        extended_groups = all_extended + (call.n_columns * call.n_chunks + line * n_groups) * EXTENDED_WORDS;
    }

    __device__ __forceinline__ void store_state(unsigned tile, const double* state) const {
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) store_relaxed(states + (long long)tile * N_STATES + s, word_of(state[s]));
    }
    // Of the tile before, by a lane that waits for it.
    __device__ __forceinline__ void wait_for_state(unsigned tile, double* state) const {
        StateTileState tile_state;
        tile_state.load(states + (long long)(tile - 1) * N_STATES, true);
        tile_state.wait_for(states + (long long)(tile - 1) * N_STATES, true);
        unpack_state(tile_state, state);
    }

    // The state before a tile, of which `own` is the carry; `first` is the one before the line. By a warp, in each
    // of its lanes. The last tile of a group posts what the group does. False where find_extended_state() has to be called.
    __device__ __forceinline__ bool find_state(
        const Call& call, unsigned tile, const Carry& own, bool combinable, const double* first, double* state) const {
        const int lane = threadIdx.x % 32;
        const unsigned group = tile / GROUP, family = group / GROUP;
        const int n_tiles_before = tile % GROUP, n_groups_before = group % GROUP;
        const long long from_lane = lane - 32;
        const Word* const of_tile = carries + (from_lane + tile) * CARRY_WORDS;
        const Word* const of_group = groups + (from_lane + group) * CARRY_WORDS;
        const Word* const of_family = states + ((long long)family * GROUP * GROUP - 1) * N_STATES;
        const bool waits_for_tile = lane >= 32 - n_tiles_before, waits_for_group = lane >= 32 - n_groups_before;
        // All are asked for at once; mostly all are there.
        CarryTileState tiles, groups_before;
        StateTileState families;
        tiles.load(of_tile, waits_for_tile);
        groups_before.load(of_group, waits_for_group);
        families.load(of_family, family > 0);
        Carry since, before;
        tiles.wait_for(of_tile, waits_for_tile);
        __syncwarp();
        const bool tiles_combinable = fold(call, tiles, TILE_LEVEL, n_tiles_before, since);
        if (n_tiles_before == GROUP - 1 && tile + 1 < n_tiles && lane == 0) {
            Carry all = own;
            put_before(call, TILE_LEVEL, since, all);
            store_carry(groups + (long long)group * CARRY_WORDS, all, combinable && tiles_combinable);
        }
        groups_before.wait_for(of_group, waits_for_group);
        __syncwarp();
        const bool groups_combinable = fold(call, groups_before, TILE_LEVEL + GROUP_BITS, n_groups_before, before);
        families.wait_for(of_family, family > 0);
        double base[N_STATES], after_groups[N_STATES];
        unpack_state(families, base);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s)
            after_groups[s] = base[s] = family > 0 ? base[s] : first[s];
        bool known = tiles_combinable && groups_combinable;
        if (n_groups_before > 0)
            known &= jump_over(
                call, TILE_LEVEL + GROUP_BITS, GROUP_BITS, n_groups_before, before, base, after_groups);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = after_groups[s];
        if (n_tiles_before > 0)
            known &= jump_over(call, TILE_LEVEL, GROUP_BITS, n_tiles_before, since, after_groups, state);
        if (!known && !EXTENDS) wait_for_state(tile, state);
        return known || !EXTENDS;
    }

    // What n tiles, or the groups that they are the last of, do to any state: tiles `apart` from each other. By a warp.
    static __device__ __noinline__ ExtendedStep fold_extended(const Word* states, const Word* extended, int n, int apart) {
        const int lane = threadIdx.x % 32;
        ExtendedStep step = ExtendedStep::none<real>(), all;
        TileState<1> state;
        TileState<EXTENDED_WORDS> words;
        const Word *const state_at = states + (long long)lane * apart, *const words_at = extended + lane * EXTENDED_WORDS;
        state.load(state_at, lane < n);
        words.load(words_at, lane < n);
        while (!state.is_whole() && !words.is_whole()) {
            back_off();
            state.load(state_at, lane < n);
            words.load(words_at, lane < n);
        }
        if (lane < n)
            step = words.is_whole() ? upsweep::unpack_extended(words.words)
                                    : ExtendedStep::reset_to(bits_as_double(state.words[0]));
        __syncwarp();
        upsweep::scan_of_extended<real>(step, lane, 0, 32, 32, &all);
        return all;
    }

    // The state before a tile that does `own` to any state, and whose state after it is not published. By a warp.
    __device__ __noinline__ double find_extended_state(unsigned tile, const ExtendedStep& own, double first) const {
        const bool posts = threadIdx.x % 32 == 0;
        const unsigned group = tile / GROUP, first_group = group / GROUP * GROUP;
        const long long first_tile = (long long)group * GROUP, family_tile = (long long)first_group * GROUP;
        const int n_before = tile % GROUP, n_groups = group % GROUP;
        if (posts) store_extended(extended + (long long)tile * EXTENDED_WORDS, own);
        const ExtendedStep since =
            fold_extended(states + first_tile, extended + first_tile * EXTENDED_WORDS, n_before, 1);
        if (n_before == GROUP - 1 && posts)
            store_extended(extended_groups + (long long)group * EXTENDED_WORDS, upsweep::combine<real>(since, own));
        const ExtendedStep before =
            fold_extended(states + family_tile + GROUP - 1, extended_groups + (long long)first_group * EXTENDED_WORDS,
                          n_groups, GROUP);
        double state[N_STATES];
        state[0] = first;
        if (first_group > 0) wait_for_state(unsigned(family_tile), state);
        return since.of<real>(before.of<real>(state[0]));
    }
    __device__ __forceinline__ static bool ends_family(unsigned tile) { return tile % (GROUP * GROUP) == GROUP * GROUP - 1; }
};
