"""Recurrences: state[t] = f(state[t-1], x[t]) and out[t] = g(state[t-1], x[t]), with f and g as expression graphs.

The nodes are those of `_compiler.formulas`, of dimension 1. States are variables of kind "i", inputs of kind "j".
Numbers that were lifted out of the expressions, so that other numbers need no other code, are of kind "p".
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upsweep._compiler.formulas.cotangents import pull_back
from upsweep._compiler.formulas.derivative import SCALAR_RULES
from upsweep._compiler.formulas.nodes import Node, as_rows, constant, from_rows, make, order, substitute, variable
from upsweep._compiler.formulas.reference import evaluate as evaluate_formula


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


@functools.lru_cache(256)
def written(recurrence: Recurrence) -> str:
    """The recurrence as JSON text, which `parsed` reads: torch's operations and cache keys take strings."""
    number = {node: place for place, node in enumerate(order(*recurrence.roots))}
    places = [number[root] for root in recurrence.roots]
    return json.dumps([recurrence.n_inputs, recurrence.n_states, places, as_rows(*recurrence.roots)])


@functools.lru_cache(256)
def parsed(text: str) -> Recurrence:
    """The recurrence that `written` serialised, in any process."""
    n_inputs, n_states, places, rows = json.loads(text)
    nodes = from_rows((op, args, _tuples(static), dim) for op, args, static, dim in rows)
    roots = tuple(nodes[place] for place in places)
    return Recurrence(roots[:n_states], roots[n_states:], n_inputs)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


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


def evaluate(node: Node, dtype: np.dtype[np.floating]) -> float:
    """The value of a node without variables, computed in a dtype."""
    return float(evaluate_formula(node, (), dtype)[0])


@functools.lru_cache(256)
def adjoint(recurrence: Recurrence) -> Recurrence:
    """The recurrence of the cotangents, which runs backwards in time and is affine in its state.

    With r the cotangent of the state after step t, and g the cotangent of the output of step t,

        r' = r df/ds + g dg/ds        is the new state of the adjoint, and
             r df/dx + g dg/dx        its output: the gradient by the inputs of step t.

    Its inputs are the inputs of the recurrence, the states before each step, and the cotangents of the outputs.
    """
    k, n = recurrence.n_states, recurrence.n_inputs
    places: dict[Node, Node] = {state(p): input_(n + p) for p in range(k)}
    cotangents: dict[Node, Node] = {}
    incoming = [state(p) for p in range(k)] + [input_(n + k + p) for p in range(len(recurrence.outputs))]
    for root, cotangent in zip((substitute(root, places) for root in recurrence.roots), incoming):
        cotangents[root] = make("add", cotangents[root], cotangent) if root in cotangents else cotangent
    variables = *places.values(), *(input_(p) for p in range(n))
    gradients = pull_back(cotangents, variables, SCALAR_RULES, "where")
    nodes = tuple(constant(0) if node is None or node.op == "zero" else node for node in gradients)
    return Recurrence(nodes[:k], nodes[k:], n + k + len(recurrence.outputs))
