// How carries and states travel from one block of threads to others.
//
// A number is a word of 64 bits, written and read in one piece. A word of ones means that nothing is there yet, so no
// flag and no fence is needed. The workspace is filled with ones before the launch. A carry of which no other tile can
// make use is posted as a word of its own. Which way is taken depends on the numbers alone.
// Called by: look_back.cuh, scan_tiles.cuh, prefix_warp.cuh and scan_persistent.cuh.

typedef unsigned long long Word;

constexpr Word INVALID = ~0ull, NOT_COMBINABLE = ~1ull;

__device__ __forceinline__ Word word_of(double x) {
    return is_nan(x) ? 0x7ff8000000000000ull : double_as_bits(x);  // no NaN is one of the words that mean something
}

template <int N>
struct TileState {
    Word words[N];

    // Loads what is stored of the tile state that this lane waits for; other lanes wait for none.
    __device__ __forceinline__ void load(const Word* from, bool waits) {
#pragma unroll
        for (int n = 0; n < N; ++n) words[n] = waits ? load_relaxed(from + n) : 0;
    }
    __device__ __forceinline__ bool is_whole() const {
        bool whole = true;
#pragma unroll
        for (int n = 0; n < N; ++n) whole = whole && words[n] != INVALID;
        return whole;
    }
    __device__ __forceinline__ void wait_for(const Word* from, bool waits) {
        while (!is_whole()) {
            back_off();
            load(from, waits);
        }
    }
};

typedef TileState<CARRY_WORDS> CarryTileState;
typedef TileState<N_STATES> StateTileState;

__device__ __forceinline__ void store_carry(Word* to, const Carry& carry, bool combinable) {
#pragma unroll
    for (int n = 0; n < CARRIED; ++n) store_relaxed(to + n, combinable ? word_of(carry.matrix[n]) : NOT_COMBINABLE);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) store_relaxed(to + CARRIED + s, combinable ? word_of(carry.rest[s]) : NOT_COMBINABLE);
}

__device__ __forceinline__ void unpack_state(const StateTileState& tile_state, double* state) {
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) state[s] = bits_as_double(tile_state.words[s]);
}
