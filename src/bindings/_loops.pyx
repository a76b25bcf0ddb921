# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Calls of compiled loop nests. A `Plan` holds all that the call before has found out about its arrays, but for where they
lie: a call with others of the same shapes, strides and dtypes takes a microsecond, of which checks are the smaller part.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free
from libcpp.vector cimport vector

cnp.import_array()

cdef extern from *:
    """
    #include <algorithm>
    #include <cstdlib>
    static void* upsweep_lines_of_cache(size_t n_bytes) {
      return std::aligned_alloc(64, std::max<size_t>(64, (n_bytes + 63) / 64 * 64));
    }
    """
    void* upsweep_lines_of_cache(size_t n_bytes) noexcept nogil

cdef extern from "loops/polling.hpp" namespace "upsweep":
    # args, n_threads; the first of args is a status.
    ctypedef void (*Nest)(int64_t* args, int64_t n_threads) noexcept nogil
    enum:
        kInterrupted, kNoMemory
    int64_t poll_nest(int64_t* args) noexcept nogil
    int64_t run_nest(Nest nest, int64_t* args, int64_t n_threads, double work) noexcept nogil

cdef extern from "Python.h":
    void PyErr_Occurred() except *   # raises what a signal's handler has raised


def poll_address():
    """The address of the function that compiled loops ask whether to end."""
    return <uintptr_t>&poll_nest

cdef enum:
    MOST_DIMS = 64   # numpy's own limit


cdef struct Operand:
    int type, n_dims, is_output
    int64_t place              # of its address among the kernel's numbers
    int64_t below, above       # the bytes that it spans, from its address
    cnp.npy_intp dims[MOST_DIMS]
    cnp.npy_intp strides[MOST_DIMS]


cdef int describe(Operand& operand, cnp.ndarray array) except -1:
    cdef int d
    cdef int64_t reach
    operand.type, operand.n_dims = cnp.PyArray_TYPE(array), cnp.PyArray_NDIM(array)
    operand.below, operand.above = 0, cnp.PyArray_ITEMSIZE(array)
    for d in range(operand.n_dims):
        operand.dims[d] = cnp.PyArray_DIM(array, d)
        operand.strides[d] = cnp.PyArray_STRIDE(array, d)
        reach = (operand.dims[d] - 1) * operand.strides[d]
        if reach < 0:
            operand.below += reach
        else:
            operand.above += reach
    if cnp.PyArray_SIZE(array) == 0:
        operand.below = operand.above = 0
    return 0


cdef bint is_such(const Operand& operand, object value) noexcept:
    """Whether an argument is an array of the plan's kind."""
    cdef int d
    cdef cnp.ndarray array
    if not cnp.PyArray_CheckExact(value):
        return False
    array = value
    if cnp.PyArray_TYPE(array) != operand.type or cnp.PyArray_NDIM(array) != operand.n_dims:
        return False
    for d in range(operand.n_dims):
        if cnp.PyArray_DIM(array, d) != operand.dims[d] or cnp.PyArray_STRIDE(array, d) != operand.strides[d]:
            return False
    if not cnp.PyArray_ISNOTSWAPPED(array) or not cnp.PyArray_CHKFLAGS(array, cnp.NPY_ARRAY_ALIGNED):
        return False
    return not operand.is_output or cnp.PyArray_ISWRITEABLE(array)


cdef class Plan:
    """A kernel, and what it takes for arrays of the shapes, strides and dtypes of some.

    ``address`` is the kernel's, in ``code``; ``numbers`` are its arguments, of which those at ``places`` are the addresses of
    ``arrays``; ``are_outputs`` says which of these it fills. ``scratch`` are places and sizes of memory that a call needs.
    The last ``n_new`` arrays are no arguments of a call, which makes such and returns them. ``name`` is for messages, and
    ``work`` about the bytes that a call moves, or what is worth as much: a long call looks for signals.
    """

    cdef Nest kernel
    cdef object code, name
    cdef vector[int64_t] numbers
    cdef vector[Operand] operands
    cdef vector[int64_t] scratch_places, scratch_bytes
    cdef Py_ssize_t n_new
    cdef double work

    def __cinit__(self, str name, uintptr_t address, code, numbers, places, arrays, are_outputs, scratch,
                  Py_ssize_t n_new, double work):
        cdef Operand operand
        self.kernel, self.code, self.name, self.n_new, self.work = <Nest>address, code, name, n_new, work
        for number in numbers:
            self.numbers.push_back(number)
        for place, array, is_output in zip(places, arrays, are_outputs):
            describe(operand, array)
            operand.place, operand.is_output = place, is_output
            self.operands.push_back(operand)
        for place, n_bytes in scratch:
            self.scratch_places.push_back(place)
            self.scratch_bytes.push_back(n_bytes)

    def run(self, tuple arrays, int64_t n_threads):
        """Run on arrays; the new ones, None, or NotImplemented for arrays that are not such or overlap what is filled."""
        cdef Py_ssize_t n_given = len(arrays), n, other, n_operands = self.operands.size()
        cdef vector[int64_t] numbers
        cdef cnp.ndarray array
        cdef int64_t here, there
        if n_given != n_operands - self.n_new:
            return NotImplemented
        numbers = self.numbers
        for n in range(n_given):
            if not is_such(self.operands[n], arrays[n]):
                return NotImplemented
            array = arrays[n]
            numbers[self.operands[n].place] = <int64_t><uintptr_t>cnp.PyArray_DATA(array)
        for n in range(n_given):
            if not self.operands[n].is_output:
                continue
            here = numbers[self.operands[n].place]
            for other in range(n_given):
                there = numbers[self.operands[other].place]
                if (other != n and here + self.operands[n].below < there + self.operands[other].above
                        and there + self.operands[other].below < here + self.operands[n].above):
                    return NotImplemented
        new = []
        for n in range(n_given, n_operands):
            array = cnp.PyArray_EMPTY(self.operands[n].n_dims, &self.operands[n].dims[0], self.operands[n].type, 0)
            numbers[self.operands[n].place] = <int64_t><uintptr_t>cnp.PyArray_DATA(array)
            new.append(array)
        self.launch(numbers.data(), n_threads)
        if not new:
            return None
        return new[0] if self.n_new == 1 else tuple(new)

    cdef int launch(self, int64_t* numbers, int64_t n_threads) except -1:
        cdef size_t n, n_scratch = self.scratch_places.size()
        cdef bint has_memory = True
        cdef int64_t status = 0
        with nogil:
            for n in range(n_scratch):
                numbers[self.scratch_places[n]] = <int64_t><uintptr_t>upsweep_lines_of_cache(self.scratch_bytes[n])
                has_memory = has_memory and numbers[self.scratch_places[n]] != 0
            if has_memory:
                status = run_nest(self.kernel, numbers, n_threads, self.work)
            for n in range(n_scratch):
                free(<void*><uintptr_t>numbers[self.scratch_places[n]])
        if status == kInterrupted:
            PyErr_Occurred()
        if not has_memory or status == kNoMemory:
            raise MemoryError(f"{self.name}: no memory for what it computes on the way")
        return 0
