// What runs of TILE steps do to a state, joined.
//
// Where factors or shifts do not vary, carries are their vectors or bounds, and `matrix` has the powers: the first of a
// run, each other one of twice as many as the one before, up to those of a tile, and then of what tiles form.
// Called by: look_back.cuh, scan_tiles.cuh, prefix_warp.cuh and scan_persistent.cuh.

constexpr int CARRIED = VARIES ? N_MATRIX : 0, CARRY_WORDS = CARRIED + N_STATES;
constexpr bool IS_SHIFT = KIND != AFFINE && KIND != WINNER;
// Of a constant factor or shift, the power of any number of runs is one number.
constexpr bool HAS_NUMBER = !VARIES && N_MATRIX == 1 && KIND != WINNER;
constexpr double RANGE_LIMIT = 1e75;  // the product of three such numbers is finite

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

// The factor or the shift of n times 2**level runs, where it does not vary; n is below 2**bits.
__device__ __forceinline__ double find_number(const Call& call, int level, int bits, unsigned n) {
    double number = IS_SHIFT ? 0 : 1;
#pragma unroll
    for (int bit = 0; HAS_NUMBER && bit < bits; ++bit) {
        const double power = call.matrix[level + bit], both = IS_SHIFT ? number + power : multiply_factors(number, power);
        number = n >> bit & 1 ? both : number;
    }
    return number;
}
__device__ __forceinline__ void set_number(double number, Carry& carry) {
    if (HAS_NUMBER) carry.matrix[0] = number;
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

// The same; false where it is not reliable.
__device__ __forceinline__ bool jump_over(
    const Call& call, int level, int bits, unsigned n, Carry& carry, const double* before, double* after) {
    set_number(find_number(call, level, bits, n), carry);
    if (VARIES || HAS_NUMBER || KIND == WINNER) return jump(carry, before, after);
    advance(call, level, bits, n, carry, before, after);
    return (are_reliable(carry.rest) && are_reliable(before) && are_reliable(after)) || leave_nan(before, after);
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
__device__ __forceinline__ bool is_combinable(const Carry& carry) {
    if (is_reliable(carry)) return true;
    if (KIND != AFFINE || N_STATES > 1) return false;
    const double factor = carry.matrix[0], rest = carry.rest[0];
    if (!is_reliable(factor)) return false;
    return factor != 0 ? !is_infinite(rest) : !CAN_DROP && is_nan(rest);
}

// Whether it makes of every state that is ordinary what it should.
__device__ __forceinline__ bool is_in_range(const Carry& carry) {
    bool in_range = true;
    if (KIND == AFFINE) {
#pragma unroll
        for (int n = 0; n < CARRIED; ++n) in_range = in_range && fabs(carry.matrix[n]) < RANGE_LIMIT;
#pragma unroll
        for (int s = 0; s < N_STATES; ++s) in_range = in_range && fabs(carry.rest[s]) < RANGE_LIMIT;
    } else if (IS_SHIFT && VARIES) {
        in_range = fabs(carry.matrix[0]) < RANGE_LIMIT;
    }
    return in_range;
}

__device__ __forceinline__ bool are_in_range(const double* state) {
    bool in_range = true;
#pragma unroll
    for (int s = 0; s < N_STATES; ++s) in_range = in_range && (KIND != AFFINE || fabs(state[s]) < RANGE_LIMIT);
    return in_range;
}
