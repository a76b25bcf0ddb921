"""Programs as LLVM IR: vector mathematics, kernels of pair reductions, and their way to machine code."""
