// Sums over near pairs, whose exponents tensor cores make, for 16 rows and 8 columns at a time. Relative to the
// tile's first row, and with their scale, an exponent is 2 x.y - |x|^2 - |y|^2: four products for each component.
//
//     of a row        upper of 2 x, rest, upper, rest         1, 1, upper of -|x|^2, rest
//     of a column     upper of y, upper, rest, rest           upper of -|y|^2, rest, 1, 1
//
// `upper` is a number rounded to float16, and `rest` what that leaves, rounded, too: the sum of both is within 2^-23.
// One multiplication takes four components, of which the norms are the last. An instruction then makes the exponents
// of four pairs a lane, and there is time for a share of the powers of 2 by polynomials: the unit for exponentials
// takes eight cycles for those of a warp, in which as many other instructions are issued.
//
// Lane 4 g + t has component t of rows g and g + 8 and of column g; it is given the exponents of these rows with
// columns 2 t and 2 t + 1. The four lanes of a row add their sums in the end.
// Called by: reduce_pairs in kernel.cuh.

constexpr int STEPS = NEAR_POINTS / 4 + 1;  // multiplications for an exponent
constexpr int COMPONENTS = 4 * STEPS;
constexpr int SHARED_ROWS = 4 * ROWS;   // rows of which a lane has a quarter of the columns
constexpr int MOST_TERMS = 4 * 128;     // columns until sums become wide: a lane then has added 128 terms
constexpr unsigned ONES = 0x3c003c00u;  // two float16

// Up to which no power of 2 of a pair is subnormal: exponents are at least -4 NEAR. Those of tensor cores are wrong by
// at most 2^-17 then.
constexpr real NEAR = 31;

__device__ __forceinline__ real Column::product() const { return mma_product; }

// A number's two parts in a word.
__device__ __forceinline__ unsigned split_number(real x) {
    real upper, same;
    unpack_float16(pack_float16(x, x), upper, same);
    return pack_float16(upper, x - upper);
}

struct Near {
    static constexpr int WORDS = BLOCK * 8 * STEPS;  // of shared memory
    unsigned a[2 * ROWS][STEPS][4];
    real x[SHARED_ROWS][ROW_VALUES];
    real sum[SHARED_ROWS][N_RESULTS];
    int n_added = 0;

    // The row of a lane: those of four neighbours in a warp are the rows whose columns they share.
    static __device__ __forceinline__ int row_of_lane() { return threadIdx.x % 4 * 8 + threadIdx.x % 32 / 4; }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int r = 0; r < SHARED_ROWS; ++r)
#pragma unroll EACH_RESULT
            for (int k = 0; k < N_RESULTS; ++k) sum[r][k] = 0;
        n_added = 0;
    }

    __device__ __forceinline__ void begin(const real (&own)[ROWS][ROW_VALUES]) {
        const int t = threadIdx.x % 4, first_lane = threadIdx.x % 32 - t;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            real point[COMPONENTS];
            unsigned parts[COMPONENTS] = {};
            point_of_row(own[r], point);
#pragma unroll
            for (int k = 0; k < NEAR_POINTS; ++k) parts[k] = split_number(2 * point[k]);
            parts[NEAR_POINTS] = split_number(point[NEAR_POINTS]);
#pragma unroll
            for (int q = 0; q < 4; ++q) {
#pragma unroll
                for (int k = 0; k < ROW_VALUES; ++k) x[4 * r + q][k] = of_lane(own[r][k], first_lane + q);
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    unsigned word = 0;
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        const unsigned other = of_lane(parts[4 * s + k], first_lane + q);
                        word = t == k ? other : word;
                    }
                    unsigned(&to)[4] = a[2 * r + q / 2][s];
                    to[q % 2] = 4 * s + t == NEAR_POINTS ? ONES : word, to[2 + q % 2] = word;
                    // Else the loop over columns selects them anew in each turn.
                    forget_word(to[q % 2]), forget_word(to[2 + q % 2]);
                }
            }
        }
        clear();
    }

    // Column c of a block, for the multiplications.
    static __device__ __forceinline__ void place(const real* record, int c, unsigned* words) {
        real point[COMPONENTS];
        point_of_column(record, point);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            unsigned of_column[8] = {};
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (4 * s + k > NEAR_POINTS) break;
                const unsigned both = split_number(point[4 * s + k]), upper = both & 0xffffu, rest = both >> 16;
                of_column[2 * k] = 4 * s + k == NEAR_POINTS ? both : upper * 0x10001u;
                of_column[2 * k + 1] = 4 * s + k == NEAR_POINTS ? ONES : rest * 0x10001u;
            }
#pragma unroll
            for (int k = 0; k < 8; k += 4) write_together(of_column + k, words + (s * BLOCK + c) * 8 + k);
        }
    }

    // Pairs of eight columns at a time.
    __device__ __forceinline__ void add(const real* p, const real* columns, int n, const unsigned* words) {
        const int t = threadIdx.x % 4;
        words += threadIdx.x % 32 * 2;
#pragma unroll NEAR_UNROLLED
        for (int c = 0; c < n; c += 8) {
            Column first(columns, c + 2 * t), second(columns, c + 2 * t + 1);
            unsigned b[STEPS][2];
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int k = 0; k < 2; ++k) b[s][k] = words[(s * BLOCK + c) * 8 + k];
#pragma unroll
            for (int m = 0; m < 2 * ROWS; ++m) {
                real exponents[4] = {};
#pragma unroll
                for (int s = 0; s < STEPS; ++s) multiply_tiles(exponents, a[m][s], b[s][0], b[s][1]);
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    Column& y = k % 2 ? second : first;
                    const int row = 2 * m + k / 2;
                    y.mma_product = exponents[k], y.by_polynomial = POLYNOMIALS >> (4 * m + k) % 16 & 1;
                    const Pair<2> at(p, x[row], y);
#pragma unroll EACH_RESULT
                    for (int i = 0; i < N_RESULTS; ++i) sum[row][i] += at.result[i];
                }
            }
        }
        n_added += n;
    }

    // The sums of a row's four lanes go to the one whose row it is.
    __device__ __forceinline__ void finish(State (&state)[ROWS]) {
        if (n_added == 0) return;
        const bool second = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll EACH_RESULT
            for (int k = 0; k < N_RESULTS; ++k) {
                real half[2];
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    const real low = sum[4 * r + q][k], high = sum[4 * r + 2 + q][k];
                    half[q] = (upper ? high : low) + of_other_lane(upper ? low : high, 2);
                }
                state[r].sum[k] += wide((second ? half[1] : half[0]) + of_other_lane(second ? half[0] : half[1], 1));
            }
        clear();
    }

    __device__ __forceinline__ void reduce(
        const real* p, const real (&own)[ROWS][ROW_VALUES], State (&state)[ROWS], const real* columns,
        column_index first, int n, const unsigned* words, bool near) {
        const int whole = near ? n - n % 8 : 0;
        if (whole) {
            if (n_added + whole > MOST_TERMS) finish(state);
            add(p, columns, whole, words);
        }
        if (whole < n)
            reduce_formed(p, own, state, columns + whole * COLUMN_VALUES, first + whole, n - whole, false);
    }
};
