// The columns' neighbours in memory are other columns, or there is no order at all: a thread takes a column, and
// neighbouring threads neighbouring columns.
// Called by: `_backends/cuda/user_scan_launch.py`.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) run_scan(const __grid_constant__ Call call) {
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= call.n_columns) return;
    const Place place = find_place(call, column);
    Walk walk = begin_walk(call, place);
    real p[PARAMETERS], state[N_STATES];
    load_parameters(call, p);
    Fixed fixed;
    fetch_fixed(call, place, fixed);
    begin_states(call, place, column, state);
    walk_steps(call, walk, p, fixed, state);
    end_states(call, place, column, walk.is_last, state);
}
