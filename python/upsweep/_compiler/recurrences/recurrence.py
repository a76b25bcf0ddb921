"""Recurrences: new[t] = f(old[t-1], x[t]), out[t] = g(old[t-1], x[t]), as nodes of dim 1.

States are variables of kind "i", inputs of kind "j", numbers that were lifted out of the expressions of kind "p".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, order, substitute, variable

__all__ = ["Recurrence", "describe", "evaluate", "input_", "lifted", "state"]


def state(position: int) -> Node:
    """A state before the step."""
    return variable(position, 1, "i")


def input_(position: int) -> Node:
    """An input at the step."""
    return variable(position, 1, "j")


@dataclass(frozen=True)
class Recurrence:
    """What one step does. Inputs are numbered up to `n_inputs`, whether they are read or not."""

    states: tuple[Node, ...]
    outputs: tuple[Node, ...]
    n_inputs: int

    @property
    def n_states(self) -> int:
        return len(self.states)

    def key(self) -> str:
        """Equal for equal recurrences, in any process."""
        return f"{self.n_inputs} {describe(self.states)} -> {describe(self.outputs)}"


def describe(roots: tuple[Node, ...]) -> str:
    """Nodes as a list of numbered operations."""
    number: dict[Node, int] = {}
    for node in order(*roots):
        number[node] = len(number)
    lines = [f"{node.op}{[number[arg] for arg in node.args]}{node.static!r}" for node in number]
    return "; ".join([*lines, str([number[root] for root in roots])])


# Numbers that the code may know: with them it is shorter, and other formulas have them too.
_PLAIN = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


def lifted(recurrence: Recurrence) -> tuple[Recurrence, tuple[float, ...]]:
    """The recurrence with its numbers as parameters, and the numbers: new numbers need no new code."""
    roots = (*recurrence.states, *recurrence.outputs)
    found: dict[float, Node] = {}
    replaced: dict[Node, Node] = {}
    for node in order(*roots):
        if node.op == "constant" and node.static[0] not in _PLAIN and node.static[0] == node.static[0]:
            value = node.static[0]
            replaced[node] = found.setdefault(value, variable(len(found), 1, "p"))
    if not replaced:
        return recurrence, ()
    new = [substitute(root, replaced) for root in roots]
    n = recurrence.n_states
    return Recurrence(tuple(new[:n]), tuple(new[n:]), recurrence.n_inputs), tuple(found)


_MEANINGS: dict[str, Callable[..., object]] = {
    "where": lambda c, a, b: np.where(c != 0, a, b),
    "minimum": np.minimum,
    "maximum": np.maximum,
    "logaddexp": np.logaddexp,
}


def evaluate(node: Node, dtype: np.dtype[np.floating]) -> float:
    """The value of a node without variables, calculated in a dtype."""
    values: dict[Node, object] = {}
    with np.errstate(all="ignore"):
        for each in order(node):
            if each.op in ("constant", "zero"):
                values[each] = dtype.type(each.static[0] if each.op == "constant" else 0)
            else:
                meaning = _MEANINGS.get(each.op) or ops.TABLE[each.op].numpy
                assert meaning is not None
                values[each] = meaning(*(values[arg] for arg in each.args), *each.static)
    return float(values[node])  # type: ignore[arg-type]  # numbers of numpy
