"""CPU kernels of user-defined scans, as LLVM IR that `jit` compiles. `_backends.cpu.user_scan` calls them.

    kernel             `steps`: columns through steps, states in registers; `turn`: transposes tiles
    chunk_aggregates   `sums`: what chunks of steps of an affine update do to a state

The loops over columns, tiles, chunks and threads around these functions are in ``src/user_scan``. Start reading at
`kernel`.
"""
