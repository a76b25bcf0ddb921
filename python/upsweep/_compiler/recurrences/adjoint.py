"""The derivative of a recurrence: another one, that runs the other way.

With r the cotangent of the state after step t, and g that of its output,

    r' = r df/ds + g dg/ds,    what it puts out: r df/dx + g dg/dx,

whose inputs are those of the recurrence, its states before the step, and g. It is affine in r.
"""

from __future__ import annotations

import functools

from upsweep._compiler.formulas.nodes import Node, constant, make, substitute
from upsweep._compiler.formulas.scalar_ops import pull_back
from upsweep._compiler.recurrences.recurrence import Recurrence, input_, state

__all__ = ["adjoint"]


@functools.lru_cache(256)
def adjoint(recurrence: Recurrence) -> Recurrence:
    """The recurrence of cotangents; its inputs are inputs, states before the step, cotangents of outputs."""
    k, n = recurrence.n_states, recurrence.n_inputs
    places: dict[Node, Node] = {state(p): input_(n + p) for p in range(k)}
    cotangents: dict[Node, Node] = {}
    results = [*recurrence.states, *recurrence.outputs]
    backs = [state(p) for p in range(k)] + [input_(n + k + p) for p in range(len(recurrence.outputs))]
    for root, back in zip((substitute(root, places) for root in results), backs):
        cotangents[root] = make("add", cotangents[root], back) if root in cotangents else back
    of = (*places.values(), *(input_(p) for p in range(n)))
    found = pull_back(cotangents, tuple(of))
    return Recurrence(
        tuple(_plain(f) for f in found[:k]), tuple(_plain(f) for f in found[k:]), n + k + len(recurrence.outputs)
    )


def _plain(node: Node) -> Node:
    return constant(0) if node.op == "zero" else node
