// Products with weights that a block keeps while its threads take the steps of a scan:
//     sums[row] += sum over k of left(row, k) * right(thread, k)
// Called by: kernels of scans whose steps have such sums, one for each thread. Whole warps take part.
//
// Four neighbouring lanes share their four columns: lane l has the terms 16 c + 4 l + (0 to 3) of all four, in chunk c.
// So a number of the left side, which all threads read, serves four multiply-adds instead of one; at the end each
// lane collects its own column. The weights of the first chunks are in registers, those of the next ones in shared
// memory, and the last ones in global memory, in the order of threads: a thread reads only what it has stored itself. All
// blocks store the same numbers there.

constexpr int CHUNK = 16;  // terms

// The weights of four columns at one term.
template <class T, class Right>
__device__ __forceinline__ Four<T> weights_at(int n, Right right) {
    const int first = int(threadIdx.x) & ~3;
    const int64 k = n / 4 * CHUNK + 4 * (int(threadIdx.x) & 3) + n % 4;
    return {{right(first, k), right(first + 1, k), right(first + 2, k), right(first + 3, k)}};
}

// Put the weights of all chunks into their places.
template <int IN_REGISTERS, int IN_SHARED, int IN_GLOBAL, int N_THREADS, class T, class Right>
__device__ __forceinline__ void keep_weights(Four<T>* registers, Four<T>* shared, Four<T>* global, Right right) {
    const int thread = threadIdx.x;
    if (thread >= N_THREADS) return;
#pragma unroll
    for (int n = 0; n < 4 * IN_REGISTERS; ++n) registers[n] = weights_at<T>(n, right);
#pragma unroll 4
    for (int n = 0; n < 4 * IN_SHARED; ++n)
        shared[n * N_THREADS + thread] = weights_at<T>(4 * IN_REGISTERS + n, right);
#pragma unroll 4
    for (int n = 0; n < 4 * IN_GLOBAL; ++n)
        global[n * N_THREADS + thread] = weights_at<T>(4 * (IN_REGISTERS + IN_SHARED) + n, right);
}

// `left(row, k)` are four terms from k on.
template <int IN_REGISTERS, int IN_SHARED, int IN_GLOBAL, int N_THREADS, class T, int N_ROWS, class Left>
__device__ __forceinline__ void add_products(
    T (&sums)[N_ROWS], const Four<T>* registers, const Four<T>* shared, const Four<T>* global, Left left) {
    const int thread = threadIdx.x, lane = thread & 3;
    T partial[N_ROWS][4] = {};
    const auto add = [&](int chunk, const Four<T>* weights) {
#pragma unroll
        for (int row = 0; row < N_ROWS; ++row) {
            const Four<T> x = left(row, chunk * CHUNK + 4 * lane);
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int column = 0; column < 4; ++column)
                    partial[row][column] += x.of[k] * weights[k].of[column];
        }
    };
    const auto add_stored = [&](int chunk, const Four<T>* at) {
        const Four<T> weights[4] = {at[0], at[N_THREADS], at[2 * N_THREADS], at[3 * N_THREADS]};
        add(chunk, weights);
    };
#pragma unroll
    for (int n = 0; n < IN_REGISTERS; ++n) add(n, registers + 4 * n);
#pragma unroll 2
    for (int n = 0; n < IN_SHARED; ++n) add_stored(IN_REGISTERS + n, shared + 4 * n * N_THREADS + thread);
#pragma unroll 2
    for (int n = 0; n < IN_GLOBAL; ++n)
        add_stored(IN_REGISTERS + IN_SHARED + n, global + 4 * n * N_THREADS + thread);
    // A lane passes on two of its four sums, then one of two, and keeps its own column's.
#pragma unroll
    for (int row = 0; row < N_ROWS; ++row) {
        const bool is_upper = lane & 2, is_odd = lane & 1;
        const T(&all)[4] = partial[row];
        const T first = (is_upper ? all[2] : all[0]) + of_other_lane(is_upper ? all[0] : all[2], 2);
        const T second = (is_upper ? all[3] : all[1]) + of_other_lane(is_upper ? all[1] : all[3], 2);
        sums[row] += (is_odd ? second : first) + of_other_lane(is_odd ? first : second, 1);
    }
}
