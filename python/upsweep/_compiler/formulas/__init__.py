r"""Formulas of pairs (i, j): symbolic expressions with derivatives, simplification and a numpy reference.

A formula is a graph of immutable nodes, built from KeOps' text or from the methods of `LazyTensor`. Recurrences
use the same nodes for the updates of user-defined scans. Nothing here depends on arrays or devices; `lowering`
turns a formula into instructions.

    parser -----> nodes <------ composites          text -> nodes; composite operations replaced while building
                    |  \______ ops, numpy_semantics          table of operations, dim rules, numpy functions
                    v
                  rules                             simplification
                    v
       cotangents, derivative, adjoint              derivatives of nodes, of formulas, of reductions over pairs
                    v
       reduction, reference                         the problem, its numpy implementation

Start reading in `nodes`, then `ops`.
"""

from upsweep._compiler.formulas import composites  # registers its operations

__all__ = ["composites"]
