"""Recurrences: state[t] = f(state[t-1], x[t]) and out[t] = g(state[t-1], x[t]), with f and g as expression graphs.

The nodes are those of `_compiler.formulas`, of dimension 1. States are variables of kind "i", inputs of kind "j".
Numbers that were lifted out of the expressions, so that other numbers need no other code, are of kind "p".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, constant, order, substitute, variable

__all__ = [
    "Recurrence",
    "describe",
    "evaluate",
    "input_",
    "inputs_read",
    "keeping_states",
    "lifted",
    "state",
    "with_constants",
]


def state(position: int) -> Node:
    """The variable of a state before the step."""
    return variable(position, 1, "i")


def input_(position: int) -> Node:
    """The variable of an input at the step."""
    return variable(position, 1, "j")


@dataclass(frozen=True)
class Recurrence:
    """What one step computes from the states and the inputs; it need not read all of its `n_inputs` inputs."""

    states: tuple[Node, ...]
    outputs: tuple[Node, ...]
    n_inputs: int

    @property
    def n_states(self) -> int:
        return len(self.states)

    @property
    def roots(self) -> tuple[Node, ...]:
        return (*self.states, *self.outputs)

    def rewritten(self, nodes: Mapping[Node, Node], n_inputs: int | None = None) -> Recurrence:
        """The recurrence with some nodes replaced by others."""
        new = tuple(substitute(root, {**nodes}) for root in self.roots)
        k = self.n_states
        return Recurrence(new[:k], new[k:], self.n_inputs if n_inputs is None else n_inputs)

    def key(self) -> str:
        """A text that is equal for equal recurrences, in any process."""
        return f"{self.n_inputs} {describe(self.states)} -> {describe(self.outputs)}"


def describe(roots: tuple[Node, ...]) -> str:
    """The expressions as a list of numbered operations."""
    number: dict[Node, int] = {}
    for node in order(*roots):
        number[node] = len(number)
    lines = [f"{node.op}{[number[arg] for arg in node.args]}{node.static!r}" for node in number]
    return "; ".join([*lines, str([number[root] for root in roots])])


# Numbers that stay in the code: it is shorter with them, and many recurrences have them.
_INLINE = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


def lifted(recurrence: Recurrence) -> tuple[Recurrence, tuple[float, ...]]:
    """The recurrence with its numbers as parameters, and the numbers: other numbers need no other code."""
    parameters: dict[float, Node] = {}
    replaced: dict[Node, Node] = {}
    for node in order(*recurrence.roots):
        if node.op == "constant" and node.static[0] not in _INLINE and node.static[0] == node.static[0]:
            value = node.static[0]
            replaced[node] = parameters.setdefault(value, variable(len(parameters), 1, "p"))
    return recurrence.rewritten(replaced) if replaced else recurrence, tuple(parameters)


def keeping_states(recurrence: Recurrence, states: Iterable[int] | None = None) -> Recurrence:
    """The recurrence with these states before each step, or all of them, appended to its outputs."""
    added = map(state, range(recurrence.n_states) if states is None else states)
    return replace(recurrence, outputs=(*recurrence.outputs, *added))


def inputs_read(recurrence: Recurrence) -> list[int]:
    """The positions of the inputs that the recurrence reads, in order."""
    nodes = order(*recurrence.roots)
    return sorted({node.static[0] for node in nodes if node.op == "variable" and node.static[1] == "j"})


def with_constants(recurrence: Recurrence, numbers: Mapping[int, float]) -> Recurrence:
    """The recurrence with inputs replaced by numbers."""
    return _with_constants(recurrence, tuple((n, x.hex()) for n, x in numbers.items())) if numbers else recurrence


# Numbers are cached by their texts: -0.0 and 0.0 differ in them, and NaN is equal to itself.
@functools.lru_cache(512)
def _with_constants(recurrence: Recurrence, numbers: tuple[tuple[int, str], ...]) -> Recurrence:
    return recurrence.rewritten({input_(place): constant(float.fromhex(text)) for place, text in numbers})


_MEANINGS: dict[str, Callable[..., object]] = {
    "where": lambda c, a, b: np.where(c != 0, a, b),
    "minimum": np.minimum,
    "maximum": np.maximum,
    "logaddexp": np.logaddexp,
}


def evaluate(node: Node, dtype: np.dtype[np.floating]) -> float:
    """The value of a node without variables, computed in a dtype."""
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
