"""LLVM code generation for the CPU.

    vectors        writer of IR text: loops, branches, calls; vectors of one width
    mathematics    exp, log, sin, ... on vectors, by the polynomials of `coefficients`
    instructions   instructions of scalar programs as vectors
    integers       those on integers
    transpose      transposes squares of vectors in registers
    target, jit    instruction sets; compile and load
    pairs/         kernels of pair reductions: `kernel`, `reducers`, `looped`
    scans/         kernels of user-defined scans: `kernel`, `chunk_aggregates`
    loops/         kernels of `te`'s loop nests

`_backends/cpu` calls `pairs.kernel`, `scans.kernel` and `loops.render`; each writes IR, which `jit` compiles
and the disk cache stores. Start reading with `vectors`, then `pairs/kernel`.
"""
