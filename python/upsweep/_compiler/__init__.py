"""Compiler of formulas, recurrences and loop nests to LLVM IR and CUDA C++.

    formulas/, recurrences/ -> lowering/ -> llvm/, cuda/
    loops/ ------------------------------> llvm/, cuda/

`_backends` and `te` call the code generators, `pairs` and `_user_scan` the front ends. No array library but numpy
is imported. README.md has the passes, and how to add an operation.
"""
