# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Calls of compiled loop nests.

A `Plan` stores the checked shapes, strides and dtypes of one call's arrays and the kernel's arguments, all but the
addresses. A later call with arrays of the same layout compares and launches, which takes about a microsecond.
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
    """Return the address of the function that compiled loops poll to learn whether to end."""
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
    """Return whether an argument is an array of the layout and dtype of the plan's operand."""
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
    """A compiled kernel with the layouts of its arrays and all arguments but the addresses.

    Parameters
    ----------
    name : str
        For messages.
    address : int
        Of the kernel's function, in the object ``code``.
    numbers : sequence of int
        The kernel's arguments. Those at ``places`` are replaced by the addresses of a call's arrays.
    arrays, are_outputs : sequences
        Arrays of the layouts that calls must have, and whether the kernel writes them.
    scratch : sequence of (place, n_bytes)
        Temporary memory that a call allocates.
    n_new : int
        The number of last arrays that a call allocates and returns.
    work : float
        About the bytes that a call moves. A long call polls for signals.
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
        """Run on arrays; return the new arrays or None, or NotImplemented for other layouts or overlapping outputs."""
        cdef Py_ssize_t n_arrays = len(arrays), n, other, n_operands = self.operands.size()
        cdef vector[int64_t] numbers
        cdef cnp.ndarray array
        cdef int64_t output, operand
        if n_arrays != n_operands - self.n_new:
            return NotImplemented
        numbers = self.numbers
        for n in range(n_arrays):
            if not is_such(self.operands[n], arrays[n]):
                return NotImplemented
            array = arrays[n]
            numbers[self.operands[n].place] = <int64_t><uintptr_t>cnp.PyArray_DATA(array)
        for n in range(n_arrays):
            if not self.operands[n].is_output:
                continue
            output = numbers[self.operands[n].place]
            for other in range(n_arrays):
                operand = numbers[self.operands[other].place]
                if (other != n and output + self.operands[n].below < operand + self.operands[other].above
                        and operand + self.operands[other].below < output + self.operands[n].above):
                    return NotImplemented
        new = []
        for n in range(n_arrays, n_operands):
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
