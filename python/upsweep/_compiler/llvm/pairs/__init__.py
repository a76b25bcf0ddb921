"""LLVM code generation for pair reductions; start reading with `kernel`.

column_values      hoists what depends on the column alone
reducers, looped   how each reduction accumulates, and its state in memory
kernel             the function for a tile of rows against a run of columns, compiled for `_backends/cpu/pairs.py`
"""
