// Long vectors in shared memory, as tensor cores multiply them: relative to the centre of the tile's rows, each
// times a power of 2 that makes its largest number 2^14 to 2^15, and each number split into two float16, `upper` and
// `rest`: 22 bits and their signs, as good as float32's 24 for products whose sums are rounded.
//
// Four features of a vector lie in 16 bytes, two words of upper numbers and two of rests: what a thread of a warp
// takes of the 16 features of one multiplication. Which feature is which does not matter to a product.
// A power of 2 for each vector, since another one far away, or infinite, must not take the bits of its neighbours.
// Called by: products.cuh.

constexpr int WARPS = THREADS / 32;
// Where two neighbours would read the same banks, the second one's halves of 32 features change places.
constexpr int TURN = LENGTH % 32 ? 0 : 16;
constexpr int AT_ONCE = 16;  // vectors that a warp has on their way
static_assert(LENGTH % 16 == 0 && LENGTH <= 128, "four features a lane");
static_assert(TILE % (AT_ONCE * WARPS) == 0 && BLOCK % (AT_ONCE * WARPS) == 0, "whole turns");

struct Vectors {
    unsigned* words;  // LENGTH of each vector
    real *factors;    // powers of 2 that undo the scales; of rows and columns together 2^28 is gone
    real *norms;      // squared, `norm_stride` apart
    int norm_stride;
};

__device__ __forceinline__ int turned(int vector, int feature) { return feature ^ (vector % 2 * TURN); }

// Four features in sequence of a vector, those beyond the last one as the centre has them: relative to it they are 0.
template <bool TOGETHER>
__device__ __forceinline__ void fetch_four(
    const Array& array, const char* vector, int feature, const real (&centre)[4], real (&four)[4]) {
    if (TOGETHER) {  // DIM is a multiple of 4
        fetch_together(vector + (feature < DIM ? feature : DIM - 4) * sizeof(element), four);
#pragma unroll
        for (int k = 0; k < 4; ++k) four[k] = feature < DIM ? four[k] : centre[k];
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int at = feature + k < DIM ? feature + k : DIM - 1;
            four[k] = Stored<element>::widen(fetch_element<element>(vector + at * array.component_stride));
            four[k] = feature + k < DIM ? four[k] : centre[k];
        }
    }
}

// The sums over the lanes of a warp of N numbers; lane l has that of number l * N / 32.
template <int N>
__device__ __forceinline__ real sums_of_warp(real (&x)[N]) {
    int lane_bit = 16;
#pragma unroll
    for (int n = N / 2; n; n /= 2, lane_bit /= 2) {
        const bool second = threadIdx.x & lane_bit;
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const real mine = second ? x[k + n] : x[k], other = second ? x[k] : x[k + n];
            x[k] = mine + of_other_lane(other, lane_bit);
        }
    }
#pragma unroll
    for (; lane_bit; lane_bit /= 2) x[0] += of_other_lane(x[0], lane_bit);
    return x[0];
}

// The exponent, as float32 stores it, of the largest of the sizes whose bits are given; far enough from its ends
// that both a scale and its inverse are numbers.
__device__ __forceinline__ unsigned exponent_of(unsigned largest) {
    const unsigned exponent = largest >> 23;
    return exponent < 29 ? 29 : exponent > 254 ? 254 : exponent;
}

// Four numbers times a power of 2, split.
__device__ __forceinline__ void write_split(const real (&four)[4], real scale, unsigned* to) {
    unsigned words[4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const real first = four[2 * k] * scale, second = four[2 * k + 1] * scale;
        real first_upper, second_upper;
        words[k] = pack_float16(first, second);
        unpack_float16(words[k], first_upper, second_upper);
        words[2 + k] = pack_float16(first - first_upper, second - second_upper);
    }
    write_together(words, to);
}

// Bring features [chunk * LENGTH, ...) of vectors, a warp for each vector in turn, and add their squares to the
// norms. Beyond the n vectors that there are the last one is repeated: nobody reads its products.
template <bool OF_ROWS, bool TOGETHER>
__device__ __forceinline__ void bring_vectors(
    const Array& array, const char* data, int n, int chunk, const real* centre_of_tile, const Vectors& to) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, feature = chunk * LENGTH + 4 * lane;
    const bool mine = 4 * lane < LENGTH;
    real centre[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) centre[k] = CENTRED && mine && feature + k < DIM ? centre_of_tile[feature + k] : real(0);
#pragma unroll 1
    for (int begin = warp * AT_ONCE; begin < (OF_ROWS ? TILE : BLOCK); begin += AT_ONCE * WARPS) {
        real four[AT_ONCE][4], norm[AT_ONCE];
        unsigned exponent = 0;
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const int v = begin + u;
            fetch_four<TOGETHER>(array, data + (v < n ? v : n - 1) * array.row_stride, feature, centre, four[u]);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            real largest = 0;
            norm[u] = 0;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (CENTRED) four[u][k] -= centre[k];
                four[u][k] = mine ? four[u][k] : real(0);
                norm[u] += four[u][k] * four[u][k];
                largest = fmax(largest, fabs(four[u][k]));  // NaN has no say: it stays one with any scale
            }
            const unsigned of_vector = exponent_of(most_of_warp(float_as_bits(largest)));
            if (lane / 2 == u) exponent = of_vector;
            const real scale = bits_as_float((268 - of_vector) << 23);
            if (mine) write_split(four[u], scale, to.words + (begin + u) * LENGTH + turned(u, 4 * lane));
        }
        const int v = begin + lane / 2;
        real sum = CENTRED ? sums_of_warp(norm) : real(0);
        if (lane % 2) continue;
        to.factors[v] = bits_as_float((OF_ROWS ? exponent - 28 : exponent) << 23);
        if (CENTRED) to.norms[v * to.norm_stride] = chunk ? to.norms[v * to.norm_stride] + sum : sum;
    }
}

template <bool OF_ROWS>
__device__ __forceinline__ void bring(
    const Call& call, const Bases& bases, long long first, int n, int chunk, const real* centre, const Vectors& to) {
    constexpr int ARRAY = OF_ROWS ? ROW_ARRAY : COLUMN_ARRAY, COMPONENT = OF_ROWS ? ROW_COMPONENT : COLUMN_COMPONENT;
    const Array& array = call.arrays[ARRAY];
    const char* data = bases.data[ARRAY] + first * array.row_stride + COMPONENT * array.component_stride;
    if (sizeof(element) == 4 && DIM % 4 == 0 && array.component_stride == 4 && array.row_stride % 16 == 0 &&
        reinterpret_cast<unsigned long long>(data) % 16 == 0)
        bring_vectors<OF_ROWS, sizeof(element) == 4>(array, data, n, chunk, centre, to);
    else
        bring_vectors<OF_ROWS, false>(array, data, n, chunk, centre, to);
}
