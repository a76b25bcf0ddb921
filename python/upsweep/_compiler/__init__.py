"""Formulas of pairs (i, j): nodes, operations, derivatives, and their lowering to a scalar program.

The README of this folder lists the files, the passes, and how to add an operation."""
