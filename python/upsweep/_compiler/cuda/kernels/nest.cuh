// What the kernels of loop nests call beyond C++'s own functions; their meanings are numpy's.
// Called by: the text of every nest, after device.cuh.

using int64 = long long;

// From memory that no thread writes while the kernel runs.
template <class T>
__device__ __forceinline__ T fetch(const T& element) {
    return fetch_element<T>(reinterpret_cast<const char*>(&element));
}

// NaN if one of them is.
template <class T>
__device__ __forceinline__ T lesser(T a, T b) {
    return a < b || a != a ? a : b;
}
template <class T>
__device__ __forceinline__ T greater(T a, T b) {
    return a > b || a != a ? a : b;
}
template <class T>
__device__ __forceinline__ T magnitude(T x) {
    return x < 0 ? -x : x;
}
__device__ __forceinline__ float magnitude(float x) { return fabs(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

// Rounded towards minus infinity; the divisor is positive.
template <class T>
__device__ __forceinline__ T floor_div(T a, T b) {
    return a / b - (a % b < 0);
}
template <class T>
__device__ __forceinline__ T floor_mod(T a, T b) {
    return a % b + (a % b < 0 ? b : 0);
}

template <class T>
struct Unsigned;
template <>
struct Unsigned<int> {
    using type = unsigned;
};
template <>
struct Unsigned<int64> {
    using type = unsigned long long;
};
template <class T>
__device__ __forceinline__ T wrapped_sum(T a, T b) {
    return T(typename Unsigned<T>::type(a) + typename Unsigned<T>::type(b));
}
template <class T>
__device__ __forceinline__ T wrapped_difference(T a, T b) {
    return T(typename Unsigned<T>::type(a) - typename Unsigned<T>::type(b));
}
template <class T>
__device__ __forceinline__ T wrapped_product(T a, T b) {
    return T(typename Unsigned<T>::type(a) * typename Unsigned<T>::type(b));
}

// Four elements that are read or written together.
template <class T>
struct __align__(16) Four {
    T of[4];
};
