"""LLVM IR of loop nests. `_backends.cpu.loops` calls `render.render` and compiles its text.

    render          statements, and parallel loops as functions over a chunk of their range
      |    \
      |   matmul, few_columns      register tiling of matrix products; scans whose state stays in registers
      |    /
    writer          loops with polling, vector loops with a masked rest, values carried in registers
      |
    vectorize       expressions, loads and stores in the lanes of a vector

`parallel_for` is the text of the function that shares a range among OpenMP's threads.
"""
