// What the steps of a tile do to any state, where carries are not reliable.
// Called by: scan_tiles.cuh, look_back.cuh, prefix_warp.cuh and scan_persistent.cuh.

constexpr int EXTENDED_WORDS = ExtendedStep::kWords;

// Of the lane's run.
__device__ __noinline__ ExtendedStep reduce_run_extended(
    const Call& call, const Fixed& fixed, const char* shared, int n_steps) {
    real p[PARAMETERS], q[PART_PARAMETERS];
    load_parameters(call, p);
    load_part_parameters(call, q);
    ExtendedRun run;
#pragma unroll 1
    for (int t = 0; t < n_steps; ++t) {
        Inputs x;
        get_inputs(shared, threadIdx.x % 32, t, x);
        add_step(p, q, fixed, x, run);
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
