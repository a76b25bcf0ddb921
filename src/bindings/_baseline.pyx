# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The yardsticks of the benchmarks: threaded copies, and a threaded a + b -> c.

Built with the flags of the kernels that are measured against it, once for each instruction set.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t

cnp.import_array()


cdef extern from "common/baseline.hpp" namespace "upsweep" nogil:
    cdef enum CopyKind:
        kMemcpy, kPlain, kStream
    void copy_bytes(const char* src, char* dst, int64_t n, int n_threads, int32_t kind)
    void add_numbers[T](const char* a, const char* b, char* c, int64_t n, int n_threads, int32_t kind)


cdef dict KINDS = {"memcpy": kMemcpy, "plain": kPlain, "stream": kStream}


cdef int32_t kind_code(kind, int n_threads) except -1:
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if n_threads < 1:
        raise ValueError(f"n_threads: expected at least 1, got {n_threads}")
    return KINDS[kind]


cdef int check(cnp.ndarray array, str name, cnp.npy_intp n_bytes, bint written) except -1:
    if not cnp.PyArray_ISCARRAY_RO(array) or (written and not cnp.PyArray_ISWRITEABLE(array)):
        raise ValueError(f"{name}: expected an aligned array in C order{', writeable' if written else ''}")
    if cnp.PyArray_NBYTES(array) != n_bytes:
        raise ValueError(f"{name}: expected {n_bytes} bytes, got {cnp.PyArray_NBYTES(array)}")
    return 0


def copy(cnp.ndarray src not None, cnp.ndarray dst not None, int n_threads, kind):
    """Copy the bytes of ``src`` to ``dst``, arrays of one size that do not overlap. ``kind`` is "memcpy",
    "plain" (vectors through the cache) or "stream" (past it)."""
    cdef int32_t code = kind_code(kind, n_threads)
    cdef int64_t n = cnp.PyArray_NBYTES(src)
    check(src, "src", n, False)
    check(dst, "dst", n, True)
    with nogil:
        copy_bytes(cnp.PyArray_BYTES(src), cnp.PyArray_BYTES(dst), n, n_threads, code)


def add(cnp.ndarray a not None, cnp.ndarray b not None, cnp.ndarray c not None, int n_threads, kind):
    """``c[...] = a + b`` for float32 or float64; ``kind`` is "plain" or "stream"."""
    cdef int32_t code = kind_code(kind, n_threads)
    cdef int64_t n = cnp.PyArray_NBYTES(a)
    cdef int number = cnp.PyArray_TYPE(a)
    if code == kMemcpy:
        raise ValueError("kind: expected plain or stream, got 'memcpy'")
    if number not in (cnp.NPY_FLOAT, cnp.NPY_DOUBLE) or a.dtype != b.dtype or a.dtype != c.dtype:
        raise TypeError(f"a, b, c: expected three arrays of float32 or of float64, got {a.dtype}, {b.dtype}, {c.dtype}")
    check(a, "a", n, False)
    check(b, "b", n, False)
    check(c, "c", n, True)
    with nogil:
        if number == cnp.NPY_FLOAT:
            add_numbers[float](cnp.PyArray_BYTES(a), cnp.PyArray_BYTES(b), cnp.PyArray_BYTES(c), n, n_threads, code)
        else:
            add_numbers[double](cnp.PyArray_BYTES(a), cnp.PyArray_BYTES(b), cnp.PyArray_BYTES(c), n, n_threads, code)
