// Tiles of one line on several blocks of threads: each posts what it does to a state, and finds the state before it.
//
// Tiles are handed out in increasing order, so a tile waits only for blocks that already run. The tiles of a line form
// groups of GROUP, and these families of GROUP groups. A tile folds the carries of those before it in its group and of
// the groups before that one in its family, each by the same tree, from the state after the family before. So every
// sum has an order that follows from the shape, and results have the same bits on each run.
//
// A number travels as a word of 64 bits, written and read in one piece. A word of ones means that nothing is there
// yet, so no flag and no fence is needed. The workspace is filled with ones before the launch. A carry of which no
// other tile can make use is posted as a word of its own; whoever meets it waits for the state that the tile before
// really left, and so does who finds a state that is not to be trusted. Which way is taken depends on the numbers alone.
//
// Where factors or shifts do not vary, carries are their vectors or bounds, and `matrix` has the powers: the first of a
// run of TILE steps, each other one of twice as many as the one before.
// Called by: scan_tiles.cuh.

typedef unsigned long long Word;

constexpr Word EMPTY = ~0ull, USELESS = ~1ull;
constexpr int CARRIED = VARIES ? N_MATRIX : 0, CARRY_WORDS = CARRIED + N_STATES;
constexpr bool IS_SHIFT = KIND != AFFINE && KIND != WINNER;
// Of a constant factor or shift, the power of any number of runs is one number.
constexpr bool HAS_NUMBER = !VARIES && N_MATRIX == 1 && KIND != WINNER;
constexpr double ORDINARY = 1e75;  // the product of three such numbers is finite

__device__ __forceinline__ Word word_of(double x) {
    return is_nan(x) ? 0x7ff8000000000000ull : double_as_bits(x);  // no NaN is one of the words that mean something
}

// after = what carries of 2**level, ... of the n runs make of a state; n is below 2**bits.
__device__ __forceinline__ void move_by(const Call& call, int level, int bits, unsigned n, double* state) {
#pragma unroll
    for (int bit = 0; bit < bits; ++bit) {
        double moved[N_STATES];
        const double* const matrix = call.matrix + (level + bit) * N_MATRIX;
#pragma unroll
        for (int i = 0; i < N_STATES; ++i) {
            moved[i] = 0;
#pragma unroll
            for (int j = 0; j < N_STATES; ++j) moved[i] += matrix[(i * N_STATES + j) % N_MATRIX] * state[j];
        }
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = n >> bit & 1 ? moved[s] : state[s];
    }
}

// The factor or the shift of n times 2**level runs, where it does not vary.
__device__ __forceinline__ void set_number(const Call& call, int level, int bits, unsigned n, Carry& carry) {
    if (!HAS_NUMBER) return;
    double number = IS_SHIFT ? 0 : 1;
#pragma unroll
    for (int bit = 0; bit < bits; ++bit) {
        const double power = call.matrix[level + bit], both = IS_SHIFT ? number + power : number * power;
        number = n >> bit & 1 ? both : number;
    }
    carry.matrix[0] = number;
}

// after = what a carry of n times 2**level runs makes of a state; set_number() has been called.
__device__ __forceinline__ void advance(
    const Call& call, int level, int bits, unsigned n, const Carry& carry, const double* before, double* after) {
    if (VARIES || HAS_NUMBER || KIND == WINNER) {
        apply(carry, before, after);
    } else {
        double state[N_STATES];
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = before[s];
        move_by(call, level, bits, n, state);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) after[s] = state[s] + carry.rest[s];
    }
}

// The same; false where it is not to be trusted.
__device__ __forceinline__ bool jump_over(
    const Call& call, int level, int bits, unsigned n, Carry& carry, const double* before, double* after) {
    set_number(call, level, bits, n, carry);
    if (VARIES || HAS_NUMBER || KIND == WINNER) return jump(carry, before, after);
    advance(call, level, bits, n, carry, before, after);
    return are_trusted(carry.rest) && are_trusted(before) && are_trusted(after);
}

// next = before, and then `next`, which is of 2**level runs.
__device__ __forceinline__ void put_before(const Call& call, int level, const Carry& before, Carry& next) {
    Carry total = before;
    if (!VARIES) {
#pragma unroll
        for (int n = 0; n < N_MATRIX; ++n) {
            next.matrix[n] = call.matrix[level * N_MATRIX + n];
            total.matrix[n] = 0;  // of no use, and computed by none
        }
    }
    append(total, next);
    next = total;
}

