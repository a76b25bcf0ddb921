"""Reductions over pairs (i, j) of a formula, with the names and conventions of KeOps.

    LazyTensor, Vi, Vj, Pm          Genred, generic_*            KernelSolve
    (lazy_tensor = expression       (genred: formulas as text)   (kernel_solve: conjugate
     + operations + reductions)              |                    gradients)
              |                              |                        |
          pending ----------------------> function <------------------'      gradients
          (not yet called)       checks, sizes, dispatch                   (explicit, by the adjoint
                                         |                                  of the formula)
                                         v
          _backends.run_pairs, _torch.pairs, _dask.pairs

`ranges` is `BlockRanges`, the block-sparse sets of pairs; `block_intervals` has their arrays, and constructs them.
`printing` is the text of expressions and reductions; `protocols` leads functions of numpy and torch to methods.
Formulas themselves, and the code generated for them, are in `_compiler`. Start reading in `function`.
"""

from upsweep.pairs.genred import Genred, generic_argkmin, generic_argmin, generic_logsumexp, generic_sum
from upsweep.pairs.kernel_solve import KernelSolve
from upsweep.pairs.lazy_tensor import LazyTensor, Pm, Vi, Vj
from upsweep.pairs.ranges import BlockRanges

__all__ = [
    "BlockRanges", "Genred", "KernelSolve", "LazyTensor", "Pm", "Vi", "Vj", "generic_argkmin", "generic_argmin",
    "generic_logsumexp", "generic_sum",
]  # fmt: skip
