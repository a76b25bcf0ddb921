// Long vectors rounded to float16, once each, for tensor cores that multiply with one instruction where vectors.cuh
// takes three. Columns are rounded by a kernel of their own, into memory; rows by the warp that owns them, into
// registers. Numbers of float32 are relative to the mean of the rows, where the formula reads a squared distance, and
// times a power of 2 that makes the largest of a vector 2^14 to 2^15: they keep 11 bits, and what is less than 2^-29 of
// the largest keeps fewer. Norms are those of the rounded numbers, so that the squared
// distance of two points is that of the points they have been rounded to: never much below 0, and exactly 0 of equals.
//
// Of 16 features thread q of four takes 4 q to 4 q + 3, as k = 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of a multiplication.
// Called by: float16_products.cuh.

constexpr int WARPS = THREADS / 32;
constexpr int STEPS = (DIM + 15) / 16, DEPTH = 16 * STEPS;  // multiplications of 16 features; features
constexpr int ROW_TILES = 2;                                // of 16 rows, of a warp
static_assert(ROWS == 1 && BLOCK <= THREADS && DEPTH <= 128, "what sizes.py says");

// `call.prepared`: the mean of each entry's rows, the rounded columns, and what each column's reader needs besides.
struct ColumnInfo {
    real norm, factor;  // squared; undoes the scale
};
struct Prepared {
    real* centre;
    char* columns;
    ColumnInfo* info;

    __device__ __forceinline__ Prepared(const Call& call, long long batch) {
        char* words = call.prepared + call.n_batch * DEPTH * sizeof(real);
        const long long first = batch * call.n_columns;
        centre = reinterpret_cast<real*>(call.prepared) + batch * DEPTH;
        columns = words + first * DEPTH * 2;
        info = reinterpret_cast<ColumnInfo*>(words + call.n_batch * call.n_columns * DEPTH * 2) + first;
    }
};

// Four elements from an address that is a multiple of their bytes.
template <class Element>
struct Four {
    static __device__ __forceinline__ void fetch(const char* from, real (&to)[4]) {
        const unsigned long long bits = double_as_bits(fetch_element<double>(from));
#pragma unroll
        for (int k = 0; k < 4; ++k) to[k] = Stored<Element>::widen(Element{(unsigned short)(bits >> 16 * k)});
    }
};
template <>
struct Four<float> {
    static __device__ __forceinline__ void fetch(const char* from, real (&to)[4]) { fetch_together(from, to); }
};

// Features [feature, feature + 4) relative to the centre; behind the last one 0.
template <bool OF_ROWS>
__device__ __forceinline__ void load_four(
    const Call& call, const Bases& bases, const real* centre, long long at, int feature, real (&four)[4]) {
    constexpr int ARRAY = OF_ROWS ? ROW_ARRAY : COLUMN_ARRAY, COMPONENT = OF_ROWS ? ROW_COMPONENT : COLUMN_COMPONENT;
    const Array& array = call.arrays[ARRAY];
    const char* from = bases.data[ARRAY] + at * array.row_stride + (COMPONENT + feature) * array.component_stride;
    const bool together = array.component_stride == sizeof(element) &&
                          reinterpret_cast<unsigned long long>(from) % (4 * sizeof(element)) == 0;
    if (DIM % 4 == 0 && together && feature < DIM) {
        Four<element>::fetch(from, four);
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            four[k] = feature + k < DIM ? load(call, bases, ARRAY, at, COMPONENT + feature + k) : real(0);
    }
    if (!SHIFTED) return;
#pragma unroll
    for (int k = 0; k < 4; ++k) four[k] = feature + k < DIM ? four[k] - centre[feature + k] : real(0);
}

// The power of 2 that takes the largest number, of which these are the bits, to 2^14; and the one that undoes it.
__device__ __forceinline__ real scale_of(unsigned largest) {
    return SCALED ? bits_as_float((268u << 23) - (largest & 0x7f800000u)) : real(1);
}
__device__ __forceinline__ real factor_of(unsigned largest) {
    return SCALED ? bits_as_float((largest & 0x7f800000u) - (14u << 23)) : real(1);
}

// The largest of a vector's numbers; at least what makes scale and factor numbers. NaN has no say.
__device__ __forceinline__ void find_largest(const real (&four)[4], real& largest) {
#pragma unroll
    for (int k = 0; k < 4; ++k) largest = fmax(largest, fabs(four[k]));
}
__device__ __forceinline__ real least_size() { return bits_as_float(25u << 23); }

