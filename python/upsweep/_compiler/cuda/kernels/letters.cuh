// How carries and states travel from one block of threads to others.
//
// A number is a word of 64 bits, written and read in one piece. A word of ones means that nothing is there yet, so no
// flag and no fence is needed. The workspace is filled with ones before the launch. A carry of which no other tile can
// make use is posted as a word of its own. Which way is taken depends on the numbers alone.
// Called by: look_back.cuh, scan_tiles.cuh, wave_states.cuh and scan_waves.cuh.

typedef unsigned long long Word;

constexpr Word EMPTY = ~0ull, USELESS = ~1ull;

__device__ __forceinline__ Word word_of(double x) {
    return is_nan(x) ? 0x7ff8000000000000ull : double_as_bits(x);  // no NaN is one of the words that mean something
}

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
