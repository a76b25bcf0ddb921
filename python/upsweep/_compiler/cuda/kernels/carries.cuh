// What a number of steps does to a state, as a few numbers in double: a matrix (or shift) and a vector (or bound).
//
// What is not finite is not reliable: a factor of 0 may have dropped a state, or only have become too small.
// Called by: join_chunks.cuh and runs.cuh.

constexpr double HUGE_NUMBER = 1e200, SMALLEST = 4.9406564584124654e-324;

__device__ __forceinline__ bool is_reliable(double x) { return fabs(x) < HUGE_NUMBER; }
__device__ __forceinline__ bool is_nan(double x) { return x != x; }
__device__ __forceinline__ bool is_infinite(double x) { return !is_nan(x) && is_nan(x - x); }

// Of a winner that varies, the matrix is whether the steps replace every state.
struct Carry {
    double matrix[N_MATRIX], rest[N_STATES];
};

// A product of factors is 0 only if one of them is: a single one that underflows stays nonzero, since 0 would make NaN
// of an infinite state. So a state that is not finite is known after any number of steps.
__device__ __forceinline__ double multiply_factors(double a, double b) {
    const double product = a * b;
    return product == 0 && a != 0 && b != 0 ? (a < 0) != (b < 0) ? -SMALLEST : SMALLEST : product;
}

__device__ __forceinline__ double choose_extreme(double a, double b) {
    if (is_nan(a) || is_nan(b)) return a + b;
    if (KIND == MAXIMUM) return a < b ? b : a;
    if (KIND == MINIMUM) return b < a ? b : a;
    const double most = a < b ? b : a;
    return a == b ? a + 0.6931471805599453 : most + log(1 + exp(-fabs(a - b)));
}

// Of integers in words, modulo 2^64.
__device__ __forceinline__ double multiply_words(double a, double b) {
    return bits_as_double(double_as_bits(a) * double_as_bits(b));
}
__device__ __forceinline__ double add_words(double a, double b) {
    return bits_as_double(double_as_bits(a) + double_as_bits(b));
}

// after = what the carry makes of a state.
__device__ __forceinline__ void apply(const Carry& carry, const double* before, double* after) {
    if (KIND == INTEGERS) {
#pragma unroll
        for (int i = 0; i < N_STATES; ++i) {
            after[i] = carry.rest[i];
#pragma unroll
            for (int j = 0; j < N_STATES; ++j)
                after[i] = add_words(after[i], multiply_words(carry.matrix[(i * N_STATES + j) % N_MATRIX], before[j]));
        }
    } else if (KIND == AFFINE) {
#pragma unroll
        for (int i = 0; i < N_STATES; ++i) {
            after[i] = carry.rest[i];
#pragma unroll
            for (int j = 0; j < N_STATES; ++j) after[i] += carry.matrix[(i * N_STATES + j) % N_MATRIX] * before[j];
        }
    } else if (KIND == WINNER) {
        const double current = before[DECIDES], other = carry.rest[DECIDES];
        const bool replaces = (MOST_WINS ? other > current : other < current) || (other == current && !KEEPS_TIES) ||
                              (VARIES && carry.matrix[0] != 0);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) after[s] = replaces ? carry.rest[s] : before[s];
    } else {
        after[0] = choose_extreme(before[0] + carry.matrix[0], carry.rest[0]);
    }
}

// total = total, and then `next`.
__device__ __forceinline__ void append(Carry& total, const Carry& next) {
    double rest[N_STATES];
    apply(next, total.rest, rest);
    if (KIND == INTEGERS) {
        double product[N_MATRIX];
#pragma unroll
        for (int n = 0; n < N_MATRIX; ++n) {
            const int row = n / N_STATES, column = n % N_STATES;
            product[n] = 0;
#pragma unroll
            for (int m = 0; m < N_STATES; ++m)
                product[n] = add_words(product[n], multiply_words(next.matrix[(row * N_STATES + m) % N_MATRIX],
                                                                  total.matrix[(m * N_STATES + column) % N_MATRIX]));
        }
#pragma unroll
        for (int n = 0; n < N_MATRIX; ++n) total.matrix[n] = product[n];
    } else if (KIND == AFFINE) {
        double product[N_MATRIX];
        if (N_MATRIX == 1) product[0] = multiply_factors(next.matrix[0], total.matrix[0]);
#pragma unroll
        for (int n = 0; n < N_MATRIX && N_MATRIX > 1; ++n) {
            const int row = n / N_STATES, column = n % N_STATES;
            product[n] = 0;
#pragma unroll
            for (int m = 0; m < N_STATES; ++m)
                product[n] += next.matrix[(row * N_STATES + m) % N_MATRIX] * total.matrix[(m * N_STATES + column) % N_MATRIX];
        }
#pragma unroll
        for (int n = 0; n < N_MATRIX; ++n) total.matrix[n] = product[n];
    } else if (KIND != WINNER) {
        total.matrix[0] += next.matrix[0];
    } else if (VARIES && next.matrix[0] != 0) {
        total.matrix[0] = next.matrix[0];
    }
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) total.rest[s] = rest[s];
}

__device__ __forceinline__ bool is_reliable(const Carry& carry) {
    bool trusted = true;
    if (KIND == AFFINE) {
#pragma unroll
        for (int n = 0; n < N_MATRIX; ++n) trusted = trusted && is_reliable(carry.matrix[n]);
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) trusted = trusted && is_reliable(carry.rest[s]);
    } else if (KIND == INTEGERS) {
        trusted = true;
    } else if (KIND == WINNER) {
        trusted = KEEPS_TIES || !is_infinite(carry.rest[DECIDES]);  // the worst of all may be none
    } else {
        trusted = !is_nan(carry.matrix[0]);
    }
    return trusted;
}

__device__ __forceinline__ bool are_reliable(const double* states) {
    bool trusted = true;
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) trusted = trusted && (KIND != AFFINE || is_reliable(states[s]));
    return trusted;
}

// A state that a chunk drops may have been NaN, or infinite the other way than the shift that drops it.
__device__ __forceinline__ bool is_known(const Carry& carry, const double* after) {
    if (KIND == AFFINE || KIND == WINNER || KIND == INTEGERS) return are_reliable(after);
    return !(is_infinite(carry.matrix[0]) && is_nan(after[0]));
}

// Whether every step leaves NaN of each state, whatever its factors are.
__device__ __forceinline__ bool stays_nan(const double* state) {
    bool stays = KIND == AFFINE && !CAN_DROP;
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) stays = stays && is_nan(state[s]);
    return stays;
}

__device__ __forceinline__ bool leave_nan(const double* before, double* after) {
    const bool stays = stays_nan(before);
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) after[s] = stays ? before[s] : after[s];
    return stays;
}

// The state after a chunk; false where it has to be found step by step.
__device__ __forceinline__ bool jump(const Carry& carry, const double* before, double* after) {
    apply(carry, before, after);
    if (is_reliable(carry) && are_reliable(before) && is_known(carry, after)) return true;
    if (KIND != AFFINE || N_STATES > 1) return leave_nan(before, after);
    // No factor was 0, so that nothing was dropped; else 0 may be a state that was, or times one that is not finite.
    const double factor = carry.matrix[0], rest = carry.rest[0];
    if (factor != 0 && is_reliable(factor) && !is_infinite(rest)) return true;
    // A NaN stays one where nothing is dropped; but a product that overflows makes one of a vector of 0, too.
    const bool stays = stays_nan(before) || (!CAN_DROP && is_nan(rest) && is_reliable(factor));
    return stays && is_nan(after[0] = before[0] + rest);
}
