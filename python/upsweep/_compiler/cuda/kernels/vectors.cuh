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
static_assert(AT_ONCE == 16 && TILE == 32 * WARPS && BLOCK == AT_ONCE * WARPS, "a turn for columns, two for rows");

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

// What a lane has of the vectors that its warp brings: four features in sequence of each.
struct Fetched {
    real of[AT_ONCE][4];
};

// The features of a lane; behind the last one, the last four or the last one again.
__device__ __forceinline__ int known_feature(int feature, int k) {
    return feature + k < DIM ? feature + k : DIM % 4 ? DIM - 1 : DIM - 4 + k;
}

// Fetch features [chunk * LENGTH, ...) of the first or the second half of vectors [begin, begin + AT_ONCE) of n; behind
// these, the last one again: nobody reads its products.
template <bool OF_ROWS, int HALF>
__device__ __forceinline__ void fetch(
    const Call& call, const Bases& bases, long long first, int n, int chunk, int begin, Fetched& fetched) {
    constexpr int ARRAY = OF_ROWS ? ROW_ARRAY : COLUMN_ARRAY, COMPONENT = OF_ROWS ? ROW_COMPONENT : COLUMN_COMPONENT;
    const Array& array = call.arrays[ARRAY];
    const int feature = chunk * LENGTH + threadIdx.x % 32 * 4;
    const char* data = bases.data[ARRAY] + first * array.row_stride + COMPONENT * array.component_stride;
    begin += HALF * AT_ONCE / 2;
    const char* vector = data + (begin < n ? begin : n - 1) * array.row_stride;
    if (sizeof(element) == 4 && DIM % 4 == 0 && array.component_stride == 4 && array.row_stride % 16 == 0 &&
        reinterpret_cast<unsigned long long>(data) % 16 == 0) {
        vector += known_feature(feature, 0) * sizeof(element);
#pragma unroll
        for (int u = 0; u < AT_ONCE / 2; ++u) {
            fetch_together(vector, fetched.of[HALF * AT_ONCE / 2 + u]);
            if (begin + u + 1 < n) vector += array.row_stride;
        }
    } else {
        long long offset[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) offset[k] = known_feature(feature, k) * array.component_stride;
#pragma unroll
        for (int u = 0; u < AT_ONCE / 2; ++u) {
#pragma unroll
            for (int k = 0; k < 4; ++k)
                fetched.of[HALF * AT_ONCE / 2 + u][k] = Stored<element>::widen(fetch_element<element>(vector + offset[k]));
            if (begin + u + 1 < n) vector += array.row_stride;
        }
    }
}

// The sums over the lanes of a warp of 16 numbers; lane l has that of number l / 2.
template <int N = 8>
__device__ __forceinline__ real sums_of_warp(real (&x)[16]) {
    const bool second = threadIdx.x & (2 * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const real own = second ? x[k + N] : x[k], other = second ? x[k] : x[k + N];
        x[k] = own + of_other_lane(other, 2 * N);
    }
    if constexpr (N > 1) return sums_of_warp<N / 2>(x);
    return x[0] + of_other_lane(x[0], 1);
}

// Rows and columns gain 2^14 each, of which the factors of rows take this share back, and those of columns the rest.
constexpr unsigned BACK_BY_ROWS = 24u << 23, BACK_BY_COLUMNS = 4u << 23;

// What is at least taken for the largest number of a vector: a scale and a factor then are numbers.
template <bool OF_ROWS>
__device__ __forceinline__ real least_size() {
    return bits_as_float(OF_ROWS ? 25u << 23 : 14u << 23);
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

// Split what has been fetched into shared memory, and add its squares to the norms.
template <bool OF_ROWS>
__device__ __forceinline__ void place(
    Fetched& fetched, int chunk, int begin, const real* centre_of_tile, const Vectors& to) {
    const int lane = threadIdx.x % 32, feature = chunk * LENGTH + 4 * lane;
    const bool has_place = 4 * lane < LENGTH;
    real centre[4], norm[AT_ONCE];
    bool known[4];  // of the lane's features, else they count as 0
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        known[k] = feature + k < DIM && has_place;
        centre[k] = CENTRED ? centre_of_tile[known_feature(feature, k)] : real(0);
    }
    unsigned power = 0;
#pragma unroll
    for (int two = 0; two < AT_ONCE / 2; ++two) {
        unsigned words[2][4];
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int u = OF_ROWS ? two + 8 * which : 2 * two + which;  // the first half of columns comes first
            real(&four)[4] = fetched.of[u];
            real largest = least_size<OF_ROWS>();
            norm[u] = 0;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (CENTRED) four[k] -= centre[k];
                if (DIM % 4) four[k] = known[k] ? four[k] : real(0);
                norm[u] += four[k] * four[k];
                largest = fmax(largest, fabs(four[k]));  // NaN has no say: it stays one with any scale
            }
            if (DIM % 4 == 0) norm[u] = known[0] ? norm[u] : real(0);
            const unsigned of_vector = most_of_warp(float_as_bits(largest)) & 0x7f800000u;  // the power of 2 below
            power = lane / 2 == u ? of_vector : power;
            const real scale = bits_as_float((268u << 23) - of_vector);
            split(four, DIM % 4 || known[0] ? scale : real(0), words[which]);  // where 0 is NaN, all of the vector is
        }
        if (!has_place) continue;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const unsigned both[4] = {words[0][2 * k], words[1][2 * k], words[0][2 * k + 1], words[1][2 * k + 1]};
            if (OF_ROWS)
                write_together(both, to.words + place_of_rows(begin + two, 4 * lane, k));
            else
                write_together(words[k], to.words + place_of_column(begin + 2 * two + k, 4 * lane));
        }
    }
    const real sum = CENTRED ? sums_of_warp(norm) : real(0);
    const int v = begin + lane / 2;
    if (lane % 2) return;
    to.factors[v] = bits_as_float(power - (OF_ROWS ? BACK_BY_ROWS : BACK_BY_COLUMNS));
    if (CENTRED) to.norms[v] = chunk ? to.norms[v] + sum : sum;
}