__device__ __forceinline__ Carry nothing() {
    real start[N_REDUCED];
    begin_reduction(start);
    Carry carry;
#pragma unroll
    for (int n = 0; n < N_MATRIX; ++n) carry.matrix[n] = VARIES ? double(start[n]) : 0;
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) carry.rest[s] = start[CARRIED + s];
    return carry;
}

__device__ __forceinline__ Carry of_lane_before(const Carry& own, int distance) {
    Carry carry = own;
#pragma unroll
    for (int n = 0; n < CARRIED; ++n) carry.matrix[n] = of_lane_before(own.matrix[n], distance);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) carry.rest[s] = of_lane_before(own.rest[s], distance);
    return carry;
}

__device__ __forceinline__ Carry of_lane(const Carry& own, int lane) {
    Carry carry = own;
#pragma unroll
    for (int n = 0; n < CARRIED; ++n) carry.matrix[n] = of_lane(own.matrix[n], lane);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) carry.rest[s] = of_lane(own.rest[s], lane);
    return carry;
}

// Whether a run's carry is of use to others, before any state is known; see jump().
__device__ __forceinline__ bool is_useful(const Carry& carry) {
    if (is_trusted(carry)) return true;
    if (KIND != AFFINE || N_STATES > 1) return false;
    const double factor = carry.matrix[0], rest = carry.rest[0];
    if (!is_trusted(factor)) return false;
    return factor != 0 ? !is_infinite(rest) : !CAN_DROP && is_nan(rest);
}

// Whether it makes of every state that is ordinary what it should.
__device__ __forceinline__ bool is_ordinary(const Carry& carry) {
    bool ordinary = true;
    if (KIND == AFFINE) {
#pragma unroll
        for (int n = 0; n < CARRIED; ++n) ordinary = ordinary && fabs(carry.matrix[n]) < ORDINARY;
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) ordinary = ordinary && fabs(carry.rest[s]) < ORDINARY;
    } else if (IS_SHIFT && VARIES) {
        ordinary = fabs(carry.matrix[0]) < ORDINARY;
    }
    return ordinary;
}

__device__ __forceinline__ bool are_ordinary(const double* state) {
    bool ordinary = true;
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) ordinary = ordinary && (KIND != AFFINE || fabs(state[s]) < ORDINARY);
    return ordinary;
}

// ---- letters ---------------------------------------------------------------------------------------------------

template <int N>
struct Letter {
    Word words[N];

    // What is there of a letter that this lane waits for; the others have none.
    __device__ __forceinline__ void look_at(const Word* from, bool waits) {
#pragma unroll
        for (int n = 0; n < N; ++n) words[n] = waits ? look(from + n) : 0;
    }
    __device__ __forceinline__ bool is_whole() const {
        bool whole = true;
#pragma unroll
        for (int n = 0; n < N; ++n) whole = whole && words[n] != EMPTY;
        return whole;
    }
    __device__ __forceinline__ void wait_for(const Word* from, bool waits) {
        while (!is_whole()) {
            wait_a_little();
            look_at(from, waits);
        }
    }
};

typedef Letter<CARRY_WORDS> CarryLetter;
typedef Letter<N_STATES> StateLetter;

__device__ __forceinline__ void post_carry(Word* to, const Carry& carry, bool useful) {
#pragma unroll
    for (int n = 0; n < CARRIED; ++n) post(to + n, useful ? word_of(carry.matrix[n]) : USELESS);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) post(to + CARRIED + s, useful ? word_of(carry.rest[s]) : USELESS);
}

__device__ __forceinline__ void open_state(const StateLetter& letter, double* state) {
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = bits_as_double(letter.words[s]);
}

// The last n lanes of a warp have letters of carries of 2**level runs each: all of them in order, in each lane. False
// if one is useless.
__device__ __forceinline__ bool fold(
    const Call& call, const CarryLetter& letter, int level, int n, Carry& total) {
    const int lane = threadIdx.x % 32;
    Carry carry = nothing();
    if (lane >= 32 - n) {
#pragma unroll
        for (int k = 0; k < CARRIED; ++k) carry.matrix[k] = bits_as_double(letter.words[k]);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) carry.rest[s] = bits_as_double(letter.words[CARRIED + s]);
    }
    const bool useless = any_of_warp(letter.words[0] == USELESS);
