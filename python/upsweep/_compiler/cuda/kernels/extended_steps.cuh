// What the update's steps do to any state, finite or not, where carries are not reliable (all_states.cuh).
//
// Infinite states go through the update's own steps, so that what becomes of them is what a loop finds. A step drops the
// state if it makes a number of NaN. For one affine state (EXTENDS), where an infinite factor makes of a finite state
// what its sign says, or the steps that it consists of do so: x * (s + 1) adds 1 first, and then multiplies.
// Called by: extended_tiles.cuh and join_chunks.cuh.

typedef upsweep::ExtendedStep ExtendedStep;
typedef upsweep::ExtendedRun<real> ExtendedRun;

__device__ __forceinline__ void add_step(
    const real* p, const real* q, const Fixed& fixed, const Inputs& x, ExtendedRun& run) {
    real parts[N_PARTS];  // the factor and the summand; of each of the steps that make it up, if these are several
    part_step(q, fixed, x, parts);
    const auto next = [&](real before) {
        real state[N_STATES], out[N_OUTPUTS];
        state[0] = before;
        step(p, fixed, x, state, out);
        return state[0];
    };
    const real of_nan = next(real(upsweep::number_of_class(upsweep::kNone)));
    if (of_nan == of_nan) {
        run.begin_with(of_nan);
    } else if (N_PARTS <= 2) {
        run.add(parts[0], parts[N_PARTS - 1], next);
    } else {
#pragma unroll
        for (int n = 0; n + 1 < N_PARTS; n += 2) run.add(parts[n], parts[n + 1]);
    }
}
