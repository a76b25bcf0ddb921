"""Reductions over pairs (i, j) of a formula: what KeOps does, and its names."""
