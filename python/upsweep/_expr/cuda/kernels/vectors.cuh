// Long vectors in shared memory, as tensor cores multiply them: relative to the centre of the tile's rows, each
// times a power of 2 that makes its largest number 2^14 to 2^15, and each number split into two float16, `upper` and
// `rest`: 22 bits and their signs, as good as float32's 24 for products whose sums are rounded.
// A power of 2 for each vector, since another one far away, or infinite, must not take the bits of its neighbours.
//
// A thread of a warp takes four features in sequence of the 16 of one multiplication; which feature is which does not
// matter to a product. Of a column they lie in 16 bytes: two words of upper numbers, two of rests. Rows r and r + 8
// lie together, since a thread takes both: 16 bytes of upper numbers, whose words are in turn of one row and of the
// other, and 16 of rests; so no word has to change its register.
// Called by: products.cuh.

constexpr int WARPS = THREADS / 32;
constexpr int AT_ONCE = 16;  // vectors that a warp has on their way
static_assert(LENGTH % 16 == 0 && LENGTH <= 128, "four features a lane");
static_assert(AT_ONCE == 16 && TILE % (AT_ONCE * WARPS) == 0 && BLOCK % (AT_ONCE * WARPS) == 0, "whole turns");

struct Vectors {
    unsigned* words;  // LENGTH of each vector
    real* factors;    // that undo the scales
    real* norms;      // squared
};

// Where features [feature, feature + 4) of a column are. Where neighbours would lie in the same banks, the halves of 32
// features change places in every second one.
__device__ __forceinline__ int place_of_column(int column, int feature) {
    return column * LENGTH + (LENGTH % 32 ? feature : feature ^ column % 2 * 16);
}
// Of rows r and r + 8, the upper numbers or the rests: these change places in every second pair.
__device__ __forceinline__ int place_of_rows(int row, int feature, bool rests) {
    return (row / 16 * 8 + row % 8) * 2 * LENGTH + 2 * feature + (row % 2 != rests ? 4 : 0);
}

// Four features in sequence of a vector. A lane behind its end takes the last ones, or each the last one, again.
template <bool TOGETHER>
__device__ __forceinline__ void fetch_four(const char* vector, long long component_stride, int feature, real (&four)[4]) {
    if (TOGETHER) {  // DIM is a multiple of 4
        fetch_together(vector + (feature < DIM ? feature : DIM - 4) * sizeof(element), four);
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int at = feature + k < DIM ? feature + k : DIM - 1;
            four[k] = Stored<element>::widen(fetch_element<element>(vector + at * component_stride));
        }
    }
}

// The sums over the lanes of a warp of 16 numbers; lane l has that of number l / 2.
template <int N = 8>
__device__ __forceinline__ real sums_of_warp(real (&x)[16]) {
    const bool second = threadIdx.x & (2 * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const real mine = second ? x[k + N] : x[k], other = second ? x[k] : x[k + N];
        x[k] = mine + of_other_lane(other, 2 * N);
    }
    if constexpr (N > 1) return sums_of_warp<N / 2>(x);
    return x[0] + of_other_lane(x[0], 1);
}

// The largest power of 2, in bits, that is no larger than a positive number; far enough from float32's ends that both a
// scale and its inverse are numbers.
__device__ __forceinline__ unsigned power_below(unsigned bits) {
    const unsigned power = bits & 0x7f800000u, least = 29u << 23, most = 254u << 23;
    return power < least ? least : power > most ? most : power;
}

// Four numbers times a power of 2: two words of their upper numbers and two of rests.
__device__ __forceinline__ void split(const real (&four)[4], real scale, unsigned (&words)[4]) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const real first = four[2 * k] * scale, second = four[2 * k + 1] * scale;
        real first_upper, second_upper;
        words[k] = pack_float16(first, second);
        unpack_float16(words[k], first_upper, second_upper);
        words[2 + k] = pack_float16(first - first_upper, second - second_upper);
    }
}

// Write what a lane has of vectors v and v + 8.
template <bool OF_ROWS>
__device__ __forceinline__ void write_two(const unsigned (&words)[2][4], int v, int feature, unsigned* to) {
    if (OF_ROWS) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const unsigned both[4] = {
                words[0][2 * part], words[1][2 * part], words[0][2 * part + 1], words[1][2 * part + 1]};
            write_together(both, to + place_of_rows(v, feature, part));
        }
    } else {
        write_together(words[0], to + place_of_column(v, feature));
        write_together(words[1], to + place_of_column(v + 8, feature));
    }
}

// Bring features [chunk * LENGTH, ...) of vectors, a warp for each vector in turn, and add their squares to the
// norms. Beyond the n vectors that there are the last one is repeated: nobody reads its products.
template <bool OF_ROWS, bool TOGETHER>
__device__ __forceinline__ void bring_vectors(
    const Array& array, const char* data, int n, int chunk, const real* centre_of_tile, const Vectors& to) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, feature = chunk * LENGTH + 4 * lane;
    const bool has_place = 4 * lane < LENGTH;
    real centre[4];
    bool known[4];  // of the lane's features, else they count as 0
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        known[k] = feature + k < DIM && has_place;
        const int last = TOGETHER ? DIM - 4 + k : DIM - 1;
        centre[k] = CENTRED ? centre_of_tile[feature + k < DIM ? feature + k : last] : real(0);
    }
#pragma unroll 1
    for (int begin = warp * AT_ONCE; begin < (OF_ROWS ? TILE : BLOCK); begin += AT_ONCE * WARPS) {
        real four[AT_ONCE][4], norm[AT_ONCE];
        unsigned power = 0;
        const char* vector = data + (begin < n ? begin : n - 1) * array.row_stride;
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            fetch_four<TOGETHER>(vector, array.component_stride, feature, four[u]);
            if (begin + u + 1 < n) vector += array.row_stride;
        }
#pragma unroll
        for (int first = 0; first < 8; ++first) {
            unsigned words[2][4];
#pragma unroll
            for (int which = 0; which < 2; ++which) {
                const int u = first + 8 * which;
                real largest = 0;
                norm[u] = 0;
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    if (CENTRED) four[u][k] -= centre[k];
                    if (!TOGETHER) four[u][k] = known[k] ? four[u][k] : real(0);
                    norm[u] += four[u][k] * four[u][k];
                    largest = fmax(largest, fabs(four[u][k]));  // NaN has no say: it stays one with any scale
                }
                if (TOGETHER) norm[u] = known[0] ? norm[u] : real(0);
                const unsigned of_vector = power_below(most_of_warp(float_as_bits(largest)));
                power = lane / 2 == u ? of_vector : power;
                const real scale = bits_as_float((268u << 23) - of_vector);  // 0 times what is infinite: all of it is NaN
                split(four[u], !TOGETHER || known[0] ? scale : real(0), words[which]);
            }
            if (has_place) write_two<OF_ROWS>(words, begin + first, 4 * lane, to.words);
        }
        const real sum = CENTRED ? sums_of_warp(norm) : real(0);
        const int v = begin + lane / 2;
        if (lane % 2) continue;
        // What rows and columns have gained, 2^28, is lost by rows.
        to.factors[v] = bits_as_float(power - (OF_ROWS ? 28u << 23 : 0));
        if (CENTRED) to.norms[v] = chunk ? to.norms[v] + sum : sum;
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
