// Integers in the words of double: the bits of an int64 or of a uint64, to which narrower ones are extended. Arithmetic is
// modulo 2^64, a quotient by 0 is 0, and shifts by 64 bits and more leave nothing but the sign.
// Called by: the step of a recurrence that has integers, and what reads and writes its arrays.

__device__ __forceinline__ unsigned long long bits(double x) { return double_as_bits(x); }
__device__ __forceinline__ long long integer(double x) { return (long long)double_as_bits(x); }
__device__ __forceinline__ double word(unsigned long long x) { return bits_as_double(x); }

// Elements in memory; narrowing keeps the lower bits.
template <class Element>
__device__ __forceinline__ double integer_number(Element x) {
    return word((unsigned long long)(long long)x);
}
template <class Element>
__device__ __forceinline__ Element narrow_integer(double x) {
    return Element(integer(x));
}

__device__ __forceinline__ double truncated(double x) { return word((unsigned long long)(long long)x); }

template <int BITS>
__device__ __forceinline__ double wrap(double x) {
    return word((unsigned long long)((long long)(bits(x) << (64 - BITS)) >> (64 - BITS)));
}
template <int BITS>
__device__ __forceinline__ double wrap_unsigned(double x) {
    return word(bits(x) << (64 - BITS) >> (64 - BITS));
}

__device__ __forceinline__ double ishl(double a, double b) { return word(bits(b) < 64 ? bits(a) << bits(b) : 0ull); }
__device__ __forceinline__ double unsigned_ishr(double a, double b) {
    return word(bits(b) < 64 ? bits(a) >> bits(b) : 0ull);
}
__device__ __forceinline__ double ishr(double a, double b) {
    return word((unsigned long long)(integer(a) >> (bits(b) < 64 ? int(bits(b)) : 63)));
}

__device__ __forceinline__ double unsigned_idiv(double a, double b) {
    return word(bits(b) ? bits(a) / bits(b) : 0ull);
}
__device__ __forceinline__ double unsigned_imod(double a, double b) {
    return word(bits(b) ? bits(a) % bits(b) : 0ull);
}
__device__ __forceinline__ double idiv(double a, double b) {
    const long long n = integer(a), by = integer(b);
    if (by == 0 || by == -1) return word(by ? 0ull - bits(a) : 0ull);
    const long long quotient = n / by, rest = n - quotient * by;
    return word((unsigned long long)(quotient - ((rest ^ by) < 0 && rest != 0)));
}
__device__ __forceinline__ double imod(double a, double b) {
    const long long n = integer(a), by = integer(b);
    if (by == 0 || by == -1) return word(0ull);
    const long long rest = n % by;
    return word((unsigned long long)((rest ^ by) < 0 && rest != 0 ? rest + by : rest));
}