// Two words of float16, and the sum of the squares of what they hold.
__device__ __forceinline__ real round_four(const real (&four)[4], real scale, unsigned& low, unsigned& high) {
    real rounded[4];
    low = pack_float16(four[0] * scale, four[1] * scale), high = pack_float16(four[2] * scale, four[3] * scale);
    unpack_float16(low, rounded[0], rounded[1]), unpack_float16(high, rounded[2], rounded[3]);
    return (rounded[0] * rounded[0] + rounded[1] * rounded[1]) + (rounded[2] * rounded[2] + rounded[3] * rounded[3]);
}

// The mean of some of an entry's rows, or 0 where they are not finite.
__device__ __forceinline__ void find_centre(const Call& call, const Bases& bases, real* centre) {
    constexpr int SAMPLES = 32;
    const long long step = (call.n_rows + SAMPLES - 1) / SAMPLES, n = (call.n_rows + step - 1) / step;
    for (int k = threadIdx.x; k < DIM; k += THREADS) {
        real sum = 0;
#pragma unroll 8
        for (int sample = 0; sample < n; ++sample)
            sum += load(call, bases, ROW_ARRAY, sample * step, ROW_COMPONENT + k);
        centre[k] = finite_or_0(sum / real(n));
    }
}

// A warp rounds one column after the other, BLOCK of them a block of threads.
extern "C" __global__ void __launch_bounds__(THREADS) prepare_columns(const __grid_constant__ Call call) {
    __shared__ real centre[DIM];
    const long long n_blocks = (call.n_columns + BLOCK - 1) / BLOCK, batch = blockIdx.x / n_blocks;
    const long long block = blockIdx.x - batch * n_blocks;
    const Bases bases = find_bases(call, batch);
    const Prepared prepared(call, batch);
    const int lane = threadIdx.x % 32;
    if (SHIFTED) {
        find_centre(call, bases, centre);
        __syncthreads();
        for (int k = threadIdx.x; k < DIM && block == 0; k += THREADS) prepared.centre[k] = centre[k];
    }
#pragma unroll 4
    for (int c = threadIdx.x / 32; c < BLOCK; c += WARPS) {
        const long long column = block * BLOCK + c < call.n_columns ? block * BLOCK + c : call.n_columns - 1;
        real four[4], largest = least_size();
        load_four<false>(call, bases, centre, column, 4 * lane, four);
        find_largest(four, largest);
        const unsigned bits = most_of_warp(float_as_bits(largest));
        const real factor = factor_of(bits);
        unsigned low, high;
        real norm = round_four(four, scale_of(bits), low, high);
#pragma unroll
        for (int mask = 1; mask < 32; mask *= 2) norm += of_other_lane(norm, mask);
        if (4 * lane < DEPTH) {
            unsigned* to = reinterpret_cast<unsigned*>(prepared.columns + column * DEPTH * 2) + lane / 4 * 8 + lane % 4;
            to[0] = low, to[4] = high;
        }
        if (lane == 0) prepared.info[column] = ColumnInfo{norm * factor * factor, factor};
    }
}

// The rows of a warp, as tensor cores take them: a thread has rows g and g + 8 of each 16, where it is 4 g + q.
struct Rows {
    unsigned words[ROW_TILES][STEPS][4];
    real norm[ROW_TILES][2], factor[ROW_TILES][2];
};

__device__ __forceinline__ int own_row(int tile, int half) {
    return threadIdx.x / 32 * 32 + 16 * tile + 8 * half + threadIdx.x % 32 / 4;
}

__device__ __forceinline__ void load_rows(
    const Call& call, const Bases& bases, const Item& item, const real* centre, Rows& rows) {
    const int feature = threadIdx.x % 4 * 4;
#pragma unroll
    for (int r = 0; r < 2 * ROW_TILES; ++r) {
        const int own = own_row(r / 2, r % 2);
        const long long row = item.row + (own < item.n_rows ? own : item.n_rows - 1);
        real four[4], largest = least_size(), norm = 0;
        if (SCALED) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                load_four<true>(call, bases, centre, row, 16 * step + feature, four);
                find_largest(four, largest);
            }
            largest = fmax(largest, of_other_lane(largest, 1));
            largest = fmax(largest, of_other_lane(largest, 2));
        }
        const real scale = scale_of(float_as_bits(largest)), factor = factor_of(float_as_bits(largest));
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            unsigned(&words)[4] = rows.words[r / 2][step];
            load_four<true>(call, bases, centre, row, 16 * step + feature, four);
            norm += round_four(four, scale, words[r % 2], words[2 + r % 2]);
        }
        norm += of_other_lane(norm, 1);
        norm += of_other_lane(norm, 2);
        rows.norm[r / 2][r % 2] = norm * factor * factor;
        rows.factor[r / 2][r % 2] = (CENTRED ? real(-2) : real(1)) * factor;
    }
}
