"""CUDA kernels of loop nests. `te.cuda_function` makes a `program.Program`; `_backends.cuda.loops` runs it.

The input is the loop nest that LLVM gets, too. `Program` splits it into kernels, and each kernel runs through the
passes:

    split_kernels -> binding -> tile_rows -> keep_states -> prefetch
                                                               |
                       render <- resident_weights <- barriers <- memory_scopes

A kernel that is a product of matrices (`product_tiles`) goes to `render` at once. `conflicts` decides whether two
accesses can be of different threads. If `barriers` finds that one block needs another one's values, the kernel is
split further. `launch_plan` computes grids and the workspace for known sizes.
Start reading at `program`; the README has the rules and two programs in numbers.
"""
