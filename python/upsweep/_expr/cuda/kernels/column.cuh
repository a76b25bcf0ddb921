// A column's record, read from shared memory once for all rows of a thread; a long one component by component.
struct Column {
    static constexpr bool SHORT = COLUMN_VALUES <= 32;
    static constexpr int TOGETHER = 16 / int(sizeof(real));  // numbers that one instruction reads
    const real* at;
    real held[SHORT ? COLUMN_VALUES : 1];

    __device__ __forceinline__ explicit Column(const real* from) : at(from) {
        if (!SHORT) return;
        if (COLUMN_VALUES % TOGETHER == 0) {
#pragma unroll
            for (int k = 0; k < COLUMN_VALUES / TOGETHER; ++k)
                read_together(from + k * TOGETHER, held + (SHORT ? k * TOGETHER : 0));
        } else {
#pragma unroll
            for (int k = 0; k < COLUMN_VALUES; ++k) held[SHORT ? k : 0] = from[k];
        }
    }
    __device__ __forceinline__ real value(int k) const { return SHORT ? held[SHORT ? k : 0] : at[k]; }
};
