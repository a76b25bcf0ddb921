"""Reductions over pairs (i, j) of a formula: what KeOps does, and its names.

lazy_tensor      LazyTensor, Vi, Vj, Pm: formulas written as arrays; operations, reductions: its methods
genred           Genred, generic_*: formulas that are text
kernel_solve     KernelSolve: linear systems by conjugate gradients
ranges           BlockRanges: which pairs; triples, patterns: their arrays
calls            a formula's reduction, called on arrays; gradients, describe: differentiated, printed
"""

from upsweep.pairs.genred import Genred, generic_argkmin, generic_argmin, generic_logsumexp, generic_sum
from upsweep.pairs.kernel_solve import KernelSolve
from upsweep.pairs.lazy_tensor import LazyTensor, Pm, Vi, Vj
from upsweep.pairs.ranges import BlockRanges

__all__ = [
    "BlockRanges",
    "Genred",
    "KernelSolve",
    "LazyTensor",
    "Pm",
    "Vi",
    "Vj",
    "generic_argkmin",
    "generic_argmin",
    "generic_logsumexp",
    "generic_sum",
]
