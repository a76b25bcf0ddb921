// new[t] = f(old[t-1], x[t]), out[t] = g(old[t-1], x[t]), of columns that know nothing of each other.
//
// Bytes an element: inputs are read once, outputs written once, states stay in registers. Operations: those of the
// step, of which the device has about 60 in the time in which 8 bytes go past (one float32 in, one out).
// Called by: scan_columns.cuh, scan_lines.cuh and join_chunks.cuh. `_backends/cuda/user_scan_launch.py` fills the structure, field
// by field.

struct Array {  // strides in bytes
    char* data;
    long long time_stride;
    long long strides[N_DIMS];
};

// Where time is cut, chunks are an axis of the columns: a column is then one chunk of one of the user's.
struct Call {
    long long n_columns, n_steps;
    long long chunk, n_chunks;  // steps of a chunk; the last one has what is left
    long long shape[N_DIMS];
    double numbers[N_NUMBERS];  // of the formula
    double initial[N_STATES];   // of states that are numbers
    double matrix[LEVELS * N_MATRIX];  // of a chunk, where it does not vary; in one pass powers, of runs and more
    long long is_bounded;              // whether all of these are ordinary numbers
    real* reduced;              // what each chunk does: a row of columns for each number; in one pass letters
    real* starts;               // the states before each chunk
    Array inputs[N_INPUTS], fixed[N_FIXED], outputs[N_OUTPUTS], states[N_STATES], finals[N_STATES];
};

struct boolean {
    unsigned char bits;
};
template <>
struct Stored<boolean> {
    static __device__ __forceinline__ boolean narrow(real x) { return boolean{(unsigned char)(x != 0)}; }
};

template <class Element>
__device__ __forceinline__ real number(Element x) {
    return Stored<Element>::widen(x);
}

struct Place {  // of a column along the axes
    long long at[N_DIMS];
};

// Along the axes up to LAST; those behind it are the caller's.
template <int LAST = N_DIMS - 1>
__device__ __forceinline__ Place find_place(const Call& call, long long column) {
    Place place;
#pragma unroll
    for (int d = LAST; d > 0; --d) {
        const long long rest = column / call.shape[d];
        place.at[d] = column - rest * call.shape[d];
        column = rest;
    }
    place.at[0] = column;
    return place;
}

__device__ __forceinline__ char* find_address(const Array& array, const Place& place) {
    char* address = array.data;
#pragma unroll
    for (int d = 0; d < N_DIMS; ++d) address += place.at[d] * array.strides[d];
    return address;
}

struct Walk {  // over the steps of a column
    const char* inputs[N_INPUTS];
    char* outputs[N_OUTPUTS];
    long long n_steps;
    bool is_last;  // no chunk of the column comes after it
};

__device__ __forceinline__ Walk begin_walk(const Call& call, const Place& place) {
    Walk walk;
    walk.n_steps = call.n_steps;
    walk.is_last = true;
    if (CHUNK_DIM >= 0) {
        const long long left = call.n_steps - place.at[CHUNK_DIM < 0 ? 0 : CHUNK_DIM] * call.chunk;
        walk.is_last = left <= call.chunk;
        walk.n_steps = walk.is_last ? left : call.chunk;
    }
#pragma unroll
    for (int n = 0; n < N_INPUTS; ++n) walk.inputs[n] = find_address(call.inputs[n], place);
#pragma unroll
    for (int n = 0; n < N_OUTPUTS; ++n) walk.outputs[n] = find_address(call.outputs[n], place);
    return walk;
}
