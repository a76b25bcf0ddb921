"""The adjoint of a recurrence: the recurrence of its cotangents, which runs backwards in time.

With r the cotangent of the state after step t, and g the cotangent of the output of step t,

    r' = r df/ds + g dg/ds        is the new state of the adjoint, and
         r df/dx + g dg/dx        its output: the gradient by the inputs of step t.

Its inputs are the inputs of the recurrence, the states before each step, and g. It is affine in r.
"""

from __future__ import annotations

import functools

from upsweep._compiler.formulas.nodes import Node, constant, make, substitute
from upsweep._compiler.formulas.scalar_ops import pull_back
from upsweep._compiler.recurrences.recurrence import Recurrence, input_, state

__all__ = ["adjoint"]


@functools.lru_cache(256)
def adjoint(recurrence: Recurrence) -> Recurrence:
    """The adjoint, whose inputs are the inputs, the states before each step and the cotangents of the outputs."""
    k, n = recurrence.n_states, recurrence.n_inputs
    places: dict[Node, Node] = {state(p): input_(n + p) for p in range(k)}
    cotangents: dict[Node, Node] = {}
    incoming = [state(p) for p in range(k)] + [input_(n + k + p) for p in range(len(recurrence.outputs))]
    for root, cotangent in zip((substitute(root, places) for root in recurrence.roots), incoming):
        cotangents[root] = make("add", cotangents[root], cotangent) if root in cotangents else cotangent
    gradients = pull_back(cotangents, (*places.values(), *(input_(p) for p in range(n))))
    nodes = tuple(constant(0) if node.op == "zero" else node for node in gradients)
    return Recurrence(nodes[:k], nodes[k:], n + k + len(recurrence.outputs))