#pragma unroll
    for (int bit = 0; bit < GROUP_BITS; ++bit) {
        const Carry before = of_lane_before(carry, 1 << bit);
        // Only letters are joined: what is beyond a double times nothing would be NaN.
        if (lane - (1 << bit) >= 32 - n) put_before(call, level + bit, before, carry);
    }
    total = of_lane(carry, 31);
    return !useless;
}

// Where the letters of one line's tiles are.
struct Chain {
    Word *carries, *states, *groups;
    unsigned n_tiles;

    __device__ __forceinline__ Chain(const Call& call, unsigned line) : n_tiles(unsigned(call.n_chunks)) {
        const long long n_groups = (call.n_chunks + GROUP - 1) / GROUP;
        Word* const letters = reinterpret_cast<Word*>(call.reduced) + 1;  // behind the counter
        carries = letters + line * call.n_chunks * CARRY_WORDS;
        states = letters + call.n_columns * call.n_chunks * CARRY_WORDS + line * call.n_chunks * N_STATES;
        groups = letters + call.n_columns * call.n_chunks * (CARRY_WORDS + N_STATES) + line * n_groups * CARRY_WORDS;
    }

    __device__ __forceinline__ void post_state(unsigned tile, const double* state) const {
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) post(states + (long long)tile * N_STATES + s, word_of(state[s]));
    }
    // Of the tile before, by a lane that waits for it.
    __device__ __forceinline__ void wait_for_state(unsigned tile, double* state) const {
        StateLetter letter;
        letter.look_at(states + (long long)(tile - 1) * N_STATES, true);
        letter.wait_for(states + (long long)(tile - 1) * N_STATES, true);
        open_state(letter, state);
    }

    // The state before a tile, of which `own` is the carry; `first` is the one before the line. By a warp, in each
    // of its lanes. The last tile of a group posts what the group does.
    __device__ __forceinline__ void find_state(
        const Call& call, unsigned tile, const Carry& own, bool useful, const double* first, double* state) const {
        const int lane = threadIdx.x % 32;
        const unsigned group = tile / GROUP, family = group / GROUP;
        const int n_tiles_before = tile % GROUP, n_groups_before = group % GROUP;
        const long long from_lane = lane - 32;
        const Word* const of_tile = carries + (from_lane + tile) * CARRY_WORDS;
        const Word* const of_group = groups + (from_lane + group) * CARRY_WORDS;
        const Word* const of_family = states + ((long long)family * GROUP * GROUP - 1) * N_STATES;
        const bool waits_for_tile = lane >= 32 - n_tiles_before, waits_for_group = lane >= 32 - n_groups_before;
        // All are asked for at once; mostly all are there.
        CarryLetter tiles, groups_before;
        StateLetter families;
        tiles.look_at(of_tile, waits_for_tile);
        groups_before.look_at(of_group, waits_for_group);
        families.look_at(of_family, family > 0);
        Carry since, before;
        tiles.wait_for(of_tile, waits_for_tile);
        __syncwarp();
        const bool tiles_useful = fold(call, tiles, TILE_LEVEL, n_tiles_before, since);
        if (n_tiles_before == GROUP - 1 && tile + 1 < n_tiles && lane == 0) {
            Carry all = own;
            put_before(call, TILE_LEVEL, since, all);
            post_carry(groups + (long long)group * CARRY_WORDS, all, useful && tiles_useful);
        }
        groups_before.wait_for(of_group, waits_for_group);
        __syncwarp();
        const bool groups_useful = fold(call, groups_before, TILE_LEVEL + GROUP_BITS, n_groups_before, before);
        families.wait_for(of_family, family > 0);
        double base[N_STATES], after_groups[N_STATES];
        open_state(families, base);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s)
            after_groups[s] = base[s] = family > 0 ? base[s] : first[s];
        bool known = tiles_useful && groups_useful;
        if (n_groups_before > 0)
            known &= jump_over(
                call, TILE_LEVEL + GROUP_BITS, GROUP_BITS, n_groups_before, before, base, after_groups);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) state[s] = after_groups[s];
        if (n_tiles_before > 0)
            known &= jump_over(call, TILE_LEVEL, GROUP_BITS, n_tiles_before, since, after_groups, state);
        if (!known) wait_for_state(tile, state);
    }
};
