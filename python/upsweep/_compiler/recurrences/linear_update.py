"""Recognises updates of the form ``gates * state + tokens``, which `linear_recurrence` runs on CUDA."""

from __future__ import annotations

import functools
from typing import NamedTuple

from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.recurrences.recurrence import Recurrence, state

__all__ = ["LinearUpdate", "find_linear"]


class LinearUpdate(NamedTuple):
    """y[t] = gates[t] * y[t-1] + tokens[t], by the positions of inputs; without gates, `factor` is the gate."""

    gates: int | None
    factor: float
    tokens: int


@functools.lru_cache(512)
def find_linear(recurrence: Recurrence) -> LinearUpdate | None:
    """The linear form of a recurrence with one state that is its only output; None if it has none."""
    if recurrence.n_states != 1 or recurrence.outputs not in ((), recurrence.states):
        return None
    (root,) = recurrence.states
    if root.op != "add":
        return None
    for moved, tokens in (root.args, root.args[::-1]):
        place = _input(tokens)
        if place is None:
            continue
        if moved is state(0):
            return LinearUpdate(None, 1.0, place)
        if moved.op != "mul":
            continue
        for factor, other in (moved.args, moved.args[::-1]):
            if other is not state(0):
                continue
            if factor.op == "constant":
                return LinearUpdate(None, float(factor.static[0]), place)
            gates = _input(factor)
            if gates is not None and gates != place:
                return LinearUpdate(gates, 1.0, place)
    return None


def _input(node: Node) -> int | None:
    is_input = node.op == "variable" and node.static[1] == "j"
    return int(node.static[0]) if is_input else None
