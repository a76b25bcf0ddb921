"""CUDA code generation for pair reductions.

    graph, fold        the scalar program as a graph; rewrites that move work out of the loop over pairs
    functions, looped  the formula's functions in CUDA C++, unrolled or with loops
    sizes              the request, a formula's sizes, and tile sizes for tensor cores
    render             the text of the kernels: constants, functions and the templates of `cuda/kernels`

`_backends/cuda/pairs_launch.py` compiles the text with NVRTC and launches it. Start reading with `render`.
"""
