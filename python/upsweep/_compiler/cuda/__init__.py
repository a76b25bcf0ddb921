"""CUDA code generation: CUDA C++ text, and NVRTC, which compiles it.

    pairs/     kernels of pair reductions          scalars   one instruction as CUDA C++
    scans/     kernels of user-defined scans       nvrtc     locates and calls NVIDIA's run-time compiler
    loops/     kernels of `te`'s loop nests
    kernels/   CUDA C++ templates that the generated text includes

Nothing in this folder uses a device or an array: `_backends/cuda` launches the kernels. README.md explains the
texts of the kernels, and the precision.
"""
