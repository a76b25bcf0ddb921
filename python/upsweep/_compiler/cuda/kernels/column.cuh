// A column's record, read from shared memory once for all rows of a thread; a long one component by component.
struct Column {
    static constexpr bool SHORT = COLUMN_VALUES <= 32;
    static constexpr int TOGETHER = 16 / int(sizeof(real));  // numbers that one instruction reads
    const real* at;
    int number;
    real held[SHORT ? COLUMN_VALUES : 1];
    real mma_product;  // the product with one of the thread's rows, where it is in a register
    bool by_polynomial;  // whether the power of 2 of that product is

    __device__ __forceinline__ Column(const real* columns, int c) : at(columns + c * COLUMN_VALUES), number(c) {
        if (!SHORT) return;
        if (COLUMN_VALUES % TOGETHER == 0) {
#pragma unroll
            for (int k = 0; k < COLUMN_VALUES / TOGETHER; ++k)
                read_together(at + k * TOGETHER, held + (SHORT ? k * TOGETHER : 0));
        } else {
#pragma unroll
            for (int k = 0; k < COLUMN_VALUES; ++k) held[SHORT ? k : 0] = at[k];
        }
    }
    __device__ __forceinline__ real value(int k) const { return SHORT ? held[SHORT ? k : 0] : at[k]; }
    // What tensor cores have made of the column and the thread's row: their scalar product or squared distance.
    __device__ __forceinline__ real product() const;
};
