// What the steps of a tile do to any state, finite or not, where carries are not reliable (all_states.cuh).
//
// Infinite states go through the update's own steps, so that what becomes of them is what a loop finds. A step drops the
// state if it makes a number of NaN. For one affine state (EXTENDS), where an infinite factor makes of a finite state
// what its sign says.
// Called by: scan_tiles.cuh, look_back.cuh, prefix_warp.cuh and scan_persistent.cuh.

typedef upsweep::ExtendedStep ExtendedStep;
constexpr int EXTENDED_WORDS = ExtendedStep::kWords;

// Of the lane's run.
__device__ __noinline__ ExtendedStep reduce_run_extended(
    const Call& call, const Fixed& fixed, const char* shared, int n_steps) {
    real p[PARAMETERS], q[PART_PARAMETERS];
    load_parameters(call, p);
    load_part_parameters(call, q);
    upsweep::ExtendedRun<real> run;
    const real none = real(upsweep::number_of_class(upsweep::kNone));
#pragma unroll 1
    for (int t = 0; t < n_steps; ++t) {
        Inputs x;
        get_inputs(shared, threadIdx.x % 32, t, x);
        real parts[N_PARTS];  // the factor and the summand
        part_step(q, fixed, x, parts);
        const auto next = [&](real before) {
            real state[N_STATES], out[N_OUTPUTS];
            state[0] = before;
            step(p, fixed, x, state, out);
            return state[0];
        };
        const real kept = CAN_DROP ? next(none) : none;
        if (kept == kept)
            run.begin_with(kept);
        else
            run.add(parts[0], parts[N_PARTS - 1], next);
    }
    return run.step();
}

// The steps of a tile before a lane's run: of the warps before its own, then of the lanes before it.
struct StepsBefore {
    ExtendedStep warps, lanes;

    __device__ __forceinline__ double state_after(double state) const {
        return lanes.of<real>(warps.of<real>(state));
    }
};

// By all threads that have runs; `of_warps` is in shared memory, `all` is what the tile does.
__device__ __noinline__ StepsBefore scan_extended(
    const Call& call, const Fixed& fixed, const WarpTile& part, ExtendedStep* of_warps, ExtendedStep* all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const ExtendedStep own = reduce_run_extended(call, fixed, part.shared, part.steps());
    ExtendedStep of_warp;
    StepsBefore before;
    before.lanes = upsweep::scan_of_extended<real>(own, lane, 0, 32, 32, &of_warp);
    if (lane == 0) of_warps[warp] = of_warp;
    sync_threads(1, THREADS);
    before.warps = upsweep::scan_of_warps<real>(of_warps, N_WARPS, warp, lane, all);
    return before;
}

__device__ __forceinline__ void store_extended(Word* to, const ExtendedStep& step) {
    Word words[EXTENDED_WORDS];
    upsweep::pack(step, words);
#pragma unroll
    for (int n = 0; n < EXTENDED_WORDS; ++n) store_relaxed(to + n, words[n]);
}
